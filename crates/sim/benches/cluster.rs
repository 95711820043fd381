//! A rack's controller on a thousand servers for an hour, simulated: cores by policy compared with an oracle's,
//! objectives kept, moves, and recovery when a tenth of the servers fails.
//!
//! ```sh
//! cargo bench -p tailwater-sim --bench cluster -- [--servers 1000] [--chains 1000] [--load 0.33] [--seconds 3600]
//!     [--seeds 11,12,13] [--policies tailwater,tailwater-unmoved,quadrant,static-peak]
//!     [--margin 0] [--peak 0] [--band 0.2] [--hold 20] [--moves 16] [--alpha 0.7] [--beta 0.9]
//! ```
//!
//! `--load` is the mean load as a part of all cores. `tailwater-unmoved` is Tailwater's policy without consolidation.
//! Each figure is a line of JSON, the median of the seeds: `cluster/<servers>x<chains>/<policy>/<figure>`. Seeds 1 to 3
//! are for tuning.

use std::time::Instant;
use tailwater_baselines::QuadrantConfig;
use tailwater_net::Nanos;
use tailwater_placement::rack::TailwaterScaling;
use tailwater_sim::cluster::{ClusterOptions, ClusterPolicy, ClusterReport, simulate_cluster};

struct Arguments {
    servers: usize,
    chains: usize,
    load: f64,
    seconds: u64,
    seeds: Vec<u64>,
    policies: Vec<String>,
    scaling: TailwaterScaling,
    band: f64,
    hold: u64,
    moves: usize,
    quadrant: QuadrantConfig,
}

fn list<T: std::str::FromStr>(text: &str) -> Vec<T> {
    let parse = |word: &str| word.parse().unwrap_or_else(|_| panic!("unexpected value {word}"));
    text.split(',').map(parse).collect()
}

fn arguments() -> Arguments {
    let controller = ClusterOptions::new(1, ClusterPolicy::StaticPeak).controller;
    let mut found = Arguments {
        servers: 1000,
        chains: 1000,
        load: 1.0 / 3.0,
        seconds: 3600,
        seeds: vec![11, 12, 13],
        policies: list("tailwater,tailwater-unmoved,quadrant,static-peak"),
        scaling: TailwaterScaling::default(),
        band: controller.band,
        hold: controller.hold.as_secs_f64() as u64,
        moves: controller.moves,
        quadrant: QuadrantConfig::new(Nanos::from_millis(1), 1.0),
    };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_else(|| panic!("{word}: expected a value"));
        let number = || list::<f64>(&value)[0];
        match word.as_str() {
            "--servers" => found.servers = number() as usize,
            "--chains" => found.chains = number() as usize,
            "--load" => found.load = number(),
            "--seconds" => found.seconds = number() as u64,
            "--seeds" => found.seeds = list(&value),
            "--policies" => found.policies = list(&value),
            "--margin" => found.scaling.margin = number(),
            "--peak" => found.scaling.peak = number(),
            "--band" => found.band = number(),
            "--hold" => found.hold = number() as u64,
            "--moves" => found.moves = number() as usize,
            "--alpha" => found.quadrant.alpha = number(),
            "--beta" => found.quadrant.beta = number(),
            _ => panic!("unknown option {word}"),
        }
    }
    found
}

fn policy(name: &str, arguments: &Arguments) -> ClusterPolicy {
    let scaling = arguments.scaling;
    match name {
        "tailwater" => ClusterPolicy::Tailwater {
            scaling,
            consolidation: 60,
        },
        "tailwater-unmoved" => ClusterPolicy::Tailwater {
            scaling,
            consolidation: 0,
        },
        "quadrant" => ClusterPolicy::Quadrant(arguments.quadrant),
        "static-peak" => ClusterPolicy::StaticPeak,
        _ => panic!("unknown policy {name}"),
    }
}

/// Figures with their units.
fn figures(report: &ClusterReport) -> Vec<(&'static str, f64, &'static str)> {
    vec![
        ("cores", report.core_seconds / report.seconds as f64, "cores"),
        ("cores-over-oracle", report.over_oracle(), "ratio"),
        ("servers", report.servers, "servers"),
        ("kept", report.kept_share() * 100.0, "% of chain-seconds"),
        ("moves-per-minute", report.moves_per_minute(), "1/min"),
        ("changes-per-minute", report.changes_per_minute(), "1/min"),
        (
            "resizes-per-minute",
            report.resized as f64 * 60.0 / report.seconds as f64,
            "1/min",
        ),
        ("refused-by-servers", report.refused as f64, "actions"),
        ("affected-by-failure", report.affected as f64, "chains"),
        ("recovery-p50", report.recovered_within(0.5) as f64, "s"),
        ("recovery-p99", report.recovered_within(0.99) as f64, "s"),
        ("recovery-max", report.recovered_within(1.0) as f64, "s"),
        ("instances-at-end", report.instances as f64, "instances"),
        ("predictions-per-round", report.predictions.0, "predictions"),
        ("predictions-of-a-round-max", report.predictions.1 as f64, "predictions"),
    ]
}

fn main() {
    let arguments = arguments();
    for name in &arguments.policies {
        let mut values: Vec<Vec<f64>> = Vec::new();
        let mut named = Vec::new();
        for &seed in &arguments.seeds {
            let mut options = ClusterOptions::new(arguments.servers, policy(name, &arguments));
            options.chains = arguments.chains;
            options.load = arguments.load * arguments.servers as f64 * f64::from(options.cores);
            options.seconds = arguments.seconds;
            options.failure.0 = arguments.seconds / 2;
            options.seed = seed;
            options.controller.band = arguments.band;
            options.controller.hold = Nanos::from_secs(arguments.hold);
            options.controller.moves = arguments.moves;
            let began = Instant::now();
            let report = simulate_cluster(&options).expect("presets of traffic");
            eprintln!("{name}, seed {seed}: {:.1} s", began.elapsed().as_secs_f64());
            named = figures(&report);
            values.push(named.iter().map(|figure| figure.1).collect());
        }
        for (at, (figure, _, unit)) in named.iter().enumerate() {
            let mut of: Vec<f64> = values.iter().map(|values| values[at]).collect();
            of.sort_by(f64::total_cmp);
            println!(
                "{{\"name\": \"cluster/{}x{}/{name}/{figure}\", \"value\": {:.4}, \"unit\": \"{unit}\", \
                 \"min\": {:.4}, \"max\": {:.4}, \"runs\": {}}}",
                arguments.servers,
                arguments.chains,
                of[of.len() / 2],
                of[0],
                of[of.len() - 1],
                of.len(),
            );
        }
    }
}
