//! Distribution of a run's work to other cores: policy, cores, profile.

use crate::args::RunArgs;
use crate::complain;
use crate::error::CliError;
use crate::explain::recorder;
use crate::profile::{beside, train, usual_traffic};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tailwater_baselines::catalog::{Policy, epoch};
use tailwater_dataplane::RunError;
use tailwater_dataplane::cores::{AvoidCores, available, default_core};
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::scaling::record::Recorder;
use tailwater_dataplane::scaling::server::ServerConfig;
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_policy::core::MAX_AUXILIARY_CORES;
use tailwater_profile::{Depth, TrainOptions, fingerprint, machine};
use tailwater_traffic::Trace;

/// Maximum packets of a dispatcher in its own queue or on auxiliary cores: about the work of two cores within an
/// objective. More would evict each other from the caches.
const BUFFERS: u32 = 2048;

/// Checked cores and policy of a run.
pub struct Placing {
    /// Cores that receive packets.
    pub dedicated: Vec<usize>,
    /// Cores to which flows may be offloaded.
    auxiliary: Vec<usize>,
    policy: Policy,
    /// Content of the named profile.
    profile: Option<CapacityProfile>,
}

/// Mappers that move a run's packets from the core chosen by RSS to others.
#[derive(Default)]
pub struct Mappers {
    /// Moves flows to auxiliary cores.
    pub scaling: Option<ScalingConfig>,
    /// Moves RSS buckets between dedicated cores.
    pub server: Option<ServerConfig>,
    /// Records all decisions.
    pub recorder: Option<Recorder>,
}

impl Placing {
    /// Checks the arguments, as far as that is quick.
    ///
    /// # Errors
    /// Cores or policy contradict each other, the objective allows no epoch, or the named profile cannot be read.
    pub fn new(args: &RunArgs, spec: &ChainSpec) -> Result<Placing, CliError> {
        let wrong = |message: String| Err(CliError::Input(message));
        let auxiliary = args.auxiliary.as_ref().map(|cores| cores.0.clone());
        let policy = args.policy.unwrap_or(match auxiliary {
            Some(_) => Policy::DEFAULT,
            None => Policy::Static,
        });
        let auxiliary = auxiliary.unwrap_or_default();
        if auxiliary.len() > MAX_AUXILIARY_CORES {
            return wrong(format!(
                "--auxiliary: expected at most {MAX_AUXILIARY_CORES} cores, found {}",
                auxiliary.len()
            ));
        }
        let dedicated = match &args.cores {
            Some(cores) => cores.0.clone(),
            None if auxiliary.is_empty() => vec![default_core()],
            None => {
                let mut rest = available().into_iter().rev();
                let free = rest.find(|core| !auxiliary.contains(core));
                vec![free.ok_or_else(|| {
                    let message = "--auxiliary: expected at least one core left to receive packets, found none";
                    CliError::Input(message.to_owned())
                })?]
            }
        };
        if let Some(core) = dedicated.iter().find(|core| auxiliary.contains(core)) {
            return wrong(format!(
                "core {core} is both in --cores and in --auxiliary: a dedicated core cannot also be an auxiliary core"
            ));
        }
        let mut placing = Placing {
            dedicated,
            auxiliary,
            policy,
            profile: None,
        };
        placing.check(args)?;
        if spec.state.is_some() && cfg!(not(feature = "redis")) {
            return Err(CliError::built_without("spec.state", "redis"));
        }
        if spec.state.is_some() && placing.is_offloading() {
            return wrong(RunError::StateWithOffloading.to_string());
        }
        if placing.needs_profile() {
            epoch(spec.slo.budget()).map_err(|error| CliError::Input(error.to_string()))?;
        }
        if let Some(path) = args.profile.as_deref() {
            placing.profile = Some(placing.named(path, spec)?);
        }
        Ok(placing)
    }

