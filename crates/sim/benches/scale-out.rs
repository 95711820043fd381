//! Scale-out: late and lost packets on 1, 2, 4 and 8 servers, from the same packets, with the load at full from the
//! first packet, as after a restart of the ingress.
//!
//! ```sh
//! cargo bench -p tailwater-sim --bench scale-out -- [--servers 1,2,4,8] [--cores 4] [--load 4.7] [--chain 840]
//!     [--slo 200] [--traffic backbone] [--seconds 1] [--warm-up 0] [--seeds 1,2] [--policies static,tailwater]
//! ```
//!
//! `--load` is the core time that the packets take in full batches, in cores. Each figure is a line of JSON:
//! `scale-out/<load>-cores/<servers>x<cores>/<policy>/<seed>`.

use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier, RateFrontier, ServiceCosts};
use tailwater_policy::server::IngressConfig;
use tailwater_sim::{
    ChainModel, ChainRun, FlowOptions, Objective, Rack, RackPolicy, Recording, RunOptions, Workload, simulate,
};
use tailwater_traffic::generate::{Preset, preset};

struct Arguments {
    servers: Vec<usize>,
    cores: u16,
    loads: Vec<f64>,
    nanos: f64,
    slo: Nanos,
    traffic: String,
    seconds: f64,
    warm_up: f64,
    seeds: Vec<u64>,
    policies: Vec<String>,
    windows: bool,
}

fn list<T: std::str::FromStr>(text: &str) -> Vec<T> {
    let parse = |word: &str| word.parse().unwrap_or_else(|_| panic!("unexpected value {word}"));
    text.split(',').map(parse).collect()
}

fn arguments() -> Arguments {
    let mut found = Arguments {
        servers: vec![1, 2, 4, 8],
        cores: 4,
        loads: vec![4.7],
        nanos: 840.0,
        slo: Nanos::from_micros(200),
        traffic: "backbone".to_owned(),
        seconds: 1.0,
        warm_up: 0.0,
        seeds: vec![1, 2],
        policies: list("static,tailwater"),
        windows: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--bench" {
            continue;
        }
        if word == "--windows" {
            found.windows = true;
            continue;
        }
        let value = words.next().unwrap_or_else(|| panic!("{word}: expected a value"));
        let number = || list::<f64>(&value)[0];
        match word.as_str() {
            "--servers" => found.servers = list(&value),
            "--cores" => found.cores = list(&value)[0],
            "--load" => found.loads = list(&value),
            "--chain" => found.nanos = number(),
            "--slo" => found.slo = Nanos::from_micros(number() as u64),
            "--traffic" => found.traffic = value,
            "--seconds" => found.seconds = number(),
            "--warm-up" => found.warm_up = number(),
            "--seeds" => found.seeds = list(&value),
            "--policies" => found.policies = list(&value),
            _ => panic!("unknown option {word}"),
        }
    }
    found
}

/// Records traffic at `rate` packets per second.
fn record(arguments: &Arguments, rate: f64, seed: u64) -> Arc<Recording> {
    let make = |scale: f64, seconds: f64| {
        let chosen = preset(&arguments.traffic).unwrap_or_else(|error| panic!("{error}"));
        let mut chosen = chosen.scaled(scale).with(seed, Nanos::from_secs_f64(seconds));
        if let Preset::Aggregate { config, .. } = &mut chosen {
            config.warm_up = Nanos::from_secs(2);
        }
        let arrivals = chosen.arrivals().unwrap_or_else(|error| panic!("{error}"));
        let recording = Recording::load(arrivals, FlowOptions::default(), 10 << 30);
        recording.unwrap_or_else(|error| panic!("{error}"))
    };
    let one = make(1.0, 2.0);
    let own = one.packets() as f64 / one.duration().as_secs_f64();
    Arc::new(make(rate / own, arguments.warm_up + arguments.seconds))
}

fn main() {
    let arguments = arguments();
    let nanos = arguments.nanos;
    let profile = CapacityProfile {
        chain: format!("{nanos}ns"),
        slo: arguments.slo,
        epoch: Nanos(arguments.slo.0 / 2),
        frontier: EpochFrontier::constant((arguments.slo.0 as f64 / 2.0 / nanos) as u32),
        rates: RateFrontier::constant(1e9 / nanos),
        costs: Some(ServiceCosts {
            batch: 320.0,
            packet: nanos - 10.0,
            byte: 0.0,
            new_flow: 200.0,
        }),
        ..CapacityProfile::default()
    };
    for (&load, &seed) in arguments
        .loads
        .iter()
        .flat_map(|load| arguments.seeds.iter().map(move |seed| (load, seed)))
    {
        let packets = record(&arguments, load * 1e9 / nanos, seed);
        for &servers in &arguments.servers {
            let mut rack = Rack::of_one(arguments.cores);
            rack.servers = vec![rack.servers[0].clone(); servers];
            for name in &arguments.policies {
                let objective = Objective {
                    slo: arguments.slo,
                    profile: &profile,
                    packet: Nanos(nanos as u64),
                    ingress: IngressConfig {
                        prefix_v4: 24,
                        prefix_v6: 48,
                        threshold: (arguments.cores / 2).max(1),
                        table: rack.switch.table,
                        flow_hash: rack.switch.flow_hash,
                        rebalance: false,
                        scale_in: false,
                    },
                };
                let chain = ChainRun {
                    model: ChainModel::from_profile(&profile).unwrap_or_else(|error| panic!("{error}")),
                    slo: arguments.slo,
                    policy: RackPolicy::named(name, &objective).unwrap_or_else(|error| panic!("{name}: {error}")),
                    workload: Workload::from(Arc::clone(&packets)),
                };
                let options = RunOptions {
                    seed,
                    warm_up: Nanos::from_secs_f64(arguments.warm_up),
                    ..RunOptions::default()
                };
                let report = simulate(&rack, vec![chain], &options).unwrap_or_else(|error| panic!("{error}"));
                let chain = &report.chains[0];
                let late: u64 = chain.late_by_cause.values().sum();
                // Start of the last window of 10 ms in which more than 1 % were late.
                let mut missed = chain.windows.iter().filter(|window| window.late * 100 > window.offered);
                let settled = missed.next_back().map_or(0.0, |window| window.start_s + 0.01);
                let decisions = &chain.decisions;
                println!(
                    "{{\"name\": \"scale-out/{load}-cores/{servers}x{}/{name}/{seed}\", \"value\": {:.5}, \"unit\": \"late\", \
                     \"lost\": {:.5}, \"p99_us\": {:.1}, \"cores\": {:.2}, \"last_miss_s\": {settled:.2}, \"rows\": {}, \
                     \"moved\": {}, \"held\": {}, \"longest_move_ms\": {:.1}, \"causes\": {:?}}}",
                    arguments.cores,
                    late as f64 / chain.packets.offered.max(1) as f64,
                    chain.loss_rate,
                    chain.latency_us.p99,
                    chain.cores.total,
                    decisions.rules,
                    decisions.rows_moved,
                    decisions.held_for_move,
                    decisions.longest_row_move_ns as f64 / 1e6,
                    chain.late_by_cause,
                );
                if arguments.windows {
                    for window in chain.windows.iter().filter(|window| window.late > 0) {
                        eprintln!("{:.2} s: {} of {} late", window.start_s, window.late, window.offered);
                    }
                }
            }
        }
    }
}
