//! What goes wrong with DPDK, and what to do about it.

use std::io;

/// Why something of DPDK's failed. The text says what to do where that is known.
#[derive(Debug, thiserror::Error)]
pub enum DpdkError {
    /// The environment did not start.
    #[error("DPDK does not start: {said}{}", advice(.said))]
    Eal {
        /// What DPDK said.
        said: String,
    },
    /// The environment has been started otherwise; it starts once in a process.
    #[error("DPDK runs already, {running}; a process starts it once")]
    Started {
        /// How.
        running: &'static str,
    },
    /// Huge pages are wanted, and there are too few.
    #[error(
        "{needed_mib} MiB of huge pages are needed, {free_mib} MiB are free: as root, \
         echo {pages} > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    )]
    HugePages {
        /// What buffers take, in MiB.
        needed_mib: u64,
        /// What is there, in MiB.
        free_mib: u64,
        /// How many pages of 2 MiB would do.
        pages: u64,
    },
    /// There is no memory for buffers.
    #[error("DPDK has no memory for {count} buffers of {bytes} bytes: {source}{}", advice(.said))]
    Memory {
        /// How many.
        count: u32,
        /// Bytes in one.
        bytes: usize,
        /// What DPDK answers.
        source: io::Error,
        /// What it said.
        said: String,
    },
    /// A port cannot be had.
    #[error("port {port}: {problem}")]
    Port {
        /// Its name.
        port: String,
        /// What is wrong, and what to do.
        problem: String,
    },
}

/// The last lines of what DPDK said, as one.
pub(crate) fn last_lines(said: &str) -> String {
    let lines: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    let last = &lines[lines.len().saturating_sub(3)..];
    match last.is_empty() {
        true => "it does not say why".to_owned(),
        false => last.join("; "),
    }
}

/// What to do about what DPDK said, if that is known.
fn advice(said: &str) -> &'static str {
    let any = |texts: &[&str]| texts.iter().any(|text| said.contains(text));
    if any(&["hugepage", "huge page"]) {
        "; huge pages are missing: as root, echo 512 > \
         /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    } else if any(&["not supported by this CPU", "CPU feature"]) {
        "; this DPDK was built for a newer processor: install another package, or build it here"
    } else if any(&["ermission denied", "not permitted"]) {
        "; this needs root, or CAP_NET_RAW and CAP_NET_ADMIN"
    } else {
        ""
    }
}

/// What is wrong with a device that did not come up.
pub(crate) fn of_device(
    name: &tailwater_nf::spec::PortName,
    what: &str,
    code: i32,
    said: &str,
) -> DpdkError {
    let error = io::Error::from_raw_os_error(-code);
    let because = match said.trim().is_empty() {
        true => error.to_string(),
        false => format!("{error} ({})", last_lines(said)),
    };
    DpdkError::Port {
        port: name.to_string(),
        problem: format!("{what}: {because}"),
    }
}
