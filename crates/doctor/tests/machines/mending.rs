//! Environments, costs, and plans of mending.

use super::*;
use tailwater_doctor::{Action, Environment, Gaps, Measured, MemoryLatency, Step, Undo, plan};

/// Machine of a file: lines of a path and its text, and the words that are expected.
fn machine(file: &str) -> (Written, String) {
    let mut machine = Written::default();
    let mut expected = None;
    for line in file.lines().filter(|line| !line.starts_with('#')) {
        let (path, text) = line.split_once(' ').unwrap_or((line, ""));
        match path {
            "expect" => expected = Some(text.to_owned()),
            path => machine = machine.file(path, text),
        }
    }
    (machine, expected.expect("a line `expect`"))
}

#[test]
fn environments_are_told_by_their_files() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/machines/environments");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (machine, expected) = machine(&std::fs::read_to_string(&path).unwrap());
        let found = Environment::of(&machine).words().unwrap_or_default();
        assert_eq!(found, expected, "{}", path.display());
        count += 1;
    }
    assert!(count > 10, "{count}");
}

/// Returns the steps for a check in an environment.
fn steps(machine: &Written, check: &str, environment: &str) -> Vec<Step> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/machines/environments");
    let file = std::fs::read_to_string(format!("{folder}/{environment}.txt")).unwrap();
    let environment = Environment::of(&self::machine(&file).0);
    let findings = findings(machine);
    let mendings = plan(&findings, machine, &environment);
    let mending = mendings.into_iter().find(|mending| mending.finding.check == check);
    mending.unwrap_or_else(|| panic!("nothing bad of {check}")).steps
}

#[test]
fn a_change_can_be_undone_with_the_present_value() {
    let throttled = tuned().file("/proc/sys/kernel/sched_rt_runtime_us", "950000");
    let [Step::Change { action, undo }] = &steps(&throttled, "real-time-throttling", "own")[..] else {
        panic!("expected one change");
    };
    assert_eq!(action.command(), "sudo sysctl -w kernel.sched_rt_runtime_us=-1");
    let back = "sudo sysctl -w kernel.sched_rt_runtime_us=950000".to_owned();
    assert_eq!(*undo, Undo::By(vec![back]));
    let quota = tuned().file("/sys/fs/cgroup/system.slice/cpu.max", "100000 100000");
    let [Step::Change { undo, .. }] = &steps(&quota, "processor-quota", "own")[..] else {
        panic!("expected one change");
    };
    let back = "echo '100000 100000' | sudo tee /sys/fs/cgroup/system.slice/cpu.max".to_owned();
    assert_eq!(*undo, Undo::By(vec![back]));
    let hidden = Action::Move {
        process: 77,
        cores: "0-1".to_owned(),
    };
    assert!(matches!(hidden.undo(&tuned()), Undo::Not(_)));
}

#[test]
fn boot_parameters_and_packages_are_left_to_the_user() {
    let shared = tuned().file("/sys/devices/system/cpu/isolated", "");
    let steps = steps(&shared, "isolated-cores", "own");
    assert!(
        matches!(&steps[..], [Step::ByHand { command, reason }]
            if command.contains("isolcpus=2-3") && reason.contains("restarts the machine")),
        "{steps:?}"
    );
}

#[test]
fn in_a_container_the_place_of_the_setting_is_named_and_nothing_is_changed() {
    let quota = tuned()
        .file("/sys/fs/cgroup/system.slice/cpu.max", "100000 100000")
        .file("/proc/sys/kernel/sched_rt_runtime_us", "950000");
    for (environment, check, place) in [
        ("kubernetes-v1", "processor-quota", "cpuManagerPolicy: static"),
        ("docker", "processor-quota", "--cpuset-cpus"),
        ("kubernetes-aws", "real-time-throttling", "on the node"),
        ("podman", "real-time-throttling", "on the host"),
    ] {
        let steps = steps(&quota, check, environment);
        assert!(
            matches!(&steps[..], [Step::Elsewhere(found)] if found.contains(place)),
            "{environment} {check}: {steps:?}"
        );
    }
}

#[test]
fn clouds_are_named_where_the_hypervisor_decides() {
    let machine = tuned().without("/sys/class/iommu");
    for (environment, place) in [
        ("aws-nitro", "Amazon EC2: virtual machines get no IOMMU"),
        ("gcp", "Google Compute Engine: virtual machines get no IOMMU"),
        ("kvm", "KVM: add a virtual IOMMU"),
    ] {
        let steps = steps(&machine, "iommu", environment);
        let found = steps
            .iter()
            .any(|step| matches!(step, Step::Elsewhere(found) if found.contains(place)));
        assert!(found, "{environment}: {steps:?}");
    }
    // Bare metal of a cloud is a machine like any other.
    let steps = steps(&machine, "iommu", "aws-metal");
    assert!(
        !steps.iter().any(|step| matches!(step, Step::Elsewhere(_))),
        "{steps:?}"
    );
}

#[test]
fn costs_have_a_source() {
    let machine = tuned()
        .file("/sys/fs/cgroup/system.slice/cpu.max", "50000 100000")
        .file("/proc/sys/kernel/sched_rt_runtime_us", "950000")
        .file("/sys/devices/system/cpu/isolated", "");
    let gaps = Gaps {
        core: 2,
        watched: Nanos::from_secs(2),
        count: 100,
        all: Nanos::from_micros(2_000),
        longest: Nanos::from_micros(700),
        windows: 6,
        windows_missed: 0,
    };
    let memory = MemoryLatency {
        ordinary_ns: 110.0,
        huge_ns: 200.0,
    };
    let measured = Measured {
        gaps: vec![gaps],
        memory,
    };
    let purpose = purpose(&[2, 3]);
    let diagnosis = Diagnosis::new(&machine, &purpose, examine(&machine, &purpose), Some(measured));
    for (check, us, source) in [
        // Two threads use half a core's time in a quarter of the period.
        ("processor-quota", 75_000.0, "quota and period of the group"),
        (
            "real-time-throttling",
            50_000.0,
            "sched_rt_period_us - sched_rt_runtime_us",
        ),
        (
            "isolated-cores",
            20.0,
            "measured here: the mean of 50 gaps a second and core, of all causes",
        ),
        ("scheduling-gaps", 700.0, "measured here, on core 2"),
        ("memory-latency", 0.2, "measured here"),
    ] {
        let finding = diagnosis.findings.iter().find(|finding| finding.check == check);
        let cost = finding.and_then(|finding| finding.cost.as_ref());
        let cost = cost.unwrap_or_else(|| panic!("{check}: no cost"));
        assert!(
            (cost.us - us).abs() < 1e-6 && cost.source == source,
            "{check}: {cost:?}"
        );
    }
}
