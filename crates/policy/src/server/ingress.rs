//! The ingress mapper: destination prefixes to servers, as NetBlaze has it, or with a default row.
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
//!
//! # The default row
//!
//! NetBlaze's switch keeps a prefix's first packets until its row is written: a millisecond or more, in
//! which whoever is behind a new prefix waits, or loses packets. With [`IngressConfig::default_row`]
//! the switch has a row for everything else, to the server that new prefixes are to go to anyway, so no
//! packet waits; each prefix first seen gets a row of its own to that server meanwhile. Another
//! server is chosen once this one has no room. As no flow may change servers, it then takes three
//! steps: the default row is taken away, and new prefixes wait as in NetBlaze; every prefix that went by it
//! has its own row; the default row to the new server is written.

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
    /// Whether first packets go by a default row instead of waiting.
    pub default_row: bool,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// Its prefix is in the table.
    Known(ServerNumber),
    /// Its prefix was seen first: this row is to be written, and [`IngressMapper::row_written`] told.
    Install {
        /// The row's prefix.
        prefix: IpNet,
        /// The server for all of it.
        server: ServerNumber,
        /// Whether its packets wait for the row; if not, the default row leads to the same server.
        waits: bool,
    },
    /// The table is full: the server for all prefixes without a row.
    Full(ServerNumber),
}

impl Steering {
    /// The server.
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
    recruited: Vec<bool>,
    /// The server for all prefixes without a row, once the table has been full.
    full: Option<ServerNumber>,
    default: DefaultRow,
}

