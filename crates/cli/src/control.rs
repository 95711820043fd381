//! Clients of a running server: `tailwater apply`, `get`, `describe`, `delete`, `drain` and `events`.

pub mod args;
#[cfg(feature = "control")]
mod commands;
#[cfg(feature = "control")]
mod manifests;
#[cfg(not(feature = "control"))]
mod missing;
#[cfg(feature = "control")]
pub(crate) mod ports;
#[cfg(feature = "control")]
mod printed;
#[cfg(feature = "control")]
pub(crate) mod socket;
#[cfg(feature = "control")]
pub(crate) mod view;
#[cfg(feature = "control")]
pub(crate) mod yaml;

#[cfg(feature = "control")]
pub use commands::{apply, connect, delete, describe, drain, events, get};
#[cfg(not(feature = "control"))]
pub use missing::{apply, delete, describe, drain, events, get};
