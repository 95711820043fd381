//! Error of each model on Yala's published co-runs (FlowMonitor on BlueField-2, 50 rows, hardware counters), each
//! predicted by a model of the other groups.
//!
//! `cargo bench -p tailwater-predict --bench yala` prints one JSON line per figure. It requires `TAILWATER_TEST_DATA`.
//! Two groupings: by competitor (rows with the same working set share a synthetic competitor, so its counters are never
//! in the training), and by flow count of the target, which is nearly unique per row. The first one is the headline: it
//! is the question that placement asks, of a competitor that was never measured.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tailwater_predict::metric::{ACCESS_RATE, Resource, WORKING_SET};
use tailwater_predict::{
    Campaign, Goal, Key, Kind, Metric, Observation, Schema, Selection, Sensitivity, Source, TrainOptions, Vector,
    leave_groups_out,
};

const FILE: &str = "profiles/yala_flowmonitor_bluefield2_train.csv";
/// Seeds of folds and samples: the figure is the median.
const SEEDS: u64 = 3;

fn main() {
    let Some(folder) = std::env::var_os("TAILWATER_TEST_DATA") else {
        eprintln!("skipped: expected TAILWATER_TEST_DATA, the folder of {FILE}");
        return;
    };
    let path = PathBuf::from(folder).join(FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("skipped: {} cannot be read: {error}", path.display());
            return;
        }
    };
    // `cargo test --benches` runs benchmarks without `--bench`, and only as a check.
    let is_check = !std::env::args().any(|argument| argument == "--bench");
    let kinds = if is_check { &[Kind::Ridge][..] } else { &Kind::ALL[..] };
    for (suffix, column) in [("", 8), ("/by-flows", 0)] {
        let campaign = campaign(&text, column);
        for &kind in kinds {
            report(&campaign, kind, suffix);
        }
    }
    speed(&campaign(&text, 8));
}

/// Reads the rows as a campaign, grouped by a column.
fn campaign(text: &str, group: usize) -> Campaign {
    // Nothing is known about the direction of a single counter: competitors of two kinds are mixed.
    let schema = Schema::new(
        Source::Hardware,
        vec![
            Metric::of_target("flows", "flows"),
            Metric::of_target("packetBytes", "B"),
            Metric::ratio("instructionsPerCycle", "instructions/cycle", Resource::Other),
            Metric::ratio("instructions", "instructions/s", Resource::Other),
            Metric::ratio(ACCESS_RATE, "accesses/s", Resource::Cache),
            Metric::ratio("cacheWrites", "accesses/s", Resource::Cache),
            Metric::ratio("memoryReads", "B/s", Resource::MemoryBandwidth),
            Metric::ratio("memoryWrites", "B/s", Resource::MemoryBandwidth),
            Metric::ratio(WORKING_SET, "MiB", Resource::Cache),
        ],
    );
    let schema = Arc::new(schema.expect("names are valid"));
    let key = Key {
        function: "flow-monitor".to_owned(),
        configuration: "published".to_owned(),
        traffic: "1518B".to_owned(),
        machine: "BlueField-2".to_owned(),
    };
    let mut campaign = Campaign::new(key, schema.clone());
    let mut groups: Vec<u64> = Vec::new();
    for line in text.lines().skip(1).filter(|line| !line.is_empty()) {
        let values = line.split(',').map(|value| value.parse::<f64>().expect("a number"));
        let values: Vec<f64> = values.collect();
        let bits = values[group].to_bits();
        let at = groups.iter().position(|other| *other == bits).unwrap_or_else(|| {
            groups.push(bits);
            groups.len() - 1
        });
        let vector = values[..9].iter().map(|value| Some(*value)).collect();
        campaign
            .push(Observation {
                group: at as u32,
                competitors: 1,
                competition: Vector::new(schema.clone(), vector).expect("nine numbers"),
                throughput: values[9],
                p99_us: None,
                own: None,
                flagged: false,
            })
            .expect("a throughput");
    }
    campaign
}

fn options(kind: Kind, seed: u64) -> TrainOptions {
    TrainOptions {
        kind,
        // With 50 rows, nothing is left out by chance.
        selection: Selection {
            correlation: 0.0,
            permutation: false,
        },
        seed,
        ..TrainOptions::default()
    }
}

fn report(campaign: &Campaign, kind: Kind, suffix: &str) {
    let mut means = Vec::new();
    let (mut inside, mut worst, mut rows, mut outside) = (Vec::new(), 0.0f64, 0, 0);
    for seed in 1..=SEEDS {
        let results = leave_groups_out(campaign, Goal::Throughput, &options(kind, seed)).expect("50 rows");
        let mean = |errors: Vec<f64>| 100.0 * errors.iter().sum::<f64>() / errors.len().max(1) as f64;
        means.push(mean(results.iter().map(|of| of.error()).collect()));
        inside.push(mean(
            results.iter().filter(|of| !of.outside).map(|of| of.error()).collect(),
        ));
        worst = results.iter().map(|of| 100.0 * of.error()).fold(worst, f64::max);
        (rows, outside) = (results.len(), results.iter().filter(|of| of.outside).count());
        eprintln!("{kind}{suffix}, seed {seed}: {:.2} %", means[means.len() - 1]);
    }
    means.sort_by(f64::total_cmp);
    inside.sort_by(f64::total_cmp);
    let middle = means.len() / 2;
    println!(
        "{{\"name\": \"prediction/yala/{kind}{suffix}/mean-error-percent\", \"value\": {:.2}, \"unit\": \"%\", \
         \"min\": {:.2}, \"max\": {:.2}, \"runs\": {SEEDS}, \"worst\": {worst:.1}, \"rows\": {rows}, \
         \"outside_range\": {outside}, \"inside_range_percent\": {:.2}}}",
        means[middle],
        means[0],
        means[means.len() - 1],
        inside[middle]
    );
}

/// Time of a training and of a prediction.
fn speed(campaign: &Campaign) {
    for kind in [Kind::Boosted, Kind::Kernel, Kind::Blend] {
        let start = Instant::now();
        let model = Sensitivity::train(campaign, Goal::Throughput, 1000.0, &options(kind, 1)).expect("50 rows");
        let training = start.elapsed().as_secs_f64();
        let vector = &campaign.observations()[0].competition;
        let start = Instant::now();
        let mut sum = 0.0;
        for _ in 0..10_000 {
            sum += model
                .predict(std::hint::black_box(vector), 0.9)
                .expect("a row of the training")
                .value;
        }
        assert!(sum > 0.0);
        let micros = start.elapsed().as_secs_f64() * 1e6 / 10_000.0;
        println!(
            "{{\"name\": \"prediction/yala/{kind}/training-seconds\", \"value\": {training:.3}, \"unit\": \"s\"}}"
        );
        println!("{{\"name\": \"prediction/yala/{kind}/prediction-us\", \"value\": {micros:.2}, \"unit\": \"us\"}}");
    }
}
