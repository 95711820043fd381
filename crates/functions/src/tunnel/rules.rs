//! Tunnel rules, and their compiled form for matching.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tailwater_net::FlowKey;
use tailwater_net::vlan::VlanTag;

/// Largest number of rules per function; they are scanned linearly.
pub const MAX_RULES: usize = 256;

/// Number of VLAN identifiers. The table entry after them is for untagged packets.
const VLANS: usize = 4096;

/// Condition on a packet's outer tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VlanMatch {
    /// Untagged.
    Untagged,
    /// This VLAN identifier, 0 to 4,095.
    Id(u16),
}

/// Action on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Push a tag in front of all others.
    Push(VlanTag),
    /// Pop the outer tag, if there is one.
    Pop,
    /// Forward unchanged.
    Pass,
    /// Drop.
    Drop,
}

/// Rule; a packet must match every field that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Source prefix.
    pub source: Option<IpNet>,
    /// Destination prefix.
    pub destination: Option<IpNet>,
    /// IP protocol.
    pub protocol: Option<u8>,
    /// Condition on the outer tag.
    pub vlan: Option<VlanMatch>,
    /// Action.
    pub action: Action,
}

impl Rule {
    /// Returns `true` if a packet with this key and outer VLAN identifier matches.
    pub fn matches(&self, key: &FlowKey, vlan: Option<u16>) -> bool {
        let holds = |prefix: Option<IpNet>, address: IpAddr| prefix.is_none_or(|prefix| prefix.contains(&address));
        holds(self.source, key.source())
            && holds(self.destination, key.destination())
            && self.protocol.is_none_or(|protocol| protocol == key.protocol())
            && self.vlan.is_none_or(|wanted| vlan == wanted.id())
    }
}

impl VlanMatch {
    /// Returns the required VLAN identifier; `None` requires an untagged packet.
    pub(crate) fn id(self) -> Option<u16> {
        match self {
            VlanMatch::Untagged => None,
            VlanMatch::Id(id) => Some(id),
        }
    }
}

/// Address prefix as value and mask.
#[derive(Clone, Copy, Debug)]
struct Masked<T> {
    value: T,
    mask: T,
}

/// Rule for one IP version.
#[derive(Clone, Copy, Debug)]
struct Line<T> {
    source: Masked<T>,
    destination: Masked<T>,
    protocol: Masked<u8>,
    action: Action,
}

/// Finds the first line that matches. The last line of every list matches everything.
macro_rules! first {
    ($lines:expr, $source:expr, $destination:expr, $protocol:expr) => {{
        let (source, destination, protocol) = ($source, $destination, $protocol);
        let found = $lines.iter().find(|line| {
            (source ^ line.source.value) & line.source.mask == 0
                && (destination ^ line.destination.value) & line.destination.mask == 0
                && (protocol ^ line.protocol.value) & line.protocol.mask == 0
        });
        found.map_or(Action::Pass, |line| line.action)
    }};
}

/// Rules that packets of one set of VLANs can match, in order.
#[derive(Clone, Debug)]
struct Group {
    v4: Vec<Line<u32>>,
    v6: Vec<Line<u128>>,
    /// Action, if it is the same for all packets.
    constant: Option<Action>,
}

impl Group {
    fn new(rules: &[&Rule], default: Action) -> Group {
        let everything = Rule {
            source: None,
            destination: None,
            protocol: None,
            vlan: None,
            action: default,
        };
        let rules = rules.iter().copied().chain([&everything]);
        let mut v4: Vec<Line<u32>> = rules.clone().filter_map(v4_line).collect();
        let mut v6: Vec<Line<u128>> = rules.filter_map(v6_line).collect();
        // Lines after one that matches everything are unreachable.
        let end = |all: Option<usize>| all.map_or(0, |at| at + 1);
        v4.truncate(end(v4.iter().position(|line| {
            (line.source.mask | line.destination.mask) == 0 && line.protocol.mask == 0
        })));
        v6.truncate(end(v6.iter().position(|line| {
            (line.source.mask | line.destination.mask) == 0 && line.protocol.mask == 0
        })));
        let constant = match (&*v4, &*v6) {
            ([v4], [v6]) if v4.action == v6.action => Some(v4.action),
            _ => None,
        };
        Group { v4, v6, constant }
    }

