//! Ports, workers and measurement: moving packets through a chain.

pub mod arrivals;
pub mod batches;
pub mod capture;
pub mod clock;
pub mod cores;
pub mod ddio;
mod death;
pub mod device;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod external;
mod isolated;
pub mod kept;
mod meter;
pub mod port;
pub mod report;
mod reta;
pub mod run;
pub mod scaling;
pub mod telemetry;
mod timeline;
pub mod trace_nic;
pub mod watch;
pub mod worker;

pub use run::{RunConfig, RunError, run, run_attached, run_noted, run_on};
pub use tailwater_measure::{attribution, histogram};
