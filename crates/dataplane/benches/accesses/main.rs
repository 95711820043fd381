//! Records which cache lines a chain touches per packet, for the modelled socket (`tailwater-socket`).
//!
//! `cargo bench -p tailwater-dataplane --bench accesses [-- CHAIN...]` writes `crates/socket/patterns/CHAIN.pattern`,
//! by default for [`CHAINS`]. Requires valgrind; a chain takes some minutes. The program runs itself under valgrind's
//! `lackey`, which prints every load, store and instruction. Only accesses within `Chain::process` count; packets are
//! copied into buffers outside of it, as a device would write them.
//!
//! Three recordings give the numbers that scale:
//!
//! - 64-byte packets of 1,024 and of 4,096 flows. Touches are grouped by the instruction that makes them. A group whose
//!   number of different lines grows with the flows is state of flows; the growth gives its bytes per flow. The other
//!   groups are tables of fixed size. Lines that a quarter of all batches touch are `hot`.
//! - 1,024-byte packets of 1,024 flows. The differences from 64 bytes give what each further line of a packet costs.
//!
//! Parallel misses: the number of touches outside of `hot` within 256 instructions, and the share that the code
//! prefetches (`prefetch` instructions per such touch), which proceed ten at a time.

#[allow(dead_code, reason = "other benchmarks use the rest of it")]
#[path = "../cases/mod.rs"]
mod cases;
mod driver;
#[path = "../library/mod.rs"]
mod library;
mod lines;
mod recording;
mod regions;
#[allow(dead_code, reason = "other benchmarks use the rest of it")]
#[path = "../routes/mod.rs"]
mod routes;

use std::path::Path;
use tailwater_socket::{Pattern, PatternRegion};

/// Chains that are recorded by default.
const CHAINS: &[&str] = &[
    "forward",
    "router",
    "acl",
    "acl-uncached",
    "nat",
    "load-balancer",
    "accounting",
    "flow-stats",
    "firewall",
    "policer-flows",
    "dns-guard",
    "url-filter",
    "encrypt",
    "ipsec",
    "ids",
    "acl-nat",
    "acl-lb-accounting",
    "acl-urlfilter-encrypt",
];

const FEW: u32 = 1_024;
const MANY: u32 = 4_096;
/// Lines of a 1,024-byte packet after the first.
const FURTHER_LINES: f64 = 15.0;

fn record(chain: &str) -> Pattern {
    let [few, many, long] = [("64B", FEW), ("64B", MANY), ("1024B", FEW)].map(|(size, flows)| {
        eprintln!("{chain}: recording {flows} flows of {size}");
        recording::record(chain, size, flows)
    });
    let each = |few: f64, long: f64| ((long - few) / FURTHER_LINES).max(0.0);
    let instructions = many.per_packet(many.instructions);
    let [few_lines, many_lines, long_lines] = [&few, &many, &long].map(lines::Lines::of);
    let packet = |lines: &lines::Lines| [lines.packet_reads, lines.packet_writes];
    let ([reads, writes], [long_reads, long_writes]) = (packet(&few_lines), packet(&long_lines));
    let mut regions = vec![PatternRegion {
        name: "hot".to_owned(),
        fixed_bytes: many_lines.hot_bytes,
        bytes_per_flow: 0.0,
        span_bytes: 0.0,
        reads: many_lines.hot_reads,
        writes: many_lines.hot_writes,
        reads_per_line: 0.0,
        parallel: tailwater_socket::MAX_PARALLEL_MISSES,
    }];
    regions.extend(regions::regions(
        [&few_lines, &many_lines, &long_lines],
        [FEW, MANY],
        FURTHER_LINES,
    ));
    Pattern {
        name: chain.to_owned(),
        instructions,
        instructions_per_line: each(few.per_packet(few.instructions), long.per_packet(long.instructions)),
        packet_reads: [reads, each(reads, long_reads)],
        packet_writes: [writes, each(writes, long_writes)],
        regions,
    }
}

fn main() {
    let mut arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    if arguments.first().is_some_and(|first| first == driver::DRIVE) {
        let [_, chain, size, flows] = &arguments[..] else {
            panic!("{} takes a chain, a size and a number of flows", driver::DRIVE);
        };
        driver::drive(chain, size, flows.parse().unwrap_or_else(|_| panic!("flows: {flows}")));
        return library::clean();
    }
    if arguments.is_empty() {
        arguments = CHAINS.iter().map(|&chain| chain.to_owned()).collect();
    }
    for chain in &arguments {
        assert!(
            cases::CHAINS.contains(&chain.as_str()) || chain == "ids",
            "no chain {chain}"
        );
        if !cases::is_there(chain) {
            eprintln!("{chain}: skipped: TAILWATER_TEST_DATA does not name the test data");
            continue;
        }
        let pattern = record(chain);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../socket/patterns");
        let file = folder.join(format!("{chain}.pattern"));
        std::fs::write(&file, pattern.to_string()).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        print!("{pattern}");
    }
    library::clean();
}
