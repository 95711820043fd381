//! Number of instances of chains without a promise, by the time that they spend on packets.

use super::view::{InstancePhase, InstanceView};
use std::collections::HashMap;

/// Least part of a core that counts as left to a chain by others.
const LEAST_LEFT: f64 = 0.01;

/// Returns each chain's share of the time of its cores, as far as the others leave it: 0 to 1. Chains are given by
/// their cores and the number of cores that they use.
///
/// ```
/// use tailwater_placement::rack::busy_shares;
/// // Two chains share a core, and each uses 40 % of it: of the 60 % that the other one leaves, two thirds.
/// let shares = busy_shares(&[(&[3], 0.4), (&[3], 0.4), (&[4, 5], 1.0)]);
/// assert!((shares[0] - 2.0 / 3.0).abs() < 1e-9 && (shares[2] - 0.5).abs() < 1e-9);
/// ```
pub fn busy_shares(chains: &[(&[u32], f64)]) -> Vec<f64> {
    let part = |(cores, used): &(&[u32], f64)| used / cores.len().max(1) as f64;
    let mut by_core: HashMap<u32, f64> = HashMap::new();
    for chain in chains {
        for core in chain.0 {
            *by_core.entry(*core).or_default() += part(chain);
        }
    }
    let share = |chain: &(&[u32], f64)| {
        let own = part(chain);
        let left = |core: &u32| (1.0 - (by_core[core] - own)).max(LEAST_LEFT);
        let available: f64 = chain.0.iter().map(left).sum();
        if chain.0.is_empty() {
            0.0
        } else {
            (chain.1 / available).clamp(0.0, 1.0)
        }
    };
    chains.iter().map(share).collect()
}

/// Limits of the share of their time that instances without a promise spend on packets, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BusyLimits {
    /// Share above which there are to be more instances.
    pub most: f64,
    /// Share that a change aims at: there are so many instances that none has more on average. Fewer than there are
    /// suffice if they do not exceed it.
    pub goal: f64,
}

impl Default for BusyLimits {
    fn default() -> Self {
        BusyLimits { most: 0.7, goal: 0.5 }
    }
}

impl BusyLimits {
    /// Returns the number of instances that a chain should have, or 0 if nothing is known of their load. `instances`
    /// are those that are starting and those that are ready.
    pub fn instances(&self, instances: &[&InstanceView]) -> u16 {
        let ready = || instances.iter().filter(|one| one.phase == InstancePhase::Ready);
        let known: Vec<f64> = ready().filter_map(|one| one.load.busy).collect();
        if known.is_empty() {
            return 0;
        }
        let total: f64 = known.iter().sum();
        // Deviations by rounding are tolerated.
        let at = |share: f64| (total / share.max(f64::MIN_POSITIVE) - 1e-9).ceil().clamp(1.0, 1024.0) as u16;
        let (now, goal) = (instances.len().min(1024) as u16, at(self.goal));
        match at(self.most) > now {
            true => goal,
            // An instance of which nothing is known may have the load.
            false if known.len() < instances.len() => now,
            false => goal.min(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rack::InstanceLoad;

    fn instance(busy: Option<f64>, phase: InstancePhase) -> InstanceView {
        InstanceView {
            name: String::new(),
            chain: String::new(),
            server: String::new(),
            phase,
            cores: Vec::new(),
            promised: 0.0,
            exclusive: false,
            replaces: None,
            load: InstanceLoad {
                busy,
                ..InstanceLoad::default()
            },
        }
    }

    fn wanted(busy: &[Option<f64>], starting: usize) -> u16 {
        let mut all: Vec<InstanceView> = busy.iter().map(|busy| instance(*busy, InstancePhase::Ready)).collect();
        all.extend((0..starting).map(|_| instance(None, InstancePhase::Starting)));
        BusyLimits::default().instances(&all.iter().collect::<Vec<_>>())
    }

    #[test]
    fn more_instances_above_seven_tenths_and_fewer_when_half_suffices() {
        for (busy, starting, expected) in [
            (&[Some(0.7)][..], 0, 1),
            (&[Some(0.71)], 0, 2),
            (&[Some(1.0)], 0, 2),
            // One that is starting counts, and its load is not known yet.
            (&[Some(1.0)], 1, 2),
            (&[Some(0.1)], 1, 2),
            (&[Some(1.0), Some(1.0)], 0, 4),
            // Between the limits everything stays, however the load is divided.
            (&[Some(0.6), Some(0.6)], 0, 2),
            (&[Some(0.9), Some(0.15)], 0, 2),
            (&[Some(0.5), Some(0.0)], 0, 1),
            (&[Some(0.0), Some(0.0), Some(0.0)], 0, 1),
            // Nothing, or not all, is known.
            (&[None, None], 0, 0),
            (&[Some(0.1), None], 0, 2),
            (&[], 1, 0),
        ] {
            assert_eq!(wanted(busy, starting), expected, "{busy:?} {starting}");
        }
    }

    #[test]
    fn shares_are_of_what_others_leave() {
        assert_eq!(busy_shares(&[(&[], 0.5), (&[1], 0.0)]), [0.0, 0.0]);
        assert_eq!(busy_shares(&[(&[1], 1.2)]), [1.0]);
        // Two of three are idle: the third has the core.
        let shares = busy_shares(&[(&[1], 0.0), (&[1], 0.0), (&[1], 0.8)]);
        assert!(shares[0] == 0.0 && (shares[2] - 0.8).abs() < 1e-9, "{shares:?}");
        let full = busy_shares(&[(&[1], 0.3), (&[1], 0.7)]);
        assert!(full.iter().all(|share| (share - 1.0).abs() < 1e-9), "{full:?}");
    }
}
