//! The `Acl` network function.

use super::classifier::ClassifierError;
use super::naming::{Conditions, RuleOrigin};
use super::{Action, Classifier, Rule};
use std::sync::Arc;
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet, Verdict};
use tailwater_chain::function::{Explanation, FlowStates, FunctionProperties, NetworkFunction, NewFlow, TracedPacket};
use tailwater_chain::live::{Live, Version};
use tailwater_net::FlowKey;

/// One compiled version of the rules.
pub struct AclRules {
    classifier: Classifier,
    /// The action of each rule, in order.
    actions: Vec<Action>,
    default: Action,
    /// The rules, for explanations.
    rules: Box<[Rule]>,
    origin: RuleOrigin,
}

impl AclRules {
    /// Compiles `rules`, with the `default` action for packets that no rule matches.
    ///
    /// # Errors
    /// If there are too many rules, or if they are too complex to compile.
    pub fn new(rules: &[Rule], default: Action) -> Result<AclRules, ClassifierError> {
        Ok(AclRules {
            classifier: Classifier::new(rules)?,
            actions: rules.iter().map(|rule| rule.action).collect(),
            default,
            rules: rules.into(),
            origin: RuleOrigin::default(),
        })
    }

    /// The same rules, whose explanations name their origin.
    #[must_use]
    pub(crate) fn of(self, origin: RuleOrigin) -> AclRules {
        AclRules { origin, ..self }
    }

    /// Returns the action of a rule, or the default action.
    #[inline]
    fn action_of(&self, rule: Option<u32>) -> Action {
        rule.and_then(|rule| self.actions.get(rule as usize))
            .copied()
            .unwrap_or(self.default)
    }
}

/// Rules shared by all workers. They can be replaced at run time.
pub struct AclTable {
    rules: Live<AclRules>,
}

impl AclTable {
    /// Creates a table from rules, as [`AclRules::new`] does.
    ///
    /// # Errors
    /// See [`AclRules::new`].
    pub fn new(rules: &[Rule], default: Action) -> Result<AclTable, ClassifierError> {
        Ok(AclTable::of(AclRules::new(rules, default)?))
    }

    /// Creates a table of compiled rules.
    pub(crate) fn of(rules: AclRules) -> AclTable {
        AclTable {
            rules: Live::new(rules),
        }
    }

    /// Returns the live rules, which can be replaced. After a replacement, each flow is decided again on its next
    /// packet.
    pub fn live(&self) -> &Live<AclRules> {
        &self.rules
    }
}

/// Forwards or drops packets by the first rule that matches their 5-tuple. The decision is either made on a flow's
/// first packet and stored with the flow, or made for every packet.
pub struct Acl {
    table: Arc<AclTable>,
    cached_rules: Arc<Version<AclRules>>,
    /// `true` if decisions are stored with the flows.
    in_flow: bool,
    scratch: Box<Scratch>,
}

/// Scratch space for classifying a batch.
struct Scratch {
    keys: [FlowKey; MAX_BATCH],
    rules: [Option<u32>; MAX_BATCH],
    /// Rule of each packet whose flow is new, by index in the batch.
    by_index: [Option<u32>; MAX_BATCH],
}

/// Decision stored in a flow's state: 0 means forward.
type Denied = u32;

const DENIED: u8 = 0;

impl Acl {
    /// Creates a worker's instance that stores decisions with the flows.
    pub fn new(table: Arc<AclTable>) -> Acl {
        let scratch = Scratch {
            keys: [FlowKey::default(); MAX_BATCH],
            rules: [None; MAX_BATCH],
            by_index: [None; MAX_BATCH],
        };
        Acl {
            cached_rules: table.rules.current(),
            table,
            in_flow: true,
            scratch: Box::new(scratch),
        }
    }

    /// Creates a worker's instance that decides for every packet and needs no flow state.
    pub fn without_flows(table: Arc<AclTable>) -> Acl {
        Acl {
            in_flow: false,
            ..Acl::new(table)
        }
    }
}

