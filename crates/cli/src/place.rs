//! `tailwater place`: admission of SLOs on a cluster, and placement of their instances.

mod args;
mod models;
mod optimal;
mod predicted;
pub mod profiles;
mod progress;
mod state_file;

pub use args::{PLACE_EXAMPLES, PlaceArgs};

use crate::error::{CliError, SLO_MISSED};
use crate::output::{ReportOutput, complain, json, print};
use crate::text::{one_line, short_at_most};
use args::{PlacePredictor, PlaceScheduler};
use optimal::{Optimal, available, optimal};
use predicted::Predicted;
use profiles::{ProfileFiles, of_curves};
use progress::Progress;
use serde::Serialize;
use state_file::StateFile;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use tailwater_baselines::schedulers::ResqGreedy;
use tailwater_net::Nanos;
use tailwater_placement::admit::{Answer, Denial, Nearest, Reason};
use tailwater_placement::check::check;
use tailwater_placement::co_run::scheduler::CoRunScheduler;
use tailwater_placement::demand::Unfit;
use tailwater_placement::plan::{Plan, Resource};
use tailwater_placement::policing::{Policed, policed};
use tailwater_placement::reconcile::{Answered, Course, Reconciled, reconcile};
use tailwater_placement::schedule::{MAX_INSTANCES, Scheduler};
use tailwater_placement::slo::ChainProfile;
use tailwater_placement::spec::{ClusterSpec, KnownChain, SloSet, State, StateSpec};
use tailwater_placement::tailwater::Tailwater;

/// Document of `--output json`. Field names are stable.
#[derive(Debug, Serialize)]
struct Document {
    /// Name of the cluster.
    cluster: String,
    /// Number of its servers.
    servers: usize,
    /// Servers that have instances.
    servers_used: usize,
    /// Lower bound on the servers for the admitted SLOs.
    least_servers: usize,
    /// Name of the scheduler.
    scheduler: &'static str,
    /// Number of admitted SLOs.
    admitted: usize,
    /// Number of denied SLOs.
    denied: usize,
    /// All SLOs in file order.
    slos: Vec<Row>,
    /// SLOs of the state that are no longer requested.
    removed: Vec<String>,
    /// Servers that had instances and no longer exist.
    lost_servers: Vec<String>,
    /// Chains whose curves or configuration differ from the state; their SLOs are checked with the new ones.
    changed_chains: Vec<ChangedChain>,
    /// Migration that is in progress, or ended just now.
    #[serde(skip_serializing_if = "Option::is_none")]
    migration: Option<progress::Document>,
    /// Result of `--optimal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    optimal: Option<Optimal>,
    /// Predictor of `--predictor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    predictor: Option<predicted::Document>,
}

/// Chain whose data has changed.
#[derive(Debug, Serialize)]
struct ChangedChain {
    name: String,
    /// `true` if its curves differ.
    curves: bool,
    /// `true` if another configuration was measured.
    configuration: bool,
}

/// Result for an SLO.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// Change of the SLO since the state.
    course: Course,
    admitted: bool,
    /// Number of instances that moved.
    moved: usize,
    /// Instances of the SLO. After a denied change, those that keep running on the old terms.
    instances: Vec<Placed>,
    /// Reason of a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Highest throughput that would be admitted now.
    #[serde(skip_serializing_if = "Option::is_none")]
    fitting_packets_per_second: Option<f64>,
    /// Lowest latency that would be admitted now.
    #[serde(skip_serializing_if = "Option::is_none")]
    fitting_latency_nanoseconds: Option<u64>,
    /// Predicted packets per second beside others, within the latency objective.
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_packets_per_second: Option<predicted::Rate>,
    /// Reasons why it may not share other nodes that have room, the first few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conflicts: Vec<predicted::ConflictRow>,
}

/// A placed instance.
#[derive(Debug, Serialize)]
struct Placed {
    server: String,
    node: u16,
    cores: u16,
    /// Its cache partition; 0 if the cache is shared.
    ways: u16,
    /// Configuration of the `policer` in front of the chain, if the SLO has a cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    policer: Option<Policer>,
}

/// Configuration of `policer`: one rate for all packets together.
#[derive(Debug, Serialize)]
struct Policer {
    limits: [Limit; 1],
}

#[derive(Debug, Serialize)]
struct Limit {
    rate: String,
    burst: u64,
}

impl From<Policed> for Policer {
    fn from(Policed { rate, burst }: Policed) -> Self {
        let rate = format!("{rate}pps");
        Policer {
            limits: [Limit { rate, burst }],
        }
    }
}

