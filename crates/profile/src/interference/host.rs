//! Counters of the kernel.

use std::fs;
use tailwater_net::Nanos;

/// Unit of the times in `/proc/stat`: the kernel reports 100 per second to programs, whatever its own clock is.
const TICK: Nanos = Nanos::from_millis(10);

/// Returns the time for which the hypervisor ran others on a core since the start; zero if the kernel does not count
/// it.
pub(super) fn stolen(core: usize) -> Nanos {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    Nanos(steal(&text, core).unwrap_or(0).saturating_mul(TICK.0))
}

/// Returns a core's steal in `/proc/stat`, ticks: the eighth number of its line.
fn steal(text: &str, core: usize) -> Option<u64> {
    let name = format!("cpu{core}");
    let mut fields = text
        .lines()
        .map(str::split_ascii_whitespace)
        .find_map(|mut fields| (fields.next() == Some(name.as_str())).then_some(fields))?;
    fields.nth(7)?.parse().ok()
}

/// Returns the number of times that the calling thread was preempted; zero if unknown.
pub(super) fn preemptions() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    preempted(&text).unwrap_or(0)
}

fn preempted(text: &str) -> Option<u64> {
    let number = text
        .lines()
        .find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counters_are_read() {
        let text = "cpu  5507652 3939633 1336192 4581774 93480 0 8083 6782 0 0\n\
                    cpu0 2065189 2058716 711488 2853910 33863 0 904 3753 0 0\n\
                    cpu1 3442463 1880916 624704 1727864 59616 0 7179 3029 0 0\n\
                    cpu10 1 2 3 4 5 6 7 8 9 10\nintr 42 0 0 0 0 0 0 0 9\n";
        assert_eq!(steal(text, 0), Some(3753));
        assert_eq!(steal(text, 1), Some(3029));
        assert_eq!(steal(text, 10), Some(8));
        assert_eq!(steal(text, 2), None);
        // Kernels before 2.6.11 have no such column.
        assert_eq!(steal("cpu0 1 2 3 4\n", 0), None);
        let status = "Threads:\t1\nvoluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t17\n";
        assert_eq!(preempted(status), Some(17));
        assert_eq!(preempted("Threads:\t1\n"), None);
    }
}