impl NetworkFunction for Acl {
    fn kind(&self) -> &'static str {
        "Acl"
    }

    fn can_restart(&self) -> bool {
        true
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["denied"]
    }

    fn state_bytes(&self) -> usize {
        match self.in_flow {
            true => size_of::<Denied>(),
            false => 0,
        }
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties::HEADERS_ONLY
    }

    fn version(&self) -> u32 {
        self.table.rules.number()
    }

    fn prepare(&mut self, batch: &Batch, new: &[u16]) {
        self.table.rules.refresh(&mut self.cached_rules);
        let Scratch { keys, rules, by_index } = &mut *self.scratch;
        let (keys, rules) = (&mut keys[..new.len()], &mut rules[..new.len()]);
        for (key, at) in keys.iter_mut().zip(new) {
            *key = batch.packet(usize::from(*at)).headers.key;
        }
        self.cached_rules.value.classifier.classify_batch(keys, rules);
        for (rule, at) in rules.iter().zip(new) {
            by_index[usize::from(*at)] = *rule;
        }
    }

    fn new_flow(&mut self, _packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        let action = self
            .cached_rules
            .value
            .action_of(self.scratch.by_index[flow.batch_index()]);
        *flow.state::<Denied>() = Denied::from(action == Action::Deny);
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        if self.in_flow {
            for packet in batch.iter_mut() {
                if *flows.state::<Denied>(packet) != 0 {
                    packet.verdict = Verdict::Drop(DENIED);
                }
            }
            return;
        }
        self.table.rules.refresh(&mut self.cached_rules);
        let Scratch { keys, rules, .. } = &mut *self.scratch;
        let (keys, rules) = (&mut keys[..batch.len()], &mut rules[..batch.len()]);
        for (packet, key) in batch.iter().zip(&mut *keys) {
            *key = packet.headers.key;
        }
        self.cached_rules.value.classifier.classify_batch(keys, rules);
        for (packet, rule) in batch.iter_mut().zip(rules) {
            if self.cached_rules.value.action_of(*rule) == Action::Deny {
                packet.verdict = Verdict::Drop(DENIED);
            }
        }
    }

    fn explain(&self, traced: &TracedPacket<'_>, _: &mut FlowStates<'_>, text: &mut Explanation) {
        let rules = &self.cached_rules.value;
        let found = rules.classifier.classify(&traced.key);
        let action = match rules.action_of(found) {
            Action::Allow => "allow",
            Action::Deny => "deny",
        };
        match found.and_then(|at| Some((at, rules.rules.get(at as usize)?))) {
            Some((at, rule)) => {
                rules.origin.name(at, text);
                text.add(format_args!(": {action} {}", Conditions(rule)));
            }
            None => text.add(format_args!("no rule, default {action}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::generate::{RuleSetSpec, client_keys};
    use tailwater_chain::rig::{ChainRig, INPUT};
    use tailwater_net::Nanos;
    use tailwater_net::builder::FrameBuilder;

    /// Deciding for every packet and storing decisions with the flows give the same result.
    #[test]
    fn with_and_without_flows_the_same_packets_pass() {
        let spec = RuleSetSpec {
            rules: 300,
            seed: 7,
            sources: vec!["10.0.0.0/8".parse().unwrap()],
            destinations: vec!["198.18.0.0/15".parse().unwrap()],
        };
        let table = Arc::new(AclTable::new(&spec.generate(), Action::Deny).unwrap());
        let mut kept = ChainRig::new(vec![Box::new(Acl::new(Arc::clone(&table)))], INPUT);
        let every = Acl::without_flows(Arc::clone(&table));
        assert_eq!(every.state_bytes(), 0);
        let mut every = ChainRig::new(vec![Box::new(every)], INPUT);
        let frames: Vec<_> = client_keys(&spec.sources, &spec.destinations, 600, 3)
            .iter()
            .map(|key| FrameBuilder::new(key).to_vec().unwrap())
            .collect();
        let mut passed = 0;
        for frames in frames.chunks(60) {
            let sent = kept.run(frames, Nanos::from_secs(1));
            passed += sent.len();
            assert_eq!(every.run(frames, Nanos::from_secs(1)), sent);
        }
        assert!(passed > 0 && passed < 600, "{passed}");
        assert_eq!(every.count("acl/denied"), 600 - passed as u64);
    }
}
