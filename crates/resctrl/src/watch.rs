//! How much of the caches tasks have, and how much memory traffic they made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Error;
use crate::inner::Inner;
use crate::owner::Name;
use crate::text::syntax;
use crate::tree::Tree;

/// What a counter says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Bytes.
    Bytes(u64),
    /// The processor does not know at the moment: read it again later.
    Unavailable,
    /// No counter is assigned to it (AMD, `mbm_event` mode).
    Unassigned,
    /// The processor says that it was asked for something that it does not have.
    Faulty,
}

/// Of one cache. `None` for what the processor does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// How much of the cache is theirs now (CMT).
    pub occupancy: Option<Reading>,
    /// Memory traffic since the group was made, at any rate growing (MBM).
    pub traffic: Option<Reading>,
    /// Of that, with this socket's memory.
    pub local_traffic: Option<Reading>,
}

/// Reads a group's counters, by cache. A processor whose memory is cut into clusters (SNC) is summed up by the kernel.
pub(crate) fn usage(tree: &Tree, group: &Path) -> Result<BTreeMap<u32, CacheUse>, Error> {
    let mut caches = BTreeMap::new();
    for directory in tree.monitored(group)? {
        let Some(id) = directory.strip_prefix("mon_L3_").and_then(|id| id.parse().ok()) else {
            continue;
        };
        let path = group.join("mon_data").join(&directory);
        let read = |event: &str| {
            let path = path.join(event);
            let text = tree.read_if_there(&path)?;
            text.map(|text| parse(&text, &path)).transpose()
        };
        let usage = CacheUse {
            occupancy: read("llc_occupancy")?,
            traffic: read("mbm_total_bytes")?,
            local_traffic: read("mbm_local_bytes")?,
        };
        caches.insert(id, usage);
    }
    Ok(caches)
}

fn parse(text: &str, path: &Path) -> Result<Reading, Error> {
    Ok(match text.trim() {
        "Unavailable" => Reading::Unavailable,
        "Unassigned" => Reading::Unassigned,
        "Error" => Reading::Faulty,
        number => {
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            let bytes = number.parse().ok().filter(|_| digits);
            Reading::Bytes(bytes.ok_or_else(|| syntax(path, 0, "a number of bytes", number))?)
        }
    })
}

/// Tasks that are watched by themselves. When dropped, they are no longer.
#[derive(Debug)]
pub struct Watch {
    inner: Arc<Inner>,
    path: PathBuf,
}

impl Watch {
    /// `parent` is the control group of the tasks; empty for the default group.
    pub(crate) fn new(inner: &Arc<Inner>, parent: &str, tasks: &[i32]) -> Result<Watch, Error> {
        let _locks = inner.lock()?;
        if inner.info.monitor.is_none() {
            let what = "monitoring of caches (CMT)".to_owned();
            return Err(Error::Unsupported { what });
        }
        let name = Name::ours(None)?.to_string();
        let path = inner.tree.group(parent).join("mon_groups").join(name);
        inner.all_or_nothing(|changes| {
            changes.make(&path)?;
            let add = |task: &i32| changes.write_new(&path.join("tasks"), &format!("{task}\n"));
            tasks.iter().try_for_each(add)
        })?;
        Ok(Watch {
            inner: inner.clone(),
            path,
        })
    }

    /// How much of each cache they have, and how much memory traffic they made; by cache.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn usage(&self) -> Result<BTreeMap<u32, CacheUse>, Error> {
        usage(&self.inner.tree, &self.path)
    }

    /// Tasks that are watched.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn tasks(&self) -> Result<Vec<i32>, Error> {
        self.inner.tree.tasks(&self.path)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // What stays is removed by whoever starts next.
        if let Ok(_locks) = self.inner.lock() {
            let _ = self.inner.tree.remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_say_bytes_or_why_not() {
        let read = |text| parse(text, Path::new("llc_occupancy"));
        assert_eq!(read("16234000\n").unwrap(), Reading::Bytes(16_234_000));
        assert_eq!(read("Unavailable\n").unwrap(), Reading::Unavailable);
        assert_eq!(read("Unassigned\n").unwrap(), Reading::Unassigned);
        assert_eq!(read("Error\n").unwrap(), Reading::Faulty);
        for wrong in ["", "-1", "+1", "1 2", "18446744073709551616"] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
