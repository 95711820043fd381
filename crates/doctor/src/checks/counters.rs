//! Check of the hardware performance counters.

use crate::action::Action;
use crate::finding::{Finding, Severity};
use crate::{Probe, Purpose, System};

/// Checks that cache misses and cycles can be counted.
pub(super) fn counters(system: &dyn System, _: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "performance-counters";
    let cpu = system.list("/sys/bus/event_source/devices/cpu");
    let core = system.list("/sys/bus/event_source/devices/cpu_core");
    if cpu == Probe::Absent && core == Probe::Absent {
        let why = "cache use cannot be counted, only timed";
        let found = "the processor exposes none, as in most virtual machines";
        return vec![Finding::bad(CHECK, Severity::Missing, found, why)];
    }
    let level = system.read("/proc/sys/kernel/perf_event_paranoid").value();
    let level = level.and_then(|text| text.parse::<i32>().ok());
    vec![match level {
        Some(level) if level <= 1 => Finding::good(CHECK, "available to all users"),
        _ => {
            let why = "cache use can be counted by root only";
            Finding::bad(CHECK, Severity::Missing, "available to root only", why).fixed_by(Action::Sysctl {
                name: "kernel.perf_event_paranoid",
                value: "1".to_owned(),
            })
        }
    }]
}
