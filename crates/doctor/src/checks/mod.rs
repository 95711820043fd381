//! What is looked at, one file for each part of the machine. Each check tells what it found, good or bad.

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

/// Reads all that the machine tells about its fitness for a purpose, worst first.
pub fn examine(system: &dyn System, purpose: &Purpose) -> Vec<Finding> {
    let checks = [
        memory::huge_pages,
        memory::transparent,
        cores::isolated,
        cores::others,
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

/// The flags of the processor.
fn cpu_flags(system: &dyn System) -> Option<Vec<String>> {
    let text = system.read("/proc/cpuinfo").told()?;
    let line = text.lines().find(|line| line.starts_with("flags"))?;
    let (_, flags) = line.split_once(':')?;
    Some(flags.split_whitespace().map(str::to_owned).collect())
}

/// Whether this is a guest of a hypervisor.
fn is_guest(system: &dyn System) -> bool {
    cpu_flags(system).is_some_and(|flags| flags.iter().any(|flag| flag == "hypervisor"))
}

/// The value in a file of `name: value` or `name value` lines.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = rest.strip_prefix(':').or(rest.strip_prefix(' '))?;
        Some(value.trim())
    })
}

/// What is between brackets, as in `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}
