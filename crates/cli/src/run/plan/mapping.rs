//! Cores of a run, and the policy that moves packets between them: choice and conflicts.

use crate::error::CliError;
use crate::run::args::RunArgs;
use crate::run::profiles;
use tailwater_baselines::catalog::{Policy, epoch};
use tailwater_dataplane::RunError;
use tailwater_dataplane::cores::available;
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_policy::core::MAX_AUXILIARY_CORES;

/// Cores and policy of a run.
#[derive(Debug)]
pub struct Mapping {
    /// Cores that receive packets.
    pub dedicated: Vec<usize>,
    /// Cores to which flows may be offloaded.
    pub auxiliary: Vec<usize>,
    /// Waiting mode of auxiliary cores.
    pub wait: Mode,
    /// Policy that moves flows and RSS buckets.
    pub policy: Policy,
    /// Content of the named profile.
    pub profile: Option<CapacityProfile>,
}

impl Mapping {
    /// Chooses the cores and the policy, and reads the named profile.
    ///
    /// # Errors
    /// Cores or policy contradict each other, the objective allows no epoch, or the named profile cannot be read.
    pub fn new(args: &RunArgs, spec: &ChainSpec) -> Result<Mapping, CliError> {
        let auxiliary = args.auxiliary.as_ref().map(|cores| cores.0.clone());
        let policy = args.policy.unwrap_or(match auxiliary {
            Some(_) => Policy::DEFAULT,
            None => Policy::Static,
        });
        let auxiliary = auxiliary.unwrap_or_default();
        let mut mapping = Mapping {
            dedicated: dedicated_cores(args, spec, &auxiliary)?,
            auxiliary,
            wait: args.wait,
            policy,
            profile: None,
        };
        mapping.check(args)?;
        mapping.check_state(spec)?;
        mapping.check_bound_to_core(spec)?;
        if mapping.needs_profile() {
            epoch(spec.slo.budget()).map_err(|error| CliError::Input(error.to_string()))?;
        }
        if let Some(path) = args.profile.as_deref() {
            mapping.profile = Some(profiles::named(path, spec, mapping.policy_by_rates())?);
        }
        Ok(mapping)
    }

    /// Checks that external flow state is possible in this build and with this policy.
    fn check_state(&self, spec: &ChainSpec) -> Result<(), CliError> {
        if spec.state.is_some() && cfg!(not(feature = "redis")) {
            return Err(CliError::built_without("spec.state", "redis"));
        }
        if spec.state.is_some() && self.is_offloading() && !self.policy.offloads_buckets() {
            return Err(CliError::Input(RunError::STATE_BY_FLOW.to_string()));
        }
        Ok(())
    }

    /// Checks that no packets move between cores if a function's state belongs to one.
    fn check_bound_to_core(&self, spec: &ChainSpec) -> Result<(), CliError> {
        let remedy = match self.moves_buckets() {
            true => "use --policy static",
            false if self.is_offloading() => "remove --auxiliary",
            false => return Ok(()),
        };
        match spec.bound_to_core() {
            Some((function, reason)) => Err(CliError::Input(
                RunError::BoundToCore {
                    function: function.to_owned(),
                    reason,
                    remedy,
                }
                .to_string(),
            )),
            None => Ok(()),
        }
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
    pub fn is_offloading(&self) -> bool {
        self.policy.scales() && !self.auxiliary.is_empty()
    }

    /// Returns `true` if RSS buckets move between dedicated cores.
    pub fn moves_buckets(&self) -> bool {
        self.policy.moves_buckets() && self.dedicated.len() > 1
    }

    /// Returns the policy if it uses the profile's rates.
    pub fn policy_by_rates(&self) -> Option<Policy> {
        let by_rates = self.moves_buckets() && self.policy.needs_rates();
        by_rates.then_some(self.policy)
    }

    /// Returns `true` if the policy uses a profile.
    pub fn needs_profile(&self) -> bool {
        self.is_offloading() || self.policy_by_rates().is_some()
    }
}

/// Returns the cores that receive packets, which are not auxiliary cores.
fn dedicated_cores(args: &RunArgs, spec: &ChainSpec, auxiliary: &[usize]) -> Result<Vec<usize>, CliError> {
    let wrong = |message: String| Err(CliError::Input(message));
    if auxiliary.len() > MAX_AUXILIARY_CORES {
        return wrong(format!(
            "--auxiliary: expected at most {MAX_AUXILIARY_CORES} cores, found {}",
            auxiliary.len()
        ));
    }
    let dedicated = match &args.cores {
        Some(cores) => cores.0.clone(),
        None => {
            // The first cores serve interrupts.
            let rest = available().into_iter().rev();
            let wanted = spec.cores.unwrap_or(1).into();
            let free: Vec<usize> = rest.filter(|core| !auxiliary.contains(core)).take(wanted).collect();
            match (free.len(), spec.cores) {
                (0, _) => {
                    return wrong(
                        "--auxiliary: expected at least one core left to receive packets, found none".to_owned(),
                    );
                }
                (left, Some(_)) if left < wanted => {
                    return wrong(format!(
                        "spec.cores: expected at most {left}, the cores that are left, found {wanted}"
                    ));
                }
                _ => free,
            }
        }
    };
    match dedicated.iter().find(|core| auxiliary.contains(core)) {
        None => Ok(dedicated),
        Some(core) => wrong(format!(
            "core {core} is both in --cores and in --auxiliary: a dedicated core cannot also be an auxiliary core"
        )),
    }
}
