//! Load curve: late and lost packets of a policy and of static RSS on the same cores, from the same packets, at 60 to
//! 120 % of what the cores process.
//!
//! ```sh
//! cargo bench -p tailwater-sim --bench load-curve -- [--cores 4] [--chains 250,840,1350] [--loads 60,...] [--slo 200]
//!     [--traffic backbone] [--seconds 1] [--warm-up 2] [--seed 11] [--policies static,tailwater] [--dispatch live]
//!     [--falls-to 60]
//! ```
//!
//! `static+fresh` is static RSS with `whenOverloaded: serve-fresh`, and so on for all policies. `in_time` is the rate
//! of packets in time, as a share of what the cores process. With `--falls-to`, the load falls to that percentage for
//! another second, which the other figures contain, too. `recovery` is the number of epochs (half the objective) from
//! there to the first of ten in each of which at most 1 % of the packets are late.
//!
//! `tailwater-flows` is Tailwater with flows as the unit of offloading, instead of RSS buckets.
//!
//! Each figure is a line of JSON: `load-curve/<cores>-cores/<chain>/<load>/<policy>/<late|lost|p99-us|cores>`.

use std::sync::Arc;
use tailwater_api::WhenOverloaded;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, DetailedCosts, EpochFrontier, RateFrontier, ServiceCosts};
use tailwater_policy::core::Unit;
use tailwater_policy::server::IngressConfig;
use tailwater_policy::tailwater::{TailwaterMapper, TailwaterOptions};
use tailwater_sim::report::WindowReport;
use tailwater_sim::{
    ChainModel, ChainRun, FlowOptions, Objective, Rack, RackPolicy, Recording, RunOptions, Workload, simulate,
};
use tailwater_traffic::generate::{Preset, preset};

/// Costs between cores, in nanoseconds a packet: queueing, handing over, taking over.
const DISPATCH: &[(&str, [f64; 3])] = &[
    ("papers", [10.0, 17.0, 10.0]),
    ("live", [85.0, 25.0, 35.0]),
    ("cheap-chain", [150.0, 50.0, 100.0]),
];

struct Arguments {
    cores: u16,
    chains: Vec<f64>,
    loads: Vec<f64>,
    slo: Nanos,
    traffic: String,
    seconds: f64,
    warm_up: f64,
    seed: u64,
    policies: Vec<String>,
    dispatch: [f64; 3],
    ring: u32,
    whale: f64,
    falls_to: Option<f64>,
}

fn arguments() -> Arguments {
    let mut found = Arguments {
        cores: 4,
        chains: vec![250.0, 840.0, 1350.0],
        loads: (12..=24).map(|step| f64::from(step) * 5.0).collect(),
        slo: Nanos::from_micros(200),
        traffic: "backbone".to_owned(),
        seconds: 1.0,
        warm_up: 2.0,
        seed: 11,
        policies: vec!["static".to_owned(), "tailwater".to_owned()],
        dispatch: DISPATCH[1].1,
        ring: 1024,
        whale: 0.0,
        falls_to: None,
    };
    let mut words = std::env::args().skip(1);
    let list = |text: String| {
        text.split(',')
            .map(|word| word.parse().unwrap_or_else(|_| panic!("{word}")))
            .collect()
    };
    while let Some(word) = words.next() {
        if word == "--bench" {
            continue;
        }
        let value = words.next().unwrap_or_else(|| panic!("{word}: expected a value"));
        let number = || {
            value
                .parse::<f64>()
                .unwrap_or_else(|_| panic!("{word}: expected a number, found {value}"))
        };
        match word.as_str() {
            "--cores" => found.cores = number() as u16,
            "--chains" => found.chains = list(value),
            "--loads" => found.loads = list(value),
            "--slo" => found.slo = Nanos::from_micros(number() as u64),
            "--traffic" => found.traffic = value,
            "--seconds" => found.seconds = number(),
            "--warm-up" => found.warm_up = number(),
            "--seed" => found.seed = number() as u64,
            "--falls-to" => found.falls_to = Some(number()),
            "--whale" => found.whale = number(),
            "--ring" => found.ring = number() as u32,
            "--policies" => found.policies = value.split(',').map(str::to_owned).collect(),
            "--dispatch" => {
                let known = DISPATCH.iter().find(|(name, _)| *name == value);
                found.dispatch = known
                    .unwrap_or_else(|| panic!("--dispatch: expected papers, live or cheap-chain"))
                    .1;
            }
            _ => panic!("unknown option {word}"),
        }
    }
    found
}

