//! Chains on one core with the whole runtime in the loop: receive (a copy into a fresh buffer),
//! flow look-up, functions, transmit, every packet's latency recorded.
//!
//! `cargo bench -p tailwater-dataplane --bench chains [-- FILTER...] [--runs N] [--flows 10k,1M]
//! [--sizes 64B,imix,1024B]` prints a JSON line a figure. The chains that route have the full BGP table if
//! `TAILWATER_TEST_DATA` names the test data, else a generated one; their lines say which. Throughput: all rows are run in turn, `runs` times; the value is the
//! median. Instructions (where valgrind is installed) and allocations: the difference between
//! runs on twice and once as many packets, so that set-up does not count.
//!
//! With the feature `dpdk` and `--port` each chain is also run over a `net_ring` device that the worker refills with the
//! same copies, and a figure more says how many nanoseconds a packet takes longer than with the trace NIC.

mod library;
#[cfg(feature = "dpdk")]
mod ring;
mod routes;

use std::process::Command;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::{default_core, pin_to};
use tailwater_dataplane::port::{PortQueue, round_robin};
use tailwater_dataplane::telemetry::{Window, windows};
use tailwater_dataplane::trace_nic::{Pacing, TraceNic, TraceNicConfig};
use tailwater_dataplane::worker::{Worker, WorkerConfig};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;
use tailwater_nf::buffer::BufferPool;
use tailwater_nf::build::ChainBuilder;
use tailwater_nf::chain::Chain;
use tailwater_nf::spec::ChainSpec;
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{LoadOptions, Trace};

/// The chains, by the names of `examples/`.
const CHAINS: &[&str] = &[
    "forward",
    "forward-stateful",
    "nat",
    "acl-nat",
    "router",
    "tunnel-ipforward",
    "acl",
    "acl-uncached",
    "load-balancer",
    "accounting",
    "url-filter",
    "acl-lb-accounting",
    "policer",
    "policer-flows",
    "new-flows",
    "encrypt",
    "acl-urlfilter-encrypt",
    // The interface for functions in C beside the built-in one: what is done is the same.
    "forward-c",
    "count",
    "count-c",
];

/// Encryption with a key for all to see.
const ENCRYPT: &str = "{encrypt: {mtu: 9000, \
     key: 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f}}";

/// In `new-flows` every packet opens a flow through ACL and NAT. Flows live as long as makes so many
/// of them alive at a time at this rate.
const NEW_FLOWS_PER_SECOND: u64 = 3_000_000;

/// How long a run takes; the first run of each row is a warm-up.
const RUN: Nanos = Nanos::from_millis(300);

fn spec(chain: &str, flows: u32) -> ChainSpec {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let acl = "{acl: {rulesFile: rules/acl-1500.rules, format: classbench, default: allow}}";
    let nat = "{nat: {external: [203.0.113.0/28]}}";
    let functions = match chain {
        "forward" | "forward-stateful" | "count" => "[{forward: {}}]".to_owned(),
        "nat" => format!("[{nat}]"),
        "acl-nat" | "new-flows" => format!("[{acl}, {nat}]"),
        "acl" => format!("[{acl}]"),
        // Every packet is classified, no flow looked up.
        "acl-uncached" => format!("[{}]", acl.replace("{acl: {", "{acl: {cache: none, ")),
        "load-balancer" => format!("[{}]", load_balancer()),
        "encrypt" => format!("[{ENCRYPT}]"),
        "acl-urlfilter-encrypt" => {
            let filter = "{urlFilter: {patternsFile: patterns/blocked.txt}}";
            format!("[{acl}, {filter}, {ENCRYPT}]")
        }
        "accounting" => "[{accounting: {}}]".to_owned(),
        "url-filter" => "[{urlFilter: {patternsFile: patterns/blocked.txt}}]".to_owned(),
        "acl-lb-accounting" => format!("[{acl}, {}, {{accounting: {{}}}}]", load_balancer()),
        // Rates that pass everything: the buckets are what is measured.
        "policer" => "[{policer: {limits: [{rate: 9000Gbps, burst: 900000000}]}}]".to_owned(),
        "policer-flows" => {
            "[{policer: {limits: [{per: flow, rate: 9000Gbps, burst: 900000000}]}}]".to_owned()
        }
        "router" => format!("[{}]", ip_forward()),
        "tunnel-ipforward" => format!(
            "[{{tunnel: {{rules: [{{push: {{vlan: 100}}}}]}}}}, {}]",
            ip_forward()
        ),
        other => match library::in_c(other) {
            Some(function) => format!("[{function}]"),
            None => panic!("no chain {other}"),
        },
    };
    let look_up = if chain == "forward-stateful" {
        "always"
    } else {
        "as-needed"
    };
    // Translated flows have a return direction each.
    let capacity = match chain {
        "acl" | "load-balancer" | "accounting" | "acl-lb-accounting" | "url-filter" | "count"
        | "count-c" | "policer-flows" => flows,
        "new-flows" => 4 * flows,
        _ => 2 * flows,
    };
    let capacity = capacity.max(512);
    let timeout = match chain {
        "new-flows" => {
            let micros = (u64::from(flows) * 1_000_000 / NEW_FLOWS_PER_SECOND).max(1_000);
            format!(", idleTimeout: {micros}us")
        }
        _ => String::new(),
    };
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: {chain}}}\nspec:\n  \
         slo: {{latency: 200us}}\n  functions: {functions}\n  \
         flows: {{capacity: {capacity}, lookUp: {look_up}{timeout}}}\n"
    );
    let spec = ChainSpec::parse(&text, chain, examples.as_ref());
    let mut spec = spec.unwrap_or_else(|error| panic!("{error}"));
    library::add_own(chain, &mut spec);
    spec
}

