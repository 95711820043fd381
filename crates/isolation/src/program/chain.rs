//! A function of a chain spec as a program.

use super::function::{Configured, run};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use tailwater_chain::shared_counters::SharedCounters;
use tailwater_functions::build::{IsolationContext, build_isolated};
use tailwater_functions::spec::FunctionSpec;
use tailwater_net::toeplitz::RssHasher;
use tailwater_sdk::program::{Configuration, ProgramError, Refusal};

/// Runs the function at index `place` of the chain in a spec file, for the server at the other end of standard input,
/// until the chain ends. Files that the spec names are relative to `base_dir`, or to the spec's folder without one.
///
/// # Errors
/// As [`run`]; also if the spec has changed since the server read it.
pub fn run_function(chain: &Path, base_dir: Option<&Path>, place: usize) -> Result<(), ProgramError> {
    run(|configuration| configure((chain, base_dir), place, configuration))
}

fn configure(
    (chain, base_dir): (&Path, Option<&Path>),
    place: usize,
    configuration: &Configuration,
) -> Result<Configured, Refusal> {
    let base_dir = base_dir.or(chain.parent()).unwrap_or(Path::new(""));
    // The other functions' parts of the spec are not read: this process may not read them.
    let function = FunctionSpec::read_at(chain, base_dir, place).map_err(|error| Refusal::of_all(error.to_string()))?;
    let (capacity, expected) = expected(&configuration.config)?;
    if fingerprint(&function) != expected {
        let message = format!("{} changed after the start of the run", chain.display());
        return Err(Refusal::of_all(message));
    }
    let refused = |error: String| {
        // The server adds the function's name to its message.
        let prefix = format!("function {}", function.name);
        let rest = error.strip_prefix(&prefix).unwrap_or(&error);
        Refusal::of_all(rest.trim_start_matches([':', ' ']))
    };
    let commons = match &configuration.shared_counters {
        None => Ok(SharedCounters::of_this_process()),
        Some(file) => SharedCounters::in_file(file),
    };
    let surroundings = IsolationContext {
        rss: RssHasher::default(),
        part: [configuration.part.index, configuration.part.of],
        shared_counters: commons.map_err(|error| refused(error.to_string()))?,
        capacity,
    };
    let made = build_isolated(&function, surroundings);
    let (function, records) = made.map_err(|error| refused(error.to_string()))?;
    Ok(Configured {
        function,
        at_end: Box::new(move || records.finish().map(drop)),
    })
}

/// Returns a built-in function's configuration as JSON: the capacity of its chain's flow table, and a fingerprint of
/// its part of the spec at the run's start.
pub(crate) fn configuration(function: &FunctionSpec, capacity: usize) -> String {
    format!("[{capacity}, \"{}\"]", fingerprint(function))
}

/// Parses a [`configuration`] into capacity and fingerprint.
fn expected(configuration: &str) -> Result<(usize, &str), Refusal> {
    let inside = configuration.strip_prefix('[');
    let inside = inside.and_then(|inside| inside.strip_suffix("\"]"));
    let parts = inside.and_then(|inside| inside.split_once(", \""));
    parts
        .and_then(|(capacity, fingerprint)| Some((capacity.parse().ok()?, fingerprint)))
        .ok_or_else(|| Refusal::of_all("expected the configuration of a function of a chain's spec"))
}

/// Returns a string that differs between functions, and after a function's configuration has changed.
fn fingerprint(function: &FunctionSpec) -> String {
    let FunctionSpec {
        name,
        config,
        files,
        // The branch that leads to it does not affect the function, and is unknown when it is read alone.
        branch: _,
        // Nor does the treatment of packets without it.
        on_failure: _,
    } = function;
    let mut hash = DefaultHasher::new();
    format!("{:?}", (name, config, files)).hash(&mut hash);
    format!("{:016x}", hash.finish())
}