/// Records traffic at `rate` packets per second.
fn record(arguments: &Arguments, rate: f64) -> Arc<Recording> {
    let make = |scale: f64, seconds: f64| {
        let chosen = preset(&arguments.traffic).unwrap_or_else(|error| panic!("{error}"));
        let mut chosen = chosen.scaled(scale).with(arguments.seed, Nanos::from_secs_f64(seconds));
        if let Preset::Aggregate { config, .. } = &mut chosen {
            config.warm_up = Nanos::from_secs(2);
        }
        let arrivals = chosen.arrivals().unwrap_or_else(|error| panic!("{error}"));
        let recording = Recording::load(arrivals, FlowOptions::default(), 10 << 30);
        recording.unwrap_or_else(|error| panic!("{error}"))
    };
    let one = make(1.0, 2.0);
    let own = one.packets() as f64 / one.duration().as_secs_f64();
    let fallen = arguments.falls_to.map_or(0.0, |_| FALLEN.as_secs_f64());
    Arc::new(make(rate / own, arguments.warm_up + arguments.seconds + fallen))
}

/// Time for which the load is lower.
const FALLEN: Nanos = Nanos::from_secs(1);
/// Epochs without more than a share of late packets after which a policy has recovered.
const RECOVERED: usize = 10;
const RECOVERED_LATE: f64 = 0.01;

/// Lets the time from `since` on pass at `speed`.
fn falling(packets: &Recording, since: Nanos, speed: f64) -> Arc<Recording> {
    let all = packets.iter().map(|(time, flow, bytes)| {
        let after = time.saturating_sub(since).0 as f64 / speed;
        (time.min(since) + Nanos(after as u64), flow, bytes)
    });
    Arc::new(Recording::of_packets("falling", all, 50))
}

/// Returns the number of windows until the packets are in time again.
fn recovery(windows: &[WindowReport]) -> Option<usize> {
    let is_late = |window: &WindowReport| window.late as f64 > RECOVERED_LATE * window.offered as f64;
    windows.windows(RECOVERED).position(|next| !next.iter().any(is_late))
}

/// Adds a flow with a packet every `gap` nanoseconds.
fn with_whale(packets: &Recording, gap: f64) -> Arc<Recording> {
    let flow = packets.iter().map(|(_, flow, _)| flow).max().unwrap_or(0) + 1;
    let whale = (0..(packets.duration().0 as f64 / gap) as u64).map(|i| (Nanos((i as f64 * gap) as u64), flow, 1000));
    let mut all: Vec<(Nanos, u32, u16)> = packets.iter().chain(whale).collect();
    all.sort_by_key(|(time, ..)| *time);
    Arc::new(Recording::of_packets("whale", all, 50))
}

