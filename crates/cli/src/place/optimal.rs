//! `tailwater place --optimal`: plan with the fewest servers, and the migration to it.

use super::args::PlaceArgs;
use crate::error::CliError;
use crate::text::{one_line, percent};
use serde::Serialize;
use std::fmt::Write as _;
use tailwater_placement::check::check;
use tailwater_placement::improve::{Proposal, proposal};
use tailwater_placement::plan::Plan;
use tailwater_placement::progress::{Action, NamedStep, Pending};

/// Result of the solver.
struct Found {
    plan: Plan,
    least: usize,
    out_of_time: bool,
}

/// Result of the search. Field names are stable.
#[derive(Debug, Serialize)]
pub struct Optimal {
    /// Servers with instances before.
    servers_before: usize,
    /// Servers with instances in the best plan found, or in the current plan if there is none.
    servers: usize,
    /// Lower bound on the servers for the admitted SLOs.
    least_servers: usize,
    /// Excess of the plan's servers over the lower bound, as a share of it.
    gap: f64,
    /// `true` if `--time` ended the search.
    out_of_time: bool,
    /// Servers that become free.
    saved: usize,
    /// `true` if the plan saves enough and a migration to it exists.
    proposed: bool,
    /// `true` if the plan was applied to the state.
    applied: bool,
    /// `true` if its steps were added to the state.
    begun: bool,
    /// Reason for which the plan is not proposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
    /// Instances that move.
    moved: usize,
    /// Steps of the migration, in order; all SLOs are met after each.
    steps: Vec<StepRow>,
    /// Proposed plan.
    #[serde(skip)]
    pub plan: Option<Plan>,
    /// Migration to it.
    #[serde(skip)]
    pub pending: Option<Pending>,
}

/// Step of a migration. Once it is in the state, it has a number for `--done`.
#[derive(Debug, Serialize)]
pub struct StepRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    #[serde(flatten)]
    pub step: NamedStep,
}

impl StepRow {
    /// Formats the step for people.
    pub fn line(&self) -> String {
        let NamedStep {
            step,
            slo,
            server,
            node,
            ways,
            to,
        } = &self.step;
        let names = Action::ALL.iter();
        let name = names.clone().find(|(_, action)| action == step);
        let name = name.map_or("", |(name, _)| name);
        let number = self.number.map_or("-".to_owned(), |n| format!("{n}."));
        let to = to.map_or(String::new(), |to| format!(" to {to}"));
        let plural = if *ways == 1 { "" } else { "s" };
        format!("{number:>5} {name:<6} {slo} at {server}/{node} ({ways} way{plural}{to})\n")
    }
}

/// Checks that this program has a solver.
///
/// # Errors
/// It was built without one.
pub fn available() -> Result<(), CliError> {
    if cfg!(feature = "milp") {
        return Ok(());
    }
    Err(CliError::Input(
        "--optimal: this program was built without a solver, which released programs have; `make release` builds \
         one (`--features milp`), which takes cmake, a C++ compiler and libclang"
            .to_owned(),
    ))
}

#[cfg(not(feature = "milp"))]
fn search(_: &Plan, _: &PlaceArgs) -> Result<Found, String> {
    Err("no solver in this build".to_owned())
}

#[cfg(feature = "milp")]
fn search(plan: &Plan, args: &PlaceArgs) -> Result<Found, String> {
    use tailwater_placement::milp::{Effort, optimise};
    use tailwater_placement::schedule::Request;

    /// Maximum number of instances in all choices of all SLOs, which bounds their memory to about a gigabyte.
    const MOST_SLOTS: usize = 1 << 27;
    let (mut requests, mut slots) = (Vec::new(), 0);
    for placed in plan.placed() {
        let request = Request::new(placed.slo.clone(), plan.cluster());
        let request = request.map_err(|_| format!("{} fits on no server", placed.slo.name))?;
        slots += request.choices.list.iter().map(Vec::len).sum::<usize>();
        if slots > MOST_SLOTS {
            return Err("too many possible placements to search".to_owned());
        }
        requests.push(request);
    }
    let effort = Effort {
        time: std::time::Duration::from_nanos(args.time.0),
        ..Effort::default()
    };
    let found = optimise(plan.cluster(), &requests, effort).map_err(|error| error.to_string())?;
    Ok(Found {
        least: found.least(),
        out_of_time: found.out_of_time,
        plan: found.plan,
    })
}

