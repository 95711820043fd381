//! Source of a chain spec, for reloads while its chain runs.

use super::function::FunctionSpec;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tailwater_api::chain::ChainSettings;
use tailwater_api::error::SpecError;
use tailwater_chain::branches::Branch;

/// Text of a spec.
#[derive(Clone, Copy)]
pub(super) enum Text<'a> {
    /// Text in a file.
    File(&'a Path),
    /// Given text, with a name.
    Given(&'a str, &'a str),
}

/// Source of a spec, and the parts read from it that a reload cannot change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// File that holds the spec; `None` for a text.
    file: Option<PathBuf>,
    /// Text of the spec and its name in errors, if it is not in a file.
    text: Option<(Arc<str>, String)>,
    /// Folder that file names in the spec are relative to.
    base_dir: PathBuf,
    /// Parts that a reload cannot change, as first read.
    fixed: Option<Arc<FixedParts>>,
    /// Rate and burst of a policer that was put in front of the functions, in packets per second and packets.
    cap: Option<(u64, u64)>,
    began: Began,
}

/// Parts of a spec that a reload cannot change: everything but the configurations of functions.
#[derive(Debug, PartialEq)]
struct FixedParts {
    settings: ChainSettings,
    branches: Vec<Branch>,
    /// Names of the functions, with their branches.
    names: Vec<(String, Option<usize>)>,
}

/// Start time of reading. Specs compare as equal regardless of it.
#[derive(Clone, Copy, Debug, Default)]
struct Began(Option<SystemTime>);

impl PartialEq for Began {
    fn eq(&self, _: &Began) -> bool {
        true
    }
}

impl Source {
    /// Creates the source of a spec, reading of which began at this time, from a text.
    pub(super) fn new(text: Text<'_>, base_dir: &Path, began: SystemTime) -> Source {
        let (file, text) = match text {
            Text::File(path) => (Some(path.to_owned()), None),
            Text::Given(text, name) => (None, Some((text.into(), name.to_owned()))),
        };
        Source {
            file,
            text,
            base_dir: base_dir.to_owned(),
            fixed: None,
            cap: None,
            began: Began(Some(began)),
        }
    }

    /// Records the parts that a reload cannot change.
    #[must_use]
    pub(super) fn with_parts(
        mut self,
        settings: &ChainSettings,
        functions: &[FunctionSpec],
        branches: &[Branch],
    ) -> Source {
        let names = functions.iter();
        let names = names.map(|function| (function.name.clone(), function.branch));
        self.fixed = Some(Arc::new(FixedParts {
            settings: settings.clone(),
            branches: branches.to_vec(),
            names: names.collect(),
        }));
        self
    }

    /// Records that a policer was put in front of the functions.
    pub(super) fn set_cap(&mut self, cap: (u64, u64)) {
        self.cap = Some(cap);
    }

    /// Rate and burst of the policer in front of the functions, if one was put there.
    pub(super) fn cap(&self) -> Option<(u64, u64)> {
        self.cap
    }

    /// File that holds the spec, if any.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Time at which reading the spec and the files that it names began. Later writes to these may have been missed.
    pub fn began(&self) -> Option<SystemTime> {
        self.began.0
    }

    /// Folder that file names in the spec are relative to.
    pub(super) fn base_dir(&self) -> &Path {
        &self.base_dir
    }

    /// Text to read again, if there is one.
    pub(super) fn text(&self) -> Option<Text<'_>> {
        let given = self.text.as_ref().map(|(text, name)| Text::Given(text, name));
        self.file().map(Text::File).or(given)
    }

    /// Checks that a spec read again from here has the same parts, except for the configurations of functions.
    pub(super) fn check_unchanged(&self, again: &Source) -> Result<(), SpecError> {
        let (Some(before), Some(after)) = (&self.fixed, &again.fixed) else {
            return Ok(());
        };
        let Some(part) = before.difference(after) else {
            return Ok(());
        };
        let name = self.file.as_ref().map_or(String::new(), |p| p.display().to_string());
        let message = format!("expected {part} as at the start of the run: this change requires a restart");
        Err(SpecError::whole_file(&name, message))
    }
}

impl FixedParts {
    /// Returns the first part that differs.
    fn difference(&self, other: &FixedParts) -> Option<String> {
        if self.names != other.names {
            let listed = self.names.iter().map(|(name, _)| name.as_str());
            let listed = listed.collect::<Vec<_>>().join(", ");
            return Some(format!("the list of functions ({listed})"));
        }
        let (before, after) = (&self.settings, &other.settings);
        let parts = [
            ("metadata", before.metadata == after.metadata),
            ("the branches of classifiers", self.branches == other.branches),
            ("spec.match", before.match_ == after.match_),
            ("spec.slo", before.slo == after.slo),
            ("spec.whenOverloaded", before.when_overloaded == after.when_overloaded),
            ("spec.flows", before.flows == after.flows),
            ("spec.packets", before.packets == after.packets),
            ("spec.cores", before.cores == after.cores),
            ("spec.ports", before.ports == after.ports),
            ("spec.state", before.state == after.state),
        ];
        let different = parts.iter().find(|(_, same)| !same);
        different.map(|(part, _)| (*part).to_owned())
    }
}
