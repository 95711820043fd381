//! Policies by name: core mappers, and the server mappers that accompany them.

mod server;

pub use server::{NoRates, pooled};

use crate::netblaze::{Capacity, NetBlazeError, NetBlazeMapper, NetBlazeOptions};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier};
use tailwater_policy::core::MakeMapper;
use tailwater_policy::tailwater::{TailwaterError, TailwaterMapper, TailwaterOptions};

/// Scaling policy of a run, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Every packet is processed on the core that RSS selects.
    Static,
    /// NetBlaze's core mapper.
    NetBlaze,
    /// NetBlaze with the smallest packet count of its frontier at all flow counts (section 4.4).
    NetBlazeCoreStaticSafe,
    /// NetBlaze with the largest packet count of its frontier at all flow counts (section 4.4).
    NetBlazeCoreStaticUnsafe,
    /// NetBlaze without its core mapper (section 4.4).
    NetBlazeNoCoreMapper,
    /// NetBlaze without boost mode (section 4.4).
    NetBlazeNoBoost,
    /// NetBlaze with the lowest rate of its server mapper's frontier at all flow counts (section 4.5).
    NetBlazeServerStaticSafe,
    /// NetBlaze with the highest rate of its server mapper's frontier at all flow counts (section 4.5).
    NetBlazeServerStaticUnsafe,
    /// NetBlaze that moves RSS buckets as soon as a core is overloaded, instead of boost mode (section 4.6).
    NetBlazeOnDemandRss,
    /// Balancer of RSS buckets in the manner of RSS++, without a core mapper.
    RssPlusPlus,
    /// Metron's split and merge of traffic classes, on RSS buckets.
    Metron,
    /// Quadrant's controller, on RSS buckets in place of flows.
    Quadrant,
    /// Metron's classes of shards with Quadrant's period, on RSS buckets.
    QuadrantMetron,
    /// Dyssect's placement of shards, on RSS buckets, without that of single flows.
    Dyssect,
    /// Tailwater's own core mapper, with Tailwater's server mapper and ingress mapper.
    Tailwater,
}

/// Policies with their names.
const POLICIES: &[(&str, Policy)] = &[
    ("static", Policy::Static),
    ("netblaze", Policy::NetBlaze),
    ("netblaze-core-static-safe", Policy::NetBlazeCoreStaticSafe),
    ("netblaze-core-static-unsafe", Policy::NetBlazeCoreStaticUnsafe),
    ("netblaze-no-core-mapper", Policy::NetBlazeNoCoreMapper),
    ("netblaze-no-boost", Policy::NetBlazeNoBoost),
    ("netblaze-server-static-safe", Policy::NetBlazeServerStaticSafe),
    ("netblaze-server-static-unsafe", Policy::NetBlazeServerStaticUnsafe),
    ("netblaze-on-demand-rss", Policy::NetBlazeOnDemandRss),
    ("rss++", Policy::RssPlusPlus),
    ("metron", Policy::Metron),
    ("quadrant", Policy::Quadrant),
    ("quadrant-metron", Policy::QuadrantMetron),
    ("dyssect", Policy::Dyssect),
    ("tailwater", Policy::Tailwater),
];

/// Names that the simulator has in addition, with the reason why none of them runs live.
const SIMULATED: &[(&str, &str)] = &[(
    "oracle",
    "it is a lower bound on the cores of any policy, computed from future traffic",
)];

/// Name of a policy that is not available here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPolicy {
    /// No policy has this name.
    #[error("unknown policy \"{name}\"{suggestion}; the policies are: {known}")]
    NoSuch {
        /// Requested name.
        name: String,
        /// `, did you mean "netblaze"?`, or nothing.
        suggestion: String,
        /// All names.
        known: String,
    },
    /// The policy exists in the simulator only.
    #[error("policy \"{name}\" is for the simulator only: {why}; the policies here are: {known}")]
    Simulated {
        /// Requested name.
        name: &'static str,
        /// Reason why it cannot run live.
        why: &'static str,
        /// All names.
        known: String,
    },
}

impl Policy {
    /// Default policy on machines with auxiliary cores.
    pub const DEFAULT: Policy = Policy::Tailwater;