fn main() {
    let arguments = arguments();
    for &nanos in &arguments.chains {
        for &load in &arguments.loads {
            let [queue_packet, hand_over_packet, take_over_packet] = arguments.dispatch;
            let costs = ServiceCosts {
                batch: 320.0,
                packet: nanos - 10.0,
                byte: 0.0,
                new_flow: 200.0,
            };
            let capacity = 1e9 / nanos;
            let profile = CapacityProfile {
                chain: format!("{nanos}ns"),
                slo: arguments.slo,
                epoch: Nanos(arguments.slo.0 / 2),
                frontier: EpochFrontier::constant((arguments.slo.0 as f64 / 2.0 / nanos) as u32),
                rates: RateFrontier::constant(capacity),
                costs: Some(costs),
                details: Some(DetailedCosts {
                    receive_packet: 35.0,
                    queue_packet,
                    hand_over_packet,
                    take_over_packet,
                    ..DetailedCosts::default()
                }),
                ..CapacityProfile::default()
            };
            let packets = record(&arguments, load / 100.0 * capacity * f64::from(arguments.cores));
            let packets = match arguments.whale > 0.0 {
                true => with_whale(&packets, nanos / arguments.whale),
                false => packets,
            };
            let falls_at = Nanos::from_secs_f64(arguments.warm_up + arguments.seconds);
            let packets = match arguments.falls_to {
                Some(to) => falling(&packets, falls_at, to / load),
                None => packets,
            };
            let mut rack = Rack::of_one(arguments.cores);
            rack.servers[0].ring = arguments.ring;
            for name in &arguments.policies {
                let mut model = ChainModel::from_profile(&profile).unwrap_or_else(|error| panic!("{error}"));
                let (name, fresh) = match name.strip_suffix("+fresh") {
                    Some(name) => (name, "+fresh"),
                    None => (name.as_str(), ""),
                };
                if !fresh.is_empty() {
                    model.when_overloaded = WhenOverloaded::ServeFresh;
                }
                let objective = Objective {
                    slo: arguments.slo,
                    profile: &profile,
                    packet: Nanos(nanos as u64),
                    ingress: IngressConfig {
                        prefix_v4: 24,
                        prefix_v6: 48,
                        threshold: arguments.cores,
                        table: 2000,
                        flow_hash: true,
                        rebalance: false,
                        scale_in: false,
                    },
                };
                // One dedicated core, all others auxiliary: `tailwater-pool`.
                let base = name.strip_suffix("-pool").unwrap_or(name);
                let by_flow = base == "tailwater-flows";
                let known = if by_flow { "tailwater" } else { base };
                let policy = match name.ends_with("-pool") {
                    true => RackPolicy::with_one_dedicated_core(known, &objective),
                    false => RackPolicy::named(known, &objective),
                };
                let mut policy = policy.unwrap_or_else(|error| panic!("{name}: {error}"));
                if by_flow {
                    let options = TailwaterOptions {
                        unit: Unit::Flow,
                        ..TailwaterOptions::measured(arguments.slo, &profile)
                    };
                    let splits = profile.splits.clone();
                    policy.core = Some(Arc::new(move || {
                        Box::new(TailwaterMapper::new(options, splits.clone()).expect("a budget"))
                    }));
                }
                let chain = ChainRun {
                    model,
                    slo: arguments.slo,
                    policy,
                    workload: Workload::from(Arc::clone(&packets)),
                };
                let options = RunOptions {
                    window: match arguments.falls_to {
                        Some(_) => profile.epoch,
                        None => RunOptions::default().window,
                    },
                    warm_up: Nanos::from_secs_f64(arguments.warm_up),
                    ..RunOptions::default()
                };
                let report = simulate(&rack, vec![chain], &options).unwrap_or_else(|error| panic!("{error}"));
                let chain = &report.chains[0];
                let late: u64 = chain.late_by_cause.values().sum();
                let share = |count: u64| count as f64 / chain.packets.offered.max(1) as f64;
                let cell = format!("load-curve/{}-cores/{nanos}ns/{load}/{name}{fresh}", arguments.cores);
                let after = falls_at.saturating_sub(options.warm_up).0 / options.window.0;
                let recovery = arguments.falls_to.map(|_| recovery(&chain.windows[after as usize..]));
                println!(
                    "{{\"name\": \"{cell}/late\", \"value\": {:.5}, \"unit\": \"share\", \"lost\": {:.5}, \"in_time\": {:.3}, \"recovery\": {}, \"p50_us\": {:.1}, \"p99_us\": {:.1}, \
                     \"cores\": {:.2}, \"dedicated\": {:.2}, \"auxiliary\": {:.2}, \"busy\": {:.2}, \"offloaded\": {:.3}, \"causes\": {:?}}}",
                    share(late),
                    chain.loss_rate,
                    (1.0 - share(late)) * load / 100.0,
                    recovery.map_or("null".to_owned(), |epochs| epochs
                        .map_or("\"never\"".to_owned(), |n| n.to_string())),
                    chain.latency_us.p50,
                    chain.latency_us.p99,
                    report.cores.average,
                    chain.cores.dedicated,
                    chain.cores.auxiliary,
                    chain.cores.busy,
                    share(chain.decisions.packets_handed),
                    chain.late_by_cause.iter().filter(|(_, n)| **n > 0).collect::<Vec<_>>(),
                );
            }
        }
    }
}
