//! Files that chains write.

use super::running::RunningChain;
use crate::machine::Refusal;
use std::path::{PathBuf, absolute};
use tailwater_functions::build::KeptFunction;
use tailwater_functions::spec::ChainSpec;

/// Checks that a chain writes no file that a running one writes, but for functions that it keeps from that one: both
/// run for a moment.
pub(super) fn check_outputs(spec: &ChainSpec, other: &RunningChain, kept: &[KeptFunction]) -> Result<(), Refusal> {
    let written = |spec: &ChainSpec| -> Vec<PathBuf> {
        let is_kept = |name: &str| kept.iter().any(|kept| kept.name() == name);
        let functions = spec.functions.iter().filter(|function| !is_kept(&function.name));
        let files = functions.flat_map(|function| function.config.outputs());
        files.filter_map(|(_, file)| absolute(file).ok()).collect()
    };
    let others = written(other.spec());
    match written(spec).iter().find(|file| others.contains(file)) {
        None => Ok(()),
        Some(file) => Err(Refusal::new(format!(
            "{} is written by chain {} already",
            file.display(),
            other.name()
        ))),
    }
}
