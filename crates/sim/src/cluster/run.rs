//! A run of a simulated rack: chains, their load, the ingress, and the loop of the controller.

use super::load::ClusterLoad;
use super::options::{ClusterOptions, ClusterPolicy};
use super::report::ClusterReport;
use super::world::World;
use crate::flow_level::random::Draws;
use std::sync::Arc;
use tailwater_baselines::{QuadrantConfig, QuadrantFlows, QuadrantScaling, shed_rate};
use tailwater_net::Nanos;
use tailwater_placement::curve::{CacheCurve, CurveError, LoadCurve};
use tailwater_placement::improve::Saving;
use tailwater_placement::rack::{
    ChainCapacity, ChainDemand, ChainLoad, ChainView, RackController, RackPromise, RackThroughput, RackView,
    ScalingPolicy, ServerState, ServerView, TailwaterScaling, consolidated,
};
use tailwater_placement::slo::{Curves, ISOLATED};
use tailwater_traffic::TrafficError;
use tailwater_traffic::generate::{TrafficStatistics, preset};

/// Kinds of chains: packets per second on a core, bytes of its working set, objective in microseconds.
const KINDS: [(f64, u64, u64); 4] = [
    (6e6, 512 << 10, 200),
    (3e6, 1 << 20, 200),
    (1.5e6, 2 << 20, 300),
    (0.75e6, 4 << 20, 500),
];
/// Latency without load, and its growth, in microseconds.
const LATENCY: (f64, f64) = (10.0, 20.0);
/// Presets of traffic, in turn.
const TRAFFIC: [&str; 3] = ["backbone", "as", "smooth"];
/// Weight of a new second in the smoothed demand, and seconds of the recent peak.
const SMOOTHING: f64 = 0.1;
const PEAK_SECONDS: usize = 30;
/// Mean lifetime of flows in seconds, for an ingress that leaves them where they are.
const LIFETIME: f64 = 10.0;
/// Seconds in a row that end a recovery.
const RECOVERED: u64 = 3;

#[derive(Debug)]
enum Scaling {
    Tailwater(TailwaterScaling),
    Quadrant(QuadrantScaling),
}

impl ScalingPolicy for Scaling {
    fn capacity(&mut self, load: &ChainLoad<'_>) -> ChainCapacity {
        match self {
            Scaling::Tailwater(scaling) => scaling.capacity(load),
            Scaling::Quadrant(scaling) => scaling.capacity(load),
        }
    }
}

/// Curves of a kind of chains. With a quarter of its working set a chain is a fifth slower.
fn curves(rate: f64, working_set: u64) -> Result<Curves, CurveError> {
    let latency = |load: f64| Nanos(((LATENCY.0 + LATENCY.1 * load / (1.0 - load)) * 1e3) as u64);
    let mut load: Vec<(f64, Nanos)> = (1..=49)
        .map(|at| f64::from(at) / 50.0)
        .map(|at| (at, latency(at)))
        .collect();
    load.push((1.0, Nanos::from_millis(5)));
    Ok(Curves {
        machine: "simulated".into(),
        cores: 1,
        cache: CacheCurve::new(vec![(working_set / 4, rate * 0.8), (working_set, rate)])?,
        load: LoadCurve::new(load)?,
    })
}

/// Share of the time in which a core may be busy at the objective of a chain.
fn busy_within(promise: &RackPromise, part: f64) -> f64 {
    let within = Nanos((promise.latency.0 as f64 * part) as u64);
    promise.curves[0].load.load_within(within).min(1.0)
}

/// Packets per second of a chain on a core with all of the cache.
fn whole_rate(promise: &RackPromise) -> f64 {
    promise.curves[0].cache.most() * ISOLATED
}

fn servers(options: &ClusterOptions) -> Vec<ServerView> {
    let server = |at: usize| ServerView {
        name: format!("server-{at:04}"),
        machine: "simulated".into(),
        state: ServerState::Ready,
        cores: (0..options.cores).collect(),
        cache_bytes: options.cache_bytes,
        headroom: options.headroom,
        pools: Vec::new(),
    };
    (0..options.servers).map(server).collect()
}

