//! Mappers that move a run's packets from the core chosen by RSS to others.

use super::plan::Mapping;
use super::profiles;
use super::record::recorder;
use crate::error::CliError;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tailwater_baselines::catalog::Policy;
use tailwater_dataplane::cores::AvoidCores;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::scaling::record::Recorder;
use tailwater_dataplane::scaling::server::ServerConfig;
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_profile::Depth;
use tailwater_traffic::Trace;

/// Maximum packets of a dispatcher in its own queue or on auxiliary cores: about the work of two cores within an
/// objective. More would evict each other from the caches.
const BUFFERS: u32 = 2048;

/// Mappers of a run.
#[derive(Default)]
pub struct Mappers {
    /// Moves flows to auxiliary cores.
    pub scaling: Option<ScalingConfig>,
    /// Moves RSS buckets between dedicated cores.
    pub server: Option<ServerConfig>,
    /// Records all decisions.
    pub recorder: Option<Recorder>,
}

impl Mappers {
    /// Creates the mappers, and the recorder of the file `record`.
    ///
    /// # Errors
    /// The profile lacks data that the policy requires, or the record cannot be created.
    pub fn new(
        mapping: &Mapping,
        spec: &ChainSpec,
        profile: &CapacityProfile,
        record: Option<&Path>,
    ) -> Result<Mappers, CliError> {
        let wrong = |error: &dyn std::error::Error| CliError::Input(error.to_string());
        let mut mappers = Mappers::default();
        if let Some(path) = record {
            let helpers = mapping.auxiliary.len();
            // Keeps the writer thread off the workers' cores, if there are others.
            let _elsewhere = AvoidCores::new(&mapping.dedicated);
            let known = mapping.needs_profile().then_some(profile);
            let recorder = recorder(path, spec, (mapping.policy, helpers), known)?;
            mappers.recorder = Some(recorder);
        }
        if mapping.moves_buckets() {
            let made = mapping.policy.server_mappers(spec.slo.budget(), profile, false);
            let made = made.map_err(|error| wrong(&error))?;
            mappers.server = made.map(|mapper| ServerConfig {
                mapper: match &mappers.recorder {
                    Some(recorder) => recorder.recording_server(mapper),
                    None => mapper,
                },
            });
        }
        if !mapping.auxiliary.is_empty() {
            let auxiliary = mapping.auxiliary.clone();
            let made = offloading_config(mapping.policy, (spec, profile), auxiliary, mapping.wait)?;
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
}

/// Returns the profile for a run's policy: the named one, or the one beside the chain's file, or one that is measured
/// now.
///
/// # Errors
/// Training fails or is stopped.
pub fn profile(
    mapping: &Mapping,
    chain: &Path,
    spec: &ChainSpec,
    traffic: Option<&Trace>,
    stop: &AtomicBool,
) -> Result<CapacityProfile, CliError> {
    if let Some(profile) = &mapping.profile {
        return Ok(profile.clone());
    }
    if !mapping.needs_profile() {
        return Ok(CapacityProfile::default());
    }
    let by_rates = mapping.policy_by_rates();
    if let Some(profile) = profiles::found(chain, spec, by_rates) {
        return Ok(profile);
    }
    let depth = match by_rates {
        Some(_) => Depth::QuickWithRate,
        None => Depth::Quick,
    };
    profiles::quick(chain, spec, mapping.dedicated[0], depth, traffic, stop)
}

/// Returns the configuration by which a policy offloads a chain's flows to auxiliary cores; `None` if it never does.
///
/// # Errors
/// The profile lacks data that the policy requires.
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
