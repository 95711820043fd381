//! Ports, workers, measurement: what moves packets through a chain.

pub mod arrivals;
pub mod attribution;
pub mod capture;
pub mod clock;
pub mod cores;
mod death;
pub mod histogram;
mod meter;
pub mod port;
pub mod report;
mod reta;
pub mod run;
pub mod scaling;
pub mod telemetry;
mod timeline;
pub mod trace_nic;
pub mod worker;

pub use run::{RunConfig, RunError, run};
