//! Benchmark of NetBlaze's server mapper: the time of one remap of 512 buckets on 1 to 64 cores.
//!
//! `cargo bench -p tailwater-policy --bench server_mapper [-- NAME]` runs the figures whose names contain NAME. It
//! prints one JSON line per figure on standard output.
//!
//! - `steady`: every core has a fair share, so the mapper only finds that nothing moves;
//! - `overload`: one core in four must shed load, and cores are free;
//! - `reclaim`: half of the cores would suffice.

use std::hint::black_box;
use std::time::{Duration, Instant};
use tailwater_baselines::netblaze::{NetBlazeServerConfig, NetBlazeServerMapper};
use tailwater_net::Nanos;
use tailwater_policy::capacity::RateFrontier;
use tailwater_policy::server::{BucketLoad, CoreLoad, Move, ServerMapper, ServerView};

const BUCKETS: usize = 512;
const CORES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Measurements per figure. The median counts.
const RUNS: usize = 21;
/// Duration of one measurement.
const RUN: Duration = Duration::from_millis(20);

/// Capacity of one core. It falls with the number of flows, with as many corners as published profiles have.
fn capacity() -> RateFrontier {
    let mut frontier = RateFrontier::new();
    for corner in 1..=20_u32 {
        frontier.insert(corner * 15, 0.7e6 - 0.01e6 * f64::from(corner));
    }
    frontier
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without the flag, as a smoke test only.
    let bench = arguments.iter().any(|a| a == "--bench");
    let wanted = arguments.iter().find(|a| !a.starts_with('-'));
    for (case, share, busy) in [
        ("steady", 0.80, 0.80),
        ("overload", 0.80, 1.30),
        ("reclaim", 0.40, 0.40),
    ] {
        for cores in CORES {
            let name = format!("policy/server-mapper/{case}/{cores}-cores");
            if wanted.is_none_or(|part| name.contains(part.as_str())) {
                measure(&name, cores, share, busy, bench);
            }
        }
    }
}

/// Measures with each core's load at `share` of its capacity and every fourth core's at `busy`.
fn measure(name: &str, cores: usize, share: f64, busy: f64, bench: bool) {
    let per_core = BUCKETS as f64 / cores as f64;
    let bucket = |number: usize| {
        let core = number % cores;
        let load = if core.is_multiple_of(4) { busy } else { share };
        // Spread around the mean, different for each bucket of a core.
        let spread = 0.5 + (number / cores * 7 % 11) as f64 / 10.0;
        BucketLoad {
            flows: 60.0 / per_core * spread,
            rate: load * capacity().rate(60.0) / per_core * spread,
            core: core as u16,
        }
    };
    let buckets: Vec<BucketLoad> = (0..BUCKETS).map(bucket).collect();
    let core = |number| CoreLoad {
        dedicated: number < cores,
        ..CoreLoad::default()
    };
    let cores: Vec<CoreLoad> = (0..2 * cores).map(core).collect();
    let config = NetBlazeServerConfig::default();
    let mut mapper = NetBlazeServerMapper::new(config, capacity());
    let mut moves: Vec<Move> = Vec::with_capacity(BUCKETS);
    let mut now = Nanos::ZERO;
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..if bench { RUNS } else { 1 } {
        let (mut done, start) = (0, Instant::now());
        while done == 0 || (bench && start.elapsed() < RUN) {
            // Every iteration has the same input, so nothing has to be reset. Time advances far enough for moved
            // buckets to have settled.
            now += Nanos::from_secs(10);
            let (buckets, cores) = (&buckets[..], &cores[..]);
            moves.clear();
            mapper.remap(
                black_box(&ServerView {
                    now,
                    buckets,
                    cores,
                    late: 0.0,
                }),
                &mut moves,
            );
            black_box(&moves);
            done += 1;
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(done));
    }
    times.sort_by(f64::total_cmp);
    let (min, max) = (times[0], times[times.len() - 1]);
    println!(
        "{{\"name\": \"{name}\", \"value\": {:.2}, \"unit\": \"us\", \"min\": {min:.2}, \
         \"max\": {max:.2}, \"runs\": {}, \"moves\": {}}}",
        times[times.len() / 2],
        times.len(),
        moves.len()
    );
}
