//! Functions of a chain in processes of their own, at nearly the speed of one process (Quadrant, SoCC 2022).
//!
//! A worker keeps its port, the one flow look-up and the accounting. The functions of its chain are processes, pinned
//! to its core with its real-time priority, and queued there in the chain's order. For each batch
//!
//! 1. the worker copies the frames into the chain's own packet memory, describes them on a *board*, and yields its core;
//! 2. each function in turn processes the batch where it lies, says on its *slate* what becomes of each packet, and
//!    yields;
//! 3. the worker, which runs again when all have, checks the slates, and copies what goes on out again.
//!
//! So a batch costs one switch between processes for each function, and one more; nobody waits on another core, and
//! nobody sees a packet but in its turn.
//!
//! A packet's place in the batch is its buffer's in the memory, and the worker keeps to itself which packet that is. So a
//! function cannot forge, swap or repeat packets: of each place it can say only that the packet goes on, from where
//! to where its frame reaches, or that it is dropped. What does not fit is [a lie](server), as is a turn that takes too
//! long: the process is killed and replaced, and the packets in its hands are lost by it, which is counted.
//!
//! - [`message`]: what program and server say to each other before the first packet;
//! - [`layout`]: what is in the memory that they share;
//! - [`program`]: the program's side, of built-in functions; that of all others is [`tailwater_sdk::program`];
//! - [`server`]: the server's.

mod memory;
pub mod program;
pub mod server;
mod socket;

pub use tailwater_sdk::protocol::{layout, message};

const _: () = assert!(layout::MAX_BATCH == tailwater_chain::batch::MAX_BATCH);
const _: () = assert!(message::MOST_REASONS + 1 == tailwater_chain::function::MAX_DROP_REASONS);
const _: () = assert!(layout::MAX_WISHES == tailwater_chain::function::MAX_WISHES);
