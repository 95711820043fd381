//! Rule classifier on one core: packets per second, build time, memory.
//!
//! `cargo bench -p tailwater-functions --bench acl [-- NAME]` runs the figures whose names contain NAME. It prints one
//! JSON line per figure to standard output. With the environment variable `TAILWATER_TEST_DATA`, it also measures
//! ClassBench rule sets.

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tailwater_functions::acl::generate::{RuleSetSpec, Style};
use tailwater_functions::acl::{Action, Classifier, Rule, classbench, generate, shadow};
use tailwater_net::flow::FlowKey;

/// Distinct keys used by a figure.
const KEYS: usize = 1 << 14;
/// Keys per call, as in the data plane.
const BATCH: usize = 32;
/// Measurements per figure; the median counts.
const RUNS: usize = 21;
/// Duration of a measurement.
const RUN: Duration = Duration::from_millis(50);

const EXAMPLES: [(&str, &[u8]); 2] = [
    ("acl-1500", include_bytes!("../../../examples/rules/acl-1500.rules")),
    ("acl-8000", include_bytes!("../../../examples/rules/acl-8000.rules")),
];

/// Synthetic rule sets, similar to ClassBench's families.
const STYLES: [(Style, &str); 3] = [(Style::Access, "acl"), (Style::Firewall, "fw"), (Style::Mixed, "ipc")];
/// Sizes of the synthetic rule sets.
const SIZES: [usize; 3] = [1000, 10_000, 30_000];

/// ClassBench files, and the number of rules to take from each.
const CLASSBENCH: [(&str, &str, &str, usize); 8] = [
    ("classbench-acl1-1500", "1k_2k_all_seeds", "2k_1/acl1_seed_1", 1500),
    ("classbench-fw1-1500", "1k_2k_all_seeds", "2k_1/fw1_seed_1", 1500),
    ("classbench-ipc1-1500", "1k_2k_all_seeds", "2k_1/ipc1_seed_1", 1500),
    ("classbench-acl1-8k", "4k_8k_seed1", "8k_1/acl1_seed_1", 8000),
    ("classbench-acl2-8k", "4k_8k_seed1", "8k_1/acl2_seed_1", 8000),
    ("classbench-fw1-8k", "4k_8k_seed1", "8k_1/fw1_seed_1", 8000),
    ("classbench-fw4-8k", "4k_8k_seed1", "8k_1/fw4_seed_1", 8000),
    ("classbench-ipc1-8k", "4k_8k_seed1", "8k_1/ipc1_seed_1", 8000),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without the flag, only as a smoke test.
    let runs = if arguments.iter().any(|a| a == "--bench") {
        RUNS
    } else {
        1
    };
    let wanted = arguments.iter().find(|a| !a.starts_with('-'));
    let wanted = |name: &str| wanted.is_none_or(|part| format!("functions/acl/{name}").contains(part.as_str()));
    for (name, text) in EXAMPLES {
        if wanted(name) {
            let rules = classbench::parse_rules(text, Action::Allow).expect("an example parses");
            measure(name, &rules, runs);
        }
    }
    for (style, name) in STYLES {
        for rules in SIZES {
            let name = format!("generated-{name}-{}k", rules / 1000);
            if wanted(&name) {
                let spec = RuleSetSpec {
                    rules,
                    seed: 1,
                    sources: vec!["10.0.0.0/8".parse().expect("a prefix")],
                    destinations: vec!["198.18.0.0/15".parse().expect("a prefix")],
                };
                measure(&name, &spec.generate_as(style), runs);
            }
        }
    }
    let Some(data) = std::env::var_os("TAILWATER_TEST_DATA") else {
        eprintln!("no ClassBench sets: TAILWATER_TEST_DATA is not set");
        return;
    };
    for (name, archive, file, rules) in CLASSBENCH {
        if wanted(name) {
            let text = unpack(Path::new(&data), archive, file);
            let mut all = classbench::parse_rules(&text, Action::Allow).expect("a set parses");
            all.truncate(rules);
            measure(name, &all, runs);
        }
    }
}

