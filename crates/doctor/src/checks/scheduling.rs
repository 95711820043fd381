//! Checks of the scheduler's limits.

use crate::action::Action;
use crate::finding::{Finding, Severity};
use crate::text::field;
use crate::{Probe, Purpose, System};

/// Checks real-time throttling, which stops the real-time threads of auxiliary cores for a part of each second.
pub(super) fn throttling(system: &dyn System, _: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "real-time-throttling";
    let number = |name: &str| {
        let text = system.read(&format!("/proc/sys/kernel/{name}")).value()?;
        text.parse::<i64>().ok()
    };
    let runtime = number("sched_rt_runtime_us");
    let period = number("sched_rt_period_us").unwrap_or(1_000_000);
    let finding = match runtime {
        None => Finding::unknown(CHECK, "not reported by the kernel"),
        Some(runtime) if runtime < 0 || runtime >= period => Finding::good(CHECK, "off"),
        Some(runtime) => {
            let found = format!(
                "busy real-time threads are throttled for {} ms of each {} ms",
                (period - runtime) / 1000,
                period / 1000
            );
            let why = "a busy auxiliary core stalls in the middle of a batch";
            let each = "each period in which a real-time thread stays busy";
            Finding::bad(CHECK, Severity::Costs, found, why)
                .costing(
                    (period - runtime) as f64,
                    each,
                    "sched_rt_period_us - sched_rt_runtime_us",
                )
                .fixed_by(Action::Sysctl {
                    name: "kernel.sched_rt_runtime_us",
                    value: "-1".to_owned(),
                })
        }
    };
    vec![finding]
}

/// The bit of `CAP_SYS_NICE`.
const SYS_NICE: u32 = 23;

/// Consequence of real-time priority that is not allowed. Without it the kernel lets functions run at any time.
const NO_REAL_TIME: &str = "auxiliary cores wake up only after other programs on them yield, and isolated functions \
                            can change packets after their turn";

/// Checks that auxiliary cores' threads and isolated functions may have real-time priority.
pub(super) fn real_time(system: &dyn System, _: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "real-time-priority";
    let status = system.read("/proc/self/status").value().unwrap_or_default();
    let limits = system.read("/proc/self/limits").value().unwrap_or_default();
    let capabilities = field(&status, "CapEff").and_then(|text| u64::from_str_radix(text, 16).ok());
    let nice = capabilities.is_some_and(|bits| bits >> SYS_NICE & 1 != 0);
    let limit =
        field(&limits, "Max realtime priority").and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    // In cgroup v1, a group's real-time budget can be zero.
    let groups = system.read("/proc/self/cgroup").value().unwrap_or_default();
    let group = groups.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == "cpu").then_some(group)
    });
    if let Some(group) = group {
        let path = format!("/sys/fs/cgroup/cpu{}/cpu.rt_runtime_us", group.trim_end_matches('/'));
        if let Probe::Value(text) = system.read(&path)
            && text == "0"
        {
            let found = format!("the control group {group} has no real-time budget");
            let give = Action::write("950000", path);
            return vec![Finding::bad(CHECK, Severity::Costs, found, NO_REAL_TIME).fixed_by(give)];
        }
    }
    let finding = if nice || limit.is_some_and(|limit| limit > 0) {
        Finding::good(CHECK, "allowed")
    } else {
        Finding::bad(CHECK, Severity::Costs, "not allowed for this user", NO_REAL_TIME).fixed_by(
            "echo \"$USER - rtprio 50\" | sudo tee /etc/security/limits.d/tailwater.conf  # then log in again",
        )
    };
    vec![finding]
}

/// Checks for CPU quotas, which a polling thread uses up.
pub(super) fn quota(system: &dyn System, purpose: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "processor-quota";
    let Probe::Value(groups) = system.read("/proc/self/cgroup") else {
        return vec![Finding::unknown(CHECK, "/proc/self/cgroup cannot be read")];
    };
    let mut quotas = Vec::new();
    for line in groups.lines() {
        let Some((controllers, group)) = line.split_once(':').and_then(|(_, rest)| rest.split_once(':')) else {
            continue;
        };
        let group = group.trim_end_matches('/');
        if controllers.is_empty() {
            quotas.extend(quotas_above(system, group));
        } else if controllers.split(',').any(|name| name == "cpu") {
            let folder = format!("/sys/fs/cgroup/cpu{group}");
            let read = |name: &str| system.read(&format!("{folder}/{name}")).value();
            let given = read("cpu.cfs_quota_us").zip(read("cpu.cfs_period_us"));
            quotas.extend(given.and_then(|(quota, period)| {
                Some(Quota {
                    cores: cores(&quota, &period)?,
                    group: group.to_owned(),
                    lift: Action::write("-1", format!("{folder}/cpu.cfs_quota_us")),
                    period_us: period.parse().unwrap_or(0.0),
                })
            }));
        }
    }
    let least = quotas.into_iter().min_by(|a, b| a.cores.total_cmp(&b.cores));
    let needed = purpose.cores.len();
    vec![match least {
        None => Finding::good(CHECK, "none"),
        Some(Quota { cores, .. }) if cores > needed as f64 => {
            Finding::good(CHECK, format!("{cores:.1} cores, of which {needed} are needed"))
        }
        Some(Quota {
            cores,
            group,
            lift,
            period_us,
        }) => {
            let found = format!("{cores:.1} cores for the control group {group}, {needed} are needed");
            let why = "a core that polls for packets is throttled for the rest of each period";
            // Threads that always poll use up the quota in this part of the period, and wait for the rest.
            let waits = period_us * (1.0 - (cores / needed as f64).min(1.0));
            let finding = Finding::bad(CHECK, Severity::Prevents, found, why).fixed_by(lift);
            match waits > 0.0 {
                true => finding.costing(
                    waits,
                    "each period of the quota, with all threads busy",
                    "quota and period of the group",
                ),
                false => finding,
            }
        }
    }]
}

/// CPU quota of a control group, in cores.
struct Quota {
    cores: f64,
    group: String,
    /// Change that removes the quota.
    lift: Action,
    period_us: f64,
}

/// Returns the quotas of a cgroup v2 group and of its ancestors, which also apply to it.
fn quotas_above(system: &dyn System, group: &str) -> Vec<Quota> {
    let mut quotas = Vec::new();
    let mut at = Some(group);
    while let Some(group) = at {
        let path = format!("/sys/fs/cgroup{group}/cpu.max");
        let text = system.read(&path).value();
        quotas.extend(text.and_then(|text| {
            let (quota, period) = text.split_once(' ')?;
            Some(Quota {
                cores: cores(quota, period)?,
                group: group.to_owned(),
                lift: Action::write("max", path),
                period_us: period.parse().unwrap_or(0.0),
            })
        }));
        at = group.rsplit_once('/').map(|(above, _)| above);
    }
    quotas
}

/// Converts a quota to a number of cores. Returns `None` for no quota: `max`, or -1 in cgroup v1.
fn cores(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (i64, i64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota >= 0 && period > 0).then(|| quota as f64 / period as f64)
}
