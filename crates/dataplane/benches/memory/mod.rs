//! Memory of chains' flow tables.

use crate::cases::{self, Arguments, print_runs, short};
use tailwater_chain::flow_table::FlowTableMemory;
use tailwater_functions::build::ChainBuilder;

/// Prints the bytes of a flow of the chains that have a flow table: state of functions, everything that must be kept,
/// and the table's memory for each flow that fits.
pub fn print(arguments: &Arguments) {
    for chain in arguments.chains() {
        for &capacity in &arguments.flows {
            let spec = cases::spec(chain, 1_000);
            let builder = ChainBuilder::new(&spec, &spec.rss(), 1).unwrap_or_else(|error| panic!("{error}"));
            let Some(small) = builder.flow_memory() else {
                continue;
            };
            let memory = FlowTableMemory::new(capacity as usize, small.state_bytes);
            let each = memory.bytes as f64 / memory.capacity as f64;
            let content = memory.content_bytes as f64;
            let figures = [
                ("state", "bytes/flow", memory.state_bytes as f64),
                ("content", "bytes/flow", content),
                ("memory", "bytes/flow", each),
                ("memory-to-content", "ratio", each / content),
            ];
            for (what, unit, value) in figures {
                print_runs(
                    format!("flows/{chain}/{}/{what}", short(capacity)),
                    unit,
                    vec![value],
                    None,
                );
            }
        }
    }
}
