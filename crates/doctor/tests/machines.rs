//! Examinations of described machines.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tailwater_doctor::{Diagnosis, Finding, Gaps, Measured, MemoryLatency, Probe, Purpose, Severity, System, examine};
use tailwater_net::Nanos;

/// Machine described by files, links and program outputs. Directories follow from the paths.
#[derive(Clone, Default)]
struct Written {
    files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
    prints: BTreeMap<String, String>,
    /// Paths without read permission.
    forbidden: Vec<String>,
}

impl Written {
    fn file(mut self, path: &str, text: &str) -> Written {
        self.files.insert(path.to_owned(), text.to_owned());
        self
    }

    fn link(mut self, path: &str, to: &str) -> Written {
        self.links.insert(path.to_owned(), to.to_owned());
        self
    }

    fn prints(mut self, command: &str, text: &str) -> Written {
        self.prints.insert(command.to_owned(), text.to_owned());
        self
    }

    fn without(mut self, path: &str) -> Written {
        self.files.retain(|name, _| !name.starts_with(path));
        self
    }

    fn forbid(mut self, path: &str) -> Written {
        self.forbidden.push(path.to_owned());
        self
    }

    fn is_forbidden(&self, path: &str) -> bool {
        self.forbidden.iter().any(|start| path.starts_with(start))
    }
}

impl System for Written {
    fn read(&self, path: &str) -> Probe<String> {
        match self.files.get(path) {
            _ if self.is_forbidden(path) => Probe::Forbidden,
            Some(text) => Probe::Value(text.trim().to_owned()),
            None => Probe::Absent,
        }
    }

    fn list(&self, path: &str) -> Probe<Vec<String>> {
        if self.is_forbidden(path) {
            return Probe::Forbidden;
        }
        let all = self.files.keys().chain(self.links.keys());
        let mut names: Vec<String> = all
            .filter_map(|name| name.strip_prefix(path)?.strip_prefix('/'))
            .map(|rest| rest.split('/').next().unwrap_or(rest).to_owned())
            .collect();
        names.sort();
        names.dedup();
        match names.is_empty() {
            true => Probe::Absent,
            false => Probe::Value(names),
        }
    }

