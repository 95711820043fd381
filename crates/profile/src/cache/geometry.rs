//! This machine's caches, as described by the kernel.

use std::fs;
use std::path::Path;
use tailwater_dataplane::cores::{available, parse_kernel_list};

/// Data caches of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caches {
    /// Size of the last level, which cores share, bytes.
    pub last_bytes: u64,
    /// Number of its ways; 0 if unknown.
    pub last_ways: u32,
    /// Size of the core's private level in front of it, bytes.
    pub private_bytes: u64,
}

impl Caches {
    /// Reads a core's caches; `None` if the kernel does not describe two levels.
    pub fn of(core: usize) -> Option<Caches> {
        Caches::read(&folder(core))
    }

    fn read(folder: &str) -> Option<Caches> {
        let levels = levels(Path::new(folder));
        let last = levels.iter().max_by_key(|level| level.number)?;
        let private = levels.iter().filter(|level| level.number < last.number);
        let private = private.max_by_key(|level| level.number)?;
        Some(Caches {
            last_bytes: last.bytes,
            last_ways: last.ways,
            private_bytes: private.bytes,
        })
    }
}

/// Returns the other cores available to this process that share the last-level cache of `core`, in order; its
/// hyper-thread siblings last, since they share its arithmetic units and private caches, too.
pub fn sharing(core: usize) -> Vec<usize> {
    let levels = levels(Path::new(&folder(core)));
    let last = levels.into_iter().max_by_key(|level| level.number);
    let cores = last.map(|level| level.cores).unwrap_or_default();
    let available = available();
    let siblings = fs::read_to_string(format!(
        "/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
    ));
    let siblings = siblings.ok().and_then(|list| parse_kernel_list(&list));
    let others = cores.into_iter();
    let others = others.filter(|other| *other != core && available.contains(other));
    siblings_last(others.collect(), &siblings.unwrap_or_default())
}

fn siblings_last(mut cores: Vec<usize>, siblings: &[usize]) -> Vec<usize> {
    // Stable: the order remains otherwise.
    cores.sort_by_key(|core| siblings.contains(core));
    cores
}

fn folder(core: usize) -> String {
    format!("/sys/devices/system/cpu/cpu{core}/cache")
}

struct Level {
    number: u32,
    bytes: u64,
    ways: u32,
    cores: Vec<usize>,
}

/// Returns the caches in the kernel's directory of a core, without instruction caches.
fn levels(folder: &Path) -> Vec<Level> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let caches = entries.filter_map(|entry| {
        let text = |file: &str| {
            let text = fs::read_to_string(entry.path().join(file)).ok()?;
            Some(text.trim().to_owned())
        };
        if text("type")? == "Instruction" {
            return None;
        }
        let kibibytes: u64 = text("size")?.strip_suffix('K')?.parse().ok()?;
        Some(Level {
            number: text("level")?.parse().ok()?,
            bytes: kibibytes.checked_mul(1024).filter(|bytes| *bytes > 0)?,
            ways: text("ways_of_associativity")
                .and_then(|ways| ways.parse().ok())
                .unwrap_or(0),
            cores: text("shared_cpu_list")
                .and_then(|list| parse_kernel_list(&list))
                .unwrap_or_default(),
        })
    });
    caches.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        let folder = std::env::temp_dir().join(format!("tailwater-caches-{}", std::process::id()));
        for (index, level, kind, size, ways) in [
            (0, "1", "Data", "48K", "12"),
            (1, "1", "Instruction", "32K", "8"),
            (2, "2", "Unified", "1024K", "16"),
            (3, "3", "Unified", "32768K", "16"),
            (4, "4", "Unified", "lots", "16"),
        ] {
            let cache = folder.join(format!("index{index}"));
            fs::create_dir_all(&cache).unwrap();
            for (file, text) in [
                ("level", level),
                ("type", kind),
                ("size", size),
                ("ways_of_associativity", ways),
                ("shared_cpu_list", "0-1"),
            ] {
                fs::write(cache.join(file), format!("{text}\n")).unwrap();
            }
        }
        let caches = Caches::read(folder.to_str().unwrap());
        let levels = levels(&folder);
        fs::remove_dir_all(&folder).unwrap();
        let expected = Caches {
            last_bytes: 32 << 20,
            last_ways: 16,
            private_bytes: 1 << 20,
        };
        assert_eq!(caches, Some(expected));
        assert!(levels.iter().all(|level| level.cores == [0, 1]));
        assert_eq!(Caches::read("/nonexistent"), None);
    }

    #[test]
    fn a_hyper_thread_sibling_is_the_last_choice() {
        assert_eq!(siblings_last(vec![0, 1, 2, 3], &[0, 4]), [1, 2, 3, 0]);
        assert_eq!(siblings_last(vec![5], &[1, 5]), [5]);
        assert_eq!(siblings_last(vec![1, 3], &[]), [1, 3]);
    }

    #[test]
    fn a_core_does_not_share_with_itself() {
        for core in available() {
            assert!(!sharing(core).contains(&core));
        }
    }
}
