//! The `BpfFilter` network function.

use super::interpreter::Filter;
use super::program::Instruction;
use std::sync::Arc;
use tailwater_api::PacketAction;
use tailwater_chain::batch::{Batch, Verdict};
use tailwater_chain::function::{Explanation, FlowStates, NetworkFunction, TracedPacket};
use tailwater_chain::live::{Live, Version};

/// Maximum number of rules of a function.
pub const MAX_RULES: usize = 15;

/// Drop reasons. The first is for packets that no rule matches.
const DROP_REASONS: [&str; MAX_RULES + 1] = [
    "no-rule", "rule-1", "rule-2", "rule-3", "rule-4", "rule-5", "rule-6", "rule-7", "rule-8", "rule-9", "rule-10",
    "rule-11", "rule-12", "rule-13", "rule-14", "rule-15",
];

const COUNTERS: [&str; MAX_RULES] = [
    "rule-1-passed",
    "rule-2-passed",
    "rule-3-passed",
    "rule-4-passed",
    "rule-5-passed",
    "rule-6-passed",
    "rule-7-passed",
    "rule-8-passed",
    "rule-9-passed",
    "rule-10-passed",
    "rule-11-passed",
    "rule-12-passed",
    "rule-13-passed",
    "rule-14-passed",
    "rule-15-passed",
];

/// Rule of a BPF filter: a program, and the action for packets that it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The BPF program.
    pub program: Vec<Instruction>,
    /// Action for packets that the program matches.
    pub action: PacketAction,
}

/// Ordered rules. The first rule whose program matches a packet decides.
#[derive(Debug)]
pub struct BpfRules {
    filters: Vec<(Filter, PacketAction)>,
    default: PacketAction,
}

impl BpfRules {
    /// Compiles the first [`MAX_RULES`] of `rules`. `default` is the action for packets that no rule matches.
    ///
    /// # Errors
    /// The index of the first rule whose program fails verification, and the reason.
    pub fn new(rules: &[Rule], default: PacketAction) -> Result<BpfRules, (usize, super::VerifyError)> {
        let rules = rules.iter().take(MAX_RULES).enumerate();
        let filters = rules.map(|(at, rule)| {
            let filter = Filter::new(&rule.program).map_err(|refused| (at, refused))?;
            Ok((filter, rule.action))
        });
        Ok(BpfRules {
            filters: filters.collect::<Result<_, _>>()?,
            default,
        })
    }
}

/// Drops packets by programs of classic BPF. There is no flow state: a program may read any byte of a packet, and
/// running it costs about as much as a flow look-up.
#[derive(Debug)]
pub struct BpfFilter {
    rules: Arc<Live<BpfRules>>,
    cached_rules: Arc<Version<BpfRules>>,
    /// Number of rules at the start of the run. Reports have counters for these.
    count: usize,
    passed: [u64; MAX_RULES],
}

impl BpfFilter {
    /// Creates a worker's instance.
    pub fn new(rules: Arc<Live<BpfRules>>) -> BpfFilter {
        let held = rules.current();
        BpfFilter {
            rules,
            count: held.value.filters.len(),
            cached_rules: held,
            passed: [0; MAX_RULES],
        }
    }
}

impl NetworkFunction for BpfFilter {
    fn kind(&self) -> &'static str {
        "BpfFilter"
    }

    fn can_restart(&self) -> bool {
        true
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &DROP_REASONS[..=self.count]
    }

    fn counters(&self) -> &'static [&'static str] {
        &COUNTERS[..self.count]
    }

    fn counter_values(&self) -> &[u64] {
        &self.passed[..self.count]
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        self.rules.refresh(&mut self.cached_rules);
        let BpfFilter {
            cached_rules: held,
            passed,
            ..
        } = self;
        let BpfRules { filters, default } = &held.value;
        batch.for_each(|packet, frame| {
            let found = filters.iter().position(|(filter, _)| filter.matches(frame));
            let (action, reason) = match found {
                Some(at) => (filters[at].1, at + 1),
                None => (*default, 0),
            };
            match (action, found) {
                (PacketAction::Drop, _) => packet.verdict = Verdict::Drop(reason as u8),
                (PacketAction::Pass, Some(at)) => passed[at] += 1,
                (PacketAction::Pass, None) => {}
            }
        });
    }

    fn explain(&self, traced: &TracedPacket<'_>, _: &mut FlowStates<'_>, text: &mut Explanation) {
        let BpfRules { filters, default } = &self.cached_rules.value;
        let name = |action| match action {
            PacketAction::Pass => "pass",
            PacketAction::Drop => "drop",
        };
        let frame = traced.frame();
        match filters.iter().position(|(filter, _)| filter.matches(frame)) {
            Some(at) => text.add(format_args!("rule {}: {}", at + 1, name(filters[at].1))),
            None => text.add(format_args!("no rule, default {}", name(*default))),
        }
    }
}
