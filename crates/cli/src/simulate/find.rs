//! `tailwater simulate --find`: how few servers, how much traffic, how tight an objective.

mod search;

use super::runner::{Job, Outcome, Runner};
use super::{csv, parallel};
use crate::args::{Find, SimulateArgs};
use crate::error::CliError;
use crate::progress::Simulating;
use crate::run::not_json;
use search::{Axis, Found, search};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use tailwater_net::Nanos;
use tailwater_sim::SimReport;
use tailwater_sim::spec::RackSpec;

/// The policy that is looked at unless others are named.
const DEFAULT_POLICY: &str = "tailwater";

/// What `--output json` prints. Field names are stable.
#[derive(Clone, Debug, Serialize)]
pub struct Answers {
    /// The rack's name.
    pub rack: String,
    /// What was looked for: `servers`, `rate` or `slo`.
    pub find: Find,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// The hardest and the easiest value that may be tried.
    pub hardest: f64,
    /// See `hardest`.
    pub easiest: f64,
    /// By policy and objective, in the order in which they were named.
    pub searches: Vec<Answer>,
}

/// What was found for a policy and an objective.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The policy.
    pub policy: &'static str,
    /// The objective of all chains; `None`: each has its own, or it is what was looked for.
    pub slo_us: Option<f64>,
    /// The median of the seeds' values, of two the easier; `None`: there is none.
    pub answer: Option<f64>,
    /// The hardest and the easiest of the seeds' values.
    pub hardest: Option<f64>,
    /// See `hardest`.
    pub easiest: Option<f64>,
    /// Seeds with which the answer holds.
    pub seeds_holding: usize,
    /// By seed.
    pub seeds: Vec<OfSeed>,
}

/// What was found with a seed.
#[derive(Clone, Debug, Serialize)]
pub struct OfSeed {
    /// The seed.
    pub seed: u64,
    /// The hardest value that holds; `None`: none does, or it was interrupted.
    pub value: Option<f64>,
    /// Whether it was looked for to the end.
    pub complete: bool,
    /// Whether everything tried that is easier than a value that holds, holds.
    pub monotone: bool,
    /// Whether the answer of all seeds holds.
    pub holds_at_answer: Option<bool>,
    /// All that was tried, the hardest first.
    pub tried: Vec<Tried>,
}

/// A value that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// It.
    pub value: f64,
    /// Whether all chains met their objectives.
    pub holds: bool,
    /// Whether all packets were simulated. If not, it was certain before that it does not hold, and what
    /// each chain came to is of the packets until then.
    pub complete: bool,
    /// What each chain came to; none if there can be no such run.
    pub chains: Vec<TriedChain>,
}

/// What a chain came to.
#[derive(Clone, Debug, Serialize)]
pub struct TriedChain {
    /// Its name.
    pub chain: String,
    /// Its objective.
    pub slo_us: f64,
    /// Whether it was met.
    pub slo_met: bool,
    /// The 99th percentile of its latency.
    pub p99_us: f64,
    /// Lost packets of the offered ones.
    pub loss_rate: f64,
    /// Its cores, on average.
    pub cores: f64,
}

/// A search: what is the same for all that it tries.
struct Search {
    job: Job,
    /// What was tried, for the report; both phases add to it.
    tried: Mutex<BTreeMap<i32, Tried>>,
}

/// All that is asked for.
struct Searches<'r> {
    runner: &'r Runner,
    axis: Axis,
}

impl Searches<'_> {
    /// A value as a run.
    fn job(&self, search: &Search, number: i32) -> Job {
        let value = self.axis.value(number);
        let mut job = search.job.clone();
        match self.axis.goal {
            search::Goal::Servers => job.servers = Some(number as usize),
            search::Goal::Rate => job.rate = value,
            search::Goal::Slo => job.slo = Some(self.axis.objective(number)),
        }
        // If not even the easiest holds, it is told what that comes to.
        job.until_missed = number != self.axis.easiest;
        job
    }

    /// Whether a value holds; `None` if it was stopped.
    fn holds(&self, search: &Search, number: i32) -> Result<Option<bool>, CliError> {
        let job = self.job(search, number);
        // That a policy cannot be made for so tight an objective is an answer, too.
        let report = match self.runner.check(&job) {
            Ok(()) => match self.runner.run(&job)? {
                None => return Ok(None),
                Some(Outcome::Run(report)) => Some(report),
                // What no policy goes below holds nothing.
                Some(Outcome::Bound(_)) => None,
            },
            Err(_) => None,
        };
        let chains = report.as_ref().map_or_else(Vec::new, chains);
        let holds = report.is_some() && chains.iter().all(|chain| chain.slo_met);
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
        p99_us: chain.latency_us.p99,
        loss_rate: chain.loss_rate,
        cores: chain.cores.total,
    });
    chains.collect()
}

/// The objectives that are asked for; `None`: the rack's, or the one that is looked for.
fn objectives(find: Find, args: &SimulateArgs) -> Result<Vec<Option<Nanos>>, CliError> {
    match (find, &args.slo[..]) {
        (Find::Slo, [_, ..]) => Err(CliError::Input(
            "--slo: expected none beside --find slo, which looks for it".to_owned(),
        )),
        (_, []) => Ok(vec![None]),
        (_, slos) => Ok(slos.iter().copied().map(Some).collect()),
    }
}

/// The values that may be tried.
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

/// Looks for what `find` says, for all policies, objectives and seeds at the same time.
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
    let seeds = super::seeds(spec, args);
    for policy in policies {
        for slo in objectives(find, args)? {
            for &seed in &seeds {
                let job = Job::new(policy, slo, seed);
                if job.is_bound() {
                    return Err(CliError::Input(format!(
                        "--policy: expected policies beside --find, found {policy}, which is a bound on cores"
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
    // One that was never begun knows nothing.
    let found: Vec<Found> = found.into_iter().map(Option::unwrap_or_default).collect();
    let groups = found.chunks(seeds.len()).map(|found| {
        let complete = found.iter().all(|found| found.complete);
        complete.then(|| median(found)).flatten()
    });
    let answers: Vec<Option<i32>> = groups.collect();
    // Whether the answer holds with each seed is tried where it was not.
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

/// The median of what was found, of two the easier; that none holds is easier than all.
fn median(found: &[Found]) -> Option<i32> {
    let mut best: Vec<i32> = found.iter().map(|found| found.best.unwrap_or(i32::MAX)).collect();
    best.sort_unstable();
    let median = best.get(best.len() / 2).copied();
    median.filter(|median| *median != i32::MAX)
}

/// The columns of CSV, each a field of the JSON document.
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

/// A line of names, and one for each seed of each search.
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
