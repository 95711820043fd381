//! Model of the kernel's `resctrl` for an imaginary machine, after its documentation
//! (Documentation/filesystems/resctrl.rst) and its behaviour. It is independent of the tested crate.

mod show;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use libc::{EBUSY, EEXIST, EINVAL, ENODEV, ENOENT, ENOSPC, EPERM};

/// Ways of one level's caches.
#[derive(Clone)]
pub struct Ways {
    pub name: &'static str,
    pub domains: Vec<u32>,
    pub length: u32,
    pub min: u32,
    pub shareable: u32,
    pub sparse: bool,
    pub closids: u32,
    /// Size of one cache in bytes.
    pub size: u32,
    /// Set if code and data are separate.
    pub cdp: bool,
}

/// Parameters of a machine.
#[derive(Clone)]
pub struct Machine {
    pub caches: Vec<Ways>,
    /// Limits on memory bandwidth: number of classes, lowest limit, step.
    pub memory: Option<(u32, u32, u32)>,
    pub rmids: Option<u32>,
    pub cores: u32,
}

impl Machine {
    /// Returns a machine with two sockets and 20 ways, of which hardware shares the upper two.
    pub fn xeon() -> Machine {
        let l3 = Ways {
            name: "L3",
            domains: vec![0, 1],
            length: 20,
            min: 1,
            shareable: 0xc0000,
            sparse: false,
            closids: 16,
            size: 20 << 20,
            cdp: false,
        };
        Machine {
            caches: vec![l3],
            memory: Some((8, 10, 10)),
            rmids: Some(32),
            cores: 8,
        }
    }
}

impl Machine {
    /// Returns a machine with the cache of [`xeon`](Machine::xeon), as the last-level cache that this machine's `core`
    /// uses. The cache has the kernel's identifier, and the number of cores is this machine's. Returns `None` and
    /// prints the reason if the kernel lists no such cache.
    pub fn here(core: usize) -> Option<Machine> {
        let cores = Path::new("/sys/devices/system/cpu");
        let caches = fs::read_dir(cores.join(format!("cpu{core}/cache")));
        let cache = caches.into_iter().flatten().flatten().find_map(|entry| {
            let read = |name: &str| {
                let text = fs::read_to_string(entry.path().join(name)).ok()?;
                text.trim().parse::<u32>().ok()
            };
            read("id").filter(|_| read("level") == Some(3))
        });
        let Some(cache) = cache else {
            println!("skipped: the kernel reports no last-level cache");
            return None;
        };
        let numbers = fs::read_dir(cores).into_iter().flatten().flatten();
        let numbers = numbers.filter_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix("cpu")?.parse::<u32>().ok()
        });
        let mut machine = Machine::xeon();
        machine.caches[0].domains = vec![cache];
        machine.cores = numbers.max().map_or(1, |last| last + 1);
        Some(machine)
    }
}

/// One line of `schemata`.
struct Schema {
    name: String,
    /// Index of the cache; `None` for memory.
    cache: Option<usize>,
    /// Index of the data schema for code, and vice versa.
    peer: Option<usize>,
    domains: Vec<u32>,
    closids: u32,
    full: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Shareable,
    Exclusive,
    Locksetup,
}

pub struct Mon {
    pub name: String,
    rmid: u32,
    pub tasks: BTreeSet<i32>,
    pub cores: BTreeSet<u32>,
}

pub struct Group {
    /// Name; empty for the default group.
    pub name: String,
    pub closid: u32,
    rmid: u32,
    pub mode: Mode,
    /// Tasks. Not stored for the default group, whose tasks are those in no other group.
    pub tasks: BTreeSet<i32>,
    pub cores: BTreeSet<u32>,
    pub mons: Vec<Mon>,
}

