//! `Wasm`: functions compiled to WebAssembly, run by an interpreter that they cannot leave.
//!
//! A module is checked and translated (`program`), described by the same `tailwater_function` as a library
//! (`description`, `layout`), and run on a memory of its own (`machine`). The host copies packets and flow states into
//! that memory and the results out of it (`function`, `state_slots`), so a module can reach nothing else. Every call
//! has a limit of instructions. A call that exceeds it, or accesses memory out of bounds, ends the module's instance,
//! and a new one takes its place. Flow states stay with the host.
//!
//! The engine is an interpreter and not a compiler: it adds six crates instead of a code generator, makes no executable
//! pages, which confined processes may not have, and handles no signals. Its cost is measured in the function's page.

#[cfg(feature = "wasm")]
mod config;
#[cfg(feature = "wasm")]
mod description;
#[cfg(feature = "wasm")]
mod error;
#[cfg(feature = "wasm")]
mod function;
mod kind;
#[cfg(feature = "wasm")]
mod layout;
#[cfg(feature = "wasm")]
mod machine;
#[cfg(feature = "wasm")]
mod program;
mod spec;
#[cfg(feature = "wasm")]
mod state_slots;

#[cfg(feature = "wasm")]
pub use config::WasmConfig;
#[cfg(feature = "wasm")]
pub use description::Description;
#[cfg(feature = "wasm")]
pub use error::{Fault, WasmError};
#[cfg(feature = "wasm")]
pub use function::Wasm;
pub use kind::KIND;
#[cfg(feature = "wasm")]
pub use machine::{Limits, Machine, SETUP_INSTRUCTIONS};
#[cfg(feature = "wasm")]
pub use program::{MAX_MODULE, Program};

#[cfg(all(test, feature = "wasm"))]
mod tests;
