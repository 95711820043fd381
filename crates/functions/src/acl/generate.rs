//! Generator of rule sets and packet headers from a seed, for examples, tests and benchmarks.
//!
//! The rule sets resemble those that ClassBench derives from real access lists: prefix lengths, nesting, few distinct
//! port ranges, mostly TCP. They lie in given networks, so that many different rules decide synthetic traffic between
//! these networks. As is common practice, rules for hosts precede those for networks, regions and, last, everything.
//!
//! The same seed gives the same output on every machine.

mod style;

pub use style::Style;

use super::rule::{Action, Rule};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use tailwater_net::flow::FlowKey;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const GRE: u8 = 47;

/// All ports ("WC" in ClassBench).
const ANY_PORT: RangeInclusive<u16> = 0..=u16::MAX;
/// Client ports ("HI").
const HIGH_PORTS: RangeInclusive<u16> = 1024..=u16::MAX;
/// System service ports ("LO").
const LOW_PORTS: RangeInclusive<u16> = 0..=1023;
/// Port ranges of several services ("AR").
const SERVICE_RANGES: [RangeInclusive<u16>; 8] = [
    20..=21,
    137..=139,
    1024..=5000,
    2300..=2400,
    5060..=5090,
    6000..=6063,
    8000..=8999,
    33434..=33534,
];
/// Well-known TCP services, most used first.
const TCP_PORTS: [u16; 24] = [
    443, 80, 22, 25, 8080, 8443, 53, 993, 110, 143, 389, 636, 445, 1433, 1521, 1526, 3306, 3389, 5432, 5900, 6379,
    9092, 9200, 1723,
];
/// Well-known UDP services, most used first.
const UDP_PORTS: [u16; 12] = [53, 443, 123, 161, 514, 67, 69, 500, 1812, 4500, 4789, 5060];

/// Parameters of a generated rule set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSetSpec {
    /// The number of rules.
    pub rules: usize,
    /// The seed.
    pub seed: u64,
    /// Networks that contain all source prefixes. If empty, all of IPv4.
    pub sources: Vec<Ipv4Net>,
    /// Networks that contain all destination prefixes but those of the last rules. If empty, all of IPv4.
    pub destinations: Vec<Ipv4Net>,
}

/// Maximum number of region rules. More of them would cover everything.
const MAX_REGION_RULES: usize = 240;

/// Width of a rule's prefixes.
#[derive(Clone, Copy)]
enum Scope {
    /// Hosts and small subnets.
    Hosts,
    /// Networks.
    Networks,
    /// Large parts of the given networks.
    Regions,
}

impl RuleSetSpec {
    /// Generates the rules, all with the action allow. 55 % are for hosts, then come rules for networks, then (at most
    /// 240) for regions. The last 1 % allow common services from one of `sources` to anywhere.
    pub fn generate(&self) -> Vec<Rule> {
        let mut random = SplitMix64::new(self.seed);
        let random = &mut random;
        let sources = Side::new(random, &self.sources, self.rules / 24);
        let destinations = Side::new(random, &self.destinations, self.rules / 12);
        let broad = self.rules / 100;
        let specific = self.rules - broad;
        let regions = (specific / 5).min(MAX_REGION_RULES);
        let mut rules = Vec::with_capacity(self.rules);
        for i in 0..specific {
            let scope = if i * 100 < specific * 55 {
                Scope::Hosts
            } else if i + regions < specific {
                Scope::Networks
            } else {
                Scope::Regions
            };
            rules.push(specific_rule(random, &sources, &destinations, scope));
        }
        for i in 0..broad {
            // Iterates over the services, then over the source networks.
            let source = sources.networks[i / BROAD.len() % sources.networks.len()];
            let (protocol, destination_ports) = BROAD[i % BROAD.len()].clone();
            rules.push(Rule {
                source: Some(source.into()),
                destination: Some(Ipv4Net::default().into()),
                source_ports: ANY_PORT,
                destination_ports,
                protocol: Some(protocol),
                action: Action::Allow,
            });
        }
        rules
    }
}

/// Services of the last rules.
const BROAD: [(u8, RangeInclusive<u16>); 8] = [
    (TCP, 443..=443),
    (TCP, 80..=80),
    (UDP, 53..=53),
    (UDP, 443..=443),
    (ICMP, ANY_PORT),
    (TCP, 8000..=8999),
    (UDP, 123..=123),
    (TCP, 22..=22),
];

/// Prefixes of one side of a rule set.
struct Side {
    /// The given networks.
    networks: Vec<Ipv4Net>,
    /// Networks within the given ones, some nested.
    sites: Vec<Ipv4Net>,
    /// Hosts and small subnets within the sites, most used first.
    hosts: Vec<Ipv4Net>,
}