/// The row for prefixes that have none.
#[derive(Clone, Copy, Debug, Default)]
struct DefaultRow {
    in_force: Option<ServerNumber>,
    /// It is being changed to this.
    next: Option<Option<ServerNumber>>,
    /// Prefixes that go by it until their own rows are in force.
    unpinned: usize,
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
            full: None,
            default: DefaultRow {
                in_force: config.default_row.then_some(0),
                ..DefaultRow::default()
            },
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
        let DefaultRow { in_force, next, .. } = self.default;
        let default = in_force.or(next.flatten());
        let choose = || default.unwrap_or_else(|| self.choose(dedicated));
        if self.table.len() < self.config.table {
            let server = choose();
            self.recruited[usize::from(server)] = true;
            self.table.insert(prefix, server);
            let waits = in_force.is_none();
            self.default.unpinned += usize::from(!waits);
            return Steering::Install { prefix, server, waits };
        }
        let server = self.full.unwrap_or_else(choose);
        self.recruited[usize::from(server)] = true;
        self.full = Some(server);
        Steering::Full(server)
    }

    /// A row that [`Steering::Install`] asked for is in force; `waited` as there.
    pub fn row_written(&mut self, waited: bool) {
        if !waited {
            self.default.unpinned = self.default.unpinned.saturating_sub(1);
        }
    }

    /// Whether the default row is to be changed now: to a server, or taken away. Until
    /// [`IngressMapper::default_written`] it is as before. To be asked whenever a server has reported,
    /// and a row is written.
    pub fn next_default(&mut self, dedicated: &[u16]) -> Option<Option<ServerNumber>> {
        if !self.config.default_row || self.default.next.is_some() {
            return None;
        }
        let has_room = |server: ServerNumber| {
            self.full == Some(server) || self.full.is_none() && dedicated[usize::from(server)] < self.config.threshold
        };
        let wanted = || self.full.unwrap_or_else(|| self.choose(dedicated));
        let next = match self.default.in_force {
            Some(server) if has_room(server) || wanted() == server => return None,
            Some(_) => None,
            None if self.default.unpinned > 0 => return None,
            None => Some(wanted()),
        };
        self.default.next = Some(next);
        Some(next)
    }

    /// The change of the default row is in force.
    pub fn default_written(&mut self) {
        if let Some(next) = self.default.next.take() {
            self.default.in_force = next;
        }
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
    fn choose(&self, dedicated: &[u16]) -> ServerNumber {
        let numbers = || (0..dedicated.len()).rev();
        let target = numbers()
            .filter(|&s| self.recruited[s] && dedicated[s] < self.config.threshold)
            .max_by_key(|&s| dedicated[s])
            .or_else(|| numbers().rev().find(|&s| !self.recruited[s]))
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
            default_row: false,
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
            waits: true,
        }
    }

    #[test]
    fn a_prefix_first_seen_goes_to_the_fullest_server_below_the_threshold() {
        let mut mapper = mapper(100);
        assert_eq!(steer(&mut mapper, "10.1.2.3", [0; 3]), install("10.1.0.0/16", 0));
        assert_eq!(steer(&mut mapper, "10.1.255.255", [9, 9, 9]), Steering::Known(0));
        // Server 0 is below, and the only one in use: nobody is recruited.
        assert_eq!(steer(&mut mapper, "10.2.0.0", [3, 0, 0]), install("10.2.0.0/16", 0));
        assert_eq!(steer(&mut mapper, "10.3.0.0", [4, 0, 0]), install("10.3.0.0/16", 1));
        // Both below: the one with more; equal: the lower number.
        assert_eq!(
            steer(&mut mapper, "2001:db8:7::1", [2, 3, 0]),
            install("2001:db8::/32", 1)
        );
        assert_eq!(steer(&mut mapper, "10.4.0.0", [3, 3, 0]), install("10.4.0.0/16", 0));
        assert!(!mapper.recruited(2));
        assert_eq!(steer(&mut mapper, "10.5.0.0", [4, 5, 0]), install("10.5.0.0/16", 2));
        // No server is left: the one with the fewest.
        assert_eq!(steer(&mut mapper, "10.6.0.0", [6, 5, 5]), install("10.6.0.0/16", 1));
        // What is steered stays, however few cores its server has by now.
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
            default_row: false,
        };
        let mut mapper = IngressMapper::new(config, 1);
        let any = |text: &str| text.parse().unwrap();
        assert_eq!(mapper.steer(any("1.2.3.4"), &[0]), install("0.0.0.0/0", 0));
        assert_eq!(mapper.steer(any("255.0.0.1"), &[7]), Steering::Known(0));
        assert_eq!(mapper.steer(any("::1"), &[7]), install("::/0", 0));
    }

    fn with_default_row(table: usize) -> IngressMapper {
        let config = IngressConfig {
            default_row: true,
            ..mapper(table).config
        };
        IngressMapper::new(config, 3)
    }

    /// Where a prefix first seen goes, and whether it waits.
    fn first(mapper: &mut IngressMapper, destination: &str, dedicated: [u16; 3]) -> (u16, bool) {
        match steer(mapper, destination, dedicated) {
            Steering::Install { server, waits, .. } => (server, waits),
            other => panic!("{destination} is not new: {other:?}"),
        }
    }

    #[test]
    fn first_packets_go_by_the_default_row_until_its_server_is_full() {
        let mut mapper = with_default_row(100);
        assert_eq!(first(&mut mapper, "10.1.0.0", [0; 3]), (0, false));
        assert_eq!(mapper.next_default(&[3, 0, 0]), None);
        assert_eq!(first(&mut mapper, "10.2.0.0", [3, 0, 0]), (0, false));
        // Full: the row is taken away, but is there until that is written.
        assert_eq!(mapper.next_default(&[4, 0, 0]), Some(None));
        assert_eq!(mapper.next_default(&[4, 0, 0]), None);
        assert_eq!(first(&mut mapper, "10.3.0.0", [4, 0, 0]), (0, false));
        mapper.default_written();
        // Now new prefixes wait, and the next default row for those that went by the old one.
        assert_eq!(first(&mut mapper, "10.4.0.0", [4, 0, 0]), (1, true));
        mapper.row_written(false);
        mapper.row_written(true);
        mapper.row_written(false);
        assert_eq!(mapper.next_default(&[4, 1, 0]), None);
        mapper.row_written(false);
        assert_eq!(mapper.next_default(&[4, 1, 0]), Some(Some(1)));
        assert_eq!(first(&mut mapper, "10.5.0.0", [4, 1, 0]), (1, true));
        mapper.default_written();
        assert_eq!(first(&mut mapper, "10.6.0.0", [4, 1, 0]), (1, false));
        // It has room: a fuller one with room again is no reason to change.
        assert_eq!(mapper.next_default(&[3, 1, 0]), None);
        assert_eq!(steer(&mut mapper, "10.3.9.9", [9, 9, 9]), Steering::Known(0));
    }

    #[test]
    fn a_default_row_of_a_full_table_stays() {
        let mut mapper = with_default_row(1);
        assert_eq!(first(&mut mapper, "10.1.0.0", [0; 3]), (0, false));
        assert_eq!(steer(&mut mapper, "10.2.0.0", [9; 3]), Steering::Full(0));
        assert_eq!(mapper.next_default(&[9, 0, 0]), None);
        // Full while the row is taken away: it is written again.
        let mut mapper = with_default_row(1);
        assert_eq!(first(&mut mapper, "10.1.0.0", [0; 3]), (0, false));
        assert_eq!(mapper.next_default(&[9, 0, 0]), Some(None));
        assert_eq!(steer(&mut mapper, "10.2.0.0", [9, 0, 0]), Steering::Full(0));
        mapper.default_written();
        mapper.row_written(false);
        assert_eq!(mapper.next_default(&[9, 0, 0]), Some(Some(0)));
    }

    proptest! {
        #[test]
        fn a_prefix_is_never_steered_to_two_servers_by_its_row_and_the_default_row(
            steps in proptest::collection::vec(
                (0_u8..4, 0_u8..8, [0_u16..6, 0_u16..6, 0_u16..6]),
                1..80,
            ),
        ) {
            let mut mapper = with_default_row(6);
            // What the switch has: rows, and those on their way, in any order of completion.
            let mut rows: HashMap<IpNet, ServerNumber> = HashMap::new();
            let mut pending: Vec<(IpNet, ServerNumber, bool)> = Vec::new();
            let (mut default, mut next) = (Some(0), None);
            let mut seen: HashMap<u8, ServerNumber> = HashMap::new();
            for (step, number, dedicated) in steps {
                match step {
                    0 => {
                        let destination = Ipv4Addr::new(10, number, 0, 1).into();
                        let steered = mapper.steer(destination, &dedicated);
                        if let Steering::Install { prefix, server, waits } = steered {
                            pending.push((prefix, server, waits));
                        }
                        let server = *seen.entry(number).or_insert(steered.server());
                        prop_assert_eq!(server, steered.server());
                    }
                    1 if !pending.is_empty() => {
                        let (prefix, server, waits) =
                            pending.remove(usize::from(number) % pending.len());
                        rows.insert(prefix, server);
                        mapper.row_written(waits);
                    }
                    2 if next.is_some() => {
                        default = next.take().flatten();
                        mapper.default_written();
                    }
                    _ if next.is_none() => next = mapper.next_default(&dedicated),
                    _ => {}
                }
                // Whatever the switch sends on goes where the mapper said.
                for (number, server) in &seen {
                    let destination = std::net::IpAddr::from(Ipv4Addr::new(10, *number, 0, 1));
                    let by_row = rows.iter().find(|(prefix, _)| prefix.contains(&destination));
                    let waiting = pending.iter().any(|(p, _, waits)| *waits && p.contains(&destination));
                    let sent_to = match by_row {
                        Some((_, server)) => Some(*server),
                        None if waiting => None,
                        None => default,
                    };
                    prop_assert!(sent_to.is_none_or(|to| to == *server));
                }
            }
        }

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