/// Places SLOs, prints the placement, and updates the state.
///
/// # Errors
/// A file is invalid, the state cannot be written, flags contradict the state, the optimum cannot be searched for, or
/// the plan violates a curve.
pub fn place(args: &PlaceArgs) -> Result<ExitCode, CliError> {
    if args.optimal {
        available()?;
    }
    let mut profiles = ProfileFiles::of(&args.slos);
    let ClusterSpec { name, cluster } = ClusterSpec::read(&args.cluster, &mut profiles)?;
    let mut set = SloSet::read(&args.slos, &mut profiles)?;
    let predicted = args
        .predictor
        .map(|PlacePredictor::Slomo| Predicted::read(args, &cluster, &set.slos, &set.chains, &profiles));
    let predicted = predicted.transpose()?;
    let cluster = match &predicted {
        None => cluster,
        Some(predicted) => {
            (set.slos, set.chains) = (predicted.slos.clone(), predicted.chains.clone());
            predicted.cluster.clone()
        }
    };
    let file = args.state.as_deref();
    let file = file.map(|path| StateFile::open(path, &[&args.slos, &args.cluster]));
    let file = file.transpose()?;
    let mut earlier = match &file {
        None => State::default(),
        Some(file) => file.read(&name)?,
    };
    let by_prediction = predicted.as_ref().map(|of| CoRunScheduler::new(&of.slomo));
    let scheduler: &dyn Scheduler = match (&by_prediction, args.scheduler) {
        (Some(scheduler), _) => scheduler,
        (None, PlaceScheduler::Tailwater) => &Tailwater,
        (None, PlaceScheduler::ResqGreedy) => &ResqGreedy,
    };
    let mut progress = Progress::read(args, &mut earlier)?;
    if predicted.is_some() && !progress.pending().steps.is_empty() && !args.abandon {
        return Err(CliError::Input(
            "--predictor: the state has a migration, whose steps were not checked by predictions; finish it, or add \
             --abandon"
                .to_owned(),
        ));
    }
    let mut outcome = reconcile(&cluster, &earlier.slos, &set.slos, &set.chains, scheduler);
    // Checks that the plan meets every SLO by the curves before it is applied.
    let violation = check(&cluster, outcome.plan.placed()).first().map(ToString::to_string);
    let unmet = scheduler.unmet(&outcome.plan).first().cloned();
    if let Some(violation) = violation.or(unmet.map(|slo| format!("{slo}: not met by its predicted rate"))) {
        return Err(CliError::System {
            what: "the plan violates an SLO and is not applied",
            source: std::io::Error::other(violation),
        });
    }
    progress.go_on(&outcome.plan, args.abandon);
    let mut better = match args.optimal {
        true => Some(optimal(&outcome.plan, args, progress.pending())?),
        false => None,
    };
    if let Some(better) = &mut better {
        match (better.plan.take(), better.pending.take()) {
            (Some(plan), _) if args.apply => {
                outcome.plan = plan;
                progress.drop();
            }
            (Some(_), Some(pending)) if args.migrate => progress.begin(pending),
            _ => {}
        }
    }
    profiles.notices.iter().for_each(|notice| complain("notice", notice));
    if let Some(predicted) = &predicted {
        predicted.notices().for_each(|notice| complain("notice", &notice));
    }
    let mut document = Document {
        optimal: better,
        predictor: predicted.as_ref().map(Predicted::document),
        changed_chains: changed(&earlier.chains, &set.chains),
        migration: progress.document(),
        ..document(&outcome, &name, scheduler.name())
    };
    if let Some(predicted) = &predicted {
        for (row, (rate, conflicts)) in document.slos.iter_mut().zip(predicted.rows(&outcome.plan)) {
            (row.predicted_packets_per_second, row.conflicts) = (rate, conflicts);
            if predicted.is_shared() {
                row.instances.iter_mut().for_each(|instance| instance.ways = 0);
            }
        }
    }
    if let Some(file) = file {
        let chains = known(&outcome.plan);
        let state = StateSpec::new(&outcome.plan, &name, chains, progress.pending());
        file.replace(&json(&state)?)?;
    }
    match args.output {
        ReportOutput::Table => print(&table(&document))?,
        ReportOutput::Json => print(&json(&document)?)?,
    }
    Ok(match document.denied {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(SLO_MISSED),
    })
}

