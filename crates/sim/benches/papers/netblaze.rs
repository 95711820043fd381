//! NetBlaze's tables 3 to 7 and figures 4 to 6.

use super::alone;
use super::profiles::Published;
use super::published::{self, Row};
use super::runs::{Job, Lengths, figure, run, run_all};
use super::setting::{CHAIN_1, CHAIN_2, Case, model, policy, rack, record, record_growing};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_sim::{BoundedChain, Recording, RunOptions, Workload, oracle};

/// Chains and traces, with the traffic for which the Metron-like policy uses the published average cores. `cargo bench
/// -p tailwater-sim --bench papers -- calibrate` computes it.
const CASES: [Case; 4] = [
    Case {
        table: "table-3",
        chain: &CHAIN_1,
        trace: "backbone",
        flows_scale: 62.0,
        rows: published::TABLE_3,
    },
    Case {
        table: "table-4",
        chain: &CHAIN_2,
        trace: "backbone",
        flows_scale: 22.0,
        rows: published::TABLE_4,
    },
    Case {
        table: "table-5",
        chain: &CHAIN_1,
        trace: "as",
        flows_scale: 66.0,
        rows: published::TABLE_5,
    },
    Case {
        table: "table-6",
        chain: &CHAIN_2,
        trace: "as",
        flows_scale: 25.8,
        rows: published::TABLE_6,
    },
];

/// Policies without an objective: one row each.
const WITHOUT: [&str; 3] = ["static", "rss++", "metron"];
/// Objectives in hundreds of microseconds, and policies with a row for each.
const OBJECTIVES: [usize; 5] = [1, 2, 3, 4, 5];
const WITH: [&str; 3] = ["netblaze", "quadrant", "dyssect"];
/// Objectives of a quick run.
const QUICK: [usize; 2] = [1, 3];

/// Policies that run on growing traffic.
const GROWING: [&str; 4] = ["metron", "quadrant", "dyssect", "netblaze"];

/// Figures, each with the policies compared with NetBlaze.
const FIGURES: [(&str, &[&str]); 3] = [
    (
        "figure-4",
        &[
            "netblaze-core-static-safe",
            "netblaze-core-static-unsafe",
            "netblaze-no-core-mapper",
        ],
    ),
    (
        "figure-5",
        &["netblaze-server-static-safe", "netblaze-server-static-unsafe"],
    ),
    ("figure-6", &["netblaze-no-boost", "netblaze-on-demand-rss"]),
];
/// Trace of the ablations. The paper does not name it.
const FIGURES_TRACE: &str = "backbone";

fn job(case: &Case, profiles: &Published, name: &str, hundreds: usize) -> Job {
    let slo = Nanos::from_micros(100 * hundreds as u64);
    let profile = case.chain.profile(profiles, slo, &format!("{hundreds}00"));
    Job {
        names: Vec::new(),
        model: model(&profile),
        slo,
        policy: policy(name, &profile),
    }
}

/// Returns all jobs of a case.
fn jobs(case: &Case, profiles: &Published, quick: bool) -> Vec<Job> {
    let table = |row: &str| format!("papers/netblaze/{}/{row}", case.table);
    let objectives: &[usize] = if quick { &QUICK } else { &OBJECTIVES };
    let mut jobs = Vec::new();
    for name in WITHOUT {
        // Lateness depends on an objective: the middle one is used.
        let mut job = job(case, profiles, name, 3);
        job.names.push((table(name), published::of(case.rows, name, 3)));
        jobs.push(job);
    }
    for name in WITH {
        for &hundreds in objectives {
            let mut job = job(case, profiles, name, hundreds);
            let row = table(&format!("{name}-{hundreds}00us"));
            job.names.push((row, published::of(case.rows, name, hundreds)));
            jobs.push(job);
        }
    }
    if case.trace != FIGURES_TRACE {
        return jobs;
    }
    let (loose, named) = case.chain.loose;
    let profile = case.chain.profile(profiles, loose, named);
    let number = usize::from(case.chain.name == CHAIN_2.name);
    let row = format!("papers/netblaze/table-7/{}-netblaze", case.chain.name);
    jobs.push(Job {
        names: vec![(row, published::TABLE_7[number])],
        model: model(&profile),
        slo: loose,
        policy: policy("netblaze", &profile),
    });
    for (figure, variants) in FIGURES {
        for name in variants {
            for &hundreds in objectives {
                let mut job = job(case, profiles, name, hundreds);
                let row = format!("{}-{name}-{hundreds}00us", case.chain.name);
                let name = format!("papers/netblaze/{figure}/{row}");
                job.names.push((name, Row::default()));
                jobs.push(job);
            }
        }
    }
    jobs
}

/// Runs the figures whose names `wanted` accepts.
pub fn tables(profiles: &Published, lengths: &Lengths, wanted: &dyn Fn(&str) -> bool) {
    for case in &CASES {
        let mut jobs = jobs(case, profiles, lengths.quick);
        jobs.retain(|job| job.names.iter().any(|(name, _)| wanted(name)));
        let any_bound = OBJECTIVES.iter().any(|hundreds| wanted(&bound_name(case, *hundreds)));
        let any_alone = WAKE_US.iter().any(|us| wanted(&alone_name(case, *us)));
        if jobs.is_empty() && !any_bound && !any_alone {
            continue;
        }
        let seconds = lengths.warm_up + lengths.reported;
        let packets = record(case.trace, case.flows_scale, seconds);
        print_bounds(case, &packets, profiles, lengths, wanted);
        print_alone(case, &packets, wanted);
        eprintln!(
            "{}: {} on {}, {:.1} Mpps, {} simulations",
            case.table,
            case.chain.name,
            case.trace,
            packets.packets() as f64 / seconds / 1e6,
            jobs.len(),
        );
        run_all(&rack(), &packets, jobs, lengths);
    }
}

