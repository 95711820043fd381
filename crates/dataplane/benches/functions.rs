//! Every function by itself on one core, in the whole runtime: throughput, cost of a packet, memory of a flow and cost
//! of a new one.
//!
//! `cargo bench -p tailwater-dataplane --bench functions [-- FUNCTION...] [--runs N] [--flows 10k,100k,1M] [--sizes
//! 64B,imix,1024B]` prints one JSON line per figure, named `functions/<function>/<size>/<flows>/<what>`. `-- table
//! FILE` makes a table for `docs/lab/performance.md` from such lines. The functions are those of [`FUNCTIONS`].
//!
//! A run passes a trace of whole rounds of the flows: the first time with an empty flow table, and then for at least
//! 0.1 s. The excess of the first pass over the same number of packets of known flows is the cost of its new flows. The
//! flows of `firewall-tcp` and both `ids` are opened by handshakes before: their total time is the cost of a new flow.
//! Those of `ids` are HTTP connections, up to 65,536 of which open, transfer and close twice in each pass, since bytes
//! that were seen cost little.

#[allow(dead_code, reason = "other benchmarks use the rest of it")]
mod cases;
mod library;
mod routes;

use cases::{Arguments, BATCH, packets, print_runs, short, table_of};
use std::collections::BTreeMap;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::{default_core, pin_to};
use tailwater_dataplane::port::round_robin;
use tailwater_dataplane::trace_nic::{Pacing, TraceNic, TraceNicConfig};
use tailwater_functions::build::ChainBuilder;
use tailwater_net::Nanos;
use tailwater_traffic::Trace;

/// Chains of a single function, for the table of all functions. A name in this list that `cases::spec` does not have is
/// that of an example, `examples/<name>.yaml`.
const FUNCTIONS: &[&str] = &[
    "forward",
    "acl",
    "acl-uncached",
    "nat",
    "load-balancer",
    "accounting",
    "flow-stats",
    "mirror",
    "mirror-headers",
    "counters",
    "url-filter",
    "encrypt",
    "router",
    "tunnel",
    "policer",
    "policer-flows",
    "dns-guard",
    "bpf-filter",
    "ipsec",
    "ipsec-both-ends",
    "firewall",
    "firewall-tcp",
    "ids",
    "ids-1000",
    "upf",
    "wan-optimizer",
    "xdp-filter",
    "xdp-counter",
    "rate-limit-c",
    "rate-limit-wasm",
];

/// Minimum duration of a run's passes over known flows.
const SETTLED: Nanos = Nanos::from_millis(100);

/// Function with its traffic.
struct Row {
    chain: &'static str,
    name: String,
    /// Traffic of the first pass, if it differs.
    opening: Option<TraceNic>,
    nic: TraceNic,
    clock: Clock,
    flows: u32,
    /// Mean frame length in bytes, as in the trace.
    bytes: f64,
}

/// Results of a run.
struct Run {
    /// Packets per nanosecond, once all flows are known.
    rate: f64,
    /// Nanoseconds per new flow.
    new_flow: f64,
    flow_bytes: f64,
}

impl Row {
    fn new(chain: &'static str, size: &str, flows: u32) -> Row {
        let clock = Clock::start();
        let config = TraceNicConfig {
            pacing: Pacing::Saturate,
            ..TraceNicConfig::default()
        };
        let rss = cases::spec(chain, flows).rss();
        let nic = |trace: Trace| {
            let nic = TraceNic::new(trace, rss.clone(), 1, &round_robin(1), config.clone(), clock.clone());
            nic.unwrap_or_else(|error| panic!("{error}"))
        };
        // Whole rounds, and more than fits a cache.
        let rounds = (1_u64 << 18).div_ceil(flows.into());
        let trace = cases::traffic::trace(chain, size, flows, u64::from(flows) * rounds);
        let bytes = trace.bytes() as f64 / trace.len() as f64;
        Row {
            chain,
            name: format!("functions/{chain}/{size}/{}", short(flows)),
            opening: cases::traffic::opening(chain, size, flows).map(nic),
            nic: nic(trace),
            clock,
            flows,
            bytes,
        }
    }

    /// Passes a trace once. Returns the number of packets and the time.
    fn pass(&self, nic: &TraceNic, chain: &mut Option<Chain>) -> (u64, Nanos) {
        let start = self.clock.now();
        let pool = BufferPool::new(512, nic.longest_frame());
        let pool = pool.unwrap_or_else(|error| panic!("{error}"));
        let queue = Box::new(nic.queues(start).remove(0));
        let run = (&self.clock, &(|| false) as _);
        let (window, took) = cases::run(chain, (queue, pool), BATCH, start, run);
        (packets(&self.name, &window), took)
    }