    /// Checks that the policy can make decisions in this run, and that all flags apply.
    fn check(&self, args: &RunArgs) -> Result<(), CliError> {
        let name = self.policy.name();
        let message = if self.policy.needs_several_cores() && !self.moves_buckets() {
            format!("--policy {name} moves RSS buckets between dedicated cores: set two or more with --cores")
        } else if self.policy != Policy::Static && self.auxiliary.is_empty() && !self.moves_buckets() {
            format!(
                "--policy {name} offloads packets to auxiliary cores, and moves RSS buckets between dedicated ones: \
                 set --auxiliary, or two or more cores with --cores"
            )
        } else if args.saturate && self.moves_buckets() {
            format!(
                "--saturate: --policy {name} makes no decisions, since packets are generated on demand and do not queue"
            )
        } else if args.record.is_some() && !self.is_offloading() && !self.moves_buckets() {
            format!("--record: --policy {name} makes no decisions without --auxiliary or several --cores")
        } else if args.profile.is_some() && !self.needs_profile() && self.auxiliary.is_empty() {
            format!("--profile: --policy {name} uses no profile in this run")
        } else {
            return Ok(());
        };
        Err(CliError::Input(message))
    }

    /// Returns `true` if flows are offloaded to auxiliary cores.
    fn is_offloading(&self) -> bool {
        self.policy.scales() && !self.auxiliary.is_empty()
    }

    /// Returns `true` if RSS buckets move between dedicated cores.
    fn moves_buckets(&self) -> bool {
        self.policy.moves_buckets() && self.dedicated.len() > 1
    }

    /// Returns `true` if the policy uses the profile's rates.
    fn needs_rates(&self) -> bool {
        self.moves_buckets() && self.policy.needs_rates()
    }

    fn needs_profile(&self) -> bool {
        self.is_offloading() || self.needs_rates()
    }

    /// Creates the mappers and the recorder. Measures the chain first if there is no profile.
    ///
    /// # Errors
    /// Training fails or is stopped, the profile lacks data that the policy requires, or the record cannot be created.
    pub fn mappers(
        self,
        args: &RunArgs,
        spec: &ChainSpec,
        traffic: Option<&Trace>,
        stop: &AtomicBool,
    ) -> Result<Mappers, CliError> {
        let profile = if let Some(profile) = &self.profile {
            profile.clone()
        } else if !self.needs_profile() {
            CapacityProfile::default()
        } else if let Some(profile) = self.found(&args.chain, spec) {
            profile
        } else {
            self.quick(&args.chain, spec, traffic, stop)?
        };
        let wrong = |error: &dyn std::error::Error| CliError::Input(error.to_string());
        let mut mappers = Mappers::default();
        if let Some(path) = args.record.as_deref() {
            let helpers = self.auxiliary.len();
            // Keeps the writer thread off the workers' cores, if there are others.
            let _elsewhere = AvoidCores::new(&self.dedicated);
            let known = self.needs_profile().then_some(&profile);
            let recorder = recorder(path, spec, (self.policy, helpers), known)?;
            mappers.recorder = Some(recorder);
        }
        if self.moves_buckets() {
            let made = self.policy.server_mappers(&profile, false);
            let made = made.map_err(|error| wrong(&error))?;
            mappers.server = made.map(|mapper| ServerConfig {
                mapper: match &mappers.recorder {
                    Some(recorder) => recorder.recording_server(mapper),
                    None => mapper,
                },
            });
        }
        if !self.auxiliary.is_empty() {
            let made = offloading_config(self.policy, (spec, &profile), self.auxiliary, args.wait)?;
            mappers.scaling = made.map(|config| ScalingConfig {
                mapper: match &mappers.recorder {
                    Some(recorder) => recorder.recording(config.mapper),
                    None => config.mapper,
                },
                ..config
            });
        }
        Ok(mappers)
    }