pub struct Kernel {
    machine: Machine,
    schemas: Vec<Schema>,
    /// Hardware settings by schema, domain and class. They survive the removal of a group.
    values: BTreeMap<(usize, u32, u32), u32>,
    pub groups: Vec<Group>,
    free_closids: BTreeSet<u32>,
    free_rmids: BTreeSet<u32>,
    /// Freed RMIDs that lines in the cache still carry.
    limbo: BTreeSet<u32>,
    /// Set if freed RMIDs go to limbo.
    pub cache_stays_full: bool,
    status: String,
    /// Values of counters by path; all others are 0.
    pub counters: BTreeMap<String, String>,
}

type Errno = i32;

/// Kind of a path.
pub enum Node {
    Directory(Vec<String>),
    /// A file; `true` if it is writable.
    File(bool),
}

impl Kernel {
    pub fn new(machine: Machine) -> Kernel {
        let mut schemas = Vec::new();
        for (index, cache) in machine.caches.iter().enumerate() {
            let full = u32::MAX >> (32 - cache.length);
            let parts: &[&str] = if cache.cdp { &["CODE", "DATA"] } else { &[""] };
            for (part, suffix) in parts.iter().enumerate() {
                schemas.push(Schema {
                    name: format!("{}{suffix}", cache.name),
                    cache: Some(index),
                    peer: cache.cdp.then_some(schemas.len() + 1 - 2 * part),
                    domains: cache.domains.clone(),
                    // With CDP, each class takes two hardware classes.
                    closids: if cache.cdp { cache.closids / 2 } else { cache.closids },
                    full,
                });
            }
        }
        if let Some((closids, ..)) = machine.memory {
            let domains = machine.caches[0].domains.clone();
            schemas.push(Schema {
                name: "MB".to_owned(),
                cache: None,
                peer: None,
                domains,
                closids,
                full: 100,
            });
        }
        let closids = schemas.iter().map(|schema| schema.closids).min().unwrap_or(0);
        let mut values = BTreeMap::new();
        for (index, schema) in schemas.iter().enumerate() {
            for &domain in &schema.domains {
                (0..closids).for_each(|closid| _ = values.insert((index, domain, closid), schema.full));
            }
        }
        let default = Group {
            name: String::new(),
            closid: 0,
            rmid: 0,
            mode: Mode::Shareable,
            tasks: BTreeSet::new(),
            cores: (0..machine.cores).collect(),
            mons: Vec::new(),
        };
        Kernel {
            free_closids: (1..closids).collect(),
            free_rmids: (1..machine.rmids.unwrap_or(0)).collect(),
            limbo: BTreeSet::new(),
            cache_stays_full: false,
            schemas,
            values,
            groups: vec![default],
            status: String::new(),
            counters: BTreeMap::new(),
            machine,
        }
    }

    fn say<T>(&mut self, errno: Errno, said: &str) -> Result<T, Errno> {
        self.status += said;
        self.status.push('\n');
        Err(errno)
    }

    fn group(&self, name: &str) -> Option<usize> {
        self.groups.iter().position(|group| group.name == name)
    }

