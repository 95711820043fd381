//! Rule sources of a detection function, and the rules loaded from them.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_api::error::SpecError;
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
    /// If `true`, an invalid rule in a file is an error; otherwise it is not loaded, and the others are.
    pub strict: bool,
}

/// Rules parsed from their sources.
#[derive(Clone)]
pub struct Loaded {
    /// The rules.
    pub rules: Arc<Vec<Rule>>,
    /// Unsupported features, each with the number of rules that use it, most frequent first.
    pub skipped: Vec<(String, usize)>,
    /// Errors of invalid rules that were not loaded, each with the number of rules that have it, most frequent first.
    /// Each names the position of the first of them.
    pub invalid: Vec<(String, usize)>,
    /// Texts the rules were parsed from. Equality and `Debug` compare and show these.
    texts: Arc<Vec<Vec<u8>>>,
}

impl Loaded {
    /// Collects parsed rules, and the skipped ones counted by reason.
    pub(crate) fn new(rules: Vec<Rule>, reasons: BTreeMap<String, usize>, texts: Vec<Vec<u8>>) -> Loaded {
        let mut skipped: Vec<_> = reasons.into_iter().collect();
        skipped.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Loaded {
            rules: Arc::new(rules),
            skipped,
            invalid: Vec::new(),
            texts: Arc::new(texts),
        }
    }

    /// Adds the errors of invalid rules that were not loaded.
    pub(crate) fn with_invalid(mut self, invalid: InvalidRules) -> Loaded {
        self.invalid = invalid.errors.into_values().collect();
        if invalid.more > 0 {
            self.invalid.push(("further errors".to_owned(), invalid.more));
        }
        self.invalid.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        self
    }

    /// Fingerprint of the texts: the same for the same texts in the same version of the program.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (env!("CARGO_PKG_VERSION"), &*self.texts, self.rules.len()).hash(&mut hasher);
        hasher.finish()
    }

    /// Returns lines for the user: number of rules not loaded, and the reasons.
    pub fn notices(&self) -> Vec<String> {
        let sum = |list: &[(String, usize)]| list.iter().map(|(_, count)| count).sum::<usize>();
        let (skipped, invalid) = (sum(&self.skipped), sum(&self.invalid));
        let all = self.rules.len() + skipped + invalid;
        let mut lines = Vec::new();
        if skipped > 0 {
            lines.push(format!("{skipped} of {all} rules not loaded, by unsupported feature:"));
            let reasons = self.skipped.iter();
            lines.extend(reasons.map(|(reason, count)| format!("{count:6} {reason}")));
        }
        if invalid > 0 {
            lines.push(format!(
                "{invalid} of {all} rules not loaded since they are invalid (strict: true refuses them):"
            ));
            let errors = self.invalid.iter().take(MAX_LISTED);
            lines.extend(errors.map(|(error, count)| format!("{count:6} {error}")));
            let more = sum(self.invalid.get(MAX_LISTED..).unwrap_or_default());
            if more > 0 {
                lines.push(format!("{more:6} with other errors"));
            }
        }
        lines
    }
}

/// Largest number of different errors that are listed.
const MAX_LISTED: usize = 20;
/// Largest number of different errors that are kept.
const MAX_ERRORS: usize = 1000;

/// Errors of invalid rules, counted by message.
#[derive(Debug, Default)]
pub(crate) struct InvalidRules {
    /// By message: the first error's line, and the number of rules.
    errors: BTreeMap<String, (String, usize)>,
    more: usize,
}

impl InvalidRules {
    /// Adds an error.
    pub(crate) fn add(&mut self, error: &SpecError) {
        if let Some((_, count)) = self.errors.get_mut(&error.message) {
            *count += 1;
        } else if self.errors.len() < MAX_ERRORS {
            self.errors.insert(error.message.clone(), (error.to_line(), 1));
        } else {
            self.more += 1;
        }
    }

    /// Returns an error, if there are any.
    pub(crate) fn first(&self) -> Option<&str> {
        self.errors.values().next().map(|(error, _)| error.as_str())
    }

    /// Adds errors that were not reported individually.
    pub(crate) fn add_more(&mut self, count: usize) {
        self.more += count;
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
