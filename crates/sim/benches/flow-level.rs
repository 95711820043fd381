//! Flow-level model against the packet-level one, on racks that both can run.
//!
//! ```sh
//! cargo bench -p tailwater-sim --bench flow-level -- [--racks 1x4,2x8] [--chains 250,840,1350] [--loads 40,60,80,90,100]
//!     [--traffic backbone,as,smooth] [--policies static,tailwater,netblaze] [--slo 200] [--seconds 2] [--warm-up 2]
//!     [--seeds 1,2,3]
//! ```
//!
//! A cell is a rack, a chain, a load, a traffic and a policy; its figures are means over the seeds. Each is a line of
//! JSON: `flow-level/<rack>/<chain>ns/<traffic>/<load>/<policy>/<late|lost|cores|p50-us|p99-us>`, with both models'
//! values; the last lines are the median and the worst error over all cells.

use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, DetailedCosts, EpochFrontier, RateFrontier, ServiceCosts};
use tailwater_policy::server::IngressConfig;
use tailwater_sim::flow_level::{FlowLevelChain, simulate_flows};
use tailwater_sim::{
    ChainModel, ChainReport, ChainRun, FlowOptions, Objective, Rack, RackPolicy, Recording, RunOptions, Workload,
    simulate,
};
use tailwater_traffic::generate::{Preset, TrafficStatistics, preset};

struct Arguments {
    racks: Vec<(usize, u16)>,
    chains: Vec<f64>,
    loads: Vec<f64>,
    traffic: Vec<String>,
    policies: Vec<String>,
    slo: Nanos,
    seconds: f64,
    warm_up: f64,
    seeds: Vec<u64>,
}

fn list<T: std::str::FromStr>(text: &str) -> Vec<T> {
    let parse = |word: &str| word.parse().unwrap_or_else(|_| panic!("unexpected value {word}"));
    text.split(',').map(parse).collect()
}

fn arguments() -> Arguments {
    let mut found = Arguments {
        racks: vec![(1, 4), (2, 8)],
        chains: vec![250.0, 840.0, 1350.0],
        loads: vec![40.0, 60.0, 80.0, 90.0, 100.0],
        traffic: list("backbone,as,smooth"),
        policies: list("static,tailwater,netblaze"),
        slo: Nanos::from_micros(200),
        seconds: 2.0,
        warm_up: 2.0,
        seeds: vec![1, 2, 3],
    };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_else(|| panic!("{word}: expected a value"));
        let number = || list::<f64>(&value)[0];
        match word.as_str() {
            "--racks" => {
                let rack = |text: String| {
                    let (servers, cores) = text.split_once('x').expect("a rack such as 2x8");
                    (list(servers)[0], list(cores)[0])
                };
                found.racks = list(&value).into_iter().map(rack).collect();
            }
            "--chains" => found.chains = list(&value),
            "--loads" => found.loads = list(&value),
            "--traffic" => found.traffic = list(&value),
            "--policies" => found.policies = list(&value),
            "--slo" => found.slo = Nanos::from_micros(number() as u64),
            "--seconds" => found.seconds = number(),
            "--warm-up" => found.warm_up = number(),
            "--seeds" => found.seeds = list(&value),
            _ => panic!("unknown option {word}"),
        }
    }
    found
}

fn profile(nanos: f64, slo: Nanos) -> CapacityProfile {
    CapacityProfile {
        chain: format!("{nanos}ns"),
        slo,
        epoch: Nanos(slo.0 / 2),
        frontier: EpochFrontier::constant((slo.0 as f64 / 2.0 / nanos) as u32),
        rates: RateFrontier::constant(1e9 / nanos),
        costs: Some(ServiceCosts {
            batch: 320.0,
            packet: nanos - 10.0,
            byte: 0.0,
            new_flow: 200.0,
        }),
        details: Some(DetailedCosts {
            receive_packet: 35.0,
            queue_packet: 85.0,
            hand_over_packet: 25.0,
            take_over_packet: 35.0,
            ..DetailedCosts::default()
        }),
        ..CapacityProfile::default()
    }
}

/// Records a preset, `scale` times as much.
fn record(preset: &Preset, scale: f64, seed: u64, length: Nanos) -> Recording {
    let source = preset
        .clone()
        .scaled(scale)
        .with(seed, length)
        .arrivals()
        .expect("a preset");
    Recording::load(source, FlowOptions::default(), 10 << 30).expect("packets")
}

/// Returns the number of packets after the warm-up.
fn offered(packets: &Recording, warm_up: f64) -> f64 {
    let from = Nanos::from_secs_f64(warm_up);
    packets.iter().filter(|(time, ..)| *time >= from).count() as f64
}

/// Figures of a run: late, lost (as shares), cores, p50 and p99 in microseconds.
fn figures(chain: &ChainReport) -> [f64; 5] {
    let late: u64 = chain.late_by_cause.values().sum();
    let share = |count: u64| count as f64 / chain.packets.offered.max(1) as f64;
    let latency = &chain.latency_us;
    [
        share(late),
        share(chain.packets.lost),
        chain.cores.total,
        latency.p50,
        latency.p99,
    ]
}

