//! NetBlaze's ingress mapper: destination prefixes to servers.
//!
//! The paper (section 3.4): flows to the same destination prefix go to the same server. A new prefix goes to the server
//! with the most dedicated cores among those with fewer than a threshold τ, which leaves each of them cores for bursts.
//! If there is none, a server is taken from the rack. Servers report their numbers of dedicated cores when these
//! change, and are never consolidated. The switch buffers a prefix's first packets until its row is written.
//!
//! The following is not published and was chosen here:
//!
//! - The caller chooses τ. Ties go to the lower number.
//! - When no server is left, the prefix goes to the one with the fewest dedicated cores.
//! - When the switch's table is full, prefixes without a row share one default server. It is picked by the same rule
//!   when the table is first found full. It never changes, since flows must not change servers.
//! - IPv6 has its own prefix length.
//!
//! Tailwater's is the [`IngressBalancer`](super::IngressBalancer).

use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;

/// Number of a server in the rack.
pub type ServerNumber = u16;

/// Parameters of ingress mappers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IngressConfig {
    /// Length of IPv4 prefixes, at most 32.
    pub prefix_v4: u8,
    /// Length of IPv6 prefixes, at most 128.
    pub prefix_v6: u8,
    /// Threshold τ: servers with this many dedicated cores or more get no new prefix. Not used if rows are rebalanced.
    pub threshold: u16,
    /// Usable rows of the switch's table.
    pub table: usize,
    /// `true` if rows can also match a part of the flow hash.
    pub flow_hash: bool,
    /// `true` for the [`IngressBalancer`](super::IngressBalancer), which moves rows between servers; `false` for the
    /// [`IngressMapper`], which never does.
    pub rebalance: bool,
    /// `true` if the [`IngressBalancer`](super::IngressBalancer) empties servers that are not needed.
    pub scale_in: bool,
}

impl IngressConfig {
    /// Checks the lengths of prefixes.
    pub(super) fn check(&self) {
        assert!(
            self.prefix_v4 <= 32 && self.prefix_v6 <= 128,
            "a prefix is no longer than an address"
        );
    }
}

/// Destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// Its prefix is in the table.
    Known(ServerNumber),
    /// Its prefix is new: this row must be written, and its packets wait for it.
    Install {
        /// Prefix of the row.
        prefix: IpNet,
        /// Server for the whole prefix.
        server: ServerNumber,
    },
    /// The table is full: the server for all prefixes without a row.
    Full(ServerNumber),
}

impl Steering {
    /// Returns the server.
    pub const fn server(self) -> ServerNumber {
        match self {
            Steering::Known(server) | Steering::Install { server, .. } | Steering::Full(server) => server,
        }
    }
}

/// Assigns destination prefixes to servers.
#[derive(Clone, Debug)]
pub struct IngressMapper {
    config: IngressConfig,
    table: HashMap<IpNet, ServerNumber>,
    activated: Vec<bool>,
    /// Server for all prefixes without a row, once the table has been full.
    full: Option<ServerNumber>,
}

impl IngressMapper {
    /// Creates a mapper for a rack of `servers` servers, none of which is in use.
    ///
    /// # Panics
    /// If there is no server, or a prefix is longer than an address.
    pub fn new(config: IngressConfig, servers: ServerNumber) -> IngressMapper {
        assert!(servers > 0, "a rack has servers");
        config.check();
        IngressMapper {
            config,
            table: HashMap::new(),
            activated: vec![false; usize::from(servers)],
            full: None,
        }
    }

    /// Returns the server for packets to `destination`. `dedicated` holds each server's number of dedicated cores, as
    /// last reported.
    ///
    /// # Panics
    /// If the length of `dedicated` is not the number of servers.
    pub fn steer(&mut self, destination: IpAddr, dedicated: &[u16]) -> Steering {
        assert_eq!(dedicated.len(), self.activated.len(), "one report a server");
        let bits = match destination {
            IpAddr::V4(_) => self.config.prefix_v4,
            IpAddr::V6(_) => self.config.prefix_v6,
        };
        let prefix = IpNet::new_assert(destination, bits).trunc();
        if let Some(&server) = self.table.get(&prefix) {
            return Steering::Known(server);
        }
        if self.table.len() < self.config.table {
            let server = self.choose(dedicated);
            self.activated[usize::from(server)] = true;
            self.table.insert(prefix, server);
            return Steering::Install { prefix, server };
        }
        let server = self.full.unwrap_or_else(|| self.choose(dedicated));
        self.activated[usize::from(server)] = true;
        self.full = Some(server);
        Steering::Full(server)
    }

    /// Returns `true` if a server has been given a prefix.
    ///
    /// # Panics
    /// If the rack has no such server.
    pub fn activated(&self, server: ServerNumber) -> bool {
        self.activated[usize::from(server)]
    }

    /// Returns the number of rows in use.
    pub fn rows(&self) -> usize {
        self.table.len()
    }

