//! `tailwater place --optimal`: the plan with the fewest servers, and the moves to it.

use crate::args::PlaceArgs;
use crate::error::CliError;
use crate::text::{one_line, percent};
use serde::Serialize;
use std::fmt::Write as _;
use tailwater_placement::check::check;
use tailwater_placement::cluster::Cluster;
use tailwater_placement::improve::{Proposal, proposal};
use tailwater_placement::migrate::{Migration, Step};
use tailwater_placement::plan::{Instance, Plan};

/// What the solver found.
struct Found {
    plan: Plan,
    least: usize,
    out_of_time: bool,
}

/// What came of the search. Field names are stable.
#[derive(Debug, Serialize)]
pub struct Optimal {
    /// Servers with instances before.
    servers_before: usize,
    /// Servers with instances in the best plan that was found, or is left where there is none.
    servers: usize,
    /// Fewer servers cannot hold what was admitted.
    least_servers: usize,
    /// By how much the plan's servers are more than those, as a part of them.
    gap: f64,
    /// The search was ended by `--time`.
    out_of_time: bool,
    /// Servers that become free.
    saved: usize,
    /// It saves enough, and there is a way to it.
    proposed: bool,
    /// It is in the state.
    applied: bool,
    /// Why it is not proposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
    /// Instances that end up elsewhere.
    moved: usize,
    /// What to do, one after the other; all promises are kept after each.
    steps: Vec<StepRow>,
    /// The plan that is proposed.
    #[serde(skip)]
    pub plan: Option<Plan>,
}

/// A step of a migration.
#[derive(Debug, Serialize)]
struct StepRow {
    /// `start`, `resize` or `drain`.
    step: &'static str,
    slo: String,
    server: String,
    node: u16,
    ways: u16,
    /// Its ways from then on, where they change.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<u16>,
}

/// Refuses `--optimal` in a program without a solver.
pub fn available() -> Result<(), CliError> {
    if cfg!(feature = "milp") {
        return Ok(());
    }
    Err(CliError::Input(
        "--optimal: this program was built without a solver; `cargo build --release -p tailwater --features milp` \
         builds one with it, which takes cmake, a C++ compiler and libclang"
            .to_owned(),
    ))
}

#[cfg(not(feature = "milp"))]
fn search(_: &Plan, _: &PlaceArgs) -> Result<Found, String> {
    Err("there is no solver".to_owned())
}

#[cfg(feature = "milp")]
fn search(plan: &Plan, args: &PlaceArgs) -> Result<Found, String> {
    use tailwater_placement::milp::{Effort, optimise};
    use tailwater_placement::schedule::Request;

    /// Instances of all choices of all SLOs together: what bounds their memory, to about a gigabyte.
    const MOST_SLOTS: usize = 1 << 27;
    let (mut requests, mut slots) = (Vec::new(), 0);
    for placed in plan.placed() {
        let request = Request::new(placed.slo.clone(), plan.cluster());
        let request = request.map_err(|_| format!("{} fits no server", placed.slo.name))?;
        slots += request.choices.list.iter().map(Vec::len).sum::<usize>();
        if slots > MOST_SLOTS {
            return Err("there are too many ways to keep the SLOs to look at all".to_owned());
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

/// Looks for a plan with fewer servers for all that was admitted.
pub fn optimal(plan: &Plan, args: &PlaceArgs) -> Result<Optimal, CliError> {
    let used = plan.active();
    let mut outcome = Optimal {
        servers_before: used,
        servers: used,
        least_servers: tailwater_placement::bound::whole(plan.cheapest().servers()),
        gap: 0.0,
        out_of_time: false,
        saved: 0,
        proposed: false,
        applied: false,
        why_not: None,
        moved: 0,
        steps: Vec::new(),
        plan: None,
    };
    match search(plan, args) {
        Err(error) => outcome.why_not = Some(error),
        Ok(found) => {
            outcome.least_servers = found.least.max(outcome.least_servers);
            outcome.out_of_time = found.out_of_time;
            outcome.propose(proposal(plan, &found.plan, args.saving), args.apply);
        }
    }
    outcome.servers = used - outcome.saved;
    let least = outcome.least_servers.max(1) as f64;
    outcome.gap = (outcome.servers as f64 / least - 1.0).max(0.0);
    if let Some(plan) = &outcome.plan
        && let Some(violation) = check(plan.cluster(), plan.placed()).first()
    {
        return Err(CliError::System {
            what: "the plan found breaks a promise, and is not proposed",
            source: std::io::Error::other(violation.to_string()),
        });
    }
    Ok(outcome)
}

impl Optimal {
    fn propose(&mut self, proposal: Proposal, apply: bool) {
        match proposal {
            Proposal::Worth {
                plan,
                migration,
                saved,
            } => {
                self.saved = saved;
                self.proposed = true;
                self.applied = apply;
                self.moved = migration.moved;
                self.steps = steps(migration, plan.cluster());
                self.plan = Some(*plan);
            }
            Proposal::TooLittle { saved } => {
                self.saved = saved;
                self.why_not = Some("it saves less than --saving asks for".to_owned());
            }
            Proposal::NoWay { saved, why } => {
                self.saved = saved;
                self.why_not = Some(format!("no way to it keeps all promises: {why}"));
            }
        }
    }

    /// For people: what was found, then the steps.
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
            "{} instances move, in {} steps, with all promises kept after each:",
            self.moved,
            self.steps.len()
        );
        for (number, step) in self.steps.iter().enumerate() {
            let StepRow {
                step,
                slo,
                server,
                node,
                ways,
                to,
            } = step;
            let to = to.map_or(String::new(), |to| format!(" to {to}"));
            let plural = if *ways == 1 { "" } else { "s" };
            let _ = writeln!(
                text,
                "{:>4}. {step:<6} {slo} at {server}/{node} ({ways} way{plural}{to})",
                number + 1
            );
        }
        text.push_str(match self.applied {
            true => "applied: the state has this plan\n",
            false => "not applied: --apply puts it into the state\n",
        });
        text
    }
}

/// Steps, with their servers by name.
fn steps(migration: Migration, cluster: &Cluster) -> Vec<StepRow> {
    let row = |step, slo, at: Instance, to| StepRow {
        step,
        slo,
        server: cluster.servers()[at.server].name.clone(),
        node: at.node,
        ways: at.ways,
        to,
    };
    let steps = migration.steps.into_iter().map(|step| match step {
        Step::Start { slo, at } => row("start", slo, at, None),
        Step::Resize { slo, at, to } => row("resize", slo, at, Some(to)),
        Step::Drain { slo, at } => row("drain", slo, at, None),
    });
    steps.collect()
}
