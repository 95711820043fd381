//! Table of rules, compiled for look-ups: a hash table for each combination of compared bits, as in Open vSwitch's
//! classifier. Rows differ in few lengths, so there are few.

use super::counters::RuleCounters;
use super::key::PacketKey;
use crate::ingress::rows::RuleSet;
use crate::ingress::rule::{Action, FlowMatch, MacAddress, PortNumber};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Index of a rule in its table.
pub(super) type RuleIndex = u32;
/// No rule.
pub(super) const NONE: RuleIndex = RuleIndex::MAX;

/// Ports, a bit each: the lowest is port 1.
pub(super) type PortSet = u64;

/// Action of a compiled rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Packets are dropped.
    Drop,
    /// Forwarded by learnt Ethernet addresses.
    Normal,
    /// Passed to the ingress.
    Controller,
    /// Sent by these ports, without the one they arrived on.
    Ports(PortSet),
    /// Sent by a port with this destination address.
    Server(MacAddress, PortSet),
}

/// Compiled rule.
#[derive(Debug)]
pub(super) struct CompiledRule {
    pub priority: u16,
    pub cookie: u64,
    pub target: Target,
    pub counters: Arc<RuleCounters>,
}

/// Place of a hash table.
#[derive(Clone, Copy, Debug)]
struct Place {
    key: PacketKey,
    rule: RuleIndex,
}

/// Rules that compare the same bits. At most half of the places are taken.
#[derive(Debug)]
struct Group {
    mask: PacketKey,
    /// Highest priority of its rules.
    highest: u16,
    places: Box<[Place]>,
}

/// Compiled rules.
#[derive(Debug, Default)]
pub(super) struct FlowTable {
    /// Highest priorities first.
    groups: Vec<Group>,
    rules: Vec<CompiledRule>,
}

/// Rule that the software data plane cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a match or action that the software data plane does not have: {0}")]
pub(super) struct Unsupported(pub String);

/// Counters of rules, by priority and match.
pub(super) type Counters = BTreeMap<(u16, FlowMatch), Arc<RuleCounters>>;

impl FlowTable {
    /// Compiles rules with their counters for a switch with the ports 1 to `ports`.
    ///
    /// # Errors
    /// If there is a match or action that it does not have.
    pub fn compile(rules: &RuleSet, counters: &Counters, ports: usize) -> Result<FlowTable, Unsupported> {
        let mut groups: HashMap<PacketKey, HashMap<PacketKey, RuleIndex>> = HashMap::new();
        let mut compiled = Vec::with_capacity(rules.len());
        // In the order of priorities: of several with the same bits, the last one counts.
        for (key, rule) in rules {
            let unsupported = || Unsupported(format!("priority {}, {}", rule.priority, rule.matching));
            let (mask, value) = PacketKey::of_match(&rule.matching).ok_or_else(unsupported)?;
            let target = target(&rule.action, ports).ok_or_else(unsupported)?;
            let index = compiled.len() as RuleIndex;
            compiled.push(CompiledRule {
                priority: rule.priority,
                cookie: rule.cookie,
                target,
                counters: counters.get(key).cloned().unwrap_or_default(),
            });
            groups.entry(mask).or_default().insert(value, index);
        }
        let mut groups: Vec<Group> = groups
            .into_iter()
            .map(|(mask, members)| Group::new(mask, members.into_iter(), &compiled))
            .collect();
        groups.sort_by(|a, b| b.highest.cmp(&a.highest).then(a.mask.cmp(&b.mask)));
        Ok(FlowTable {
            groups,
            rules: compiled,
        })
    }

    /// Returns the matching rule with the highest priority, or [`NONE`].
    #[inline]
    pub fn find(&self, key: &PacketKey) -> RuleIndex {
        let (mut best, mut priority) = (NONE, None);
        for group in &self.groups {
            if priority.is_some_and(|priority| priority >= group.highest) {
                break;
            }
            let found = group.find(&key.masked(&group.mask));
            if let Some(rule) = self.rules.get(found as usize)
                && priority.is_none_or(|priority| rule.priority > priority)
            {
                (best, priority) = (found, Some(rule.priority));
            }
        }
        best
    }

    /// Returns a rule, if there is one of this index.
    #[inline]
    pub fn rule(&self, index: RuleIndex) -> Option<&CompiledRule> {
        self.rules.get(index as usize)
    }
}

impl Group {
    fn new(
        mask: PacketKey,
        members: impl ExactSizeIterator<Item = (PacketKey, RuleIndex)>,
        rules: &[CompiledRule],
    ) -> Group {
        let size = (2 * members.len()).next_power_of_two();
        let free = Place {
            key: PacketKey::default(),
            rule: NONE,
        };
        let mut group = Group {
            mask,
            highest: 0,
            places: vec![free; size].into_boxed_slice(),
        };
        for (key, rule) in members {
            group.highest = group.highest.max(rules[rule as usize].priority);
            let mut at = key.hash() as usize & (size - 1);
            while group.places[at].rule != NONE {
                at = (at + 1) & (size - 1);
            }
            group.places[at] = Place { key, rule };
        }
        group
    }

    #[inline]
    fn find(&self, key: &PacketKey) -> RuleIndex {
        let last = self.places.len() - 1;
        let mut at = key.hash() as usize & last;
        loop {
            let place = &self.places[at];
            // At least half of the places are free.
            if place.rule == NONE || place.key == *key {
                return place.rule;
            }
            at = (at + 1) & last;
        }
    }
}

fn port_bit(port: PortNumber, ports: usize) -> PortSet {
    match usize::try_from(port) {
        Ok(number) if (1..=ports).contains(&number) => 1 << (number - 1),
        _ => 0,
    }
}

pub(super) fn target(action: &Action, ports: usize) -> Option<Target> {
    Some(match action {
        Action::Drop => Target::Drop,
        Action::Normal => Target::Normal,
        Action::Controller => Target::Controller,
        Action::Ports(to) => Target::Ports(to.iter().fold(0, |set, port| set | port_bit(*port, ports))),
        Action::Server { mac, port } => Target::Server(*mac, port_bit(*port, ports)),
        Action::Other => return None,
    })
}