/// Measures all figures of a rule set.
fn measure(name: &str, rules: &[Rule], runs: usize) {
    let mut build: Vec<f64> = Vec::new();
    let mut built = None;
    for _ in 0..runs {
        let start = Instant::now();
        built = Some(Classifier::new(rules).expect("the set fits"));
        build.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let Some(classifier) = built else { return };
    print(&format!("functions/acl/{name}/build"), "ms", &mut build);
    let mut memory = vec![classifier.memory_bytes() as f64 / f64::from(1 << 20)];
    print(&format!("functions/acl/{name}/memory"), "MiB", &mut memory);

    let classes = vec![0; rules.len()];
    let start = Instant::now();
    let idle = shadow::find_shadowed(rules, (&classes, 1), |_, _| true).expect("the set fits");
    let mut shadowed = vec![start.elapsed().as_secs_f64() * 1e3];
    let name_of_it = format!("functions/acl/{name}/shadowed");
    print(&name_of_it, "ms", &mut shadowed);
    eprintln!("{name_of_it}: {} of {} rules", idle.len(), rules.len());

    let hits = generate::matching_keys(rules, KEYS, 1);
    let mixed = generate::mixed_keys(rules, KEYS * 4, 2);
    let misses: Vec<FlowKey> = mixed
        .iter()
        .filter(|key| classifier.classify(key).is_none())
        .take(KEYS)
        .copied()
        .collect();
    for (kind, keys) in [("hits", &hits), ("misses", &misses)] {
        // A small number of misses would all stay in the cache.
        if keys.len() < KEYS / 16 {
            eprintln!("functions/acl/{name}/{kind}: only {} keys", keys.len());
            continue;
        }
        let mut rates: Vec<f64> = (0..runs).map(|_| rate(&classifier, keys)).collect();
        print(&format!("functions/acl/{name}/{kind}"), "Mpps", &mut rates);
        let some = &keys[..keys.len().min(4096)];
        let mut slowest: Vec<f64> = (0..3.min(runs)).map(|_| worst(&classifier, some)).collect();
        print(&format!("functions/acl/{name}/{kind}/worst"), "ns/packet", &mut slowest);
    }
}

/// Nanoseconds per packet for the slowest of these keys: batches of one key, and the fastest of several runs for each.
fn worst(classifier: &Classifier, keys: &[FlowKey]) -> f64 {
    const PASSES: u32 = 16;
    let mut found = [None; BATCH];
    let each = keys.iter().map(|key| {
        let batch = [*key; BATCH];
        let runs = (0..5).map(|_| {
            let start = Instant::now();
            for _ in 0..PASSES {
                classifier.classify_batch(black_box(&batch), &mut found);
                black_box(&found);
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(PASSES * BATCH as u32)
        });
        runs.fold(f64::INFINITY, f64::min)
    });
    each.fold(0.0, f64::max)
}

/// Keys per microsecond.
fn rate(classifier: &Classifier, keys: &[FlowKey]) -> f64 {
    let mut found = [None; BATCH];
    let mut done = 0_usize;
    let start = Instant::now();
    while start.elapsed() < RUN {
        for batch in keys.chunks_exact(BATCH) {
            classifier.classify_batch(black_box(batch), &mut found);
            black_box(&found);
            done += BATCH;
        }
    }
    done as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// Prints a figure: median, minimum and maximum.
fn print(name: &str, unit: &str, values: &mut [f64]) {
    values.sort_by(f64::total_cmp);
    let (min, max) = (values[0], values[values.len() - 1]);
    let (value, runs) = (values[values.len() / 2], values.len());
    println!(
        "{{\"name\": \"{name}\", \"value\": {value:.2}, \"unit\": \"{unit}\", \
         \"min\": {min:.2}, \"max\": {max:.2}, \"runs\": {runs}}}"
    );
}

/// Extracts a rule file from an archive.
fn unpack(data: &Path, archive: &str, file: &str) -> Vec<u8> {
    let archive = data.join(format!("rules/classbench_{archive}.tar.zst"));
    let output = Command::new("tar")
        .args(["--use-compress-program=zstd -d", "-xOf"])
        .arg(archive)
        .arg(format!("Ruleset/{file}.rules"))
        .output()
        .expect("tar runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
