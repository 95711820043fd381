//! Policies by name, at the scale of a rack.
//!
//! | name | steering of flows to cores | core mapper |
//! |---|---|---|
//! | `static` | RSS over all cores of the rack | |
//! | `rss++`, `metron` | rows of the switch's table, over all cores | |
//! | `quadrant`, `quadrant-metron`, `dyssect` | a controller that places each flow | |
//! | `netblaze` and its ablations | destination prefix to a server, RSS bucket to its dedicated cores | NetBlaze's |
//! | `tailwater` | the same, but rows move between servers | Tailwater's |
//!
//! Comparisons also list `oracle`, which is not a policy: its values come from [`oracle`](crate::oracle()).

use tailwater_baselines::catalog::{NoRates, Policy};
use tailwater_baselines::netblaze::NetBlazeError;
use tailwater_baselines::{
    Dyssect, DyssectConfig, Metron, MetronConfig, Quadrant, QuadrantConfig, QuadrantMetron, RssPlusPlus,
    RssPlusPlusConfig,
};
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_policy::core::MakeMapper;
use tailwater_policy::flows::FlowMapper;
use tailwater_policy::server::{IngressConfig, MakeServerMapper, ServerMapper};

/// Steering of flows to cores.
pub enum Steered {
    /// By the rows of one table over all cores of the rack. Without a mapper nothing moves.
    Rack(Option<Box<dyn ServerMapper>>),
    /// By destination prefix to servers, there by RSS bucket to dedicated cores.
    Servers {
        /// Steering of prefixes.
        ingress: IngressConfig,
        /// Creates the mapper of each server.
        make: MakeServerMapper,
    },
    /// By a controller that places each flow.
    Flows(Box<dyn FlowMapper>),
}

/// A policy, ready to run.
pub struct RackPolicy {
    /// Its name in reports.
    pub name: String,
    /// Steering of flows to cores.
    pub steered: Steered,
    /// Core mapper, which offloads flows to auxiliary cores.
    pub core: Option<MakeMapper>,
    /// Cores that have a queue initially, of the rack or of each server, or `None` for all.
    pub start_cores: Option<u16>,
}

impl std::fmt::Debug for RackPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RackPolicy")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Input for creating a policy.
#[derive(Clone, Debug)]
pub struct Objective<'a> {
    /// Latency objective.
    pub slo: Nanos,
    /// Measured profile of the chain.
    pub profile: &'a CapacityProfile,
    /// Core time of a packet of the traffic's average length.
    pub packet: Nanos,
    /// Steering of prefixes to servers.
    pub ingress: IngressConfig,
}

/// Reason why a policy cannot be created.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// No policy has this name.
    #[error("unknown policy \"{name}\"{suggestion}; the policies are: {known}")]
    Unknown {
        /// Requested name, shortened.
        name: String,
        /// Nearest name, if one is similar.
        suggestion: String,
        /// All names.
        known: String,
    },
    /// The core mapper cannot be created.
    #[error(transparent)]
    Core(#[from] NetBlazeError),
    /// The server mapper cannot be created.
    #[error(transparent)]
    Server(#[from] NoRates),
    /// The profile lacks data that a policy needs.
    #[error("policy \"{policy}\" requires the profile's {needs}")]
    Profile {
        /// Name of the policy.
        policy: String,
        /// Missing field.
        needs: &'static str,
    },
}

/// Names, in the order of the papers.
const NAMES: &[&str] = &[
    "static",
    "rss++",
    "metron",
    "quadrant",
    "quadrant-metron",
    "dyssect",
    "netblaze",
    "netblaze-core-static-safe",
    "netblaze-core-static-unsafe",
    "netblaze-server-static-safe",
    "netblaze-server-static-unsafe",
    "netblaze-no-core-mapper",
    "netblaze-no-boost",
    "netblaze-on-demand-rss",
    "tailwater",
];

/// Name of the lower bound for all policies. See [`oracle`](crate::oracle()).
pub const ORACLE: &str = "oracle";

/// Returns the names of everything that can be compared: the policies, and the bound.
pub fn comparable() -> impl Iterator<Item = &'static str> {
    COMPARABLE.into_iter()
}

/// Names of all policies that can be compared.
pub(crate) const COMPARABLE: [&str; NAMES.len() + 1] = {
    let mut names = [ORACLE; NAMES.len() + 1];
    let mut at = 0;
    while at < NAMES.len() {
        names[at] = NAMES[at];
        at += 1;
    }
    names
};

