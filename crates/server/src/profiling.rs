//! Requests that wait for profiles: they are carried out, as a whole, once each of their chains has one.
//!
//! One profile is measured at a time. Meanwhile the server carries out other requests, so a request that waits is
//! compared with the configuration again before it is carried out. A later request about one of its chains takes its
//! place.

use crate::chain::AppliedChain;
use crate::configuration::ControlError;
use crate::error::ServeError;
use crate::events::Severity;
use crate::files::read_all;
use crate::generation::Store;
use crate::machine::Machine;
use crate::manager::Manager;
use crate::request::{ApplyRequest, Preview, Reply};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tailwater_net::Nanos;

/// Maximum number of requests that wait for profiles.
const MOST: usize = 64;

/// Receiver of the result of an apply.
type Answer = Box<dyn FnOnce(Reply) + Send>;

/// Request that waits.
enum Work {
    /// Apply of the control API.
    Apply { request: ApplyRequest, answer: Answer },
    /// Chains of the specification's files and folders.
    Files,
    /// Running chain that has drifted.
    Anew(String),
}

/// Request with its progress.
struct Task {
    work: Work,
    /// Its chains.
    names: Vec<String>,
    /// Those whose profiles have been measured for it.
    measured: BTreeSet<String>,
}

/// Result of a step of the queue.
pub(crate) enum Progress {
    /// Nothing waits, or a measurement runs.
    Waits,
    /// A request was carried out or refused.
    Done,
    /// The files' profiles are there, or they cannot be applied.
    Files(Result<(), ServeError>),
}

/// Requests that wait, in their order. The profile of a chain of the first one is being measured.
#[derive(Default)]
pub(crate) struct ProfileQueue {
    tasks: VecDeque<Task>,
    /// Chain whose profile is being measured.
    measuring: Option<String>,
}

impl ProfileQueue {
    /// Applies a request, or lets it wait if a chain of it has no profile.
    pub(crate) fn apply<M: Machine, S: Store>(
        &mut self,
        manager: &mut Manager<M, S>,
        request: ApplyRequest,
        answer: Answer,
        now: Nanos,
    ) {
        let preview = match request.dry_run || !manager.measures() {
            true => Preview::default(),
            // A wrong request is refused at once.
            false => manager.preview(&request).unwrap_or_default(),
        };
        self.supersede(manager, &preview.names);
        if preview.unprofiled.is_empty() {
            let result = manager.apply(&request, now);
            let generation = manager.generation();
            answer(result.map(|applied| (applied, generation)));
        } else if self.tasks.len() >= MOST {
            let message = "too many requests wait for profiles".to_owned();
            answer(Err(ControlError::Refused(message)));
        } else {
            self.tasks.push_back(Task {
                work: Work::Apply { request, answer },
                names: preview.names,
                measured: BTreeSet::new(),
            });
        }
    }

    /// Lets the chains of the specification's files wait for their profiles.
    pub(crate) fn add_files(&mut self) {
        if !self.tasks.iter().any(|task| matches!(task.work, Work::Files)) {
            self.add(Work::Files, Vec::new());
        }
    }

    /// Lets chains that have drifted wait for new profiles.
    pub(crate) fn add_drifted(&mut self, names: Vec<String>) {
        for name in names {
            self.add(Work::Anew(name.clone()), vec![name]);
        }
    }

    fn add(&mut self, work: Work, names: Vec<String>) {
        self.tasks.push_back(Task {
            work,
            names,
            measured: BTreeSet::new(),
        });
    }

    /// Refuses the applies that wait and have one of these chains, which a later request is about.
    pub(crate) fn supersede<M: Machine, S: Store>(&mut self, manager: &mut Manager<M, S>, names: &[String]) {
        let mut is_first = true;
        for task in std::mem::take(&mut self.tasks) {
            let Some(name) = task.names.iter().find(|name| names.contains(name)) else {
                is_first = false;
                self.tasks.push_back(task);
                continue;
            };
            if is_first && self.measuring.take().is_some() {
                manager.machine().cancel_profile();
            }
            is_first = false;
            let message =
                format!("chain \"{name}\": a later request took the place of this one, which waited for a profile");
            if let Work::Apply { answer, .. } = task.work {
                answer(Err(ControlError::Failed(message)));
            }
        }
    }

