//! Reconfiguration of functions while their chain runs. The spec and the files that it names are read again, and a new
//! version is built off the data path for each function that has changed. If all of them can be built, all are applied.
//! Workers adopt a version between two batches.

use super::ChainBuilder;
use super::kept::KeptFunction;
use crate::kind::{ConfigUpdate, FunctionFactory, PreparedUpdate};
use crate::own::OwnFunction;
use crate::reload::Reload;
use crate::spec::{ChainSpec, FunctionSpec};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tailwater_api::SpecError;

/// Chain that can be reconfigured while it runs.
pub struct Reconfigure {
    /// As read last.
    spec: Mutex<ChainSpec>,
    functions: Vec<(String, Arc<dyn FunctionFactory>)>,
    /// Current configuration of the functions, with the files it comes from.
    present: Mutex<Vec<FunctionSpec>>,
    kept: bool,
    connections: bool,
}

impl Reconfigure {
    /// Collects the functions of these builders, which were created from parts of one spec. Returns `None` without
    /// builders.
    pub fn of<'b>(builders: impl Iterator<Item = &'b ChainBuilder>) -> Option<Reconfigure> {
        let (mut functions, mut present, mut first) = (Vec::new(), Vec::new(), None);
        let (mut kept, mut connections) = (false, false);
        for builder in builders {
            connections |= builder.connections;
            // Functions created elsewhere cannot be reconfigured from here.
            let own = |spec: &&FunctionSpec| {
                builder.functions.iter().any(|(name, _)| *name == spec.name) && !spec.config.is::<OwnFunction>()
            };
            present.extend(builder.read.functions.iter().filter(own).cloned());
            functions.extend(builder.functions.iter().cloned());
            kept |= builder.origin.is_some();
            first.get_or_insert(&builder.read);
        }
        Some(Reconfigure {
            spec: Mutex::new(first?.clone()),
            functions,
            present: Mutex::new(present),
            kept,
            connections,
        })
    }

    fn spec(&self) -> MutexGuard<'_, ChainSpec> {
        self.spec.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the functions' configurations to those of another spec, which later reloads read again. Returns the
    /// changes, as lines for a user.
    ///
    /// # Errors
    /// If the spec differs in anything else, or a change is not possible: one line for each problem. The current
    /// configuration then stays in force as a whole.
    pub fn change_to(&self, spec: &ChainSpec) -> Result<Vec<String>, Vec<String>> {
        let mut current = self.spec();
        current.check_unchanged(spec).map_err(|error| lines(&error))?;
        let applied = self.prepare_from(spec)?.apply();
        // The parts that cannot change are those first read.
        *current = current.with_source_of(spec);
        Ok(applied.news)
    }
}

impl Reconfigure {
    /// Returns the functions that a chain of this spec can keep, if it takes the place of the current one: those with
    /// the same name and configuration. None where what a function is built from differs: the number of flows, or
    /// branches.
    pub fn kept_by(&self, spec: &ChainSpec) -> Vec<KeptFunction> {
        let current = self.spec();
        let is_comparable = current.branches.is_empty()
            && spec.branches.is_empty()
            && current.flows.capacity == spec.flows.capacity
            && current.state.is_none()
            && spec.state.is_none();
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let is_kept = |(name, _): &&(String, _)| {
            let old = present.iter().find(|function| function.name == *name);
            let new = spec.functions.iter().find(|function| function.name == *name);
            is_comparable && old.zip(new).is_some_and(|(old, new)| old.config == new.config)
        };
        let kept = self.functions.iter().filter(is_kept);
        kept.map(|function| KeptFunction {
            function: function.clone(),
            connections: self.connections,
        })
        .collect()
    }

    /// Returns the spec with the current configurations.
    pub fn spec_now(&self) -> ChainSpec {
        self.spec().clone()
    }

    /// Returns the current spec with the configurations of another one, for the functions that both have.
    pub fn with_configurations_of(&self, spec: &ChainSpec) -> ChainSpec {
        let mut next = self.spec().clone();
        for function in &mut next.functions {
            let new = spec.functions.iter().find(|new| new.name == function.name);
            if let Some(new) = new.filter(|new| new.branch == function.branch) {
                *function = new.clone();
            }
        }
        next
    }
}

fn lines(error: &SpecError) -> Vec<String> {
    error.to_string().lines().map(str::to_owned).collect()
}

/// Prepared versions of functions, none applied yet. They block other changes until they are applied or dropped.
pub struct PendingUpdates<'r> {
    /// Current configuration.
    present: MutexGuard<'r, Vec<FunctionSpec>>,
    ready: Vec<PendingUpdate>,
}

/// Pending update of a function.
struct PendingUpdate {
    /// Index of the function in the current configuration.
    at: usize,
    new: FunctionSpec,
    version: PreparedUpdate,
    /// Warnings about the new configuration.
    warnings: Vec<String>,
}

/// Applied update. It also holds the replaced parts of the spec, which may take a while to drop.
pub struct AppliedUpdate {
    /// Changes, as lines for a user; empty if nothing changed.
    pub news: Vec<String>,
    _replaced: Vec<FunctionSpec>,
}

