//! Contention on this machine: co-runs of the project's chains with synthetic competitors and with each other, and the
//! error of predictions from probes beside the machine's own noise.
//!
//! `cargo bench -p tailwater-profile --bench contention [-- --loads N] [--seconds N] [--run-time MS]
//! [--more] [--again] [--all]` measures every chain beside N synthetic loads (10) and beside every chain, itself included, each twice, for at most
//! N seconds (340), in runs of N milliseconds (120). It then predicts each co-run by models of the others and prints
//! JSON lines:
//!
//! - `contention/CHAIN/slowdown`: mean and largest loss of throughput;
//! - `contention/CHAIN/noise`: mean difference of the two measurements of a co-run;
//! - `contention/CHAIN/error/METHOD`: mean error for competitors that are not in the training. Their vector is from
//!   co-runs with other chains. `none` predicts no loss, `mean` the mean loss of the training;
//! - `contention/all/...`: the same over all chains; `latency` of the p99;
//! - `contention/chains/error/METHOD`: error for chains beside chains by models of synthetic loads only, and the
//!   chains' own vectors: as `tailwater profile contention` and `tailwater predict` do it;
//! - `contention/probes/METRIC`: added time of a probe, over all competitors, and its noise; `by_accesses` is the rank
//!   correlation with the synthetic loads' accesses to lines per second, which are known.
//!
//! Co-runs are kept as campaigns in the target directory. `--again` evaluates them without measuring. `--more` measures
//! those that lack two undisturbed measurements: on a noisy machine, at another time. `--all` evaluates the disturbed
//! ones, too, beside a noise that includes theirs.

mod evaluation;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tailwater_dataplane::cores::{AvoidCores, default_core};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_predict::{Campaign, Key, Observation, Schema, Vector};
use tailwater_profile::cache::Caches;
use tailwater_profile::contention::{
    CoRuns, MetricSource, Probes, Reading, Scene, Server, SourceError, SyntheticLoad, Workload, load_space,
};
use tailwater_profile::{SweepOptions, fingerprint, machine, uniform};
use tailwater_traffic::Trace;

/// Chains, with the flows of their traffic.
const CHAINS: [(&str, u32); 6] = [
    ("accounting", 60_000),
    ("acl-nat", 60_000),
    ("firewall", 50_000),
    ("flow-stats", 60_000),
    ("load-balancer", 60_000),
    ("nat", 60_000),
];
/// Group of the first chain as a competitor; below are the synthetic loads, from 1 on. 0: alone.
pub const FIRST_CHAIN: u32 = 1000;
/// Measurements of each co-run.
const REPEATS: u32 = 2;
/// Runs alone until one is not disturbed.
const ALONE: u32 = 6;
const SEED: u64 = 1;

struct Options {
    loads: u32,
    limit: Duration,
    run_time: Nanos,
    is_again: bool,
    is_more: bool,
    is_all: bool,
}

struct Subject {
    spec: ChainSpec,
    traffic: Trace,
    workload: Workload,
    campaign: Campaign,
}

fn main() {
    let mut options = Options {
        loads: 10,
        limit: Duration::from_secs(340),
        run_time: Nanos::from_millis(120),
        is_again: false,
        is_more: false,
        is_all: false,
    };
    let mut is_bench = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse::<u32>().ok()).expect("a number");
        match arg.as_str() {
            "--bench" => is_bench = true,
            "--loads" => options.loads = number(),
            "--seconds" => options.limit = Duration::from_secs(number().into()),
            "--run-time" => options.run_time = Nanos::from_millis(number().into()),
            "--again" => options.is_again = true,
            "--more" => options.is_more = true,
            "--all" => options.is_all = true,
            other => panic!("expected --loads, --seconds, --run-time, --more, --again or --all, found {other}"),
        }
    }
    if !is_bench {
        return eprintln!("skipped: expected cargo bench, which measures for minutes");
    }
    let campaigns = match options.is_again {
        true => Vec::from(CHAINS.map(|(name, _)| Campaign::read(&file(name)).expect("co-runs of an earlier run"))),
        false => measured(&options),
    };
    let campaigns: Vec<Campaign> = match options.is_all {
        true => campaigns.iter().map(unflagged).collect(),
        false => campaigns,
    };
    let accesses = accesses();
    let accesses = accesses.lines().filter_map(|line| {
        let (group, rate) = line.split_once(' ')?;
        Some((group.parse().ok()?, rate.parse().ok()?))
    });
    evaluation::print(&campaigns, &accesses.collect::<Vec<_>>());
}