    fn run(&self) -> Run {
        let spec = cases::spec(self.chain, self.flows);
        let mut builder = ChainBuilder::new(&spec, &spec.rss(), 1).unwrap_or_else(|error| panic!("{error}"));
        let flow_bytes = builder.flow_memory().map_or(0, |memory| memory.bytes) as f64 / f64::from(spec.flows.capacity);
        let mut chain = Some(builder.instance(|_| true));
        let first = self.opening.as_ref().unwrap_or(&self.nic);
        let (packets, took) = self.pass(first, &mut chain);
        let (first, first_took) = (packets as f64, took.0 as f64);
        let (mut count, mut settled, mut best) = (0, Nanos::ZERO, f64::MAX);
        while settled < SETTLED {
            let (packets, took) = self.pass(&self.nic, &mut chain);
            count += packets;
            settled += took;
            best = best.min(took.0 as f64 / packets as f64);
        }
        let known = match self.opening {
            Some(_) => 0.0,
            None => first * best,
        };
        let more = (first_took - known).max(0.0);
        Run {
            rate: count as f64 / settled.0 as f64,
            new_flow: more / f64::from(self.flows),
            flow_bytes,
        }
    }
}

/// Cycles per nanosecond of the processor's nominal clock, which is the rate of its time-stamp counter.
fn cycles_per_nanosecond() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    let megahertz: f64 = line.split(':').nth(1)?.trim().parse().ok()?;
    Some(megahertz / 1000.0)
}

/// Makes a table of the figures in a file: a row for each function, and a column for each size and number of flows.
fn table(file: &str) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut figures: BTreeMap<[String; 4], f64> = BTreeMap::new();
    let mut functions: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let figure: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{file}: {error}"));
        let parts: Vec<&str> = figure["name"].as_str().unwrap_or_default().split('/').collect();
        let ["functions", function, size, flows, what] = parts[..] else {
            continue;
        };
        if !functions.iter().any(|known| known == function) {
            functions.push(function.to_owned());
        }
        let key = [function, size, flows, what].map(str::to_owned);
        figures.insert(key, figure["value"].as_f64().unwrap_or_default());
    }
    const FLOWS: [&str; 3] = ["10k", "100k", "1M"];
    println!(
        "| function | size | Mpps, 10k / 100k / 1M flows | Gbit/s | cycles a packet | bytes a flow | new flow, ns |"
    );
    println!("|---|---|---|---|---|---|---|");
    for function in &functions {
        for size in ["64B", "imix", "1024B"] {
            let of = |flows: &str, what: &str, digits: usize| {
                let key = [function, size, flows, what].map(str::to_owned);
                let value = figures.get(&key);
                value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
            };
            let all = |what, digits| FLOWS.map(|flows| of(flows, what, digits)).join(" / ");
            println!(
                "| `{function}` | {size} | {} | {} | {} | {} | {} |",
                all("mpps", 1),
                all("gbps", 1),
                all("cycles", 0),
                of("1M", "flow-bytes", 0),
                all("new-flow", 0),
            );
        }
    }
}

fn main() {
    let plain: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let ["table", file] = &plain.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return table(file);
    }
    let arguments = Arguments::read(FUNCTIONS, &["64B"], &[10_000, 100_000, 1_000_000]);
    if let Err(error) = pin_to(default_core()) {
        eprintln!("not pinned: {error}");
    }
    let cycles = cycles_per_nanosecond();
    let wanted: Vec<&str> = arguments
        .chains()
        .filter(|c| {
            let there = cases::is_there(c);
            if !there {
                eprintln!("{c} is left out: TAILWATER_TEST_DATA is not set");
            }
            there
        })
        .collect();
    for size in &arguments.sizes {
        for &flows in &arguments.flows {
            for function in &wanted {
                if let Some(reason) = cases::traffic::reason_to_skip(function, size) {
                    eprintln!("skipped: {function} on {size}: {reason}");
                    continue;
                }
                let row = Row::new(function, size, flows);
                let runs: Vec<Run> = (0..arguments.runs.max(1)).map(|_| row.run()).collect();
                let rates = || runs.iter().map(|run| run.rate);
                eprintln!("{}: {:.2} Mpps", row.name, rates().fold(0.0, f64::max) * 1e3);
                let table = table_of(function).map(|table| table.name);
                let print = |what: &str, unit, values: Vec<f64>| {
                    print_runs(format!("{}/{what}", row.name), unit, values, table);
                };
                print("mpps", "Mpps", rates().map(|rate| rate * 1e3).collect());
                let bits = rates().map(|rate| rate * row.bytes * 8.0);
                print("gbps", "Gbit/s", bits.collect());
                if let Some(cycles) = cycles {
                    let each = rates().map(|rate| cycles / rate);
                    print("cycles", "cycles/packet", each.collect());
                }
                let bytes = runs.iter().map(|run| run.flow_bytes);
                print("flow-bytes", "bytes/flow", bytes.collect());
                // Functions without flow state have no new flows.
                if runs.iter().all(|run| run.flow_bytes > 0.0) {
                    let each = runs.iter().map(|run| run.new_flow);
                    print("new-flow", "ns/flow", each.collect());
                }
            }
        }
    }
    library::clean();
}
