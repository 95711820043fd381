//! Manager of a server: requests in, the next generation out, or nothing changed.

mod consolidating;
mod observing;
mod profiling;
mod promises;
mod table;
mod watched;

use crate::admission;
use crate::chain::{AppliedChain, Manifest};
use crate::configuration::{Configuration, ControlError};
use crate::events::{EventRing, Severity};
use crate::generation::{Store, StoredChain, StoredGeneration};
use crate::machine::Machine;
use crate::reconcile::Current;
use crate::request::{Applied, ApplyRequest};
use crate::status::{ChainStatus, Phase, Snapshot};
use crate::steps::{FailedStep, Step, between, enact, undo};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use table::StatusTable;
use tailwater_api::server::ServerSpec;
use tailwater_net::Nanos;
use watched::Watched;

/// Manager of a server's chains.
pub struct Manager<M, S> {
    server: ServerSpec,
    machine: M,
    store: S,
    current: Configuration,
    /// Chains of the stored generation that this version of the program cannot read. They stay stored.
    unreadable: Vec<StoredChain>,
    table: StatusTable,
    /// Promises that are compared with what is measured, by chain.
    watched: BTreeMap<String, Watched>,
    /// Chains whose profiles are to be measured anew.
    drifted: BTreeSet<String>,
}

impl<M: Machine, S: Store> Manager<M, S> {
    /// Creates the manager of a server without chains. Calls `publish` with each new state.
    pub fn new(
        server: ServerSpec,
        machine: M,
        store: S,
        now: Nanos,
        publish: impl FnMut(Snapshot) + Send + 'static,
    ) -> Manager<M, S> {
        let table = StatusTable::new(&server.metadata.name, now, Box::new(publish));
        Manager {
            server,
            machine,
            store,
            current: Configuration::default(),
            unreadable: Vec::new(),
            table,
            watched: BTreeMap::new(),
            drifted: BTreeSet::new(),
        }
    }

    /// Starts the chains of a stored generation. One that cannot be started has failed, and the others run.
    /// None gets packets before the others have started.
    pub fn resume(&mut self, stored: StoredGeneration, now: Nanos) {
        self.machine.begin_change(true);
        self.current.generation = stored.number;
        for chain in stored.chains {
            match AppliedChain::parse(&chain.manifest, &self.server, chain.origin) {
                Ok(parsed) => {
                    let parsed = AppliedChain {
                        forced: chain.forced,
                        drained: chain.drained,
                        placement: admission::Placement::on(chain.cores),
                        ..parsed
                    };
                    let parsed = self.admit_again(parsed, now);
                    self.resume_chain(Arc::new(parsed), now);
                }
                Err(error) => {
                    let message = format!("the stored chain cannot be read: {error}");
                    self.table
                        .event(now, Severity::Warning, Some(&chain.name), "Unreadable", &message);
                    self.unreadable.push(chain);
                }
            }
        }
        self.machine.complete_change();
        self.table.publish(self.current.generation);
    }

    /// Decides about a chain of a stored generation. One that does not fit any more runs without a promise.
    fn admit_again(&mut self, chain: AppliedChain, now: Nanos) -> AppliedChain {
        let server = self.server.admission.as_ref();
        let (chain, lost) = admission::admit_stored(&self.machine, server, &self.current, chain);
        if let Some(reason) = lost {
            self.table
                .event(now, Severity::Warning, Some(&chain.name), "PromiseLost", &reason);
            self.profile_again(&chain);
        }
        chain
    }

    fn resume_chain(&mut self, chain: Arc<AppliedChain>, now: Nanos) {
        let beside: Vec<&AppliedChain> = self.current.running().map(|chain| &**chain).collect();
        let started = match chain.drained {
            true => Ok(()),
            false => self
                .machine
                .check(&chain, &beside)
                .and_then(|()| self.machine.start(&chain)),
        };
        let generation = self.current.generation;
        let (phase, reason) = match &started {
            Ok(()) if chain.drained => (Phase::Drained, String::new()),
            Ok(()) => (Phase::Starting, String::new()),
            Err(refusal) => (Phase::Failed, refusal.to_string()),
        };
        let mut status = ChainStatus::new(Arc::clone(&chain), phase, generation, now);
        if phase == Phase::Failed {
            status.enter(Phase::Failed, &reason, now);
            self.table
                .event(now, Severity::Warning, Some(&chain.name), "Failed", &reason);
        }
        self.table.insert(status);
        self.current.chains.insert(chain.name.clone(), chain);
    }

