//! Monitoring of cache occupancy and memory traffic.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Error;
use crate::inner::Inner;
use crate::owner::Name;
use crate::text::syntax;
use crate::tree::Tree;

/// Value of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Bytes.
    Bytes(u64),
    /// The value is temporarily unavailable: read it again later.
    Unavailable,
    /// No counter is assigned (AMD, `mbm_event` mode).
    Unassigned,
    /// The processor reports that the counter does not exist.
    Faulty,
}

/// Use of one cache. A field is `None` if the processor does not count it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Current cache occupancy (CMT).
    pub occupancy: Option<Reading>,
    /// Memory traffic since the group was created (MBM). It only increases.
    pub traffic: Option<Reading>,
    /// Part of that traffic to the local socket's memory.
    pub local_traffic: Option<Reading>,
}

/// Reads a group's counters, by cache. With sub-NUMA clustering (SNC) the kernel sums them up.
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

/// Separate monitoring of some tasks. It ends when dropped.
#[derive(Debug)]
pub struct MonitorGroup {
    inner: Arc<Inner>,
    path: PathBuf,
}

impl MonitorGroup {
    /// Starts monitoring. `parent` is the tasks' control group, empty for the default group.
    pub(crate) fn new(inner: &Arc<Inner>, parent: &str, tasks: &[i32]) -> Result<MonitorGroup, Error> {
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
        Ok(MonitorGroup {
            inner: inner.clone(),
            path,
        })
    }

    /// Returns the cache occupancy and memory traffic of the tasks, by cache.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub fn usage(&self) -> Result<BTreeMap<u32, CacheUse>, Error> {
        usage(&self.inner.tree, &self.path)
    }

    /// Returns the monitored tasks.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn tasks(&self) -> Result<Vec<i32>, Error> {
        self.inner.tree.tasks(&self.path)
    }
}

impl Drop for MonitorGroup {
    fn drop(&mut self) {
        // The next process that starts removes a group that remains.
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