    /// Returns the policy with the given name.
    ///
    /// # Errors
    /// No policy has this name (the error holds the nearest one), or only the simulator has it.
    pub fn named(name: &str) -> Result<Policy, UnknownPolicy> {
        if let Some((_, policy)) = POLICIES.iter().find(|(known, _)| *known == name) {
            return Ok(*policy);
        }
        let known: Vec<&str> = Policy::names().collect();
        let known = known.join(", ");
        if let Some(&(name, why)) = SIMULATED.iter().find(|(other, _)| *other == name) {
            return Err(UnknownPolicy::Simulated { name, why, known });
        }
        // Truncated, so that a long argument makes neither a long comparison nor a long error.
        let short: String = name.chars().take(64).collect();
        let nearest = POLICIES
            .iter()
            .map(|(known, _)| (strsim::jaro_winkler(&short, known), known))
            .filter(|(similarity, _)| *similarity > 0.7)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        Err(UnknownPolicy::NoSuch {
            name: short,
            suggestion: nearest.map_or_else(String::new, |(_, n)| format!(", did you mean \"{n}\"?")),
            known,
        })
    }

    /// Returns all names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        POLICIES.iter().map(|(name, _)| *name)
    }

    /// Returns this policy's name.
    pub fn name(self) -> &'static str {
        let found = POLICIES.iter().find(|(_, policy)| *policy == self);
        found.map_or("", |(name, _)| name)
    }

    /// Returns `true` if the policy has no core mapper, and moves at most RSS buckets between dedicated cores.
    fn has_no_core_mapper(self) -> bool {
        matches!(
            self,
            Policy::Static
                | Policy::RssPlusPlus
                | Policy::Metron
                | Policy::Quadrant
                | Policy::QuadrantMetron
                | Policy::Dyssect
        )
    }

    /// Returns `true` if the policy offloads packets to auxiliary cores.
    pub fn scales(self) -> bool {
        !self.has_no_core_mapper() && self != Policy::NetBlazeNoCoreMapper
    }

    /// Returns `true` if the policy offloads RSS buckets to auxiliary cores, and `false` if it offloads flows, or
    /// nothing.
    pub fn offloads_buckets(self) -> bool {
        self == Policy::Tailwater
    }

    /// Returns `true` if rows of the ingress move between servers, as against NetBlaze's
    /// ([`IngressConfig::rebalance`](tailwater_policy::server::IngressConfig::rebalance)).
    pub fn rebalances(self) -> bool {
        self == Policy::Tailwater
    }

    /// Returns `true` if the policy differs from [`Policy::Static`] or [`Policy::NetBlaze`] only when there are several
    /// dedicated cores to move RSS buckets between.
    pub fn needs_several_cores(self) -> bool {
        matches!(
            self,
            Policy::RssPlusPlus
                | Policy::Metron
                | Policy::Quadrant
                | Policy::QuadrantMetron
                | Policy::Dyssect
                | Policy::NetBlazeServerStaticSafe
                | Policy::NetBlazeServerStaticUnsafe
                | Policy::NetBlazeOnDemandRss
        )
    }

    /// Returns a factory of core mappers for a latency objective from which the network's share is already subtracted.
    /// The profile only matters to policies that [scale](Policy::scales). Returns `None` for policies without a core
    /// mapper: [`Policy::Static`], and those of other systems than NetBlaze and Tailwater.
    ///
    /// # Errors
    /// The objective is too short, or the profile admits nothing.
    pub fn mappers(self, slo: Nanos, profile: &CapacityProfile) -> Result<Option<MakeMapper>, NetBlazeError> {
        let mut options = netblaze(slo);
        match self {
            Policy::Static
            | Policy::RssPlusPlus
            | Policy::Metron
            | Policy::Quadrant
            | Policy::QuadrantMetron
            | Policy::Dyssect => return Ok(None),
            Policy::Tailwater => return tailwater(slo, profile).map(Some),
            Policy::NetBlaze | Policy::NetBlazeServerStaticSafe | Policy::NetBlazeServerStaticUnsafe => {}
            Policy::NetBlazeCoreStaticSafe => options.capacity = Capacity::StaticSafe,
            Policy::NetBlazeCoreStaticUnsafe => options.capacity = Capacity::StaticUnsafe,
            Policy::NetBlazeNoCoreMapper => options.enabled = false,
            Policy::NetBlazeNoBoost | Policy::NetBlazeOnDemandRss => options.boost_after = None,
        }
        let (mut frontier, splits) = (profile.frontier.clone(), profile.splits.clone());
        if !self.scales() {
            // The mapper never uses it.
            frontier = EpochFrontier::constant(1);
        }
        let make = move || NetBlazeMapper::new(options, &frontier, splits.clone());
        // Creation is deterministic: if one mapper can be created, all can.
        make()?;
        Ok(Some(Arc::new(move || match make() {
            Ok(mapper) => Box::new(mapper),
            Err(error) => unreachable!("it could be made before: {error}"),
        })))
    }
}

