//! A function of a chain spec as a program.

use super::{Configuration, Configured, ProgramError, Refusal, run};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use tailwater_net::toeplitz::RssHasher;
use tailwater_nf::build::by_itself;
use tailwater_nf::spec::FunctionSpec;

/// Runs the function at this place in the chain of a spec's file for the server at the other end of standard input,
/// until the chain ends.
///
/// # Errors
/// As [`run`]; the spec has changed since the server read it.
pub fn run_function(chain: &Path, place: usize) -> Result<(), ProgramError> {
    run(|configuration| configure(chain, place, configuration))
}

fn configure(
    chain: &Path,
    place: usize,
    configuration: &Configuration,
) -> Result<Configured, Refusal> {
    let refuse = |message: String| Refusal {
        field: String::new(),
        message,
    };
    // Of the other functions it reads nothing, for it may not.
    let function =
        FunctionSpec::read_at(chain, place).map_err(|error| refuse(error.to_string()))?;
    if fingerprint(&function) != configuration.config {
        let message = format!("{} has changed since the run began", chain.display());
        return Err(refuse(message));
    }
    let made = by_itself(&function, &RssHasher::default(), configuration.part);
    let (function, records) = made.map_err(|error| refuse(error.to_string()))?;
    Ok(Configured {
        function,
        at_end: Box::new(move || match records.finish() {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }),
    })
}

/// What tells a function from another one, and from itself after its configuration has changed: a JSON text.
pub(crate) fn fingerprint(function: &FunctionSpec) -> String {
    let mut hash = DefaultHasher::new();
    format!("{function:?}").hash(&mut hash);
    format!("\"{:016x}\"", hash.finish())
}
