//! One simulation: what is asked for, put together from the rack spec, and run.

use super::traffic::{Shared, Source};
use crate::args::SimulateArgs;
use crate::error::CliError;
use crate::values::LONGEST;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_sim::spec::{RackChain, RackSpec};
use tailwater_sim::{
    ChainRun, Objective, RackPolicy, RunOptions, SimError, SimReport, simulate_with,
};

/// What is asked for. The rest is the same for all.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub policy: &'static str,
    /// The objective of all chains; `None`: each has its own.
    pub slo: Option<Nanos>,
    pub seed: u64,
}

/// What all simulations have in common.
pub struct Runner {
    spec: RackSpec,
    /// Traffic that replaces that of all chains.
    instead: Option<OsString>,
    packets: Shared,
    stop: Arc<AtomicBool>,
    /// Of all runs so far, in millionths.
    parts: AtomicU64,
}

/// A run is so many parts.
const WHOLE: u64 = 1_000_000;

impl Runner {
    /// For runs of a rack with what the flags say.
    pub fn new(spec: &RackSpec, args: &SimulateArgs, stop: &Arc<AtomicBool>) -> Runner {
        let mut spec = spec.clone();
        spec.duration = args.duration.or(spec.duration);
        // Which policies others are compared with makes no difference to one.
        spec.policies.clear();
        Runner {
            spec,
            instead: args.traffic.clone(),
            packets: Shared::default(),
            stop: Arc::clone(stop),
            parts: AtomicU64::new(0),
        }
    }

    /// How many runs have been done, with parts of those that are under way.
    pub fn runs(&self) -> f64 {
        self.parts.load(Ordering::Relaxed) as f64 / WHOLE as f64
    }

    /// The rack of a run.
    fn rack(&self, job: &Job) -> RackSpec {
        let mut spec = self.spec.clone();
        spec.seed = job.seed;
        for chain in &mut spec.chains {
            chain.slo = job.slo.unwrap_or(chain.slo);
        }
        spec
    }

    /// Makes sure that a run can be made, before anything takes time.
    pub fn check(&self, job: &Job) -> Result<(), CliError> {
        // Whether a policy can be made does not depend on how long packets are.
        const BYTES: f64 = 1000.0;
        let spec = self.rack(job);
        for (number, chain) in spec.chains.iter().enumerate() {
            policy(chain, job.policy, BYTES)?;
            Source::new(&spec, number, self.instead.as_deref(), &self.stop)?;
        }
        Ok(())
    }

    /// Runs it; `None` if it was stopped meanwhile.
    pub fn run(&self, job: &Job) -> Result<Option<SimReport>, CliError> {
        let spec = self.rack(job);
        let mut sources = Vec::new();
        for number in 0..spec.chains.len() {
            let instead = self.instead.as_deref();
            sources.push(Source::new(&spec, number, instead, &self.stop)?);
        }
        let Some(packets) = self.packets.get(sources, &self.stop)? else {
            return Ok(None);
        };
        let mut chains = Vec::new();
        for (chain, packets) in spec.chains.iter().zip(packets.iter()) {
            chains.push(ChainRun {
                model: chain.model().clone(),
                slo: chain.slo,
                policy: policy(chain, job.policy, packets.mean_bytes)?,
                workload: packets.workload()?,
            });
        }
        let options = RunOptions {
            seed: spec.seed,
            window: spec.window,
            ..RunOptions::default()
        };
        let whole = packets.iter().map(|packets| packets.duration.0).max();
        let whole = whole.unwrap_or(0).clamp(1, LONGEST.0);
        let mut told = 0;
        let mut tell = |time: u64| {
            let parts =
                (u128::from(WHOLE) * u128::from(time.min(whole)) / u128::from(whole)) as u64;
            self.parts.fetch_add(parts - told, Ordering::Relaxed);
            told = parts;
        };
        let report = simulate_with(&spec.rack, chains, &options, |time| {
            tell(time.0);
            !self.stop.load(Ordering::Relaxed)
        });
        let report = report.map_err(|error| match error {
            SimError::Traffic(error) => CliError::Traffic(error),
            error => CliError::Input(error.to_string()),
        })?;
        tell(whole);
        Ok((!self.stop.load(Ordering::Relaxed)).then_some(report))
    }
}

/// A policy, made for a chain whose packets have so many bytes on average.
fn policy(chain: &RackChain, name: &str, bytes: f64) -> Result<RackPolicy, CliError> {
    let profile: CapacityProfile = chain.profile(chain.slo, bytes);
    let objective = Objective {
        slo: chain.slo,
        profile: &profile,
        packet: Nanos(chain.model().packet_nanos(bytes).round() as u64),
        ingress: chain.ingress,
    };
    RackPolicy::named(name, &objective)
        .map_err(|error| CliError::Input(format!("chain \"{}\": {error}", chain.name)))
}
