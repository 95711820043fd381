//! Absorption of bursts in live runs: one dedicated core and one auxiliary core, policy by policy, compared with static
//! RSS on one and on two dedicated cores.
//!
//! `cargo bench -p tailwater-profile --bench scaling [-- --only PART]... [--loads 60] [--slo 100,200,500] [--rounds N]
//! [--seconds S] [--policies tailwater,netblaze] [--buffers N] [--record DIRECTORY]` prints a JSON line per figure, and
//! a table on standard error. `PART` is part of `chain/traffic/load/slo`.
//!
//! Rates are shares of a capacity, so that a cell has the same meaning on any machine and at any hour. For each chain,
//! traffic and load:
//!
//! 1. For each objective the chain is trained, quickly, on other traffic of the same kind.
//! 2. Each round measures the capacity of one dedicated core: the saturated rate with this chain and traffic. The
//!    traffic of the round has the given percentage of that rate. Presets have another seed in each round. They
//!    superpose as many flows as the rate requires, whose bursts are preserved. Captures are played faster.
//! 3. All policies run on the same packets one after the other, in a different order in each round. Their windows are
//!    paired: same round, same window, same packets.
//!
//! Compared with `static` on one core, a sign test counts the windows in which fewer or more packets were late or lost.
//! `static-again` is the same policy once more: its row is the noise of the comparison.
//! Windows of one run are not independent, and p is a little too low. [`bound`] identifies the cells that
//! no two cores can serve. Captures need TAILWATER_TEST_DATA.

mod bound;
mod comparison;
mod live;

use bound::{Best, Bound, bound};
use comparison::{
    Cell, Compared, HEADING, Keeps, Row, SIGNIFICANCE, STATIC, TWO_DEDICATED, median, table_lines, total,
};
use live::{Setup, Source, WINDOW, policy_run, rate_pps, run_policy, spec};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tailwater_baselines::catalog::Policy;
use tailwater_dataplane::cores::available;
use tailwater_dataplane::report::RunReport;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_profile::{Depth, TrainOptions, saturated_rate, train_capacity};
use tailwater_traffic::Trace;

/// Chain and traffic.
const CELLS: &[(&str, &str)] = &[
    ("acl-lb-accounting", "backbone"),
    ("acl-lb-accounting", "as"),
    ("acl-urlfilter-encrypt", "backbone"),
    ("acl-urlfilter-encrypt", "as"),
    ("acl-urlfilter-encrypt", "ndpi_webattack_rce"),
    ("acl-urlfilter-encrypt", "ddos_synack_reflection"),
    ("acl-nat", "backbone"),
    ("acl-nat", "as"),
];
/// Name of the row, policy, and `true` if both cores are dedicated. Of those, `--seconds` of the default shows the first
/// decisions only: Metron decides twice a second.
const ROWS: &[(&str, &str, bool)] = &[
    (STATIC, "static", false),
    ("static-again", "static", false),
    ("tailwater", "tailwater", false),
    ("netblaze", "netblaze", false),
    ("netblaze-core-static-safe", "netblaze-core-static-safe", false),
    ("netblaze-core-static-unsafe", "netblaze-core-static-unsafe", false),
    ("netblaze-no-boost", "netblaze-no-boost", false),
    ("netblaze-no-core-mapper", "netblaze-no-core-mapper", false),
    (TWO_DEDICATED, "static", true),
    ("rss++", "rss++", true),
    ("metron", "metron", true),
    ("quadrant", "quadrant", true),
    ("quadrant-metron", "quadrant-metron", true),
    ("dyssect", "dyssect", true),
];

/// Seed of the training traffic. Measured traffic has the round's number.
const TRAINING_SEED: u64 = 1001;
/// Rate at which the first capacity is measured, packets per second.
const FIRST_RATE: f64 = 1e6;
/// Duration of a capacity measurement.
const SATURATED: Nanos = Nanos::from_millis(1000);

struct Options {
    only: Vec<String>,
    /// Offered rates, in percent of the capacity.
    loads: Vec<u32>,
    slos: Vec<u64>,
    rounds: u64,
    seconds: f64,
    policies: Vec<String>,
    buffers: u32,
    /// Directory for recorded decisions, for `tailwater explain`.
    record: Option<PathBuf>,
}

