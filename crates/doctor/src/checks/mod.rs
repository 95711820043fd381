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
        network::packet_sockets,
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
