//! NetBlaze's ingress mapper: destination prefixes to servers.
//!
//! The paper (section 3.4): flows to the same destination prefix go to the same server. A prefix
//! for which no packet has been seen before goes to the server with the most dedicated cores among
//! those with fewer than a threshold τ, which leaves each of them cores for bursts; if there is
//! none, a server is taken from the rack. Servers report their numbers of dedicated cores when
//! these change, and are never consolidated.
//!
//! Not published, and chosen here: τ itself (the caller's); ties (the lower number); what happens
//! when no server is left (the one with the fewest dedicated cores), or no room in the switch's
//! table (prefixes without a row share one default server, picked by the same rule when the table
//! is first found full; it stays, as its flows do). IPv6 has a prefix length of its own.

use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;

/// A server of the rack.
pub type ServerNumber = u16;

/// How prefixes are steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IngressConfig {
    /// Length of IPv4 prefixes, at most 32.
    pub prefix_v4: u8,
    /// Length of IPv6 prefixes, at most 128.
    pub prefix_v6: u8,
    /// The threshold τ: servers with this many dedicated cores or more get no new prefix.
    pub threshold: u16,
    /// Rows of the switch's table that may be used.
    pub table: usize,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// Its prefix is in the table.
    Known(ServerNumber),
    /// Its prefix was seen first: this row is to be written.
    Install {
        /// The row's prefix.
        prefix: IpNet,
        /// The server for all of it.
        server: ServerNumber,
    },
    /// The table is full: the server for all prefixes without a row.
    Full(ServerNumber),
}

impl Steering {
    /// The server.
    pub const fn server(self) -> ServerNumber {
        match self {
            Steering::Known(server) | Steering::Install { server, .. } | Steering::Full(server) => {
                server
            }
        }
    }
}

/// Assigns destination prefixes to servers.
#[derive(Clone, Debug)]
pub struct IngressMapper {
    config: IngressConfig,
    table: HashMap<IpNet, ServerNumber>,
    recruited: Vec<bool>,
    default: Option<ServerNumber>,
}

impl IngressMapper {
    /// For a rack of `servers` servers, none of which is in use.
    ///
    /// # Panics
    /// If there is no server, or a prefix is longer than an address.
    pub fn new(config: IngressConfig, servers: ServerNumber) -> IngressMapper {
        assert!(servers > 0, "a rack has servers");
        assert!(
            config.prefix_v4 <= 32 && config.prefix_v6 <= 128,
            "a prefix is no longer than an address"
        );
        IngressMapper {
            config,
            table: HashMap::new(),
            recruited: vec![false; usize::from(servers)],
            default: None,
        }
    }

    /// Where packets to `destination` go. `dedicated` holds each server's number of dedicated
    /// cores, as last reported.
    ///
    /// # Panics
    /// If `dedicated` is not as long as the rack has servers.
    pub fn steer(&mut self, destination: IpAddr, dedicated: &[u16]) -> Steering {
        assert_eq!(dedicated.len(), self.recruited.len(), "one report a server");
        let bits = match destination {
            IpAddr::V4(_) => self.config.prefix_v4,
            IpAddr::V6(_) => self.config.prefix_v6,
        };
        let prefix = IpNet::new_assert(destination, bits).trunc();
        if let Some(&server) = self.table.get(&prefix) {
            return Steering::Known(server);
        }
        if self.table.len() < self.config.table {
            let server = self.pick(dedicated);
            self.table.insert(prefix, server);
            return Steering::Install { prefix, server };
        }
        let server = match self.default {
            Some(server) => server,
            None => self.pick(dedicated),
        };
        self.default = Some(server);
        Steering::Full(server)
    }

    /// Whether a server has been given a prefix.
    ///
    /// # Panics
    /// If the rack has no such server.
    pub fn recruited(&self, server: ServerNumber) -> bool {
        self.recruited[usize::from(server)]
    }

