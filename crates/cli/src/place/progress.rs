//! `tailwater place`: migration in the state, step by step.

use super::args::PlaceArgs;
use super::optimal::StepRow;
use crate::error::CliError;
use crate::text::one_line;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tailwater_placement::plan::Plan;
use tailwater_placement::progress::{DoneError, Pending, Stopped, abandon, resume};
use tailwater_placement::spec::State;

/// Progress of a migration.
#[derive(Debug, Default)]
pub struct Progress {
    pending: Pending,
    stopped: BTreeMap<String, Stopped>,
    /// `true` if steps are left, or were left until now.
    is_told: bool,
    /// `true` if `--optimal` already prints the steps.
    is_new: bool,
}

/// A migration. Field names are stable.
#[derive(Debug, Serialize)]
pub struct Document {
    /// Number of completed steps.
    done: usize,
    /// Remaining steps, in order.
    steps: Vec<StepRow>,
    /// SLOs whose migration was stopped.
    stopped: Vec<StoppedRow>,
    #[serde(skip)]
    is_new: bool,
}

/// SLO whose migration was stopped, with the reason.
#[derive(Debug, Serialize)]
struct StoppedRow {
    slo: String,
    why: String,
}

impl Progress {
    /// Reads the migration of a state, and applies `--done` to both.
    ///
    /// # Errors
    /// There is no migration to continue, or no such step is left.
    pub fn read(args: &PlaceArgs, state: &mut State) -> Result<Self, CliError> {
        let mut pending = std::mem::take(&mut state.migration);
        let is_told = !pending.steps.is_empty() || args.done.is_some();
        if let Some(number) = args.done {
            pending
                .done(number, &mut state.slos)
                .map_err(|error| CliError::Input(format!("--done: {error}")))?;
        } else if args.abandon && !is_told {
            return Err(CliError::Input(format!("--abandon: {}", DoneError::Over)));
        }
        Ok(Progress {
            pending,
            is_told,
            ..Progress::default()
        })
    }

    /// Replaces the migration by a new one.
    pub fn begin(&mut self, pending: Pending) {
        *self = Progress {
            pending,
            is_told: true,
            is_new: true,
            ..Progress::default()
        };
    }

    /// Drops the migration, since another plan has been applied.
    pub fn drop(&mut self) {
        *self = Progress {
            pending: self.pending.dropped(),
            ..Progress::default()
        };
    }

    /// Resumes the migration from `plan`, or abandons it if `end`.
    pub fn go_on(&mut self, plan: &Plan, end: bool) {
        let resumed = match end {
            true => abandon(plan, &self.pending),
            false => resume(plan, &self.pending),
        };
        self.pending = resumed.pending;
        self.stopped = resumed.stopped;
    }

    /// Returns the migration for the state.
    pub fn pending(&self) -> &Pending {
        &self.pending
    }

    /// Returns the migration for the output, if there is anything to report.
    pub fn document(&self) -> Option<Document> {
        let stopped = self.stopped.iter().map(|(slo, why)| StoppedRow {
            slo: slo.clone(),
            why: why.to_string(),
        });
        let steps = self.pending.numbered().map(|(number, step)| StepRow {
            number: Some(number),
            step: step.clone(),
        });
        self.is_told.then(|| Document {
            done: self.pending.done,
            steps: steps.collect(),
            stopped: stopped.collect(),
            is_new: self.is_new,
        })
    }
}

impl Document {
    /// Formats progress, remaining steps and stopped SLOs for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        if self.is_new {
            return text;
        }
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        let (done, left) = (self.done, self.steps.len());
        // Writing into a string cannot fail.
        let _ = match left {
            0 => writeln!(text, "\nmigration: complete; {done} step{} done", plural(done)),
            _ => writeln!(
                text,
                "\nmigration: {done} step{} done, {left} left; all SLOs are met after each:",
                plural(done)
            ),
        };
        for step in &self.steps {
            text.push_str(&step.line());
        }
        for StoppedRow { slo, why } in &self.stopped {
            let _ = writeln!(text, "migration stopped: {slo}: {}", one_line(why));
        }
        text
    }
}
