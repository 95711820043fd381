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
    let mounted = mounts.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let at = fields.next()?;
        (fields.next() == Some("resctrl")).then_some(at)
    });
    vec![match mounted {
        Some(at) => Finding::good(CHECK, format!("{}{}", list(true), room(system, at))),
        None => {
            let found = format!("{}; but resctrl is not mounted", list(true));
            let why = "chains that share a processor slow each other down";
            Finding::bad(CHECK, Severity::Missing, found, why)
                .fixed_by("sudo mount -t resctrl resctrl /sys/fs/resctrl")
        }
    }]
}

/// How many ways there are to give out, and to how many; nothing where it is not told.
fn room(system: &dyn System, at: &str) -> String {
    // With code and data apart both have the same.
    let told = ["L3", "L3CODE"].into_iter().find_map(|resource| {
        let read = |name: &str, radix| {
            let text = system
                .read(&format!("{at}/info/{resource}/{name}"))
                .told()?;
            u32::from_str_radix(text.trim(), radix).ok()
        };
        let shareable = read("shareable_bits", 16).unwrap_or(0);
        Some((
            read("cbm_mask", 16)?.count_ones(),
            shareable.count_ones(),
            read("num_closids", 10)?,
        ))
    });
    told.map_or_else(String::new, |(ways, shareable, classes)| {
        format!("; {ways} ways, devices write into {shareable} of them, {classes} classes")
    })
}
