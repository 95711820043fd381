//! Common code of the chain benchmarks: chains, traffic, a run on one core, output.

mod connections;
mod dns;
pub mod events;
pub mod files;
pub mod traffic;

use crate::{library, routes};
use std::sync::Arc;
use std::time::Duration;
use tailwater_api::WhenOverloaded;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_chain::packet_traces::{PacketFilter, PacketTraces};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::port::PortQueue;
use tailwater_dataplane::telemetry::{Window, windows};
use tailwater_dataplane::worker::{Worker, WorkerConfig};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;

/// Chains, by the names of `examples/`.
pub const CHAINS: &[&str] = &[
    "forward",
    "forward-stateful",
    "nat",
    "acl-nat",
    "router",
    "tunnel",
    "tunnel-ipforward",
    "acl",
    "acl-uncached",
    "load-balancer",
    "accounting",
    "flow-stats",
    "mirror",
    "mirror-headers",
    "counters",
    "url-filter",
    "acl-lb-accounting",
    "policer",
    "policer-flows",
    "dns-guard",
    "bpf-filter",
    "synthetic",
    "firewall",
    "firewall-tcp",
    "new-flows",
    "encrypt",
    "acl-urlfilter-encrypt",
    "ipsec",
    "ipsec-both-ends",
    "wan-optimizer",
    "wan-optimizer-both-ends",
    // Branches with half of the packets each, and with all of them in one. Then the same functions in a row with a
    // look-up of the same rules.
    "branches",
    "branches-one-way",
    "branches-line",
    // The interface for C functions next to the built-in one, with the same work.
    "forward-c",
    "count",
    "count-c",
];

/// Encryption with a public key.
const ENCRYPT: &str = "{encrypt: {mtu: 9000, \
     key: 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f}}";

/// One end of a tunnel, with a public key.
fn ipsec(end: &str) -> String {
    let association = "name: a, spi: 0x1001, cipher: aes-128-gcm, esn: true, \
         key: '000102030405060708090a0b0c0d0e0fa0a1a2a3', destination: 192.0.2.2";
    match end {
        "into" => format!(
            "{{name: into, ipsec: {{mtu: 9000, policies: [{{protect: a}}], \
             outbound: [{{{association}, source: 192.0.2.1}}]}}}}"
        ),
        _ => format!("{{name: out-of, ipsec: {{inbound: [{{{association}}}]}}}}"),
    }
}

/// One end of a tunnel that sends no data twice. The traffic's payloads are all alike, so the benchmark measures
/// repeated content, and packets too small to gain from it.
fn optimizer(end: &str) -> String {
    let ends = match end {
        "near" => "local: 192.0.2.1, remote: 192.0.2.2, destinations: [0.0.0.0/0]",
        _ => "local: 192.0.2.2, remote: 192.0.2.1",
    };
    format!("{{name: {end}, wanOptimizer: {{mtu: 9000, {ends}}}}}")
}

/// Rate of new flows in `new-flows`, where every packet opens a flow through ACL and NAT. It determines the lifetime
/// for a given number of active flows.
const NEW_FLOWS_PER_SECOND: u64 = 3_000_000;

/// Duration of a run. The first run of each row is a warm-up.
const RUN: Nanos = Nanos::from_millis(300);

/// Directory of the examples and the files they name.
pub const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

