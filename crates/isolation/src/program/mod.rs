//! Program that runs a single function of a chain, built-in or from a library; see [`run`].

mod chain;
mod companions;
mod function;
mod library;

pub(crate) use chain::configuration;
pub use chain::run_function;
pub(crate) use companions::refusal_of;
pub use function::{Configured, Waiting, run};
pub use library::run_library;
pub use tailwater_sdk::program::{Configuration, ProgramError, Refusal};