/// Returns the chains, and their loads in packets per second, second by second.
fn chains(options: &ClusterOptions) -> Result<(Vec<ChainView>, Vec<Vec<f64>>), TrafficError> {
    let statistics = TRAFFIC.map(|name| preset(name).map(|preset| TrafficStatistics::of(&preset)));
    let statistics = statistics.into_iter().collect::<Result<Vec<_>, _>>()?;
    let kinds = KINDS.map(|(rate, bytes, _)| curves(rate, bytes).map(Arc::new));
    let mut draws = Draws::new(options.seed);
    // Sizes differ by a factor of about seven between the tenth and the ninetieth percentile.
    let sizes: Vec<f64> = (0..options.chains).map(|_| libm::exp(0.75 * draws.normal())).collect();
    let all: f64 = sizes.iter().sum();
    let mut views = Vec::new();
    let mut loads = Vec::new();
    for (at, size) in sizes.iter().enumerate() {
        let (rate, _, latency) = KINDS[at % KINDS.len()];
        // The points above are a curve.
        let Ok(curves) = &kinds[at % KINDS.len()] else { continue };
        let mean = options.load * size / all * rate;
        let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(at as u64);
        let mut load = ClusterLoad::new(&statistics[at % statistics.len()], mean, options.day, seed);
        let load: Vec<f64> = (0..options.seconds).map(|_| load.step()).collect();
        let peak = load.iter().copied().fold(0.0, f64::max);
        let is_redundant = options.redundant > 0 && at % options.redundant == 0;
        let latency = Nanos::from_micros(latency);
        views.push(ChainView {
            name: format!("chain-{at:04}"),
            promise: Some(RackPromise {
                throughput: match options.policy {
                    ClusterPolicy::StaticPeak => RackThroughput::Reserved(peak),
                    _ => RackThroughput::OnDemand,
                },
                latency,
                curves: vec![Arc::clone(curves)],
            }),
            objective: Some(latency),
            cores: 1,
            least: 1,
            most: 1000,
            redundancy: if is_redundant { 2 } else { 1 },
            pool: None,
            is_bound: false,
            demand: ChainDemand {
                offered: load[0],
                smoothed: load[0],
                peak: load[0],
            },
        });
        loads.push(load);
    }
    Ok((views, loads))
}

/// Least cores for the load of a second.
fn oracle(chains: &[ChainView], loads: &[f64]) -> f64 {
    let cores = chains.iter().zip(loads).filter_map(|(chain, load)| {
        let promise = chain.promise.as_ref()?;
        Some(load / whole_rate(promise) / busy_within(promise, 1.0).max(f64::MIN_POSITIVE))
    });
    cores.sum::<f64>().ceil()
}

/// Shares the load of a chain among its instances. Returns `false` if none processes packets.
fn steer(world: &mut World<'_>, chain: usize, load: f64, quadrant: Option<&QuadrantConfig>) -> bool {
    let all = std::mem::take(&mut world.of_chain[chain]);
    let ready: Vec<usize> = all.iter().copied().filter(|at| world.processes(*at)).collect();
    for at in &all {
        if !ready.contains(at) {
            world.live[*at].offered = 0.0;
        }
    }
    world.of_chain[chain] = all;
    if ready.is_empty() {
        return false;
    }
    let promise = world.view.chains[chain].promise.as_ref();
    if let Some((config, promise)) = quadrant.zip(promise) {
        let most = whole_rate(promise);
        let lower = promise.latency.0 as f64 * config.alpha;
        let upper = promise.latency.0 as f64 * config.beta;
        let shed: Vec<f64> = ready
            .iter()
            .map(|&at| {
                let seen = &world.view.instances[at].load;
                let latency = Nanos(2 * seen.batch_p99.0 + config.network.0);
                match latency.0 as f64 > upper {
                    true => shed_rate(seen.offered, most, latency, Nanos(lower as u64)),
                    false => 0.0,
                }
            })
            .collect();
        let flows = QuadrantFlows {
            ending: 1.0 - libm::exp(-1.0 / LIFETIME),
            limit: most * busy_within(promise, config.alpha).min(config.load_limit),
        };
        let mut rates: Vec<f64> = ready.iter().map(|&at| world.live[at].offered).collect();
        flows.step(&mut rates, &shed, load);
        ready
            .iter()
            .zip(rates)
            .for_each(|(&at, rate)| world.live[at].offered = rate);
        return true;
    }
    let promised: f64 = ready.iter().map(|&at| world.view.instances[at].promised).sum();
    for at in ready {
        world.live[at].offered = load * world.view.instances[at].promised / promised.max(f64::MIN_POSITIVE);
    }
    true
}