/// Functions of a chain, as a spec has them, or `None` if the chain is an example.
pub fn functions(chain: &str, flows: u32) -> Option<String> {
    let acl = "{acl: {rulesFile: rules/acl-1500.rules, format: classbench, default: allow}}";
    let nat = "{nat: {external: [203.0.113.0/28]}}";
    Some(match chain {
        "forward" | "forward-stateful" | "count" => "[{forward: {}}]".to_owned(),
        "nat" => format!("[{nat}]"),
        "acl-nat" | "new-flows" => format!("[{acl}, {nat}]"),
        "acl" => format!("[{acl}]"),
        // Every packet is classified, without a flow look-up.
        "acl-uncached" => format!("[{}]", acl.replace("{acl: {", "{acl: {cache: none, ")),
        "branches" | "branches-one-way" => {
            let ports = if chain == "branches" { "0-32767" } else { "0-65535" };
            format!(
                "[{{forward: {{}}}}, {{classifier: {{directions: each, default: b, rules: [{{to: a, sourcePorts: {ports}}}], \
                 branches: {{a: {{functions: [{{name: left, forward: {{}}}}]}}, b: {{functions: [{{name: right, forward: {{}}}}]}}}}}}}}]"
            )
        }
        "branches-line" => "[{forward: {}}, {acl: {default: allow, rules: [{action: allow, sourcePorts: 0-32767}]}}, \
                            {name: left, forward: {}}]"
            .to_owned(),
        "load-balancer" => format!("[{}]", load_balancer()),
        "encrypt" => format!("[{ENCRYPT}]"),
        "acl-urlfilter-encrypt" => {
            let filter = "{urlFilter: {patternsFile: patterns/blocked.txt}}";
            format!("[{acl}, {filter}, {ENCRYPT}]")
        }
        "ipsec" => format!("[{}]", ipsec("into")),
        "ipsec-both-ends" => format!("[{}, {}]", ipsec("into"), ipsec("out-of")),
        "wan-optimizer" => format!("[{}]", optimizer("near")),
        "wan-optimizer-both-ends" => {
            format!("[{}, {}]", optimizer("near"), optimizer("far"))
        }
        "accounting" => "[{accounting: {}}]".to_owned(),
        "flow-stats" => "[{flowStats: {}}]".to_owned(),
        // Every packet, or its headers, to a thread that writes to /dev/null. Packets arrive faster than on any wire.
        // Those that the thread cannot keep up with are not copied.
        "mirror" => "[{mirror: {to: {file: /dev/null, maxBytes: 1024GiB}, buffer: 64MiB}}]".to_owned(),
        "mirror-headers" => {
            "[{mirror: {to: {file: /dev/null, maxBytes: 1024GiB}, buffer: 64MiB, snap: 96, sample: {every: 10, by: flow}}}]".to_owned()
        }
        "counters" => {
            "[{count: {counters: [{name: udp, protocol: udp}, {name: some, destinationPorts: 1-9}, {name: all}]}}]".to_owned()
        }
        "url-filter" => "[{urlFilter: {patternsFile: patterns/blocked.txt}}]".to_owned(),
        "acl-lb-accounting" => format!("[{acl}, {}, {{accounting: {{}}}}]", load_balancer()),
        // Rates that pass everything, to measure the token buckets.
        "policer" => "[{policer: {limits: [{rate: 9000Gbps, burst: 900000000}]}}]".to_owned(),
        // Without handshakes in the traffic, connections are picked up.
        "firewall" | "firewall-tcp" => {
            "[{firewall: {rules: [allow], tcp: {midstream: allow}}}]".to_owned()
        }
        "ids" | "ids-1000" => {
            let rules = files::rules(chain == "ids-1000");
            let rules = rules.unwrap_or_else(|| panic!("{chain} needs TAILWATER_TEST_DATA"));
            format!("[{{ids: {{rulesFiles: ['{}']}}}}]", rules.display())
        }
        "upf" => format!(
            "[{{upf: {{addresses: [192.0.2.1], mtu: 9000, capacity: {flows}, \
             profiles: {{all: {{qfi: 9}}}}, sessionsFile: '{}'}}}}]",
            files::sessions(flows, 10).display()
        ),
        // A working set that fits the second-level cache.
        "synthetic" => {
            "[{synthetic: {cycles: 200, reads: 4, writes: 1, workingSet: 256KiB, per: flow}}]"
                .to_owned()
        }
        "policer-flows" => {
            "[{policer: {limits: [{per: flow, rate: 9000Gbps, burst: 900000000}]}}]".to_owned()
        }
        // An expression that reads both headers of each packet, and matches none.
        "bpf-filter" => "[{bpfFilter: {rules: [{expression: \
             'tcp port 80 or (udp and (dst port 53 or src net 192.0.2.0/24))', action: drop}]}}]"
            .to_owned(),
        // Objects of clang, as the examples have them.
        "xdp-filter" => "[{xdp: {file: programs/xdp/port_filter.o, readOnly: true}}]".to_owned(),
        "xdp-counter" => "[{xdp: {file: programs/xdp/source_counter.o, readOnly: true}}]".to_owned(),
        // The example's function in C, as a module; as a library it is below.
        "rate-limit-wasm" => format!(
            "[{{wasm: {{file: programs/wasm/rate_limit.wasm, config: {}}}}}]",
            library::RATE_LIMIT_CONFIG
        ),
        // Limits that apply to every answer, and that none exceeds.
        "dns-guard" => format!(
            "[{{dnsGuard: {{prefixes: {{ipv4: 32}}, limits: {{responses: 100000, all: 100000}}, accounts: {}}}}}]",
            (4 * flows).max(1024)
        ),
        "router" => format!("[{}]", ip_forward()),
        "tunnel" => "[{tunnel: {rules: [{push: {vlan: 100}}]}}]".to_owned(),
        "tunnel-ipforward" => format!(
            "[{{tunnel: {{rules: [{{push: {{vlan: 100}}}}]}}}}, {}]",
            ip_forward()
        ),
        other => match library::in_c(other) {
            Some(function) => format!("[{function}]"),
            None => return None,
        },
    })
}

