//! Chains on one core with the whole runtime in the loop: receive (a copy into a fresh buffer), flow look-up,
//! functions, transmit, every packet's latency recorded.
//!
//! `cargo bench -p tailwater-dataplane --bench chains [-- FILTER...] [--runs N] [--flows 10k,1M] [--sizes
//! 64B,imix,1024B,mixed-64B,...]` prints one JSON line per figure. `64B`, `imix` and `1024B` are of one protocol,
//! usually UDP. Mixtures of protocols in random order: `mixed-` or `tcp-udp-`, then the frames' lengths or `capture`
//! for those of a capture, then `-zipf` for popular flows, then `-new1` or `-new10` for 1 % or 10 % of packets that
//! begin a flow. The chains that route have the full BGP table if `TAILWATER_TEST_DATA` names the test data, or a
//! generated one otherwise. Their lines name the table. Throughput: all rows are run in turn, `runs` times, and the
//! value is the median. Events of the processor (where valgrind is installed, simulated, with the generated table) and
//! allocations: the difference between runs on twice and once as many packets, so set-up does not count.
//!
//! `-- look-ups [FILTER...] [--runs N] [--flows ...] [--sizes ...]` prints the cost of a packet by the number of flows,
//! in nanoseconds, and the simulated cache misses up to 100,000 flows, by default for `forward-stateful` and `nat`.
//!
//! `-- memory [FILTER...] [--flows ...]` prints the memory of flow tables for these numbers of flows.
//!
//! `-- counts [FILTER...] [--sizes ...]` compares the events and allocations with `benches/counts.txt`, and ends with 1
//! if one got worse; `--accept REASON` writes them there.

#[allow(dead_code, reason = "other benchmarks use the rest of it")]
mod cases;
mod counts;
mod library;
mod look_ups;
mod memory;
mod routes;

use cases::events::{EVENTS, events, per_packet};
use cases::traffic::{has_new_flows, make_room, reason_to_skip, trace};
use cases::{Arguments, BATCH, duration, packets, print_runs, short, table_of};
use routes::GENERATED;
use std::process::ExitCode;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::{default_core, pin_to};
use tailwater_dataplane::port::round_robin;
use tailwater_dataplane::telemetry::Window;
use tailwater_dataplane::trace_nic::{Pacing, Renumber, TraceNic, TraceNicConfig};
use tailwater_functions::build::ChainBuilder;
use tailwater_net::Nanos;
use tailwater_traffic::generate::is_new_flow;

/// Time between two readings of the clock in runs that are counted. There is about one for each batch.
const READING: Nanos = Nanos::from_micros(1);

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
        let clock = match duration {
            Some(_) => Clock::start(),
            // Counts are the same each time only if timers are.
            None => Clock::of_readings(READING),
        };
        let config = TraceNicConfig {
            pacing: Pacing::Saturate,
            duration,
            renumber: match chain {
                // Other flows in each lap.
                "new-flows" => Renumber::All,
                _ if has_new_flows(size) => Renumber::Some(is_new_flow),
                _ => Renumber::None,
            },
            ..TraceNicConfig::default()
        };
        let mut spec = cases::spec(chain, flows);
        make_room(&mut spec, size, flows);
        let rss = spec.rss();
        let mut builder = ChainBuilder::new(&spec, &rss, 1).unwrap_or_else(|error| panic!("{error}"));
        let trace = trace(chain, size, flows, packets);
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

/// Runs all rows in turn, and prints the throughput of each.
fn throughput(rows: &mut [Row], runs: usize) {
    measure(rows, runs);
    for row in rows {
        let mpps = std::mem::take(&mut row.mpps);
        print_runs(row.name.clone(), "Mpps", mpps, row.table);
    }
}

/// Measures the throughput of all rows in turn, after a warm-up.
fn measure(rows: &mut [Row], runs: usize) {
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
}

/// One pass over `count` packets of these flows.
fn one_pass(chain: &str, traffic: (&str, u32), count: u64) {
    let mut row = Row::new(chain, traffic, count, None);
    assert_eq!(packets(chain, &row.run().0), count);
}

