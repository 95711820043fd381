//! Division of the last-level cache among the cores of a server, by `resctrl`.

use crate::output::complain;
use std::collections::BTreeMap;
use std::time::Duration;
use tailwater_api::server::{CacheSpec, ServerSpec};
use tailwater_cache_agent::{PartitionError, Partitions};
use tailwater_dataplane::core_host::CoreHost;
use tailwater_profile::cache::Caches;
use tailwater_resctrl::{Level, Resctrl, Settings};
use tailwater_server::cache::{CacheConfig, DividedCache, DividedMachine, SharedCache};
use tailwater_server::live::LiveMachine;

/// Time for which the server's thread waits for another program that changes `resctrl`: clients wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

/// Division by `spec.cache`. Where the cache cannot be divided, the user is told, and everything else runs.
pub fn divided(machine: LiveMachine, host: &CoreHost, spec: &ServerSpec) -> DividedMachine<LiveMachine, Partitions> {
    let Some(cache) = spec.cache else {
        return DividedMachine::undivided(machine, None);
    };
    let config = CacheConfig {
        headroom: spec.admission.as_ref().map_or(0.0, |admission| admission.headroom),
        on_demand: cache.on_demand,
    };
    let divisions = caches(host, cache).and_then(|caches| {
        let divisions = caches.into_iter().map(|cache| DividedCache::new(cache, config));
        let divisions: Result<Vec<_>, PartitionError> = divisions.collect();
        divisions.map_err(|error| error.to_string())
    });
    match divisions {
        Ok(divisions) => DividedMachine::new(machine, divisions),
        Err(reason) => {
            complain("notice", &format!("the cache is not divided: {reason}"));
            DividedMachine::undivided(machine, Some(reason))
        }
    }
}

/// Last-level caches of the host's cores.
fn caches(host: &CoreHost, spec: CacheSpec) -> Result<Vec<SharedCache<Partitions>>, String> {
    let settings = Settings {
        patience: PATIENCE,
        ..Settings::default()
    };
    let resctrl = Resctrl::open(settings).map_err(|error| error.to_string())?;
    let Some(l3) = &resctrl.info().l3 else {
        return Err("resctrl does not control ways of the last-level cache (CAT)".to_owned());
    };
    let ways = u64::from(l3.mask.count_ones().max(1));
    let mut caches: BTreeMap<u32, SharedCache<Partitions>> = BTreeMap::new();
    for (core, task) in host.tasks() {
        let id = resctrl.cache_of_core(core as u32, Level::L3);
        let id = id.map_err(|error| error.to_string())?;
        let cache =
            Caches::of(core).ok_or_else(|| format!("the kernel does not describe the caches of core {core}"))?;
        let shared = caches.entry(id).or_insert_with(|| SharedCache {
            partitioner: Partitions::new(resctrl.clone(), id, cache.last_bytes / ways, u32::from(spec.others)),
            cores: BTreeMap::new(),
        });
        shared.cores.insert(core as u32, vec![task]);
    }
    Ok(caches.into_values().collect())
}