    /// Applies manifests: all of them, or none. Returns the outcome for each.
    ///
    /// # Errors
    /// A manifest is wrong or refused, or a step failed: nothing is changed.
    pub fn apply(&mut self, request: &ApplyRequest, now: Nanos) -> Result<Vec<Applied>, ControlError> {
        let failed = self.failed();
        let next = self.with(&failed).apply(request);
        let next = next.and_then(|next| self.profiled(next, request.dry_run));
        let next = next.and_then(|next| self.admitted(next));
        self.enter_counted(next, &failed, request.dry_run, now)
    }

    /// Makes the chains of the specification's files and folders these.
    ///
    /// # Errors
    /// Same as [`apply`](Self::apply).
    pub fn apply_listed(&mut self, manifests: &[Manifest], now: Nanos) -> Result<Vec<Applied>, ControlError> {
        let failed = self.failed();
        let next = self.with(&failed).listed(manifests);
        let next = next.and_then(|next| self.profiled(next, false));
        let next = next.and_then(|next| self.admitted(next));
        self.enter_counted(next, &failed, false, now)
    }

    /// Chooses the chains' cores, and says so in the results of an apply.
    fn admitted(
        &self,
        (next, mut applied): (Configuration, Vec<Applied>),
    ) -> Result<(Configuration, Vec<Applied>), ControlError> {
        let next = self.admit(next)?;
        admission::tell(&next, &mut applied);
        Ok((next, applied))
    }

    /// Makes the configuration of an apply the current one, and counts it.
    fn enter_counted(
        &mut self,
        next: Result<(Configuration, Vec<Applied>), ControlError>,
        failed: &BTreeSet<String>,
        dry_run: bool,
        now: Nanos,
    ) -> Result<Vec<Applied>, ControlError> {
        let entered = next.and_then(|(next, applied)| {
            self.enter(next, failed, dry_run, now)?;
            Ok(applied)
        });
        if !dry_run {
            self.table.count_apply(entered.is_ok());
        }
        entered
    }

    /// Deletes chains: all of them, or none. They are drained.
    ///
    /// # Errors
    /// One of them does not exist or comes from a watched folder, or a step failed.
    pub fn delete(&mut self, names: &[String], dry_run: bool, now: Nanos) -> Result<(), ControlError> {
        let is_unreadable = |name: &String| self.unreadable.iter().any(|chain| chain.name == *name);
        let (unreadable, names): (Vec<String>, Vec<String>) = names.iter().cloned().partition(is_unreadable);
        let failed = self.failed();
        let next = self.with(&failed).delete(&names)?;
        if dry_run {
            return Ok(());
        }
        let before = self.unreadable.clone();
        self.unreadable.retain(|chain| !unreadable.contains(&chain.name));
        let result = self.admit(next).and_then(|next| self.enter(next, &failed, false, now));
        if result.is_err() {
            self.unreadable = before;
        }
        result
    }

    /// Drains a chain, which stays in the configuration.
    ///
    /// # Errors
    /// It does not exist, or the step failed.
    pub fn drain(&mut self, name: &str, now: Nanos) -> Result<(), ControlError> {
        let failed = self.failed();
        let next = self.with(&failed).drain(name)?;
        let next = self.admit(next)?;
        self.enter(next, &failed, false, now)
    }

    /// Number of the current generation.
    pub fn generation(&self) -> u64 {
        self.current.generation
    }

    /// Current configuration as it is stored.
    pub fn stored_generation(&self) -> StoredGeneration {
        let mut stored = StoredGeneration::from(&self.current);
        stored.chains.extend(self.unreadable.iter().cloned());
        stored.chains.sort_by(|one, two| one.name.cmp(&two.name));
        stored
    }

    /// Current configuration.
    pub fn configuration(&self) -> &Configuration {
        &self.current
    }