    /// Returns the server for a new prefix.
    fn choose(&self, dedicated: &[u16]) -> ServerNumber {
        let numbers = || (0..dedicated.len()).rev();
        let target = numbers()
            .filter(|&s| self.activated[s] && dedicated[s] < self.config.threshold)
            .max_by_key(|&s| dedicated[s])
            .or_else(|| numbers().rev().find(|&s| !self.activated[s]))
            .or_else(|| numbers().rev().min_by_key(|&s| dedicated[s]))
            .unwrap_or(0);
        target as ServerNumber
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    fn mapper(table: usize) -> IngressMapper {
        let config = IngressConfig {
            prefix_v4: 16,
            prefix_v6: 32,
            threshold: 4,
            table,
            flow_hash: false,
            rebalance: false,
            scale_in: false,
        };
        IngressMapper::new(config, 3)
    }

    fn steer(mapper: &mut IngressMapper, destination: &str, dedicated: [u16; 3]) -> Steering {
        mapper.steer(destination.parse().unwrap(), &dedicated)
    }

    fn install(prefix: &str, server: ServerNumber) -> Steering {
        Steering::Install {
            prefix: prefix.parse().unwrap(),
            server,
        }
    }

    #[test]
    fn a_prefix_first_seen_goes_to_the_fullest_server_below_the_threshold() {
        let mut mapper = mapper(100);
        assert_eq!(steer(&mut mapper, "10.1.2.3", [0; 3]), install("10.1.0.0/16", 0));
        assert_eq!(steer(&mut mapper, "10.1.255.255", [9, 9, 9]), Steering::Known(0));
        // Server 0 is below τ, and the only one in use: no other server is taken.
        assert_eq!(steer(&mut mapper, "10.2.0.0", [3, 0, 0]), install("10.2.0.0/16", 0));
        assert_eq!(steer(&mut mapper, "10.3.0.0", [4, 0, 0]), install("10.3.0.0/16", 1));
        // Both are below τ: the one with more cores. If equal: the lower number.
        assert_eq!(
            steer(&mut mapper, "2001:db8:7::1", [2, 3, 0]),
            install("2001:db8::/32", 1)
        );
        assert_eq!(steer(&mut mapper, "10.4.0.0", [3, 3, 0]), install("10.4.0.0/16", 0));
        assert!(!mapper.activated(2));
        assert_eq!(steer(&mut mapper, "10.5.0.0", [4, 5, 0]), install("10.5.0.0/16", 2));
        // No server is left: the one with the fewest cores.
        assert_eq!(steer(&mut mapper, "10.6.0.0", [6, 5, 5]), install("10.6.0.0/16", 1));
        // A steered prefix stays, however few cores its server has by now.
        assert_eq!(steer(&mut mapper, "10.3.9.9", [3, 0, 3]), Steering::Known(1));
    }

    #[test]
    fn prefixes_without_a_row_share_a_server() {
        let mut mapper = mapper(2);
        steer(&mut mapper, "10.1.0.0", [0; 3]);
        steer(&mut mapper, "10.2.0.0", [4, 0, 0]);
        assert_eq!(steer(&mut mapper, "10.3.0.0", [2, 3, 0]), Steering::Full(1));
        assert_eq!(steer(&mut mapper, "10.3.0.0", [3, 0, 0]), Steering::Full(1));
        assert_eq!(steer(&mut mapper, "10.4.0.0", [3, 9, 0]), Steering::Full(1));
        assert_eq!(steer(&mut mapper, "10.1.0.0", [9, 9, 9]), Steering::Known(0));
        assert_eq!(mapper.rows(), 2);
    }

    #[test]
    fn a_prefix_of_no_bits_is_everything() {
        let config = IngressConfig {
            prefix_v4: 0,
            prefix_v6: 0,
            threshold: 1,
            table: 2,
            flow_hash: false,
            rebalance: false,
            scale_in: false,
        };
        let mut mapper = IngressMapper::new(config, 1);
        let any = |text: &str| text.parse().unwrap();
        assert_eq!(mapper.steer(any("1.2.3.4"), &[0]), install("0.0.0.0/0", 0));
        assert_eq!(mapper.steer(any("255.0.0.1"), &[7]), Steering::Known(0));
        assert_eq!(mapper.steer(any("::1"), &[7]), install("::/0", 0));
    }

    proptest! {
        #[test]
        fn a_prefix_keeps_its_server_and_no_server_is_taken_early(
            packets in proptest::collection::vec(
                (0_u8..6, any::<u8>(), [0_u16..6, 0_u16..6, 0_u16..6]),
                1..60,
            ),
            table in 0_usize..6,
        ) {
            let mut mapper = mapper(table);
            let mut seen = HashMap::new();
            for (prefix, host, dedicated) in packets {
                let before: Vec<_> = (0..3).map(|server| mapper.activated(server)).collect();
                let destination = Ipv4Addr::new(10, prefix, host, host).into();
                let server = mapper.steer(destination, &dedicated).server();
                prop_assert_eq!(*seen.entry(prefix).or_insert(server), server);
                prop_assert!(mapper.rows() <= table);
                let has_room = |s: usize| before[s] && dedicated[s] < 4;
                if !before[usize::from(server)] {
                    prop_assert!(!(0..3).any(has_room), "a server in use had room");
                }
            }
        }
    }
}
