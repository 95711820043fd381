//! Checks, one file for each part of the machine. Each check reports findings, good or bad.

mod cache;
mod clock;
mod cores;
mod counters;
mod dpdk;
mod iommu;
mod memory;
mod network;
mod power;
mod scheduling;

use crate::{Finding, Purpose, System};

/// Checks the machine's fitness for a purpose. Returns the findings, worst first.
pub fn examine(system: &dyn System, purpose: &Purpose) -> Vec<Finding> {
    let checks = [
        memory::huge_pages,
        memory::transparent,
        cores::isolated,
        cores::competing_tasks,
        cores::interrupts,
        cores::siblings,
        scheduling::throttling,
        scheduling::real_time,
        scheduling::quota,
        power::governor,
        power::sleep,
        clock::clock,
        network::interfaces,
        dpdk::dpdk,
        iommu::iommu,
        cache::partitions,
        cache::curves,
        counters::counters,
    ];
    let mut findings: Vec<Finding> = Vec::new();
    for check in checks {
        findings.extend(check(system, purpose));
    }
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Returns the processor's flags.
fn cpu_flags(system: &dyn System) -> Option<Vec<String>> {
    let text = system.read("/proc/cpuinfo").value()?;
    let line = text.lines().find(|line| line.starts_with("flags"))?;
    let (_, flags) = line.split_once(':')?;
    Some(flags.split_whitespace().map(str::to_owned).collect())
}

/// Returns `true` if the machine is a virtual machine.
fn is_guest(system: &dyn System) -> bool {
    cpu_flags(system).is_some_and(|flags| flags.iter().any(|flag| flag == "hypervisor"))
}

/// Returns a value from text with lines of the form `name: value` or `name value`.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = rest.strip_prefix(':').or(rest.strip_prefix(' '))?;
        Some(value.trim())
    })
}

/// Returns the text between brackets, as in `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}
