//! Cache partitions for tasks and cores, through Linux' `resctrl` file system (CAT, CDP, MBA, CMT, MBM).
//!
//! ```no_run
//! use tailwater_resctrl::{PartitionRequest, Resctrl, Settings, WayChoice};
//!
//! let resctrl = Resctrl::open(Settings::default())?;
//! // Four ways of the last-level cache of core 3, for this thread alone.
//! let cache = resctrl.cache_of_core(3, Default::default())?;
//! let mut request = PartitionRequest::exclusive(4);
//! request.caches = vec![cache];
//! request.tasks = vec![std::process::id() as i32];
//! let partition = resctrl.partition(&request)?;
//! partition.resize(WayChoice::Ways(6))?;
//! println!("{:x?} {:?}", partition.ways()?, partition.usage()?);
//! drop(partition); // Everything is as it was.
//! # Ok::<(), tailwater_resctrl::Error>(())
//! ```
//!
//! - **Foreign resources are never taken**: tasks, cores and ways come from the default group, which holds everything
//!   that no program has placed elsewhere. Ways into which hardware writes (DDIO) are excluded unless requested.
//! - **Operations are atomic**: an operation that fails undoes its changes.
//! - **Nothing is left behind**: dropped objects are removed, and the groups of a killed process are removed by the
//!   next [`Resctrl::open`] or [`Resctrl::sweep`]. If Tailwater mounted the file system, its last process unmounts it.
//! - Changes are locked against other processes as the kernel's documentation specifies.
//!
//! All processes that use this crate on a machine must see the same `/run/tailwater` and the same PID namespace.

#![forbid(unsafe_code)]

mod changes;
mod default;
mod error;
mod info;
mod inner;
mod mask;
mod monitor_group;
mod mount;
mod owner;
mod partition;
mod plan;
mod request;
mod text;
mod tree;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use error::Error;
pub use info::{BandwidthInfo, CacheInfo, Info, Level, MonitorInfo};
pub use mask::Mask;
pub use monitor_group::{CacheUse, MonitorGroup, Reading};
pub use mount::Settings;
pub use partition::Partition;
pub use plan::CacheAllocation;
pub use request::{Mode, PartitionRequest, WayChoice};
pub use text::{Schemata, Use, parse_bit_usage};

use inner::Inner;
use mount::{User, check_available, find_or_mount, lock_state, unmount};
use owner::Name;
use text::parse_number;
use tree::Tree;

/// Handle to the mounted file system. Clones share it.
#[derive(Debug, Clone)]
pub struct Resctrl {
    inner: Arc<Inner>,
}

impl Resctrl {
    /// Finds the mount point, or mounts the file system, and removes the groups of killed processes.
    ///
    /// # Errors
    /// [`Error::Absent`] if the kernel or the processor has no `resctrl`, [`Error::Denied`] without root.
    pub fn open(settings: Settings) -> Result<Resctrl, Error> {
        check_available(&settings)?;
        let state = lock_state(&settings)?;
        let tree = Tree {
            root: find_or_mount(&settings)?,
        };
        let user = User::new(&settings)?;
        let info = match Info::read(&tree) {
            Ok(info) => info,
            Err(error) => {
                let _ = unmount(&settings, &tree.root, &user);
                return Err(error);
            }
        };
        drop(state);
        let resctrl = Resctrl {
            inner: Arc::new(Inner {
                settings,
                tree,
                info,
                user,
            }),
        };
        resctrl.sweep()?;
        Ok(resctrl)
    }

    /// Returns the resources that can be controlled and monitored.
    pub fn info(&self) -> &Info {
        &self.inner.info
    }

    /// Returns the mount point.
    pub fn root(&self) -> &std::path::Path {
        &self.inner.tree.root
    }

    /// Removes the groups of dead processes and returns their ways to the default group. Returns the names of the
    /// removed groups.
    ///
    /// # Errors
    /// If a group cannot be removed.
    pub fn sweep(&self) -> Result<Vec<String>, Error> {
        let Inner { tree, .. } = &*self.inner;
        let _locks = self.inner.lock()?;
        let is_dead = |name: &String| Name::parse(name).is_some_and(|name| name.is_dead());
        let mut swept = Vec::new();
        let groups = tree.groups()?;
        for group in groups.iter().filter(|group| is_dead(group)) {
            tree.remove(&tree.group(group))?;
            swept.push(group.clone());
        }
        let left = groups.iter().filter(|group| !is_dead(group)).map(String::as_str);
        for parent in left.chain([""]) {
            for watch in tree.watches(parent)?.into_iter().filter(is_dead) {
                tree.remove(&tree.group(parent).join("mon_groups").join(&watch))?;
                swept.push(watch);
            }
        }
        self.inner.settle()?;
        Ok(swept)
    }

