//! Whether a machine is fit for packets: what is in the way of a latency objective, worst first, each with
//! the command that removes it.
//!
//! [`examine`] reads what the kernel says of the machine through a [`System`], so that tests examine
//! machines that are written down; [`measure`] finds out by itself how long cores are taken away from a
//! busy thread, and how long memory takes. [`Diagnosis::new`] puts both together and says whether an
//! objective can be kept.
//!
//! Without privileges less can be read. What could not be told is said so, and is never taken for good.

mod checks;
mod cpus;
mod diagnosis;
mod finding;
mod measured;
mod system;

pub use checks::examine;
pub use cpus::CpuList;
pub use diagnosis::{Diagnosis, Verdict};
pub use finding::{Finding, Severity};
pub use measured::{Gaps, Measured, MemoryLatency, measure, measure_gaps};
pub use system::{Answer, Live, System};

use tailwater_net::Nanos;

/// What the machine is wanted for.
#[derive(Clone, Debug)]
pub struct Purpose {
    /// The objective: 99 of 100 packets take no longer, in every window.
    pub slo: Nanos,
    /// The cores that are to process packets.
    pub cores: Vec<usize>,
}