    #[inline]
    fn find(&self, key: &FlowKey) -> Action {
        if let Some(action) = self.constant {
            return action;
        }
        match (key.source(), key.destination()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let (source, destination) = (source.to_bits(), destination.to_bits());
                first!(self.v4, source, destination, key.protocol())
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let (source, destination) = (source.to_bits(), destination.to_bits());
                first!(self.v6, source, destination, key.protocol())
            }
            // A key has a single IP version, so this is unreachable.
            _ => Action::Pass,
        }
    }
}

fn protocol_line(protocol: Option<u8>) -> Masked<u8> {
    Masked {
        value: protocol.unwrap_or(0),
        mask: if protocol.is_some() { 0xff } else { 0 },
    }
}

/// Compiles a rule for IPv4; `None` if no IPv4 packet can match.
fn v4_line(rule: &Rule) -> Option<Line<u32>> {
    let masked = |prefix: Option<IpNet>| match prefix {
        None => Some(Masked { value: 0, mask: 0 }),
        Some(IpNet::V4(prefix)) => Some(Masked {
            value: Ipv4Addr::to_bits(prefix.network()),
            mask: prefix.netmask().to_bits(),
        }),
        Some(IpNet::V6(_)) => None,
    };
    Some(Line {
        source: masked(rule.source)?,
        destination: masked(rule.destination)?,
        protocol: protocol_line(rule.protocol),
        action: rule.action,
    })
}

/// Compiles a rule for IPv6; `None` if no IPv6 packet can match.
fn v6_line(rule: &Rule) -> Option<Line<u128>> {
    let masked = |prefix: Option<IpNet>| match prefix {
        None => Some(Masked { value: 0, mask: 0 }),
        Some(IpNet::V6(prefix)) => Some(Masked {
            value: Ipv6Addr::to_bits(prefix.network()),
            mask: prefix.netmask().to_bits(),
        }),
        Some(IpNet::V4(_)) => None,
    };
    Some(Line {
        source: masked(rule.source)?,
        destination: masked(rule.destination)?,
        protocol: protocol_line(rule.protocol),
        action: rule.action,
    })
}

/// Compiled rules, shared by all workers.
#[derive(Clone, Debug)]
pub struct TunnelRules {
    /// Rule groups; the first is for VLANs that no rule names.
    groups: Vec<Group>,
    /// Group index for each VLAN identifier, and last for untagged packets; `None` if no rule has a VLAN condition.
    of_vlan: Option<Box<[u16]>>,
}

impl TunnelRules {
    /// Compiles ordered rules, at most [`MAX_RULES`] (further ones are ignored), and the action for packets that match
    /// none.
    pub fn new(rules: &[Rule], default: Action) -> TunnelRules {
        let rules = rules.get(..MAX_RULES).unwrap_or(rules);
        let others: Vec<_> = rules.iter().filter(|rule| rule.vlan.is_none()).collect();
        let mut groups = vec![Group::new(&others, default)];
        let mut of_vlan = vec![0_u16; VLANS + 1];
        for wanted in rules.iter().filter_map(|rule| rule.vlan) {
            let entry = &mut of_vlan[place(wanted.id())];
            if *entry == 0 {
                // There is at most one group per rule.
                *entry = groups.len() as u16;
                let able = |rule: &&Rule| rule.vlan.is_none_or(|vlan| vlan == wanted);
                let able: Vec<_> = rules.iter().filter(able).collect();
                groups.push(Group::new(&able, default));
            }
        }
        TunnelRules {
            of_vlan: (groups.len() > 1).then(|| of_vlan.into()),
            groups,
        }
    }

    /// Returns `true` if the decision depends on the outer tag, and so not only on the flow.
    pub fn depend_on_vlan(&self) -> bool {
        self.of_vlan.is_some()
    }

    /// Returns the action, if it is the same for all packets.
    #[inline]
    pub fn constant(&self) -> Option<Action> {
        match (&self.of_vlan, &*self.groups) {
            (None, [group]) => group.constant,
            _ => None,
        }
    }

    /// Returns the action for a packet with this key and outer VLAN identifier.
    #[inline]
    pub fn find(&self, key: &FlowKey, vlan: Option<u16>) -> Action {
        let group = self.of_vlan.as_ref().map_or(0, |of_vlan| of_vlan[place(vlan)]);
        self.groups[usize::from(group)].find(key)
    }
}

/// Returns a VLAN's index in the group table.
#[inline]
fn place(vlan: Option<u16>) -> usize {
    vlan.map_or(VLANS, |id| usize::from(id) % VLANS)
}
