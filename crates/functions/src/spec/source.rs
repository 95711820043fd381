//! Source of a chain spec, for reloads while its chain runs.

use super::chain::ChainSpec;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tailwater_api::error::SpecError;

/// Text of a spec.
pub(super) enum Text<'a> {
    /// Text in a file.
    File(&'a Path),
    /// Given text, with a name.
    Given(&'a str, &'a str),
}

/// Source of a spec, and the settings that were read from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// File that holds the spec; `None` for a text.
    file: Option<PathBuf>,
    /// Text of the spec and its name in errors, if it is not in a file.
    text: Option<(Arc<str>, String)>,
    /// Folder that file names in the spec are relative to.
    base_dir: PathBuf,
    /// Spec as first read, without its functions' configurations.
    read: Option<Arc<ChainSpec>>,
    /// Names of its functions, with their branches.
    names: Vec<(String, Option<usize>)>,
    began: Began,
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
    /// Creates the source of a spec that has just been read from a text.
    pub(super) fn new(spec: &ChainSpec, text: Text<'_>, base_dir: &Path, began: SystemTime) -> Source {
        let (file, text) = match text {
            Text::File(path) => (Some(path.to_owned()), None),
            Text::Given(text, name) => (None, Some((text.into(), name.to_owned()))),
        };
        Source {
            file,
            text,
            base_dir: base_dir.to_owned(),
            read: Some(Arc::new(settings(spec))),
            names: names(spec),
            began: Began(Some(began)),
        }
    }

    /// File that holds the spec, if any.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Time at which reading the spec and the files that it names began. Later writes to these may have been missed.
    pub fn began(&self) -> Option<SystemTime> {
        self.began.0
    }

    /// Reads the spec and the files that it names again.
    ///
    /// # Errors
    /// If the spec is invalid, or if it differs from the first one in anything but the configurations of functions.
    pub fn read_again(&self) -> Result<ChainSpec, SpecError> {
        let spec = match (&self.file, &self.text) {
            (Some(path), _) => ChainSpec::read(path)?,
            (None, Some((text, name))) => ChainSpec::parse(text, name, &self.base_dir)?,
            (None, None) => {
                let message = "expected a spec with a file or a text to read again, found neither";
                return Err(SpecError::whole_file("the spec", message.to_owned()));
            }
        };
        let refuse = |what: &str| {
            let name = self.file.as_ref().map_or(String::new(), |p| p.display().to_string());
            let message = format!("expected {what} as at the start of the run: this change requires a restart");
            Err(SpecError::whole_file(&name, message))
        };
        if names(&spec) != self.names {
            let listed = self.names.iter().map(|(name, _)| name.as_str());
            return refuse(&format!(
                "the list of functions ({})",
                listed.collect::<Vec<_>>().join(", ")
            ));
        }
        let Some(before) = &self.read else {
            return Ok(spec);
        };
        let parts = [
            ("metadata", spec.metadata == before.metadata),
            ("the branches of classifiers", spec.branches == before.branches),
            ("spec.match", spec.match_ == before.match_),
            ("spec.slo", spec.slo == before.slo),
            ("spec.flows", spec.flows == before.flows),
            ("spec.packets", spec.packets == before.packets),
            ("spec.ports", spec.ports == before.ports),
            ("spec.state", spec.state == before.state),
        ];
        match parts.iter().find(|(_, same)| !same) {
            Some((part, _)) => refuse(part),
            None => Ok(spec),
        }
    }
}

fn names(spec: &ChainSpec) -> Vec<(String, Option<usize>)> {
    let functions = spec.functions.iter();
    functions
        .map(|function| (function.name.clone(), function.branch))
        .collect()
}

/// Copies the spec without its functions.
fn settings(spec: &ChainSpec) -> ChainSpec {
    ChainSpec {
        name: spec.name.clone(),
        metadata: spec.metadata.clone(),
        match_: spec.match_.clone(),
        functions: Vec::new(),
        branches: spec.branches.clone(),
        ports: spec.ports.clone(),
        state: spec.state.clone(),
        source: Source::default(),
        ..*spec
    }
}
