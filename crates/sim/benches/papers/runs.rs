//! Runs simulations on all cores, and prints one JSON line per figure.

use super::published::Row;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tailwater_net::Nanos;
use tailwater_sim::{ChainModel, ChainReport, ChainRun, Rack, RackPolicy, Recording, RunOptions, Workload, simulate};

/// Lengths of the simulations.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// Seconds until policies have found their cores. They are not reported.
    pub warm_up: f64,
    /// Reported seconds.
    pub reported: f64,
    /// Concurrent simulations.
    pub threads: usize,
    /// `true` to run only a part of the rows.
    pub quick: bool,
}

/// One simulation.
pub struct Job {
    /// `papers/<paper>/<table or figure>/<row>`.
    pub names: Vec<(String, Row)>,
    pub model: ChainModel,
    pub slo: Nanos,
    pub policy: RackPolicy,
}

/// Results of a simulation.
pub struct Outcome {
    pub chain: ChainReport,
    /// Active cores, averaged over epochs of 100 us.
    pub cores: f64,
}

/// Runs all jobs on the same packets, and prints each result when the job ends.
pub fn run_all(rack: &Rack, packets: &Arc<Recording>, jobs: Vec<Job>, lengths: &Lengths) {
    let next = AtomicUsize::new(0);
    let jobs: Vec<Mutex<Option<Job>>> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    std::thread::scope(|scope| {
        for _ in 0..lengths.threads.min(jobs.len()) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let job = job.lock().ok().and_then(|mut job| job.take());
                    if let Some(job) = job {
                        run_one(rack, packets, job, lengths);
                    }
                }
            });
        }
    });
}

fn run_one(rack: &Rack, packets: &Arc<Recording>, job: Job, lengths: &Lengths) {
    let (names, slo) = (job.names, job.slo);
    let began = Instant::now();
    let outcome = run(rack, packets, (job.model, slo, job.policy), lengths.warm_up);
    let took = began.elapsed().as_secs_f64();
    let rate = packets.packets() as f64 / took / 1e6;
    if let Some((name, _)) = names.first() {
        eprintln!("{name}: {took:.1} s, {rate:.1} Mpps");
    }
    for (name, published) in &names {
        print(name, &outcome, *published);
    }
}

/// Runs one simulation.
pub fn run(
    rack: &Rack,
    packets: &Arc<Recording>,
    (model, slo, policy): (ChainModel, Nanos, RackPolicy),
    warm_up: f64,
) -> Outcome {
    let chain = ChainRun {
        model,
        slo,
        policy,
        workload: Workload::from(Arc::clone(packets)),
    };
    let options = RunOptions {
        warm_up: Nanos::from_secs_f64(warm_up),
        ..RunOptions::default()
    };
    let report = simulate(rack, vec![chain], &options);
    let mut report = report.unwrap_or_else(|error| panic!("{error}"));
    Outcome {
        chain: report.chains.remove(0),
        cores: report.cores.average,
    }
}

/// Prints a run's figures.
fn print(name: &str, outcome: &Outcome, published: Row) {
    let Outcome { chain, cores } = outcome;
    let causes = chain.late_by_cause.iter().filter(|(_, count)| **count > 0);
    let most = causes.max_by_key(|(_, count)| **count);
    let (cause, late) = most.map_or(("", 0), |(cause, late)| (cause.as_str(), *late));
    let late_in_all: u64 = chain.late_by_cause.values().sum();
    let more = format!(
        ", \"slo_us\": {}, \"slo_met\": {}, \"late\": {:.5}, \"late_by\": \"{cause}\", \"late_by_share\": {:.2}",
        chain.slo_us,
        chain.slo_met == Some(true),
        late_in_all as f64 / chain.packets.offered.max(1) as f64,
        late as f64 / late_in_all.max(1) as f64,
    );
    figure(&format!("{name}/p50"), chain.latency_us.p50, "us", published.p50, "");
    figure(&format!("{name}/p99"), chain.latency_us.p99, "us", published.p99, &more);
    let more = format!(
        ", \"queues\": {:.2}, \"helpers\": {:.2}, \"busy\": {:.3}, \"packets\": {}",
        chain.cores.dedicated, chain.cores.auxiliary, chain.cores.busy, chain.packets.offered,
    );
    figure(&format!("{name}/cores"), *cores, "cores", published.cores, &more);
    let reasons = chain.packets.lost_by_reason.iter();
    let reasons: Vec<String> = reasons.map(|(why, count)| format!("{why} {count}")).collect();
    let more = format!(", \"reasons\": \"{}\"", reasons.join(", "));
    figure(&format!("{name}/loss"), chain.loss_rate, "share", published.loss, &more);
}

/// Prints a figure, with the published value.
pub fn figure(name: &str, value: f64, unit: &str, published: Option<f64>, more: &str) {
    let published = published.map_or(String::new(), |value| format!(", \"published\": {value}"));
    println!("{{\"name\": \"{name}\", \"value\": {value}, \"unit\": \"{unit}\"{published}{more}}}");
}
