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
//! - Prefixes of a server that is lost or drained go to others by the same rule.
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
    /// Servers that get no prefix: lost, drained, or not the chain's.
    closed: Vec<bool>,
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
            closed: vec![false; usize::from(servers)],
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

    /// Adds a server that is not in use, and returns its number.
    ///
    /// # Panics
    /// If there are 65,535 servers.
    pub fn add_server(&mut self) -> ServerNumber {
        let number = ServerNumber::try_from(self.activated.len()).expect("fewer than 65,536 servers");
        self.activated.push(false);
        self.closed.push(false);
        number
    }

    /// Sets whether a server can be given prefixes. Those that it has stay until [`vacate`](Self::vacate).
    ///
    /// # Panics
    /// If the rack has no such server.
    pub fn set_closed(&mut self, server: ServerNumber, closed: bool) {
        self.closed[usize::from(server)] = closed;
    }

    /// Sets the number of usable rows. Rows beyond it stay.
    pub fn set_table(&mut self, rows: usize) {
        self.config.table = rows;
    }

    /// Takes over rows that the switch has: prefixes with their servers, and the server of all others, if the table was
    /// full.
    ///
    /// # Panics
    /// If the rack has no such server.
    pub fn restore(&mut self, rows: impl IntoIterator<Item = (IpNet, ServerNumber)>, full: Option<ServerNumber>) {
        self.table = rows
            .into_iter()
            .map(|(prefix, server)| (prefix.trunc(), server))
            .collect();
        self.full = full;
        for server in self.table.values().copied().chain(full) {
            self.activated[usize::from(server)] = true;
        }
    }

    /// Removes a row that the switch refused.
    pub fn forget(&mut self, prefix: IpNet) {
        self.table.remove(&prefix);
    }

    /// Returns the rows, in no order, and the server of all other prefixes, if the table has been full.
    pub fn table(&self) -> (impl Iterator<Item = (IpNet, ServerNumber)>, Option<ServerNumber>) {
        (self.table.iter().map(|(prefix, server)| (*prefix, *server)), self.full)
    }

    /// Gives all prefixes of a closed server to others, in the order of the prefixes. Returns them with their new
    /// servers; the last has no prefix if the server was that of all prefixes without a row. Returns nothing if all
    /// servers are closed.
    ///
    /// # Panics
    /// If the length of `dedicated` is not the number of servers.
    pub fn vacate(&mut self, server: ServerNumber, dedicated: &[u16]) -> Vec<(Option<IpNet>, ServerNumber)> {
        assert_eq!(dedicated.len(), self.activated.len(), "one report a server");
        if self.closed.iter().all(|closed| *closed) {
            return Vec::new();
        }
        let of_server = self.table.iter().filter(|(_, at)| **at == server);
        let mut prefixes: Vec<IpNet> = of_server.map(|(prefix, _)| *prefix).collect();
        prefixes.sort_unstable();
        self.activated[usize::from(server)] = false;
        // Prefixes before the next report count as cores, or one server would get all of them.
        let mut dedicated = dedicated.to_vec();
        let mut moved = Vec::new();
        for prefix in prefixes {
            let to = self.choose(&dedicated);
            self.activated[usize::from(to)] = true;
            dedicated[usize::from(to)] = dedicated[usize::from(to)].saturating_add(1);
            self.table.insert(prefix, to);
            moved.push((Some(prefix), to));
        }
        if self.full == Some(server) {
            let to = self.choose(&dedicated);
            self.activated[usize::from(to)] = true;
            self.full = Some(to);
            moved.push((None, to));
        }
        moved
    }

    /// Returns the server for a new prefix.
    fn choose(&self, dedicated: &[u16]) -> ServerNumber {
        let numbers = || (0..dedicated.len()).rev().filter(|&server| !self.closed[server]);
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
    fn prefixes_of_a_closed_server_go_to_the_others_and_none_to_it() {
        let mut mapper = mapper(3);
        steer(&mut mapper, "10.1.0.0", [0; 3]);
        steer(&mut mapper, "10.2.0.0", [4, 0, 0]);
        steer(&mut mapper, "10.3.0.0", [3, 4, 0]);
        assert_eq!(steer(&mut mapper, "10.4.0.0", [3, 4, 0]), Steering::Full(0));
        mapper.set_closed(0, true);
        let to = |prefix: &str, server| (Some(prefix.parse().unwrap()), server);
        // Server 1 has one core left below τ; the next prefix takes server 2.
        assert_eq!(
            mapper.vacate(0, &[3, 3, 0]),
            [to("10.1.0.0/16", 1), to("10.3.0.0/16", 2), (None, 2)]
        );
        assert!(!mapper.activated(0));
        assert_eq!(steer(&mut mapper, "10.4.0.0", [0, 9, 9]), Steering::Full(2));
        assert_eq!(steer(&mut mapper, "10.1.0.0", [0, 9, 9]), Steering::Known(1));
        // It is open again, and not in use.
        mapper.set_closed(0, false);
        mapper.set_table(4);
        assert_eq!(steer(&mut mapper, "10.5.0.0", [0, 9, 9]), install("10.5.0.0/16", 0));
        assert_eq!(mapper.add_server(), 3);
        mapper.set_table(5);
        let next = mapper.steer("10.6.0.0".parse().unwrap(), &[9, 9, 9, 0]);
        assert_eq!(next, install("10.6.0.0/16", 3));
        for server in 0..4 {
            mapper.set_closed(server, true);
        }
        assert_eq!(mapper.vacate(1, &[0; 4]), []);
        assert_eq!(mapper.rows(), 5);
    }

    #[test]
    fn rows_of_the_switch_are_taken_over() {
        let mut old = mapper(3);
        steer(&mut old, "10.1.0.0", [0; 3]);
        steer(&mut old, "10.2.0.0", [4, 0, 0]);
        let mut mapper = mapper(3);
        let (rows, full) = old.table();
        mapper.restore(rows, full);
        assert_eq!(steer(&mut mapper, "10.2.0.0", [0; 3]), Steering::Known(1));
        assert!(mapper.activated(0) && mapper.activated(1) && !mapper.activated(2));
        mapper.forget("10.2.0.0/16".parse().unwrap());
        assert_eq!(mapper.rows(), 1);
        mapper.restore([], Some(2));
        mapper.set_table(0);
        assert_eq!(steer(&mut mapper, "10.2.0.0", [0; 3]), Steering::Full(2));
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