fn list<T: std::str::FromStr>(value: &str, usage: &str) -> Vec<T> {
    let item = |item: &str| item.parse().unwrap_or_else(|_| panic!("usage: {usage}"));
    value.split(',').map(item).collect()
}

fn options() -> Options {
    let mut options = Options {
        only: Vec::new(),
        loads: vec![60],
        slos: vec![100, 200, 500],
        rounds: 4,
        seconds: 1.2,
        policies: ["static-again", "tailwater", "netblaze"].map(str::to_owned).to_vec(),
        buffers: 2048,
        record: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--bench" => {}
            "--only" => options.only.push(value()),
            "--loads" => options.loads = list(&value(), "--loads PERCENT,..."),
            "--slo" => options.slos = list(&value(), "--slo US,..."),
            "--rounds" => options.rounds = value().parse().expect("--rounds N"),
            "--seconds" => options.seconds = value().parse().expect("--seconds S"),
            "--policies" => options.policies = list(&value(), "--policies NAME,..."),
            "--buffers" => options.buffers = value().parse().expect("--buffers N"),
            "--record" => options.record = Some(value().into()),
            unknown => panic!("unknown option {unknown}; the first lines of the benchmark's source have all"),
        }
    }
    for policy in &options.policies {
        let known = ROWS.iter().any(|(row, ..)| row == policy);
        assert!(known, "unknown policy {policy}");
    }
    assert!(
        options.seconds >= WINDOW.as_secs_f64(),
        "--seconds: at least a window of {WINDOW}"
    );
    options
}

impl Options {
    /// Rows of this run: both references, and the chosen policies.
    fn rows(&self) -> Vec<(&'static str, Policy, bool)> {
        let wanted = |row: &str| [STATIC, TWO_DEDICATED].contains(&row) || self.policies.iter().any(|p| p == row);
        let rows = ROWS.iter().filter(|(row, ..)| wanted(row));
        rows.map(|(row, policy, two)| (*row, Policy::named(policy).expect("a policy"), *two))
            .collect()
    }

    /// Policies with an auxiliary core, to which the criteria apply.
    fn judged(&self) -> Vec<&'static str> {
        let rows = self.rows().into_iter().filter(|(row, _, two)| !two && *row != STATIC);
        rows.map(|(row, ..)| row).collect()
    }

    /// Objectives of this chain, traffic and load.
    fn slos_of(&self, name: &str) -> Vec<u64> {
        let wanted = |slo: &u64| {
            let name = format!("/{name}/{slo}/");
            self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
        };
        self.slos.iter().copied().filter(wanted).collect()
    }
}

/// Chain, traffic and load.
struct Group {
    chain: &'static str,
    traffic: &'static str,
    load: u32,
}

fn main() {
    let options = options();
    let cores = available();
    let (Some(&second), Some(&dedicated)) = (cores.first(), cores.last()) else {
        return;
    };
    if second == dedicated {
        eprintln!("scaling needs two cores: skipped");
        return;
    }
    let setup = Setup {
        dedicated,
        second,
        buffers: options.buffers,
        seconds: options.seconds,
    };
    if let Some(directory) = &options.record {
        std::fs::create_dir_all(directory).expect("--record DIRECTORY");
    }
    let (started, mut cells) = (Instant::now(), Vec::new());
    for &(chain, traffic) in CELLS {
        for &load in &options.loads {
            let group = Group { chain, traffic, load };
            cells.extend(measure(&options, &setup, &group));
        }
    }
    let judged = options.judged();
    eprintln!("\n{HEADING}");
    for line in cells.iter().flat_map(|cell| table_lines(cell, &judged)) {
        eprintln!("{line}");
    }
    eprintln!("\n†: most pairs had a window with CPU interference, so that all count");
    for policy in judged {
        let total = total(&cells, policy);
        let windows = total.windows;
        eprintln!(
            "{policy}: worse than {STATIC} in {} of {} cells, better in {} (p < {SIGNIFICANCE}); windows {} better, {} \
             worse, {} equal; keeps {} of the {} cells that two dedicated cores keep, with at most {} cores; most \
             windows had CPU interference in {} cells",
            total.worse,
            total.cells,
            total.better,
            windows.better,
            windows.worse,
            windows.equal,
            total.keeps,
            total.can_keep,
            comparison::MOST_CORES,
            total.disturbed,
        );
    }
    eprintln!("{:.0} s", started.elapsed().as_secs_f64());
}

