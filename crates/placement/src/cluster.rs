//! What there is to place on: servers of some kinds, their cores and the ways of their caches.

use serde::Serialize;

/// The most servers of a cluster.
pub const MAX_SERVERS: usize = 20_000;
/// The most kinds of servers.
pub const MAX_KINDS: usize = 16;
/// The most cores of a NUMA node.
pub const MAX_CORES: u16 = 1024;
/// The most ways of a cache: masks of the kernel's `resctrl` have 32 bits.
pub const MAX_WAYS: u16 = 32;
/// The most NUMA nodes of a server.
pub const MAX_NODES: u16 = 16;

/// A kind of servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerKind {
    /// The machine whose curves hold for it.
    pub machine: String,
    /// NUMA nodes, all alike. An instance has its cores and its cache on one of them.
    pub nodes: u16,
    /// Cores of each node that instances may have.
    pub cores: u16,
    /// Ways of each node's last-level cache that instances may have: without those that the NICs write into,
    /// and those kept for everything else.
    pub ways: u16,
    /// Bytes of a way.
    pub way_bytes: u64,
    /// How many parts each node's cache can be cut into: what the processor has of classes, less one for
    /// everything else. Each instance takes one.
    pub classes: u16,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Server {
    /// Its name, different from all others'.
    pub name: String,
    /// Its kind, by number.
    pub kind: usize,
}

/// All servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    kinds: Vec<ServerKind>,
    servers: Vec<Server>,
}

/// Why there can be no such cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// A number of servers or kinds that cannot be.
    #[error("expected 1 to {most} {what}, found {found}")]
    Count {
        /// Of what.
        what: &'static str,
        /// The most.
        most: usize,
        /// How many there are.
        found: usize,
    },
    /// Two servers have one name.
    #[error("expected a different name for each server, found \"{0}\" twice")]
    Twice(String),
    /// A server's kind (by number) is none.
    #[error("expected a kind of servers, found number {0}")]
    Kind(usize),
}

impl Cluster {
    /// A cluster of these servers.
    ///
    /// # Errors
    /// No servers, too many, of no kind, of one name, or a kind without cores or cache.
    pub fn new(kinds: Vec<ServerKind>, servers: Vec<Server>) -> Result<Self, ClusterError> {
        let count = |what, most, found| match (1..=most).contains(&found) {
            true => Ok(()),
            false => Err(ClusterError::Count { what, most, found }),
        };
        count("servers", MAX_SERVERS, servers.len())?;
        count("kinds of servers", MAX_KINDS, kinds.len())?;
        for kind in &kinds {
            for (what, most, found) in [
                ("NUMA nodes", MAX_NODES, kind.nodes),
                ("cores", MAX_CORES, kind.cores),
                ("ways", MAX_WAYS, kind.ways),
                ("classes", MAX_CORES, kind.classes),
                ("bytes of a way", 1, kind.way_bytes.min(1) as u16),
            ] {
                count(what, most.into(), found.into())?;
            }
        }
        let mut names = std::collections::HashSet::new();
        for server in &servers {
            if server.kind >= kinds.len() {
                return Err(ClusterError::Kind(server.kind));
            }
            if !names.insert(&*server.name) {
                return Err(ClusterError::Twice(server.name.clone()));
            }
        }
        Ok(Cluster { kinds, servers })
    }

    /// So many servers of one kind, called `server-0` and so on.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn uniform(kind: ServerKind, count: usize) -> Result<Self, ClusterError> {
        let name = |i| format!("server-{i}");
        let servers = (0..count.min(MAX_SERVERS + 1)).map(|i| Server { name: name(i), kind: 0 });
        Cluster::new(vec![kind], servers.collect())
    }

    /// The kinds of servers.
    pub fn kinds(&self) -> &[ServerKind] {
        &self.kinds
    }

    /// The servers.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The kind of a server.
    pub fn kind_of(&self, server: usize) -> &ServerKind {
        &self.kinds[self.servers[server].kind]
    }

    /// How many servers there are of each kind.
    pub fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.kinds.len()];
        for server in &self.servers {
            counts[server.kind] += 1;
        }
        counts
    }
}