    /// Reads the named profile. Uses it if at all possible, with a notice of any mismatch.
    fn named(&self, path: &Path, spec: &ChainSpec) -> Result<CapacityProfile, CliError> {
        let profile = read(path)?;
        if Ok(profile.epoch) != epoch(spec.slo.budget()) {
            return Err(CliError::Input(format!(
                "{}: measured for a latency objective of {} with epochs of {}; the chain's objective is {}",
                path.display(),
                profile.slo,
                profile.epoch,
                spec.slo.budget()
            )));
        }
        if self.needs_rates()
            && let Err(error) = self.policy.server_mappers(&profile, false)
        {
            let text = format!("{}: {error}", path.display());
            return Err(CliError::Input(text));
        }
        let misfits = misfits(&profile, spec);
        if !misfits.is_empty() {
            let text = format!(
                "{}: measured with another {}; used anyway",
                path.display(),
                misfits.join(", ")
            );
            complain("notice", &text);
        }
        Ok(profile)
    }

    /// Returns the profile beside the chain, if there is a matching one.
    fn found(&self, chain: &Path, spec: &ChainSpec) -> Option<CapacityProfile> {
        let path = beside(chain);
        if let Err(error) = fs::metadata(&path)
            && error.kind() == io::ErrorKind::NotFound
        {
            return None;
        }
        let profile = read(&path).inspect_err(|error| complain("notice", &error.to_string()));
        let profile = profile.ok()?;
        let misfits = misfits(&profile, spec);
        let unfit = if !misfits.is_empty() {
            format!("measured for another {}", misfits.join(", "))
        } else if self.needs_rates()
            && let Err(error) = self.policy.server_mappers(&profile, false)
        {
            error.to_string()
        } else {
            return Some(profile);
        };
        let text = format!("{}: not used: {unfit}", path.display());
        complain("notice", &text);
        None
    }

    /// Measures a profile in a few seconds.
    fn quick(
        &self,
        chain: &Path,
        spec: &ChainSpec,
        traffic: Option<&Trace>,
        stop: &AtomicBool,
    ) -> Result<CapacityProfile, CliError> {
        let options = TrainOptions {
            core: self.dedicated[0],
            depth: match self.needs_rates() {
                true => Depth::QuickWithRate,
                false => Depth::Quick,
            },
            seed: 1,
        };
        let start = Instant::now();
        let profile = match traffic {
            Some(traffic) => train(spec, traffic, &options, stop)?,
            // The traffic of ports is unknown.
            None => train(spec, &usual_traffic(options.seed)?, &options, stop)?,
        };
        let took = Nanos::from_millis(start.elapsed().as_millis() as u64);
        let text = format!(
            "no capacity profile of the chain: measured an approximate one in {:.1} s; `tailwater profile capacity \
             {}` measures a precise one",
            took.as_secs_f64(),
            chain.display()
        );
        complain("notice", &text);
        Ok(profile)
    }
}

/// Configuration by which a policy hands a chain's flows to auxiliary cores; `None` if it never does.
pub fn offloading_config(
    policy: Policy,
    (spec, profile): (&ChainSpec, &CapacityProfile),
    auxiliary: Vec<usize>,
    park: Mode,
) -> Result<Option<ScalingConfig>, CliError> {
    let made = policy.mappers(spec.slo.budget(), profile);
    let made = made.map_err(|error| CliError::Input(error.to_string()))?;
    Ok(made.map(|mapper| ScalingConfig {
        mapper,
        auxiliary,
        park,
        buffers: BUFFERS,
    }))
}

/// Reads the profile in a file.
fn read(path: &Path) -> Result<CapacityProfile, CliError> {
    let name = path.display().to_string();
    let text = fs::read(path).map_err(|error| CliError::Input(format!("{name}: cannot be read: {error}")))?;
    CapacityProfile::parse(&text, &name).map_err(|error| CliError::Input(error.to_string()))
}

/// Returns the mismatches of a profile with this chain on this machine.
fn misfits(profile: &CapacityProfile, spec: &ChainSpec) -> Vec<&'static str> {
    let fits = [
        ("chain", profile.chain == spec.name),
        ("configuration of the chain", profile.configuration == fingerprint(spec)),
        ("machine", profile.machine == machine()),
        ("latency objective", profile.slo == spec.slo.budget()),
    ];
    let misfits = fits.into_iter().filter(|(_, fits)| !fits);
    misfits.map(|(what, _)| what).collect()
}
