//! `tailwater top`: a server's chains and cores on a terminal, or a run that has ended.

pub mod args;
#[cfg(feature = "top")]
mod columns;
#[cfg(feature = "top")]
mod recording;
#[cfg(feature = "top")]
mod sample;
#[cfg(feature = "top")]
mod screen;
#[cfg(feature = "top")]
mod server;
#[cfg(feature = "top")]
mod shown;
#[cfg(feature = "top")]
mod state;
#[cfg(all(test, feature = "top"))]
mod tests;

#[cfg(feature = "top")]
pub use shown::top;

#[cfg(not(feature = "top"))]
/// Returns the error that the feature is missing.
pub fn top(_: &args::TopArgs) -> Result<std::process::ExitCode, crate::error::CliError> {
    Err(crate::error::CliError::built_without("top", "top"))
}