/// Two services, for all addresses, of 16 backends.
fn load_balancer() -> String {
    let backends: Vec<String> = (1..=16)
        .map(|last| format!("{{address: 172.16.0.{last}}}"))
        .collect();
    let services = ["tcp", "udp"].map(|protocol| {
        format!(
            "{{address: 0.0.0.0/0, port: any, protocol: {protocol}, backends: [{}]}}",
            backends.join(", ")
        )
    });
    format!("{{loadBalancer: {{services: [{}]}}}}", services.join(", "))
}

/// Routing over the benchmark's table, to 16 next hops.
fn ip_forward() -> String {
    let hops = (0..16).map(|i| format!("{{name: hop-{i}, mac: '02:00:00:00:01:{i:02x}'}}"));
    let (file, hops) = (&routes::table().file, hops.collect::<Vec<_>>().join(", "));
    format!(
        "{{ipForward: {{routesFile: '{}', sourceMac: '02:00:00:00:00:01', nextHops: [{hops}]}}}}",
        file.display()
    )
}

/// Which table a chain routes by, if it does.
fn table_of(chain: &str) -> Option<&'static routes::Table> {
    matches!(chain, "router" | "tunnel-ipforward").then(routes::table)
}

/// A size by its name in figures.
fn frame_size(name: &str) -> FrameSize {
    let bytes = name.strip_suffix('B').and_then(|bytes| bytes.parse().ok());
    match (name, bytes) {
        ("imix", _) => FrameSize::Imix,
        (_, Some(bytes)) => FrameSize::Fixed(bytes),
        _ => panic!("--sizes takes 64B,imix,1024B, found {name}"),
    }
}

fn trace(chain: &str, size: &str, flows: u32, packets: u64) -> Trace {
    // With as many flows as packets, each packet is a flow's first.
    let flows = if chain == "new-flows" {
        packets as u32
    } else {
        flows
    };
    let config = UniformConfig {
        seed: 1,
        flows,
        size: frame_size(size),
        // A filter of URLs has nothing to do with UDP.
        transport: match chain {
            "url-filter" => Transport::Tcp,
            _ => Transport::Udp,
        },
        rate_pps: 1_000_000,
        packets,
    };
    let mut source = Uniform::new(config).unwrap_or_else(|error| panic!("{error}"));
    let options = LoadOptions::default();
    let trace = match table_of(chain) {
        None => Trace::load(&mut source, &options),
        Some(table) => {
            let frame = Vec::new();
            let mut source = routes::Redirected {
                source,
                table,
                frame,
            };
            Trace::load(&mut source, &options)
        }
    };
    trace.unwrap_or_else(|error| panic!("{error}"))
}

