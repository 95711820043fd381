//! Isolated functions of a chain, each in a process of its own.

use super::{BuildError, check_mixed_flows};
use crate::accounting::{ExportError, Exported};
use crate::classifier::ClassifierConfig;
use crate::kind::{BuildContext, FunctionFactory, IsolationContext};
use crate::spec::FunctionSpec;
use std::hash::{BuildHasher, RandomState};
use tailwater_chain::branches::PathTable;
use tailwater_chain::function::NetworkFunction;

/// Output of an [isolated](build_isolated) function's flow records, if it writes any.
pub struct Records(Box<dyn FunctionFactory>);

impl Records {
    /// Waits until all records are in their file. The function must have been dropped, or the call never returns.
    ///
    /// # Errors
    /// If the file is incomplete.
    pub fn finish(&self) -> Result<Vec<Exported>, ExportError> {
        self.0.finish_exports()
    }
}

/// Checks that functions created elsewhere can be combined. The iterator yields, in chain order, each function's name,
/// whether it [mixes flows](crate::kind::Requirements::mixes_flows), and whether it has flow state.
///
/// # Errors
/// If a function with flow state follows one that mixes flows.
pub fn check_apart<'f>(functions: impl Iterator<Item = (&'f str, [bool; 2])>) -> Result<(), BuildError> {
    // In line, since branches do not extend across processes.
    check_mixed_flows(functions, |_, _| true)
}

/// Prepares a function of a chain and creates its instance, for a process of its own.
///
/// # Errors
/// Same as [`ChainBuilder::new`](super::ChainBuilder::new), and if the function cannot be isolated.
///
/// # Panics
/// If the shared counters have too little room.
pub fn build_isolated(
    function: &FunctionSpec,
    surroundings: IsolationContext,
) -> Result<(Box<dyn NetworkFunction>, Records), BuildError> {
    // With a single process, all its data is in one place.
    let in_one_process = surroundings.part[1] <= 1 && function.config.can_run_in_one_process();
    if let Some(what) = function.config.in_process_only_reason().filter(|_| !in_one_process) {
        let function = function.name.clone();
        return Err(BuildError::Shares { function, what });
    }
    if function.config.is::<ClassifierConfig>() {
        let function = function.name.clone();
        return Err(BuildError::Branches { function });
    }
    let context = BuildContext {
        name: &function.name,
        rss: &surroundings.rss,
        capacity: surroundings.capacity,
        seed: RandomState::new().hash_one(&function.name),
        branches: &[],
        paths: &PathTable::without_branches(),
    };
    let factory = function.config.build_isolated(&context, &surroundings);
    let factory = factory.map_err(|source| BuildError::Function {
        function: function.name.clone(),
        source,
    })?;
    let function = factory.instance();
    Ok((function, Records(factory)))
}