/// Time until a flow's own core starts, in microseconds: zero, and after a wake-up.
const WAKE_US: [u64; 2] = [0, 20];
/// Objective of these rows, in microseconds: the tightest of the tables.
const ALONE_US: u64 = 100;

fn alone_name(case: &Case, wake_us: u64) -> String {
    format!("papers/netblaze/{}/alone-{ALONE_US}us-wake-{wake_us}us", case.table)
}

/// Prints the share of late packets if each flow had a core of its own.
fn print_alone(case: &Case, packets: &Recording, wanted: &dyn Fn(&str) -> bool) {
    for us in WAKE_US {
        let name = alone_name(case, us);
        if wanted(&name) {
            let (slo, wake) = (Nanos::from_micros(ALONE_US), Nanos::from_micros(us));
            let late = alone::late(packets, &case.chain.costs, slo, wake);
            figure(&format!("{name}/late"), late, "share", None, "");
        }
    }
}

fn bound_name(case: &Case, hundreds: usize) -> String {
    format!("papers/netblaze/{}/oracle-{hundreds}00us", case.table)
}

/// Prints the lower bound on cores of any policy that meets an objective. See `tailwater_sim::oracle`. The bound
/// ignores the warm-up.
fn print_bounds(
    case: &Case,
    packets: &Arc<Recording>,
    profiles: &Published,
    lengths: &Lengths,
    wanted: &dyn Fn(&str) -> bool,
) {
    let options = RunOptions {
        warm_up: Nanos::from_secs_f64(lengths.warm_up),
        ..RunOptions::default()
    };
    for hundreds in OBJECTIVES {
        let name = bound_name(case, hundreds);
        if !wanted(&name) {
            continue;
        }
        let Job { model, slo, .. } = job(case, profiles, "static", hundreds);
        let chain = BoundedChain {
            model,
            slo,
            workload: Workload::from(Arc::clone(packets)),
        };
        let report = oracle(vec![chain], &options);
        let report = report.unwrap_or_else(|error| panic!("{name}: {error}"));
        let bound = &report.chains[0];
        let late = bound.late_unavoidable as f64 / bound.packets.max(1) as f64;
        let more = format!(", \"slo_met\": {}, \"late\": {late:.5}", bound.attainable);
        figure(&format!("{name}/cores"), report.cores.average, "cores", None, &more);
    }
}

/// Runs policies on growing traffic, like the authors' replay in half of its time (`pcap_dynamics_0.conf` in their
/// public code: by a tenth of the trace's own speed each second). From the first packet on, it grows from half to one
/// and a half times a case's traffic.
///
/// Only chain 2: it has fewer packets for as many cores.
pub fn growing(profiles: &Published, lengths: &Lengths, wanted: &dyn Fn(&str) -> bool) {
    for case in CASES.iter().filter(|case| case.chain.name == CHAIN_2.name) {
        let name = |policy: &str| format!("papers/netblaze/{}-growing/{policy}", case.table);
        let policies = GROWING.into_iter().filter(|policy| wanted(&name(policy)));
        let jobs = policies.map(|policy| Job {
            names: vec![(name(policy), published::of(case.rows, policy, 2))],
            ..job(case, profiles, policy, 2)
        });
        let jobs: Vec<Job> = jobs.collect();
        if jobs.is_empty() {
            continue;
        }
        let packets = record_growing(case.trace, case.flows_scale);
        let lengths = Lengths {
            warm_up: 2.0,
            ..*lengths
        };
        run_all(&rack(), &packets, jobs, &lengths);
    }
}

/// Finds each case's traffic: the minimum for which the Metron-like policy uses the published average cores. Its cores
/// double, so they grow with the traffic in steps.
pub fn calibrate(profiles: &Published, lengths: &Lengths, wanted: &dyn Fn(&str) -> bool) {
    /// Share of the published cores that is sufficient, and the resulting precision of the scale.
    const ENOUGH: f64 = 0.98;
    const NEAR: f64 = 1.08;
    /// Factor of the first step.
    const STEP: f64 = 1.08;
    for case in CASES.iter().filter(|case| wanted(case.table)) {
        let Some(aim) = published::of(case.rows, "metron", 3).cores else {
            continue;
        };
        let (mut low, mut high): (Option<f64>, Option<f64>) = (None, None);
        let mut scale = case.flows_scale;
        loop {
            match metron_cores(case, scale, profiles, lengths) >= ENOUGH * aim {
                true => high = Some(scale),
                false => low = Some(scale),
            }
            scale = match (low, high) {
                (Some(low), Some(high)) if high / low <= NEAR => break,
                (Some(low), Some(high)) => (low * high).sqrt(),
                (Some(low), None) => low * STEP,
                (None, Some(high)) => high / STEP,
                (None, None) => unreachable!("one of them has just been found"),
            };
        }
        let name = format!("papers/netblaze/{}/flows-scale", case.table);
        figure(&name, high.unwrap_or(scale), "times", None, "");
    }
}

/// Returns the average cores of the Metron-like policy.
fn metron_cores(case: &Case, scale: f64, profiles: &Published, lengths: &Lengths) -> f64 {
    let packets = record(case.trace, scale, lengths.warm_up + lengths.reported);
    let Job { model, slo, policy, .. } = job(case, profiles, "metron", 3);
    let outcome = run(&rack(), &packets, (model, slo, policy), lengths.warm_up);
    eprintln!(
        "{}, {scale:.2} times the flows, {} packets: {:.2} cores, {:.3} % lost, p99 {} us",
        case.table,
        packets.packets(),
        outcome.cores,
        100.0 * outcome.chain.loss_rate,
        outcome.chain.latency_us.p99,
    );
    outcome.cores
}
