//! Choice of a cache's ways, given the allocation of the other groups.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::info::{CacheInfo, Level};
use crate::inner::Inner;
use crate::mask::{Mask, find_free, longest};
use crate::owner::Name;
use crate::partition::Partition;
use crate::request::WayChoice;
use crate::text::Schemata;

/// Ways and names of the groups of a cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheAllocation {
    /// Union of their ways, as bits. No other group can use these exclusively.
    pub ways: u32,
    /// Names of the groups, including those without ways of this cache. Each uses a class of service.
    pub groups: Vec<String>,
}

/// Current state of a group.
pub(crate) struct Group {
    pub name: String,
    pub schemata: Schemata,
    pub exclusive: bool,
}

impl Inner {
    fn groups(&self) -> Result<Vec<Group>, Error> {
        let groups = self.tree.groups()?.into_iter();
        groups
            .map(|name| {
                let mode = self.tree.read_if_there(&self.tree.group(&name).join("mode"))?;
                Ok(Group {
                    schemata: self.tree.schemata(&name)?,
                    exclusive: mode.is_some_and(|mode| mode.trim() != "shareable"),
                    name,
                })
            })
            .collect()
    }

    fn cache_info(&self, level: Level) -> Result<&CacheInfo, Error> {
        let what = || format!("ways of {} caches (CAT)", level.name());
        self.info
            .cache(level)
            .ok_or_else(|| Error::Unsupported { what: what() })
    }

    pub(crate) fn plan(&self, level: Level) -> Result<Plan<'_>, Error> {
        Ok(Plan {
            level,
            info: self.cache_info(level)?,
            groups: self.groups()?,
            default: self.tree.schemata("")?,
        })
    }
}

/// Current allocation of one level, the basis for planned changes.
pub(crate) struct Plan<'a> {
    pub level: Level,
    pub info: &'a CacheInfo,
    pub groups: Vec<Group>,
    pub default: Schemata,
}

impl Plan<'_> {
    /// Returns the identifiers of all caches of the level.
    pub(crate) fn caches(&self) -> Vec<u32> {
        let resource = &self.level.resources(self.info)[0];
        let caches = self.default.resources.get(resource);
        caches.into_iter().flatten().map(|(id, _)| *id).collect()
    }

    /// Checks that a cache exists.
    pub(crate) fn known(&self, id: u32) -> Result<(), Error> {
        let known = self.caches();
        match known.contains(&id) {
            true => Ok(()),
            false => Err(Error::NoCache {
                resource: self.level.name().to_owned(),
                id,
                known,
            }),
        }
    }

    /// Returns the maximum number of ways of a cache that a new group could get.
    pub(crate) fn room(&self, id: u32, alone: bool) -> u32 {
        let fits = |ways: &u32| self.choose(id, WayChoice::Ways(*ways), alone, &[], 0).is_ok();
        (1..=32).rev().find(fits).unwrap_or(0)
    }

    /// Returns the allocation of all groups of a cache, without the partitions in `but`.
    pub(crate) fn other_allocations(&self, id: u32, but: &[&Partition]) -> CacheAllocation {
        let mut others = CacheAllocation::default();
        let ours = |group: &&Group| but.iter().any(|partition| partition.name() == group.name);
        for group in self.groups.iter().filter(|group| !ours(group)) {
            let part = Name::parse(&group.name).and_then(|name| name.part);
            // A partition of other caches does not restrict this one.
            if part.is_none_or(|part| part.is_of(self.level.name(), id)) {
                others.ways |= group.schemata.ways(self.level.name(), id);
            }
            others.groups.push(group.name.clone());
        }
        others
    }

    /// Chooses ways of one cache. The ways of the groups in `moving` count as free, those in `new` as occupied.
    pub(crate) fn choose(
        &self,
        id: u32,
        want: WayChoice,
        alone: bool,
        moving: &[&str],
        new: u32,
    ) -> Result<Mask, Error> {
        let level = self.level.name();
        let (mut held, mut holders) = (new, Vec::new());
        for group in self
            .groups
            .iter()
            .filter(|group| !moving.contains(&group.name.as_str()))
        {
            let part = Name::parse(&group.name).and_then(|name| name.part);
            // A partition of other caches does not restrict this one.
            if part.as_ref().is_some_and(|part| !part.is_of(level, id)) {
                continue;
            }
            let ways = group.schemata.ways(level, id);
            let apart = group.exclusive || part.is_some_and(|part| part.alone);
            if ways != 0 && (alone || apart) {
                held |= ways;
                holders.push(group.name.clone());
            }
        }
        let (min, all) = (self.info.min_ways.max(1), self.info.mask);
        let bad = |mask: u32, why: String| Error::BadMask {
            resource: level.to_owned(),
            mask,
            why,
        };
        let default = self.default.ways(level, id) & !new;
        // The default group must keep a valid mask.
        let leaves = |mask: Mask| {
            let touched = alone && default & mask.bits() != 0;
            !touched || longest(default & !mask.bits()).is_some_and(|left| left.ways() >= min)
        };
        let free = all & !held & !self.info.shareable;
        let find = |ways| find_free(free, ways, default).filter(|mask| leaves(*mask));
        let no_room = |asked| Error::NoRoom {
            resource: level.to_owned(),
            id,
            asked,
            free: (1..=32).rev().find(|ways| find(*ways).is_some()).unwrap_or(0),
            holders: holders.clone(),
        };
        match want {
            WayChoice::Ways(ways) if ways < min => {
                let mask = Mask::new(0, ways).map_or(0, Mask::bits);
                Err(bad(mask, format!("a group has at least {min} ways")))
            }
            WayChoice::Ways(ways) => find(ways).ok_or_else(|| no_room(ways)),
            WayChoice::Exactly(mask) if mask.bits() & !all != 0 => {
                Err(bad(mask.bits(), format!("the cache has the ways {all:x}")))
            }
            WayChoice::Exactly(mask) if mask.ways() < min => {
                Err(bad(mask.bits(), format!("a group has at least {min} ways")))
            }
            WayChoice::Exactly(mask) if mask.bits() & held != 0 || !leaves(mask) => Err(no_room(mask.ways())),
            WayChoice::Exactly(mask) => Ok(mask),
        }
    }

    /// Returns the `schemata` lines for these ways.
    pub(crate) fn lines(&self, masks: &BTreeMap<u32, u32>) -> Schemata {
        let mut schemata = Schemata::default();
        for resource in self.level.resources(self.info) {
            masks.iter().for_each(|(id, mask)| schemata.set(&resource, *id, *mask));
        }
        schemata
    }
}