/// Returns a campaign in which no measurement counts as disturbed.
fn unflagged(campaign: &Campaign) -> Campaign {
    let mut all = Campaign::new(campaign.key().clone(), campaign.schema().clone());
    for of in campaign.observations() {
        let of = Observation {
            flagged: false,
            ..of.clone()
        };
        all.push(of).expect("it was in a campaign");
    }
    all
}

/// File in which a chain's co-runs are kept, or the synthetic loads' accesses per second.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("contention-{name}.yaml"))
}

/// Returns the synthetic loads' accesses per second so far: a line a measurement.
fn accesses() -> String {
    std::fs::read_to_string(file("accesses")).unwrap_or_default()
}

fn measured(options: &Options) -> Vec<Campaign> {
    let core = default_core();
    let _elsewhere = AvoidCores::new(&[core]);
    let caches = Caches::of(core).expect("caches that the kernel describes");
    let mut probes = Probes::new(core).expect("probes");
    let mut subjects = Vec::from(CHAINS.map(|chain| subject(chain, &probes)));
    let mut accesses = if options.is_more { accesses() } else { String::new() };
    if options.is_more {
        for subject in &mut subjects {
            if let Ok(before) = Campaign::read(&file(&subject.spec.name)) {
                assert_eq!(before.key(), subject.campaign.key(), "co-runs of something else");
                subject.campaign = before;
            }
        }
    }
    let space = load_space(caches.private_bytes, caches.last_bytes, 1, SEED);
    let load = |number| SyntheticLoad::of(&space.setting(number)).expect("a synthetic load");
    let loads: Vec<Workload> = (1..=options.loads)
        .map(|number| load(number).workload(SEED).expect("a load in range"))
        .collect();
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let (mut co_runs, mut disturbed) = (0, 0);
    // A co-run's second measurement is minutes after its first one.
    for repeat in 0..REPEATS {
        for at in 0..subjects.len() {
            let competitors: Vec<(u32, Workload)> = (1..)
                .zip(loads.iter().cloned())
                .chain((FIRST_CHAIN..).zip(subjects.iter().map(|of| of.workload.clone())))
                .collect();
            let subject = &mut subjects[at];
            let options_of = SweepOptions {
                core,
                seed: SEED,
                run_time: options.run_time,
            };
            let source = Box::new(Borrowed(&mut probes));
            let server = Server::new(&subject.spec, &subject.traffic, &options_of, None, source, &stop);
            let mut server = server.expect("a core beside the target's");
            for _ in 0..ALONE {
                if reference(&subject.campaign).is_none() {
                    alone(&mut server, &mut subject.campaign);
                }
            }
            if reference(&subject.campaign).is_none() {
                eprintln!("{}: every run alone was disturbed", subject.spec.name);
                continue;
            }
            for (group, workload) in &competitors {
                let usable = subject.campaign.usable().filter(|of| of.group == *group);
                if usable.count() as u32 > repeat {
                    continue;
                }
                if start.elapsed() > options.limit {
                    eprintln!("time is over in measurement {} of {}", repeat + 1, subject.spec.name);
                    break;
                }
                let (rate, is_disturbed) = co_run(&mut server, &mut subject.campaign, *group, workload);
                co_runs += 1;
                disturbed += u32::from(is_disturbed);
                if *group < FIRST_CHAIN && !is_disturbed {
                    let load = load(*group);
                    let rate = rate * f64::from(load.reads + load.writes);
                    accesses += &format!("{group} {rate:e}\n");
                }
            }
            let seconds = start.elapsed().as_secs_f64();
            eprintln!(
                "{}: {co_runs} measurements of co-runs, {disturbed} disturbed, {seconds:.0} s",
                subject.spec.name
            );
        }
    }
    std::fs::write(file("accesses"), accesses).expect("a file of accesses");
    for subject in &subjects {
        std::fs::write(file(&subject.spec.name), subject.campaign.to_string()).expect("a file of co-runs");
    }
    subjects.into_iter().map(|of| of.campaign).collect()
}