pub fn spec(chain: &str, flows: u32) -> ChainSpec {
    let Some(functions) = functions(chain, flows) else {
        return example(chain, flows);
    };
    let text = spec_text(chain, &functions, flows);
    let spec = ChainSpec::parse(&text, chain, EXAMPLES.as_ref());
    let mut spec = spec.unwrap_or_else(|error| panic!("{error}"));
    library::add_own(chain, &mut spec);
    spec
}

/// Spec for the traffic of a chain, with these functions.
pub fn spec_text(chain: &str, functions: &str, flows: u32) -> String {
    let look_up = if chain == "forward-stateful" {
        "always"
    } else {
        "as-needed"
    };
    // Each translated flow has a return direction.
    let capacity = match chain {
        "acl" | "load-balancer" | "accounting" | "flow-stats" | "counters" | "acl-lb-accounting" | "url-filter"
        | "count" | "count-c" | "policer-flows" | "synthetic" | "firewall" | "firewall-tcp" | "ids" | "ids-1000" => {
            flows
        }
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
    format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: {chain}}}\nspec:\n  \
         slo: {{latency: 200us}}\n  functions: {functions}\n  \
         flows: {{capacity: {capacity}, lookUp: {look_up}{timeout}}}\n"
    )
}

/// Example of a function, with room for `flows` flows.
fn example(name: &str, flows: u32) -> ChainSpec {
    let path = std::path::Path::new(EXAMPLES).join(format!("{name}.yaml"));
    let mut spec = ChainSpec::read(&path).unwrap_or_else(|error| panic!("{error}"));
    spec.flows.capacity = (2 * flows).max(512);
    spec
}

/// Two services, for all addresses, of 16 backends.
fn load_balancer() -> String {
    let backends: Vec<String> = (1..=16).map(|last| format!("{{address: 172.16.0.{last}}}")).collect();
    let services = ["tcp", "udp"].map(|protocol| {
        format!(
            "{{address: 0.0.0.0/0, port: any, protocol: {protocol}, backends: [{}]}}",
            backends.join(", ")
        )
    });
    format!("{{loadBalancer: {{services: [{}]}}}}", services.join(", "))
}

/// Routing by the benchmark's table, to 16 next hops.
fn ip_forward() -> String {
    let hops = (0..16).map(|i| format!("{{name: hop-{i}, mac: '02:00:00:00:01:{i:02x}'}}"));
    let (file, hops) = (&routes::table().file, hops.collect::<Vec<_>>().join(", "));
    format!(
        "{{ipForward: {{routesFile: '{}', sourceMac: '02:00:00:00:00:01', nextHops: [{hops}]}}}}",
        file.display()
    )
}

/// Routing table of a chain, if it has one.
pub fn table_of(chain: &str) -> Option<&'static routes::Table> {
    matches!(chain, "router" | "tunnel-ipforward").then(routes::table)
}

/// Returns `true` if all prerequisites of a chain are available. Chains without their test data are skipped.
pub fn is_there(chain: &str) -> bool {
    !chain.starts_with("ids") || std::env::var_os("TAILWATER_TEST_DATA").is_some()
}

/// Packets per batch.
pub const BATCH: usize = 32;

/// Runs the chain from `start` on until `queue` ends or `stop` returns `true`. `queue` receives packets into buffers of
/// `pool`, up to `batch` at a time. Returns the measurements and the duration.
pub fn run(
    chain: &mut Option<Chain>,
    (queue, pool): (Box<dyn PortQueue>, BufferPool),
    batch: usize,
    start: Nanos,
    (clock, stop): (&Clock, &dyn Fn() -> bool),
) -> (Window, Nanos) {
    let config = WorkerConfig {
        slo: Nanos::from_micros(200),
        when_overloaded: WhenOverloaded::InOrder,
        window: Nanos::from_secs(3600),
        start,
        batch,
        late: Default::default(),
    };
    let mut this = chain.take().unwrap_or_else(|| unreachable!("put back below"));
    let functions = this.function_names().count();
    // As every run does: packets of each function are counted, and some of its batches timed.
    let reading = clock.clone();
    let traces = Arc::<PacketTraces>::default();
    this.sample_functions(Box::new(move || reading.now()), Arc::clone(&traces), Default::default());
    // A trace that is on: `TRACE='udp port 9'`.
    let filter = std::env::var("TRACE").ok().map(|filter| PacketFilter::parse(&filter));
    let _trace = filter.map(|filter| traces.begin(filter.expect("a filter"), 10_000));
    let (mut senders, receiver) = windows(1, [this.reasons().len(), functions]);
    let worker = Worker::new(queue, this, pool, clock.clone(), config, senders.remove(0));
    let before = clock.now();
    *chain = Some(measured(worker, stop));
    let took = clock.now() - before;
    let mut total = Window::default();
    while receiver.receive(Duration::ZERO, |window| total.merge(window)).is_ok() {}
    (total, took)
}

