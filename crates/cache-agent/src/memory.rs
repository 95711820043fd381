//! Cache partitions in memory only.

use crate::partitioner::{CachePartitioner, ClassifiedError, Found, Refused, Usage};
use std::collections::BTreeMap;
use std::convert::Infallible;
use tailwater_placement::on_demand::{Cache, CacheAllocator, Step};

/// Stores the partitions of a cache without applying them.
#[derive(Clone, Debug)]
pub struct Memory {
    cache: Cache,
    classes: BTreeMap<String, (u32, Vec<u32>)>,
}

impl Memory {
    /// Creates a cache without partitions.
    pub fn new(cache: Cache) -> Self {
        Memory {
            cache,
            classes: BTreeMap::new(),
        }
    }
}

impl ClassifiedError for Infallible {
    fn refused(&self) -> Refused {
        match *self {}
    }
}

impl CacheAllocator for Memory {
    type Error = Infallible;

    fn step(&mut self, step: &Step) -> Result<(), Infallible> {
        match step {
            Step::Create { class, mask } => {
                self.classes.insert(class.clone(), (mask.bits(), Vec::new()));
            }
            Step::Resize { class, mask } => {
                if let Some((bits, _)) = self.classes.get_mut(class) {
                    *bits = mask.bits();
                }
            }
            Step::Assign { class, tasks } => {
                for (_, others) in self.classes.values_mut() {
                    others.retain(|task| !tasks.contains(task));
                }
                if let Some((_, has)) = self.classes.get_mut(class) {
                    has.extend(tasks);
                }
            }
            Step::Remove { class } => {
                self.classes.remove(class);
            }
        }
        Ok(())
    }
}

impl CachePartitioner for Memory {
    fn cache(&mut self) -> Result<Cache, Infallible> {
        Ok(self.cache)
    }

    fn classes(&mut self) -> Result<Vec<Found>, Infallible> {
        let found = |(name, (ways, tasks)): (&String, &(u32, Vec<u32>))| Found {
            name: name.clone(),
            ways: *ways,
            tasks: tasks.clone(),
        };
        Ok(self.classes.iter().map(found).collect())
    }

    fn usage(&mut self, _: &str, _: &str, _: &[u32], _: bool) -> Usage {
        Usage::default()
    }
}
