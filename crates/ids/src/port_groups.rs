//! Grouping of connections by ports. The ports in a rule's header limit the groups its connections can be in, and only
//! the rules of a connection's group are searched for.
//!
//! Ports named by the same rules form a class. Their number is unbounded, so classes of rarely used ports are merged
//! with the most similar ones until few remain. A group is a pair of a server port class and a client port class.

use crate::address::PortSet;
use crate::rule::{Direction, Header};
use std::collections::HashMap;

/// Largest number of server port classes.
const SERVERS: usize = 24;
/// Largest number of client port classes.
const CLIENTS: usize = 8;
/// Largest number of port sets that distinguish classes: those of the most rules, and the others merged into one.
const SETS: usize = 1024;
/// Ports of most connections; each has the weight of [`KNOWN_WEIGHT`] other ports.
const KNOWN: [u16; 18] = [
    21, 22, 23, 25, 53, 80, 110, 123, 143, 161, 443, 445, 587, 993, 3306, 3389, 8080, 8443,
];
const KNOWN_WEIGHT: u64 = 2048;

/// Set of groups, as a bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct GroupSet([u64; (SERVERS * CLIENTS).div_ceil(64)]);

impl GroupSet {
    /// All groups.
    pub(crate) const ALL: GroupSet = GroupSet([u64::MAX; 3]);

    #[inline]
    pub(crate) fn contains(&self, group: u8) -> bool {
        self.0[usize::from(group) / 64] >> (group % 64) & 1 != 0
    }

    pub(crate) fn add(&mut self, other: &GroupSet) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
    }

    fn insert(&mut self, group: usize) {
        self.0[group / 64] |= 1 << (group % 64);
    }
}

/// Port groups of one transport protocol's connections.
#[derive(Debug)]
pub(crate) struct PortGroups {
    servers: PortClasses,
    clients: PortClasses,
}

impl PortGroups {
    /// Builds the groups for rule headers, each with the directions of packets the rule applies to.
    pub(crate) fn new<'a>(rules: impl Iterator<Item = (&'a Header, &'a [Direction])>) -> PortGroups {
        let (mut servers, mut clients) = (HashMap::new(), HashMap::new());
        for (header, directions) in rules {
            for direction in directions {
                for (server, client) in ends(header, *direction) {
                    *servers.entry(server).or_default() += 1;
                    *clients.entry(client).or_default() += 1;
                }
            }
        }
        PortGroups {
            servers: PortClasses::new(servers, SERVERS),
            clients: PortClasses::new(clients, CLIENTS),
        }
    }

    /// Returns the group of a connection.
    #[inline]
    pub(crate) fn of(&self, server: u16, client: u16) -> u8 {
        (self.servers.of(server) * CLIENTS + self.clients.of(client)) as u8
    }

    /// Returns the groups of connections in which a rule may match packets of a direction.
    pub(crate) fn may_match(&self, header: &Header, direction: Direction) -> GroupSet {
        let mut groups = GroupSet::default();
        for (server, client) in ends(header, direction) {
            if server.is_all() && client.is_all() {
                return GroupSet::ALL;
            }
            let clients = self.clients.of_set(client);
            for server in self.servers.of_set(server) {
                for client in &clients {
                    groups.insert(server * CLIENTS + client);
                }
            }
        }
        groups
    }

    /// Iterates over all groups with their weights.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u8, u64)> {
        let servers = self.servers.weights.iter().enumerate();
        servers.flat_map(|(server, weight)| {
            let clients = self.clients.weights.iter().enumerate();
            clients.map(move |(client, other)| {
                let group = (server * CLIENTS + client) as u8;
                (group, weight * other)
            })
        })
    }
}

/// Iterates over the server and client ports a header allows in packets of a direction.
fn ends(header: &Header, direction: Direction) -> impl Iterator<Item = (&PortSet, &PortSet)> {
    let (source, destination) = (&*header.source_ports, &*header.destination_ports);
    let along = match direction {
        Direction::ToServer => (destination, source),
        Direction::ToClient => (source, destination),
    };
    let against = header.both_ways.then_some((along.1, along.0));
    std::iter::once(along).chain(against)
}

/// Port classes.
#[derive(Debug)]
struct PortClasses {
    /// First ports of the ranges, from 0 on; `kinds` has each range's class.
    starts: Vec<u16>,
    kinds: Vec<u8>,
    /// Weight of each class.
    weights: Vec<u64>,
}

/// Port class before merging.
#[derive(Clone, Debug)]
struct PortClass {
    /// Bitmap of the port sets that contain its ports.
    sets: Vec<u64>,
    weight: u64,
}

