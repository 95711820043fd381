//! `tailwater profile publish`: measures a chain, and writes the result to the API server.

use super::args::PublishArgs;
use super::{client, runtime};
use crate::curves::{CurveSelection, beside, measure};
use crate::error::CliError;
use crate::output::print;
use crate::profile::output_of;
use std::fmt::Display;
use std::process::ExitCode;
use tailwater_cluster::resources::apply_profile;
use tailwater_files::read;
use tailwater_functions::spec::ChainSpec;

/// Longest file that a Profile holds.
const LONGEST: u64 = 1_000_000;

/// Measures a chain as `tailwater profile all` does, and writes the Profile.
///
/// # Errors
/// As `tailwater profile all`; or there is no API server, or it refuses the Profile.
pub fn publish(args: &PublishArgs) -> Result<ExitCode, CliError> {
    let Some((namespace, name)) = args.profile.split_once('/') else {
        let message = format!("--profile: expected NAMESPACE/NAME, found {}", args.profile);
        return Err(CliError::Input(message));
    };
    let chain = ChainSpec::read(&args.measure.chain)?.name.clone();
    let file = output_of(args.measure.file.as_deref(), &args.measure.chain, beside)?;
    // Measurements take a minute: an API server that is missing is told before.
    let runtime = runtime()?;
    let client = runtime.block_on(client())?;
    // Values in doubt are marked in the file, and the controller refuses those that are not to be relied on.
    measure(CurveSelection::All, &args.measure)?;
    let failed = |error: &dyn Display| CliError::Server {
        message: format!("profile {}: {error}", args.profile),
        is_input: false,
    };
    let text = read(&file, LONGEST).map_err(|error| failed(&error))?;
    let text = String::from_utf8(text).map_err(|error| failed(&error))?;
    let written = runtime.block_on(apply_profile(&client, (namespace, name), &chain, &text));
    written.map_err(|error| failed(&error))?;
    print(&format!("profile {} of chain {chain} is written\n", args.profile))?;
    Ok(ExitCode::SUCCESS)
}
