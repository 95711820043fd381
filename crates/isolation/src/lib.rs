//! Functions of a chain in processes of their own, at nearly the speed of one process (Quadrant, SoCC 2022).
//!
//! A worker owns its port, the single flow look-up and the accounting. The functions of its chain are processes. They
//! are pinned to its core with its real-time priority, and queued there in chain order. For each batch:
//!
//! 1. the worker copies the frames into the chain's packet memory, describes them in the *request area*, and yields its
//!    core;
//! 2. each function in turn processes the batch in place, writes each packet's verdict to its *response area*, and
//!    yields;
//! 3. the worker runs again after the last function, validates the response areas, and copies the forwarded packets
//!    out.
//!
//! A batch costs one context switch per function, plus one. No process waits for another core, and no function can read
//! a packet outside its turn.
//!
//! A packet's slot in the batch is its buffer's index in the memory. Only the worker holds the mapping from slots to
//! packets, so a function cannot forge, swap or duplicate packets. For each slot it can only report the frame's bounds
//! of a forwarded packet, or a drop. Anything else is an [invalid response](server). A process that responds invalidly,
//! or exceeds its turn's deadline, is killed and replaced. The packets it held are counted as lost by it.
//!
//! - [`message`]: messages between program and server before the first packet;
//! - [`layout`]: layout of the memory they share;
//! - [`program`]: program side of built-in functions; for all other programs it is [`tailwater_sdk::program`];
//! - [`server`]: server side.

mod memory;
pub mod program;
pub mod server;
mod socket;

pub use tailwater_sdk::protocol::{layout, message};

const _: () = assert!(layout::MAX_BATCH == tailwater_chain::batch::MAX_BATCH);
const _: () = assert!(message::MOST_REASONS + 1 == tailwater_chain::function::MAX_DROP_REASONS);
const _: () = assert!(layout::MAX_CANDIDATES == tailwater_chain::function::MAX_CANDIDATES);
