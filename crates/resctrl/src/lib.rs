//! Parts of the processor's caches for tasks and cores, through Linux' `resctrl` file system (CAT, CDP, MBA, CMT, MBM).
//!
//! ```no_run
//! use tailwater_resctrl::{Ask, Place, Resctrl, Settings};
//!
//! let resctrl = Resctrl::open(Settings::default())?;
//! // Four ways of the last-level cache of core 3, for this thread alone.
//! let cache = resctrl.cache_of_core(3, Default::default())?;
//! let mut ask = Ask::alone(4);
//! ask.caches = vec![cache];
//! ask.tasks = vec![std::process::id() as i32];
//! let partition = resctrl.partition(&ask)?;
//! partition.resize(Place::Ways(6))?;
//! println!("{:x?} {:?}", partition.ways()?, partition.usage()?);
//! drop(partition); // Everything is as it was.
//! # Ok::<(), tailwater_resctrl::Error>(())
//! ```
//!
//! - **Nothing of others' is taken**: tasks, cores and ways come from the default group, where everything is that nobody
//!   has put elsewhere. Ways into which hardware writes (DDIO) are left out unless asked for.
//! - **All or nothing**: an operation that fails takes back what it did.
//! - **Nothing stays**: what is dropped is gone, and what a killed process left is removed by the next
//!   [`Resctrl::open`] or [`Resctrl::sweep`]. What Tailwater mounted is unmounted by its last process.
//! - Changes are locked against other processes as the kernel's documentation asks for.
//!
//! Every process that opens this on a machine must see the same `/run/tailwater` and the same process numbers.

#![forbid(unsafe_code)]

mod ask;
mod changes;
mod default;
mod error;
mod info;
mod inner;
mod mask;
mod mount;
mod owner;
mod partition;
mod plan;
mod text;
mod tree;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use ask::{Ask, Mode, Place};
pub use error::Error;
pub use info::{BandwidthInfo, CacheInfo, Info, Level, MonitorInfo};
pub use mask::Mask;
pub use mount::Settings;
pub use partition::Partition;
pub use plan::Others;
pub use text::{Schemata, Use, parse_bit_usage};
pub use watch::{CacheUse, Reading, Watch};

use inner::Inner;
use mount::{User, could_be, find_or_mount, lock_state, unmount};
use owner::Name;
use text::parse_number;
use tree::Tree;

/// The mounted file system. Clones are the same.
#[derive(Debug, Clone)]
pub struct Resctrl {
    inner: Arc<Inner>,
}

impl Resctrl {
    /// Finds where it is mounted, or mounts it, and removes what killed processes left.
    ///
    /// # Errors
    /// [`Error::Absent`] where the kernel or the processor has none, [`Error::Denied`] without root.
    pub fn open(settings: Settings) -> Result<Resctrl, Error> {
        could_be(&settings)?;
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

    /// What can be controlled and watched here.
    pub fn info(&self) -> &Info {
        &self.inner.info
    }

    /// Where it is mounted.
    pub fn root(&self) -> &std::path::Path {
        &self.inner.tree.root
    }

    /// Removes groups of processes that are no more, and gives the default group back what they had. Tells their names.
    ///
    /// # Errors
    /// If something cannot be removed.
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

    /// Makes a partition. Hardware's ways (DDIO) are left out, unless asked for; nobody's tasks, cores or ways are taken
    /// but the default group's.
    ///
    /// # Errors
    /// If it cannot be had; then everything is as it was.
    pub fn partition(&self, ask: &Ask) -> Result<Partition, Error> {
        Partition::new(&self.inner, ask)
    }

    /// Gives partitions other ways, all at once: neighbours are shifted to make room. Where one goes by number, all
    /// of these count as free, the largest is placed first.
    ///
    /// # Errors
    /// If they do not all fit, or the kernel refuses; then everything is as it was.
    pub fn assign(&self, wanted: &[(&Partition, Place)]) -> Result<(), Error> {
        Partition::assign(&self.inner, wanted)
    }

    /// What the default group has: everything that nobody has put elsewhere.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn default_group(&self) -> Result<Schemata, Error> {
        self.inner.tree.schemata("")
    }

    /// How many ways of a cache a new partition could have at most, alone or shared; none, if fewer are free than a
    /// group must have.
    ///
    /// # Errors
    /// If it cannot be read, or there is no such cache, or it is not controlled.
    pub fn room(&self, level: Level, cache: u32, alone: bool) -> Result<u32, Error> {
        let _locks = self.inner.lock()?;
        let plan = self.inner.plan(level)?;
        plan.known(cache)?;
        Ok(plan.room(cache, alone))
    }

    /// Whether this thread, and those that it starts, are the default group's, so that they are in whichever
    /// partition has the core that they run on.
    ///
    /// # Errors
    /// [`Error::Taken`], if they are in another group.
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

    /// Who uses which way, by cache, the lowest way first. With CDP, of the code's masks. Kernels before 4.19 do not tell.
    ///
    /// # Errors
    /// If it cannot be read, or the level is not controlled.
    pub fn bit_usage(&self, level: Level) -> Result<BTreeMap<u32, Vec<Use>>, Error> {
        let Inner { tree, info, .. } = &*self.inner;
        let what = format!("ways of {} caches (CAT)", level.name());
        let info = info.cache(level).ok_or(Error::Unsupported { what })?;
        let name = &level.resources(info)[0];
        let path = tree.root.join("info").join(name).join("bit_usage");
        parse_bit_usage(&tree.read(&path)?, &path)
    }

    /// What groups have of a cache: all but the default group, and these partitions.
    ///
    /// # Errors
    /// If it cannot be read, or the level is not controlled.
    pub fn others(&self, level: Level, cache: u32, but: &[&Partition]) -> Result<Others, Error> {
        Ok(self.inner.plan(level)?.others(cache, but))
    }

    /// How much of each cache the default group's tasks have, and how much memory traffic they made; by cache.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn usage(&self) -> Result<BTreeMap<u32, CacheUse>, Error> {
        watch::usage(&self.inner.tree, &self.inner.tree.root)
    }

    /// Watches tasks of the default group by themselves.
    ///
    /// # Errors
    /// If the processor cannot watch (so many), or one of them is not in the default group.
    pub fn watch(&self, tasks: &[i32]) -> Result<Watch, Error> {
        Watch::new(&self.inner, "", tasks)
    }

    /// The number of the cache that a core uses.
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
            // The directory has files, too.
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