impl PendingUpdates<'_> {
    /// Applies all versions, one function right after the other. Workers adopt them between two batches.
    pub fn apply(mut self) -> AppliedUpdate {
        let all = self.ready.into_iter().map(|next| {
            let (what, apply) = (next.version.summary, next.version.apply);
            ((next.at, next.new), (what, next.warnings), apply())
        });
        // Applies all versions before any further work on one of them.
        let all: Vec<_> = all.collect();
        let (mut news, mut replaced) = (Vec::new(), Vec::new());
        for ((at, new), (what, warnings), (number, left_out)) in all {
            let name = &new.name;
            let left_out = left_out.map_or(String::new(), |left_out| format!(", {left_out}"));
            news.push(format!("{name}: {what} in force (version {number}){left_out}"));
            news.extend(warnings.iter().map(|line| format!("{name}: {line}")));
            replaced.push(std::mem::replace(&mut self.present[at], new));
        }
        AppliedUpdate {
            news,
            _replaced: replaced,
        }
    }
}

impl Reconfigure {
    /// Reads the files again and builds a version for each changed function, off the data path. This is the slow part
    /// of a change. Nothing takes effect before it is [applied](PendingUpdates::apply).
    ///
    /// # Errors
    /// If a file or configuration is invalid: one line for each problem.
    pub fn prepare(&self) -> Result<PendingUpdates<'_>, Vec<String>> {
        let spec = self.spec().read_again();
        self.prepare_from(&spec.map_err(|error| lines(&error))?)
    }

    /// Builds a version for each function that a spec has with another configuration.
    fn prepare_from(&self, spec: &ChainSpec) -> Result<PendingUpdates<'_>, Vec<String>> {
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut ready, mut errors) = (Vec::new(), Vec::new());
        for (at, old) in present.iter().enumerate() {
            let new = spec.functions.iter().find(|new| new.name == old.name);
            let factory = self.functions.iter().find(|(name, _)| *name == old.name);
            let (Some(new), Some((name, factory))) = (new, factory) else {
                continue;
            };
            if new.config == old.config {
                continue;
            }
            let update = ConfigUpdate {
                old: old.config.as_any(),
                new: new.config.as_any(),
                has_external_state: self.kept,
            };
            match factory.prepare_update(&update) {
                Ok(version) => ready.push(PendingUpdate {
                    at,
                    new: new.clone(),
                    version,
                    warnings: [new.config.warnings(), &new.config.notices()].concat(),
                }),
                Err(error) => errors.push(format!("{name}: {error}")),
            }
        }
        match errors.is_empty() {
            true => Ok(PendingUpdates { present, ready }),
            false => Err(errors),
        }
    }
}

impl Reload for Reconfigure {
    fn files(&self) -> Vec<PathBuf> {
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let named = present.iter().flat_map(|function| function.files.clone());
        let spec = self.spec().source.file().map(PathBuf::from);
        let files: BTreeSet<PathBuf> = named.chain(spec).collect();
        files.into_iter().collect()
    }

    fn reload(&self) -> Result<Vec<String>, Vec<String>> {
        Ok(self.prepare()?.apply().news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classifier::ClassifierTable;

    /// Prepared versions take effect together when they are applied, and not before. Dropping them changes nothing.
    #[test]
    fn what_is_ready_waits_to_be_put() {
        let path = std::env::temp_dir().join(format!("tailwater-ready-{}", std::process::id()));
        let write = |port: u16| {
            let classifier = |name: &str| {
                format!("{{name: {name}, classifier: {{default: next, rules: [{{to: send, sourcePorts: {port}}}]}}}}")
            };
            let text = format!(
                "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: ready}}\nspec:\n  \
                 functions: [{}, {}]\n  slo: {{latency: 200us}}\n",
                classifier("one"),
                classifier("two")
            );
            std::fs::write(&path, text).unwrap();
        };
        write(1);
        let spec = ChainSpec::read(&path).unwrap();
        let builder = ChainBuilder::new(&spec, &spec.rss(), 1).unwrap();
        let numbers = || ["one", "two"].map(|name| builder.table::<ClassifierTable>(name).unwrap().live().number());
        let reconfigure = Reconfigure::of(std::iter::once(&builder)).unwrap();
        write(2);
        let changes = reconfigure.prepare().unwrap();
        assert_eq!(numbers(), [1, 1]);
        drop(changes);
        assert_eq!(numbers(), [1, 1]);
        let changes = reconfigure.prepare().unwrap();
        let told = changes.apply().news;
        assert_eq!(numbers(), [2, 2]);
        let new = told.iter().filter(|line| line.contains("in force (version 2)"));
        assert_eq!(new.count(), 2, "{told:?}");
        // Nothing has changed this time.
        assert_eq!(reconfigure.prepare().unwrap().apply().news, [""; 0]);
        assert_eq!(numbers(), [2, 2]);
        std::fs::remove_file(&path).unwrap();
    }
}
