//! The rules of a classifier, and where they send packets.

use crate::acl::classifier::ClassifierError;
use crate::acl::{self, Rule};
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::branches::{ByWay, Path, START, Ways};
use tailwater_chain::live::Live;
use tailwater_net::FlowKey;

/// One version of the rules, ready to be applied. Targets are places in the table's list.
pub struct ClassifierRules {
    classifier: acl::Classifier,
    /// The target of each rule, in order.
    targets: Vec<u8>,
    /// That of what no rule matches.
    default: u8,
    /// Whether rules hold for both directions.
    both: bool,
}

/// Room for a batch of keys and the rules that match them.
pub(super) struct Scratch {
    pub(super) keys: [FlowKey; MAX_BATCH],
    found: [[Option<u32>; MAX_BATCH]; 2],
    pub(super) targets: [u8; MAX_BATCH],
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch {
            keys: [FlowKey::default(); MAX_BATCH],
            found: [[None; MAX_BATCH]; 2],
            targets: [0; MAX_BATCH],
        }
    }
}

impl ClassifierRules {
    /// Rules, each with its target, and the target of what none matches. With `both`, a rule that matches one direction of
    /// a connection matches the other one, too: the first of the list that matches either decides about both.
    ///
    /// # Errors
    /// If there are too many, or too intricate ones.
    pub fn new(rules: &[Rule], targets: Vec<u8>, default: u8, both: bool) -> Result<ClassifierRules, ClassifierError> {
        Ok(ClassifierRules {
            classifier: acl::Classifier::new(rules)?,
            targets,
            default,
            both,
        })
    }

    /// Finds the targets of the first `count` keys.
    pub(super) fn find(&self, scratch: &mut Scratch, count: usize) {
        let Scratch { keys, found, targets } = scratch;
        let [there, back] = found;
        let (keys, there) = (&mut keys[..count], &mut there[..count]);
        self.classifier.classify_batch(keys, there);
        if self.both {
            keys.iter_mut().for_each(|key| *key = key.reversed());
            let back = &mut back[..count];
            self.classifier.classify_batch(keys, back);
            for (there, back) in there.iter_mut().zip(back) {
                // No rule is behind all rules.
                let first = there.unwrap_or(u32::MAX).min(back.unwrap_or(u32::MAX));
                *there = (first != u32::MAX).then_some(first);
            }
        }
        for (target, rule) in targets.iter_mut().zip(there) {
            let of_rule = rule.and_then(|rule| self.targets.get(rule as usize));
            *target = of_rule.copied().unwrap_or(self.default);
        }
    }
}

/// Rules that all workers share, and that can be replaced under them; and the targets there are, which stay.
pub struct ClassifierTable {
    rules: Live<ClassifierRules>,
    /// Where packets go on from each way through the chain, for each target.
    onward: Vec<ByWay<u8>>,
    notes: &'static [&'static str],
}

impl ClassifierTable {
    /// Rules for these targets: each with its name, and its branch's place among those of the chain, if it is one.
    /// `ways` are the chain's, and the classifier is in it.
    ///
    /// # Panics
    /// If a rule's target is none of them.
    pub(crate) fn new(rules: ClassifierRules, targets: &[(&str, Option<usize>)], ways: &Ways) -> ClassifierTable {
        let known = |target: &u8| usize::from(*target) < targets.len();
        assert!(
            rules.targets.iter().chain([&rules.default]).all(known),
            "a rule leads nowhere"
        );
        let onward = |(_, branch): &(&str, Option<usize>)| {
            let on = |path: Path| path.and(branch.map_or(Path::START, Path::of));
            ways.each(START, |path| ways.number(on(path)).unwrap_or(START))
        };
        // Reports have names that live as long as the program: a few bytes for each branch of a chain, once a run.
        let note = |(name, _): &(&str, _)| &*format!("to-{name}").leak();
        ClassifierTable {
            rules: Live::new(rules),
            onward: targets.iter().map(onward).collect(),
            notes: targets.iter().map(note).collect::<Vec<_>>().leak(),
        }
    }

    /// The rules, to be replaced by others for the same ways: each flow is decided about anew with its next packet.
    pub fn live(&self) -> &Live<ClassifierRules> {
        &self.rules
    }

    /// What the classifier counts, for each way.
    pub(super) fn notes(&self) -> &'static [&'static str] {
        self.notes
    }

    /// How many targets there are.
    pub(super) fn targets(&self) -> usize {
        self.onward.len()
    }

    /// The way of a packet that has come one way and is sent to a target.
    #[inline]
    pub(super) fn onward(&self, way: u8, target: usize) -> u8 {
        self.onward[target][usize::from(way)]
    }
}
