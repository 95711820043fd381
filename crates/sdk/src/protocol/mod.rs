//! What a program of a function and the server that started it have between them.
//!
//! - [`message`]: what they say to each other before the first packet, over a [`socket`];
//! - [`layout`]: what is in the [`memory`] that they share from then on.

pub mod images;
pub mod layout;
pub mod memory;
pub mod message;
pub mod socket;
