//! Functions from shared libraries: `tailwater_nf.h` from the runtime's side.
//!
//! [`LibraryFunction::open`] tries a library in a child process first (`child`; [`try_by`] says which program's), so
//! that one that crashes while it
//! is loaded or configured gives an error and nothing worse; then loads it (`load`), and has it read its
//! configuration. [`Foreign`] is a worker's instance: a [`NetworkFunction`](tailwater_chain::function::NetworkFunction)
//! that hands each batch to the library.
//!
//! What a library does in this process cannot be checked: who names one in the spec of a chain that runs in one process
//! trusts it as much as this program. A library stays loaded as long as the process lives. Where functions run in
//! processes of their own, libraries are loaded there only, and so is whatever is to be known of them found out
//! ([`Apart`]).

mod apart;
mod child;
mod error;
mod function;
mod load;
mod shared;

pub use apart::{Apart, Code, Runs};
pub use child::try_by;
pub use error::LibraryError;
pub use function::Foreign;
pub use load::load;
pub use shared::{LibraryFunction, try_out};
