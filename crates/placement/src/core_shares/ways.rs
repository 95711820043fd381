//! Ways of the cache that cores reserve for the promises of their chains.

use super::{Claim, Occupant, SharedCores};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Cache of which cores can reserve ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservableCache {
    /// Bytes of a way.
    pub way_bytes: u64,
    /// Ways that classes may have.
    pub ways: u16,
    /// Minimum number of ways of a class.
    pub least: u16,
    /// Maximum number of classes.
    pub classes: u16,
}

impl SharedCores {
    /// Returns the fewest ways of its own with which a core keeps the promises of its chains, which divide them among
    /// each other. `None` if there is no promise on the core, or no number of ways suffices.
    pub fn ways_of(&self, core: u32, chains: &[Occupant], cache: &ReservableCache) -> Option<u16> {
        let here = chains.iter().filter(|chain| chain.cores.contains(&core));
        let here: Vec<Occupant> = here.map(|chain| on_core(core, chain)).collect();
        if here.iter().all(|chain| chain.claim.is_none()) {
            return None;
        }
        let keeps = |ways: &u16| {
            let alone = SharedCores {
                cores: vec![core],
                cache_bytes: u64::from(*ways) * cache.way_bytes,
                headroom: self.headroom,
            };
            alone.violations(&here).is_empty()
        };
        (cache.least.max(1)..=cache.ways).find(keeps)
    }

    /// Returns the ways that each core with a promise reserves. Cores that have reserved ways `before` come first, then
    /// those with lower numbers. A core for which ways or classes do not suffice any more reserves none. Of what is
    /// reserved anew, the smallest class remains for other cores with chains.
    pub fn reserved_ways(
        &self,
        chains: &[Occupant],
        cache: &ReservableCache,
        before: &BTreeMap<u32, u16>,
    ) -> BTreeMap<u32, u16> {
        let is_used = |core: u32| chains.iter().any(|chain| chain.cores.contains(&core));
        let promises = || chains.iter().filter(|chain| chain.claim.is_some());
        let is_promised = |core: u32| promises().any(|chain| chain.cores.contains(&core));
        let (mut promised, others): (Vec<u32>, Vec<u32>) = self
            .cores
            .iter()
            .filter(|core| is_used(**core))
            .partition(|core| is_promised(**core));
        promised.sort_by_key(|core| (!before.contains_key(core), *core));
        let kept = u16::from(!others.is_empty());
        let (mut left, mut reserved) = (*cache, BTreeMap::new());
        for core in promised {
            let kept = match before.contains_key(&core) {
                true => 0,
                false => kept,
            };
            let room = ReservableCache {
                ways: left.ways.saturating_sub(kept * cache.least.max(1)),
                classes: left.classes.saturating_sub(kept),
                ..left
            };
            if room.classes == 0 {
                continue;
            }
            if let Some(ways) = self.ways_of(core, chains, &room) {
                left.ways -= ways;
                left.classes -= 1;
                reserved.insert(core, ways);
            }
        }
        reserved
    }
}

/// A chain with its part of one of its cores.
fn on_core(core: u32, chain: &Occupant) -> Occupant {
    let part = |claim: &Arc<Claim>| {
        Arc::new(Claim {
            throughput: claim.throughput / chain.cores.len() as f64,
            ..Claim::clone(claim)
        })
    };
    Occupant {
        name: chain.name.clone(),
        cores: vec![core],
        claim: chain.claim.as_ref().map(part),
    }
}
