//! Policies by name: core mappers, and server mappers to go with them.

mod server;

pub use server::NoRates;

use crate::netblaze::{Capacity, NetBlazeError, NetBlazeMapper, NetBlazeOptions};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier};
use tailwater_policy::core::MakeMapper;
use tailwater_policy::tailwater::{TailwaterError, TailwaterMapper, TailwaterOptions};

/// How a run scales, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Every packet is processed where RSS puts it.
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
    /// NetBlaze that moves RSS buckets as soon as a core is overloaded, instead of boost mode
    /// (section 4.6).
    NetBlazeOnDemandRss,
    /// A balancer of RSS buckets in the manner of RSS++, without a core mapper.
    RssPlusPlus,
    /// Our own core mapper and server mapper, and a default row for prefixes first seen.
    Tailwater,
}

/// The policies with their names.
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
    ("tailwater", Policy::Tailwater),
];

/// Policies that decide for a whole rack, and why none of them runs on one server.
const SIMULATED: &[(&str, &str)] = &[
    ("metron", "a controller splits traffic classes in a switch's table"),
    (
        "quadrant",
        "a rack's controller places flows one by one in a switch's table",
    ),
    (
        "quadrant-metron",
        "a rack's controller splits traffic classes in a switch's table",
    ),
    (
        "dyssect",
        "a solver places shards and single flows on cores that share state under locks",
    ),
    (
        "oracle",
        "it is a bound on the cores of any policy, from traffic that has yet to come",
    ),
];

/// A name that no policy has here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPolicy {
    /// There is none.
    #[error("no policy is called \"{name}\"{suggestion}; the policies are: {known}")]
    NoSuch {
        /// The name.
        name: String,
        /// `, did you mean "netblaze"?`, or nothing.
        suggestion: String,
        /// All names.
        known: String,
    },
    /// It is the simulator's.
    #[error("policy \"{name}\" belongs to the simulator: {why}; the policies here are: {known}")]
    Simulated {
        /// The name.
        name: &'static str,
        /// What keeps it from running live.
        why: &'static str,
        /// All names.
        known: String,
    },
}

impl Policy {
    /// What scales if nothing else is said, where there are auxiliary cores.
    pub const DEFAULT: Policy = Policy::Tailwater;

    /// The policy of a name.
    ///
    /// # Errors
    /// There is none, with the nearest name; or it belongs to the simulator.
    pub fn named(name: &str) -> Result<Policy, UnknownPolicy> {
        if let Some((_, policy)) = POLICIES.iter().find(|(known, _)| *known == name) {
            return Ok(*policy);
        }
        let known: Vec<&str> = Policy::names().collect();
        let known = known.join(", ");
        if let Some(&(name, why)) = SIMULATED.iter().find(|(other, _)| *other == name) {
            return Err(UnknownPolicy::Simulated { name, why, known });
        }
        let nearest = POLICIES
            .iter()
            .map(|(known, _)| (strsim::jaro_winkler(name, known), known))
            .filter(|(similarity, _)| *similarity > 0.7)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        Err(UnknownPolicy::NoSuch {
            // An argument of any length makes no error of any length.
            name: name.chars().take(64).collect(),
            suggestion: nearest.map_or_else(String::new, |(_, n)| format!(", did you mean \"{n}\"?")),
            known,
        })
    }

    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        POLICIES.iter().map(|(name, _)| *name)
    }

    /// This policy's name.
    pub fn name(self) -> &'static str {
        let found = POLICIES.iter().find(|(_, policy)| *policy == self);
        found.map_or("", |(name, _)| name)
    }

    /// Whether it hands anything to auxiliary cores.
    pub fn scales(self) -> bool {
        !matches!(
            self,
            Policy::Static | Policy::NetBlazeNoCoreMapper | Policy::RssPlusPlus
        )
    }

    /// Whether packets of destination prefixes first seen go by a default row, instead of waiting for
    /// a row of their own ([`IngressConfig::default_row`](tailwater_policy::server::IngressConfig::default_row)).
    pub fn has_default_row(self) -> bool {
        self == Policy::Tailwater
    }

    /// Whether it is another one than [`Policy::Static`] or [`Policy::NetBlaze`] only where RSS buckets
    /// have several dedicated cores to move between.
    pub fn needs_several_cores(self) -> bool {
        matches!(
            self,
            Policy::RssPlusPlus
                | Policy::NetBlazeServerStaticSafe
                | Policy::NetBlazeServerStaticUnsafe
                | Policy::NetBlazeOnDemandRss
        )
    }

    /// Makes mappers for a latency objective, of which the network takes nothing any more, from what
    /// was measured, which only matters to policies that [scale](Policy::scales); `None` for
    /// [`Policy::Static`] and [`Policy::RssPlusPlus`], which have no core mapper.
    ///
    /// # Errors
    /// The objective is too short, or the profile admits nothing.
    pub fn mappers(self, slo: Nanos, profile: &CapacityProfile) -> Result<Option<MakeMapper>, NetBlazeError> {
        let mut options = netblaze(slo);
        match self {
            Policy::Static | Policy::RssPlusPlus => return Ok(None),
            Policy::Tailwater => return tailwater(slo, profile).map(Some),
            Policy::NetBlaze | Policy::NetBlazeServerStaticSafe | Policy::NetBlazeServerStaticUnsafe => {}
            Policy::NetBlazeCoreStaticSafe => options.capacity = Capacity::StaticSafe,
            Policy::NetBlazeCoreStaticUnsafe => options.capacity = Capacity::StaticUnsafe,
            Policy::NetBlazeNoCoreMapper => options.enabled = false,
            Policy::NetBlazeNoBoost | Policy::NetBlazeOnDemandRss => options.boost_after = None,
        }
        let (mut frontier, splits) = (profile.frontier.clone(), profile.splits.clone());
        if !self.scales() {
            // It is never asked.
            frontier = EpochFrontier::constant(1);
        }
        let make = move || NetBlazeMapper::new(options, &frontier, splits.clone());
        // A mapper that can be made once can be made again.
        make()?;
        Ok(Some(Arc::new(move || match make() {
            Ok(mapper) => Box::new(mapper),
            Err(error) => unreachable!("it could be made before: {error}"),
        })))
    }
}

/// NetBlaze's options where the network has had its part of the objective.
fn netblaze(slo: Nanos) -> NetBlazeOptions {
    NetBlazeOptions {
        network_allowance: Nanos::ZERO,
        ..NetBlazeOptions::new(slo)
    }
}

/// Makes Tailwater's own mapper. What can be wrong is what can be wrong with NetBlaze's.
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

/// The epoch that mappers use for a latency objective, of which the network takes nothing any more,
/// and that a profile is trained for: half of it.
///
/// # Errors
/// That is nothing.
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
            let without = matches!(policy, Policy::Static | Policy::RssPlusPlus);
            assert_eq!(mappers.is_none(), without, "{name}");
            // So many packets are too much for any mapper that knows nothing of their cost.
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
    fn what_decides_for_a_rack_belongs_to_the_simulator() {
        for (name, why) in SIMULATED {
            let error = Policy::named(name).unwrap_err().to_string();
            assert!(error.contains("belongs to the simulator"), "{error}");
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
