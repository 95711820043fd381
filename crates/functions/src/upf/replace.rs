//! Replacement of all sessions of a file: adds new ones, changes others, removes missing ones. Sessions with other
//! owners remain.

use super::peers::MAX_PEERS;
use super::session::Session;
use super::table::{Owner, SessionError, UpfTable};
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

/// Validated sessions of a file. Until they are applied or this is dropped, all other changes are refused.
#[derive(Debug)]
pub struct Prepared {
    table: Arc<UpfTable>,
    sessions: Arc<[Session]>,
}

impl UpfTable {
    /// Validates a file's sessions, and blocks other changes. The sessions must not conflict with each other.
    ///
    /// # Errors
    /// Lists each invalid session with its index.
    pub fn prepare(table: &Arc<UpfTable>, sessions: &Arc<[Session]>) -> Result<Prepared, Vec<(usize, SessionError)>> {
        let mut named: Vec<u64> = sessions.iter().map(|session| session.id).collect();
        named.sort_unstable();
        let mut writer = table.lock();
        let others = writer
            .sessions
            .iter()
            .filter(|(id, (_, owner))| *owner == Owner::Api && named.binary_search(id).is_err());
        let room = table.options().capacity - others.count();
        // New peers must fit within the limit.
        let (mut peers, mut refused): (HashSet<IpAddr>, _) = (HashSet::new(), Vec::new());
        for (at, session) in sessions.iter().enumerate() {
            let stays = |id: &u64| {
                let known = writer.sessions.get(id);
                known.is_some_and(|(_, owner)| *owner == Owner::Api) && named.binary_search(id).is_err()
            };
            let mut taken = table.identifier_conflicts(session).filter(|(_, other)| stays(other));
            let why = if let Some((what, other)) = taken.next() {
                Some(SessionError::Taken { what, other })
            } else if at >= room {
                Some(SessionError::Full(table.options().capacity))
            } else if table.profile(session.profile).is_none() {
                Some(SessionError::Profile(session.profile))
            } else {
                session.tunnel.and_then(|tunnel| {
                    let mut own = table.options().addresses.iter();
                    if !own.any(|own| own.is_ipv4() == tunnel.peer.is_ipv4()) {
                        return Some(SessionError::Version(tunnel.peer));
                    }
                    if !writer.peers.contains_key(&tunnel.peer) {
                        peers.insert(tunnel.peer);
                    }
                    (writer.peers.len() + peers.len() > MAX_PEERS).then_some(SessionError::Peers)
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

/// Result of applying a file's sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedSessions {
    /// Number of replacements of this table so far.
    pub version: u32,
    /// Total attempts to set a session; at most two per session.
    pub tries: usize,
    /// Session numbers left out, with reasons.
    pub left_out: Vec<(u64, SessionError)>,
}

impl Prepared {
    /// Applies the sessions one by one, while packets are processed.
    pub fn put(self) -> AppliedSessions {
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
        // Removed first, so that their identifiers become free.
        for id in gone {
            table.remove_locked(&mut writer, id);
        }
        let mut waiting: Vec<&Session> = sessions.iter().collect();
        waiting.retain(|session| table.set_locked(&mut writer, session, Owner::File).is_err());
        let tries = sessions.len() + waiting.len();
        // The rest block each other in chains or cycles. All of them are removed, after which each finds its
        // identifiers free.
        for session in &waiting {
            table.remove_locked(&mut writer, session.id);
        }
        let left_out = waiting.into_iter().filter_map(|session| {
            let refused = table.set_locked(&mut writer, session, Owner::File).err()?;
            Some((session.id, refused))
        });
        let left_out = left_out.collect();
        writer.version += 1;
        AppliedSessions {
            version: writer.version,
            tries,
            left_out,
        }
    }
}

impl AppliedSessions {
    /// Returns a message about the sessions left out, or `None` if there are none.
    pub(crate) fn message(&self) -> Option<String> {
        let (session, why) = self.left_out.first()?;
        let number = self.left_out.len();
        Some(format!("{number} rejected, the first session {session}: {why}"))
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.table.lock().replacing = false;
    }
}
