//! Functions from shared libraries: the runtime's side of `tailwater_nf.h`.
//!
//! [`LibraryFunction::open`] first tries a library in a child process (`child`; [`try_by`] sets its program), so that a
//! crash while it is loaded or configured only gives an error. Then it loads the library (`load`) and passes it the
//! configuration. [`LibraryInstance`] is a worker's instance: a
//! [`NetworkFunction`](tailwater_chain::function::NetworkFunction) that passes each batch to the library.
//!
//! A library's actions in this process cannot be checked. A user who names one in the spec of a chain that runs in one
//! process trusts it as much as this program. A library stays loaded as long as the process lives. Where functions run
//! in processes of their own, libraries are loaded and examined only there ([`CodeExaminer`]).

mod child;
mod error;
mod examiner;
mod function;
mod kind;
mod load;
mod shared;
mod spec;

pub use child::try_by;
pub use error::LibraryError;
pub use examiner::{Code, CodeExaminer, ExecutionMode};
pub use function::LibraryInstance;
pub use kind::{LIBRARY, PROGRAM};
pub use load::load;
pub use shared::{LibraryFunction, try_out};
pub use spec::{ForeignFunction, LibraryConfig, ProgramConfig};
