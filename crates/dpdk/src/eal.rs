//! DPDK's environment abstraction layer (EAL), started once per process and never stopped.
//!
//! One of the few modules with `unsafe` code: it starts DPDK and registers threads with it.

use crate::error::{DpdkError, last_lines};
use crate::ffi;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Page size of the memory for packet buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Huge pages if enough are free, 4 KiB pages otherwise. Physical NICs need huge pages.
    #[default]
    IfThere,
    /// 4 KiB pages.
    No,
}

/// Start parameters of the EAL.
#[derive(Clone, Debug, Default)]
pub struct EalConfig {
    /// Page size of the buffer memory.
    pub huge_pages: HugePages,
    /// Memory for buffers, in bytes.
    pub memory: u64,
    /// PCI devices that DPDK may probe. An empty list allows none.
    pub pci: Vec<String>,
    /// Drivers to load from outside DPDK's own driver directory.
    pub drivers: Vec<PathBuf>,
}

/// Handle to the running EAL.
#[derive(Clone, Copy, Debug)]
pub struct Eal {
    huge_pages: bool,
}

/// The EAL and the PCI devices it was started with, or the error of the start.
type Outcome = Result<(Eal, Vec<String>), String>;

/// Result of the only start: DPDK does not support a second attempt.
static STARTED: Mutex<Option<Outcome>> = Mutex::new(None);

/// Memory DPDK needs in addition to the buffers, in MiB.
const BESIDES: u64 = 96;

impl Eal {
    /// Starts the EAL, or returns the running one if it has the required devices.
    ///
    /// # Errors
    /// If the EAL does not start, or runs without the devices required now.
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

    /// Returns `true` if buffers are in huge pages.
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }
}

/// DPDK's version string.
pub fn version() -> String {
    // SAFETY: DPDK returns a constant string.
    let version = unsafe { CStr::from_ptr(ffi::tw_version()) };
    version.to_string_lossy().into_owned()
}

/// Decides between huge pages and 4 KiB pages.
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

/// Free huge page memory of all page sizes, in bytes.
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

/// Builds the EAL's command line.
fn arguments(config: &EalConfig, huge_pages: bool) -> Vec<String> {
    // One lcore, unused: Tailwater's own threads do the work.
    let mut arguments = vec!["tailwater".to_owned(), "--lcores=0@0".to_owned()];
    arguments.push("--no-telemetry".to_owned());
    match huge_pages {
        // Leaves no files in hugetlbfs.
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

/// Starts DPDK, or returns its log lines as the error.
fn init(arguments: &[String]) -> Result<(), String> {
    let texts = arguments.iter().map(|text| CString::new(text.as_str()));
    let texts: Vec<CString> = texts.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    // DPDK keeps pointers into its command line, so the strings are leaked: once, since it starts once per process.
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

/// Registration of a thread with DPDK, which gives it its own mempool cache.
#[derive(Debug)]
struct Known;

impl Drop for Known {
    fn drop(&mut self) {
        // SAFETY: this thread was registered when `self` was made, and `self` is the thread's own.
        unsafe { ffi::tw_thread_leave() }
    }
}

thread_local! {
    /// Dropped when the thread ends.
    static KNOWN: Cell<Option<Known>> = const { Cell::new(None) };
}

/// Registers this thread with DPDK until the thread ends. If DPDK has no free thread slot, everything still works, only
/// slower. Always returns `true`: one attempt per thread is enough.
#[cold]
pub(crate) fn enter_thread() -> bool {
    KNOWN.with(|known| {
        let mut now = known.take();
        if now.is_none() {
            // SAFETY: the environment runs, for there is a queue; DPDK refuses a thread that is already registered.
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
            error.contains("expected 1073741920 MiB of free huge pages") && error.contains("echo 536870960 >"),
            "{error}"
        );
        let with = |huge_pages| arguments(&config, huge_pages).join(" ");
        assert!(with(true).ends_with("--in-memory -a 0000:3b:00.0"));
        assert!(with(false).contains("--no-huge --no-shconf -m"));
        config.pci.clear();
        assert!(arguments(&config, true).contains(&"--no-pci".to_owned()));
    }
}
