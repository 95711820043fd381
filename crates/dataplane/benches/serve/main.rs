//! Costs of a server's shared ports and cores.
//!
//! `cargo bench -p tailwater-dataplane --bench serve [-- --runs N]` prints one JSON line per figure. 64-byte packets of
//! 10,000 flows in random order, on the last core.
//!
//! - `serve/CHAIN/run`: the chain alone, on a port of its own, as `tailwater run` runs it.
//! - `serve/CHAIN/1-chain`, `16-chains`: the same chain on a shared port, or 16 of it with a sixteenth of the flows
//!   each.
//!   `ns-packet` is the time per packet at full load: packets arrive as fast as others are sent, so none is lost.
//!   `instructions` are those of the thread that processes packets, as valgrind counts them: the difference between two
//!   runs of 32,000 and 288,000 packets. Time advances with each reading of the clock in these runs. On the machine's
//!   own time, chains under valgrind are late and have turns without packets, the more, the slower the machine is.
//! - `serve/idle/...`: one chain at 100,000 packets a second, alone and beside 63 chains without packets: latency,
//!   and memory per idle chain.
//! - `serve/neighbour/...`: chain B at 100,000 packets a second, alone and beside chain A, which is offered 5 times the
//!   packets that it can process: B's losses and latency.

mod feed;
mod rig;

use feed::Feed;
use rig::{Chains, Rig};
use std::process::{Command, ExitCode};
use tailwater_dataplane::clock::Clock;
use tailwater_net::Nanos;

/// Chains that are compared: their names and functions.
pub const CHAINS: [(&str, &str); 2] = [
    ("forward", "{forward: }"),
    (
        "acl-nat",
        "{acl: {rulesFile: rules/acl-1500.rules, format: classbench, default: allow}}, \
         {nat: {external: [203.0.113.0/28]}}",
    ),
];

/// Ways to run a chain: on a port of its own, or with so many chains on a shared one.
const WAYS: [(&str, usize); 3] = [("run", 0), ("1-chain", 1), ("16-chains", 16)];

/// Packets of the two runs that are compared by their instructions.
const COUNTED: [u64; 2] = [32_000, 288_000];

/// Time between two readings of the clock in these runs: there are about two for each batch.
const READING: Nanos = Nanos(500);

/// Packets of a run whose time is measured.
const TIMED: u64 = 4_000_000;

#[derive(serde::Serialize)]
struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    min: f64,
    max: f64,
    runs: usize,
}

/// Prints the median of several runs.
fn print(name: String, unit: &'static str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let rounded = |value: f64| (value * 100.0).round() / 100.0;
    let figure = Figure {
        name,
        value: rounded(values[values.len() / 2]),
        unit,
        min: rounded(values[0]),
        max: rounded(values[values.len() - 1]),
        runs: values.len(),
    };
    println!("{}", serde_json::to_string(&figure).expect("a figure"));
}

/// Passes `count` packets through a chain in one of the [`WAYS`]. Returns the time per packet in nanoseconds.
fn pass(functions: &str, chains: usize, count: u64, clock: &Clock) -> f64 {
    let (feed, sent) = Feed::new(count, chains, clock);
    match chains {
        0 => rig::run_alone(functions, feed, clock),
        _ => {
            let rig = Rig::new(Box::new(feed), clock);
            let running: Vec<_> = (0..chains)
                .map(|chain| rig.start(functions, Chains::of(chain, chains)))
                .collect();
            sent.go();
            sent.await_packets(count);
            for chain in running {
                assert_eq!(chain.drain().packets.lost, 0);
            }
        }
    }
    sent.nanos_per_packet()
}

/// Instructions of each thread of this program when it passes `count` packets. `None` without valgrind.
fn instructions(chain: usize, way: usize, count: u64) -> Option<Vec<u64>> {
    let out = format!("{}/serve-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--separate-threads=yes", "--fair-sched=yes"]);
    command.arg(format!("--callgrind-out-file={out}"));
    command.arg(std::env::current_exe().ok()?).arg("--one-pass");
    command.args([chain.to_string(), way.to_string(), count.to_string()]);
    command.output().ok()?;
    // One file for each thread, in the order in which they started, and one without counts.
    let of_thread = |number: usize| {
        let text = take_file(&format!("{out}-{number:02}"))?;
        let (_, rest) = text.rsplit_once("totals:")?;
        rest.split_whitespace().next()?.parse().ok()
    };
    let threads: Vec<u64> = (1..).map_while(of_thread).collect();
    take_file(&out);
    (!threads.is_empty()).then_some(threads)
}