/// Measures the cells of a group, one for each objective, and prints their figures.
fn measure(options: &Options, setup: &Setup, group: &Group) -> Vec<Cell> {
    let &Group { chain, traffic, load } = group;
    let name = format!("{chain}/{traffic}/{load}");
    let slos = options.slos_of(&name);
    if slos.is_empty() {
        return Vec::new();
    }
    let Some(source) = Source::open(traffic) else {
        eprintln!("{name}: skipped: the captures (TAILWATER_TEST_DATA) are not there");
        return Vec::new();
    };
    let (share, stop) = (f64::from(load) / 100.0, AtomicBool::new(false));
    let any = spec(chain, traffic, 200);
    let capacity = |trace: &Trace| {
        let rate = saturated_rate(&any, trace, setup.dedicated, SATURATED, &stop);
        rate.expect("the chain runs")
    };
    // The number of flows depends on the rate, and the capacity on the number of flows.
    let first = capacity(&source.trace(TRAINING_SEED, FIRST_RATE));
    let other = source.trace(TRAINING_SEED, share * first);
    let rows = options.rows();
    let needs_rate = rows.iter().any(|(_, policy, two)| *two && policy.needs_rates());
    let train = |slo| {
        let training = TrainOptions {
            core: setup.dedicated,
            depth: if needs_rate { Depth::QuickWithRate } else { Depth::Quick },
            seed: 1,
        };
        let spec = spec(chain, traffic, slo);
        let profile = train_capacity(&spec, &other, &training, &stop, |_| {});
        (slo, spec, profile.expect("the chain can be trained"))
    };
    let trained: Vec<_> = slos.into_iter().map(train).collect();
    let mut cells: Vec<Cell> = trained
        .iter()
        .map(|(slo, spec, _)| new_cell(&format!("{name}/{slo}"), spec, &rows))
        .collect();
    let mut trace = other;
    for round in 0..options.rounds {
        let capacity = capacity(&trace);
        trace = source.trace(1 + round, share * capacity);
        let offered = rate_pps(&trace);
        eprintln!(
            "{name}: round {}: one core {:.2} Mpps; offered {:.2} Mpps",
            round + 1,
            capacity / 1e6,
            offered / 1e6
        );
        for ((slo, spec, profile), cell) in trained.iter().zip(&mut cells) {
            if round == 0 {
                let costs = profile.costs.unwrap_or_default();
                let bound = bound(&trace, WINDOW, spec.slo.budget(), costs, capacity);
                print_bound(&cell.name, &bound);
            }
            cell.capacity_mpps.push(capacity / 1e6);
            cell.offered_mpps.push(offered / 1e6);
            for turn in 0..rows.len() {
                let i = (turn + round as usize) % rows.len();
                let (row, policy, two_dedicated) = rows[i];
                let file = format!("{chain}-{traffic}-{load}-{slo}-{row}-{}.decisions", round + 1);
                let file = options.record.as_ref().map(|directory| directory.join(file));
                let policy = (policy, two_dedicated);
                let report = run_policy(setup, spec, &trace, profile, policy, file.as_deref());
                print_run(&format!("{}/{row}", cell.name), &report);
                cell.rows[i].runs.push(policy_run(&report, setup.seconds));
            }
        }
    }
    for cell in &cells {
        print_figures(cell, &options.judged());
    }
    cells
}