    /// Creates a partition. Ways into which hardware writes (DDIO) are excluded unless requested. Tasks, cores and ways
    /// are taken from the default group only.
    ///
    /// # Errors
    /// If the partition cannot be created. All changes are undone then.
    pub fn partition(&self, ask: &PartitionRequest) -> Result<Partition, Error> {
        Partition::new(&self.inner, ask)
    }

    /// Changes the ways of several partitions at once, so that adjacent ones can be moved to make room. For
    /// [`WayChoice::Ways`], the ways of all these partitions count as free, and the largest partition is placed first.
    ///
    /// # Errors
    /// If the partitions do not all fit, or the kernel rejects a change. All changes are undone then.
    pub fn assign(&self, wanted: &[(&Partition, WayChoice)]) -> Result<(), Error> {
        Partition::assign(&self.inner, wanted)
    }

    /// Returns the allocation of the default group, to which all tasks and cores in no other group belong.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn default_group(&self) -> Result<Schemata, Error> {
        self.inner.tree.schemata("")
    }

    /// Returns the maximum number of ways of a cache that a new partition could get, `alone` or shared. Returns 0 if
    /// fewer are free than a group requires.
    ///
    /// # Errors
    /// If the allocation cannot be read, if there is no such cache, or if it is not controlled.
    pub fn room(&self, level: Level, cache: u32, alone: bool) -> Result<u32, Error> {
        let _locks = self.inner.lock()?;
        let plan = self.inner.plan(level)?;
        plan.known(cache)?;
        Ok(plan.room(cache, alone))
    }

    /// Checks that this thread belongs to the default group. Then the thread, and those it starts, use the partition of
    /// the core on which they run.
    ///
    /// # Errors
    /// [`Error::Taken`] if the thread is in another group.
    pub fn follows_cores(&self) -> Result<(), Error> {
        let task = rustix::thread::gettid().as_raw_nonzero().get();
        match self.inner.owner(partition::Member::Task(task))? {
            Some(group) => Err(Error::Taken {
                what: format!("task {task}"),
                group,
            }),
            None => Ok(()),
        }
    }

    /// Returns the use of each way, by cache, the lowest way first. With CDP, the result is that of the code masks.
    /// Requires Linux 4.19.
    ///
    /// # Errors
    /// If the file cannot be read, or the level is not controlled.
    pub fn bit_usage(&self, level: Level) -> Result<BTreeMap<u32, Vec<Use>>, Error> {
        let Inner { tree, info, .. } = &*self.inner;
        let what = format!("ways of {} caches (CAT)", level.name());
        let info = info.cache(level).ok_or(Error::Unsupported { what })?;
        let name = &level.resources(info)[0];
        let path = tree.root.join("info").join(name).join("bit_usage");
        parse_bit_usage(&tree.read(&path)?, &path)
    }

    /// Returns the ways and names of all groups of a cache except the default group and the partitions in `but`.
    ///
    /// # Errors
    /// If the groups cannot be read, or the level is not controlled.
    pub fn other_allocations(&self, level: Level, cache: u32, but: &[&Partition]) -> Result<CacheAllocation, Error> {
        Ok(self.inner.plan(level)?.other_allocations(cache, but))
    }

    /// Returns the cache occupancy and memory traffic of the default group's tasks, by cache.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub fn usage(&self) -> Result<BTreeMap<u32, CacheUse>, Error> {
        monitor_group::usage(&self.inner.tree, &self.inner.tree.root)
    }

    /// Monitors tasks of the default group separately.
    ///
    /// # Errors
    /// If the processor has no monitoring or no free RMID, or if a task is not in the default group.
    pub fn watch(&self, tasks: &[i32]) -> Result<MonitorGroup, Error> {
        MonitorGroup::new(&self.inner, "", tasks)
    }

    /// Returns the identifier of the cache that a core uses.
    ///
    /// # Errors
    /// [`Error::File`] if there is no such core, [`Error::Unsupported`] if it has no such cache.
    pub fn cache_of_core(&self, core: u32, level: Level) -> Result<u32, Error> {
        let caches = self.inner.settings.cores.join(format!("cpu{core}/cache"));
        let file = |error| Error::File {
            path: caches.clone(),
            error,
        };
        for entry in caches.read_dir().map_err(file)? {
            let path = entry.map_err(file)?.path();
            let number = |name: &str| {
                let path = path.join(name);
                let text = tree::read(&path).map_err(|error| Error::File {
                    path: path.clone(),
                    error,
                })?;
                parse_number(&text, 10, &path)
            };
            // The directory also contains files.
            if !path.join("level").exists() {
                continue;
            }
            let wanted = match level {
                Level::L2 => 2,
                Level::L3 => 3,
            };
            if number("level")? == wanted {
                return number("id");
            }
        }
        Err(Error::Unsupported {
            what: format!("an {} cache of core {core}", level.name()),
        })
    }
}