/// Searches for a plan with fewer servers for all admitted SLOs. The numbers of its steps continue those of `before`.
///
/// # Errors
/// The plan found violates a curve.
pub fn optimal(plan: &Plan, args: &PlaceArgs, before: &Pending) -> Result<Optimal, CliError> {
    let used = plan.active();
    let mut outcome = Optimal {
        servers_before: used,
        servers: used,
        least_servers: plan.least_servers(),
        gap: 0.0,
        out_of_time: false,
        saved: 0,
        proposed: false,
        applied: false,
        begun: false,
        why_not: None,
        moved: 0,
        steps: Vec::new(),
        plan: None,
        pending: None,
    };
    match search(plan, args) {
        Err(error) => outcome.why_not = Some(error),
        Ok(found) => {
            outcome.least_servers = found.least.max(outcome.least_servers);
            outcome.out_of_time = found.out_of_time;
            outcome.propose(proposal(plan, &found.plan, args.saving), args, before);
        }
    }
    outcome.servers = used - outcome.saved;
    let least = outcome.least_servers.max(1) as f64;
    outcome.gap = (outcome.servers as f64 / least - 1.0).max(0.0);
    if let Some(plan) = &outcome.plan
        && let Some(violation) = check(plan.cluster(), plan.placed()).first()
    {
        return Err(CliError::System {
            what: "the plan found violates an SLO and is not proposed",
            source: std::io::Error::other(violation.to_string()),
        });
    }
    Ok(outcome)
}

impl Optimal {
    fn propose(&mut self, proposal: Proposal, args: &PlaceArgs, before: &Pending) {
        match proposal {
            Proposal::Worth { plan, migration, saved } => {
                self.saved = saved;
                self.proposed = true;
                self.applied = args.apply;
                self.begun = args.migrate;
                self.moved = migration.moved;
                let pending = Pending::new(&migration, plan.cluster(), before);
                // Steps that are not in the state have no number, since `--done` cannot refer to them.
                let steps = pending.numbered().map(|(number, step)| StepRow {
                    number: args.migrate.then_some(number),
                    step: step.clone(),
                });
                self.steps = steps.collect();
                self.pending = Some(pending);
                self.plan = Some(*plan);
            }
            Proposal::TooLittle { saved } => {
                self.saved = saved;
                self.why_not = Some("it saves less than --saving".to_owned());
            }
            Proposal::NoWay { saved, why } => {
                self.saved = saved;
                self.why_not = Some(format!("no migration to it meets all SLOs: {why}"));
            }
        }
    }

    /// Formats the result for people, then the steps.
    pub fn table(&self) -> String {
        let servers = |n: usize| format!("{n} server{}", if n == 1 { "" } else { "s" });
        let mut text = format!(
            "\noptimal: {} instead of {} ({} saved), {} above the bound of {}{}\n",
            servers(self.servers),
            self.servers_before,
            self.saved,
            percent(self.gap),
            self.least_servers,
            match self.out_of_time {
                true => ", stopped by --time",
                false => "",
            }
        );
        // Writing into a string cannot fail.
        if let Some(why) = &self.why_not {
            let _ = writeln!(text, "not proposed: {}", one_line(why));
            return text;
        }
        let _ = writeln!(
            text,
            "{} instances move, in {} steps; all SLOs are met after each:",
            self.moved,
            self.steps.len()
        );
        for step in &self.steps {
            text.push_str(&step.line());
        }
        text.push_str(match (self.applied, self.begun) {
            (true, _) => "applied: this plan is in the state\n",
            (_, true) => "started: these steps are in the state; `--done N` marks those up to N as done\n",
            _ => "not applied: --migrate writes the steps to the state, --apply the resulting plan\n",
        });
        text
    }
}
