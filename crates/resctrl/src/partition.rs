//! Cache partition for a set of tasks and cores.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::changes::Changes;
use crate::error::Error;
use crate::info::Level;
use crate::inner::Inner;
use crate::monitor_group::{CacheUse, MonitorGroup, usage};
use crate::owner::{Name, Part};
use crate::request::{Mode, PartitionRequest, WayChoice};
use crate::text::Schemata;

/// Cache partition with tasks and cores. When dropped, its ways, tasks and cores return to the default group.
#[derive(Debug)]
pub struct Partition {
    inner: Arc<Inner>,
    name: String,
    level: Level,
    caches: Vec<u32>,
    alone: bool,
}

impl Partition {
    /// Creates a partition: see [`Resctrl::partition`](crate::Resctrl::partition).
    pub(crate) fn new(inner: &Arc<Inner>, ask: &PartitionRequest) -> Result<Partition, Error> {
        let _locks = inner.lock()?;
        let plan = inner.plan(ask.level)?;
        let groups: Vec<String> = plan.groups.iter().map(|group| group.name.clone()).collect();
        let limit = inner.info.closids();
        if groups.len() as u32 + 1 >= limit {
            return Err(Error::OutOfClosids { limit, groups });
        }
        let caches = match ask.caches.is_empty() {
            true => plan.caches(),
            false => ask.caches.clone(),
        };
        let mut masks = BTreeMap::new();
        for &id in &caches {
            plan.known(id)?;
            masks.insert(id, plan.choose(id, ask.ways, ask.alone, &[], 0)?.bits());
        }
        let mut lines = plan.lines(&masks);
        if let Some(limit) = ask.bandwidth {
            if inner.info.bandwidth.is_none() {
                return Err(Error::Unsupported {
                    what: "memory bandwidth (MBA)".to_owned(),
                });
            }
            caches.iter().for_each(|id| lines.set("MB", *id, limit));
        }
        for &task in &ask.tasks {
            inner.owner(Member::Task(task))?;
        }
        for &core in &ask.cores {
            inner.owner(Member::Core(core))?;
        }
        let part = Part {
            alone: ask.alone,
            level: ask.level.name().to_owned(),
            caches: caches.clone(),
        };
        let name = Name::ours(Some(part))?.to_string();
        let partition = Partition {
            inner: inner.clone(),
            name,
            level: ask.level,
            caches,
            alone: ask.alone,
        };
        let made = inner.all_or_nothing(|changes| {
            let path = partition.path();
            changes.make(&path)?;
            if ask.alone {
                changes.settle(&[(partition.name.clone(), masks)].into())?;
            }
            changes.write_new(&path.join("schemata"), &lines.to_text())?;
            for &task in &ask.tasks {
                inner.add_task(changes, &path, task)?;
            }
            match ask.cores.is_empty() {
                true => Ok(()),
                false => inner.add_cores(changes, &path, &ask.cores),
            }
        });
        match made {
            Ok(()) => Ok(partition),
            Err(error) => {
                // All changes are undone already, and the locks are still held.
                partition.forget();
                Err(error)
            }
        }
    }

    /// Changes the ways of partitions: see [`Resctrl::assign`](crate::Resctrl::assign).
    pub(crate) fn assign(inner: &Inner, wanted: &[(&Partition, WayChoice)]) -> Result<(), Error> {
        let _locks = inner.lock()?;
        let size = |place: &WayChoice| match place {
            WayChoice::Ways(ways) => (1, *ways),
            WayChoice::Exactly(mask) => (2, mask.ways()),
        };
        let mut wanted = wanted.to_vec();
        wanted.sort_by_key(|(_, place)| std::cmp::Reverse(size(place)));
        let moving: Vec<&str> = wanted.iter().map(|(partition, _)| partition.name.as_str()).collect();
        let mut instead = crate::default::MaskOverrides::new();
        let mut lines = Vec::new();
        for level in [Level::L2, Level::L3] {
            let of_level = || wanted.iter().filter(|(partition, _)| partition.level == level);
            if of_level().next().is_none() {
                continue;
            }
            let plan = inner.plan(level)?;
            let mut alone_now = BTreeMap::<u32, u32>::new();
            for (partition, place) in of_level() {
                let mut masks = BTreeMap::new();
                for &id in &partition.caches {
                    let new = alone_now.entry(id).or_default();
                    let mask = plan.choose(id, *place, partition.alone, &moving, *new)?.bits();
                    *new |= if partition.alone { mask } else { 0 };
                    masks.insert(id, mask);
                }
                let old = plan.groups.iter().find(|group| group.name == partition.name);
                let old = old.ok_or_else(|| Error::Vanished {
                    group: partition.name.clone(),
                })?;
                let new = plan.lines(&masks);
                lines.push((
                    partition,
                    new.to_text(),
                    old.schemata.within(&new).to_text(),
                    old.exclusive,
                ));
                if partition.alone {
                    instead.insert(partition.name.clone(), masks);
                }
            }
        }
        let [shareable, exclusive] = [Mode::Shareable, Mode::Exclusive].map(|mode| format!("{mode}\n"));
        inner.all_or_nothing(|changes| {
            // Exclusive groups would overlap temporarily, which the kernel rejects.
            let apart = || lines.iter().filter(|(.., exclusive)| *exclusive);
            for (partition, ..) in apart() {
                let mode = partition.path().join("mode");
                changes.write(&mode, &shareable, &mode, &exclusive)?;
            }
            changes.settle(&instead)?;
            for (partition, new, old, _) in &lines {
                let path = partition.path().join("schemata");
                changes.write(&path, new, &path, old)?;
            }
            apart().try_for_each(|(partition, ..)| {
                let mode = partition.path().join("mode");
                changes.write(&mode, &exclusive, &mode, &shareable)
            })
        })
    }
}

