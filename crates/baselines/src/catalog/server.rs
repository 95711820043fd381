//! Server mappers that go with the policies.

use super::Policy;
use crate::netblaze::{NetBlazeServerConfig, NetBlazeServerMapper};
use crate::{RssPlusPlus, RssPlusPlusConfig};
use std::sync::Arc;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_policy::server::{MakeServerMapper, TailwaterServerConfig, TailwaterServerMapper};

/// A profile without rates: what a core can do for long is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the profile has no rates, by which policy \"{policy}\" maps RSS buckets to dedicated cores")]
pub struct NoRates {
    policy: &'static str,
}

impl Policy {
    /// Whether it moves RSS buckets where there are several dedicated cores.
    pub fn moves_buckets(self) -> bool {
        self != Policy::Static
    }

    /// Whether its server mapper goes by the [rates](CapacityProfile::rates) of a profile.
    pub fn needs_rates(self) -> bool {
        self.moves_buckets() && self != Policy::RssPlusPlus
    }

    /// Makes server mappers from what was measured; `None` for [`Policy::Static`].
    ///
    /// NetBlaze's mapper is asked every second, and so is Tailwater's; RSS++'s one to ten times a second, as
    /// published. `others_help`: whether cores that are not dedicated help those that are.
    ///
    /// # Errors
    /// The policy [needs rates](Policy::needs_rates), and the profile has none.
    pub fn server_mappers(
        self,
        profile: &CapacityProfile,
        others_help: bool,
    ) -> Result<Option<MakeServerMapper>, NoRates> {
        if self.needs_rates() && profile.rates.is_empty() {
            let policy = self.name();
            return Err(NoRates { policy });
        }
        let mut config = NetBlazeServerConfig::default();
        let rates = match self {
            Policy::Static => return Ok(None),
            Policy::RssPlusPlus => {
                let make = || RssPlusPlus::new(RssPlusPlusConfig::default());
                return Ok(Some(Arc::new(move || Box::new(make()))));
            }
            Policy::NetBlazeServerStaticSafe => profile.rates.static_safe(),
            Policy::NetBlazeServerStaticUnsafe => profile.rates.static_unsafe(),
            Policy::NetBlazeOnDemandRss => {
                config.on_overload = true;
                profile.rates.clone()
            }
            Policy::NetBlaze
            | Policy::NetBlazeCoreStaticSafe
            | Policy::NetBlazeCoreStaticUnsafe
            | Policy::NetBlazeNoCoreMapper
            | Policy::NetBlazeNoBoost => profile.rates.clone(),
            Policy::Tailwater => {
                let config = TailwaterServerConfig {
                    pooled: if others_help { pooled(profile) } else { 1.0 },
                    ..TailwaterServerConfig::default()
                };
                let rates = profile.rates.clone();
                return Ok(Some(Arc::new(move || {
                    Box::new(TailwaterServerMapper::new(config, rates.clone()))
                })));
            }
        };
        Ok(Some(Arc::new(move || {
            Box::new(NetBlazeServerMapper::new(config, rates.clone()))
        })))
    }
}

/// The share of its time for which a dispatcher may be busy receiving and handing over.
const DISPATCHING: f64 = 0.2;
/// The load, in cores, that one dispatcher is given at most. With less than two, its helper would be in use
/// all the time and never full.
const POOLED: std::ops::RangeInclusive<f64> = 2.0..=4.5;

/// The load, in cores, that a dedicated core may own: 1 where handing over costs too much, or nobody knows.
fn pooled(profile: &CapacityProfile) -> f64 {
    let Some(details) = &profile.details else {
        return 1.0;
    };
    let handing = details.receive_packet + details.queue_packet + details.hand_over_packet;
    let packet = 1e9 / profile.rates.largest();
    match packet * DISPATCHING / handing.max(1.0) {
        few if few < *POOLED.start() => 1.0,
        many => many.min(*POOLED.end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_net::Nanos;
    use tailwater_policy::server::{BucketLoad, CoreLoad, Move, ServerView};

    /// A core can do a million packets a second of ten flows, half as many of a thousand.
    fn profile() -> CapacityProfile {
        let mut profile = CapacityProfile::default();
        profile.rates.insert(10, 1e6);
        profile.rates.insert(1000, 5e5);
        profile
    }

    /// What a policy says to four buckets of a core, so many flows and packets a second in each; another
    /// core has none.
    fn moved(policy: Policy, flows: f64, rate: f64) -> Vec<Move> {
        let make = policy.server_mappers(&profile(), true).unwrap().unwrap();
        let buckets = [BucketLoad { flows, rate, core: 0 }; 4];
        let busy = (4.0 * rate / 1e6).min(1.0);
        let cores = [true, false].map(|dedicated| CoreLoad {
            dedicated,
            busy: if dedicated { busy } else { 0.0 },
            ..CoreLoad::default()
        });
        let view = ServerView {
            now: Nanos::from_secs(1),
            buckets: &buckets,
            cores: &cores,
        };
        let mut moves = Vec::new();
        make().remap(&view, &mut moves);
        moves
    }

    #[test]
    fn all_policies_but_static_move_buckets_off_an_overloaded_core() {
        for name in Policy::names() {
            let policy = Policy::named(name).unwrap();
            if policy == Policy::Static {
                assert!(policy.server_mappers(&profile(), true).unwrap().is_none());
                continue;
            }
            assert!(!moved(policy, 1.0, 3e5).is_empty(), "{name}");
            assert!(moved(policy, 1.0, 1e5).is_empty(), "{name}");
            let period = policy.server_mappers(&profile(), true).unwrap().unwrap()().period();
            let hertz = 1.0 / period.as_secs_f64();
            assert!((1.0..=10.0).contains(&hertz), "{name}");
        }
    }

    #[test]
    fn ablations_see_other_capacities() {
        // Inside the frontier at four flows, outside of what any number of flows allows.
        let few = |policy| moved(policy, 1.0, 2e5).len();
        assert_eq!(few(Policy::NetBlaze), 0);
        assert!(few(Policy::NetBlazeServerStaticSafe) > 0);
        // The other way round.
        let many = |policy| moved(policy, 250.0, 2e5).len();
        assert!(many(Policy::NetBlaze) > 0);
        assert_eq!(many(Policy::NetBlazeServerStaticUnsafe), 0);
        let on_demand = Policy::NetBlazeOnDemandRss.server_mappers(&profile(), true);
        assert!(on_demand.unwrap().unwrap()().on_overload());
    }

    #[test]
    fn without_rates_only_those_that_need_none() {
        for name in Policy::names() {
            let policy = Policy::named(name).unwrap();
            let mappers = policy.server_mappers(&CapacityProfile::default(), true);
            assert_eq!(mappers.is_err(), policy.needs_rates(), "{name}");
        }
        let error = Policy::Tailwater.server_mappers(&CapacityProfile::default(), true);
        let Err(error) = error else {
            panic!("there are no rates");
        };
        assert!(error.to_string().contains("has no rates"), "{error}");
    }
}
