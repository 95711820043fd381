//! All sessions of a file at once: those of it that are new are added, others changed, those that it has no more removed. What
//! others own stays.

use super::session::Session;
use super::table::{MAX_PEERS, Owner, Refused, UpfTable};
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

/// Sessions of a file that can be put in force. Until that is done, or this is dropped, nobody else sets any.
#[derive(Debug)]
pub struct Prepared {
    table: Arc<UpfTable>,
    sessions: Arc<[Session]>,
}

impl UpfTable {
    /// Looks whether these can be a file's sessions. No two have anything in common that is to be one's own.
    ///
    /// # Errors
    /// Each session that cannot be, with its place in the list.
    pub fn prepare(table: &Arc<UpfTable>, sessions: &Arc<[Session]>) -> Result<Prepared, Vec<(usize, Refused)>> {
        let mut named: Vec<u64> = sessions.iter().map(|session| session.id).collect();
        named.sort_unstable();
        let mut writer = table.lock();
        let others = writer
            .sessions
            .iter()
            .filter(|(id, (_, owner))| *owner == Owner::Api && named.binary_search(id).is_err());
        let room = table.options().capacity - others.count();
        // As many new ends of tunnels as there may be.
        let (mut peers, mut refused): (HashSet<IpAddr>, _) = (HashSet::new(), Vec::new());
        for (at, session) in sessions.iter().enumerate() {
            let stays = |id: &u64| {
                let known = writer.sessions.get(id);
                known.is_some_and(|(_, owner)| *owner == Owner::Api) && named.binary_search(id).is_err()
            };
            let mut taken = table.in_the_way(session).filter(|(_, other)| stays(other));
            let why = if let Some((what, other)) = taken.next() {
                Some(Refused::Taken { what, other })
            } else if at >= room {
                Some(Refused::Full(table.options().capacity))
            } else if table.profile(session.profile).is_none() {
                Some(Refused::Profile(session.profile))
            } else {
                session.tunnel.and_then(|tunnel| {
                    let mut own = table.options().addresses.iter();
                    if !own.any(|own| own.is_ipv4() == tunnel.peer.is_ipv4()) {
                        return Some(Refused::Version(tunnel.peer));
                    }
                    if !writer.peers.contains_key(&tunnel.peer) {
                        peers.insert(tunnel.peer);
                    }
                    (writer.peers.len() + peers.len() > MAX_PEERS).then_some(Refused::Peers)
                })
            };
            refused.extend(why.map(|why| (at, why)));
        }
        if !refused.is_empty() {
            return Err(refused);
        }
        writer.replacing = true;
        drop(writer);
        Ok(Prepared {
            table: Arc::clone(table),
            sessions: Arc::clone(sessions),
        })
    }
}

/// How sessions of a file were put in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// How often that has been done with this table.
    pub version: u32,
    /// How many times a session was tried, over all of them: no session more than twice.
    pub tries: usize,
    /// The numbers of those that are left out, and why.
    pub left_out: Vec<(u64, Refused)>,
}

impl Prepared {
    /// Puts them in force, one after the other: packets pass meanwhile.
    pub fn put(self) -> Put {
        let (table, sessions) = (&self.table, &*self.sessions);
        let mut named: Vec<u64> = sessions.iter().map(|session| session.id).collect();
        named.sort_unstable();
        let mut writer = table.lock();
        let gone: Vec<u64> = writer
            .sessions
            .iter()
            .filter(|(id, (_, owner))| *owner == Owner::File && named.binary_search(id).is_err())
            .map(|(id, _)| *id)
            .collect();
        // First, so that what was theirs can be others'.
        for id in gone {
            table.remove_locked(&mut writer, id);
        }
        let mut waiting: Vec<&Session> = sessions.iter().collect();
        waiting.retain(|session| table.set_locked(&mut writer, session, Owner::File).is_err());
        let tries = sessions.len() + waiting.len();
        // They are in each other's way, in rows or rings: whoever waits gives up what he had, and then each finds his own free.
        for session in &waiting {
            table.remove_locked(&mut writer, session.id);
        }
        let left_out = waiting.into_iter().filter_map(|session| {
            let refused = table.set_locked(&mut writer, session, Owner::File).err()?;
            Some((session.id, refused))
        });
        let left_out = left_out.collect();
        writer.version += 1;
        Put {
            version: writer.version,
            tries,
            left_out,
        }
    }
}

impl Put {
    /// What is left out, for a user; `None`: nothing is.
    pub(crate) fn told(&self) -> Option<String> {
        let (session, why) = self.left_out.first()?;
        let number = self.left_out.len();
        Some(format!("all but {number}, the first of them session {session}: {why}"))
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.table.lock().replacing = false;
    }
}