fn subject((name, flows): (&str, u32), probes: &Probes) -> Subject {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let spec = ChainSpec::read(&root.join(format!("{name}.yaml"))).expect("an example");
    let traffic = uniform(flows, 60, SEED).expect("traffic");
    let key = Key {
        function: spec.name.clone(),
        configuration: fingerprint(&spec),
        traffic: format!("{flows} flows, frames of 60 bytes, seed {SEED}"),
        machine: machine(),
    };
    Subject {
        workload: Workload::saturated(&spec, &traffic, SEED).expect("traffic"),
        campaign: Campaign::new(key, probes.schema().clone()),
        spec,
        traffic,
    }
}

/// Returns the run alone to which all co-runs of a campaign are relative: the first one that was not disturbed.
pub fn reference(campaign: &Campaign) -> Option<&Observation> {
    campaign.usable().find(|of| of.competitors == 0)
}

/// Measures the target alone, with its own vector.
fn alone(server: &mut Server<'_>, campaign: &mut Campaign) {
    let run = server.alone().expect("a run");
    let schema = campaign.schema().clone();
    let nothing = vec![Some(0.0); schema.metrics().len()];
    let observation = Observation {
        group: 0,
        competitors: 0,
        competition: Vector::new(schema.clone(), nothing).expect("zeros"),
        throughput: run.throughput,
        p99_us: run.p99_us,
        own: Some(Vector::new(schema, run.own).expect("a value a metric")),
        flagged: run.disturbance.is_some(),
    };
    campaign.push(observation).expect("a measured run");
}

/// Measures a co-run, once more if it was disturbed. Returns the competitor's packets per second, and `true` if it
/// still is.
fn co_run(server: &mut Server<'_>, campaign: &mut Campaign, group: u32, workload: &Workload) -> (f64, bool) {
    let mut run = server.co_run(&[workload]).expect("a co-run");
    if run.disturbance.is_some() {
        run = server.co_run(&[workload]).expect("a co-run");
    }
    if let Some(disturbance) = run.disturbance {
        eprintln!("{} beside {group}: {disturbance}", campaign.key().function);
    }
    // The machine's drift is divided out.
    let solo = reference(campaign).expect("a run alone").throughput;
    let schema = campaign.schema().clone();
    let observation = Observation {
        group,
        competitors: 1,
        competition: Vector::new(schema, run.competition).expect("a value a metric"),
        throughput: solo * run.beside / run.alone,
        p99_us: run.p99_us,
        own: None,
        flagged: run.disturbance.is_some(),
    };
    campaign.push(observation).expect("a measured co-run");
    (run.competitors[0].packets_per_second, run.disturbance.is_some())
}

/// Probes that all servers use in turn: each has a quarter of a gigabyte of memory.
struct Borrowed<'a>(&'a mut Probes);

impl MetricSource for Borrowed<'_> {
    fn schema(&self) -> &Arc<Schema> {
        self.0.schema()
    }

    fn prepare(&mut self, free: usize) -> Result<bool, SourceError> {
        self.0.prepare(free)
    }

    fn observe(&mut self, scene: Scene<'_>) -> Result<Reading, SourceError> {
        self.0.observe(scene)
    }
}