/// Returns NetBlaze's options for an objective from which the network's share is already subtracted.
fn netblaze(slo: Nanos) -> NetBlazeOptions {
    NetBlazeOptions {
        network_allowance: Nanos::ZERO,
        ..NetBlazeOptions::new(slo)
    }
}

/// Returns a factory of Tailwater's own mapper. It fails in the same cases as NetBlaze's.
fn tailwater(slo: Nanos, profile: &CapacityProfile) -> Result<MakeMapper, NetBlazeError> {
    let options = TailwaterOptions::measured(slo, profile);
    let splits = profile.splits.clone();
    let make = move || TailwaterMapper::new(options, splits.clone());
    make().map_err(|TailwaterError::NoBudget { slo, allowance }| NetBlazeError::NoEpoch { slo, allowance })?;
    Ok(Arc::new(move || match make() {
        Ok(mapper) => Box::new(mapper),
        Err(error) => unreachable!("it could be made before: {error}"),
    }))
}

/// Returns the epoch that mappers use, and that a profile is trained for: half the latency objective. The network's
/// share must already be subtracted from `slo`.
///
/// # Errors
/// Half the objective is zero.
pub fn epoch(slo: Nanos) -> Result<Nanos, NetBlazeError> {
    let NetBlazeOptions {
        network_allowance: allowance,
        ..
    } = netblaze(slo);
    match Nanos(slo.0 / 2) {
        Nanos::ZERO => Err(NetBlazeError::NoEpoch { slo, allowance }),
        epoch => Ok(epoch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_policy::core::Unit;

    fn profile() -> CapacityProfile {
        CapacityProfile {
            frontier: EpochFrontier::constant(100),
            ..CapacityProfile::default()
        }
    }

    #[test]
    fn every_name_is_a_policy_and_makes_mappers() {
        for name in Policy::names() {
            let policy = Policy::named(name).unwrap();
            assert_eq!(policy.name(), name);
            let slo = Nanos::from_micros(200);
            let mappers = policy.mappers(slo, &profile()).unwrap();
            assert_eq!(mappers.is_none(), policy.has_no_core_mapper(), "{name}");
            let ours = name.starts_with("netblaze") || name == "tailwater";
            assert_eq!(mappers.is_some(), ours, "{name}");
            let unit = mappers.as_ref().map(|make| make().unit());
            assert_eq!(unit == Some(Unit::Bucket), policy.offloads_buckets(), "{name}");
            // A backlog of 100,000 packets is too long for any mapper, whatever a packet costs.
            let due = mappers.is_some_and(|make| make().due(Nanos::from_secs(1), 100_000));
            assert_eq!(due, policy.scales(), "{name}");
        }
    }

    #[test]
    fn an_unknown_name_gets_the_nearest() {
        let error = Policy::named("netblase").unwrap_err().to_string();
        assert!(error.contains("did you mean \"netblaze\"?"), "{error}");
        let error = Policy::named("quux").unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{error}");
        assert!(error.contains("static, netblaze"), "{error}");
    }

    #[test]
    fn a_bound_belongs_to_the_simulator() {
        for (name, why) in SIMULATED {
            let error = Policy::named(name).unwrap_err().to_string();
            assert!(error.contains("is for the simulator only"), "{error}");
            assert!(error.contains(why) && error.contains("rss++"), "{error}");
            assert!(Policy::names().all(|other| other != *name));
        }
    }

    #[test]
    fn what_cannot_be_made_says_why() {
        let slo = Nanos(1);
        assert!(epoch(slo).is_err());
        assert_eq!(epoch(Nanos::from_micros(200)), Ok(Nanos::from_micros(100)));
        assert!(Policy::NetBlaze.mappers(slo, &profile()).is_err());
        assert!(Policy::Tailwater.mappers(Nanos::ZERO, &profile()).is_err());
        let empty = CapacityProfile::default();
        let slo = Nanos::from_micros(200);
        assert!(Policy::NetBlaze.mappers(slo, &empty).is_err());
        assert!(Policy::NetBlazeNoCoreMapper.mappers(slo, &empty).is_ok());
    }

    #[test]
    fn the_epoch_is_the_mappers_own() {
        let options = netblaze(Nanos::from_micros(500));
        let mapper = NetBlazeMapper::new(options, &profile().frontier, profile().splits).unwrap();
        assert_eq!(epoch(options.slo), Ok(mapper.epoch()));
    }
}
