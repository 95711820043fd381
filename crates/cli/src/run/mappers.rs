//! Mappers that move a run's packets from the core chosen by RSS to others.

use super::plan::Mapping;
use super::profiles;
use super::record::recorder;
use crate::error::CliError;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tailwater_baselines::catalog::Policy;
use tailwater_dataplane::RunPlan;
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
    /// Creates the mappers of a planned run, and the recorder of the file `record`.
    ///
    /// # Errors
    /// The profile lacks data that the policy requires, or the record cannot be created.
    pub fn new(
        mapping: &Mapping,
        run: &RunPlan,
        profile: &CapacityProfile,
        record: Option<&Path>,
    ) -> Result<Mappers, CliError> {
        let spec = run.spec();
        let wrong = |error: &dyn std::error::Error| CliError::Input(error.to_string());
        let mut mappers = Mappers {
            scaling: scaling(mapping, run, profile)?,
            ..Mappers::default()
        };
        if let Some(path) = record {
            let dedicated = mapping.dedicated.len();
            let helping = mappers.scaling.as_ref().map_or(0, |scaling| scaling.helping(dedicated));
            // Keeps the writer thread off the workers' cores, if there are others.
            let _elsewhere = AvoidCores::new(&mapping.dedicated);
            let known = mapping.needs_profile().then_some(profile);
            let recorder = recorder(path, spec, mapping, helping, known)?;
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
        if let (Some(recorder), Some(scaling)) = (&mappers.recorder, &mut mappers.scaling) {
            scaling.mapper = recorder.recording(scaling.mapper.clone());
        }
        Ok(mappers)
    }
}

/// Returns the configuration of offloading to auxiliary cores, and among dedicated cores if there are several and the
/// policy's core mapper lets them help each other; `None` if there is neither.
fn scaling(mapping: &Mapping, run: &RunPlan, profile: &CapacityProfile) -> Result<Option<ScalingConfig>, CliError> {
    let spec = run.spec();
    // With state in Redis, dedicated cores cannot help each other. Isolated functions have dispatchers only where there
    // are auxiliary cores.
    let can_help = run.config().isolation.is_none() || !mapping.auxiliary.is_empty();
    let can_help = can_help && spec.state.is_none();
    let dedicated_help = mapping.moves_buckets() && mapping.policy.scales() && can_help;
    if mapping.auxiliary.is_empty() && !dedicated_help {
        return Ok(None);
    }
    let config = offloading_config(mapping.policy, (spec, profile), mapping.auxiliary.clone(), mapping.wait)?;
    let config = config.map(|config| ScalingConfig {
        dedicated_help,
        ..config
    });
    // A dispatcher that nobody helps would only cost time.
    let is_of_use =
        |config: &ScalingConfig| !config.auxiliary.is_empty() || config.helping(mapping.dedicated.len()) > 0;
    Ok(config.filter(is_of_use))
}

/// Returns the profile for a run's policy: the named one, or the one beside the chain's file, or one that is measured
/// now. Both of the latter are of functions in one process, so offloading of isolated ones uses an empty profile
/// instead, from which the mapper learns.
///
/// # Errors
/// Training fails or is stopped.
pub fn profile(
    mapping: &Mapping,
    chain: &Path,
    run: &RunPlan,
    traffic: Option<&Trace>,
    stop: &AtomicBool,
) -> Result<CapacityProfile, CliError> {
    let spec = run.spec();
    if let Some(profile) = &mapping.profile {
        return Ok(profile.clone());
    }
    let learns = run.config().isolation.is_some() && mapping.is_offloading();
    if learns || !mapping.needs_profile() {
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
        dedicated_help: false,
        park,
        buffers: BUFFERS,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_dataplane::RunConfig;
    use tailwater_isolation::server::IsolationConfig;
    use tailwater_net::Nanos;
    use tailwater_policy::capacity::ServiceCosts;

    /// Dedicated cores that can help each of two or three, in a run of these cores.
    fn helping(policy: Policy, [dedicated, auxiliary]: [usize; 2], packet: f64, isolated: bool) -> Option<usize> {
        let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: help}\n\
                    spec: {slo: {latency: 200us}, functions: [{accounting: {}}]}";
        let spec = ChainSpec::parse(text, "help", Path::new(".")).unwrap();
        let mapping = Mapping {
            dedicated: (0..dedicated).collect(),
            auxiliary: (dedicated..dedicated + auxiliary).collect(),
            wait: Mode::Sleep,
            policy,
            profile: None,
        };
        let config = RunConfig {
            isolation: isolated.then(|| IsolationConfig::new(Vec::new(), Nanos::from_millis(1))),
            ..RunConfig::new(mapping.dedicated.clone())
        };
        let run = RunPlan::new(spec, config).unwrap();
        let profile = CapacityProfile {
            costs: Some(ServiceCosts {
                packet,
                ..ServiceCosts::default()
            }),
            ..CapacityProfile::default()
        };
        let scaling = scaling(&mapping, &run, &profile).unwrap();
        scaling.map(|scaling| scaling.helping(dedicated))
    }

    #[test]
    fn dedicated_cores_help_each_other_where_that_pays() {
        let tailwater = Policy::Tailwater;
        assert_eq!(helping(tailwater, [2, 0], 800.0, false), Some(1));
        assert_eq!(helping(tailwater, [3, 1], 800.0, false), Some(2));
        assert_eq!(helping(tailwater, [1, 1], 800.0, false), Some(0));
        // Nothing is offloaded, and no core pays for it.
        assert_eq!(helping(tailwater, [2, 0], 100.0, false), None);
        assert_eq!(helping(tailwater, [2, 0], 800.0, true), None);
        assert_eq!(helping(Policy::Static, [2, 0], 800.0, false), None);
        assert_eq!(helping(Policy::RssPlusPlus, [2, 0], 800.0, false), None);
    }
}