impl PortClasses {
    /// Builds at most `most` classes from port sets, each with the number of rules that name it.
    fn new(sets: HashMap<&PortSet, u64>, most: usize) -> PortClasses {
        let mut sets: Vec<(&PortSet, u64)> = sets.into_iter().collect();
        sets.retain(|(set, _)| !set.is_all());
        sets.sort_unstable_by_key(|(set, rules)| (std::cmp::Reverse(*rules), set.intervals()));
        let intervals = || sets.iter().flat_map(|(set, _)| set.intervals());
        let changes = intervals().flat_map(|(first, last)| [Some(*first), last.checked_add(1)]);
        let mut starts: Vec<u16> = changes.flatten().chain([0]).collect();
        starts.sort_unstable();
        starts.dedup();
        let stretches = |(first, last): &(u16, u16)| {
            let from = starts.partition_point(|start| start < first);
            from..starts.partition_point(|start| start <= last)
        };
        let bits = sets.len().min(SETS);
        let mut of = vec![vec![0u64; bits.div_ceil(64)]; starts.len()];
        let mut rules = vec![0; bits];
        // For the sets merged into one: starts minus ends at each range.
        let mut changes = vec![0i64; starts.len() + 1];
        for (i, (set, count)) in sets.iter().enumerate() {
            rules[i.min(SETS - 1)] += count;
            for stretches in set.intervals().iter().map(stretches) {
                if i >= SETS - 1 {
                    changes[stretches.start] += 1;
                    changes[stretches.end] -= 1;
                    continue;
                }
                for sets in &mut of[stretches] {
                    sets[i / 64] |= 1 << (i % 64);
                }
            }
        }
        let mut there = 0;
        for (sets, change) in of.iter_mut().zip(changes) {
            there += change;
            if there > 0 {
                sets[(SETS - 1) / 64] |= 1 << ((SETS - 1) % 64);
            }
        }
        let ends = starts[1..].iter().copied().map(u32::from).chain([1 << 16]);
        let (mut places, mut all) = (HashMap::new(), Vec::<PortClass>::new());
        let mut kinds = Vec::with_capacity(starts.len());
        for ((start, end), sets) in starts.iter().zip(ends).zip(of) {
            let range = *start..=(end - 1) as u16;
            let known = KNOWN.iter().filter(|port| range.contains(port)).count() as u64;
            let place = *places.entry(sets).or_insert_with_key(|sets| {
                let (sets, weight) = (sets.clone(), 0);
                all.push(PortClass { sets, weight });
                all.len() - 1
            });
            all[place].weight += u64::from(end) - u64::from(*start) + KNOWN_WEIGHT * known;
            kinds.push(place);
        }
        let (few, place) = merge_classes(all, &rules, most);
        PortClasses {
            starts,
            kinds: kinds.iter().map(|kind| place[*kind]).collect(),
            weights: few.iter().map(|kind| kind.weight).collect(),
        }
    }

    #[inline]
    fn of(&self, port: u16) -> usize {
        let behind = self.starts.partition_point(|start| *start <= port);
        self.kinds[behind - 1].into()
    }

    /// Returns the classes with ports in a set, each once.
    fn of_set(&self, set: &PortSet) -> Vec<usize> {
        let mut found = vec![false; self.weights.len()];
        for (first, last) in set.intervals() {
            let from = self.starts.partition_point(|start| start <= first) - 1;
            let to = self.starts.partition_point(|start| start <= last);
            for kind in &self.kinds[from..to] {
                found[usize::from(*kind)] = true;
            }
        }
        (0..found.len()).filter(|kind| found[*kind]).collect()
    }
}

