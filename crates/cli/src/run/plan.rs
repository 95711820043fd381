//! Plan of `tailwater run`: arguments and spec, combined. All conflicts between them are found here, before traffic is
//! loaded, a port opened, or the chain measured or run. Only third-party functions are tried out, to read their names.

mod isolation;
mod mapping;
mod outputs;
mod ports;

pub use mapping::Mapping;
pub use outputs::Outputs;
pub use ports::PortPlan;

use super::args::{RING, RunArgs};
use crate::error::CliError;
use crate::input::{LoadArgs, Traffic};
use crate::output::complain;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use tailwater_dataplane::kept_packets::KeptConfig;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, RunPlan};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;

/// Plan of `tailwater run`.
#[derive(Debug)]
pub struct Plan {
    /// File of the chain's spec.
    pub chain: PathBuf,
    /// Plan that the data plane executes. Still without mappers, which may depend on a profile that is measured, and
    /// without the figures of the traffic, which has to be loaded.
    pub run: RunPlan,
    /// Source of the packets.
    pub source: Source,
    /// Cores, and the policy from which the mappers are made.
    pub mapping: Mapping,
    /// Outputs of the run.
    pub outputs: Outputs,
}

/// Source of a run's packets.
#[derive(Debug)]
pub enum Source {
    /// Traffic from a file or preset.
    Traffic(TrafficPlan),
    /// Ports.
    Ports(PortPlan),
}

/// Traffic from a file or preset.
#[derive(Debug)]
pub struct TrafficPlan {
    /// File or preset.
    pub traffic: Traffic,
    /// Loading and timing.
    pub load: LoadArgs,
    /// Duration; `None`: the default.
    pub duration: Option<Nanos>,
    /// Packets arrive as fast as the chain takes them.
    pub saturate: bool,
}

/// Plans a run. Prints warnings and notices of the spec and the profile.
///
/// # Errors
/// The spec or the profile is invalid, arguments contradict each other or the spec, a function cannot be isolated, or
/// an output cannot be written.
pub fn plan(args: &RunArgs) -> Result<Plan, CliError> {
    let (spec, isolation) = isolation::read(args)?;
    spec.warnings().for_each(|warning| complain("warning", warning));
    let mapping = Mapping::new(args, &spec)?;
    let source = source(args, &spec)?;
    let traffic = match &source {
        Source::Traffic(plan) => Some(&plan.traffic),
        Source::Ports(_) => None,
    };
    let outputs = Outputs::new(args, &spec, traffic)?;
    if let Some(isolation) = &isolation {
        isolation::check_cores(isolation, &spec, &mapping)?;
    }
    let config = RunConfig {
        nic: nic(args),
        window: args.window,
        capture_out: args.capture_out.clone(),
        keep_packets: args.keep_packets.clone().map(|directory| KeptConfig {
            directory,
            observer: outputs.export.as_ref().and_then(|export| export.observer.clone()),
        }),
        seed: seed(args, &spec, &source),
        isolation,
        ..RunConfig::new(mapping.dedicated.clone())
    };
    Ok(Plan {
        chain: args.chain.clone(),
        run: RunPlan::new(spec, config)?,
        source,
        mapping,
        outputs,
    })
}

/// Chooses the source of the packets.
fn source(args: &RunArgs, spec: &ChainSpec) -> Result<Source, CliError> {
    let ports = ports::wanted(args, spec)?;
    ports::check_external(args, spec, ports.as_ref())?;
    if let Some(ports) = ports {
        return Ok(Source::Ports(ports));
    }
    let name = args.traffic.as_deref().unwrap_or("bursty".as_ref());
    Ok(Source::Traffic(TrafficPlan {
        traffic: Traffic::named(name)?,
        load: args.load.clone(),
        duration: args.duration,
        saturate: args.saturate,
    }))
}

/// Returns the trace NIC for traffic.
fn nic(args: &RunArgs) -> TraceNicConfig {
    TraceNicConfig {
        pacing: match args.saturate {
            true => Pacing::Saturate,
            false => Pacing::Arrivals,
        },
        ring: args.ring.unwrap_or(RING) as usize,
        ..TraceNicConfig::default()
    }
}

/// Returns the seed of the flow table's hash. On ports it is random, so that a sender cannot predict a flow's slot. On
/// a trace it is fixed, so that runs can be repeated.
fn seed(args: &RunArgs, spec: &ChainSpec, source: &Source) -> u64 {
    match source {
        Source::Ports(_) => RandomState::new().hash_one(&spec.name),
        Source::Traffic(_) => args.load.seed,
    }
}

#[cfg(test)]
mod tests;
