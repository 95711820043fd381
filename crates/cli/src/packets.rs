//! `tailwater trace packets`: packets of a running chain, function by function.

pub mod args;
#[cfg(feature = "control")]
mod followed;
#[cfg(feature = "control")]
mod step;

#[cfg(feature = "control")]
pub use followed::packets;

#[cfg(not(feature = "control"))]
/// Returns the error that the feature is missing.
pub fn packets(_: &args::PacketsArgs) -> Result<std::process::ExitCode, crate::error::CliError> {
    Err(crate::error::CliError::built_without("trace packets", "control"))
}
