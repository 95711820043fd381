//! How a run hands work to auxiliary cores: policy, cores, profile.

use crate::args::RunArgs;
use crate::complain;
use crate::error::CliError;
use crate::explain::recorder;
use crate::profile::{beside, train};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tailwater_dataplane::cores::{KeepOff, available, default_core};
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::scaling::record::Recorder;
use tailwater_net::Nanos;
use tailwater_nf::spec::ChainSpec;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_policy::catalog::{Policy, epoch};
use tailwater_policy::core::MAX_HELPERS;
use tailwater_profile::{Depth, TrainOptions, fingerprint, machine};
use tailwater_traffic::Trace;

/// Packets of a dispatcher that wait in its own queue or are with helpers, at most: about what two cores
/// do within an objective. More would push each other out of the caches.
const BUFFERS: u32 = 2048;

/// Cores and policy of a run, checked.
pub struct Placing {
    /// Cores that receive packets.
    pub dedicated: Vec<usize>,
    /// Cores that may be handed some; empty if the policy hands over nothing.
    auxiliary: Vec<usize>,
    policy: Policy,
    /// The profile that was named, read.
    profile: Option<CapacityProfile>,
}

impl Placing {
    /// Checks what was asked for, as far as that takes no time.
    pub fn new(args: &RunArgs, spec: &ChainSpec) -> Result<Placing, CliError> {
        let auxiliary = args.auxiliary.as_ref().map(|cores| cores.0.clone());
        let policy = args.policy.unwrap_or(match auxiliary {
            Some(_) => Policy::DEFAULT,
            None => Policy::Static,
        });
        let auxiliary = match auxiliary {
            Some(cores) => cores,
            None if policy == Policy::Static => Vec::new(),
            None => {
                return Err(CliError::Input(format!(
                    "--policy {} hands packets to auxiliary cores: name them with --auxiliary",
                    policy.name()
                )));
            }
        };
        if auxiliary.len() > MAX_HELPERS {
            return Err(CliError::Input(format!(
                "--auxiliary: expected at most {MAX_HELPERS} cores, found {}",
                auxiliary.len()
            )));
        }
        let dedicated = match &args.cores {
            Some(cores) => cores.0.clone(),
            None if auxiliary.is_empty() => vec![default_core()],
            None => {
                let mut rest = available().into_iter().rev();
                let free = rest.find(|core| !auxiliary.contains(core));
                vec![free.ok_or_else(|| {
                    let message = "--auxiliary leaves no core to receive packets on";
                    CliError::Input(message.to_owned())
                })?]
            }
        };
        if let Some(core) = dedicated.iter().find(|core| auxiliary.contains(core)) {
            return Err(CliError::Input(format!(
                "core {core} is both in --cores and in --auxiliary: a core that receives packets \
                 cannot also help"
            )));
        }
        if args.record.is_some() && !policy.scales() {
            return Err(CliError::Input(format!(
                "--record: --policy {} never decides anything",
                policy.name()
            )));
        }
        let profile = args.profile.as_deref().map(|path| named(path, spec));
        if policy.scales() {
            epoch(spec.slo.budget()).map_err(|error| CliError::Input(error.to_string()))?;
        }
        Ok(Placing {
            dedicated,
            auxiliary,
            policy,
            profile: profile.transpose()?,
        })
    }

