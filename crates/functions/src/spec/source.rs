//! Where a chain spec was read, so that it can be read again while its chain runs.

use super::chain::ChainSpec;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tailwater_api::error::SpecError;

/// The text of a spec.
pub(super) enum Text<'a> {
    /// In a file.
    File(&'a Path),
    /// Given, under a name.
    Given(&'a str, &'a str),
}

/// Where a spec was read, and what it said there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// The file that it is in; `None` for a text.
    file: Option<PathBuf>,
    /// The text, if it is not in a file, and its name in errors.
    text: Option<(Arc<str>, String)>,
    /// The folder that names of files in it are relative to.
    base_dir: PathBuf,
    /// The spec as it was read, without what is in its functions.
    read: Option<Arc<ChainSpec>>,
    /// Its functions' names, with their branches.
    names: Vec<(String, Option<usize>)>,
    began: Began,
}

/// When reading began. It makes no difference between specs.
#[derive(Clone, Copy, Debug, Default)]
struct Began(Option<SystemTime>);

impl PartialEq for Began {
    fn eq(&self, _: &Began) -> bool {
        true
    }
}

impl Source {
    /// Of a spec that has just been read from a text.
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

    /// The file that the spec is in, if it is in one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// When reading the spec, and the files that it names, began: what was written to them later may not have been
    /// read.
    pub fn began(&self) -> Option<SystemTime> {
        self.began.0
    }

    /// Reads the spec again, and the files that it names.
    ///
    /// # Errors
    /// What is wrong with it; and whatever differs from what was read at first, but for what is said of each
    /// function.
    pub fn read_again(&self) -> Result<ChainSpec, SpecError> {
        let spec = match (&self.file, &self.text) {
            (Some(path), _) => ChainSpec::read(path)?,
            (None, Some((text, name))) => ChainSpec::parse(text, name, &self.base_dir)?,
            (None, None) => {
                let message = "was not read from anywhere, and cannot be read again";
                return Err(SpecError::whole_file("the spec", message.to_owned()));
            }
        };
        let refuse = |what: &str| {
            let name = self.file.as_ref().map_or(String::new(), |p| p.display().to_string());
            let message = format!("expected {what} as it was when the run began: such a change takes a new run");
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
            ("what classifiers branch to", spec.branches == before.branches),
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

/// The spec without its functions.
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
