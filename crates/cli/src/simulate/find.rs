//! `tailwater simulate --find`: search for the fewest servers, the highest rate or the tightest objective.

mod search;

use super::args::{Find, SimulateArgs};
use super::runner::{Job, JobResult, Runner};
use super::{csv, parallel};
use crate::error::CliError;
use crate::output::not_json;
use crate::progress::Simulating;
use search::{Axis, Found, search};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use tailwater_net::Nanos;
use tailwater_sim::SimReport;
use tailwater_sim::spec::RackSpec;

/// Default policy of a search.
const DEFAULT_POLICY: &str = "tailwater";

/// Document of `--output json`. Field names are stable.
#[derive(Clone, Debug, Serialize)]
pub struct Answers {
    /// Name of the rack.
    pub rack: String,
    /// Goal: `servers`, `rate` or `slo`.
    pub find: Find,
    /// `true` if the search was interrupted.
    pub interrupted: bool,
    /// Hardest value that may be tried.
    pub hardest: f64,
    /// Easiest value that may be tried.
    pub easiest: f64,
    /// Results by policy and objective, in the order of the command line.
    pub searches: Vec<Answer>,
}

/// Result for a policy and an objective.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The policy.
    pub policy: &'static str,
    /// Objective of all chains; `None` if each has its own, or if it is the goal of the search.
    pub slo_us: Option<f64>,
    /// Median of the seeds' values, of an even number the easier one; `None` if nothing holds.
    pub answer: Option<f64>,
    /// Hardest of the seeds' values.
    pub hardest: Option<f64>,
    /// Easiest of the seeds' values.
    pub easiest: Option<f64>,
    /// Number of seeds with which the answer holds.
    pub seeds_holding: usize,
    /// Results by seed.
    pub seeds: Vec<OfSeed>,
}

/// Result for a seed.
#[derive(Clone, Debug, Serialize)]
pub struct OfSeed {
    /// The seed.
    pub seed: u64,
    /// Hardest value that holds; `None` if none does, or if the search was interrupted.
    pub value: Option<f64>,
    /// `true` if the search is complete.
    pub complete: bool,
    /// `true` if all tried values that are easier than a holding one hold.
    pub monotone: bool,
    /// `true` if the answer for all seeds holds with this one.
    pub holds_at_answer: Option<bool>,
    /// Tried values, the hardest first.
    pub tried: Vec<Tried>,
}

/// A value that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// The value.
    pub value: f64,
    /// `true` if all chains met their objectives. A chain without a verdict did not.
    pub holds: bool,
    /// `true` if all packets were simulated. Otherwise a miss was certain earlier, and the chains' results cover the
    /// packets until then.
    pub complete: bool,
    /// Result of each chain; empty if such a run is impossible.
    pub chains: Vec<TriedChain>,
}

/// Result of a chain.
#[derive(Clone, Debug, Serialize)]
pub struct TriedChain {
    /// Name of the chain.
    pub chain: String,
    /// Its objective.
    pub slo_us: f64,
    /// `true` if the objective was met; `None` if too few packets arrived for a verdict.
    pub slo_met: Option<bool>,
    /// Packets that arrived.
    pub offered: u64,
    /// 99th percentile of the latency.
    pub p99_us: f64,
    /// Lost packets as a share of the offered ones.
    pub loss_rate: f64,
    /// Mean number of cores.
    pub cores: f64,
}

/// A search: parameters common to all tried values.
struct Search {
    job: Job,
    /// Tried values, for the report; both phases add to it.
    tried: Mutex<BTreeMap<i32, Tried>>,
}

/// Parameters common to all searches.
struct Searches<'r> {
    runner: &'r Runner,
    axis: Axis,
}

