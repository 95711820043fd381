//! Examinations of described machines.

mod description;
mod mending;
mod problems;
mod verdict;

use description::{CPU, Written, tuned};
use proptest::prelude::*;
use tailwater_doctor::{Diagnosis, Finding, Purpose, Severity, examine};
use tailwater_net::Nanos;

fn purpose(cores: &[usize]) -> Purpose {
    Purpose {
        slo: Nanos::from_micros(200),
        cores: cores.to_vec(),
        has_dpdk: true,
    }
}

fn findings(machine: &Written) -> Vec<Finding> {
    examine(machine, &purpose(&[2, 3]))
}

/// Returns the only finding of `check` that is not good.
fn bad(machine: &Written, check: &str) -> Finding {
    let all = findings(machine);
    let mut bad = all.iter().filter(|f| f.check == check && f.severity != Severity::Good);
    let found = bad.next().unwrap_or_else(|| panic!("nothing bad of {check}"));
    assert!(bad.next().is_none(), "{all:#?}");
    found.clone()
}

#[test]
fn a_tuned_machine_has_nothing_wrong() {
    let all = findings(&tuned());
    let wrong: Vec<_> = all
        .iter()
        .filter(|finding| finding.severity != Severity::Good)
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let good = |check: &str| all.iter().find(|f| f.check == check).unwrap().found.clone();
    assert_eq!(
        good("nics"),
        "eth0 (mlx5_core, 0000:3b:00.0), 2 queues; RSS by a table of 16"
    );
    assert_eq!(good("huge-pages"), "4000 of 4096 MiB are free");
    assert_eq!(good("isolated-cores"), "2-3, without a tick");
    let cache = good("cache-partitions");
    assert!(
        cache.ends_with("; 20 ways, devices write into 2 of them, 16 classes"),
        "{cache}"
    );
    assert_eq!(
        good("cache-curves"),
        "profile cache assigns ways of the cache to core 3 (resctrl)"
    );
    assert_eq!(good("sleep-states"), "down to C1, with a wake-up time of 2 us");
}

#[test]
fn the_worst_comes_first() {
    let machine = tuned()
        .file("/sys/fs/cgroup/system.slice/cpu.max", "100000 100000")
        .file("/proc/sys/kernel/sched_rt_runtime_us", "950000")
        .without("/sys/class/iommu");
    let all = findings(&machine);
    assert!(all.is_sorted_by_key(|finding| finding.severity));
    let checks: Vec<&str> = all.iter().take(3).map(|finding| finding.check).collect();
    assert_eq!(checks, ["processor-quota", "real-time-throttling", "iommu"]);
}

/// A machine that reveals nothing is not reported as good.
#[test]
fn what_cannot_be_told_is_not_good() {
    let all = findings(&tuned().forbid("/"));
    let good: Vec<_> = all
        .iter()
        .filter(|finding| finding.severity == Severity::Good)
        .collect();
    // Program outputs are not affected.
    let allowed = ["dpdk", "frequency", "sleep-states"];
    assert!(good.iter().all(|finding| allowed.contains(&finding.check)), "{good:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Arbitrary text in existing files causes no panic, and there are still findings.
    #[test]
    fn whatever_the_system_says_is_survived(
        texts in proptest::collection::vec("[-0-9a-z()\\[\\]:, \n\u{e9}]{0,60}", 64),
        cores in proptest::collection::vec(0_usize..5, 0..4),
    ) {
        let mut machine = tuned();
        for (text, with) in machine.files.values_mut().chain(machine.prints.values_mut()).zip(texts.iter().cycle()) {
            text.clone_from(with);
        }
        let purpose = purpose(&cores);
        let all = examine(&machine, &purpose);
        let diagnosis = Diagnosis::new(&machine, &purpose, all, None);
        prop_assert!(!diagnosis.findings.is_empty());
    }
}