    /// Specification of the server.
    pub fn server(&self) -> &ServerSpec {
        &self.server
    }

    /// Current state, as the control API reads it.
    pub fn snapshot(&self) -> Snapshot {
        self.table.snapshot(self.current.generation)
    }

    /// Latest events.
    pub fn events(&self) -> &EventRing {
        self.table.events()
    }

    /// Adds an event of the server, and publishes it.
    pub fn report(&mut self, severity: Severity, reason: &'static str, message: &str, now: Nanos) {
        self.table.event(now, severity, None, reason, message);
        self.table.publish(self.current.generation);
    }

    /// The machine.
    pub fn machine(&mut self) -> &mut M {
        &mut self.machine
    }

    fn with<'a>(&'a self, failed: &'a BTreeSet<String>) -> Current<'a> {
        Current {
            server: &self.server,
            configuration: &self.current,
            failed,
        }
    }

    /// Names of chains that should run and have failed.
    fn failed(&self) -> BTreeSet<String> {
        let failed = self.table.chains().filter(|chain| chain.phase == Phase::Failed);
        failed.map(|chain| chain.chain.name.clone()).collect()
    }

    /// Decides about the core and the promise of each chain that differs from the current configuration.
    fn admit(&self, next: Configuration) -> Result<Configuration, ControlError> {
        admission::admit(&self.machine, self.server.admission.as_ref(), &self.current, next)
    }

    /// Makes a configuration the current one, after checking it.
    fn enter(
        &mut self,
        next: Configuration,
        failed: &BTreeSet<String>,
        dry_run: bool,
        now: Nanos,
    ) -> Result<(), ControlError> {
        let steps = between(&self.current, &next, failed);
        self.check(&next, &steps)?;
        if dry_run || next.generation == self.current.generation {
            return Ok(());
        }
        self.enter_by(next, &steps, now)
    }

    /// Makes a configuration the current one by these steps, which have been checked.
    ///
    /// The next generation is written before the steps and gets its name after them: a full disk changes nothing.
    fn enter_by(&mut self, next: Configuration, steps: &[Step], now: Nanos) -> Result<(), ControlError> {
        let before = self.table.copy();
        let mut stored = StoredGeneration::from(&next);
        let unreadable = self.unreadable.iter();
        let unreadable: Vec<StoredChain> = unreadable
            .filter(|chain| !next.chains.contains_key(&chain.name))
            .cloned()
            .collect();
        stored.chains.extend(unreadable.iter().cloned());
        stored.chains.sort_by(|one, two| one.name.cmp(&two.name));
        // One step takes effect at one time.
        let is_joint = steps.len() > 1;
        let (machine, table, current) = (&mut self.machine, &mut self.table, self.current.generation);
        let mut result = None;
        let written = self.store.store_after(&stored, &mut || {
            if is_joint {
                machine.begin_change(false);
            }
            let carried_out = carry_out((&mut *machine, &mut *table), steps, (current, next.generation), now);
            result.insert(carried_out).is_ok()
        });
        let is_begun = is_joint && result.is_some();
        let entered = match (written, result) {
            (_, Some(Err(failed))) => {
                self.table.restore(before);
                Err(self.failed_step(&failed, now))
            }
            (Err(error), carried_out) => {
                let not_undone = match carried_out {
                    Some(_) => undo(&mut self.machine, steps),
                    None => Vec::new(),
                };
                self.table.restore(before);
                Err(self.not_stored(&error.to_string(), not_undone, now))
            }
            (Ok(()), _) => {
                self.unreadable = unreadable;
                self.complete(next, steps, now);
                Ok(())
            }
        };
        if is_begun {
            self.machine.complete_change();
        }
        entered
    }

