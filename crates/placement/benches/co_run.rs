//! Benchmark of placement by predicted contention, with models of made-up functions: the time of a prediction beside
//! six others, as the planner calls it and as it is kept, and of an admission.
//!
//! `cargo bench -p tailwater-placement --bench co_run [-- NAME]` prints one JSON line per figure whose name contains
//! NAME.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;
use tailwater_net::Nanos;
use tailwater_placement::admit::try_admit;
use tailwater_placement::cluster::{Cluster, ServerKind};
use tailwater_placement::co_run::predictor::{CoRunPredictor, Member};
use tailwater_placement::co_run::scheduler::CoRunScheduler;
use tailwater_placement::co_run::slomo::{ChainModel, Slomo};
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::plan::Plan;
use tailwater_placement::slo::{ChainProfile, Curves, Slo, Target};
use tailwater_predict::metric::Resource;
use tailwater_predict::{
    Campaign, ContentionModel, Key, Metric, Observation, PredictOptions, Schema, Source, TrainOptions, Vector,
    performance,
};

/// Number of functions, of metrics, and of co-runs of a campaign.
const FUNCTIONS: usize = 8;
const METRICS: usize = 12;
const CO_RUNS: u32 = 300;
/// Throughput of each function alone.
const ALONE: f64 = 1e6;
/// Repetitions of which the median is printed.
const RUNS: usize = 7;

/// Deterministic pseudo-random numbers from 0 to 1 (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Function whose slowdown is linear in twelve metrics, with 1 % of noise, beside one to fifteen others.
fn model(number: usize) -> ContentionModel {
    let resources = [Resource::Cache, Resource::MemoryBandwidth, Resource::PacketBuffers];
    let metrics = (0..METRICS).map(|at| Metric::new(&format!("metric-{at}"), "1/s", resources[at % 3]));
    let schema = Arc::new(Schema::new(Source::Modelled, metrics.collect()).expect("metrics"));
    let key = Key {
        function: format!("function-{number}"),
        configuration: "c".to_owned(),
        traffic: "t".to_owned(),
        machine: "m".to_owned(),
    };
    let mut chance = Chance(number as u64);
    let weights: Vec<f64> = (0..METRICS).map(|_| chance.next() / METRICS as f64).collect();
    let own: Vec<f64> = (0..METRICS).map(|_| chance.next() / 16.0).collect();
    let mut campaign = Campaign::new(key, schema.clone());
    for group in 0..CO_RUNS {
        let values: Vec<f64> = (0..METRICS).map(|_| chance.next()).collect();
        let slower: f64 = values.iter().zip(&weights).map(|(value, weight)| value * weight).sum();
        let slower = 1.0 + slower + 0.01 * chance.next();
        let vector = |values: &[f64]| Vector::new(schema.clone(), values.iter().copied().map(Some).collect());
        let observation = Observation {
            group,
            competitors: 1 + group % 15,
            competition: vector(&values).expect("a vector"),
            throughput: ALONE / slower,
            p99_us: Some(10.0 * slower),
            own: Some(vector(&own).expect("a vector")),
            flagged: false,
        };
        campaign.push(observation).expect("an observation");
    }
    ContentionModel::train(&campaign, &TrainOptions::default()).expect("a model")
}

fn chain(number: usize) -> Arc<ChainProfile> {
    let curves = Curves {
        machine: "m".into(),
        cores: 1,
        cache: CacheCurve::new(vec![(1, 0.8 * ALONE), (4, ALONE)]).expect("a curve"),
        load: LoadCurve::new(vec![(0.5, Nanos(10_000)), (1.0, Nanos(100_000))]).expect("a curve"),
    };
    Arc::new(ChainProfile {
        name: format!("function-{number}"),
        configuration: None,
        traffic: None,
        percentile: None,
        curves: vec![curves],
    })
}

/// Prints the median and range of repetitions.
fn print(name: &str, unit: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let (value, min, max) = (values[values.len() / 2], values[0], values[values.len() - 1]);
    let runs = values.len();
    println!(
        "{{\"name\": \"{name}\", \"value\": {value:.3}, \"unit\": \"{unit}\", \"min\": {min:.3}, \"max\": {max:.3}, \
         \"runs\": {runs}}}"
    );
}

/// Microseconds of each of `count` calls, of several repetitions.
fn timed(count: u32, mut call: impl FnMut()) -> Vec<f64> {
    let run = |_| {
        let start = Instant::now();
        (0..count).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e6 / f64::from(count)
    };
    (0..RUNS).map(run).collect()
}

fn main() {
    let wanted = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with("--"))
        .unwrap_or_default();
    let models: Vec<Arc<ContentionModel>> = (0..FUNCTIONS).map(|number| Arc::new(model(number))).collect();
    let named = models.iter().enumerate().map(|(number, model)| ChainModel {
        chain: format!("function-{number}"),
        machine: "m".to_owned(),
        model: model.clone(),
    });
    let slomo = Slomo::new(named.collect(), 0.9).expect("a predictor");
    let others: Vec<&ContentionModel> = models[1..7].iter().map(|model| &**model).collect();
    let options = PredictOptions::default();
    let name = "placement/slomo/prediction";
    if name.contains(&wanted) {
        print(
            name,
            "us",
            timed(10_000, || drop(black_box(performance(&models[0], &others, &options)))),
        );
    }
    let name = "placement/slomo/prediction-kept";
    if name.contains(&wanted) {
        let others: Vec<Member> = (1..7).map(Member).collect();
        print(
            name,
            "us",
            timed(100_000, || drop(black_box(slomo.effect(Member(0), &others)))),
        );
    }
    let kind = ServerKind {
        machine: "m".into(),
        nodes: 1,
        cores: 16,
        ways: 18,
        way_bytes: 1,
        classes: 15,
    };
    let cluster = Cluster::uniform(kind, 200).expect("a cluster");
    let chains: Vec<Arc<ChainProfile>> = (0..FUNCTIONS).map(chain).collect();
    let mut chance = Chance(7);
    let slos: Vec<Slo> = (0..400)
        .map(|number| Slo {
            name: format!("slo-{number}"),
            chain: chains[(chance.next() * FUNCTIONS as f64) as usize].clone(),
            target: Target::Reserved {
                throughput: ALONE * (0.5 + 2.0 * chance.next()),
            },
            latency: Nanos(100_000),
            cap: None,
            spread: false,
            apart: None,
        })
        .collect();
    let name = "placement/slomo/admission";
    if name.contains(&wanted) {
        let scheduler = CoRunScheduler::new(&slomo);
        let mut plan = Plan::new(cluster);
        let times = slos.iter().filter_map(|slo| {
            let start = Instant::now();
            try_admit(&mut plan, slo, &scheduler).ok()?;
            Some(start.elapsed().as_secs_f64() * 1e3)
        });
        let times: Vec<f64> = times.collect();
        let admitted = times.len();
        print(name, "ms", times);
        print("placement/slomo/admission/admitted", "SLOs", vec![admitted as f64]);
        print(
            "placement/slomo/admission/servers",
            "servers",
            vec![plan.active() as f64],
        );
        print(
            "placement/slomo/admission/lower-bound",
            "servers",
            vec![plan.least_servers() as f64],
        );
    }
}
