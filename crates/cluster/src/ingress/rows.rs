//! Rows of the mappers as rules of a switch, and back. Pure.
//!
//! A row says where a part of a chain's traffic goes: a destination prefix, and of a single destination's flows
//! possibly a share by the lowest bits of the source address. A rule of the switch is a row within one *part* of the
//! chain's `match`: one destination and source prefix, protocol and VLAN of its lists. Priorities follow from two
//! numbers: which chain a packet belongs to is decided first (longer destination prefixes of matches win, then longer
//! source prefixes, then listed protocols, then listed VLANs, as in the server's own rules), then the longest row of
//! that chain.
//!
//! A rule's cookie has its owner, its chain and its row, so that a new ingress can read the rows back.

use super::rule::{Action, FlowMatch, FlowRule, MaskedAddress, PortNumber};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tailwater_api::chain::Match;
use tailwater_policy::server::{FlowClass, RowMatch};

/// Bits of the source address that rows can match.
pub const SOURCE_BITS: u8 = 4;
/// Priorities. Between the two limits each rank of matches has as many as rows have lengths.
const UNMATCHED_PRIORITY: u16 = 500;
const FIRST_PRIORITY: u16 = 1000;
const PORT_PRIORITY: u16 = 65_000;
const LENGTHS: u16 = 129 + SOURCE_BITS as u16 + 1;
/// Most different ranks of matches.
pub const MAX_RANKS: usize = ((PORT_PRIORITY - FIRST_PRIORITY) / LENGTHS) as usize;
/// Most parts of a chain's match.
pub const MAX_PARTS: usize = 1024;
/// Mark in the cookies of Tailwater's rules.
const TAG: u64 = 0x7a;
const ETH_V4: u16 = 0x0800;
const ETH_V6: u16 = 0x86dd;

/// Part of a chain's traffic that goes to one server. Of all rows that match a packet, the longest applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row {
    /// Destination prefix; `None` for the default row.
    pub destination: Option<IpNet>,
    /// Value of the upper bits of the four lowest bits of the source address, and how many of them are compared, 0 to
    /// 4.
    pub source: (u8, u8),
}

impl Row {
    /// Default row, for all packets without another.
    pub const DEFAULT: Row = Row {
        destination: None,
        source: (0, 0),
    };

    /// Returns the row of a destination prefix.
    pub fn of_prefix(prefix: IpNet) -> Row {
        Row {
            destination: Some(prefix.trunc()),
            source: (0, 0),
        }
    }

    /// Returns the row as the balancing mapper has it, if it can have it.
    pub fn to_row_match(self) -> Option<RowMatch> {
        match self.destination {
            None => Some(RowMatch::DEFAULT),
            Some(destination) => RowMatch::new(destination, self.source),
        }
    }

    /// Returns the number of bits that it matches, plus 1; 0 for the default row.
    fn length(self) -> u8 {
        self.destination
            .map_or(0, |destination| destination.prefix_len() + 1 + self.source.1)
    }

    /// Returns the addresses of which the source bits have the row's value.
    fn source_match(self) -> Option<MaskedAddress> {
        let (value, count) = self.source;
        let shift = SOURCE_BITS - count;
        let (value, mask) = (value << shift, (0xf_u8 << shift) & 0xf);
        match self.destination? {
            _ if count == 0 => None,
            IpNet::V4(_) => Some(MaskedAddress::V4 {
                value: value.into(),
                mask: mask.into(),
            }),
            IpNet::V6(_) => Some(MaskedAddress::V6 {
                value: value.into(),
                mask: mask.into(),
            }),
        }
    }
}

impl From<RowMatch> for Row {
    fn from(row: RowMatch) -> Row {
        Row {
            destination: row.destination(),
            source: row.hash(),
        }
    }
}

impl std::fmt::Display for Row {
    /// Writes `any`, a prefix, or a prefix with the compared bits of the source address: `10.0.0.1/32 source 0b01`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(destination) = self.destination else {
            return f.write_str("any");
        };
        write!(f, "{destination}")?;
        match self.source {
            (_, 0) => Ok(()),
            (value, count) => write!(f, " source 0b{value:0width$b}", width = usize::from(count)),
        }
    }
}

/// Returns the class of a flow, as servers report its load: rows tell flows to one destination apart by the four lowest
/// bits of the source address. The mappers have the bits of an RSS hash in the same place.
pub fn class_of(source: IpAddr, destination: IpAddr) -> FlowClass {
    FlowClass::by_source(source, destination)
}

/// One combination of the elements of a match's lists. `None` stands for any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    destination: Option<IpNet>,
    source: Option<IpNet>,
    protocol: Option<u8>,
    vlan: Option<u16>,
}

/// Specificity of a part: the greater one wins.
type Specificity = (u8, u8, bool, bool);

impl Part {
    fn specificity(&self) -> Specificity {
        let length = |prefix: Option<IpNet>| prefix.map_or(0, |prefix| prefix.prefix_len() + 1);
        (
            length(self.destination),
            length(self.source),
            self.protocol.is_some(),
            self.vlan.is_some(),
        )
    }
}