impl Side {
    /// Chooses about `sites` sites and three times as many hosts.
    fn new(random: &mut SplitMix64, networks: &[Ipv4Net], sites: usize) -> Self {
        let networks = match networks {
            [] => vec![Ipv4Net::default()],
            given => given.iter().map(Ipv4Net::trunc).collect(),
        };
        let mut side = Side {
            networks,
            sites: Vec::new(),
            hosts: Vec::new(),
        };
        for _ in 0..sites.max(4) {
            // A third of the sites are nested in earlier ones.
            let outer = match random.one_in(3) {
                true => *random.choose(&side.sites).unwrap_or(&side.networks[0]),
                false => side.network(random),
            };
            let longer = random.between(2, 6) as u8;
            side.sites.push(random.subnet(outer, longer, 28));
        }
        for _ in 0..sites.max(4) * 3 {
            let site = *random.choose(&side.sites).unwrap_or(&side.networks[0]);
            // As in ClassBench's access lists: two thirds hosts, a fifth /31, the rest down to /24.
            let length = match random.below(20) {
                0..13 => 32,
                13..17 => 31,
                17 => 30,
                18 => random.between(27, 29) as u8,
                _ => random.between(24, 26) as u8,
            };
            let longer = length.saturating_sub(site.prefix_len());
            side.hosts.push(random.subnet(site, longer, 32));
        }
        side
    }

    fn network(&self, random: &mut SplitMix64) -> Ipv4Net {
        *random.choose(&self.networks).unwrap_or(&self.networks[0])
    }

    fn prefix(&self, random: &mut SplitMix64, scope: Scope) -> Ipv4Net {
        let whole = self.network(random);
        match scope {
            Scope::Hosts => *random.choose_early(&self.hosts).unwrap_or(&whole),
            Scope::Networks => *random.choose(&self.sites).unwrap_or(&whole),
            Scope::Regions => {
                let longer = random.between(1, 4) as u8;
                random.subnet(whole, longer, 30)
            }
        }
    }
}

/// Generates a rule for a part of the networks.
fn specific_rule(random: &mut SplitMix64, sources: &Side, destinations: &Side, scope: Scope) -> Rule {
    // Access lists often protect one host from a whole network.
    let source_scope = match random.one_in(6) {
        true => Scope::Networks,
        false => scope,
    };
    let (protocol, source_ports, destination_ports) = service(random, scope);
    Rule {
        source: Some(sources.prefix(random, source_scope).into()),
        destination: Some(destinations.prefix(random, scope).into()),
        source_ports,
        destination_ports,
        protocol,
        action: Action::Allow,
    }
}

/// Chooses protocol, source ports and destination ports. Wider scopes have wider port ranges.
fn service(random: &mut SplitMix64, scope: Scope) -> (Option<u8>, RangeInclusive<u16>, RangeInclusive<u16>) {
    let protocol = match random.below(100) {
        0..62 => Some(TCP),
        62..82 => Some(UDP),
        82..87 => Some(ICMP),
        87..89 => Some(GRE),
        _ => None,
    };
    let well_known: &[u16] = match protocol {
        Some(TCP) => &TCP_PORTS,
        Some(UDP) => &UDP_PORTS,
        _ => return (protocol, ANY_PORT, ANY_PORT),
    };
    let exact = match scope {
        Scope::Hosts => 60,
        Scope::Networks => 45,
        Scope::Regions => 30,
    };
    let destination_ports = match random.below(100) {
        kind if kind < exact => {
            let port = *random.choose_early(well_known).unwrap_or(&443);
            port..=port
        }
        kind if kind < exact + 10 => random.choose(&SERVICE_RANGES).cloned().unwrap_or(HIGH_PORTS),
        kind if kind < exact + 20 => HIGH_PORTS,
        kind if kind < exact + 23 => LOW_PORTS,
        _ => ANY_PORT,
    };
    let source_ports = match random.below(100) {
        0..80 => ANY_PORT,
        80..95 => HIGH_PORTS,
        _ => {
            let port = *random.choose_early(well_known).unwrap_or(&443);
            port..=port
        }
    };
    (protocol, source_ports, destination_ports)
}

/// Generates keys, each matching a rule chosen at random with equal probability.
///
/// An earlier rule may match a key first. A field that the rule leaves open gets any value. If the rule has no address,
/// the key is IPv4. Rules that match nothing (IPv4 source with IPv6 destination, empty port range) are not used. If no
/// other rules exist, no keys are returned.
pub fn matching_keys(rules: &[Rule], keys: usize, seed: u64) -> Vec<FlowKey> {
    let usable: Vec<&Rule> = rules.iter().filter(|rule| is_usable(rule)).collect();
    let mut random = SplitMix64::new(seed);
    (0..keys)
        .filter_map(|_| {
            let rule = random.choose(&usable)?;
            Some(key_in(&mut random, rule))
        })
        .collect()
}

/// Generates keys with the source of one rule and the destination, ports and protocol of others. Most of them match no
/// rule of a set without broad rules, though each of their fields matches some rule.
pub fn mixed_keys(rules: &[Rule], keys: usize, seed: u64) -> Vec<FlowKey> {
    let usable: Vec<&Rule> = rules.iter().filter(|rule| is_usable(rule)).collect();
    let mut random = SplitMix64::new(seed);
    (0..keys)
        .filter_map(|_| {
            let mut rule = (*random.choose(&usable)?).clone();
            let destination = random.choose(&usable)?.destination;
            let versions = [rule.source, destination].map(|net| net.map(|n| n.addr().is_ipv4()));
            if !matches!(versions, [Some(a), Some(b)] if a != b) {
                rule.destination = destination;
            }
            rule.source_ports = random.choose(&usable)?.source_ports.clone();
            rule.destination_ports = random.choose(&usable)?.destination_ports.clone();
            rule.protocol = random.choose(&usable)?.protocol;
            Some(key_in(&mut random, &rule))
        })
        .collect()
}

