//! Tunnel rules, and the form in which packets are matched with them.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tailwater_net::FlowKey;
use tailwater_net::vlan::VlanTag;

/// The most rules of one function: they are tried one after the other.
pub const MAX_RULES: usize = 256;

/// The number of VLAN identifiers; the entry after them is for packets without a tag.
const VLANS: usize = 4096;

/// What a rule asks of a packet's outer tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VlanMatch {
    /// It must have none.
    Untagged,
    /// It must have this identifier, 0 to 4095.
    Id(u16),
}

/// What is done to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A tag is put in front of all others.
    Push(VlanTag),
    /// The outer tag is removed, if there is one.
    Pop,
    /// Nothing.
    Pass,
    /// It is dropped.
    Drop,
}

/// A rule: a packet must match every field that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The source address is in this prefix.
    pub source: Option<IpNet>,
    /// The destination address is in this prefix.
    pub destination: Option<IpNet>,
    /// The IP protocol is this one.
    pub protocol: Option<u8>,
    /// The outer tag.
    pub vlan: Option<VlanMatch>,
    /// What is done.
    pub action: Action,
}

impl Rule {
    /// Whether a packet with this key and this outer VLAN identifier matches.
    pub fn matches(&self, key: &FlowKey, vlan: Option<u16>) -> bool {
        let holds = |prefix: Option<IpNet>, address: IpAddr| prefix.is_none_or(|prefix| prefix.contains(&address));
        holds(self.source, key.source())
            && holds(self.destination, key.destination())
            && self.protocol.is_none_or(|protocol| protocol == key.protocol())
            && self.vlan.is_none_or(|wanted| vlan == wanted.id())
    }
}

impl VlanMatch {
    /// The identifier that a packet's outer tag must have; `None`: it must have no tag.
    pub(crate) fn id(self) -> Option<u16> {
        match self {
            VlanMatch::Untagged => None,
            VlanMatch::Id(id) => Some(id),
        }
    }
}

/// An address under a mask.
#[derive(Clone, Copy, Debug)]
struct Masked<T> {
    value: T,
    mask: T,
}

/// A rule for one IP version.
#[derive(Clone, Copy, Debug)]
struct Line<T> {
    source: Masked<T>,
    destination: Masked<T>,
    protocol: Masked<u8>,
    action: Action,
}

/// The first line that matches. The last line of every list matches everything.
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

/// The rules that packets of some VLANs can match, in order.
#[derive(Clone, Debug)]
struct Group {
    v4: Vec<Line<u32>>,
    v6: Vec<Line<u128>>,
    /// The action, if it is the same for all packets.
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
        // Nothing is reached after a line that matches everything.
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
            // A key has one version.
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

/// `None` if no IPv4 packet can match.
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

/// `None` if no IPv6 packet can match.
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

/// Rules ready to be applied; shared by all workers.
#[derive(Clone, Debug)]
pub struct TunnelRules {
    /// The first is for VLANs that no rule names.
    groups: Vec<Group>,
    /// For each VLAN identifier, and last for untagged packets, the place of its group; `None` if no
    /// rule asks for the VLAN.
    of_vlan: Option<Box<[u16]>>,
}

impl TunnelRules {
    /// From rules in order, at most [`MAX_RULES`] (what is beyond is not applied), and the action
    /// for packets that none of them matches.
    pub fn new(rules: &[Rule], default: Action) -> TunnelRules {
        let rules = rules.get(..MAX_RULES).unwrap_or(rules);
        let others: Vec<_> = rules.iter().filter(|rule| rule.vlan.is_none()).collect();
        let mut groups = vec![Group::new(&others, default)];
        let mut of_vlan = vec![0_u16; VLANS + 1];
        for wanted in rules.iter().filter_map(|rule| rule.vlan) {
            let entry = &mut of_vlan[place(wanted.id())];
            if *entry == 0 {
                // At most one group a rule.
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

    /// Whether the decision depends on the outer tag, and so not on the flow alone.
    pub fn depend_on_vlan(&self) -> bool {
        self.of_vlan.is_some()
    }

    /// The action, if it is the same for all packets.
    #[inline]
    pub fn constant(&self) -> Option<Action> {
        match (&self.of_vlan, &*self.groups) {
            (None, [group]) => group.constant,
            _ => None,
        }
    }

    /// The action for a packet with this key and this outer VLAN identifier.
    #[inline]
    pub fn find(&self, key: &FlowKey, vlan: Option<u16>) -> Action {
        let group = self.of_vlan.as_ref().map_or(0, |of_vlan| of_vlan[place(vlan)]);
        self.groups[usize::from(group)].find(key)
    }
}

/// A VLAN's place among the groups.
#[inline]
fn place(vlan: Option<u16>) -> usize {
    vlan.map_or(VLANS, |id| usize::from(id) % VLANS)
}