impl RackPolicy {
    /// Returns all names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().copied()
    }

    /// Returns the policy with the given name, with its published settings.
    ///
    /// # Errors
    /// No policy has this name, or it cannot be created for this objective.
    pub fn named(name: &str, objective: &Objective<'_>) -> Result<RackPolicy, PolicyError> {
        let rack = |mapper: Box<dyn ServerMapper>| (Steered::Rack(Some(mapper)), None, Some(1));
        let flows = |mapper: Box<dyn FlowMapper>| (Steered::Flows(mapper), None, Some(1));
        let (steered, core, start_cores) = match name {
            "static" => (Steered::Rack(None), None, None),
            "rss++" => rack(Box::new(RssPlusPlus::new(RssPlusPlusConfig::default()))),
            "metron" => rack(Box::new(Metron::new(MetronConfig::default()))),
            "quadrant" => {
                let rate = max_rate(name, objective)?;
                let config = QuadrantConfig::as_compared(objective.slo, rate);
                flows(Box::new(Quadrant::new(config)))
            }
            "quadrant-metron" => flows(Box::new(QuadrantMetron::new())),
            "dyssect" => {
                let config = DyssectConfig::for_objective(objective.slo, objective.packet.max(Nanos(1)));
                flows(Box::new(Dyssect::new(config)))
            }
            _ => return RackPolicy::with_core_mapper(name, objective),
        };
        Ok(RackPolicy {
            name: name.to_owned(),
            steered,
            core,
            start_cores,
        })
    }

    /// Policy of a name with one dedicated core, as in `tailwater run` with one core in `--cores`: all other cores are
    /// auxiliary, and no server mapper runs.
    ///
    /// # Errors
    /// There is none of this name that runs on one server, or it cannot be made for this objective.
    pub fn with_one_dedicated_core(name: &str, objective: &Objective<'_>) -> Result<RackPolicy, PolicyError> {
        let policy = Policy::named(name).map_err(|_| unknown(name))?;
        Ok(RackPolicy {
            name: name.to_owned(),
            steered: Steered::Rack(None),
            core: policy.mappers(objective.slo, objective.profile)?,
            start_cores: Some(1),
        })
    }

    /// Creates NetBlaze, its ablations, or Tailwater.
    fn with_core_mapper(name: &str, objective: &Objective<'_>) -> Result<RackPolicy, PolicyError> {
        let policy = Policy::named(name).map_err(|_| unknown(name))?;
        let core = policy.mappers(objective.slo, objective.profile)?;
        let Some(make) = policy.server_mappers(objective.slo, objective.profile, true)? else {
            return Err(unknown(name));
        };
        Ok(RackPolicy {
            name: name.to_owned(),
            steered: Steered::Servers {
                ingress: IngressConfig {
                    rebalance: policy.rebalances(),
                    ..objective.ingress
                },
                make,
            },
            core,
            start_cores: Some(1),
        })
    }
}

/// Returns the highest rate of a core.
fn max_rate(name: &str, objective: &Objective<'_>) -> Result<f64, PolicyError> {
    let rates = &objective.profile.rates;
    if !rates.is_empty() {
        return Ok(rates.largest());
    }
    if objective.packet > Nanos::ZERO {
        return Ok(1e9 / objective.packet.0 as f64);
    }
    Err(PolicyError::Profile {
        policy: name.to_owned(),
        needs: "rates",
    })
}

/// Returns the error for an unknown name, with the nearest known one.
pub fn unknown(name: &str) -> PolicyError {
    // Truncated, so that a long argument makes neither a long comparison nor a long error.
    let short: String = name.chars().take(64).collect();
    let nearest = comparable()
        .filter(|known| *known != name)
        .map(|known| (strsim::jaro_winkler(&short, known), known))
        .filter(|(similarity, _)| *similarity > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    PolicyError::Unknown {
        name: short,
        suggestion: nearest.map_or_else(String::new, |(_, n)| format!(", did you mean \"{n}\"?")),
        known: comparable().collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_policy::capacity::{EpochFrontier, RateFrontier};

    fn objective(profile: &CapacityProfile) -> Objective<'_> {
        Objective {
            slo: Nanos::from_micros(200),
            profile,
            packet: Nanos(500),
            ingress: IngressConfig {
                prefix_v4: 16,
                prefix_v6: 32,
                threshold: 16,
                table: 100,
                flow_hash: true,
                rebalance: false,
                scale_in: false,
            },
        }
    }

    #[test]
    fn every_name_is_a_policy() {
        let profile = CapacityProfile {
            frontier: EpochFrontier::constant(100),
            rates: RateFrontier::constant(1e6),
            ..CapacityProfile::default()
        };
        for name in RackPolicy::names() {
            let policy = RackPolicy::named(name, &objective(&profile)).unwrap();
            assert_eq!(policy.name, name);
        }
        let error = RackPolicy::named("metro", &objective(&profile)).unwrap_err();
        assert!(error.to_string().contains("did you mean \"metron\"?"));
        let error = RackPolicy::named("oracel", &objective(&profile)).unwrap_err();
        assert!(error.to_string().contains("static, rss++"), "{error}");
        assert!(error.to_string().contains("mean \"oracle\"?"), "{error}");
    }

    #[test]
    fn with_one_dedicated_core_no_server_mapper_decides() {
        let profile = CapacityProfile {
            frontier: EpochFrontier::constant(100),
            ..CapacityProfile::default()
        };
        for (name, scales) in [("static", false), ("netblaze", true), ("tailwater", true)] {
            let policy = RackPolicy::with_one_dedicated_core(name, &objective(&profile)).unwrap();
            assert_eq!((policy.core.is_some(), policy.start_cores), (scales, Some(1)), "{name}");
            assert!(matches!(policy.steered, Steered::Rack(None)));
        }
        for name in ["oracle", "nothing"] {
            assert!(RackPolicy::with_one_dedicated_core(name, &objective(&profile)).is_err());
        }
    }

    #[test]
    fn a_policy_says_what_its_profile_lacks() {
        let profile = CapacityProfile {
            frontier: EpochFrontier::constant(100),
            ..CapacityProfile::default()
        };
        let error = RackPolicy::named("tailwater", &objective(&profile)).unwrap_err();
        assert!(error.to_string().contains("has no rates"), "{error}");
    }
}