/// A chain on its traffic.
struct Row {
    name: String,
    /// The table that the chain routes by.
    table: Option<&'static str>,
    source: Source,
    chain: Option<Chain>,
    clock: Clock,
    mpps: Vec<f64>,
}

/// Where a row's packets come from.
enum Source {
    Trace(TraceNic),
    /// A ring, for so long.
    #[cfg(feature = "dpdk")]
    Ring(ring::Hashed, Option<Nanos>),
}

/// The kinds of sources, with what begins the names of their rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Trace,
    #[cfg(feature = "dpdk")]
    Ring,
}

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Kind::Trace => "chain",
            #[cfg(feature = "dpdk")]
            Kind::Ring => "ports/net_ring",
        }
    }
}

impl Row {
    fn new(
        kind: Kind,
        chain: &str,
        (size, flows): (&str, u32),
        packets: u64,
        duration: Option<Nanos>,
    ) -> Row {
        let clock = Clock::start();
        let config = TraceNicConfig {
            pacing: Pacing::Saturate,
            duration,
            // Other flows in each lap.
            renumber: chain == "new-flows",
            ..TraceNicConfig::default()
        };
        let rss = RssHasher::default();
        let mut builder = ChainBuilder::new(&spec(chain, flows), &rss, 1)
            .unwrap_or_else(|error| panic!("{error}"));
        let trace = trace(chain, size, flows, packets);
        let source = match kind {
            Kind::Trace => Source::Trace(
                TraceNic::new(trace, rss, 1, &round_robin(1), config, clock.clone())
                    .unwrap_or_else(|error| panic!("{error}")),
            ),
            #[cfg(feature = "dpdk")]
            Kind::Ring => Source::Ring(ring::Hashed::new(trace, &rss), duration),
        };
        Row {
            name: format!("{}/{chain}/{size}/{}", kind.prefix(), short(flows)),
            table: table_of(chain).map(|table| table.name),
            source,
            chain: Some(builder.instance(|_| true)),
            clock,
            mpps: Vec::new(),
        }
    }

    /// Runs the chain once; returns what was measured and the time it took.
    fn run(&mut self) -> (Window, Nanos) {
        let start = self.clock.now();
        let (queue, pool, _ports) = self.source.open(start, &self.clock);
        let config = WorkerConfig {
            slo: Nanos::from_micros(200),
            window: Nanos::from_secs(3600),
            start,
            batch: 32,
        };
        let chain = self
            .chain
            .take()
            .unwrap_or_else(|| unreachable!("put back below"));
        let (mut senders, receiver) = windows(1, chain.reasons().len());
        let clock = self.clock.clone();
        let worker = Worker::new(queue, chain, pool, clock, config, senders.remove(0));
        let before = self.clock.now();
        self.chain = Some(measured(worker));
        let took = self.clock.now() - before;
        let mut total = Window::default();
        while receiver
            .receive(std::time::Duration::ZERO, |window| total.merge(window))
            .is_ok()
        {}
        (total, took)
    }
}

impl Source {
    /// A worker's queue and buffers, and what has to stay as long as they do.
    fn open(
        &mut self,
        start: Nanos,
        clock: &Clock,
    ) -> (Box<dyn PortQueue>, BufferPool, Box<dyn std::any::Any>) {
        match self {
            Source::Trace(nic) => {
                let _ = clock;
                let pool = BufferPool::new(512, nic.longest_frame());
                let pool = pool.unwrap_or_else(|error| panic!("{error}"));
                (Box::new(nic.queues(start).remove(0)), pool, Box::new(()))
            }
            #[cfg(feature = "dpdk")]
            Source::Ring(packets, duration) => {
                let (queue, pool, ports) = ring::queue(packets, clock, start, *duration);
                (queue, pool, Box::new(ports))
            }
        }
    }
}

/// What callgrind counts: not to be inlined, since it is told the name.
#[inline(never)]
fn measured(worker: Worker) -> Chain {
    worker.run(|| false)
}

fn short(flows: u32) -> String {
    match flows {
        n if n % 1_000_000 == 0 => format!("{}M", n / 1_000_000),
        n if n % 1_000 == 0 => format!("{}k", n / 1_000),
        n => n.to_string(),
    }
}

fn long(text: &str) -> u32 {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        Some(b'k') => (&text[..text.len() - 1], 1_000),
        _ => (text, 1),
    };
    digits
        .parse::<u32>()
        .unwrap_or_else(|_| panic!("--flows takes 10k,1M, found {text}"))
        * unit
}

