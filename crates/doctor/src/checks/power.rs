//! Checks of frequency scaling and idle states.

use crate::action::Action;
use crate::finding::{Finding, Severity, boot_with};
use crate::text::{Vendor, is_guest, vendor};
use crate::{Purpose, System};
use std::collections::BTreeSet;
use tailwater_net::Nanos;

const FOLDER: &str = "/sys/devices/system/cpu";

/// Checks the cores' frequency governor.
pub(super) fn governor(system: &dyn System, purpose: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "frequency";
    let path = |core: &usize| format!("{FOLDER}/cpu{core}/cpufreq/scaling_governor");
    let governors: BTreeSet<String> = purpose
        .cores
        .iter()
        .filter_map(|core| system.read(&path(core)).value())
        .collect();
    if governors.is_empty() {
        let found = match is_guest(system) {
            true => "controlled by the hypervisor",
            false => "fixed: the kernel does not change it",
        };
        return vec![Finding::good(CHECK, found)];
    }
    let others: Vec<&str> = governors
        .iter()
        .map(String::as_str)
        .filter(|g| *g != "performance")
        .collect();
    if others.is_empty() {
        return vec![Finding::good(CHECK, "governor performance")];
    }
    let why = "cores are slow when a burst begins, and measured profiles do not apply";
    vec![
        Finding::bad(CHECK, Severity::Costs, format!("governor {}", others.join(", ")), why).fixed_by(Action::Write {
            value: "performance".to_owned(),
            files: scaling_files(system, purpose),
        }),
    ]
}

/// Returns the governors' files of all cores: cores on one power domain follow the fastest.
fn scaling_files(system: &dyn System, purpose: &Purpose) -> Vec<String> {
    let names = system.list(FOLDER).value().unwrap_or_default();
    let listed = names.iter().filter_map(|name| name.strip_prefix("cpu")?.parse().ok());
    let cores: BTreeSet<usize> = listed.chain(purpose.cores.iter().copied()).collect();
    let files = cores
        .into_iter()
        .map(|core| format!("{FOLDER}/cpu{core}/cpufreq/scaling_governor"));
    files.filter(|file| system.read(file).value().is_some()).collect()
}

/// An exit latency above `1 / SHARE` of the objective is reported.
const SHARE: u64 = 10;

/// Checks the exit latency of idle states, in which auxiliary cores sleep.
pub(super) fn sleep(system: &dyn System, purpose: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "sleep-states";
    let mut deepest: Option<(u64, String)> = None;
    for core in &purpose.cores {
        let folder = format!("{FOLDER}/cpu{core}/cpuidle");
        for state in system.list(&folder).value().unwrap_or_default() {
            let read = |name: &str| system.read(&format!("{folder}/{state}/{name}")).value();
            let latency = read("latency").and_then(|text| text.parse::<u64>().ok());
            let off = read("disable").is_some_and(|text| text != "0");
            if let (Some(latency), Some(name), false) = (latency, read("name"), off)
                && deepest.as_ref().is_none_or(|(most, _)| latency > *most)
            {
                deepest = Some((latency, name));
            }
        }
    }
    let Some((us, name)) = deepest else {
        let found = match is_guest(system) {
            true => "controlled by the hypervisor; wake-up time unknown",
            false => "none",
        };
        return vec![Finding::good(CHECK, found)];
    };
    let found = format!("down to {name}, with a wake-up time of {us} us");
    if Nanos::from_micros(us).0.saturating_mul(SHARE) <= purpose.slo.0 {
        return vec![Finding::good(CHECK, found)];
    }
    let severity = match Nanos::from_micros(us) < purpose.slo {
        true => Severity::Costs,
        false => Severity::Prevents,
    };
    let why = "a sleeping auxiliary core wakes too late for a burst";
    vec![
        Finding::bad(CHECK, severity, found, why)
            .costing(
                us as f64,
                "a wake-up of a core that sleeps so deeply",
                "cpuidle/*/latency of the kernel",
            )
            .fixed_by(Action::IdleLimit {
                us: (purpose.slo.0 / SHARE / 1000).max(1),
            })
            .fixed_by(boot_with(match vendor(system) {
                Vendor::Intel => "intel_idle.max_cstate=1 processor.max_cstate=1",
                Vendor::Amd | Vendor::Other => "processor.max_cstate=1",
            })),
    ]
}
