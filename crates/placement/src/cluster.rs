//! Cluster to place on: servers of several kinds, with their cores and cache ways.

use serde::Serialize;

/// Maximum number of servers of a cluster.
pub const MAX_SERVERS: usize = 20_000;
/// Maximum number of kinds of servers.
pub const MAX_KINDS: usize = 16;
/// Maximum number of cores of a NUMA node.
pub const MAX_CORES: u16 = 1024;
/// Maximum number of ways of a cache: masks of the kernel's `resctrl` have 32 bits.
pub const MAX_WAYS: u16 = 32;
/// Maximum number of NUMA nodes of a server.
pub const MAX_NODES: u16 = 16;

/// Kind of servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerKind {
    /// Machine whose curves apply to it.
    pub machine: String,
    /// Number of NUMA nodes, which are all alike. An instance has its cores and its cache on one of them.
    pub nodes: u16,
    /// Cores of each node available to instances.
    pub cores: u16,
    /// Ways of each node's last-level cache available to instances. Excluded are those that the NICs write into (DDIO),
    /// and those of everything else.
    pub ways: u16,
    /// Bytes per way.
    pub way_bytes: u64,
    /// Number of partitions of each node's cache: the processor's classes of service (CLOS), minus one for everything
    /// else. Each instance uses one.
    pub classes: u16,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Server {
    /// Unique name.
    pub name: String,
    /// Index of its kind.
    pub kind: usize,
}

/// Kinds and servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    kinds: Vec<ServerKind>,
    servers: Vec<Server>,
}

/// Reason why a cluster is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// An invalid number of servers, kinds, or parts of a kind.
    #[error("expected 1 to {most} {what}, found {found}")]
    Count {
        /// Counted item.
        what: &'static str,
        /// Maximum.
        most: usize,
        /// Number found.
        found: usize,
    },
    /// Two servers have the same name.
    #[error("expected a different name for each server, found \"{0}\" twice")]
    Twice(String),
    /// A server's kind (by index) does not exist.
    #[error("expected a kind of servers, found number {0}")]
    Kind(usize),
}

impl Cluster {
    /// Creates a cluster of these servers.
    ///
    /// # Errors
    /// There are no servers or too many, a server has an unknown kind or a duplicate name, or a kind has no cores or no
    /// cache.
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

    /// Creates `count` servers of one kind, named `server-0` and so on.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn uniform(kind: ServerKind, count: usize) -> Result<Self, ClusterError> {
        let name = |i| format!("server-{i}");
        let servers = (0..count.min(MAX_SERVERS + 1)).map(|i| Server { name: name(i), kind: 0 });
        Cluster::new(vec![kind], servers.collect())
    }

    /// Returns the kinds of servers.
    pub fn kinds(&self) -> &[ServerKind] {
        &self.kinds
    }

    /// Returns the servers.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Returns the kind of a server.
    pub fn kind_of(&self, server: usize) -> &ServerKind {
        &self.kinds[self.servers[server].kind]
    }

    /// Returns the number of servers of each kind.
    pub fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.kinds.len()];
        for server in &self.servers {
            counts[server.kind] += 1;
        }
        counts
    }
}
