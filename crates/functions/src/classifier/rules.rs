//! Rules of a classifier and their targets.

use crate::acl::classifier::ClassifierError;
use crate::acl::{self, Rule};
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::branches::{BranchSet, ByPath, PathTable, START};
use tailwater_chain::live::Live;
use tailwater_net::FlowKey;

/// One compiled version of the rules. Targets are indices into the table's list.
pub struct ClassifierRules {
    classifier: acl::Classifier,
    /// Target of each rule, in order.
    targets: Vec<u8>,
    /// Target of packets that no rule matches.
    default: u8,
    /// `true` if rules match both directions of a connection.
    both: bool,
}

/// Scratch space for a batch of keys and the rules that match them.
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
    /// Compiles `rules`, each with its target, and the `default` target of packets that no rule matches. With `both`, a
    /// rule that matches one direction of a connection also matches the other: the first rule that matches either
    /// direction decides for both.
    ///
    /// # Errors
    /// If there are too many rules, or if they are too complex to compile.
    pub fn new(rules: &[Rule], targets: Vec<u8>, default: u8, both: bool) -> Result<ClassifierRules, ClassifierError> {
        Ok(ClassifierRules {
            classifier: acl::Classifier::new(rules)?,
            targets,
            default,
            both,
        })
    }

    /// Index of the rule that matches, if one does.
    pub(super) fn rule(&self, key: &FlowKey) -> Option<u32> {
        let there = self.classifier.classify(key);
        let back = self.both.then(|| self.classifier.classify(&key.reversed()));
        there.into_iter().chain(back.flatten()).min()
    }

    /// Target of a rule's packets, or of packets that no rule matches.
    pub(super) fn target(&self, rule: Option<u32>) -> usize {
        let of_rule = rule.and_then(|rule| self.targets.get(rule as usize));
        usize::from(of_rule.copied().unwrap_or(self.default))
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
                // `u32::MAX` stands for no match: it sorts after all rules.
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

/// Rules shared by all workers, and the list of targets. The rules can be replaced at run time, the targets cannot.
pub struct ClassifierTable {
    rules: Live<ClassifierRules>,
    /// For each target, the path on which a packet continues, by the path on which it arrived.
    next_path: Vec<ByPath<u8>>,
    counters: &'static [&'static str],
}

impl ClassifierTable {
    /// Creates a table for these targets. Each has a name and, if it is a branch, the branch's index in the chain.
    /// `paths` are the paths of the chain that contains the classifier.
    ///
    /// # Panics
    /// If a rule's target is not in the list.
    pub(crate) fn new(rules: ClassifierRules, targets: &[(&str, Option<usize>)], paths: &PathTable) -> ClassifierTable {
        let known = |target: &u8| usize::from(*target) < targets.len();
        assert!(
            rules.targets.iter().chain([&rules.default]).all(known),
            "a rule leads nowhere"
        );
        let onward = |(_, branch): &(&str, Option<usize>)| {
            let on = |path: BranchSet| path.and(branch.map_or(BranchSet::START, BranchSet::with_branch));
            paths.each(START, |path| paths.number(on(path)).unwrap_or(START))
        };
        // Reports need names that live as long as the program: a few leaked bytes per branch, once per run.
        let note = |(name, _): &(&str, _)| &*format!("to-{name}").leak();
        ClassifierTable {
            rules: Live::new(rules),
            next_path: targets.iter().map(onward).collect(),
            counters: targets.iter().map(note).collect::<Vec<_>>().leak(),
        }
    }

    /// Returns the live rules, which can be replaced by others for the same targets. After a replacement, each flow is
    /// decided again on its next packet.
    pub fn live(&self) -> &Live<ClassifierRules> {
        &self.rules
    }

    /// Returns the names of the counters, one for each target.
    pub(super) fn counters(&self) -> &'static [&'static str] {
        self.counters
    }

    /// Returns the number of targets.
    pub(super) fn targets(&self) -> usize {
        self.next_path.len()
    }

    /// Returns the path of a packet that arrived on path `path` and is sent to `target`.
    #[inline]
    pub(super) fn next_path(&self, path: u8, target: usize) -> u8 {
        self.next_path[target][usize::from(path)]
    }
}
