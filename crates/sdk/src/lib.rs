//! Network functions in other languages: the C ABI of `include/tailwater_nf.h`, and its Rust side.
//!
//! A Rust function outside of Tailwater's own source is a `cdylib` with a type that implements [`Function`], and an
//! [`export!`] of it:
//!
//! ```
//! use tailwater_sdk::{Batch, Config, ConfigError, DropReason, Explanation, Function, Name, Packet, state};
//! use std::ffi::CStr;
//! use std::sync::Arc;
//!
//! state! {
//!     /// What is kept of a flow.
//!     struct Seen {
//!         packets: u64,
//!     }
//! }
//!
//! /// Lets each flow have so many packets.
//! struct Limit(u64);
//!
//! impl Function for Limit {
//!     const NAME: &'static CStr = c"limit";
//!     const DROP_REASONS: &'static [DropReason] = &[DropReason::dropped(c"spent")];
//!     const COUNTERS: &'static [Name] = &[Name::new(c"new-flows")];
//!     const HEADERS_ONLY: bool = true;
//!     type State = Seen;
//!     type Shared = u64;
//!
//!     fn configure(config: &Config) -> Result<u64, ConfigError> {
//!         config.only(&["packets"])?;
//!         config.require("packets", "how many packets a flow may have")?.u64()
//!     }
//!     fn start(packets: Arc<u64>) -> Limit {
//!         Limit(*packets)
//!     }
//!     fn process(&mut self, batch: &mut Batch<'_, Seen>) {
//!         batch.for_each(|packet, counters| {
//!             counters[0] += u64::from(packet.is_new_flow());
//!             let seen = packet.state();
//!             seen.packets += 1;
//!             if seen.packets > self.0 {
//!                 packet.drop(0);
//!             }
//!         });
//!     }
//!     fn explain(&self, packet: &Packet<'_, Seen>, text: &mut Explanation<'_>) {
//!         text.add(format_args!("packet {} of {}", packet.read().packets, self.0));
//!     }
//! }
//!
//! tailwater_sdk::export!(Limit);
//! # fn main() {}
//! ```
//!
//! `tailwater new-function NAME --lang rust` creates a function with a test. With a `main` that calls [`run`], the same
//! source is a program that runs in its own process.
//!
//! For hosts that run functions: [`host`] is the host side of a function, [`program`] the function's side of a process,
//! with its turns, and [`protocol`] the messages and shared memory between both.

// `abi`, `batch`, `calls`, `config`, `explanation`, `flow_state`, `function`, `key` and `testing` are also the SDK of
// functions in WebAssembly (`tailwater new-function --lang wasm-rust`): they keep to Rust 1.63 and edition 2021.
#[allow(missing_docs, reason = "the header says what the fields are")]
pub mod abi;
mod batch;
mod calls;
mod config;
mod explanation;
mod export;
mod flow_state;
mod function;
pub mod host;
mod key;
mod printable;
pub mod program;
pub mod protocol;
mod sys;
pub mod testing;

pub use batch::{Batch, Packet};
pub use calls::describe;
pub use config::{Config, ConfigError};
pub use explanation::Explanation;
pub use export::run;
pub use flow_state::State;
pub use function::{DropReason, Function, Name};
pub use key::FlowKey;