    /// Splits a path into a group, one of its monitoring groups, and the remaining path.
    fn place<'a>(&self, path: &'a str) -> Option<(usize, Option<usize>, &'a str)> {
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        let named = self.group(first).filter(|_| !first.is_empty());
        let (group, inner) = named.map_or((0, path), |group| (group, rest));
        let Some(below) = inner.strip_prefix("mon_groups/") else {
            return Some((group, None, inner));
        };
        let (name, rest) = below.split_once('/').unwrap_or((below, ""));
        let mon = self.groups[group].mons.iter().position(|mon| mon.name == name)?;
        Some((group, Some(mon), rest))
    }

    fn value(&self, schema: usize, domain: u32, closid: u32) -> u32 {
        self.values[&(schema, domain, closid)]
    }

    pub fn mkdir(&mut self, path: &str) -> Result<(), Errno> {
        if path.contains('\n') {
            return Err(EINVAL);
        }
        if self.node(path).is_some() {
            return Err(EEXIST);
        }
        let Some((parent, name)) = path.rsplit_once('/') else {
            return match self.schemas.is_empty() {
                true => Err(EPERM),
                false => self.make_group(path),
            };
        };
        self.status.clear();
        let group = match parent
            .strip_suffix("mon_groups")
            .map(|group| group.trim_end_matches('/'))
        {
            Some(group) if name != "mon_groups" => self.group(group).ok_or(ENODEV)?,
            _ => return Err(EPERM),
        };
        let rmid = self.take_rmid()?;
        let mon = Mon {
            name: name.to_owned(),
            rmid,
            tasks: BTreeSet::new(),
            cores: BTreeSet::new(),
        };
        self.groups[group].mons.push(mon);
        Ok(())
    }

    fn take_rmid(&mut self) -> Result<u32, Errno> {
        if self.machine.rmids.is_none() {
            return Ok(0);
        }
        match self.free_rmids.pop_first() {
            Some(rmid) => Ok(rmid),
            None if self.limbo.is_empty() => self.say(ENOSPC, "Out of RMIDs"),
            None => self.say(EBUSY, "Out of RMIDs"),
        }
    }

    fn free_rmid(&mut self, rmid: u32) {
        match self.cache_stays_full {
            true => self.limbo.insert(rmid),
            false => self.free_rmids.insert(rmid),
        };
    }

    fn make_group(&mut self, name: &str) -> Result<(), Errno> {
        self.status.clear();
        let Some(closid) = self.free_closids.pop_first() else {
            return self.say(ENOSPC, "Out of CLOSIDs");
        };
        let rmid = match self.take_rmid() {
            Ok(rmid) => rmid,
            Err(errno) => {
                self.free_closids.insert(closid);
                return Err(errno);
            }
        };
        let mut initial = BTreeMap::new();
        for (index, schema) in self.schemas.iter().enumerate() {
            for &domain in &schema.domains {
                let Some(cache) = schema.cache.map(|cache| &self.machine.caches[cache]) else {
                    initial.insert((index, domain, closid), schema.full);
                    continue;
                };
                // "All shareable and unused bits": the first adjacent ones.
                let (mut used, mut mask) = (cache.shareable, cache.shareable);
                for group in &self.groups {
                    let both = [Some(index), schema.peer].into_iter().flatten();
                    let has = both.fold(0, |all, schema| all | self.value(schema, domain, group.closid));
                    used |= has;
                    if group.mode == Mode::Shareable {
                        mask |= has;
                    }
                }
                mask |= !used & schema.full;
                if mask != 0 {
                    let first = mask.trailing_zeros();
                    let row = (mask >> first).trailing_ones();
                    mask &= (u64::MAX >> (64 - row) << first) as u32;
                }
                if mask.count_ones() < cache.min {
                    let said = format!("No space on {}:{domain}", schema.name);
                    self.free_closids.insert(closid);
                    self.free_rmid(rmid);
                    return self.say(ENOSPC, &said);
                }
                initial.insert((index, domain, closid), mask);
            }
        }
        self.values.extend(initial);
        self.groups.push(Group {
            name: name.to_owned(),
            closid,
            rmid,
            mode: Mode::Shareable,
            tasks: BTreeSet::new(),
            cores: BTreeSet::new(),
            mons: Vec::new(),
        });
        Ok(())
    }

    pub fn rmdir(&mut self, path: &str) -> Result<(), Errno> {
        let (group, mon, inner) = self.place(path).ok_or(ENOENT)?;
        if !inner.is_empty() {
            return if self.node(path).is_some() {
                Err(EPERM)
            } else {
                Err(ENOENT)
            };
        }
        match mon {
            Some(mon) => {
                let gone = self.groups[group].mons.remove(mon);
                self.free_rmid(gone.rmid);
            }
            None if group == 0 => return Err(EPERM),
            None => {
                let gone = self.groups.remove(group);
                self.groups[0].cores.extend(gone.cores);
                self.free_closids.insert(gone.closid);
                self.free_rmid(gone.rmid);
                gone.mons.into_iter().for_each(|mon| self.free_rmid(mon.rmid));
            }
        }
        Ok(())
    }
}