    /// Lets the machine check each chain that a step starts or changes.
    fn check(&self, next: &Configuration, steps: &[Step]) -> Result<(), ControlError> {
        let (mut errors, mut is_wrong) = (Vec::new(), false);
        for chain in steps
            .iter()
            .filter(|step| !matches!(step, Step::Remove(_)))
            .map(Step::chain)
        {
            let others = next.running().filter(|other| other.name != chain.name);
            let beside: Vec<&AppliedChain> = others.map(|other| &**other).collect();
            if let Err(refusal) = self.machine.check(chain, &beside) {
                is_wrong |= refusal.is_wrong();
                errors.push(format!("chain \"{}\": {refusal}", chain.name));
            }
        }
        match errors.is_empty() {
            true => Ok(()),
            false if is_wrong => Err(ControlError::Invalid(errors.join("\n"))),
            false => Err(ControlError::Refused(errors.join("\n"))),
        }
    }

    /// Records a step that failed after the steps before it were undone.
    fn failed_step(&mut self, failed: &FailedStep, now: Nanos) -> ControlError {
        let chain = failed.step.chain();
        let verb = failed.step.verb();
        let message = format!("cannot {verb} chain \"{}\": {}", chain.name, failed.refusal);
        self.table
            .event(now, Severity::Warning, Some(&chain.name), "StepFailed", &message);
        self.not_undone(&failed.not_undone, now);
        self.table.publish(self.current.generation);
        ControlError::Failed(message)
    }

    fn not_stored(&mut self, error: &str, not_undone: Vec<(Step, crate::Refusal)>, now: Nanos) -> ControlError {
        let message = format!("the generation cannot be written: {error}; the configuration is unchanged");
        self.table.event(now, Severity::Warning, None, "NotWritten", &message);
        self.not_undone(&not_undone, now);
        self.table.publish(self.current.generation);
        ControlError::Failed(message)
    }

    /// Records steps that could not be undone: chains that should run and do not have failed, others are drained again.
    fn not_undone(&mut self, steps: &[(Step, crate::Refusal)], now: Nanos) {
        for (step, refusal) in steps {
            let name = &step.chain().name;
            let message = format!("cannot undo: {refusal}");
            self.table
                .event(now, Severity::Warning, Some(name), "NotUndone", &message);
            if self.current.chains.get(name).is_some_and(|chain| !chain.drained) {
                self.table.enter(name, Phase::Failed, &message, now);
            }
        }
    }

    /// Enters a configuration whose steps have been carried out and that is stored.
    fn complete(&mut self, next: Configuration, steps: &[Step], now: Nanos) {
        let before = std::mem::replace(&mut self.current, next);
        let generation = self.current.generation;
        for step in steps {
            self.table.complete(step, generation, now);
            let chain = step.chain();
            let is_there = !matches!(step, Step::Remove(_));
            if let Some(warning) = chain.renumbering_warning(&self.server).filter(|_| is_there) {
                let name = Some(chain.name.as_str());
                self.table.event(now, Severity::Warning, name, "Renumbered", &warning);
            }
        }
        // Failed chains have no step that ends them.
        for (name, chain) in &before.chains {
            let stays = self.current.chains.get(name);
            if stays.is_none_or(|stays| stays.drained) && !chain.drained && self.table.is_failed(name) {
                // The machine may have forgotten it already.
                let _ = self.machine.drain(name);
                match stays {
                    None => self.table.remove(name, now),
                    Some(_) => self.table.enter(name, Phase::Drained, "", now),
                }
            }
        }
        // Drained chains neither.
        for (name, _) in before.chains.iter().filter(|(_, chain)| chain.drained) {
            if !self.current.chains.contains_key(name) && self.table.phase(name) == Some(Phase::Drained) {
                self.table.remove(name, now);
            }
        }
        self.table.refer(&self.current);
        self.table.publish(generation);
    }
}

/// Carries out the steps from generation `current` to `next`, and shows the chains that start meanwhile.
fn carry_out(
    (machine, table): (&mut impl Machine, &mut StatusTable),
    steps: &[Step],
    (current, next): (u64, u64),
    now: Nanos,
) -> Result<(), Box<FailedStep>> {
    for step in steps {
        if let Step::Add(chain) = step {
            let status = ChainStatus::new(Arc::clone(chain), Phase::Pending, next, now);
            table.insert(status);
        }
    }
    table.publish(current);
    enact(machine, steps, |step| {
        if let Step::Add(chain) = step {
            table.enter(&chain.name, Phase::Starting, "", now);
            table.publish(current);
        }
    })
}
