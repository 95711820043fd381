//! Where rules come from, and what became of them.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_ids::language::Variables;
use tailwater_ids::rule::Rule;

/// Classes of rules: what each is about, and how grave it is, from 1 on.
pub type Classes = BTreeMap<String, (String, u8)>;

/// Where rules come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Files, as they are found from here.
    pub files: Vec<PathBuf>,
    /// Rules that stand in the spec.
    pub inline: Vec<String>,
    /// What variables mean.
    pub variables: Variables,
    /// Classes of rules.
    pub classes: Classes,
    /// Rules that drop, whatever they say: by number, or by class.
    pub drop_sids: Vec<u32>,
    /// The same by class.
    pub drop_classes: Vec<String>,
}

/// Rules that were read.
#[derive(Clone)]
pub struct Loaded {
    /// The rules.
    pub rules: Arc<Vec<Rule>>,
    /// What is not supported, with how many rules that concerns, the most first.
    pub skipped: Vec<(String, usize)>,
    /// The texts that they were read from: what tells rules apart.
    texts: Arc<Vec<String>>,
}

impl Loaded {
    /// Rules, and why others are not among them.
    pub(crate) fn new(rules: Vec<Rule>, reasons: BTreeMap<String, usize>, texts: Vec<String>) -> Loaded {
        let mut skipped: Vec<_> = reasons.into_iter().collect();
        skipped.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Loaded {
            rules: Arc::new(rules),
            skipped,
            texts: Arc::new(texts),
        }
    }

    /// What a user is to know: what was not loaded, and why.
    pub fn notices(&self) -> Vec<String> {
        let skipped: usize = self.skipped.iter().map(|(_, count)| count).sum();
        if skipped == 0 {
            return Vec::new();
        }
        let all = self.rules.len() + skipped;
        let mut lines = vec![format!(
            "{skipped} of {all} rules are not loaded, for they ask for what is not supported:"
        )];
        let reasons = self.skipped.iter();
        lines.extend(reasons.map(|(reason, count)| format!("{count:6} {reason}")));
        lines
    }
}

/// Texts may have many megabytes: a number stands for them.
impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hasher = DefaultHasher::new();
        self.texts.hash(&mut hasher);
        let (rules, texts) = (self.rules.len(), hasher.finish());
        write!(f, "Loaded {{ rules: {rules}, texts: {texts:#018x} }}")
    }
}

impl PartialEq for Loaded {
    fn eq(&self, other: &Loaded) -> bool {
        self.texts == other.texts && self.rules.len() == other.rules.len()
    }
}

impl Eq for Loaded {}