/// Function that callgrind counts. Never inlined, because callgrind identifies it by name.
#[inline(never)]
fn measured(worker: Worker, stop: &dyn Fn() -> bool) -> Chain {
    worker.run(stop)
}

/// Number of packets in a run. Checks that none is missing and few were dropped.
pub fn packets(name: &str, window: &Window) -> u64 {
    let packets = window.delivered + window.dropped + window.lost_in_chain;
    assert_eq!(window.offered, packets, "{name}: packets went missing");
    assert!(
        window.delivered * 10 > packets * 9,
        "{name}: of {packets} packets {} were dropped, and {} lost for want of room",
        window.dropped,
        window.lost_in_chain
    );
    packets
}

pub fn short(flows: u32) -> String {
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

/// Duration of a run. Each run begins with the same flows, so those that are to be new must have expired before.
pub fn duration(chain: &str) -> Nanos {
    match chain {
        "new-flows" => Nanos::from_secs(1),
        _ => RUN,
    }
}

/// Number of packets in a trace in memory: whole rounds of flows, and too many to fit a cache.
pub fn trace_packets(chain: &str, flows: u32) -> u64 {
    if chain == "new-flows" {
        return 1 << 20;
    }
    u64::from(flows) * (1u64 << 18).div_ceil(u64::from(flows)).max(2)
}

/// Line of the benchmark's output.
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

/// Prints the figure of several runs: their median.
pub fn print_runs(name: String, unit: &'static str, mut values: Vec<f64>, table: Option<&'static str>) {
    values.sort_by(f64::total_cmp);
    print(&Figure {
        name,
        value: rounded(values[values.len() / 2]),
        unit,
        min: rounded(values[0]),
        max: rounded(values[values.len() - 1]),
        runs: values.len(),
        table,
    });
}

/// Command line.
pub struct Arguments {
    known: &'static [&'static str],
    /// Selected chains. All if empty.
    filters: Vec<String>,
    pub runs: usize,
    pub flows: Vec<u32>,
    pub sizes: Vec<String>,
    /// Arguments after `--one-pass`.
    pub one_pass: Option<Vec<String>>,
    /// `memory` prints the memory of flow tables.
    pub memory: bool,
    /// `look-ups` prints the cost of a look-up by the number of flows.
    pub look_ups: bool,
    /// Comparison of counts, with the reason to accept them after `--accept`.
    pub counts: Option<Option<String>>,
}

impl Arguments {
    /// Parses the command line, for these chains. `sizes` and `flows` are the defaults.
    pub fn read(known: &'static [&'static str], sizes: &[&str], flows: &[u32]) -> Arguments {
        let mut arguments = std::env::args().skip(1);
        let mut read = Arguments {
            known,
            filters: Vec::new(),
            runs: 7,
            flows: flows.to_vec(),
            sizes: sizes.iter().map(ToString::to_string).collect(),
            one_pass: None,
            memory: false,
            look_ups: false,
            counts: None,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} takes a value"));
            match argument.as_str() {
                "--one-pass" => read.one_pass = Some(arguments.by_ref().collect()),
                "memory" => {
                    read.memory = true;
                    read.flows = vec![65_536, 1_000_000, 10_000_000];
                }
                "look-ups" => {
                    read.look_ups = true;
                    read.sizes = vec!["tcp-udp-64B".to_owned(), "tcp-udp-64B-zipf".to_owned()];
                    read.flows = vec![1_000, 10_000, 100_000, 1_000_000, 10_000_000];
                }
                "counts" => read.counts = Some(None),
                "--accept" => read.counts = Some(Some(value())),
                "--runs" => read.runs = value().parse().unwrap_or_else(|_| panic!("--runs takes a number")),
                "--sizes" => read.sizes = value().split(',').map(str::to_owned).collect(),
                "--flows" => read.flows = value().split(',').map(long).collect(),
                // Added by cargo.
                "--bench" => {}
                _ => read.filters.push(argument),
            }
        }
        for filter in &read.filters {
            let is_known = known.contains(&filter.as_str());
            assert!(is_known, "no chain {filter}; there are {}", known.join(", "));
        }
        read
    }

    /// Returns `true` if chains were named.
    pub fn is_filtered(&self) -> bool {
        !self.filters.is_empty()
    }

    /// Selected chains.
    pub fn chains(&self) -> impl Iterator<Item = &'static str> {
        let wanted = |chain: &&&str| self.filters.is_empty() || self.filters.iter().any(|f| f == **chain);
        self.known.iter().filter(wanted).copied()
    }
}