/// How long a run takes. Each begins with the same flows: those of `new-flows` have to be gone.
fn duration(chain: &str) -> Nanos {
    match chain {
        "new-flows" => Nanos::from_secs(1),
        _ => RUN,
    }
}

/// The packets of a trace in memory: enough that it does not fit a cache, and whole rounds of flows.
fn trace_packets(chain: &str, flows: u32) -> u64 {
    if chain == "new-flows" {
        return 1 << 20;
    }
    u64::from(flows) * (1u64 << 18).div_ceil(u64::from(flows)).max(2)
}

/// How much longer than with the trace NIC, whose rows come first, a packet takes: the median of runs next to
/// each other.
#[cfg(feature = "dpdk")]
fn differences(rows: &[Row], chains: &[&str]) {
    let (traces, others) = rows.split_at(chains.len());
    for ((trace, other), chain) in traces.iter().zip(others).zip(chains) {
        let nanos = |mpps: f64| 1e3 / mpps;
        let median = |row: &Row| row.mpps[row.mpps.len() / 2];
        let more = nanos(median(other)) - nanos(median(trace));
        let name = format!("{}/more-than-trace", other.name);
        print_one(name, "ns/packet", more, chain);
    }
}

fn throughput(rows: &mut [Row], runs: usize) {
    // Interleaved, so that a noisy minute hits every row alike.
    for run in 0..=runs {
        for row in rows.iter_mut() {
            let (window, took) = row.run();
            let packets = window.delivered + window.dropped + window.lost_in_chain;
            assert_eq!(
                window.offered, packets,
                "{}: packets went missing",
                row.name
            );
            assert!(
                window.delivered * 10 > packets * 9,
                "{}: most is dropped",
                row.name
            );
            let mpps = packets as f64 / took.as_secs_f64() / 1e6;
            eprintln!("{} run {run}: {mpps:.2} Mpps", row.name);
            if run > 0 {
                row.mpps.push(mpps);
            }
        }
    }
    for row in rows {
        row.mpps.sort_by(f64::total_cmp);
        print(&Figure {
            name: row.name.clone(),
            value: rounded(row.mpps[row.mpps.len() / 2]),
            unit: "Mpps",
            min: rounded(row.mpps[0]),
            max: rounded(row.mpps[row.mpps.len() - 1]),
            runs: row.mpps.len(),
            table: row.table,
        });
    }
}

/// A line of the benchmark's output.
#[derive(serde::Serialize)]
struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    min: f64,
    max: f64,
    runs: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<&'static str>,
}

