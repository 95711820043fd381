//! Changes that lead from the rules that a switch has to those that are wanted. Pure.

use super::openflow::{FlowCommand, FlowMod};
use super::rows::RuleSet;
use super::rule::FlowRule;

/// Next changes of a switch's rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Changes of one bundle, in order.
    pub changes: Vec<FlowMod>,
    /// Number of changes that are to follow in other bundles.
    pub left: usize,
}

/// Returns the next at most `per_bundle` changes. `room` is the number of rules that can be added.
///
/// Make before break: new rules come first, longer rows before shorter ones, so that what a shorter row loses has its
/// own rule already. Then rules whose action changes, each replaced at once. Rules that are not wanted go last, when
/// what matched them has another. Only where the table has no room for all new rules do the first go earlier: in the
/// same bundle as the new ones, which the switch applies at one time.
pub fn changes(present: &RuleSet, wanted: &RuleSet, room: usize, per_bundle: usize) -> Changes {
    let change = |command, rule: &FlowRule| FlowMod {
        command,
        rule: rule.clone(),
    };
    // Sets are in the order of priorities.
    let mut added = Vec::new();
    let mut replaced = Vec::new();
    for (key, rule) in wanted.iter().rev() {
        match present.get(key) {
            None => added.push(rule),
            Some(old) if old.cookie != rule.cookie || old.action != rule.action => replaced.push(rule),
            Some(_) => {}
        }
    }
    // Longest first, too: what a deleted one matched has a longer or a shorter row, never none.
    let removed = present.iter().rev().filter(|(key, _)| !wanted.contains_key(*key));
    let mut removed: Vec<&FlowRule> = removed.map(|(_, rule)| rule).collect();
    let total = added.len() + replaced.len() + removed.len();
    let mut list = Vec::with_capacity(total.min(per_bundle));
    let in_bundle = added.len().min(per_bundle / 2 + 1);
    let short = in_bundle.saturating_sub(room).min(removed.len());
    list.extend(removed.drain(..short).map(|rule| change(FlowCommand::Delete, rule)));
    let in_room = added.len().min(room + short);
    let adds = added[..in_room].iter().chain(&replaced);
    list.extend(adds.map(|rule| change(FlowCommand::Add, rule)));
    list.extend(removed.iter().map(|rule| change(FlowCommand::Delete, rule)));
    list.truncate(per_bundle);
    Changes {
        left: total - list.len(),
        changes: list,
    }
}

/// Applies changes to a set, as the switch does.
pub fn apply(rules: &mut RuleSet, changes: &[FlowMod]) {
    for change in changes {
        let key = (change.rule.priority, change.rule.matching.clone());
        match change.command {
            FlowCommand::Add => {
                rules.insert(key, change.rule.clone());
            }
            FlowCommand::Delete => {
                rules.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::{Action, FlowMatch};
    use super::*;
    use proptest::prelude::*;

    fn set(rules: &[(u16, u32, u32)]) -> RuleSet {
        let rule = |(priority, in_port, out): &(u16, u32, u32)| {
            let matching = FlowMatch {
                in_port: Some(*in_port),
                ..FlowMatch::default()
            };
            let rule = FlowRule {
                cookie: 7,
                priority: *priority,
                matching: matching.clone(),
                action: Action::Ports(vec![*out]),
            };
            ((*priority, matching), rule)
        };
        rules.iter().map(rule).collect()
    }

    fn shown(changes: &Changes) -> Vec<(char, u16)> {
        let shown = changes.changes.iter().map(|change| match change.command {
            FlowCommand::Add => ('+', change.rule.priority),
            FlowCommand::Delete => ('-', change.rule.priority),
        });
        shown.collect()
    }

    #[test]
    fn new_rules_come_first_then_replaced_ones_then_deletions() {
        let present = set(&[(10, 1, 1), (20, 1, 1), (30, 1, 1)]);
        let wanted = set(&[(10, 1, 2), (30, 1, 1), (40, 1, 3), (50, 1, 3)]);
        let all = changes(&present, &wanted, 100, 100);
        assert_eq!(shown(&all), [('+', 50), ('+', 40), ('+', 10), ('-', 20)]);
        assert_eq!(all.left, 0);
        let first = changes(&present, &wanted, 100, 3);
        assert_eq!((shown(&first), first.left), (shown(&all)[..3].to_vec(), 1));
        assert_eq!(changes(&wanted, &wanted, 0, 100), Changes::default());
    }

    #[test]
    fn deletions_come_first_only_where_the_table_has_no_room() {
        let present = set(&[(10, 1, 1), (20, 1, 1)]);
        let wanted = set(&[(10, 1, 1), (40, 1, 3)]);
        assert_eq!(shown(&changes(&present, &wanted, 0, 100)), [('-', 20), ('+', 40)]);
        assert_eq!(shown(&changes(&present, &wanted, 1, 100)), [('+', 40), ('-', 20)]);
        // There is no room at all: nothing is tried that the switch would refuse.
        let more = set(&[(10, 1, 1), (20, 1, 1), (40, 1, 3)]);
        let none = changes(&present, &more, 0, 100);
        assert_eq!((shown(&none).len(), none.left), (0, 1));
    }

    proptest! {
        #[test]
        fn bundles_lead_to_what_is_wanted_within_the_table(
            present in proptest::collection::vec((0_u16..20, 0_u32..3, 0_u32..3), 0..30),
            wanted in proptest::collection::vec((0_u16..20, 0_u32..3, 0_u32..3), 0..30),
            per_bundle in 1_usize..8,
            spare in 0_usize..4,
        ) {
            let (mut present, wanted) = (set(&present), set(&wanted));
            let table = present.len().max(wanted.len()) + spare;
            let both: Vec<_> = present.keys().filter(|key| wanted.contains_key(*key)).cloned().collect();
            let mut bundles = 0;
            loop {
                let next = changes(&present, &wanted, table - present.len(), per_bundle);
                prop_assert!(next.changes.len() <= per_bundle);
                if next.changes.is_empty() {
                    prop_assert_eq!(next.left, 0);
                    break;
                }
                for change in &next.changes {
                    apply(&mut present, std::slice::from_ref(change));
                    prop_assert!(present.len() <= table, "never more than the table has room for");
                }
                prop_assert!(both.iter().all(|key| present.contains_key(key)), "what stays is never away");
                bundles += 1;
                prop_assert!(bundles < 200, "it ends");
            }
            prop_assert_eq!(present, wanted);
        }
    }
}
