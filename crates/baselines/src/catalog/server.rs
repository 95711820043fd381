//! Server mappers that accompany the policies.

use super::Policy;
use crate::netblaze::{NetBlazeServerConfig, NetBlazeServerMapper};
use crate::{
    ByBucket, Dyssect, DyssectConfig, Metron, MetronConfig, Quadrant, QuadrantConfig, QuadrantMetron, RssPlusPlus,
    RssPlusPlusConfig,
};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_policy::server::{MakeServerMapper, ServerMapper, TailwaterServerConfig, TailwaterServerMapper};
use tailwater_policy::tailwater::divides;

/// Error: the profile has no rates, so a core's sustainable load is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the profile has no rates, which policy \"{policy}\" requires to map RSS buckets to dedicated cores")]
pub struct NoRates {
    policy: &'static str,
}

impl Policy {
    /// Returns `true` if the policy moves RSS buckets when there are several dedicated cores.
    pub fn moves_buckets(self) -> bool {
        self != Policy::Static
    }

    /// Returns `true` if the policy's server mapper uses the [rates](CapacityProfile::rates) of a profile.
    pub fn needs_rates(self) -> bool {
        let without = [Policy::RssPlusPlus, Policy::Metron, Policy::QuadrantMetron];
        self.moves_buckets() && !without.contains(&self)
    }

    /// Returns a factory of server mappers for the measured profile and a latency objective from which the network's
    /// share is already subtracted, or `None` for [`Policy::Static`].
    ///
    /// Periods are as published: NetBlaze's mapper runs every second, RSS++'s one to ten times per second, Metron's
    /// twice, Quadrant's 20 times, Dyssect's ten times. Those of racks decide about the server's RSS buckets, without
    /// the delays of a rack's controller and switch. The highest rate in the profile is that of a core, and its inverse
    /// the time of a packet. `others_help` is `true` if cores that are not dedicated serve as auxiliary cores.
    ///
    /// # Errors
    /// The policy [needs rates](Policy::needs_rates), and the profile has none.
    pub fn server_mappers(
        self,
        slo: Nanos,
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
            Policy::RssPlusPlus => return made(|| RssPlusPlus::new(RssPlusPlusConfig::default())),
            Policy::Metron => return made(|| Metron::new(MetronConfig::on_one_server())),
            Policy::Quadrant => {
                let config = QuadrantConfig::as_compared(slo, profile.rates.largest());
                return made(move || ByBucket::new(Quadrant::new(config)));
            }
            Policy::QuadrantMetron => return made(|| ByBucket::new(QuadrantMetron::new())),
            Policy::Dyssect => {
                let packet = Nanos::from_secs_f64(1.0 / profile.rates.largest()).max(Nanos(1));
                let config = DyssectConfig::for_objective(slo, packet);
                return made(move || ByBucket::new(Dyssect::new(config)));
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
                    divides: others_help && divides(profile),
                    ..TailwaterServerConfig::default()
                };
                let rates = profile.rates.clone();
                return made(move || TailwaterServerMapper::new(config, rates.clone()));
            }
        };
        made(move || NetBlazeServerMapper::new(config, rates.clone()))
    }
}

/// Returns the factory of boxed mappers.
fn made<M: ServerMapper + 'static>(
    make: impl Fn() -> M + Send + Sync + 'static,
) -> Result<Option<MakeServerMapper>, NoRates> {
    Ok(Some(Arc::new(move || Box::new(make()))))
}

/// Largest share of its time that a dispatcher spends on receiving and offloading.
const DISPATCHING: f64 = 0.4;
/// Range of the load, in cores, that one dispatcher owns. With less than two, its auxiliary core would be in use all
/// the time and never full.
const POOLED: std::ops::RangeInclusive<f64> = 2.0..=4.5;

/// Returns the load, in cores, that a dedicated core of Tailwater can own: 1 if offloading costs too much or its cost is
/// unknown.
pub fn pooled(profile: &CapacityProfile) -> f64 {
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
    use tailwater_policy::server::{BucketLoad, CoreLoad, Move, ServerView};

    const SLO: Nanos = Nanos::from_micros(200);

    /// A core can process a million packets per second of ten flows, and half as many of a thousand.
    fn profile() -> CapacityProfile {
        let mut profile = CapacityProfile::default();
        profile.rates.insert(10, 1e6);
        profile.rates.insert(1000, 5e5);
        profile
    }

    /// Returns the moves of a policy for four buckets of one core, each with the given flows and rate (packets per
    /// second). A second core has no bucket.
    fn moved(policy: Policy, flows: f64, rate: f64) -> Vec<Move> {
        let make = policy.server_mappers(SLO, &profile(), true).unwrap().unwrap();
        let buckets = [BucketLoad { flows, rate, core: 0 }; 4];
        let load = 4.0 * rate / 1e6;
        let used = CoreLoad {
            dedicated: true,
            busy: load.min(1.0),
            lost: (1e6 * (load - 1.0).max(0.0)) as u64,
            worst_delay: if load > 1.0 { Nanos::from_millis(1) } else { Nanos(1000) },
            ..CoreLoad::default()
        };
        let cores = [used, CoreLoad::default()];
        let view = ServerView {
            now: Nanos::from_secs(1),
            buckets: &buckets,
            cores: &cores,
            late: 0.0,
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
                assert!(policy.server_mappers(SLO, &profile(), true).unwrap().is_none());
                continue;
            }
            assert!(!moved(policy, 1.0, 3e5).is_empty(), "{name}");
            assert!(moved(policy, 1.0, 1e5).is_empty(), "{name}");
            let period = policy.server_mappers(SLO, &profile(), true).unwrap().unwrap()().period();
            let hertz = 1.0 / period.as_secs_f64();
            assert!((1.0..=20.0).contains(&hertz), "{name}");
        }
    }

    #[test]
    fn ablations_see_other_capacities() {
        // Within the frontier at four flows, beyond the limit for any number of flows.
        let few = |policy| moved(policy, 1.0, 2e5).len();
        assert_eq!(few(Policy::NetBlaze), 0);
        assert!(few(Policy::NetBlazeServerStaticSafe) > 0);
        // The reverse.
        let many = |policy| moved(policy, 250.0, 2e5).len();
        assert!(many(Policy::NetBlaze) > 0);
        assert_eq!(many(Policy::NetBlazeServerStaticUnsafe), 0);
        let on_demand = Policy::NetBlazeOnDemandRss.server_mappers(SLO, &profile(), true);
        assert!(on_demand.unwrap().unwrap()().on_backlog_of(Nanos(1000)).is_some());
    }

    #[test]
    fn without_rates_only_those_that_need_none() {
        for name in Policy::names() {
            let policy = Policy::named(name).unwrap();
            let mappers = policy.server_mappers(SLO, &CapacityProfile::default(), true);
            assert_eq!(mappers.is_err(), policy.needs_rates(), "{name}");
        }
        let error = Policy::Tailwater.server_mappers(SLO, &CapacityProfile::default(), true);
        let Err(error) = error else {
            panic!("there are no rates");
        };
        assert!(error.to_string().contains("has no rates"), "{error}");
    }
}
