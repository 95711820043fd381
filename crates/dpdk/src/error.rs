//! DPDK errors, with remedies.

use std::io;

/// Error of a DPDK operation. The message includes the remedy where one is known.
#[derive(Debug, thiserror::Error)]
pub enum DpdkError {
    /// The environment did not start.
    #[error("DPDK does not start: {said}{}", advice(.said))]
    Eal {
        /// DPDK's log lines.
        said: String,
    },
    /// The environment already runs with other parameters. It starts once per process.
    #[error("DPDK is already running, {running}; it starts once per process")]
    Started {
        /// Parameters it runs with.
        running: &'static str,
    },
    /// Huge pages are required and too few are free.
    #[error(
        "expected {needed_mib} MiB of free huge pages, found {free_mib} MiB: as root, \
         echo {pages} > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    )]
    HugePages {
        /// Memory the buffers need, in MiB.
        needed_mib: u64,
        /// Free memory in huge pages, in MiB.
        free_mib: u64,
        /// Number of 2 MiB pages that suffices.
        pages: u64,
    },
    /// Allocation of the buffers failed.
    #[error("DPDK has no memory for {count} buffers of {bytes} bytes: {source}{}", advice(.said))]
    Memory {
        /// Number of buffers.
        count: u32,
        /// Bytes per buffer.
        bytes: usize,
        /// DPDK's error code.
        source: io::Error,
        /// DPDK's log lines.
        said: String,
    },
    /// The port is not usable.
    #[error("port {port}: {problem}")]
    Port {
        /// Name of the port.
        port: String,
        /// Cause and remedy.
        problem: String,
    },
}

/// Log lines that DPDK prints for every unusable device and that carry no cause.
const NO_NEWS: [&str; 2] = ["cannot attach the device", "Failed to attach device"];

/// Joins the last lines of a DPDK log into one.
pub(crate) fn last_lines(said: &str) -> String {
    let lines: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !NO_NEWS.iter().any(|none| line.contains(none)))
        .collect();
    let last = &lines[lines.len().saturating_sub(3)..];
    match last.is_empty() {
        true => "no reason reported".to_owned(),
        false => last.join("; "),
    }
}

/// Remedy for a known DPDK log message, or an empty string.
fn advice(said: &str) -> &'static str {
    let any = |texts: &[&str]| texts.iter().any(|text| said.contains(text));
    if any(&["hugepage", "huge page"]) {
        "; no huge pages: as root, echo 512 > \
         /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    } else if any(&["not supported by this CPU", "CPU feature"]) {
        "; this DPDK was built for a newer processor: install another package, or build it here"
    } else if any(&["ermission denied", "not permitted"]) {
        "; requires root, or CAP_NET_RAW and CAP_NET_ADMIN"
    } else {
        ""
    }
}

/// Error for a device that did not come up.
pub(crate) fn of_device(name: &tailwater_api::PortName, what: &str, code: i32, said: &str) -> DpdkError {
    let because = match code {
        // Not an errno: many drivers return -1 for any failure.
        -1 => format!("{}; check its arguments", last_lines(said)),
        _ => {
            let error = io::Error::from_raw_os_error(-code);
            format!("{error} ({})", last_lines(said))
        }
    };
    DpdkError::Port {
        port: name.to_string(),
        problem: format!("{what}: {because}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_answers_is_not_taken_for_a_lack_of_permission() {
        let name = "net_null0,siz=64".parse().unwrap();
        let generic = "EAL: Driver cannot attach the device (net_null0)\n\
                       EAL: Failed to attach device on primary process\n";
        let error = |code, said: &str| of_device(&name, "no", code, said).to_string();
        for (code, said, expected) in [
            (-1, generic, "no reason reported; check its arguments"),
            (-1, "null: no such thing\n", "null: no such thing; check its arguments"),
            (
                -12,
                generic,
                "Cannot allocate memory (os error 12) (no reason reported)",
            ),
        ] {
            let expected = format!("port net_null0,siz=64: no: {expected}");
            assert_eq!(error(code, said), expected);
        }
    }
}
