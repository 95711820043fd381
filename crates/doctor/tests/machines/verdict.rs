//! Verdicts.

use super::*;
use tailwater_doctor::{Gaps, Measured, MemoryLatency};

fn measured(windows_missed: u64, longest: Nanos) -> Measured {
    let gaps = Gaps {
        core: 2,
        watched: Nanos::from_secs(2),
        count: 12,
        all: longest,
        longest,
        windows: 6,
        windows_missed,
    };
    let memory = MemoryLatency {
        ordinary_ns: 110.0,
        huge_ns: 85.0,
    };
    Measured {
        gaps: vec![gaps],
        memory,
    }
}

#[test]
fn the_verdict_is_of_what_was_read_and_measured() {
    let diagnose = |machine: &Written, measured: Option<Measured>| {
        let purpose = purpose(&[2, 3]);
        Diagnosis::new(machine, &purpose, examine(machine, &purpose), measured)
    };
    let quiet = measured(0, Nanos::from_micros(30));
    let diagnosis = diagnose(&tuned(), Some(quiet.clone()));
    assert!(diagnosis.verdict.realistic, "{diagnosis:#?}");
    assert_eq!(diagnosis.machine, "Xeon Test, Linux 6.12.1");
    assert_eq!(diagnosis.cores, "2-3");
    let noisy = diagnose(&tuned(), Some(measured(1, Nanos::from_millis(4))));
    assert!(!noisy.verdict.realistic);
    assert_eq!(noisy.findings[0].check, "scheduling-gaps");
    assert!(
        noisy.verdict.because.contains("the longest 4000 us; 1 of 6"),
        "{noisy:#?}"
    );
    // One long gap that makes few packets late is a cost only.
    let once = diagnose(&tuned(), Some(measured(0, Nanos::from_micros(300))));
    assert!(once.verdict.realistic);
    assert_eq!(once.findings[0].severity, Severity::Costs);
    let throttled = tuned().file("/sys/fs/cgroup/system.slice/cpu.max", "100000 100000");
    let diagnosis = diagnose(&throttled, Some(quiet));
    assert!(!diagnosis.verdict.realistic);
    assert!(diagnosis.verdict.because.starts_with("processor-quota: 1.0 cores"));
    assert!(diagnose(&tuned(), None).verdict.realistic);
}
