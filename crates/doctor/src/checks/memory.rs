//! Checks of huge pages.

use crate::action::Action;
use crate::finding::{Finding, Severity};
use crate::text::{chosen, field};
use crate::{Probe, Purpose, System};

/// Memory required for one chain with its buffers and flow table, a generous estimate.
const WANTED_MIB: u64 = 1024;

/// Checks the huge pages reserved for DPDK and for tenants' packet memory.
pub(super) fn huge_pages(system: &dyn System, _: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "huge-pages";
    let text = match system.read("/proc/meminfo") {
        Probe::Value(text) => text,
        _ => return vec![Finding::unknown(CHECK, "/proc/meminfo cannot be read")],
    };
    let number = |name| {
        let value = field(&text, name)?;
        value.split_whitespace().next()?.parse::<u64>().ok()
    };
    let Some(kib) = number("Hugepagesize").filter(|kib| *kib > 0) else {
        let found = "the kernel has none";
        let why = "DPDK ports then require --no-huge, and every packet causes TLB misses";
        return vec![Finding::bad(CHECK, Severity::Costs, found, why)];
    };
    let (total, free) = (
        number("HugePages_Total").unwrap_or(0),
        number("HugePages_Free").unwrap_or(0),
    );
    let mib = |pages: u64| pages.saturating_mul(kib) / 1024;
    let wanted = (WANTED_MIB * 1024).div_ceil(kib);
    let pages = |pages: u64| Action::Sysctl {
        name: "vm.nr_hugepages",
        value: pages.to_string(),
    };
    let reserve = pages(total.max(wanted));
    let mut findings = Vec::new();
    findings.push(if mib(total) < WANTED_MIB {
        let found = format!("{} MiB are reserved, in {total} pages", mib(total));
        let why = "DPDK ports require them; without, every packet causes TLB misses";
        Finding::bad(CHECK, Severity::Costs, found, why).fixed_by(reserve)
    } else if free == 0 {
        let found = format!("all {} MiB are in use", mib(total));
        let why = "another DPDK port cannot start";
        let more = pages(total.saturating_add(wanted));
        Finding::bad(CHECK, Severity::Costs, found, why).fixed_by(more)
    } else {
        let found = format!("{} of {} MiB are free", mib(free), mib(total));
        Finding::good(CHECK, found)
    });
    let mounts = system.read("/proc/mounts").value().unwrap_or_default();
    let mounted = mounts.lines().any(|line| {
        let mut words = line.split_whitespace().skip(2);
        words.next() == Some("hugetlbfs")
    });
    if total > 0 && !mounted {
        let why = "DPDK takes huge pages from there";
        findings.push(
            Finding::bad(CHECK, Severity::Costs, "no hugetlbfs is mounted", why).fixed_by(Action::Mount {
                kind: "hugetlbfs",
                at: "/dev/hugepages",
            }),
        );
    }
    findings
}

/// Checks transparent huge pages, which Tailwater requests for packets and flows.
pub(super) fn transparent(system: &dyn System, _: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "transparent-huge-pages";
    const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";
    let read = |name: &str| system.read(&format!("{FOLDER}/{name}")).value();
    let enabled = read("enabled").unwrap_or_default();
    let set = |value: &str| Action::write(value, format!("{FOLDER}/enabled"));
    let finding = match chosen(&enabled) {
        Some("madvise") => Finding::good(CHECK, "enabled for programs that request them (madvise)"),
        Some("always") => {
            let why = "memory compaction for any program may stall packet processing";
            Finding::bad(CHECK, Severity::Costs, "enabled for all programs (always)", why).fixed_by(set("madvise"))
        }
        _ => {
            let why = "flow tables then cause a TLB miss for nearly every packet";
            let finding = Finding::bad(CHECK, Severity::Costs, "disabled", why);
            match enabled.is_empty() {
                true => finding,
                false => finding.fixed_by(set("madvise")),
            }
        }
    };
    vec![finding]
}
