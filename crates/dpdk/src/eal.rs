//! DPDK's environment (EAL): started once in a process, and never stopped.
//!
//! One of the few modules with `unsafe` code: it starts DPDK, and tells it of threads.

use crate::error::{DpdkError, last_lines};
use crate::ffi;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// What pages packet buffers lie in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Huge ones if enough are free, else ordinary ones; but NICs need huge ones.
    #[default]
    IfThere,
    /// Ordinary ones.
    No,
}

/// How the environment is started.
#[derive(Clone, Debug, Default)]
pub struct EalConfig {
    /// What pages buffers lie in.
    pub huge_pages: HugePages,
    /// Memory for buffers, in bytes.
    pub memory: u64,
    /// The PCI devices that DPDK may touch: no others, and none if there is none here.
    pub pci: Vec<String>,
    /// Drivers to load that lie elsewhere than DPDK's own.
    pub drivers: Vec<PathBuf>,
}

/// DPDK's environment, which is running.
#[derive(Clone, Copy, Debug)]
pub struct Eal {
    huge_pages: bool,
}

/// The environment and the PCI devices it was started with, or why it did not start.
type Outcome = Result<(Eal, Vec<String>), String>;

/// What came of the start: it cannot be tried twice.
static STARTED: Mutex<Option<Outcome>> = Mutex::new(None);

/// Memory that DPDK takes besides buffers, in MiB.
const BESIDES: u64 = 96;

impl Eal {
    /// Starts the environment, or returns the one that runs if it will do.
    ///
    /// # Errors
    /// If it does not start, or runs without the devices that are wanted now.
    pub fn start(config: &EalConfig) -> Result<Eal, DpdkError> {
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        let started = match &mut *started {
            Some(started) => started,
            none => {
                let huge_pages = decide(config)?;
                let outcome = init(&arguments(config, huge_pages));
                none.insert(outcome.map(|()| (Eal { huge_pages }, config.pci.clone())))
            }
        };
        match started {
            Err(said) => Err(DpdkError::Eal { said: said.clone() }),
            Ok((_, pci)) if config.pci.iter().any(|device| !pci.contains(device)) => Err(DpdkError::Started {
                running: "without these PCI devices",
            }),
            Ok((eal, _)) => Ok(*eal),
        }
    }

    /// Whether buffers lie in huge pages.
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }
}

/// DPDK's version.
pub fn version() -> String {
    // SAFETY: DPDK returns a constant string.
    let version = unsafe { CStr::from_ptr(ffi::tw_version()) };
    version.to_string_lossy().into_owned()
}

/// Whether to use huge pages.
fn decide(config: &EalConfig) -> Result<bool, DpdkError> {
    if config.huge_pages == HugePages::No {
        return Ok(false);
    }
    let needed = (config.memory >> 20) + BESIDES;
    let free = free_huge_pages() >> 20;
    match (free >= needed, config.pci.is_empty()) {
        (true, _) => Ok(true),
        (false, true) => Ok(false),
        (false, false) => Err(DpdkError::HugePages {
            needed_mib: needed,
            free_mib: free,
            pages: needed.div_ceil(2),
        }),
    }
}

/// Bytes in huge pages that nobody uses, of all sizes.
fn free_huge_pages() -> u64 {
    let sizes = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten();
    let bytes = sizes.flatten().filter_map(|size| {
        let name = size.file_name().into_string().ok()?;
        let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
        let free = fs::read_to_string(size.path().join("free_hugepages")).ok()?;
        Some(kib.parse::<u64>().ok()? * 1024 * free.trim().parse::<u64>().ok()?)
    });
    bytes.sum()
}

/// The command line that DPDK reads.
fn arguments(config: &EalConfig, huge_pages: bool) -> Vec<String> {
    // One lcore, which is nobody's: Tailwater's own threads do the work.
    let mut arguments = vec!["tailwater".to_owned(), "--lcores=0@0".to_owned()];
    arguments.push("--no-telemetry".to_owned());
    match huge_pages {
        // Nothing is left behind in a file system.
        true => arguments.push("--in-memory".to_owned()),
        false => {
            let memory = (config.memory >> 20) + BESIDES;
            arguments.extend(["--no-huge".to_owned(), "--no-shconf".to_owned()]);
            arguments.extend(["-m".to_owned(), memory.to_string()]);
        }
    }
    match config.pci.is_empty() {
        true => arguments.push("--no-pci".to_owned()),
        false => {
            let devices = config.pci.iter();
            arguments.extend(devices.flat_map(|device| ["-a".to_owned(), device.clone()]));
        }
    }
    for driver in &config.drivers {
        arguments.extend(["-d".to_owned(), driver.display().to_string()]);
    }
    arguments
}

/// Starts DPDK, or says why not.
fn init(arguments: &[String]) -> Result<(), String> {
    let texts = arguments.iter().map(|text| CString::new(text.as_str()));
    let texts: Vec<CString> = texts.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    // DPDK keeps pointers into its command line: it stays for good.
    let mut pointers: Vec<*mut c_char> = texts.into_iter().map(CString::into_raw).collect();
    pointers.push(std::ptr::null_mut());
    let count = pointers.len() as c_int - 1;
    let pointers = pointers.leak();
    // SAFETY: `pointers` are `count` strings and a null pointer, which are never freed. The caller holds the
    // lock, so this runs once.
    let result = unsafe { ffi::tw_eal_start(count, pointers.as_mut_ptr()) };
    let said = ffi::said();
    match result {
        0 => Ok(()),
        _ => Err(last_lines(&said)),
    }
}

/// A thread that DPDK knows: it has a cache of its own of each pool's free buffers.
#[derive(Debug)]
struct Known;

impl Drop for Known {
    fn drop(&mut self) {
        // SAFETY: this thread was registered when `self` was made, and `self` is the thread's own.
        unsafe { ffi::tw_thread_leave() }
    }
}

thread_local! {
    /// Goes with the thread.
    static KNOWN: Cell<Option<Known>> = const { Cell::new(None) };
}

/// Tells DPDK of this thread, and forgets it when the thread ends. Should DPDK know too many, everything
/// works all the same, slower. Always true: once is enough.
#[cold]
pub(crate) fn enter_thread() -> bool {
    KNOWN.with(|known| {
        let mut now = known.take();
        if now.is_none() {
            // SAFETY: the environment runs, for there is a queue; DPDK refuses a thread that it knows.
            now = (unsafe { ffi::tw_thread_enter() } == 0).then_some(Known);
        }
        known.set(now);
    });
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_needs_huge_pages_and_a_virtual_device_does_not() {
        let mut config = EalConfig {
            memory: 1 << 50,
            ..EalConfig::default()
        };
        assert!(!decide(&config).unwrap());
        config.pci = vec!["0000:3b:00.0".to_owned()];
        let error = decide(&config).unwrap_err().to_string();
        assert!(
            error.contains("1073741920 MiB of huge pages are needed") && error.contains("echo 536870960 >"),
            "{error}"
        );
        let with = |huge_pages| arguments(&config, huge_pages).join(" ");
        assert!(with(true).ends_with("--in-memory -a 0000:3b:00.0"));
        assert!(with(false).contains("--no-huge --no-shconf -m"));
        config.pci.clear();
        assert!(arguments(&config, true).contains(&"--no-pci".to_owned()));
    }
}