fn print(figure: &Figure) {
    println!(
        "{}",
        serde_json::to_string(figure).unwrap_or_else(|error| panic!("{error}"))
    );
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// What once and twice so many packets cost by `count`, per packet.
fn per_packet(mut count: impl FnMut(u64) -> Option<u64>) -> Option<f64> {
    const PACKETS: u64 = 32_000;
    let (once, twice) = (count(PACKETS)?, count(2 * PACKETS)?);
    Some((twice as f64 - once as f64) / PACKETS as f64)
}

fn print_count(chain: &str, what: &str, unit: &'static str, value: f64) {
    print_one(format!("chain/{chain}/64B/1k/{what}"), unit, value, chain);
}

fn print_one(name: String, unit: &'static str, value: f64, chain: &str) {
    let value = rounded(value);
    print(&Figure {
        name,
        value,
        unit,
        min: value,
        max: value,
        runs: 1,
        table: table_of(chain).map(|table| table.name),
    });
}

/// One pass over that many packets of 1,000 flows.
fn one_pass(chain: &str, packets: u64) {
    let (window, _) = Row::new(Kind::Trace, chain, ("64B", 1_000), packets, None).run();
    assert_eq!(
        window.delivered + window.dropped + window.lost_in_chain,
        packets
    );
}

/// What a ring and a device cost without a chain.
#[cfg(feature = "dpdk")]
fn ring_alone(runs: usize) {
    let packets = ring::Hashed::new(
        trace("forward", "64B", 10_000, trace_packets("forward", 10_000)),
        &RssHasher::default(),
    );
    let mut nanos: Vec<f64> = (0..runs.max(1)).map(|_| ring::alone(&packets)).collect();
    nanos.sort_by(f64::total_cmp);
    let name = "ports/net_ring/alone/64B".to_owned();
    print_one(name, "ns/packet", nanos[nanos.len() / 2], "forward");
}

/// Allocations over another kind of port than the trace NIC.
#[cfg(feature = "dpdk")]
fn allocations(kind: Kind, chain: &str) {
    let allocations = per_packet(|packets| {
        let mut row = Row::new(kind, chain, ("64B", 1_000), packets, None);
        let info = allocation_counter::measure(|| drop(row.run()));
        Some(info.count_total)
    });
    let name = format!("{}/{chain}/64B/1k/allocations", kind.prefix());
    allocations.into_iter().for_each(|value| {
        print_one(name.clone(), "allocations/packet", value, chain);
    });
}

fn counts(chain: &str) {
    let allocations = per_packet(|packets| {
        let mut row = Row::new(Kind::Trace, chain, ("64B", 1_000), packets, None);
        let info = allocation_counter::measure(|| drop(row.run()));
        Some(info.count_total)
    });
    if let Some(allocations) = allocations {
        print_count(chain, "allocations", "allocations/packet", allocations);
    }
    match per_packet(|packets| instructions(chain, packets)) {
        Some(instructions) => {
            print_count(chain, "instructions", "instructions/packet", instructions)
        }
        None => eprintln!("{chain}: no instruction count: valgrind is not installed or failed"),
    }
}

/// Instructions of a whole process that makes one pass, by callgrind.
fn instructions(chain: &str, packets: u64) -> Option<u64> {
    let program = std::env::current_exe().ok()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=chains::measured*")
        .arg(program)
        .args(["--one-pass", chain, &packets.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    // Libraries are tried in a child process, which has a count of its own, and ends before its parent.
    let (_, count) = text.rsplit_once("Collected : ")?;
    count.split_whitespace().next()?.parse().ok()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut filters, mut runs, mut flows) = (Vec::new(), 7, vec![10_000, 1_000_000]);
    let (mut sizes, mut port) = (vec!["64B".to_owned()], false);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .unwrap_or_else(|| panic!("{argument} takes a value"))
        };
        match argument.as_str() {
            "--one-pass" => {
                let (chain, packets) = (value(), value());
                let packets = packets
                    .parse()
                    .unwrap_or_else(|_| panic!("packets: {packets}"));
                one_pass(&chain, packets);
                return library::clean();
            }
            "--port" => port = true,
            "--runs" => {
                runs = value()
                    .parse()
                    .unwrap_or_else(|_| panic!("--runs takes a number"))
            }
            "--sizes" => sizes = value().split(',').map(str::to_owned).collect(),
            "--flows" => flows = value().split(',').map(long).collect(),
            // Cargo's own.
            "--bench" => {}
            _ => filters.push(argument),
        }
    }
    let wanted = |chain: &str| filters.is_empty() || filters.iter().any(|filter| filter == chain);
    let chains: Vec<&str> = CHAINS
        .iter()
        .copied()
        .filter(|chain| wanted(chain))
        .collect();
    if let Err(error) = pin_to(default_core()) {
        eprintln!("not pinned: {error}");
    }
    for size in &sizes {
        for &flows in &flows {
            let of_kind = |kind: Kind| {
                chains.iter().map(move |chain| {
                    let packets = trace_packets(chain, flows);
                    Row::new(kind, chain, (size, flows), packets, Some(duration(chain)))
                })
            };
            let mut rows: Vec<Row> = of_kind(Kind::Trace).collect();
            #[cfg(feature = "dpdk")]
            if port {
                rows.extend(of_kind(Kind::Ring));
            }
            throughput(&mut rows, runs);
            #[cfg(feature = "dpdk")]
            if port {
                differences(&rows, &chains);
            }
        }
    }
    match port {
        #[cfg(feature = "dpdk")]
        true => {
            chains
                .iter()
                .for_each(|chain| allocations(Kind::Ring, chain));
            ring_alone(runs);
        }
        #[cfg(not(feature = "dpdk"))]
        true => panic!("--port needs the feature dpdk"),
        false => chains.into_iter().for_each(counts),
    }
    library::clean();
}
