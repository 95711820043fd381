//! Measurements of profiles beside the chains that run.

use crate::chain::AppliedChain;
use crate::machine::Refusal;
use std::fmt::Debug;
use tailwater_dataplane::scaling::AuxiliaryPool;
use tailwater_functions::spec::ChainSpec;

/// Measures profiles of chains, one at a time, in a process of its own.
pub trait Profiler: Debug + Send {
    /// Core to measure on, if one is named.
    fn core(&self) -> Option<usize>;

    /// Begins to measure the profile of a chain on a core. Returns at once.
    ///
    /// # Errors
    /// It cannot begin: one line.
    fn begin(&mut self, chain: &AppliedChain, spec: &ChainSpec, core: usize) -> Result<(), String>;

    /// Returns the result, once, when the measurement has ended.
    fn poll(&mut self) -> Option<Result<(), String>>;

    /// Ends the measurement that runs, if one does, with its process and files.
    fn cancel(&mut self);
}

/// Core that is named, or an auxiliary one that is not lent. A dedicated one polls the ports also without a chain.
///
/// # Errors
/// There is none, or the server measures no profiles.
pub(super) fn core_to_profile(
    profiler: Option<&dyn Profiler>,
    auxiliary: Option<&AuxiliaryPool>,
) -> Result<u32, Refusal> {
    let Some(profiler) = profiler else {
        return Err(Refusal::new("this server measures no profiles"));
    };
    let unused = || auxiliary.and_then(AuxiliaryPool::unused);
    let core = profiler.core().or_else(unused).ok_or_else(|| {
        Refusal::new("no core to measure on: expected spec.admission.measure.core, or an auxiliary core not lent now")
    });
    core.map(|core| core as u32)
}
