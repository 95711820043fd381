//! Ports, workers and measurement: moving packets through a chain.

pub mod arrivals;
pub mod batches;
pub mod capture;
mod chunks;
pub mod clock;
pub mod core_host;
pub mod cores;
pub mod ddio;
pub mod device;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod durable;
pub mod external;
pub mod interfaces;
mod isolated;
pub mod kept_packets;
pub mod late;
mod link_state;
mod meter;
pub mod packet_socket;
mod panics;
pub mod port;
pub mod reload_watcher;
pub mod report;
mod reta;
pub mod run;
pub mod scaling;
pub mod shared_port;
pub mod telemetry;
mod timeline;
pub mod trace_nic;
pub mod worker;

pub use run::{Packets, RunConfig, RunControl, RunError, RunPlan, run, run_hosted};
pub use tailwater_isolation::server::{IsolationConfig, Program};
pub use tailwater_measure::{attribution, comparison, histogram};
