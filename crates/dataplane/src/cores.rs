//! CPU cores: availability, NUMA nodes, and pinning of threads.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeSet;
use std::fs;

/// Error of a core list or of pinning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoreError {
    /// Syntax error in a list.
    #[error("expected a list of cores such as 1 or 0,2-3, found {found:?}")]
    Syntax {
        /// The text in question.
        found: String,
    },
    /// A core is listed twice.
    #[error("core {core} is listed twice: each worker requires its own core")]
    Twice {
        /// The core.
        core: usize,
    },
    /// The process may not use the core.
    #[error("core {core} is not available: this process may use {available}")]
    NotAvailable {
        /// The core.
        core: usize,
        /// Cores it may use, as a list.
        available: String,
    },
    /// More cores than there can be queues.
    #[error("expected at most {limit} cores (queues of a port), found {cores}")]
    TooMany {
        /// Number of cores listed.
        cores: usize,
        /// Maximum number.
        limit: usize,
    },
    /// The kernel refused to pin the thread.
    #[error("core {core} cannot be used: {reason}")]
    Refused {
        /// The core.
        core: usize,
        /// The kernel's error message.
        reason: String,
    },
}

/// Maximum number of workers: one per RSS bucket.
const MAX_WORKERS: usize = tailwater_net::toeplitz::BUCKETS;

/// Cores that this process may use, in order.
pub fn available() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect();
    if cores.is_empty() { vec![0] } else { cores }
}

/// Cores that the kernel isolates from other programs (`isolcpus=`), in order. A process may be pinned to them although
/// they are not in its default affinity.
pub fn isolated() -> Vec<usize> {
    let text = fs::read_to_string("/sys/devices/system/cpu/isolated").unwrap_or_default();
    parse_kernel_list(&text).unwrap_or_default()
}

/// Upper bound of core numbers in a kernel list. No machine has more processors.
const MOST_CPUS: usize = 1 << 16;

/// Parses a CPU list in the kernel's format (`0-3,8`, empty for none) into ascending numbers.
pub fn parse_kernel_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = BTreeSet::new();
    let parts = text.split(',').map(str::trim);
    for part in parts.filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus.into_iter().collect())
}

/// NUMA node of a core, if known.
pub fn node_of(core: usize) -> Option<usize> {
    let folder = format!("/sys/devices/system/cpu/cpu{core}");
    let names = fs::read_dir(folder).ok()?.flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .find_map(|name| name.strip_prefix("node")?.parse().ok())
}

/// Default core: the last one, since the first ones serve interrupts.
pub fn default_core() -> usize {
    available().last().copied().unwrap_or(0)
}

/// Parses a list of cores such as `1`, `0,2` or `0-3,8`.
///
/// # Errors
/// If the syntax is wrong, or a core is listed twice or not available.
pub fn parse_list(text: &str) -> Result<Vec<usize>, CoreError> {
    let syntax = || CoreError::Syntax { found: text.to_owned() };
    let mut available = [available(), isolated()].concat();
    available.sort_unstable();
    available.dedup();
    let mut cores = Vec::new();
    let mut seen = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| syntax());
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(syntax());
        }
        for core in first..=last {
            if !available.contains(&core) {
                return Err(CoreError::NotAvailable {
                    core,
                    available: format_list(&available),
                });
            }
            if !seen.insert(core) {
                return Err(CoreError::Twice { core });
            }
            cores.push(core);
        }
    }
    match cores.len() {
        n if n > MAX_WORKERS => Err(CoreError::TooMany {
            cores: n,
            limit: MAX_WORKERS,
        }),
        _ => Ok(cores),
    }
}

/// Formats a list in short form: `0-3,8`.
pub fn format_list(cores: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &core in cores {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => parts.push((core, core)),
        }
    }
    let part = |(first, last): (usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.into_iter().map(part).collect::<Vec<_>>().join(",")
}

