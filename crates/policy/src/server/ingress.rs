//! Ingress mapper: destination prefixes to servers, as in NetBlaze, or with a default row.
//!
//! The paper (section 3.4): flows to the same destination prefix go to the same server. A new prefix goes to the server
//! with the most dedicated cores among those with fewer than a threshold τ, which leaves each of them cores for bursts.
//! If there is none, a server is taken from the rack. Servers report their numbers of dedicated cores when these
//! change, and are never consolidated.
//!
//! The following is not published and was chosen here:
//!
//! - The caller chooses τ. Ties go to the lower number.
//! - When no server is left, the prefix goes to the one with the fewest dedicated cores.
//! - When the switch's table is full, prefixes without a row share one default server. It is picked by the same rule
//!   when the table is first found full. It never changes, since flows must not change servers.
//! - IPv6 has its own prefix length.
//!
//! # The default row
//!
//! NetBlaze's switch buffers a prefix's first packets until its row is written. That takes a millisecond or more, in
//! which packets of a new prefix wait or are lost. With [`IngressConfig::default_row`] the switch has a row for
//! everything else, to the server that new prefixes go to, so no packet waits. Each new prefix meanwhile gets its own
//! row to that server. Another server is chosen when this one has no room. Since no flow may change servers, the change
//! takes three steps:
//!
//! 1. the default row is removed, and new prefixes wait as in NetBlaze;
//! 2. every prefix that used it gets its own row;
//! 3. the default row to the new server is written.

use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;

/// Number of a server in the rack.
pub type ServerNumber = u16;

/// Parameters of the [`IngressMapper`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IngressConfig {
    /// Length of IPv4 prefixes, at most 32.
    pub prefix_v4: u8,
    /// Length of IPv6 prefixes, at most 128.
    pub prefix_v6: u8,
    /// Threshold τ: servers with this many dedicated cores or more get no new prefix.
    pub threshold: u16,
    /// Usable rows of the switch's table.
    pub table: usize,
    /// `true` if first packets use a default row instead of waiting.
    pub default_row: bool,
}

/// Destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// Its prefix is in the table.
    Known(ServerNumber),
    /// Its prefix is new: this row must be written, followed by a call of [`IngressMapper::row_written`].
    Install {
        /// Prefix of the row.
        prefix: IpNet,
        /// Server for the whole prefix.
        server: ServerNumber,
        /// `true` if its packets wait for the row. Otherwise the default row leads to the same server.
        waits: bool,
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
    default: DefaultRow,
}

/// Default row, for prefixes without a row of their own.
#[derive(Clone, Copy, Debug, Default)]
struct DefaultRow {
    in_force: Option<ServerNumber>,
    /// Target of a pending change.
    next: Option<Option<ServerNumber>>,
    /// Prefixes that use it until their own rows are in force.
    unpinned: usize,
}

impl IngressMapper {
    /// Creates a mapper for a rack of `servers` servers, none of which is in use.
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
            activated: vec![false; usize::from(servers)],
            full: None,
            default: DefaultRow {
                in_force: config.default_row.then_some(0),
                ..DefaultRow::default()
            },
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
        let DefaultRow { in_force, next, .. } = self.default;
        let default = in_force.or(next.flatten());
        let choose = || default.unwrap_or_else(|| self.choose(dedicated));
        if self.table.len() < self.config.table {
            let server = choose();
            self.activated[usize::from(server)] = true;
            self.table.insert(prefix, server);
            let waits = in_force.is_none();
            self.default.unpinned += usize::from(!waits);
            return Steering::Install { prefix, server, waits };
        }
        let server = self.full.unwrap_or_else(choose);
        self.activated[usize::from(server)] = true;
        self.full = Some(server);
        Steering::Full(server)
    }

    /// Reports that a row requested by [`Steering::Install`] is in force. `waited` is its `waits`.
    pub fn row_written(&mut self, waited: bool) {
        if !waited {
            self.default.unpinned = self.default.unpinned.saturating_sub(1);
        }
    }

    /// Returns the change of the default row that is due now: to a server, or its removal. The old row applies until
    /// [`IngressMapper::default_written`]. Call this after every report of a server and every written row.
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

    /// Reports that the change of the default row is in force.
    pub fn default_written(&mut self) {
        if let Some(next) = self.default.next.take() {
            self.default.in_force = next;
        }
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

    /// Returns the server of a new prefix, and `true` if it waits.
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
        // Full: the row is removed, but stays in force until the change is written.
        assert_eq!(mapper.next_default(&[4, 0, 0]), Some(None));
        assert_eq!(mapper.next_default(&[4, 0, 0]), None);
        assert_eq!(first(&mut mapper, "10.3.0.0", [4, 0, 0]), (0, false));
        mapper.default_written();
        // Now new prefixes wait, and the next default row waits for prefixes that used the old one.
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
        // It has room: a fuller server with room again does not cause a change.
        assert_eq!(mapper.next_default(&[3, 1, 0]), None);
        assert_eq!(steer(&mut mapper, "10.3.9.9", [9, 9, 9]), Steering::Known(0));
    }

    #[test]
    fn a_default_row_of_a_full_table_stays() {
        let mut mapper = with_default_row(1);
        assert_eq!(first(&mut mapper, "10.1.0.0", [0; 3]), (0, false));
        assert_eq!(steer(&mut mapper, "10.2.0.0", [9; 3]), Steering::Full(0));
        assert_eq!(mapper.next_default(&[9, 0, 0]), None);
        // The server is full while the row is being removed: the row is written again.
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
            // State of the switch: rows in force, and pending rows, which complete in any order.
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
                // All traffic that the switch forwards goes to the server that the mapper returned.
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
