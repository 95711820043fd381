//! Rights of the peers of the control socket.

use rustix::process::geteuid;

/// Rights of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// May read.
    Reader,
    /// May read and change.
    Operator,
}

/// Peer of a connection, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) user: u32,
    pub(super) group: u32,
    /// Supplementary groups.
    pub(super) groups: Vec<u32>,
}

/// Rule that gives peers their rights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    own_user: u32,
    readers: Option<u32>,
}

impl Access {
    /// Root and the user of this process may change, members of the group `readers` may read.
    pub(super) fn new(readers: Option<u32>) -> Access {
        Access {
            own_user: geteuid().as_raw(),
            readers,
        }
    }

    /// Returns the rights of a peer; `None` if it has none.
    pub(super) fn role(&self, peer: &Peer) -> Option<Role> {
        if peer.user == 0 || peer.user == self.own_user {
            return Some(Role::Operator);
        }
        let is_reader = |readers: u32| peer.group == readers || peer.groups.contains(&readers);
        self.readers.is_some_and(is_reader).then_some(Role::Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_own_user_change_and_one_group_reads() {
        let access = Access {
            own_user: 1000,
            readers: Some(50),
        };
        let peer = |user, group, groups: &[u32]| Peer {
            user,
            group,
            groups: groups.to_vec(),
        };
        for (peer, role) in [
            (peer(0, 0, &[]), Some(Role::Operator)),
            (peer(1000, 1000, &[]), Some(Role::Operator)),
            (peer(1001, 50, &[]), Some(Role::Reader)),
            (peer(1001, 1001, &[4, 50]), Some(Role::Reader)),
            (peer(1001, 1000, &[0, 1000]), None),
        ] {
            assert_eq!(access.role(&peer), role, "{peer:?}");
        }
        let without = Access {
            own_user: 1000,
            readers: None,
        };
        assert_eq!(without.role(&peer(1001, 50, &[50])), None);
    }
}