/// Generates keys of clients in `sources` to servers in `destinations`, with uniformly distributed addresses. Three
/// quarters are TCP, the rest UDP. Source ports are high. Destination ports are well known or, one in four, any high
/// port.
pub fn client_keys(sources: &[Ipv4Net], destinations: &[Ipv4Net], keys: usize, seed: u64) -> Vec<FlowKey> {
    let mut random = SplitMix64::new(seed);
    (0..keys)
        .filter_map(|_| {
            let source = *random.choose(sources)?;
            let destination = *random.choose(destinations)?;
            let (protocol, well_known): (u8, &[u16]) = match random.one_in(4) {
                true => (UDP, &UDP_PORTS),
                false => (TCP, &TCP_PORTS),
            };
            let port = match random.one_in(4) {
                true => random.between(1024, 65535) as u16,
                false => *random.choose_early(well_known)?,
            };
            let source_port = random.between(1024, 65535) as u16;
            let [source, destination] = [source, destination].map(|net| random.v4_in(net));
            Some(FlowKey::v4(source, destination, protocol, source_port, port))
        })
        .collect()
}

/// Returns `true` if at least one key matches the rule.
fn is_usable(rule: &Rule) -> bool {
    let same_version = match (rule.source, rule.destination) {
        (Some(source), Some(destination)) => source.addr().is_ipv4() == destination.addr().is_ipv4(),
        _ => true,
    };
    same_version && !rule.source_ports.is_empty() && !rule.destination_ports.is_empty()
}

/// Returns a key that matches a usable rule.
fn key_in(random: &mut SplitMix64, rule: &Rule) -> FlowKey {
    let protocol = rule.protocol.unwrap_or_else(|| match random.below(4) {
        0 => random.next() as u8,
        1 => UDP,
        _ => TCP,
    });
    let source_port = random.port(&rule.source_ports);
    let destination_port = random.port(&rule.destination_ports);
    let any = match rule.source.or(rule.destination).map(|net| net.addr()) {
        Some(IpAddr::V6(_)) => IpNet::V6(Ipv6Net::default()),
        _ => IpNet::V4(Ipv4Net::default()),
    };
    match (rule.source.unwrap_or(any), rule.destination.unwrap_or(any)) {
        (IpNet::V6(source), IpNet::V6(destination)) => FlowKey::v6(
            random.v6_in(source),
            random.v6_in(destination),
            protocol,
            source_port,
            destination_port,
        ),
        (IpNet::V4(source), IpNet::V4(destination)) => FlowKey::v4(
            random.v4_in(source),
            random.v4_in(destination),
            protocol,
            source_port,
            destination_port,
        ),
        // Unreachable for a usable rule.
        _ => FlowKey::default(),
    }
}

/// SplitMix64 generator (Steele, Lea and Flood, OOPSLA 2014): small, and the same on every machine.
struct SplitMix64(u64);

impl SplitMix64 {
    fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`, which must not be 0. The bias is below `end` / 2^64.
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a number from `first` to `last`.
    fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of the items with equal probability, or `None` if there are none.
    fn choose<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let index = self.below(items.len().max(1) as u64);
        items.get(index as usize)
    }

    /// Returns one of the items, the first ones with higher probability.
    fn choose_early<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let end = self.below(items.len().max(1) as u64) + 1;
        let index = self.below(end);
        items.get(index as usize)
    }

    fn port(&mut self, ports: &RangeInclusive<u16>) -> u16 {
        let (first, last) = (u64::from(*ports.start()), u64::from(*ports.end()));
        // A third at the ends of the range, where errors are likely.
        match self.below(6) {
            0 => *ports.start(),
            1 => *ports.end(),
            _ => self.between(first, last) as u16,
        }
    }

    fn v4_in(&mut self, net: Ipv4Net) -> Ipv4Addr {
        let host = self.next() as u32 & net.hostmask().to_bits();
        Ipv4Addr::from_bits(net.network().to_bits() | host)
    }

    fn v6_in(&mut self, net: Ipv6Net) -> Ipv6Addr {
        let any = u128::from(self.next()) << 64 | u128::from(self.next());
        Ipv6Addr::from_bits(net.network().to_bits() | (any & net.hostmask().to_bits()))
    }

    /// Returns a prefix within `net` that is `longer` bits longer. It is no longer than `longest`, unless `net` already
    /// is.
    fn subnet(&mut self, net: Ipv4Net, longer: u8, longest: u8) -> Ipv4Net {
        let length = (net.prefix_len() + longer).min(longest).max(net.prefix_len());
        let inside = self.v4_in(net);
        Ipv4Net::new(inside, length).map_or(net, |subnet| subnet.trunc())
    }
}

#[cfg(test)]
mod tests;
