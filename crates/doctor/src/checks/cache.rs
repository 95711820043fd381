//! Partitions of the last-level cache.

use super::cpu_flags;
use crate::finding::{Finding, Severity};
use crate::{Purpose, System};

/// Flags of the processor, and what they let be done.
const ABILITIES: [(&str, &str); 5] = [
    ("cat_l3", "CAT: parts of the cache for a chain"),
    ("cdp_l3", "CDP: code and data apart"),
    ("cqm_occup_llc", "CMT: who has how much of the cache"),
    ("cqm_mbm_total", "MBM: who uses how much of the memory"),
    ("mba", "MBA: limits on that"),
];

/// Whether chains can be given parts of the cache.
pub(super) fn partitions(system: &dyn System, _: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "cache-partitions";
    let Some(flags) = cpu_flags(system) else {
        return vec![Finding::unknown(CHECK, "/proc/cpuinfo cannot be read")];
    };
    let has = |name: &str| flags.iter().any(|flag| flag == name);
    let list = |want: bool| {
        let names = ABILITIES.iter().filter(|(flag, _)| has(flag) == want);
        names.map(|(_, what)| *what).collect::<Vec<_>>().join("; ")
    };
    if !has("cat_l3") {
        let why = "chains that share a processor slow each other down";
        let found = match list(true).as_str() {
            "" => "none: neither CAT nor CMT nor MBA".to_owned(),
            some => format!("no CAT; but {some}"),
        };
        return vec![Finding::bad(CHECK, Severity::Missing, found, why)];
    }
    let mounts = system.read("/proc/mounts").told().unwrap_or_default();
    let mounted = mounts
        .lines()
        .any(|line| line.split_whitespace().nth(2) == Some("resctrl"));
    vec![match mounted {
        true => Finding::good(CHECK, list(true)),
        false => {
            let found = format!("{}; but resctrl is not mounted", list(true));
            let why = "chains that share a processor slow each other down";
            Finding::bad(CHECK, Severity::Missing, found, why)
                .fixed_by("sudo mount -t resctrl resctrl /sys/fs/resctrl")
        }
    }]
}
