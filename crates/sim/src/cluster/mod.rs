//! A rack's controller in virtual time: thousands of chains on a thousand servers for hours.
//!
//! The decisions are those of [`RackController`](tailwater_placement::rack::RackController), as a controller of real
//! servers makes them. Everything else is a model with steps of a second:
//!
//! | part | model |
//! |---|---|
//! | load of a chain | a mean times a day's curve, times log-normal noise with the variances and lifetimes of the flows of a traffic preset, times surges: see [`ClusterLoad`] |
//! | ingress | shares a chain's packets among its ready instances by their promises; for Quadrant, by its own rule, with flows that stay until they end |
//! | server | admits instances as a server does, by [`SharedCores`](tailwater_placement::core_shares::SharedCores); their speeds follow from the shared cache, their latency in a second from the load of their core by the curve of the chain, plus a batch of each other chain there |
//! | objective | kept in a second if the latency of all instances with packets is within it and no core is overloaded |
//! | controller | gets measurements of earlier seconds, and its actions take effect in the next second; new instances are ready after their start time |
//! | failed server | its packets are lost until the controller no longer counts its instances |
//!
//! Not modelled: single flows and packets, anything shorter than a second beyond what the curves contain, state that
//! moves with flows, links and switches, auxiliary cores. The ingress shares load exactly.
//!
//! [`oracle`](ClusterReport::oracle_core_seconds): each second, the least cores that hold the objectives of that
//! second's load: the sum over chains of their load on a core with all of the cache, by the highest load at which a
//! core keeps their objective. This is a lower bound: on any core, the load is at most that of its strictest chain.

mod load;
mod options;
mod report;
mod run;
mod world;

pub use load::ClusterLoad;
pub use options::{ClusterOptions, ClusterPolicy};
pub use report::ClusterReport;
pub use run::simulate_cluster;
