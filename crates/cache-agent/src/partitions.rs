//! Cache partitions through `resctrl`: one for each class, with exclusive ways.

use crate::partitioner::{CachePartitioner, ClassifiedError, Found, Refused, Usage};
use std::collections::BTreeMap;
use std::fmt;
use tailwater_placement::cluster::MAX_WAYS;
use tailwater_placement::on_demand::mask::WayMask;
use tailwater_placement::on_demand::{Cache, CacheAllocator, Step};
use tailwater_resctrl::{
    CacheUse, Error, Level, Mask, MonitorGroup, Partition, PartitionRequest, Reading, Resctrl, WayChoice,
};

/// Reason why `resctrl` refused a step.
#[derive(Debug)]
pub enum PartitionError {
    /// The operation failed without any effect.
    Resctrl(Error),
    /// No class has this name: it was never created, or another program has removed its group.
    NoClass(String),
}

impl fmt::Display for PartitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartitionError::Resctrl(error) => error.fmt(f),
            PartitionError::NoClass(class) => write!(f, "the class {class} no longer exists"),
        }
    }
}

impl std::error::Error for PartitionError {}

impl From<Error> for PartitionError {
    fn from(error: Error) -> Self {
        PartitionError::Resctrl(error)
    }
}

impl ClassifiedError for PartitionError {
    fn refused(&self) -> Refused {
        let task = |number: &str| number.parse().map_or(Refused::Later, Refused::Task);
        match self {
            PartitionError::Resctrl(Error::OutOfClosids { .. }) => Refused::Classes,
            PartitionError::Resctrl(Error::NoTask { task }) => {
                u32::try_from(*task).map_or(Refused::Later, Refused::Task)
            }
            PartitionError::Resctrl(Error::Taken { what, .. }) => {
                what.strip_prefix("task ").map_or(Refused::Later, task)
            }
            _ => Refused::Later,
        }
    }
}

/// Instance in a shared class, monitored separately.
struct Watched {
    class: String,
    tasks: Vec<u32>,
    /// `None` if the processor has no free monitoring ids.
    watch: Option<MonitorGroup>,
}

/// Last-level cache partitioned through `resctrl`. Dropping it removes all partitions.
pub struct Partitions {
    resctrl: Resctrl,
    id: u32,
    way_bytes: u64,
    rest: u32,
    // Dropped before the partitions that they are in.
    watched: BTreeMap<String, Watched>,
    partitions: BTreeMap<String, Partition>,
}

fn numbers(tasks: &[u32]) -> Vec<i32> {
    tasks.iter().filter_map(|task| i32::try_from(*task).ok()).collect()
}

fn place(mask: WayMask) -> Result<WayChoice, Error> {
    let bits = mask.bits();
    let known = Mask::from_bits(bits).ok_or_else(|| Error::BadMask {
        resource: Level::L3.name().to_owned(),
        mask: bits,
        why: "expected contiguous ways".to_owned(),
    })?;
    Ok(WayChoice::Exactly(known))
}

impl Partitions {
    /// Creates the partitions of cache `id` ([`Resctrl::cache_of_core`]), with `way_bytes` bytes per way. Everything
    /// else on the machine retains the highest `rest` ways, at least one, in addition to those that devices write into
    /// (DDIO).
    pub fn new(resctrl: Resctrl, id: u32, way_bytes: u64, rest: u32) -> Self {
        Partitions {
            resctrl,
            id,
            way_bytes,
            rest,
            watched: BTreeMap::new(),
            partitions: BTreeMap::new(),
        }
    }

    fn partition(&self, class: &str) -> Result<&Partition, PartitionError> {
        let partition = self.partitions.get(class);
        partition.ok_or_else(|| PartitionError::NoClass(class.to_owned()))
    }

    /// Returns the counters of an instance, in a class of its own or in a shared one.
    fn read(&mut self, class: &str, instance: &str, tasks: &[u32], alone: bool) -> Option<CacheUse> {
        let partition = self.partitions.get(class)?;
        if alone {
            self.watched.remove(instance);
            return partition.usage().ok()?.get(&self.id).copied();
        }
        let before = self.watched.get(instance);
        if before.is_none_or(|before| before.class != class || before.tasks != tasks) {
            self.watched.remove(instance);
            let watched = Watched {
                class: class.to_owned(),
                tasks: tasks.to_vec(),
                watch: partition.watch(&numbers(tasks)).ok(),
            };
            self.watched.insert(instance.to_owned(), watched);
        }
        let watch = self.watched.get(instance)?.watch.as_ref()?;
        watch.usage().ok()?.get(&self.id).copied()
    }
}

