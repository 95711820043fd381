//! Test rig: a cache that detects every invalid step, random numbers, and the server of the closed loop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::on_demand::mask::WayMask;
use tailwater_placement::on_demand::model::Tenant;
use tailwater_placement::on_demand::{Allocation, Cache, CacheAllocator, Step};
use tailwater_placement::published::{Function, WAY_BYTES};

/// Cache partitioned as by CAT.
#[derive(Default)]
pub struct Groups {
    pub groups: BTreeMap<String, (WayMask, BTreeSet<u32>)>,
    /// Available classes and usable ways.
    pub most: usize,
    pub usable: u32,
}

impl CacheAllocator for Groups {
    type Error = String;

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Create { class, mask } => {
                let old = self.groups.insert(class.clone(), (*mask, BTreeSet::new()));
                if old.is_some() {
                    return Err(format!("{class} is there"));
                }
            }
            Step::Resize { class, mask } => self.group(class)?.0 = *mask,
            Step::Assign { class, tasks } => {
                self.group(class)?;
                for (name, (_, members)) in &mut self.groups {
                    match name == class {
                        true => members.extend(tasks),
                        false => members.retain(|task| !tasks.contains(task)),
                    }
                }
            }
            Step::Remove { class } => {
                self.groups.remove(class).ok_or(format!("no {class}"))?;
            }
        }
        if self.groups.len() > self.most {
            return Err(format!("{step:?}: {} classes", self.groups.len()));
        }
        let mut taken = 0;
        for (mask, _) in self.groups.values() {
            if taken & mask.bits() != 0 || mask.bits() & !self.usable != 0 {
                return Err(format!("{step:?}: a way is taken: {:?}", self.groups));
            }
            taken |= mask.bits();
        }
        Ok(())
    }
}

impl Groups {
    fn group(&mut self, class: &str) -> Result<&mut (WayMask, BTreeSet<u32>), String> {
        self.groups.get_mut(class).ok_or(format!("no {class}"))
    }

    /// Returns `true` if it is partitioned as in an allocation.
    pub fn is(&self, allocation: &Allocation) -> bool {
        // Unknown threads have ended.
        let known = |task: &&u32| allocation.classes.iter().any(|class| class.tasks.contains(task));
        let groups = self.groups.iter();
        let groups = groups.map(|(name, (mask, tasks))| {
            let tasks: BTreeSet<u32> = tasks.iter().filter(known).copied().collect();
            (name.clone(), (*mask, tasks))
        });
        let groups: BTreeMap<String, (WayMask, BTreeSet<u32>)> = groups.collect();
        let classes = allocation.classes.iter();
        let classes = classes.map(|c| (c.name.clone(), (c.mask, c.tasks.iter().copied().collect())));
        groups == classes.collect::<BTreeMap<_, (WayMask, BTreeSet<u32>)>>()
    }
}

/// Deterministic pseudo-random numbers from -1 to 1.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> f64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// Returns the cache of ResQ's server: 20 ways, with NICs writing into two.
pub fn cache() -> Cache {
    Cache {
        ways: 20,
        way_bytes: WAY_BYTES,
        unusable: 0b11 << 18,
        classes: 15,
        least: 1,
    }
}

/// Returns an instance of a published function. Its objective is the latency at four fifths of its load.
pub fn tenant(function: &Function, name: &str, load: f64, known: bool) -> Tenant {
    let profile = function.profile().expect("published curves");
    let curves = profile.curves[0].clone();
    Tenant {
        name: name.into(),
        objective: Nanos(curves.load.latency(0.8).0 + 1),
        curves: Arc::new(curves),
        known,
        references: function.references,
        offered: load * function.rate(),
        instances: (1, 4),
    }
}