    fn link(&self, path: &str) -> Probe<String> {
        self.links
            .get(path)
            .map_or(Probe::Absent, |to| Probe::Value(to.clone()))
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Probe<String> {
        let command = [&[program], arguments].concat().join(" ");
        self.prints
            .get(&command)
            .map_or(Probe::Absent, |text| Probe::Value(text.clone()))
    }
}

/// Returns a `/proc/PID/stat` line. Of its 52 fields, the second is in parentheses, the ninth is the flags and the 39th
/// the processor.
fn stat(process: u32, name: &str, flags: u64, processor: usize) -> String {
    let mut fields = vec!["1".to_owned(); 52];
    fields[0] = process.to_string();
    fields[1] = format!("({name})");
    fields[2] = "S".to_owned();
    fields[8] = flags.to_string();
    fields[38] = processor.to_string();
    fields.join(" ")
}

const CPU: &str = "/sys/devices/system/cpu";

/// Returns a machine with four cores, the last two of them for packets, without any problem.
fn tuned() -> Written {
    let mut machine = Written::default()
        .file("/proc/sys/kernel/osrelease", "6.12.1\n")
        .file(
            "/proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Xeon Test\n\
             flags\t\t: fpu tsc constant_tsc nonstop_tsc cat_l3 cdp_l3 cqm_occup_llc cqm_mbm_total mba\n",
        )
        .file(
            "/proc/meminfo",
            "MemTotal:       65536000 kB\nHugePages_Total:    2048\nHugePages_Free:     2000\n\
             Hugepagesize:       2048 kB\n",
        )
        .file(
            "/proc/mounts",
            "hugetlbfs /dev/hugepages hugetlbfs rw 0 0\nresctrl /sys/fs/resctrl resctrl rw 0 0\n",
        )
        .file("/sys/fs/resctrl/info/L3/cbm_mask", "fffff\n")
        .file("/sys/fs/resctrl/info/L3/shareable_bits", "c0000\n")
        .file("/sys/fs/resctrl/info/L3/num_closids", "16\n")
        .file(
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "always [madvise] never\n",
        )
        .file(&format!("{CPU}/online"), "0-3\n")
        .file(&format!("{CPU}/isolated"), "2-3\n")
        .file(&format!("{CPU}/nohz_full"), "2-3\n")
        .file("/proc/1/stat", &stat(1, "systemd", 0x40_0100, 0))
        // A kernel thread bound to an isolated core, with parentheses in its name.
        .file("/proc/30/stat", &stat(30, "a (b) c", 0x420_8040, 2))
        .file(
            "/proc/interrupts",
            "           CPU0       CPU1       CPU2       CPU3\n\
             \x20 24:      10000        200          0          0  PCI-MSI 1 nvme0q0\n\
             \x20 25:          0          0          7          0  PCI-MSI 2 eth0-rx-0\n\
             NMI:          1          1          1          1   Non-maskable interrupts\n",
        )
        .file("/proc/irq/24/effective_affinity_list", "0")
        // Served on an isolated core earlier, but no longer.
        .file("/proc/irq/25/effective_affinity_list", "1")
        .file("/proc/sys/kernel/sched_rt_runtime_us", "-1")
        .file("/proc/sys/kernel/sched_rt_period_us", "1000000")
        .file("/proc/self/status", "Name:\ttailwater\nCapEff:\t000001ffffffffff\n")
        .file("/proc/self/cgroup", "0::/system.slice/tailwater.service\n")
        .file("/sys/fs/cgroup/system.slice/tailwater.service/cpu.max", "max 100000\n")
        .file(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            "tsc\n",
        )
        .file("/sys/devices/system/node/node0/cpulist", "0-3\n")
        .file("/sys/class/net/eth0/device/numa_node", "0\n")
        .file("/sys/class/net/eth0/queues/rx-0/rps_cpus", "0")
        .file("/sys/class/net/eth0/queues/rx-1/rps_cpus", "0")
        .file("/sys/class/net/lo/mtu", "65536")
        .link("/sys/class/net/eth0/device", "0000:3b:00.0")
        .link("/sys/class/net/eth0/device/driver", "mlx5_core")
        .prints(
            "ethtool -x eth0",
            "RX flow hash indirection table for eth0 with 2 RX ring(s):\n    \
             0:      0     1     0     1     0     1     0     1\n    \
             8:      0     1     0     1     0     1     0     1\nRSS hash key:\n6d:5a:56:da\n",
        )
        .prints("pkg-config --modversion libdpdk", "24.11.2")
        .prints("pkg-config --variable=libdir libdpdk", "/usr/lib/x")
        .file("/usr/lib/x/dpdk/pmds-25.0/librte_net_mlx5.so.25", "")
        .file("/sys/class/iommu/dmar0/version", "")
        .file("/sys/module/vfio_pci/refcnt", "0")
        .file("/sys/bus/event_source/devices/cpu/type", "4")
        .file("/proc/sys/kernel/perf_event_paranoid", "1");
    for core in 0..4 {
        let folder = format!("{CPU}/cpu{core}");
        machine = machine
            .file(&format!("{folder}/topology/thread_siblings_list"), &core.to_string())
            .file(&format!("{folder}/cache/index0/level"), "1")
            .file(&format!("{folder}/cache/index0/shared_cpu_list"), &core.to_string())
            .file(&format!("{folder}/cache/index3/level"), "3")
            .file(&format!("{folder}/cache/index3/shared_cpu_list"), "0-3")
            .file(&format!("{folder}/cpufreq/scaling_governor"), "performance")
            .file(&format!("{folder}/cpuidle/state0/name"), "POLL")
            .file(&format!("{folder}/cpuidle/state0/latency"), "0")
            .file(&format!("{folder}/cpuidle/state1/name"), "C1")
            .file(&format!("{folder}/cpuidle/state1/latency"), "2")
            .file(&format!("{folder}/cpuidle/state2/name"), "C6")
            .file(&format!("{folder}/cpuidle/state2/latency"), "170")
            .file(&format!("{folder}/cpuidle/state2/disable"), "1");
    }
    machine
}

fn purpose(cores: &[usize]) -> Purpose {
    Purpose {
        slo: Nanos::from_micros(200),
        cores: cores.to_vec(),
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

/// Introduces one problem at a time and checks the finding, its severity and its command.
#[test]
fn each_thing_that_is_wrong_is_found_with_its_command() {
    use Severity::{Costs, Missing, Prevents, Unknown};
    let cpu = |rest: &str| format!("{CPU}/{rest}");
    let meminfo =
        |total: u32, free: u32| format!("HugePages_Total: {total}\nHugePages_Free: {free}\nHugepagesize: 2048 kB\n");
    let busy = stat(1, "a) b", 0x40_0100, 3);
    let v1 = |quota: &str| {
        tuned()
            .file("/proc/self/cgroup", "3:cpuset:/\n1:cpu,cpuacct:/box\n")
            .file("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", quota)
            .file("/sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000")
    };
    let cases: &[(&str, Written, Severity, &str, &str)] = &[
        (
            "huge-pages",
            tuned().file("/proc/meminfo", &meminfo(0, 0)),
            Costs,
            "0 MiB",
            "vm.nr_hugepages=512",
        ),
        (
            "huge-pages",
            tuned().file("/proc/meminfo", &meminfo(600, 0)),
            Costs,
            "in use",
            "vm.nr_hugepages=1112",
        ),
        (
            "huge-pages",
            tuned().file("/proc/mounts", "resctrl /r resctrl rw 0 0"),
            Costs,
            "no hugetlbfs",
            "mount -t hugetlbfs",
        ),
        (
            "transparent-huge-pages",
            tuned().file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
            Costs,
            "disabled",
            "echo madvise",
        ),
        (
            "isolated-cores",
            tuned().file(&cpu("isolated"), "3"),
            Costs,
            "not isolated: 2",
            "isolcpus=2-3",
        ),
        (
            "isolated-cores",
            tuned().file(&cpu("nohz_full"), "(null)"),
            Costs,
            "tick is on for 2-3",
            "nohz_full=2-3",
        ),
        (
            "programs-on-cores",
            tuned().file("/proc/1/stat", &busy),
            Costs,
            "on 2-3: a) b (1)",
            "taskset -apc 0-1 1",
        ),
        (
            "interrupts",
            tuned().file("/proc/irq/25/effective_affinity_list", "2"),
            Costs,
            "eth0-rx-0 (IRQ 25)",
            "echo 0-1 | sudo tee /proc/irq/25/",
        ),
        (
            "smt-siblings",
            tuned().file(&cpu("cpu3/topology/thread_siblings_list"), "1,3"),
            Costs,
            "1 share cores with 2-3",
            "cpu1/online",
        ),
        (
            "smt-siblings",
            tuned().file(&cpu("cpu3/topology/thread_siblings_list"), "2-3"),
            Costs,
            "threads of one core",
            "",
        ),
        (
            "smt-siblings",
            tuned().without(&cpu("cpu3/topology")),
            Unknown,
            "not reported",
            "",
        ),
        (
            "real-time-throttling",
            tuned().file("/proc/sys/kernel/sched_rt_runtime_us", "950000"),
            Costs,
            "50 ms of each 1000",
            "sched_rt_runtime_us=-1",
        ),
        (
            "real-time-priority",
            tuned().file("/proc/self/status", "CapEff:\t0000000000000000"),
            Costs,
            "not allowed",
            "rtprio",
        ),
        (
            "real-time-priority",
            v1("-1").file("/sys/fs/cgroup/cpu/box/cpu.rt_runtime_us", "0"),
            Costs,
            "/box has no",
            "cpu.rt_runtime_us",
        ),
        (
            "processor-quota",
            tuned().file("/sys/fs/cgroup/system.slice/cpu.max", "150000 100000"),
            Prevents,
            "1.5 cores",
            "/sys/fs/cgroup/system.slice/cpu.max",
        ),
        (
            "processor-quota",
            v1("50000"),
            Prevents,
            "0.5 cores for the control group /box",
            "echo -1 | sudo tee /sys/fs/cgroup/cpu/box/cpu.cfs_quota_us",
        ),
        (
            "frequency",
            tuned().file(&cpu("cpu2/cpufreq/scaling_governor"), "powersave"),
            Costs,
            "powersave",
            "echo performance",
        ),
        (
            "sleep-states",
            tuned().file(&cpu("cpu2/cpuidle/state2/disable"), "0"),
            Costs,
            "C6, with a wake-up time of 170 us",
            "idle-set -D 20",
        ),
        (
            "sleep-states",
            tuned().file(&cpu("cpu2/cpuidle/state1/latency"), "300"),
            Prevents,
            "300 us",
            "idle-set",
        ),
        (
            "clock",
            tuned().file(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                "hpet",
            ),
            Costs,
            "hpet",
            "echo tsc",
        ),
        (
            "clock",
            tuned().file("/proc/cpuinfo", "flags: tsc cat_l3"),
            Costs,
            "no invariant",
            "",
        ),
        (
            "numa",
            tuned().file("/sys/devices/system/node/node0/cpulist", "0-2"),
            Costs,
            "processed on 3",
            "",
        ),
        (
            "nics",
            tuned()
                .prints(
                    "ethtool -x eth0",
                    "RX flow hash indirection table for eth0 with 1 RX ring(s):\nOperation not supported",
                )
                .prints("ethtool --version", "6.1"),
            Missing,
            "no RSS table",
            "",
        ),
        (
            "dpdk",
            tuned().prints("pkg-config --modversion libdpdk", "21.11.0"),
            Missing,
            "21.11.0",
            "",
        ),
        (
            "dpdk",
            tuned().without("/usr/lib/x"),
            Missing,
            "librte_net_mlx5 for eth0",
            "apt install",
        ),
        (
            "iommu",
            tuned().without("/sys/module/vfio_pci"),
            Missing,
            "not loaded",
            "modprobe",
        ),
        (
            "iommu",
            tuned().without("/sys/class/iommu"),
            Missing,
            "off",
            "intel_iommu=on",
        ),
        (
            "cache-partitions",
            tuned().file("/proc/mounts", "hugetlbfs /h hugetlbfs rw 0 0"),
            Missing,
            "not mounted",
            "mount -t resctrl",
        ),
        (
            "cache-partitions",
            tuned().file("/proc/cpuinfo", "flags: constant_tsc nonstop_tsc"),
            Missing,
            "neither CAT",
            "",
        ),
        (
            "performance-counters",
            tuned().file("/proc/sys/kernel/perf_event_paranoid", "3"),
            Missing,
            "root",
            "perf_event_paranoid=1",
        ),
        (
            "performance-counters",
            tuned().without("/sys/bus/event_source"),
            Missing,
            "virtual machines",
            "",
        ),
        (
            "interrupts",
            tuned().forbid("/proc/interrupts"),
            Unknown,
            "cannot be read",
            "",
        ),
    ];
    for (check, machine, severity, found, command) in cases {
        let finding = bad(machine, check);
        assert_eq!(finding.severity, *severity, "{finding:?}");
        assert!(finding.found.contains(found), "{found}: {finding:?}");
        assert_eq!(finding.fix.is_empty(), command.is_empty(), "{finding:?}");
        let commands = finding.fix.join("\n");
        assert!(commands.contains(command), "{command}: {finding:?}");
        // A problem has an effect; an unknown state has none.
        assert_eq!(finding.why.is_empty(), *severity == Unknown, "{finding:?}");
    }
}

/// Without `resctrl` the pirate thread is used and the reason reported. Without another core, neither is available.
#[test]
fn how_the_cache_is_divided_is_told() {
    let no_cat = || tuned().file("/proc/cpuinfo", "flags: constant_tsc nonstop_tsc");
    let no_mount = || tuned().file("/proc/mounts", "hugetlbfs /h hugetlbfs rw 0 0");
    let told = |machine: &Written| {
        let all = findings(machine);
        let found = all.into_iter().find(|f| f.check == "cache-curves");
        found.map(|finding| (finding.severity, finding.found)).unwrap()
    };
    for (machine, why) in [
        (no_cat(), "no CAT"),
        (no_mount(), "the kernel has no resctrl"),
        (
            tuned().file("/proc/self/status", "CapEff:\t0000000000000000"),
            "resctrl requires root",
        ),
    ] {
        let found = format!("profile cache occupies cache of core 3 from core 0 (pirate): {why}");
        assert_eq!(told(&machine), (Severity::Good, found));
    }
    let (severity, found) = told(&no_mount().file("/proc/filesystems", "nodev\tresctrl\n"));
    assert_eq!(severity, Severity::Good);
    assert!(found.ends_with("(resctrl)"), "{found}");
    let alone = format!("{CPU}/cpu3/cache/index3/shared_cpu_list");
    let (severity, found) = told(&no_cat().file(&alone, "3"));
    assert_eq!(severity, Severity::Missing);
    assert_eq!(found, "no CAT, and no other core shares the cache of core 3");
    let (severity, _) = told(&no_cat().without(&format!("{CPU}/cpu3/cache")));
    assert_eq!(severity, Severity::Unknown);
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
