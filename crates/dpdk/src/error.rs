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

/// What DPDK says after every device that it cannot use.
const NO_NEWS: [&str; 2] = ["cannot attach the device", "Failed to attach device"];

/// The last lines of what DPDK said, as one.
pub(crate) fn last_lines(said: &str) -> String {
    let lines: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !NO_NEWS.iter().any(|none| line.contains(none)))
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
pub(crate) fn of_device(name: &tailwater_api::PortName, what: &str, code: i32, said: &str) -> DpdkError {
    let because = match code {
        // Not a number of the system's, but what many drivers answer whatever is wrong.
        -1 => format!("{}; are its arguments right?", last_lines(said)),
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
            (-1, generic, "it does not say why; are its arguments right?"),
            (
                -1,
                "null: no such thing\n",
                "null: no such thing; are its arguments right?",
            ),
            (
                -12,
                generic,
                "Cannot allocate memory (os error 12) (it does not say why)",
            ),
        ] {
            let expected = format!("port net_null0,siz=64: no: {expected}");
            assert_eq!(error(code, said), expected);
        }
    }
}