impl Searches<'_> {
    /// Returns the run that tests a value.
    fn job(&self, search: &Search, number: i32) -> Job {
        let value = self.axis.value(number);
        let mut job = search.job.clone();
        match self.axis.goal {
            search::Goal::Servers => job.servers = Some(number as usize),
            search::Goal::Rate => job.rate = value,
            search::Goal::Slo => job.slo = Some(self.axis.objective(number)),
        }
        // The easiest value is simulated to the end, so that its result can be reported if it does not hold.
        job.until_missed = number != self.axis.easiest;
        job
    }

    /// Returns `true` if a value holds; `None` if it was stopped.
    fn holds(&self, search: &Search, number: i32) -> Result<Option<bool>, CliError> {
        let job = self.job(search, number);
        // A policy that cannot be created for so tight an objective does not hold.
        let report = match self.runner.check(&job) {
            Ok(()) => match self.runner.run(&job)? {
                None => return Ok(None),
                Some(JobResult::Run(report)) => Some(report),
                // A lower bound is not a policy, and so does not hold.
                Some(JobResult::Bound(_)) => None,
            },
            Err(_) => None,
        };
        let chains = report.as_ref().map_or_else(Vec::new, chains);
        let holds = report.is_some() && chains.iter().all(|chain| chain.slo_met == Some(true));
        let complete = report.is_none_or(|report| !report.missed);
        let value = self.axis.value(number);
        let tried = search.tried.lock();
        let mut tried = tried.unwrap_or_else(PoisonError::into_inner);
        tried.insert(
            number,
            Tried {
                value,
                holds,
                complete,
                chains,
            },
        );
        Ok(Some(holds))
    }
}

fn chains(report: &SimReport) -> Vec<TriedChain> {
    let chains = report.chains.iter().map(|chain| TriedChain {
        chain: chain.chain.clone(),
        slo_us: chain.slo_us,
        slo_met: chain.slo_met,
        offered: chain.packets.offered,
        p99_us: chain.latency_us.p99,
        loss_rate: chain.loss_rate,
        cores: chain.cores.total,
    });
    chains.collect()
}

/// Returns the objectives of the searches; `None` for the rack's, or if it is the goal.
fn objectives(find: Find, args: &SimulateArgs) -> Result<Vec<Option<Nanos>>, CliError> {
    match (find, &args.slo[..]) {
        (Find::Slo, [_, ..]) => Err(CliError::Input(
            "--slo: expected none with --find slo, which searches for it".to_owned(),
        )),
        (_, []) => Ok(vec![None]),
        (_, slos) => Ok(slos.iter().copied().map(Some).collect()),
    }
}

/// Returns the values that may be tried.
fn axis(find: Find, spec: &RackSpec) -> Axis {
    match find {
        Find::Servers => {
            let most = super::runner::most_servers(&spec.rack);
            Axis::servers(spec.rack.servers.len(), most)
        }
        Find::Rate => Axis::rates(),
        Find::Slo => {
            let largest = spec.chains.iter().map(|chain| chain.slo).max();
            Axis::objectives(largest.unwrap_or(Nanos::from_millis(1)))
        }
    }
}

