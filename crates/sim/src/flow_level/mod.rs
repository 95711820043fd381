//! Flow-level model: racks of a data centre for hours, with rates and backlogs instead of packets.
//!
//! | part | model |
//! |---|---|
//! | traffic | a preset's [statistics](tailwater_traffic::generate::TrafficStatistics): rates of RSS buckets that change as flows begin and end, fast trains and minnow bursts as events, everything else as dispersion |
//! | dedicated core | backlog as a fluid, linear between events; beyond ring and buffers packets are lost |
//! | core mapper | a model of it: auxiliary cores join where the backlog crosses the mapper's limits, after their wake-up, and are released by the mapper's rules (NetBlaze's: at the ends of epochs) |
//! | server mapper, ingress mapper | the same code as in the packet-level model and live |
//! | chains | each has its own servers, or a share of a server's cores; no core is shared |
//!
//! A step lasts a millisecond: the rate without events varies from step to step as the trains of small packets
//! make it vary. Latencies follow from the backlog that packets find. Packets that find none wait as at a queue with
//! random arrivals. Results depend on the seed alone, not on the number of threads.
//!
//! Rows that move take their share of each bucket's rate from one server to another, after the time for rows and flows'
//! state. Until then the old server processes all.
//!
//! Not modelled, beyond what the packet-level model leaves out: links, migration of buckets, packets that wait for rows
//! or moves, relief, splits, jitter, pauses, NUMA nodes, single flows of an auxiliary core. A flow that exceeds a core
//! by itself is shared like any other work, so whales beyond a core look better than they are. Late packets have one
//! cause, waiting behind others.
//!
//! Memory is that of the chains being simulated, one per thread, and the reports: see [`FlowLevelReport`]. The error
//! against the packet-level model: `docs/lab/simulator.md`.

mod chain;
mod error;
mod ingress;
mod limits;
mod meter;
mod model;
mod queue;
pub(crate) mod random;
mod run;
mod source;
#[cfg(test)]
mod tests;

pub use error::FlowLevelError;
pub use limits::{MOST_CHAINS, MOST_CORES, MOST_SERVERS, MOST_WINDOWS, POLICIES};
pub use run::{FlowLevelChain, FlowLevelReport, simulate_flows};