const FIGURES: [&str; 5] = ["late", "lost", "cores", "p50-us", "p99-us"];

fn main() {
    let arguments = arguments();
    let mut errors: [Vec<(f64, String)>; 5] = Default::default();
    for &(servers, cores) in &arguments.racks {
        let mut rack = Rack::of_one(cores);
        rack.servers = vec![rack.servers[0].clone(); servers];
        for name in &arguments.traffic {
            for &nanos in &arguments.chains {
                for &load in &arguments.loads {
                    let rate = load / 100.0 * 1e9 / nanos * f64::from(cores) * servers as f64;
                    let made = preset(name).expect("a preset");
                    let statistics = TrafficStatistics::of(&made);
                    let cell = format!("flow-level/{servers}x{cores}/{nanos}ns/{name}/{load}");
                    let length = Nanos::from_secs_f64(arguments.warm_up + arguments.seconds);
                    let mut packet_level = vec![[0.0; 5]; arguments.policies.len()];
                    let mut flow_level = packet_level.clone();
                    for &seed in &arguments.seeds {
                        // A preset's first seconds have another rate than long times.
                        let packets = record(&made, rate / statistics.packets, seed, length);
                        let own = offered(&packets, arguments.warm_up) / arguments.seconds;
                        let scale = rate / statistics.packets * rate / own;
                        let packets = Arc::new(record(&made, scale, seed, length));
                        let own = offered(&packets, arguments.warm_up);
                        for (number, policy) in arguments.policies.iter().enumerate() {
                            let profile = profile(nanos, arguments.slo);
                            let objective = Objective {
                                slo: arguments.slo,
                                profile: &profile,
                                packet: Nanos(nanos as u64),
                                ingress: IngressConfig {
                                    prefix_v4: 24,
                                    prefix_v6: 48,
                                    threshold: (cores / 2).max(1),
                                    table: 2000,
                                    flow_hash: false,
                                    rebalance: false,
                                    scale_in: false,
                                },
                            };
                            let policy = || RackPolicy::named(policy, &objective).expect("a policy");
                            let model = ChainModel::from_profile(&profile).expect("costs");
                            let options = RunOptions {
                                seed,
                                warm_up: Nanos::from_secs_f64(arguments.warm_up),
                                ..RunOptions::default()
                            };
                            let chain = ChainRun {
                                model: model.clone(),
                                slo: arguments.slo,
                                policy: policy(),
                                workload: Workload::from(Arc::clone(&packets)),
                            };
                            let exact = simulate(&rack, vec![chain], &options).expect("a run");
                            let at_flow_level = |scale: f64| {
                                let chain = FlowLevelChain {
                                    name: profile.chain.clone(),
                                    model: model.clone(),
                                    slo: arguments.slo,
                                    policy: policy(),
                                    traffic: (name.clone(), TrafficStatistics::of(&made.clone().scaled(scale))),
                                    profile: profile.clone(),
                                    seed,
                                    servers: None,
                                };
                                let found = simulate_flows(&rack, vec![chain], (length, 1), &options, |_| true);
                                found.expect("a run").expect("not stopped")
                            };
                            // Both models get the same number of packets.
                            let found = at_flow_level(scale).report.chains[0].packets.offered;
                            let found = at_flow_level(scale * own / found as f64);
                            let add = |to: &mut [f64; 5], chain| {
                                let figures = figures(chain);
                                to.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
                            };
                            add(&mut packet_level[number], &exact.chains[0]);
                            add(&mut flow_level[number], &found.report.chains[0]);
                        }
                    }
                    for (number, policy) in arguments.policies.iter().enumerate() {
                        for (figure, of) in FIGURES.iter().enumerate() {
                            let runs = arguments.seeds.len() as f64;
                            let exact = packet_level[number][figure] / runs;
                            let found = flow_level[number][figure] / runs;
                            // Shares differ by points, all else by a share.
                            let error = match figure {
                                0 | 1 => found - exact,
                                _ => found / exact.max(1e-9) - 1.0,
                            };
                            let name = format!("{cell}/{policy}/{of}");
                            println!(
                                "{{\"name\": \"{name}\", \"value\": {found:.5}, \"packet-level\": {exact:.5}, \
                                 \"error\": {error:.4}}}"
                            );
                            errors[figure].push((error, name));
                        }
                    }
                }
            }
        }
    }
    for (of, errors) in FIGURES.iter().zip(&mut errors) {
        errors.sort_by(|a, b| a.0.abs().total_cmp(&b.0.abs()));
        let (worst, cell) = errors.last().expect("a cell");
        println!(
            "{{\"name\": \"flow-level/error/{of}\", \"value\": {:.4}, \"unit\": \"{}\", \"p90\": {:.4}, \
             \"worst\": {worst:.4}, \"cell\": \"{cell}\", \"cells\": {}}}",
            errors[errors.len() / 2].0.abs(),
            if *of == "late" || *of == "lost" {
                "share of packets"
            } else {
                "relative"
            },
            errors[errors.len() * 9 / 10].0.abs(),
            errors.len(),
        );
    }
}
