//! Reading of chains with their functions.

use crate::chain::AppliedChain;
use crate::machine::Refusal;
use std::fmt;
use tailwater_api::IsolationMode;
use tailwater_dataplane::cores::available;
use tailwater_dataplane::{IsolationConfig, Program};
use tailwater_files::regular_only;
use tailwater_functions::spec::ChainSpec;

/// Reads a chain whose functions run in processes of their own, and finds their programs. None of their code is run in
/// this process.
pub type ReadIsolated = Box<dyn Fn(&AppliedChain) -> Result<(ChainSpec, IsolationConfig), Refusal> + Send>;

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

/// Checks that processes that join leave a core for the server's other threads.
pub(super) fn check_cores(isolation: &IsolationConfig, own: impl Iterator<Item = usize>) -> Result<(), Refusal> {
    let all: Vec<usize> = own.collect();
    match isolation.has_joining() && available().iter().all(|core| all.contains(core)) {
        false => Ok(()),
        true => Err(Refusal::new(
            "expected a core of this machine that is not in spec.cores of the server: processes that join hold theirs \
             at real-time priority, and the server's other threads would not run",
        )),
    }
}

/// Cores that a chain was given.
pub(super) fn cores_of(chain: &AppliedChain) -> Result<Vec<usize>, Refusal> {
    let cores: Vec<usize> = chain.placement.cores.iter().map(|core| *core as usize).collect();
    match cores.is_empty() {
        true => Err(Refusal::new("it has no core")),
        false => Ok(cores),
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

    /// Finds the functions whose processes join by a socket. All others run in this process.
    fn joining(&self, spec: ChainSpec) -> Result<(ChainSpec, Option<IsolationConfig>), Refusal> {
        let programs = Program::joining(&spec);
        let Some(first) = programs.first() else {
            return Ok((spec, None));
        };
        if self.isolated.is_none() {
            return Err(Refusal::new("this server runs no functions in processes of their own"));
        }
        if spec.state.is_some() && spec.functions.len() > programs.len() {
            return Err(Refusal::new(format!(
                "function {} joins as a process, and others do not: expected spec.isolation process, or no spec.state",
                first.function
            )));
        }
        // This process starts further chains, for which it needs its rights.
        let config = IsolationConfig::new(programs, spec.slo.budget());
        Ok((spec, Some(config)))
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
            let (spec, isolation) = regular_only(|| read(chain))?;
            return Ok((spec, Some(isolation)));
        }
        let spec = regular_only(|| ChainSpec::parse(&manifest.yaml, &manifest.source, manifest.base_dir()));
        let spec = spec.map_err(|error| Refusal::wrong(error.to_string()))?;
        self.joining(spec)
    }
}
