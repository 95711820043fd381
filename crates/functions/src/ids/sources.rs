//! Rule sources of a detection function, and the rules loaded from them.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_ids::language::Variables;
use tailwater_ids::rule::Rule;

/// Rule classes (`classtype`): name to description and severity, 1 the most severe.
pub type Classes = BTreeMap<String, (String, u8)>;

/// Configured sources of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Rule files, as paths relative to the working directory.
    pub files: Vec<PathBuf>,
    /// Rules written in the spec.
    pub inline: Vec<String>,
    /// Values of address and port variables.
    pub variables: Variables,
    /// Classes of rules.
    pub classes: Classes,
    /// Rules that drop regardless of their action, by `sid`.
    pub drop_sids: Vec<u32>,
    /// Rules that drop regardless of their action, by class.
    pub drop_classes: Vec<String>,
}

/// Rules parsed from their sources.
#[derive(Clone)]
pub struct Loaded {
    /// The rules.
    pub rules: Arc<Vec<Rule>>,
    /// Unsupported features, each with the number of rules that use it, most frequent first.
    pub skipped: Vec<(String, usize)>,
    /// Texts the rules were parsed from. Equality and `Debug` compare and show these.
    texts: Arc<Vec<String>>,
}

impl Loaded {
    /// Collects parsed rules, and the skipped ones counted by reason.
    pub(crate) fn new(rules: Vec<Rule>, reasons: BTreeMap<String, usize>, texts: Vec<String>) -> Loaded {
        let mut skipped: Vec<_> = reasons.into_iter().collect();
        skipped.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Loaded {
            rules: Arc::new(rules),
            skipped,
            texts: Arc::new(texts),
        }
    }

    /// Returns lines for the user: number of rules not loaded, and the reasons.
    pub fn notices(&self) -> Vec<String> {
        let skipped: usize = self.skipped.iter().map(|(_, count)| count).sum();
        if skipped == 0 {
            return Vec::new();
        }
        let all = self.rules.len() + skipped;
        let mut lines = vec![format!("{skipped} of {all} rules not loaded, by unsupported feature:")];
        let reasons = self.skipped.iter();
        lines.extend(reasons.map(|(reason, count)| format!("{count:6} {reason}")));
        lines
    }
}

/// Prints a hash in place of the texts, which can be many megabytes.
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
