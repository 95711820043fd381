//! Protocol between a function's program and the server that started it.
//!
//! - [`message`]: messages before the first packet, over a [`socket`];
//! - [`layout`]: layout of the [`memory`] they share from then on.

pub mod layout;
pub mod memory;
pub mod message;
pub mod snapshots;
pub mod socket;