/// Merges classes until at most `most` remain. The classes of largest weight, and among equals those of most rules,
/// absorb the others, each where it adds least cost. Returns the classes, and the new index of each old one.
fn merge_classes(all: Vec<PortClass>, rules: &[u64], most: usize) -> (Vec<PortClass>, Vec<u8>) {
    // Number of rules of one class that the other lacks.
    let more = |one: &[u64], other: &[u64]| -> u64 {
        let words = one.iter().zip(other).enumerate();
        let of_word = words.map(|(i, (one, other))| {
            let (mut bits, mut sum) = (one & !other, 0);
            while bits != 0 {
                sum += rules[64 * i + bits.trailing_zeros() as usize];
                bits &= bits - 1;
            }
            sum
        });
        of_word.sum()
    };
    let mut order: Vec<usize> = (0..all.len()).collect();
    let none = vec![0; rules.len().div_ceil(64)];
    order.sort_by_cached_key(|kind| {
        let kind = &all[*kind];
        std::cmp::Reverse((kind.weight, more(&kind.sets, &none)))
    });
    let (mut few, mut place): (Vec<PortClass>, _) = (Vec::with_capacity(most), vec![0; all.len()]);
    for kind in order {
        if few.len() < most {
            place[kind] = few.len() as u8;
            few.push(all[kind].clone());
            continue;
        }
        let one = &all[kind];
        let cost = |other: &&mut PortClass| {
            let there = other.weight.saturating_mul(more(&one.sets, &other.sets));
            there.saturating_add(one.weight.saturating_mul(more(&other.sets, &one.sets)))
        };
        let best = few.iter_mut().enumerate().min_by_key(|(_, other)| cost(other));
        if let Some((i, best)) = best {
            place[kind] = i as u8;
            best.weight += one.weight;
            best.sets.iter_mut().zip(&one.sets).for_each(|(a, b)| *a |= b);
        }
    }
    (few, place)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::address::AddressSet;
    use crate::interval::Intervals;
    use crate::rule::{Action, Protocol};
    use proptest::prelude::*;
    use std::sync::Arc;

    pub(crate) fn header(source: PortSet, destination: PortSet, both_ways: bool) -> Header {
        Header {
            action: Action::Alert,
            protocol: Protocol::Tcp,
            source: Arc::new(AddressSet::all()),
            source_ports: Arc::new(source),
            both_ways,
            destination: Arc::new(AddressSet::all()),
            destination_ports: Arc::new(destination),
        }
    }

    /// Strategy for port sets; the limits of the range are frequent.
    fn ports() -> impl Strategy<Value = PortSet> {
        let port = || prop_oneof![0u16..4, 20u16..200, 65_530..=65_535u16, any::<u16>()];
        let some = prop::collection::vec((port(), 0u16..3000, any::<bool>()), 0..4);
        let some = some.prop_map(|pairs| {
            let mut set = Intervals::none();
            for (first, length, one) in pairs {
                let last = first.saturating_add(if one { 0 } else { length });
                set.add(&Intervals::from_to(first, last));
            }
            set
        });
        prop_oneof![2 => Just(PortSet::all()), 4 => some.clone(), 1 => some.prop_map(|set| set.complement())]
    }

    const BOTH: [Direction; 2] = [Direction::ToServer, Direction::ToClient];

    proptest! {
        /// A packet that matches a header is in a group in which the rule may match, however many classes there are.
        #[test]
        fn groups_leave_no_rule_out(
            rules in prop::collection::vec((ports(), ports(), any::<bool>()), 1..120),
            any in prop::collection::vec((any::<u16>(), any::<u16>()), 10),
        ) {
            let headers: Vec<Header> = rules.into_iter().map(|(source, destination, both)| header(source, destination, both)).collect();
            let groups = PortGroups::new(headers.iter().map(|header| (header, &BOTH[..])));
            let all: Vec<u8> = groups.all().map(|(group, _)| group).collect();
            prop_assert!(all.len() <= SERVERS * CLIENTS);
            let ends = headers.iter().flat_map(|header| {
                let first = |set: &PortSet| set.intervals().first().map_or(7, |(first, _)| *first);
                let last = |set: &PortSet| set.intervals().last().map_or(7, |(_, last)| *last);
                let (source, destination) = (&header.source_ports, &header.destination_ports);
                [(first(source), first(destination)), (last(destination), last(source))]
            });
            for (server, client) in ends.chain(any) {
                let group = groups.of(server, client);
                prop_assert!(all.contains(&group));
                for (i, header) in headers.iter().enumerate() {
                    for direction in BOTH {
                        let (source, destination) = match direction {
                            Direction::ToServer => (client, server),
                            Direction::ToClient => (server, client),
                        };
                        let goes = |source, destination| {
                            header.source_ports.contains(source) && header.destination_ports.contains(destination)
                        };
                        if goes(source, destination) || header.both_ways && goes(destination, source) {
                            let may = groups.may_match(header, direction).contains(group);
                            prop_assert!(may, "rule {i}, {source} to {destination}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn known_ports_have_groups_of_their_own() {
        // A thousand arbitrary ports with one rule each, and three well-known ones.
        let odd = (2000..3000).map(|port| (port, 1));
        let known = [(80, 30), (443, 3), (25, 10)];
        let headers: Vec<Header> = odd
            .chain(known)
            .flat_map(|(port, rules)| {
                let header = header(PortSet::all(), Intervals::from_to(port, port), false);
                std::iter::repeat_n(header, rules)
            })
            .collect();
        let rules = headers.iter().map(|header| (header, &BOTH[..1]));
        let groups = PortGroups::new(rules);
        let rules_of = |port| {
            let group = groups.of(port, 40_000);
            let may = |header: &&Header| {
                let groups = groups.may_match(header, Direction::ToServer);
                groups.contains(group)
            };
            headers.iter().filter(may).count()
        };
        assert_eq!([80, 443, 25, 50_000].map(rules_of), [30, 3, 10, 0]);
        assert!((1..1000).contains(&rules_of(2500)), "{}", rules_of(2500));
    }
}
