//! Reading of chains with their functions.

use crate::chain::AppliedChain;
use crate::machine::Refusal;
use std::fmt;
use tailwater_api::IsolationMode;
use tailwater_dataplane::IsolationConfig;
use tailwater_files::regular_only;
use tailwater_functions::spec::ChainSpec;

/// Reads a chain whose functions run in processes of their own, and finds their programs. None of their code is run in
/// this process.
pub type ReadIsolated = Box<dyn Fn(&AppliedChain) -> Result<(ChainSpec, IsolationConfig), String> + Send>;

/// Reader of chains.
#[derive(Default)]
pub(super) struct ChainReader {
    /// `None`: chains with isolated functions are refused.
    isolated: Option<ReadIsolated>,
}

impl fmt::Debug for ChainReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChainReader")
    }
}

impl ChainReader {
    /// Reader of chains with and without isolated functions.
    pub(super) fn isolating(read: ReadIsolated) -> ChainReader {
        ChainReader { isolated: Some(read) }
    }

    /// Same as [`read`](Self::read), with the chain's cap in front of its functions.
    ///
    /// # Errors
    /// Same as [`read`](Self::read).
    pub(super) fn read_capped(&self, chain: &AppliedChain) -> Result<(ChainSpec, Option<IsolationConfig>), Refusal> {
        let (spec, isolation) = self.read(chain)?;
        let spec = match (chain.placement.cap, &isolation) {
            (Some(cap), None) => spec.capped(cap.rate, cap.burst),
            _ => spec,
        };
        Ok((spec, isolation))
    }

    /// Reads a chain with its functions, and the processes of those that are isolated.
    ///
    /// # Errors
    /// The chain is wrong, or its functions cannot be isolated.
    pub(super) fn read(&self, chain: &AppliedChain) -> Result<(ChainSpec, Option<IsolationConfig>), Refusal> {
        let manifest = &chain.manifest;
        // A pipe in place of a file would keep the server from all other changes.
        if chain.settings.isolation.mode != IsolationMode::None {
            let Some(read) = &self.isolated else {
                return Err(Refusal::new("spec.isolation: this server isolates no functions"));
            };
            let (spec, isolation) = regular_only(|| read(chain)).map_err(Refusal::new)?;
            return Ok((spec, Some(isolation)));
        }
        let spec = regular_only(|| ChainSpec::parse(&manifest.yaml, &manifest.source, manifest.base_dir()));
        let spec = spec.map_err(|error| Refusal::new(error.to_string()))?;
        Ok((spec, None))
    }
}