    /// Refuses the applies that wait and have one of these chains, which are to be deleted. Returns those that exist
    /// otherwise, too, or do not exist at all.
    pub(crate) fn withdraw<M: Machine, S: Store>(
        &mut self,
        manager: &mut Manager<M, S>,
        names: &[String],
        now: Nanos,
    ) -> Vec<String> {
        let applies = self.tasks.iter().filter(|task| matches!(task.work, Work::Apply { .. }));
        let waiting: BTreeSet<String> = applies.flat_map(|task| task.names.iter().cloned()).collect();
        self.supersede(manager, names);
        let is_new = |name: &&String| waiting.contains(*name) && manager.configuration().chain(name).is_err();
        let (new, others): (Vec<&String>, Vec<&String>) = names.iter().partition(is_new);
        for name in new {
            let message = format!("chain \"{name}\": deleted while it waited for a profile");
            manager.report(Severity::Normal, "Withdrawn", &message, now);
        }
        others.into_iter().cloned().collect()
    }

    /// Ends the measurement that runs, and all requests that wait.
    pub(crate) fn cancel<M: Machine, S: Store>(&mut self, manager: &mut Manager<M, S>) {
        if self.measuring.take().is_some() {
            manager.machine().cancel_profile();
        }
        // Their clients are told that the server ends.
        self.tasks.clear();
    }

    /// Goes on with the first request. Returns at once.
    pub(crate) fn step<M: Machine, S: Store>(&mut self, manager: &mut Manager<M, S>, now: Nanos) -> Progress {
        if let Some(name) = &self.measuring {
            let Some(result) = manager.poll_profile(name, now) else {
                return Progress::Waits;
            };
            let name = std::mem::take(&mut self.measuring).unwrap_or_default();
            if let Err(refusal) = result {
                return self.refuse(manager, refused(&name, &refusal), now);
            }
            if let Some(task) = self.tasks.front_mut() {
                task.measured.insert(name);
            }
        }
        let Some(task) = self.tasks.front() else {
            return Progress::Waits;
        };
        match task.next(manager) {
            Err(error) => self.refuse(manager, error, now),
            Ok(None) => self.carry_out(manager, now),
            Ok(Some(chain)) if task.measured.contains(&chain.name) => {
                let error = refused(&chain.name, &"its files change while they are measured");
                self.refuse(manager, error, now)
            }
            Ok(Some(chain)) => match manager.begin_profile(&chain, now) {
                Ok(()) => {
                    self.measuring = Some(chain.name.clone());
                    Progress::Waits
                }
                Err(refusal) => self.refuse(manager, refused(&chain.name, &refusal), now),
            },
        }
    }

    /// Carries out the first request, whose chains have profiles.
    fn carry_out<M: Machine, S: Store>(&mut self, manager: &mut Manager<M, S>, now: Nanos) -> Progress {
        let Some(task) = self.tasks.pop_front() else {
            return Progress::Waits;
        };
        match task.work {
            Work::Apply { request, answer } => {
                let result = manager.apply(&request, now);
                let generation = manager.generation();
                answer(result.map(|applied| (applied, generation)));
            }
            Work::Files => return Progress::Files(Ok(())),
            Work::Anew(name) => manager.place_anew(&name, now),
        }
        Progress::Done
    }

    /// Refuses the first request.
    fn refuse<M: Machine, S: Store>(
        &mut self,
        manager: &mut Manager<M, S>,
        error: impl Into<ServeError>,
        now: Nanos,
    ) -> Progress {
        let error = error.into();
        let Some(task) = self.tasks.pop_front() else {
            return Progress::Waits;
        };
        match (task.work, error) {
            (Work::Apply { answer, .. }, ServeError::Chains(error)) => answer(Err(error)),
            (Work::Apply { answer, .. }, error) => answer(Err(ControlError::Invalid(error.to_string()))),
            (Work::Files, error) => return Progress::Files(Err(error)),
            (Work::Anew(name), error) => manager.not_placed(&name, &error.to_string(), now),
        }
        Progress::Done
    }
}

impl Task {
    /// Returns the next chain whose profile is to be measured, or `None` if the request can be carried out.
    fn next<M: Machine, S: Store>(&self, manager: &Manager<M, S>) -> Result<Option<Arc<AppliedChain>>, ServeError> {
        let unprofiled = match &self.work {
            Work::Apply { request, .. } => manager.preview(request)?.unprofiled,
            Work::Files => {
                let manifests = read_all(&manager.server().chains).map_err(ServeError::Spec)?;
                manager.preview_listed(&manifests)?.unprofiled
            }
            Work::Anew(name) if self.measured.contains(name) => Vec::new(),
            Work::Anew(name) => vec![Arc::clone(manager.configuration().chain(name)?)],
        };
        Ok(unprofiled.into_iter().next())
    }
}

fn refused(name: &str, reason: &impl std::fmt::Display) -> ControlError {
    ControlError::Refused(format!("chain \"{name}\": cannot be profiled: {reason}"))
}

#[cfg(test)]
mod tests;