/// Simulates a rack. Equal options give equal reports.
///
/// # Errors
/// A traffic preset is missing.
pub fn simulate_cluster(options: &ClusterOptions) -> Result<ClusterReport, TrafficError> {
    let (views, loads) = chains(options)?;
    let (scaling, quadrant) = match options.policy {
        ClusterPolicy::Tailwater { scaling, .. } => (Scaling::Tailwater(scaling), None),
        ClusterPolicy::Quadrant(config) => (Scaling::Quadrant(QuadrantScaling::new(config)), Some(config)),
        ClusterPolicy::StaticPeak => (Scaling::Tailwater(TailwaterScaling::default()), None),
    };
    let mut controller = RackController::new(options.controller, scaling);
    let mut world = World::new(
        options,
        RackView {
            now: Nanos::from_secs(1000),
            servers: servers(options),
            chains: views,
            instances: Vec::new(),
        },
    );
    let mut report = ClusterReport::default();
    let mut affected: Vec<(usize, u64)> = Vec::new();
    let mut rounds = 0;
    for second in 0..options.seconds {
        if second == options.warm_up {
            report = ClusterReport::default();
            rounds = 0;
        }
        if second == options.failure.0 && options.failure.1 > 0.0 && second > 0 {
            affected = fail(&mut world, options, &mut report);
        }
        // The controller knows the seconds before.
        if second % options.period.max(1) == 0 {
            if let ClusterPolicy::Tailwater { consolidation, .. } = options.policy
                && consolidation > 0
                && second % consolidation == 0
            {
                let plan = consolidated(&world.view, &options.controller);
                controller.rearrange(&world.view, &plan, Saving::Servers(1));
            }
            let plan = controller.decide(&world.view);
            rounds += 1;
            report.predictions.0 += plan.work.predicted as f64;
            report.predictions.1 = report.predictions.1.max(plan.work.predicted);
            world.execute(&plan, &mut report);
        }
        world.advance();
        let now: Vec<f64> = loads.iter().map(|load| load[second as usize]).collect();
        let lost: Vec<bool> = (0..now.len())
            .map(|chain| !steer(&mut world, chain, now[chain], quadrant.as_ref()))
            .collect();
        let result = world.process(&lost);
        for (chain, load) in world.view.chains.iter_mut().zip(&loads) {
            let demand = &mut chain.demand;
            let recent = &load[(second as usize + 1).saturating_sub(PEAK_SECONDS)..=second as usize];
            demand.offered = load[second as usize];
            demand.smoothed += SMOOTHING * (demand.offered - demand.smoothed);
            demand.peak = recent.iter().copied().fold(0.0, f64::max);
        }
        report.seconds += 1;
        report.core_seconds += result.cores as f64;
        report.servers += result.servers as f64;
        report.oracle_core_seconds += oracle(&world.view.chains, &now);
        report.chain_seconds += result.kept.len() as u64;
        report.kept += result.kept.iter().filter(|kept| **kept).count() as u64;
        let since = second - options.failure.0.min(second);
        affected.retain_mut(|(chain, kept)| {
            *kept = if result.kept[*chain] { *kept + 1 } else { 0 };
            if *kept == RECOVERED {
                report.recovery.push(since + 1 - RECOVERED);
            }
            *kept < RECOVERED
        });
    }
    // The others have not recovered in this time.
    report
        .recovery
        .extend(affected.iter().map(|_| options.seconds - options.failure.0));
    report.recovery.sort_unstable();
    report.servers /= report.seconds.max(1) as f64;
    report.predictions.0 /= f64::from(rounds.max(1));
    report.instances = world.view.instances.len();
    Ok(report)
}

/// Lets servers with instances fail. Returns the chains that are affected.
fn fail(world: &mut World<'_>, options: &ClusterOptions, report: &mut ClusterReport) -> Vec<(usize, u64)> {
    let mut draws = Draws::new(options.seed ^ 0x5eed);
    let mut left = world.used();
    let number = (left.len() as f64 * options.failure.1).ceil() as usize;
    let mut affected = Vec::new();
    for _ in 0..number {
        let server = left.swap_remove(draws.below(left.len()));
        affected.extend(world.fail(server));
    }
    affected.sort_unstable();
    affected.dedup();
    (report.failed, report.affected) = (number, affected.len());
    affected.into_iter().map(|chain| (chain, 0)).collect()
}