fn new_cell(name: &str, spec: &ChainSpec, rows: &[(&'static str, Policy, bool)]) -> Cell {
    let row = |(name, ..): &(&'static str, Policy, bool)| Row { name, runs: Vec::new() };
    Cell {
        name: name.to_owned(),
        // A billionth of slack for percentiles without an exact binary fraction.
        late_limit: 1.0 - spec.slo.percentile / 100.0 + 1e-9,
        capacity_mpps: Vec::new(),
        offered_mpps: Vec::new(),
        rows: rows.iter().map(row).collect(),
    }
}

fn print_bound(name: &str, bound: &Bound) {
    let figures = [
        ("whole-flows", bound.whole),
        ("split-flows", bound.split),
        ("work", bound.work),
    ];
    for (figure, best) in figures {
        for (figure, value, unit) in [
            (format!("{figure}/late"), best.late, "of packets"),
            (format!("{figure}/kept"), best.kept, "of windows"),
        ] {
            println!(
                "{{\"name\":\"scaling/{name}/bound/{figure}\",\"value\":{value:.5},\
                 \"unit\":\"{unit}\",\"runs\":1}}"
            );
        }
    }
    let text = |best: Best| format!("{:.2} % late, {:.0} % kept", 100.0 * best.late, 100.0 * best.kept);
    eprintln!(
        "{name:55} at best: whole flows {}; split {}; work {}{}",
        text(bound.whole),
        text(bound.split),
        text(bound.work),
        bound.reason().map_or_else(String::new, |reason| format!(": {reason}")),
    );
}

/// Prints a run on standard error.
fn print_run(name: &str, report: &RunReport) {
    let windows = &report.windows;
    let kept = windows
        .list
        .iter()
        .filter(|window| window.slo_met == Some(true))
        .count();
    eprintln!(
        "{name:62} p50 {:7.1} p99 {:7.1} cores {:.2} kept {:3.0} % lost {} flagged {}/{}",
        windows.median_latency_us.p50,
        windows.median_latency_us.p99,
        report.cores.avg,
        100.0 * kept as f64 / windows.list.len().max(1) as f64,
        report.packets.lost,
        windows.flagged,
        windows.count
    );
    if std::env::var_os("SCALING_DETAILS").is_some() {
        let (scaling, server) = (report.scaling, report.server);
        eprintln!("    {:?} {scaling:?} {server:?}", report.late_by_cause);
    }
}

/// Prints a JSON line for each figure of each row.
fn print_figures(cell: &Cell, judged: &[&str]) {
    let offered = median(cell.offered_mpps.iter().copied());
    let capacity = median(cell.capacity_mpps.iter().copied());
    for row in &cell.rows {
        let summary = row.summary(cell.late_limit);
        let mut figures = vec![
            ("p99-us", summary.p99_us, "us"),
            ("late", summary.late, "of packets"),
            ("lost", summary.lost as f64, "packets"),
            ("cores", summary.cores, "cores"),
            ("kept", summary.kept, "of windows"),
        ];
        if let Some(Compared { late, p99, .. }) = cell.compared(row) {
            figures.extend([
                ("sign-late/better", late.better as f64, "windows"),
                ("sign-late/worse", late.worse as f64, "windows"),
                ("sign-late/equal", late.equal as f64, "windows"),
                ("sign-late/p", late.p_value(), "probability"),
                ("sign-p99/better", p99.better as f64, "windows"),
                ("sign-p99/worse", p99.worse as f64, "windows"),
                ("sign-p99/p", p99.p_value(), "probability"),
            ]);
            if judged.contains(&row.name) {
                let not_worse = f64::from(u8::from(!late.is_worse(SIGNIFICANCE)));
                figures.push(("criterion/not-worse", not_worse, "bool"));
                let keeps = cell.keeps(row).map(|keeps| f64::from(u8::from(keeps == Keeps::Yes)));
                figures.extend(keeps.map(|keeps| ("criterion/keeps", keeps, "bool")));
            }
        }
        for (figure, value, unit) in figures {
            println!(
                "{{\"name\":\"scaling/{}/{}/{figure}\",\"value\":{value:.6},\"unit\":\"{unit}\",\"runs\":{},\
                 \"windows\":{},\"flagged\":{},\"offered_mpps\":{offered:.3},\"capacity_mpps\":{capacity:.3}}}",
                cell.name,
                row.name,
                row.runs.len(),
                summary.windows,
                summary.flagged,
            );
        }
    }
}