/// Returns the elements of a list as options, or `None` alone if it is empty.
fn options<T: Copy>(list: &[T]) -> Vec<Option<T>> {
    match list {
        [] => vec![None],
        list => list.iter().copied().map(Some).collect(),
    }
}

/// Returns the number of parts of a match, those without any packets included.
pub fn parts_of(matching: &Match) -> usize {
    let sizes = [
        matching.destinations.len(),
        matching.sources.len(),
        matching.protocols.len(),
        matching.vlans.len(),
    ];
    sizes
        .iter()
        .fold(1_usize, |product, size| product.saturating_mul((*size).max(1)))
}

fn parts(matching: &Match) -> Vec<Part> {
    let mut parts = Vec::new();
    for destination in options(&matching.destinations) {
        for source in options(&matching.sources) {
            if let (Some(destination), Some(source)) = (destination, source)
                && is_v6(destination) != is_v6(source)
            {
                continue;
            }
            for protocol in options(&matching.protocols) {
                for vlan in options(&matching.vlans) {
                    parts.push(Part {
                        destination,
                        source,
                        protocol,
                        vlan,
                    });
                }
            }
        }
    }
    parts
}

fn is_v6(prefix: IpNet) -> bool {
    matches!(prefix, IpNet::V6(_))
}

/// Ranks of all chains' matches: parts with a higher rank are decided first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranks(Vec<Specificity>);

impl Ranks {
    /// Ranks the parts of these matches. Returns `None` if there are more than [`MAX_RANKS`] ranks.
    pub fn new<'m>(matches: impl IntoIterator<Item = &'m Match>) -> Option<Ranks> {
        let all: BTreeSet<Specificity> = matches
            .into_iter()
            .flat_map(parts)
            .map(|part| part.specificity())
            .collect();
        (all.len() <= MAX_RANKS).then(|| Ranks(all.into_iter().collect()))
    }

    /// Adds those of another match. Returns `false`, and changes nothing, if there were more than [`MAX_RANKS`] then.
    pub fn add(&mut self, matching: &Match) -> bool {
        let mut all: BTreeSet<Specificity> = self.0.iter().copied().collect();
        all.extend(parts(matching).iter().map(Part::specificity));
        let fits = all.len() <= MAX_RANKS;
        if fits {
            self.0 = all.into_iter().collect();
        }
        fits
    }

    fn priority(&self, part: &Part, row: Row) -> u16 {
        let rank = self.0.partition_point(|other| *other < part.specificity());
        FIRST_PRIORITY + rank as u16 * LENGTHS + u16::from(row.length())
    }
}

/// Mark of a rule in its cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A row of a chain: the chain's [identity](chain_identity), the length of the row's prefix plus 1 (0 for the
    /// default row), and its source bits.
    Row {
        /// Identity of the chain.
        chain: u32,
        /// Length of the row's prefix, plus 1.
        length: u8,
        /// Source bits of the row.
        source: (u8, u8),
    },
    /// Packets that come from a server.
    FromServer,
    /// Packets that no chain matches.
    Unmatched,
}

/// Returns the number by which cookies tell chains apart: 31 bits of a hash (FNV-1a) of the name.
pub fn chain_identity(name: &str) -> u32 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash >> 1
}

impl Mark {
    /// Returns the cookie of a rule of this owner.
    pub fn cookie(self, owner: u8) -> u64 {
        let (kind, length, (value, count), chain) = match self {
            Mark::Row { chain, length, source } => (0, length, source, chain),
            Mark::FromServer => (1, 0, (0, 0), 0),
            Mark::Unmatched => (2, 0, (0, 0), 0),
        };
        TAG << 56
            | u64::from(owner) << 48
            | kind << 46
            | u64::from(length) << 38
            | u64::from(count) << 35
            | u64::from(value) << 31
            | u64::from(chain)
    }

    /// Returns the mark in a cookie, or `None` if the rule has another owner.
    pub fn of(cookie: u64, owner: u8) -> Option<Mark> {
        let bits = |from: u32, count: u32| cookie >> from & ((1 << count) - 1);
        if bits(56, 8) != TAG || bits(48, 8) != u64::from(owner) {
            return None;
        }
        Some(match bits(46, 2) {
            0 => Mark::Row {
                chain: bits(0, 31) as u32,
                length: bits(38, 8) as u8,
                source: (bits(31, 4) as u8, bits(35, 3) as u8),
            },
            1 => Mark::FromServer,
            _ => Mark::Unmatched,
        })
    }
}

/// Returns `true` if a rule is one of this owner's.
pub fn is_owned(rule: &FlowRule, owner: u8) -> bool {
    rule.cookie >> 48 == TAG << 8 | u64::from(owner)
}

/// Rules by match and priority, which identify them.
pub type RuleSet = BTreeMap<(u16, FlowMatch), FlowRule>;

/// Adds a rule to a set.
pub fn insert(rules: &mut RuleSet, rule: FlowRule) {
    rules.insert((rule.priority, rule.matching.clone()), rule);
}

