//! Checks of a machine's fitness for packet processing. They find obstacles to a latency objective, worst first, each
//! with the command that removes it.
//!
//! [`examine`] reads the machine's state through a [`System`], so that tests can examine described machines.
//! [`measure`] determines how long a busy thread is preempted on each core, and the memory latency. [`Diagnosis::new`]
//! combines both into a verdict on the objective. [`plan`] decides how to mend the findings in the machine's
//! [`Environment`], and [`Action::apply`] does it.
//!
//! Without privileges less can be read. A state that could not be determined is reported as unknown, never as good.

mod action;
mod checks;
mod cpus;
mod diagnosis;
mod environment;
mod finding;
mod measured;
mod mending;
mod system;
mod text;

pub use action::{Action, Undo};
pub use checks::examine;
pub use cpus::CpuList;
pub use diagnosis::{Diagnosis, MEASURED_CHECKS, Verdict};
pub use environment::{Container, Environment, Host};
pub use finding::{Cost, Finding, Severity};
pub use measured::{Gaps, GapsByWindow, Measured, MemoryLatency, measure, measure_gaps};
pub use mending::{Mending, Step, plan};
pub use system::{LiveSystem, Probe, System};

use tailwater_net::Nanos;

/// Intended use of the machine.
#[derive(Clone, Debug)]
pub struct Purpose {
    /// The objective: 99 % of packets take no longer, in every window.
    pub slo: Nanos,
    /// Cores for packet processing.
    pub cores: Vec<usize>,
    /// The program was built with DPDK: its ports can be NICs without their kernel drivers.
    pub has_dpdk: bool,
}