impl CacheAllocator for Partitions {
    type Error = PartitionError;

    fn step(&mut self, step: &Step) -> Result<(), PartitionError> {
        match step {
            Step::Create { class, mask } => {
                let ask = PartitionRequest {
                    caches: vec![self.id],
                    ways: place(*mask)?,
                    ..PartitionRequest::exclusive(0)
                };
                let partition = self.resctrl.partition(&ask)?;
                self.partitions.insert(class.clone(), partition);
            }
            Step::Resize { class, mask } => self.partition(class)?.resize(place(*mask)?)?,
            Step::Assign { class, tasks } => self.partition(class)?.add_tasks(&numbers(tasks))?,
            Step::Remove { class } => {
                self.watched.retain(|_, watched| watched.class != *class);
                if let Some(partition) = self.partitions.get_mut(class) {
                    partition.remove()?;
                    self.partitions.remove(class);
                }
            }
        }
        Ok(())
    }
}

impl CachePartitioner for Partitions {
    fn cache(&mut self) -> Result<Cache, PartitionError> {
        let what = "ways of L3 caches (CAT)".to_owned();
        let info = self.resctrl.info();
        let l3 = info.l3.as_ref().ok_or(Error::Unsupported { what })?;
        let ours: Vec<&Partition> = self.partitions.values().collect();
        let others = self.resctrl.other_allocations(Level::L3, self.id, &ours)?;
        let ways = (l3.mask.count_ones() as u16).min(MAX_WAYS);
        // Ways that devices write into also belong to everything else. Without such ways it needs one of its own.
        let rest = match l3.shareable {
            0 => self.rest.max(l3.min_ways).max(1),
            _ => self.rest,
        };
        let mut kept = 0;
        for _ in 0..rest {
            let left = l3.mask & !l3.shareable & !kept;
            kept |= 1u32.checked_shl(31 - left.leading_zeros().min(31)).unwrap_or(0) & left;
        }
        let classes = info.closids().saturating_sub(1) as usize;
        Ok(Cache {
            ways,
            way_bytes: self.way_bytes,
            unusable: l3.shareable | kept | others.ways,
            classes: classes.saturating_sub(others.groups.len()) as u16,
            least: l3.min_ways.max(1) as u16,
        })
    }

    fn classes(&mut self) -> Result<Vec<Found>, PartitionError> {
        let mut found = Vec::new();
        let mut gone = Vec::new();
        for (name, partition) in &self.partitions {
            let read = partition.ways().and_then(|ways| Ok((ways, partition.tasks()?)));
            let (ways, tasks) = match read {
                Ok(read) => read,
                Err(Error::Vanished { .. }) => {
                    gone.push(name.clone());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            found.push(Found {
                name: name.clone(),
                ways: ways.get(&self.id).copied().unwrap_or(0),
                tasks: tasks.iter().filter_map(|task| u32::try_from(*task).ok()).collect(),
            });
        }
        for name in gone {
            self.watched.retain(|_, watched| watched.class != name);
            self.partitions.remove(&name);
        }
        // Monitoring ends for instances that have left a class.
        let here = |watched: &Watched| {
            let class = found.iter().find(|class| class.name == watched.class);
            class.is_some_and(|class| watched.tasks.iter().any(|task| class.tasks.contains(task)))
        };
        self.watched.retain(|_, watched| here(watched));
        Ok(found)
    }

    fn usage(&mut self, class: &str, instance: &str, tasks: &[u32], alone: bool) -> Usage {
        let bytes = |reading| match reading {
            Some(Reading::Bytes(bytes)) => Some(bytes),
            _ => None,
        };
        let read = self.read(class, instance, tasks, alone).unwrap_or_default();
        Usage {
            occupancy: bytes(read.occupancy),
            traffic: bytes(read.traffic),
        }
    }
}