/// Possible member of a group.
#[derive(Clone, Copy)]
pub(crate) enum Member {
    Task(i32),
    Core(u32),
}

impl Inner {
    /// Returns this process's group that contains the member, or `None` for the default group.
    ///
    /// # Errors
    /// [`Error::Taken`] if the member is in a group that this process does not own.
    pub(crate) fn owner(&self, member: Member) -> Result<Option<String>, Error> {
        let is_in = |path: &PathBuf| match member {
            Member::Task(task) => Ok::<bool, Error>(self.tree.tasks(path)?.contains(&task)),
            Member::Core(core) => Ok(self.tree.cores(path)?.contains(&core)),
        };
        let taken = |group: String| Error::Taken {
            what: match member {
                Member::Task(task) => format!("task {task}"),
                Member::Core(core) => format!("core {core}"),
            },
            group,
        };
        for group in self.tree.groups()? {
            let found = match is_in(&self.tree.group(&group)) {
                // Another program has removed the group meanwhile.
                Err(Error::Vanished { .. }) => false,
                found => found?,
            };
            if found {
                return match Name::parse(&group).is_some_and(|name| name.is_ours()) {
                    true => Ok(Some(group)),
                    false => Err(taken(group)),
                };
            }
        }
        for watch in self.tree.watches("")? {
            let path = self.tree.root.join("mon_groups").join(&watch);
            if path.is_dir() && is_in(&path)? && !Name::parse(&watch).is_some_and(|name| name.is_ours()) {
                return Err(taken(format!("mon_groups/{watch}")));
            }
        }
        Ok(None)
    }

    fn add_task(&self, changes: &mut Changes, group: &std::path::Path, task: i32) -> Result<(), Error> {
        let before = self.owner(Member::Task(task))?.unwrap_or_default();
        let text = format!("{task}\n");
        changes.write(
            &group.join("tasks"),
            &text,
            &self.tree.group(&before).join("tasks"),
            &text,
        )
    }

    fn add_cores(&self, changes: &mut Changes, group: &std::path::Path, cores: &[u32]) -> Result<(), Error> {
        for &core in cores {
            // Undo would have to return cores to another partition of this process.
            if let Some(owner) = self
                .owner(Member::Core(core))?
                .filter(|owner| self.tree.group(owner) != group)
            {
                return Err(Error::Taken {
                    what: format!("core {core}"),
                    group: owner,
                });
            }
        }
        let list = |cores: &[u32]| {
            let cores = cores.iter().map(u32::to_string).collect::<Vec<_>>();
            format!("{}\n", cores.join(","))
        };
        let old = self.tree.cores(group)?;
        let mut new = [&old, cores].concat();
        new.sort_unstable();
        new.dedup();
        let path = group.join("cpus_list");
        changes.write(&path, &list(&new), &path, &list(&old))
    }
}

impl Partition {
    fn path(&self) -> PathBuf {
        self.inner.tree.group(&self.name)
    }

    /// Drops the partition without removing a group.
    fn forget(mut self) {
        self.name.clear();
    }

