//! Connections inside tunnels. The caller's flow table knows only the outer packets, so each inspector has a table of
//! its own for inner ones: of fixed size, without allocation, the longest idle connection of a set evicted.

use crate::connection::Connection;
use tailwater_net::{FlowKey, Nanos};

/// Connections per set.
const WAYS: usize = 8;
/// Number of sets, a power of two.
const SETS: usize = 256;

/// Connection inside a tunnel.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: FlowKey,
    used: Nanos,
    connection: Connection,
}

/// Connections inside tunnels.
#[derive(Debug)]
pub(crate) struct InnerConnections {
    entries: Box<[Entry]>,
}

impl InnerConnections {
    /// Allocates the table.
    pub(crate) fn new() -> InnerConnections {
        InnerConnections {
            entries: vec![Entry::default(); SETS * WAYS].into(),
        }
    }

    /// Returns the index of a connection's entry, and the connection that was evicted for it.
    pub(crate) fn find(&mut self, key: FlowKey, now: Nanos) -> (usize, Option<Connection>) {
        let first = (key.hash(0) as usize & (SETS - 1)) * WAYS;
        let set = &mut self.entries[first..first + WAYS];
        if let Some(at) = set.iter().position(|entry| entry.key == key) {
            set[at].used = now;
            return (first + at, None);
        }
        let oldest = set.iter().enumerate().min_by_key(|(_, entry)| entry.used);
        let at = oldest.map_or(0, |(at, _)| at);
        let evicted = std::mem::replace(
            &mut set[at],
            Entry {
                key,
                used: now,
                connection: Connection::default(),
            },
        );
        (first + at, evicted.connection.lease().map(|_| evicted.connection))
    }

    /// Returns all connections.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.entries.iter_mut().map(|entry| &mut entry.connection)
    }

    /// Returns the connection of an entry.
    pub(crate) fn at(&mut self, index: usize) -> &mut Connection {
        &mut self.entries[index].connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Lease;
    use tailwater_net::protocol;

    #[test]
    fn the_longest_idle_connection_is_evicted_with_its_lease() {
        let mut table = InnerConnections::new();
        let key = |port| FlowKey::v4([1; 4].into(), [2; 4].into(), protocol::TCP, port, 80);
        let lease = Lease { slot: 3, generation: 1 };
        let (index, _) = table.find(key(1), Nanos(1));
        table.at(index).set_lease(Some(lease));
        assert_eq!(table.find(key(1), Nanos(2)), (index, None));
        let evicted = (2..60_000).find_map(|port| table.find(key(port), Nanos(u64::from(port))).1);
        assert_eq!(evicted.and_then(|connection| connection.lease()), Some(lease));
    }
}