    /// How the run scales, and where that is recorded; measures the chain first if nobody has.
    pub fn scaling(
        self,
        args: &RunArgs,
        spec: &ChainSpec,
        traffic: &Trace,
        stop: &AtomicBool,
    ) -> Result<(Option<ScalingConfig>, Option<Recorder>), CliError> {
        let profile = match self.profile {
            Some(profile) => profile,
            None if !self.policy.scales() => CapacityProfile::default(),
            None => match found(&args.chain, spec) {
                Some(profile) => profile,
                None => quick(&args.chain, spec, self.dedicated[0], traffic, stop)?,
            },
        };
        let mappers = self
            .policy
            .mappers(spec.slo.budget(), &profile)
            .map_err(|error| CliError::Input(error.to_string()))?;
        let Some(mut mapper) = mappers else {
            return Ok((None, None));
        };
        let recorder = match &args.record {
            Some(path) => {
                let helpers = self.auxiliary.len();
                // The thread that writes leaves the workers' cores alone, if there are others.
                let _elsewhere = KeepOff::new(&self.dedicated);
                let recorder = recorder(path, spec, (self.policy, helpers), &profile)?;
                mapper = recorder.recording(mapper);
                Some(recorder)
            }
            None => None,
        };
        let scaling = ScalingConfig {
            auxiliary: self.auxiliary,
            mapper,
            park: args.wait,
            buffers: BUFFERS,
        };
        Ok((Some(scaling), recorder))
    }
}

/// The profile in a file.
fn read(path: &Path) -> Result<CapacityProfile, CliError> {
    let name = path.display().to_string();
    let text = fs::read(path)
        .map_err(|error| CliError::Input(format!("{name}: cannot be read: {error}")))?;
    CapacityProfile::parse(&text, &name).map_err(|error| CliError::Input(error.to_string()))
}

/// In what a profile is not for this chain on this machine.
fn misfits(profile: &CapacityProfile, spec: &ChainSpec) -> Vec<&'static str> {
    let fits = [
        ("chain", profile.chain == spec.name),
        (
            "configuration of the chain",
            profile.configuration == fingerprint(spec),
        ),
        ("machine", profile.machine == machine()),
        ("latency objective", profile.slo == spec.slo.budget()),
    ];
    let misfits = fits.into_iter().filter(|(_, fits)| !fits);
    misfits.map(|(what, _)| what).collect()
}

/// The profile that the user names: used if at all possible, with a notice of what does not fit.
fn named(path: &Path, spec: &ChainSpec) -> Result<CapacityProfile, CliError> {
    let profile = read(path)?;
    if Ok(profile.epoch) != epoch(spec.slo.budget()) {
        return Err(CliError::Input(format!(
            "{}: is for a latency objective of {}, with epochs of {}; the chain's objective is {}",
            path.display(),
            profile.slo,
            profile.epoch,
            spec.slo.budget()
        )));
    }
    let misfits = misfits(&profile, spec);
    if !misfits.is_empty() {
        let text = format!(
            "{}: was measured with another {}; used as it is",
            path.display(),
            misfits.join(", ")
        );
        complain("notice", &text);
    }
    Ok(profile)
}

/// The profile beside the chain, if there is one that fits.
fn found(chain: &Path, spec: &ChainSpec) -> Option<CapacityProfile> {
    let path = beside(chain);
    if let Err(error) = fs::metadata(&path)
        && error.kind() == io::ErrorKind::NotFound
    {
        return None;
    }
    let profile = read(&path).inspect_err(|error| complain("notice", &error.to_string()));
    let profile = profile.ok()?;
    let misfits = misfits(&profile, spec);
    if !misfits.is_empty() {
        let text = format!(
            "{}: not used: it is for another {}",
            path.display(),
            misfits.join(", ")
        );
        complain("notice", &text);
        return None;
    }
    Some(profile)
}

/// A profile measured in about two seconds.
fn quick(
    chain: &Path,
    spec: &ChainSpec,
    core: usize,
    traffic: &Trace,
    stop: &AtomicBool,
) -> Result<CapacityProfile, CliError> {
    let options = TrainOptions {
        core,
        depth: Depth::Quick,
        seed: 1,
    };
    let start = Instant::now();
    let profile = train(spec, traffic, &options, stop)?;
    let took = Nanos::from_millis(start.elapsed().as_millis() as u64);
    let text = format!(
        "there is no profile of the chain: measured roughly what a core can do, in {:.1} s; \
         `tailwater profile capacity {}` does it well",
        took.as_secs_f64(),
        chain.display()
    );
    complain("notice", &text);
    Ok(profile)
}