/// Pins the calling thread to a core.
///
/// # Errors
/// If the kernel refuses.
pub fn pin_to(core: usize) -> Result<(), CoreError> {
    let mut set = CpuSet::new();
    if core < CpuSet::MAX_CPU {
        set.set(core);
    }
    sched_setaffinity(None, &set).map_err(|error| CoreError::Refused {
        core,
        reason: error.to_string(),
    })
}

/// Lets the calling thread, and what it starts, run on these cores only. Cores that the kernel does not offer are left
/// out.
///
/// # Errors
/// If the kernel refuses, or offers none of them.
pub fn restrict_to(cores: &[usize]) -> Result<(), CoreError> {
    let mut set = CpuSet::new();
    let known = cores.iter().filter(|core| **core < CpuSet::MAX_CPU);
    known.for_each(|core| set.set(*core));
    sched_setaffinity(None, &set).map_err(|error| CoreError::Refused {
        core: cores.first().copied().unwrap_or(0),
        reason: error.to_string(),
    })
}

/// Guard that keeps the calling thread, and threads it starts and does not pin, off the workers' cores. Without other
/// cores it has no effect.
#[derive(Debug)]
pub struct AvoidCores {
    before: Option<CpuSet>,
}

impl AvoidCores {
    /// Excludes these cores.
    pub fn new(cores: &[usize]) -> AvoidCores {
        let mut others = CpuSet::new();
        let available = available();
        for &core in available.iter().filter(|core| !cores.contains(core)) {
            others.set(core);
        }
        let moved = others.count() > 0 && sched_setaffinity(None, &others).is_ok();
        let mut before = CpuSet::new();
        available.into_iter().for_each(|core| before.set(core));
        AvoidCores {
            before: moved.then_some(before),
        }
    }
}

impl Drop for AvoidCores {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The same affinity was valid a moment ago. If the kernel refuses it now, the kernel decides.
            let _ = sched_setaffinity(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_checked() {
        let all = available();
        let first = all[0];
        assert_eq!(parse_list(&first.to_string()), Ok(vec![first]));
        assert_eq!(parse_list(&format_list(&all)), Ok(all.clone()));
        for wrong in ["", "a", "1-", "-1", "3-2", "0,,1", "0;1"] {
            assert!(matches!(parse_list(wrong), Err(CoreError::Syntax { .. })), "{wrong}");
        }
        assert_eq!(
            parse_list(&format!("{first},{first}")),
            Err(CoreError::Twice { core: first })
        );
        // A range of absurd length stops at its first unavailable core.
        let error = parse_list("0-99999999999").unwrap_err();
        assert!(matches!(error, CoreError::NotAvailable { .. }));
    }

    #[test]
    fn the_kernels_lists_are_read() {
        for (text, cpus) in [
            ("", &[][..]),
            ("3\n", &[3]),
            ("0-2,5,7-8", &[0, 1, 2, 5, 7, 8]),
            ("4,2,2-3", &[2, 3, 4]),
        ] {
            assert_eq!(parse_kernel_list(text).as_deref(), Some(cpus), "{text}");
        }
        for wrong in ["a", "1-", "3-2", "1;2", "0-99999999999999", "0-65536"] {
            assert_eq!(parse_kernel_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn lists_are_written_in_short() {
        assert_eq!(format_list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }

    #[test]
    fn other_threads_keep_off_and_come_back() {
        std::thread::spawn(|| {
            let before = available();
            let guard = AvoidCores::new(&before[..1]);
            let during = available();
            assert!(before.len() == 1 || during == before[1..]);
            drop(guard);
            assert_eq!(available(), before);
            let _nowhere_to_go = AvoidCores::new(&before);
            assert_eq!(available(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_stays_on_its_core() {
        let core = default_core();
        std::thread::spawn(move || {
            pin_to(core).unwrap();
            assert_eq!(available(), [core]);
        })
        .join()
        .unwrap();
        assert!(matches!(pin_to(1_000_000), Err(CoreError::Refused { .. })));
    }
}
