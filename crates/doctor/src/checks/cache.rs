//! Checks of cache partitioning and cache monitoring.

use crate::action::Action;
use crate::finding::{Finding, Severity};
use crate::text::{cpu_flags, field};
use crate::{CpuList, Purpose, System};

/// Processor flags and the features they stand for.
const ABILITIES: [(&str, &str); 5] = [
    ("cat_l3", "CAT: cache partitions per chain"),
    ("cdp_l3", "CDP: separate code and data partitions"),
    ("cqm_occup_llc", "CMT: cache occupancy"),
    ("cqm_mbm_total", "MBM: memory bandwidth monitoring"),
    ("mba", "MBA: memory bandwidth limits"),
];

/// Checks that chains can get cache partitions.
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
    vec![match mounted(system) {
        Some(at) => Finding::good(CHECK, format!("{}{}", list(true), room(system, &at))),
        None => {
            let found = format!("{}; but resctrl is not mounted", list(true));
            let why = "chains that share a processor slow each other down";
            Finding::bad(CHECK, Severity::Missing, found, why).fixed_by(Action::Mount {
                kind: "resctrl",
                at: "/sys/fs/resctrl",
            })
        }
    }]
}

/// Bit of `CAP_SYS_ADMIN`, which mounting requires.
const SYS_ADMIN: u32 = 21;

/// Reports how `tailwater profile cache` would divide the cache on the last core, its default.
pub(super) fn curves(system: &dyn System, purpose: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "cache-curves";
    let Some(core) = purpose.cores.last().copied() else {
        return Vec::new();
    };
    let flags = cpu_flags(system);
    let cat = flags.is_some_and(|flags| flags.iter().any(|flag| flag == "cat_l3"));
    // The profiler mounts it while it runs.
    let kernel = mounted(system).is_some() || {
        let types = system.read("/proc/filesystems").value().unwrap_or_default();
        types
            .lines()
            .any(|line| line.split_whitespace().last() == Some("resctrl"))
    };
    let status = system.read("/proc/self/status").value().unwrap_or_default();
    let capabilities = field(&status, "CapEff").and_then(|text| u64::from_str_radix(text, 16).ok());
    let root = capabilities.is_some_and(|bits| bits >> SYS_ADMIN & 1 != 0);
    let without = match (cat, kernel, root) {
        (true, true, true) => {
            let found = format!("profile cache assigns ways of the cache to core {core} (resctrl)");
            return vec![Finding::good(CHECK, found)];
        }
        (true, true, false) => "resctrl requires root",
        (true, false, _) => "the kernel has no resctrl",
        (false, ..) => "no CAT",
    };
    vec![match cache_siblings(system, core) {
        None => Finding::unknown(
            CHECK,
            format!("the kernel does not report which cores share the cache of core {core}"),
        ),
        Some(others) => match others.numbers().first() {
            Some(other) => {
                let found =
                    format!("profile cache occupies cache of core {core} from core {other} (pirate): {without}");
                Finding::good(CHECK, found)
            }
            None => {
                let found = format!("{without}, and no other core shares the cache of core {core}");
                let why = "profile cache cannot measure throughput over cache, which placement requires";
                Finding::bad(CHECK, Severity::Missing, found, why)
            }
        },
    }]
}

/// Returns the other cores that share a core's last-level cache.
fn cache_siblings(system: &dyn System, core: usize) -> Option<CpuList> {
    let folder = format!("/sys/devices/system/cpu/cpu{core}/cache");
    let caches = system.list(&folder).value()?.into_iter().filter_map(|cache| {
        let read = |name: &str| system.read(&format!("{folder}/{cache}/{name}")).value();
        let level: u32 = read("level")?.parse().ok()?;
        Some((level, read("shared_cpu_list")?))
    });
    let (_, cores) = caches.max()?;
    Some(CpuList::parse(&cores)?.without(&CpuList::parse(&core.to_string())?))
}

/// Returns the mount point of `resctrl`.
fn mounted(system: &dyn System) -> Option<String> {
    let mounts = system.read("/proc/mounts").value()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let at = fields.next()?;
        (fields.next() == Some("resctrl")).then(|| at.to_owned())
    })
}

/// Describes the number of ways and classes, or returns an empty text if they cannot be read.
fn room(system: &dyn System, at: &str) -> String {
    // With CDP, code and data have the same values.
    let told = ["L3", "L3CODE"].into_iter().find_map(|resource| {
        let read = |name: &str, radix| {
            let text = system.read(&format!("{at}/info/{resource}/{name}")).value()?;
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