/// Text of a file, which is removed.
fn take_file(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    std::fs::remove_file(path).ok()?;
    Some(text)
}

fn compare(runs: usize) {
    for (number, (name, functions)) in CHAINS.into_iter().enumerate() {
        let mut times = vec![Vec::new(); WAYS.len()];
        for run in 0..=runs {
            for (way, (_, chains)) in WAYS.into_iter().enumerate() {
                let time = pass(functions, chains, TIMED, &Clock::start());
                if run > 0 {
                    times[way].push(time);
                }
            }
        }
        for (way, times) in times.into_iter().enumerate() {
            print(format!("serve/{name}/{}/ns-packet", WAYS[way].0), "ns/packet", times);
            let [few, many] = COUNTED.map(|count| instructions(number, way, count));
            if let (Some(few), Some(many)) = (few, many) {
                let threads = few.iter().zip(&many);
                let more = threads.map(|(few, many)| many.saturating_sub(*few)).max();
                let each = more.unwrap_or(0) as f64 / (COUNTED[1] - COUNTED[0]) as f64;
                let name = format!("serve/{name}/{}/instructions", WAYS[way].0);
                print(name, "instructions/packet", vec![each]);
            } else {
                eprintln!("{name}: no instructions: valgrind is not installed or failed");
            }
        }
    }
}

/// Chain beside chains without packets.
fn idle(runs: usize) {
    const IDLE: usize = 63;
    for count in [0, IDLE] {
        let (mut p50, mut p99, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..runs {
            // The others take their time to start.
            let lasts = Nanos::from_millis(2_000 + 100 * count as u64);
            let rig = Rig::paced(&[(0, Nanos(10_000))], lasts);
            let before = rig::resident();
            let others: Vec<_> = (0..count)
                .map(|other| rig.start("{forward: }", Chains::network(100 + other)))
                .collect();
            memory.push((rig::resident() - before) as f64 / count.max(1) as f64);
            let chain = rig.start("{forward: }", Chains::network(0));
            rig.await_end();
            let report = chain.drain();
            p50.push(report.latency_us.p50);
            p99.push(report.latency_us.p99);
            others.into_iter().for_each(|other| drop(other.drain()));
        }
        let name = format!("serve/idle/beside-{count}");
        print(format!("{name}/p50-us"), "us", p50);
        print(format!("{name}/p99-us"), "us", p99);
        if count > 0 {
            print("serve/idle/memory".to_owned(), "KiB/chain", memory);
        }
    }
}

/// Chain beside one that is offered five times as much as it can process.
fn neighbour(runs: usize) {
    // 10 us at 3 GHz: chain A can process 100,000 packets a second.
    const SLOW: &str = "{synthetic: {cycles: 30000}}";
    for beside in [false, true] {
        let (mut p50, mut p99, mut lost, mut lost_of_a) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..runs {
            let rig = Rig::paced(&[(0, Nanos(10_000)), (1, Nanos(2_000))], Nanos::from_secs(2));
            let a = beside.then(|| rig.start(SLOW, Chains::network(1)));
            let b = rig.start("{forward: }", Chains::network(0));
            rig.await_end();
            let report = b.drain();
            p50.push(report.latency_us.p50);
            p99.push(report.latency_us.p99);
            lost.push(report.packets.lost as f64);
            if let Some(report) = a.map(rig::Running::drain) {
                lost_of_a.push(100.0 * report.packets.lost as f64 / report.packets.offered.max(1) as f64);
            }
        }
        let name = format!("serve/neighbour/{}", if beside { "beside-overload" } else { "alone" });
        print(format!("{name}/p50-us"), "us", p50);
        print(format!("{name}/p99-us"), "us", p99);
        print(format!("{name}/lost"), "packets", lost);
        if beside {
            print(format!("{name}/lost-of-the-other"), "percent", lost_of_a);
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let number = |text: &String| text.parse::<u64>().expect("a number");
    match &arguments[..] {
        [mode, chain, way, count] if mode == "--one-pass" => {
            let (chain, way) = (number(chain) as usize, number(way) as usize);
            let clock = Clock::of_readings(READING);
            pass(CHAINS[chain].1, WAYS[way].1, number(count), &clock);
        }
        [mode, runs] if mode == "--runs" => all(number(runs) as usize),
        _ => all(5),
    }
    ExitCode::SUCCESS
}

fn all(runs: usize) {
    compare(runs);
    idle(runs);
    neighbour(runs);
}