fn document(outcome: &Reconciled, cluster: &str, scheduler: &'static str) -> Document {
    let plan = &outcome.plan;
    let rows = outcome.answers.iter().map(|answer| row(answer, plan));
    let slos: Vec<Row> = rows.collect();
    let admitted = slos.iter().filter(|row| row.admitted).count();
    Document {
        cluster: cluster.to_owned(),
        servers: plan.cluster().servers().len(),
        servers_used: plan.active(),
        least_servers: plan.least_servers(),
        scheduler,
        admitted,
        denied: slos.len() - admitted,
        slos,
        removed: outcome.removed.clone(),
        lost_servers: outcome.lost.clone(),
        changed_chains: Vec::new(),
        migration: None,
        optimal: None,
        predictor: None,
    }
}

/// Returns the identity of each chain, to detect later changes.
fn known(plan: &Plan) -> Vec<KnownChain> {
    let placed = plan.placed();
    let chains: BTreeMap<&str, &ChainProfile> = placed
        .map(|placed| (&*placed.slo.chain.name, &*placed.slo.chain))
        .collect();
    let chains = chains.into_values();
    chains.map(known_chain).collect()
}

fn known_chain(chain: &ChainProfile) -> KnownChain {
    KnownChain {
        name: chain.name.clone(),
        curves: of_curves(chain),
        configuration: chain.configuration.clone(),
    }
}

/// Returns the chains whose data has changed since the state was written.
fn changed(before: &[KnownChain], now: &[Arc<ChainProfile>]) -> Vec<ChangedChain> {
    let of = |old: &KnownChain| {
        let chain = now.iter().find(|chain| chain.name == old.name)?;
        let new = known_chain(chain);
        let configuration = old.configuration != new.configuration;
        (new != *old).then(|| ChangedChain {
            name: new.name,
            curves: new.curves != old.curves,
            configuration,
        })
    };
    before.iter().filter_map(of).collect()
}

fn row(answered: &Answered, plan: &Plan) -> Row {
    let placed = plan.get(&answered.name);
    let instances = placed.into_iter().flat_map(|placed| {
        let mut policed = policed(placed, plan.cluster()).into_iter();
        placed.instances.iter().map(move |instance| Placed {
            policer: policed.next().map(Policer::from),
            server: plan.cluster().servers()[instance.server].name.clone(),
            node: instance.node,
            cores: plan.cores(&placed.slo, instance.server).unwrap_or(0),
            ways: instance.ways,
        })
    });
    let denial = match &answered.answer {
        Answer::Admitted(_) => None,
        Answer::Denied(denial) => Some(denial),
    };
    let nearest = |pick: fn(&Nearest) -> Option<f64>| denial.and_then(|denial| denial.nearest.iter().find_map(pick));
    Row {
        name: answered.name.clone(),
        course: answered.course,
        admitted: denial.is_none(),
        moved: answered.moved,
        instances: instances.collect(),
        reason: denial.map(reason),
        fitting_packets_per_second: nearest(|nearest| match nearest {
            Nearest::Throughput(rate) => Some(*rate),
            Nearest::Latency(_) => None,
        }),
        fitting_latency_nanoseconds: nearest(|nearest| match nearest {
            Nearest::Throughput(_) => None,
            Nearest::Latency(latency) => Some(latency.0 as f64),
        })
        .map(|nanos| nanos as u64),
        predicted_packets_per_second: None,
        conflicts: Vec::new(),
    }
}

/// Formats the reason of a denial for people.
fn reason(denial: &Denial) -> String {
    match &denial.reason {
        Reason::Unfit(Unfit::NoCurves { measured }) => {
            format!(
                "its chain was measured on {}, which matches no server of the cluster",
                measured.join(" and ")
            )
        }
        Reason::Unfit(Unfit::Latency { least }) => {
            format!("latency is {least} at the lowest measured load")
        }
        Reason::Unfit(Unfit::Size { cores, bytes }) => {
            format!(
                "an instance requires {cores} core{} and at least {} KiB of cache, more than any NUMA node has",
                if *cores == 1 { "" } else { "s" },
                bytes / 1024
            )
        }
        Reason::Instances => {
            format!("it requires more instances than the maximum of an SLO ({MAX_INSTANCES})")
        }
        Reason::Room(resources) if resources.is_empty() => {
            "insufficient resources: a combination of cores, cache and separate servers".to_owned()
        }
        Reason::Room(resources) => {
            let names = resources.iter().map(|resource| match resource {
                Resource::Cores => "cores",
                Resource::Cache => "cache",
                Resource::Classes => "cache classes",
                Resource::Servers => "separate servers",
                Resource::Quiet => "nodes with less contention",
            });
            format!("insufficient {}", names.collect::<Vec<_>>().join(", or "))
        }
        Reason::ViolatedByCurves => "no placement found meets the SLO by its curves".to_owned(),
        Reason::Twice => "another SLO has the same name".to_owned(),
    }
}

