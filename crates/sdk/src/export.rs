//! Export of a [`Function`] from a library, and as a program.
//!
//! One of the few modules with `unsafe` code: it passes the function's description on.

use crate::program;
use crate::{Function, describe};
use std::process::ExitCode;

/// Exports a [`Function`] from a `cdylib`, under the symbol the runtime loads.
#[macro_export]
macro_rules! export {
    ($function:ty) => {
        /// Description of this library's function.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static tailwater_function: $crate::abi::Function = $crate::describe::<$function>();
    };
}

/// The whole `main` of a program that is this function, for chains whose functions are isolated:
///
/// ```no_run
/// # use tailwater_sdk::{Batch, Config, ConfigError, Function};
/// # struct Limit;
/// # impl Function for Limit {
/// #     const NAME: &'static std::ffi::CStr = c"limit";
/// #     type State = ();
/// #     type Shared = ();
/// #     fn configure(_: &Config) -> Result<(), ConfigError> { Ok(()) }
/// #     fn start(_: std::sync::Arc<()>) -> Limit { Limit }
/// #     fn process(&mut self, _: &mut Batch<'_, ()>) {}
/// # }
/// fn main() -> std::process::ExitCode {
///     tailwater_sdk::run::<Limit>()
/// }
/// ```
///
/// `tailwater run --isolation` starts such a program with a socket as its standard input. It ends with the run.
pub fn run<F: Function>() -> ExitCode {
    let function = describe::<F>();
    let arguments = std::env::args_os().count().saturating_sub(1);
    // SAFETY: `describe` obeys the header's rules; its names and lists are static.
    unsafe { program::main(&raw const function, arguments) }.into()
}
