//! Chains on one core with the whole runtime in the loop: receive (a copy into a fresh buffer), flow look-up,
//! functions, transmit, every packet's latency recorded.
//!
//! `cargo bench -p tailwater-dataplane --bench chains [-- FILTER...] [--runs N] [--flows 10k,1M] [--sizes
//! 64B,imix,1024B]` prints one JSON line per figure. The chains that route have the full BGP table if
//! `TAILWATER_TEST_DATA` names the test data, or a generated one otherwise. Their lines name the table. Throughput: all
//! rows are run in turn, `runs` times, and the value is the median. Instructions (where valgrind is installed) and
//! allocations: the difference between runs on twice and once as many packets, so set-up does not count.

#[allow(dead_code, reason = "other benchmarks use the rest of it")]
mod cases;
mod library;
mod routes;

use cases::{Arguments, BATCH, duration, packets, per_packet, print_runs, short, table_of};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::{default_core, pin_to};
use tailwater_dataplane::port::round_robin;
use tailwater_dataplane::telemetry::Window;
use tailwater_dataplane::trace_nic::{Pacing, TraceNic, TraceNicConfig};
use tailwater_functions::build::ChainBuilder;
use tailwater_net::Nanos;

/// Chain with its traffic.
struct Row {
    name: String,
    /// Routing table of the chain.
    table: Option<&'static str>,
    nic: TraceNic,
    chain: Option<Chain>,
    clock: Clock,
    mpps: Vec<f64>,
}

impl Row {
    fn new(chain: &str, (size, flows): (&str, u32), packets: u64, duration: Option<Nanos>) -> Row {
        let clock = Clock::start();
        let config = TraceNicConfig {
            pacing: Pacing::Saturate,
            duration,
            // Other flows in each lap.
            renumber: chain == "new-flows",
            ..TraceNicConfig::default()
        };
        let spec = cases::spec(chain, flows);
        let rss = spec.rss();
        let mut builder = ChainBuilder::new(&spec, &rss, 1).unwrap_or_else(|error| panic!("{error}"));
        let trace = cases::trace(chain, size, flows, packets);
        let nic = TraceNic::new(trace, rss, 1, &round_robin(1), config, clock.clone());
        Row {
            name: format!("chain/{chain}/{size}/{}", short(flows)),
            table: table_of(chain).map(|table| table.name),
            nic: nic.unwrap_or_else(|error| panic!("{error}")),
            chain: Some(builder.instance(|_| true)),
            clock,
            mpps: Vec::new(),
        }
    }

    /// Runs the chain once. Returns the measurements and the duration.
    fn run(&mut self) -> (Window, Nanos) {
        let start = self.clock.now();
        let pool = BufferPool::new(512, self.nic.longest_frame());
        let pool = pool.unwrap_or_else(|error| panic!("{error}"));
        let queue = Box::new(self.nic.queues(start).remove(0));
        let run = (&self.clock, &(|| false) as _);
        cases::run(&mut self.chain, (queue, pool), BATCH, start, run)
    }
}

fn throughput(rows: &mut [Row], runs: usize) {
    // Interleaved, so a disturbance affects all rows alike.
    for run in 0..=runs {
        for row in rows.iter_mut() {
            let (window, took) = row.run();
            let mpps = packets(&row.name, &window) as f64 / took.as_secs_f64() / 1e6;
            eprintln!("{} run {run}: {mpps:.2} Mpps", row.name);
            if run > 0 {
                row.mpps.push(mpps);
            }
        }
    }
    for row in rows {
        let mpps = std::mem::take(&mut row.mpps);
        print_runs(row.name.clone(), "Mpps", mpps, row.table);
    }
}

fn print_count(chain: &str, what: &str, unit: &'static str, value: f64) {
    let table = table_of(chain).map(|table| table.name);
    print_runs(format!("chain/{chain}/64B/1k/{what}"), unit, vec![value], table);
}

/// One pass over `count` packets of 1,000 flows.
fn one_pass(chain: &str, count: u64) {
    let mut row = Row::new(chain, ("64B", 1_000), count, None);
    assert_eq!(packets(chain, &row.run().0), count);
}

fn counts(chain: &str) {
    let allocations = per_packet(|packets| {
        let mut row = Row::new(chain, ("64B", 1_000), packets, None);
        let info = allocation_counter::measure(|| drop(row.run()));
        Some(info.count_total)
    });
    if let Some(allocations) = allocations {
        print_count(chain, "allocations", "allocations/packet", allocations);
    }
    match per_packet(|packets| cases::instructions(&[chain, &packets.to_string()])) {
        Some(instructions) => print_count(chain, "instructions", "instructions/packet", instructions),
        None => eprintln!("{chain}: no instruction count: valgrind is not installed or failed"),
    }
}

fn main() {
    let arguments = Arguments::read(cases::CHAINS, &[10_000, 1_000_000]);
    if let Some(one) = &arguments.one_pass {
        let [chain, packets] = &one[..] else {
            panic!("--one-pass takes a chain and a number of packets");
        };
        let packets = packets.parse();
        one_pass(chain, packets.unwrap_or_else(|_| panic!("packets: {}", one[1])));
        return library::clean();
    }
    if let Err(error) = pin_to(default_core()) {
        eprintln!("not pinned: {error}");
    }
    for size in &arguments.sizes {
        for &flows in &arguments.flows {
            let row = |chain| {
                let packets = cases::trace_packets(chain, flows);
                Row::new(chain, (size, flows), packets, Some(duration(chain)))
            };
            let mut rows: Vec<Row> = arguments.chains().map(row).collect();
            throughput(&mut rows, arguments.runs);
        }
    }
    arguments.chains().for_each(counts);
    library::clean();
}