/// Formats the document for people: a line per SLO, then a summary.
fn table(document: &Document) -> String {
    let mut text = String::new();
    let names = document.slos.iter().map(|row| row.name.len());
    let width = names.max().unwrap_or(0).max(3) + 2;
    // Writing into a string cannot fail.
    let _ = writeln!(text, "{:<width$}{:<10}instances", "SLO", "answer");
    for row in &document.slos {
        let answer = match (row.admitted, row.course) {
            (false, _) => "denied",
            (true, Course::New) => "admitted",
            (true, Course::Kept) => "kept",
            (true, Course::Changed) => "changed",
            (true, Course::Repaired) => "repaired",
        };
        let instances: Vec<String> = row.instances.iter().map(instance).collect();
        let mut words = instances.join(", ");
        if let Some(reason) = &row.reason {
            if !words.is_empty() {
                words.push_str("; as before: ");
            }
            words.push_str(reason);
        }
        let mut fits = Vec::new();
        let rate = row.fitting_packets_per_second.map(short_at_most);
        fits.extend(rate.map(|rate| format!("{rate}pps")));
        let latency = row.fitting_latency_nanoseconds.map(at_least);
        fits.extend(latency.map(|latency| format!("latency {latency}")));
        if !fits.is_empty() {
            let _ = write!(words, "; would fit with {}", fits.join(", or "));
        }
        let _ = writeln!(text, "{:<width$}{answer:<10}{words}", row.name);
    }
    for (what, names) in [("removed", &document.removed), ("servers gone", &document.lost_servers)] {
        if !names.is_empty() {
            let _ = writeln!(text, "{what}: {}", one_line(&names.join(", ")));
        }
    }
    for ChangedChain {
        name,
        curves,
        configuration,
    } in &document.changed_chains
    {
        let what = match (curves, configuration) {
            (true, false) => "other curves",
            (false, _) => "another configuration with the same curves",
            (true, true) => "another configuration and other curves",
        };
        let _ = writeln!(
            text,
            "chain {name}: {what} than in the state; its SLOs were checked against the new ones"
        );
    }
    let moved: usize = document.slos.iter().map(|row| row.moved).sum();
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    let bound = match document.least_servers {
        0 => String::new(),
        least => format!("; lower bound {least}"),
    };
    let _ = writeln!(
        text,
        "\n{}: {} admitted, {} denied, {moved} instance{} moved; {} of {} server{} used{bound}",
        document.cluster,
        document.admitted,
        document.denied,
        plural(moved),
        document.servers_used,
        document.servers,
        plural(document.servers),
    );
    if let Some(predictor) = &document.predictor {
        let rows = document.slos.iter();
        let rows = rows.map(|row| {
            (
                &*row.name,
                row.predicted_packets_per_second.as_ref(),
                &row.conflicts[..],
            )
        });
        text.push_str(&predicted::table(predictor, rows));
    }
    if let Some(migration) = &document.migration {
        text.push_str(&migration.table());
    }
    if let Some(optimal) = &document.optimal {
        text.push_str(&optimal.table());
    }
    text
}

/// Rounds a latency up to the printed digits, so that an unfit value does not read as a fitting one.
fn at_least(nanos: u64) -> Nanos {
    let unit = match nanos {
        n if n < 1_000_000 => 1,
        n if n < 1_000_000_000 => 1_000,
        _ => 1_000_000,
    };
    Nanos(nanos.div_ceil(unit) * unit)
}

fn instance(instance: &Placed) -> String {
    let Placed {
        server,
        node,
        cores,
        ways,
        policer,
    } = instance;
    let plural = |n: u16| if n == 1 { "" } else { "s" };
    let c = plural(*cores);
    let cache = match ways {
        0 => "shared cache".to_owned(),
        ways => format!("{ways} way{}", plural(*ways)),
    };
    let policer = policer.as_ref().map_or(String::new(), |policer| {
        let [Limit { rate, burst }] = &policer.limits;
        format!(", policer {{limits: [{{rate: {rate}, burst: {burst}}}]}}")
    });
    format!("{server}/{node} ({cores} core{c}, {cache}{policer})")
}
