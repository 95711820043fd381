//! `tailwater place`: a migration in the state, step by step.

use super::optimal::{StepRow, line};
use crate::args::PlaceArgs;
use crate::error::CliError;
use crate::text::one_line;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tailwater_placement::plan::Plan;
use tailwater_placement::progress::{Pending, Stopped, abandon, resume};
use tailwater_placement::spec::State;

/// How far a migration is.
#[derive(Debug, Default)]
pub struct Progress {
    pending: Option<Pending>,
    stopped: BTreeMap<String, Stopped>,
    /// What `--optimal` prints is not printed again.
    is_new: bool,
}

/// A migration. Field names are stable.
#[derive(Debug, Serialize)]
pub struct Document {
    /// Steps that are done.
    done: usize,
    /// Those that are left, in order: the first has the number `done + 1`.
    steps: Vec<StepRow>,
    /// SLOs that stay where they are.
    stopped: Vec<StoppedRow>,
    #[serde(skip)]
    is_new: bool,
}

/// An SLO that is not moved after all.
#[derive(Debug, Serialize)]
struct StoppedRow {
    slo: String,
    why: String,
}

impl Progress {
    /// The migration of a state, of which `--done` is done, as the state then is.
    ///
    /// # Errors
    /// There is none to go on with, or not as many steps.
    pub fn read(args: &PlaceArgs, state: &mut State) -> Result<Self, CliError> {
        let mut pending = state.migration.take();
        let asked = [("--done", args.done.is_some()), ("--abandon", args.abandon)];
        let asked = asked.into_iter().find(|(_, asked)| *asked);
        match (&mut pending, asked, args.done) {
            (None, Some((option, _)), _) => {
                return Err(CliError::Input(format!(
                    "{option}: there is no migration in the state; `--optimal --migrate` puts one there"
                )));
            }
            (Some(pending), _, Some(number)) => pending
                .done(number, &mut state.slos)
                .map_err(|error| CliError::Input(format!("--done: {error}, found {number}")))?,
            _ => {}
        }
        Ok(Progress {
            pending,
            ..Progress::default()
        })
    }

    /// One that begins.
    pub fn begin(pending: Pending) -> Self {
        Progress {
            pending: Some(pending),
            is_new: true,
            ..Progress::default()
        }
    }

    /// Looks at what is left from where `plan` is.
    pub fn go_on(&mut self, plan: &Plan, end: bool) {
        if let Some(pending) = &self.pending {
            let resumed = match end {
                true => abandon(plan, pending),
                false => resume(plan, pending),
            };
            self.pending = Some(resumed.pending);
            self.stopped = resumed.stopped;
        }
    }

    /// What belongs in the state.
    pub fn left(&self) -> Option<&Pending> {
        let pending = self.pending.as_ref();
        pending.filter(|pending| !pending.steps.is_empty())
    }

    /// What there is to tell.
    pub fn document(&self) -> Option<Document> {
        let pending = self.pending.as_ref()?;
        let stopped = self.stopped.iter().map(|(slo, why)| StoppedRow {
            slo: slo.clone(),
            why: why.to_string(),
        });
        Some(Document {
            done: pending.done,
            steps: pending.steps.clone(),
            stopped: stopped.collect(),
            is_new: self.is_new,
        })
    }
}

impl Document {
    /// For people: how far it is, what is left, and what is not to be done any more.
    pub fn table(&self) -> String {
        let mut text = String::new();
        if self.is_new {
            return text;
        }
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        let (done, left) = (self.done, self.steps.len());
        // Writing into a string cannot fail.
        let _ = match left {
            0 => writeln!(text, "\nmigration: over; {done} step{} done", plural(done)),
            _ => writeln!(
                text,
                "\nmigration: {done} step{} done, {left} left, with all promises kept after each:",
                plural(done)
            ),
        };
        for (number, step) in self.steps.iter().enumerate() {
            text.push_str(&line(done + number + 1, step));
        }
        for StoppedRow { slo, why } in &self.stopped {
            let _ = writeln!(text, "not moved any further: {slo}: {}", one_line(why));
        }
        text
    }
}