/// Searches for `find`, for all policies, objectives and seeds in parallel.
///
/// # Errors
/// A policy is a bound or cannot be created, or a simulation fails.
pub fn find(
    find: Find,
    spec: &RackSpec,
    args: &SimulateArgs,
    runner: &Runner,
    stop: &AtomicBool,
) -> Result<Answers, CliError> {
    let policies = match &args.policy[..] {
        [] => vec![DEFAULT_POLICY],
        named => named.to_vec(),
    };
    let axis = axis(find, spec);
    let searches = Searches { runner, axis };
    let mut all = Vec::new();
    let seeds = args.seeds(spec.seed);
    for policy in policies {
        for slo in objectives(find, args)? {
            for &seed in &seeds {
                let job = Job::new(policy, slo, seed);
                if job.is_bound() {
                    return Err(CliError::Input(format!(
                        "--policy: expected policies with --find, found {policy}, which is a lower bound on cores"
                    )));
                }
                runner.check(&job)?;
                let tried = Mutex::default();
                all.push(Search { job, tried });
            }
        }
    }
    let mut progress = Simulating::new();
    let order: Vec<usize> = (0..all.len()).collect();
    let threads = parallel::cores();
    let found = parallel::all(
        &all,
        &order,
        threads,
        stop,
        |one| search(&axis, |number| searches.holds(one, number)).map(Some),
        |done| progress.found(done, all.len(), runner.runs()),
    )?;
    // A search that was never begun has no result.
    let found: Vec<Found> = found.into_iter().map(Option::unwrap_or_default).collect();
    let groups = found.chunks(seeds.len()).map(|found| {
        let complete = found.iter().all(|found| found.complete);
        complete.then(|| median(found)).flatten()
    });
    let answers: Vec<Option<i32>> = groups.collect();
    // Tests the answer with each seed that has not tried it yet.
    let at_answer = |number: usize| answers[number / seeds.len()];
    let missing = (0..all.len())
        .filter(|number| at_answer(*number).is_some_and(|answer| !found[*number].tried.contains_key(&answer)));
    let missing: Vec<usize> = missing.collect();
    let numbers: Vec<usize> = (0..all.len()).collect();
    parallel::all(
        &numbers,
        &missing,
        threads,
        stop,
        |number| match at_answer(*number) {
            None => Ok(None),
            Some(answer) => searches.holds(&all[*number], answer),
        },
        |_| progress.found(all.len(), all.len(), runner.runs()),
    )?;
    let mut of_seeds = all.into_iter().zip(found).enumerate().map(|(number, one)| {
        let (search, found) = one;
        let tried = search.tried.into_inner();
        let tried = tried.unwrap_or_else(PoisonError::into_inner);
        let holds = |answer: i32| Some(tried.get(&answer)?.holds);
        let of_seed = OfSeed {
            seed: search.job.seed,
            value: found.best.map(|best| axis.value(best)),
            complete: found.complete,
            monotone: found.is_monotone(),
            holds_at_answer: at_answer(number).and_then(holds),
            tried: tried.into_values().collect(),
        };
        (search.job, found.best, of_seed)
    });
    let mut searches = Vec::new();
    for answer in &answers {
        let group: Vec<_> = of_seeds.by_ref().take(seeds.len()).collect();
        let Some((job, _, _)) = group.first() else {
            break;
        };
        let values = || group.iter().filter_map(|(_, best, _)| *best);
        let holding = |(_, _, of_seed): &&(Job, Option<i32>, OfSeed)| of_seed.holds_at_answer == Some(true);
        searches.push(Answer {
            policy: job.policy,
            slo_us: job.slo.map(|slo| slo.as_micros_f64()),
            answer: answer.map(|answer| axis.value(answer)),
            hardest: values().min().map(|hardest| axis.value(hardest)),
            easiest: values().max().map(|easiest| axis.value(easiest)),
            seeds_holding: group.iter().filter(holding).count(),
            seeds: group.into_iter().map(|(_, _, of_seed)| of_seed).collect(),
        });
    }
    let seeds = searches.iter().flat_map(|search| &search.seeds);
    let unknown = |of_seed: &OfSeed| !of_seed.complete || of_seed.value.is_some() && of_seed.holds_at_answer.is_none();
    let interrupted = stop.load(std::sync::atomic::Ordering::Relaxed) && seeds.into_iter().any(unknown);
    Ok(Answers {
        rack: spec.name.clone(),
        find,
        interrupted,
        hardest: axis.value(axis.hardest),
        easiest: axis.value(axis.easiest),
        searches,
    })
}

/// Returns the median, of an even number the easier value. A search without a holding value ranks as the easiest.
fn median(found: &[Found]) -> Option<i32> {
    let mut best: Vec<i32> = found.iter().map(|found| found.best.unwrap_or(i32::MAX)).collect();
    best.sort_unstable();
    let median = best.get(best.len() / 2).copied();
    median.filter(|median| *median != i32::MAX)
}

/// Columns of the CSV file, each a field of the JSON document.
const COLUMNS: [(&str, &str); 10] = [
    ("find", "/find"),
    ("policy", "/policy"),
    ("slo_us", "/slo_us"),
    ("answer", "/answer"),
    ("seeds_holding", "/seeds_holding"),
    ("seed", "/seed"),
    ("value", "/value"),
    ("complete", "/complete"),
    ("monotone", "/monotone"),
    ("holds_at_answer", "/holds_at_answer"),
];

/// Formats a line of names, and one per seed of each search.
///
/// # Errors
/// The document cannot be serialised.
pub fn as_csv(answers: &Answers) -> Result<String, CliError> {
    let mut text = csv::line(COLUMNS.iter().map(|(name, _)| (*name).to_owned()));
    let whole = serde_json::to_value(answers).map_err(not_json)?;
    for search in whole["searches"].as_array().into_iter().flatten() {
        for seed in search["seeds"].as_array().into_iter().flatten() {
            let fields = COLUMNS.iter().map(|(_, place)| {
                let places = [seed, search, &whole];
                csv::field(places.iter().find_map(|value| value.pointer(place)))
            });
            text.push_str(&csv::line(fields));
        }
    }
    Ok(text)
}
