//! One machine, many chains: `tailwater serve`.
//!
//! A server's [`Manager`] holds the applied configuration as *generations*. A request becomes the next generation: it
//! is [checked](configuration), [admitted](admission), compared with the current one ([`steps`]), enacted step by step
//! on a [`Machine`], and written to disk as a whole ([`generation`]). A failed step undoes the ones before it, and the
//! current generation stays. [`serve`](serve()) runs the manager, folders of chains and, with the feature `control`,
//! the control API over a Unix socket, whose thread only reads published [snapshots](Snapshot).
//!
//! The data plane is behind the [`Machine`] interface. With the feature `live`, `live::LiveMachine` is that of this
//! machine. Around either, [`cache::DividedMachine`] divides the last-level cache.

pub mod admission;
pub mod cache;
pub mod chain;
pub mod configuration;
mod consolidation;
#[cfg(feature = "control")]
pub mod control;
pub mod details;
mod error;
pub mod events;
pub mod files;
pub mod generation;
#[cfg(feature = "live")]
pub mod live;
pub mod machine;
mod manager;
pub mod port_loss;
mod profiling;
mod reconcile;
mod request;
mod serve;
mod state;
pub mod status;
pub mod steps;
pub mod take_over;

pub use admission::{Capacity, Placement, Promise};
pub use chain::{AppliedChain, Manifest, Origin};
pub use configuration::{Configuration, ControlError};
pub use error::ServeError;
pub use events::{Event, EventRing, Severity};
pub use machine::{
    ChainObservation, ChainState, CoreUse, LatencyObservation, Machine, MachineNote, MissedShares, PacketCounts,
    PacketRates, Refusal, WindowWork,
};
pub use manager::Manager;
pub use request::{Applied, ApplyRequest, Outcome};
pub use serve::{Served, ServerConfig, Start, serve, serve_observed};
pub use state::{LockedState, Paths};
pub use status::{Applies, BrokenPromise, ChainStatus, Condition, ConditionStatus, Phase, Snapshot};