    /// Returns the name of the group.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the ways of each of its caches, for code and data together.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn ways(&self) -> Result<BTreeMap<u32, u32>, Error> {
        let schemata = self.inner.tree.schemata(&self.name)?;
        let ways = |id: &u32| (*id, schemata.ways(self.level.name(), *id));
        Ok(self.caches.iter().map(ways).collect())
    }

    /// Returns the group's complete allocation.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn schemata(&self) -> Result<Schemata, Error> {
        self.inner.tree.schemata(&self.name)
    }

    /// Changes the partition's ways: [`Resctrl::assign`](crate::Resctrl::assign) for one partition.
    ///
    /// # Errors
    /// If the ways are not available. The partition keeps its ways then.
    pub fn resize(&self, place: WayChoice) -> Result<(), Error> {
        Partition::assign(&self.inner, &[(self, place)])
    }

    /// Limits the memory bandwidth of one cache's tasks, in per cent (in MiB/s if mounted with `mba_MBps`).
    ///
    /// # Errors
    /// If the machine has no MBA, or the kernel rejects the limit. The old limit is kept then.
    pub fn limit_bandwidth(&self, cache: u32, limit: u32) -> Result<(), Error> {
        let _locks = self.inner.lock()?;
        if self.inner.info.bandwidth.is_none() {
            return Err(Error::Unsupported {
                what: "memory bandwidth (MBA)".to_owned(),
            });
        }
        let mut lines = Schemata::default();
        lines.set("MB", cache, limit);
        self.inner.tree.write(&self.path().join("schemata"), &lines.to_text())
    }

    /// Adds tasks (threads) from the default group or from other partitions of this process. Threads that they start
    /// later belong to the partition as well. Their existing cache lines stay in place.
    ///
    /// # Errors
    /// If one of the tasks cannot be added. None is added then.
    pub fn add_tasks(&self, tasks: &[i32]) -> Result<(), Error> {
        let _locks = self.inner.lock()?;
        let path = self.path();
        self.inner.all_or_nothing(|changes| {
            tasks
                .iter()
                .try_for_each(|task| self.inner.add_task(changes, &path, *task))
        })
    }

    /// Adds cores. The partition applies to tasks on these cores that are in no other group.
    ///
    /// # Errors
    /// If one of the cores cannot be added. None is added then.
    pub fn add_cores(&self, cores: &[u32]) -> Result<(), Error> {
        let _locks = self.inner.lock()?;
        let path = self.path();
        self.inner
            .all_or_nothing(|changes| self.inner.add_cores(changes, &path, cores))
    }

    /// Returns the partition's tasks.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn tasks(&self) -> Result<Vec<i32>, Error> {
        self.inner.tree.tasks(&self.path())
    }

    /// Returns the partition's cores.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn cores(&self) -> Result<Vec<u32>, Error> {
        self.inner.tree.cores(&self.path())
    }

    /// Sets the sharing mode that the kernel enforces.
    ///
    /// # Errors
    /// [`Error::Refused`] if other groups have some of the ways in any cache: an exclusive group must own all ways of
    /// all its caches.
    pub fn set_mode(&self, mode: Mode) -> Result<(), Error> {
        let _locks = self.inner.lock()?;
        self.inner.tree.write(&self.path().join("mode"), &format!("{mode}\n"))
    }

    /// Returns the cache occupancy and memory traffic of the partition's tasks and cores, by cache.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub fn usage(&self) -> Result<BTreeMap<u32, CacheUse>, Error> {
        usage(&self.inner.tree, &self.path())
    }

    /// Monitors some of the partition's tasks separately.
    ///
    /// # Errors
    /// If the processor has no monitoring or no free RMID, or if a task is not in this partition.
    pub fn watch(&self, tasks: &[i32]) -> Result<MonitorGroup, Error> {
        MonitorGroup::new(&self.inner, &self.name, tasks)
    }

    /// Removes the partition and reports errors, which a drop ignores.
    ///
    /// # Errors
    /// If a resource cannot be returned. The next process that starts after this one has ended tries again.
    pub fn release(mut self) -> Result<(), Error> {
        self.remove()
    }

    /// Removes the partition and reports errors. If it still exists, the call can be repeated.
    ///
    /// # Errors
    /// If a resource cannot be returned.
    pub fn remove(&mut self) -> Result<(), Error> {
        if self.name.is_empty() {
            return Ok(());
        }
        let path = self.path();
        let _locks = self.inner.lock()?;
        self.inner.tree.remove(&path)?;
        self.name.clear();
        self.inner.settle()
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        // The next process that starts removes a group that remains.
        let _ = self.remove();
    }
}
