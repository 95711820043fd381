//! Contention measured on this machine, for the models of `predict` (SLOMO, SIGCOMM 2020).
//!
//! [`Server`] runs a target on one core and competitors on others, such as the [synthetic one](SyntheticLoad).
//! [`measure_campaign`] measures the points of a [plan](tailwater_predict::CampaignPlan) and records for each the
//! competitors' vector, the target's throughput and p99, and the target's own vector. A [`MetricSource`] provides the
//! vectors: [`Probes`] where the processor has no [`counters`]. Nothing is decided here.

mod campaign;
mod competitor;
mod error;
mod loops;
mod points;
mod probes;
mod server;
mod source;
#[cfg(test)]
mod tests;

pub use campaign::{AloneRun, CampaignProgress, CoRun, CoRuns, Disturbance, SessionEnd, measure_campaign};
pub use competitor::{CompetitorRun, SyntheticLoad, Workload};
pub use error::ContentionError;
pub use points::load_space;
pub use probes::Probes;
pub use server::Server;
pub use source::{MetricSource, Reading, Scene, SourceError, counters};
