//! Cost of a packet of a known flow by the number of flows.

use crate::cases::events::{EVENTS, events};
use crate::cases::{self, Arguments, duration, print_runs, short};
use crate::{Row, measure};

/// Chains by default: a look-up alone, and one with state.
const CHAINS: [&str; 2] = ["forward-stateful", "nat"];

/// Number of flows up to which cache misses are simulated. Beyond, the simulation takes minutes a row.
const MOST_SIMULATED: u32 = 100_000;

/// Kinds of events that are printed.
const PRINTED: [&str; 3] = ["instructions", "d1-misses", "ll-misses"];

/// Prints the rows that the arguments select. Each number of flows is measured by itself, so that all memory is its
/// own.
pub fn print(arguments: &Arguments) {
    let is_meant = |chain: &&str| arguments.is_filtered() || CHAINS.contains(chain);
    let chains: Vec<&str> = arguments.chains().filter(is_meant).collect();
    for size in &arguments.sizes {
        for &flows in &arguments.flows {
            for chain in chains.iter().filter(|chain| has_room(chain, flows)) {
                let packets = cases::trace_packets(chain, flows);
                let mut rows = [Row::new(chain, (size, flows), packets, Some(duration(chain)))];
                measure(&mut rows, arguments.runs);
                let [row] = rows;
                let nanos = row.mpps.iter().map(|mpps| 1e3 / mpps).collect();
                print_runs(format!("{}/time", row.name), "ns/packet", nanos, row.table);
                if flows <= MOST_SIMULATED {
                    print_events(chain, size, flows);
                }
            }
        }
    }
}

/// Returns `true` if a flow table can have as many flows.
fn has_room(chain: &str, flows: u32) -> bool {
    const MOST: u64 = 1 << 24;
    let has_room = match chain {
        // Each connection is two flows.
        "nat" | "acl-nat" => 2 * u64::from(flows) <= MOST,
        _ => u64::from(flows) <= MOST,
    };
    if !has_room {
        eprintln!("skipped: {chain} with {} flows: more than a table has", short(flows));
    }
    has_room
}

/// Prints the events per packet once all flows are known: the difference between runs of three rounds and of two.
fn print_events(chain: &str, size: &str, flows: u32) {
    let round = u64::from(flows).max(32_000);
    let count = |rounds: u64| events(&[chain, size, &(rounds * round).to_string(), &flows.to_string()]);
    let (Some(two), Some(three)) = (count(2), count(3)) else {
        return eprintln!("{chain}: no events: valgrind is not installed or failed");
    };
    for (i, what) in EVENTS
        .into_iter()
        .enumerate()
        .filter(|(_, what)| PRINTED.contains(what))
    {
        let each = (three[i] as f64 - two[i] as f64) / round as f64;
        let name = format!("chain/{chain}/{size}/{}/{what}", short(flows));
        print_runs(name, "events/packet", vec![each], None);
    }
}