/// Returns the allocations per packet.
fn allocations(chain: &str, size: &str) -> f64 {
    let counted = per_packet(|packets| {
        let mut row = Row::new(chain, (size, 1_000), packets, None);
        let info = allocation_counter::measure(|| drop(row.run()));
        Some([info.count_total])
    });
    counted.map_or(0.0, |[each]| each)
}

/// Returns the events per packet, `None` without valgrind.
fn events_per_packet(chain: &str, size: &str) -> Option<[f64; EVENTS.len()]> {
    per_packet(|packets| events(&[chain, size, &packets.to_string()]))
}

fn print_counts(chain: &str, size: &str) {
    let print = |what: &str, unit, value, table| {
        print_runs(format!("chain/{chain}/{size}/1k/{what}"), unit, vec![value], table);
    };
    let table = table_of(chain).map(|table| table.name);
    print("allocations", "allocations/packet", allocations(chain, size), table);
    let Some(counts) = events_per_packet(chain, size) else {
        return eprintln!("{chain}: no events: valgrind is not installed or failed");
    };
    for (what, count) in EVENTS.into_iter().zip(counts) {
        let unit = match what {
            "instructions" => "instructions/packet",
            _ => "events/packet",
        };
        print(what, unit, count, table.map(|_| GENERATED));
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::read(cases::CHAINS, &["64B", "mixed-64B"], &[10_000, 1_000_000]);
    if let Some(one) = &arguments.one_pass {
        let [chain, size, packets, flows @ ..] = &one[..] else {
            panic!("--one-pass takes a chain, a size, a number of packets and, if not 1,000, of flows");
        };
        let packets = packets.parse().unwrap_or_else(|_| panic!("packets: {packets}"));
        let flows = flows.first().map_or(Ok(1_000), |flows| flows.parse());
        one_pass(
            chain,
            (size, flows.unwrap_or_else(|_| panic!("flows: {one:?}"))),
            packets,
        );
        library::clean();
        return ExitCode::SUCCESS;
    }
    let is_there = |chain: &&str, size: &str| match reason_to_skip(chain, size) {
        Some(reason) => {
            eprintln!("skipped: {chain} on {size}: {reason}");
            false
        }
        None => true,
    };
    if let Some(accept) = &arguments.counts {
        let rows = arguments.chains().flat_map(|chain| {
            let sizes = arguments.sizes.iter().map(String::as_str);
            sizes
                .filter(move |size| is_there(&chain, size))
                .map(move |size| (chain, size))
        });
        let count = |(chain, size): counts::Row<'_>| {
            let events = events_per_packet(chain, size)?;
            let mut all = [allocations(chain, size); counts::COUNTS];
            all[..events.len()].copy_from_slice(&events);
            Some(all)
        };
        let code = counts::check(&rows.collect::<Vec<_>>(), accept.as_deref(), count);
        library::clean();
        return code;
    }
    if arguments.memory {
        memory::print(&arguments);
        library::clean();
        return ExitCode::SUCCESS;
    }
    if let Err(error) = pin_to(default_core()) {
        eprintln!("not pinned: {error}");
    }
    if arguments.look_ups {
        look_ups::print(&arguments);
        library::clean();
        return ExitCode::SUCCESS;
    }
    for size in &arguments.sizes {
        for &flows in &arguments.flows {
            let row = |chain| {
                let packets = cases::trace_packets(chain, flows);
                // Long enough that flows expire while others begin.
                let duration = match has_new_flows(size) {
                    true => Nanos::from_secs(1),
                    false => duration(chain),
                };
                Row::new(chain, (size, flows), packets, Some(duration))
            };
            let chains = arguments.chains().filter(|chain| is_there(chain, size));
            let mut rows: Vec<Row> = chains.map(row).collect();
            throughput(&mut rows, arguments.runs);
        }
    }
    for size in &arguments.sizes {
        let chains = arguments.chains().filter(|chain| is_there(chain, size));
        chains.for_each(|chain| print_counts(chain, size));
    }
    library::clean();
    ExitCode::SUCCESS
}
