//! Repeatability of curves, and the duration of measuring all of them.
//!
//! `cargo bench -p tailwater-profile --bench repeat [-- CHAIN.yaml...] [--runs N] [--flows N]` measures each chain (by
//! default `examples/acl-nat.yaml`) N times (20) as `tailwater profile all` does, and prints JSON lines:
//!
//! - `profile/repeat/CHAIN/CURVE/agree`: share of the values whose printed interval contains the median of the same
//!   value over all runs, a value being one position of the curve; `undisturbed` is the share of those without
//!   disturbed runs, `disturbed` the number of the others;
//! - `profile/all/CHAIN/duration`: duration of a run.
//!
//! Traffic is uniform, of `--flows` flows (10,000). Twenty runs take about a quarter of an hour a chain.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tailwater_dataplane::cores::{AvoidCores, default_core};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_profile::cache::Pirate;
use tailwater_profile::curve::Measured;
use tailwater_profile::profiles::{CacheProfile, CostProfile, LatencyProfile};
use tailwater_profile::{SweepOptions, cache_curve, function_costs, load_curve, uniform};

/// Values by curve and position.
type Values = BTreeMap<(&'static str, u32), Vec<Measured>>;

fn main() {
    let (mut chains, mut runs, mut flows) = (Vec::new(), 20, 10_000);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse().ok()).expect("a number");
        match arg.as_str() {
            "--bench" => {}
            "--runs" => runs = number(),
            "--flows" => flows = number(),
            chain => chains.push(PathBuf::from(chain)),
        }
    }
    if chains.is_empty() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        chains.push(root.join("../../examples/acl-nat.yaml"));
    }
    for chain in chains {
        let spec = ChainSpec::read(&chain).expect("a chain");
        repeat(&spec, runs, flows);
    }
}

fn repeat(spec: &ChainSpec, runs: u32, flows: u32) {
    let traffic = uniform(flows, 60, 1).expect("traffic");
    let stop = Arc::new(AtomicBool::new(false));
    let options = SweepOptions {
        core: default_core(),
        seed: 1,
        run_time: Nanos::from_millis(250),
    };
    let (mut values, mut durations) = (Values::new(), Vec::new());
    for run in 0..runs {
        let start = Instant::now();
        let _elsewhere = AvoidCores::new(&[options.core]);
        let latency = load_curve(spec, &traffic, &options, &stop, |_| {}).expect("latency");
        let costs = function_costs(spec, &traffic, &options, &stop, |_| {}).expect("costs");
        let cache = Pirate::new(options.core, None, &stop).map(|mut pirate| {
            let curve = cache_curve(spec, &traffic, &options, &mut pirate, &stop, |_| {});
            curve.expect("throughput over cache")
        });
        if let Err(error) = &cache {
            eprintln!("no curve over cache: {error}");
        }
        let seconds = start.elapsed().as_secs_f64();
        eprintln!("{}: run {} of {runs}: {seconds:.1} s", spec.name, run + 1);
        durations.push(seconds);
        add(&mut values, &latency, &costs, cache.ok().as_ref());
    }
    for curve in ["cache", "latency", "rates", "costs"] {
        print_agreement(&spec.name, curve, &values);
    }
    durations.sort_by(f64::total_cmp);
    if let (Some(min), Some(max)) = (durations.first(), durations.last()) {
        println!(
            "{}",
            serde_json::json!({
                "name": format!("profile/all/{}/duration", spec.name),
                "value": tenths(durations[durations.len() / 2]),
                "unit": "s",
                "min": tenths(*min),
                "max": tenths(*max),
                "runs": runs,
            })
        );
    }
}

fn add(values: &mut Values, latency: &LatencyProfile, costs: &CostProfile, cache: Option<&CacheProfile>) {
    let mut add = |curve, at, measured| values.entry((curve, at)).or_default().push(measured);
    for point in cache.into_iter().flat_map(|cache| &cache.points) {
        add("cache", point.at, point.measured);
    }
    for point in &latency.points {
        add("latency", point.at, point.measured);
    }
    add("rates", 0, latency.throughput);
    add("costs", 0, costs.whole);
    for (number, function) in (1..).zip(&costs.functions) {
        add("costs", number, function.cost);
    }
}

/// Prints the share of a curve's values that agree.
fn print_agreement(chain: &str, curve: &str, values: &Values) {
    let (mut all, mut agree, mut undisturbed, mut undisturbed_agree) = (0_u32, 0_u32, 0_u32, 0_u32);
    let mut worst: f64 = 0.0;
    for ((of, _), values) in values {
        // A single value agrees with itself.
        if *of != curve || values.len() < 2 {
            continue;
        }
        let mut sorted: Vec<f64> = values.iter().map(|measured| measured.value).collect();
        sorted.sort_by(f64::total_cmp);
        let median = sorted[sorted.len() / 2];
        for measured in values {
            let contains = (measured.lower()..=measured.upper()).contains(&median);
            all += 1;
            agree += u32::from(contains);
            undisturbed += u32::from(measured.disturbed == 0);
            undisturbed_agree += u32::from(contains && measured.disturbed == 0);
            worst = worst.max((measured.value / median - 1.0).abs());
        }
    }
    if all == 0 {
        return;
    }
    let share = |part: u32, whole: u32| 100.0 * f64::from(part) / f64::from(whole.max(1));
    println!(
        "{}",
        serde_json::json!({
            "name": format!("profile/repeat/{chain}/{curve}/agree"),
            "value": tenths(share(agree, all)),
            "unit": "%",
            "values": all,
            "undisturbed": tenths(share(undisturbed_agree, undisturbed)),
            "disturbed": all - undisturbed,
            "largest_deviation_percent": tenths(100.0 * worst),
        })
    );
}

fn tenths(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}
