//! A function of a chain spec as a program.

use super::{Configuration, Configured, ProgramError, Refusal, run};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use tailwater_chain::commons::Commons;
use tailwater_functions::build::{Surroundings, by_itself};
use tailwater_functions::spec::FunctionSpec;
use tailwater_net::toeplitz::RssHasher;

/// Runs the function at this place in the chain of a spec's file for the server at the other end of standard input,
/// until the chain ends.
///
/// # Errors
/// As [`run`]; the spec has changed since the server read it.
pub fn run_function(chain: &Path, place: usize) -> Result<(), ProgramError> {
    run(|configuration| configure(chain, place, configuration))
}

fn configure(chain: &Path, place: usize, configuration: &Configuration) -> Result<Configured, Refusal> {
    // Of the other functions it reads nothing, for it may not.
    let function = FunctionSpec::read_at(chain, place).map_err(|error| Refusal::of_all(error.to_string()))?;
    let (capacity, expected) = expected(&configuration.config)?;
    if fingerprint(&function) != expected {
        let message = format!("{} has changed since the run began", chain.display());
        return Err(Refusal::of_all(message));
    }
    let refused = |error: String| {
        // Who is told knows which function it is.
        let prefix = format!("function {}", function.name);
        let rest = error.strip_prefix(&prefix).unwrap_or(&error);
        Refusal::of_all(rest.trim_start_matches([':', ' ']))
    };
    let commons = match &configuration.commons {
        None => Ok(Commons::of_this_process()),
        Some(file) => Commons::in_file(file),
    };
    let surroundings = Surroundings {
        rss: RssHasher::default(),
        part: configuration.part,
        commons: commons.map_err(|error| refused(error.to_string()))?,
        capacity,
    };
    let made = by_itself(&function, surroundings);
    let (function, records) = made.map_err(|error| refused(error.to_string()))?;
    Ok(Configured {
        function,
        at_end: Box::new(move || match records.finish() {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }),
    })
}

/// What a built-in function is told, as JSON: the capacity of its chain's flow table, and what its part of the spec was
/// when the run began.
pub(crate) fn configuration(function: &FunctionSpec, capacity: usize) -> String {
    format!("[{capacity}, \"{}\"]", fingerprint(function))
}

/// The two of a [`configuration`].
fn expected(configuration: &str) -> Result<(usize, &str), Refusal> {
    let inside = configuration.strip_prefix('[');
    let inside = inside.and_then(|inside| inside.strip_suffix("\"]"));
    let parts = inside.and_then(|inside| inside.split_once(", \""));
    parts
        .and_then(|(capacity, fingerprint)| Some((capacity.parse().ok()?, fingerprint)))
        .ok_or_else(|| Refusal::of_all("expected the configuration of a function of a chain's spec"))
}

/// What tells a function from another one, and from itself after its configuration has changed.
fn fingerprint(function: &FunctionSpec) -> String {
    let FunctionSpec {
        name,
        config,
        files,
        // Where packets come to it from is nothing to it, and not known where it is read by itself.
        branch: _,
    } = function;
    let mut hash = DefaultHasher::new();
    format!("{:?}", (name, config, files)).hash(&mut hash);
    format!("{:016x}", hash.finish())
}