/// Adds the rules of a chain's rows, each with its action.
pub fn add_rows(
    rules: &mut RuleSet,
    (owner, chain): (u8, u32),
    matching: &Match,
    ranks: &Ranks,
    rows: &[(Row, Action)],
) {
    for part in parts(matching) {
        // Of the rows that cover the whole part only the longest can apply.
        let covering = rows.iter().filter(|(row, _)| covers(*row, &part));
        let longest = covering.map(|(row, _)| row.length()).max();
        for (row, action) in rows {
            if covers(*row, &part) && Some(row.length()) != longest {
                continue;
            }
            for matching in matches_of(*row, &part) {
                let mark = Mark::Row {
                    chain,
                    length: row.destination.map_or(0, |destination| destination.prefix_len() + 1),
                    source: row.source,
                };
                insert(
                    rules,
                    FlowRule {
                        cookie: mark.cookie(owner),
                        priority: ranks.priority(&part, *row),
                        matching,
                        action: action.clone(),
                    },
                );
            }
        }
    }
}

/// Returns the number of rules that a row takes.
pub fn rules_of_row(matching: &Match, row: Row) -> usize {
    parts(matching).iter().map(|part| matches_of(row, part).len()).sum()
}

/// Returns `true` if a row matches every packet of a part.
fn covers(row: Row, part: &Part) -> bool {
    match (row.destination, part.destination) {
        _ if row.source.1 > 0 => false,
        (None, _) => true,
        (Some(row), Some(part)) => row.contains(&part),
        (Some(_), None) => false,
    }
}

/// Returns the matches of a row within a part: none if they have no packet in common, two where both families match.
fn matches_of(row: Row, part: &Part) -> Vec<FlowMatch> {
    let destination = match (row.destination, part.destination) {
        (Some(row), Some(part)) if row.contains(&part) => Some(part),
        (Some(row), Some(part)) if part.contains(&row) => Some(row),
        (Some(_), Some(_)) => return Vec::new(),
        (row, part) => row.or(part),
    };
    let family = destination.or(part.source).map(is_v6);
    if let (Some(destination), Some(source)) = (destination, part.source)
        && is_v6(destination) != is_v6(source)
    {
        return Vec::new();
    }
    let of_part = part.source.and_then(MaskedAddress::of_prefix);
    let source = match (of_part, row.source_match()) {
        (Some(part), Some(row)) => match part.and(row) {
            Some(both) => Some(both),
            None => return Vec::new(),
        },
        (part, row) => part.or(row),
    };
    let families: &[Option<u16>] = match (family, part.protocol) {
        (Some(true), _) => &[Some(ETH_V6)],
        (Some(false), _) => &[Some(ETH_V4)],
        (None, Some(_)) => &[Some(ETH_V4), Some(ETH_V6)],
        (None, None) => &[None],
    };
    let matching = |eth_type: &Option<u16>| FlowMatch {
        eth_type: *eth_type,
        vlan: part.vlan,
        protocol: part.protocol,
        source,
        destination: destination.and_then(MaskedAddress::of_prefix),
        ..FlowMatch::default()
    };
    families.iter().map(matching).collect()
}

/// Adds the rule for packets that come from a server.
pub fn add_from_server(rules: &mut RuleSet, owner: u8, in_port: PortNumber, action: Action) {
    let matching = FlowMatch {
        in_port: Some(in_port),
        ..FlowMatch::default()
    };
    insert(
        rules,
        FlowRule {
            cookie: Mark::FromServer.cookie(owner),
            priority: PORT_PRIORITY,
            matching,
            action,
        },
    );
}

/// Adds the rule for packets that no chain matches.
pub fn add_unmatched(rules: &mut RuleSet, owner: u8, action: Action) {
    insert(
        rules,
        FlowRule {
            cookie: Mark::Unmatched.cookie(owner),
            priority: UNMATCHED_PRIORITY,
            matching: FlowMatch::default(),
            action,
        },
    );
}

/// Returns the chain's identity and the row that a rule was written for, if it is one of this owner's rows.
pub fn row_of(rule: &FlowRule, owner: u8) -> Option<(u32, Row)> {
    let Some(Mark::Row { chain, length, source }) = Mark::of(rule.cookie, owner) else {
        return None;
    };
    let Some(length) = length.checked_sub(1) else {
        return Some((chain, Row::DEFAULT));
    };
    let prefix = match (rule.matching.destination, rule.matching.eth_type) {
        (Some(destination), _) => destination.to_prefix()?,
        (None, Some(ETH_V6)) => "::/0".parse().ok()?,
        (None, _) => "0.0.0.0/0".parse().ok()?,
    };
    // The rule may be for a part of the row only, whose prefix is longer.
    let destination = IpNet::new(prefix.addr(), length).ok()?.trunc();
    let is_whole = prefix.prefix_len() >= length;
    is_whole.then_some((
        chain,
        Row {
            destination: Some(destination),
            source,
        },
    ))
}

#[cfg(test)]
mod tests;