    /// Rows in use.
    pub fn rows(&self) -> usize {
        self.table.len()
    }

    /// The server for a prefix first seen.
    fn pick(&mut self, dedicated: &[u16]) -> ServerNumber {
        let numbers = || (0..dedicated.len()).rev();
        let target = numbers()
            .filter(|&s| self.recruited[s] && dedicated[s] < self.config.threshold)
            .max_by_key(|&s| dedicated[s])
            .or_else(|| numbers().rev().find(|&s| !self.recruited[s]))
            .or_else(|| numbers().rev().min_by_key(|&s| dedicated[s]))
            .unwrap_or(0);
        self.recruited[target] = true;
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
        };
        IngressMapper::new(config, 3)
    }

    fn steer(mapper: &mut IngressMapper, destination: &str, dedicated: [u16; 3]) -> Steering {
        mapper.steer(destination.parse().unwrap(), &dedicated)
    }

    fn install(prefix: &str, server: ServerNumber) -> Steering {
        let prefix = prefix.parse().unwrap();
        Steering::Install { prefix, server }
    }

    #[test]
    fn a_prefix_first_seen_goes_to_the_fullest_server_below_the_threshold() {
        let mut mapper = mapper(100);
        assert_eq!(
            steer(&mut mapper, "10.1.2.3", [0; 3]),
            install("10.1.0.0/16", 0)
        );
        assert_eq!(
            steer(&mut mapper, "10.1.255.255", [9, 9, 9]),
            Steering::Known(0)
        );
        // Server 0 is below, and the only one in use: nobody is recruited.
        assert_eq!(
            steer(&mut mapper, "10.2.0.0", [3, 0, 0]),
            install("10.2.0.0/16", 0)
        );
        assert_eq!(
            steer(&mut mapper, "10.3.0.0", [4, 0, 0]),
            install("10.3.0.0/16", 1)
        );
        // Both below: the one with more; equal: the lower number.
        assert_eq!(
            steer(&mut mapper, "2001:db8:7::1", [2, 3, 0]),
            install("2001:db8::/32", 1)
        );
        assert_eq!(
            steer(&mut mapper, "10.4.0.0", [3, 3, 0]),
            install("10.4.0.0/16", 0)
        );
        assert!(!mapper.recruited(2));
        assert_eq!(
            steer(&mut mapper, "10.5.0.0", [4, 5, 0]),
            install("10.5.0.0/16", 2)
        );
        // No server is left: the one with the fewest.
        assert_eq!(
            steer(&mut mapper, "10.6.0.0", [6, 5, 5]),
            install("10.6.0.0/16", 1)
        );
        // What is steered stays, however few cores its server has by now.
        assert_eq!(
            steer(&mut mapper, "10.3.9.9", [3, 0, 3]),
            Steering::Known(1)
        );
    }

    #[test]
    fn prefixes_without_a_row_share_a_server() {
        let mut mapper = mapper(2);
        steer(&mut mapper, "10.1.0.0", [0; 3]);
        steer(&mut mapper, "10.2.0.0", [4, 0, 0]);
        assert_eq!(steer(&mut mapper, "10.3.0.0", [2, 3, 0]), Steering::Full(1));
        assert_eq!(steer(&mut mapper, "10.3.0.0", [3, 0, 0]), Steering::Full(1));
        assert_eq!(steer(&mut mapper, "10.4.0.0", [3, 9, 0]), Steering::Full(1));
        assert_eq!(
            steer(&mut mapper, "10.1.0.0", [9, 9, 9]),
            Steering::Known(0)
        );
        assert_eq!(mapper.rows(), 2);
    }

    #[test]
    fn a_prefix_of_no_bits_is_everything() {
        let config = IngressConfig {
            prefix_v4: 0,
            prefix_v6: 0,
            threshold: 1,
            table: 2,
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
                let before: Vec<_> = (0..3).map(|server| mapper.recruited(server)).collect();
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
