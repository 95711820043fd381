//! Machines with one problem each.

use super::*;
use description::stat;

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
            "packet-sockets",
            tuned().file("/proc/self/status", "CapEff:\t000001ffffffdfff"),
            Missing,
            "not permitted",
            "setcap cap_net_raw+ep",
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

/// Regression: AMD machines were told to boot with parameters of Intel's IOMMU and idle driver.
#[test]
fn an_amd_machine_gets_no_command_for_intel() {
    let info = |vendor: &str, flags: &str| format!("vendor_id\t: {vendor}\nflags\t\t: {flags}\n");
    let flags = "constant_tsc nonstop_tsc cat_l3";
    let off = |info: &str| {
        tuned()
            .file("/proc/cpuinfo", info)
            .without("/sys/class/iommu")
            .file(&format!("{CPU}/cpu2/cpuidle/state2/disable"), "0")
    };
    for vendor in ["AuthenticAMD", "HygonGenuine", "Unknown"] {
        let machine = off(&info(vendor, flags));
        let sleeps = bad(&machine, "sleep-states");
        assert!(sleeps.fix.join("\n").contains("processor.max_cstate=1"), "{sleeps:?}");
        for finding in findings(&machine) {
            let fix = finding.fix.join("\n");
            assert!(!fix.contains("intel"), "{vendor}: {fix}");
        }
    }
    let amd = off(&info("AuthenticAMD", flags));
    let found = |machine: &Written| bad(machine, "iommu").found;
    assert_eq!(
        found(&amd),
        "disabled in the firmware (AMD-Vi), or the machine has none"
    );
    let disabled = amd.file("/proc/cmdline", "BOOT_IMAGE=/vmlinuz quiet amd_iommu=off\n");
    assert_eq!(
        found(&disabled),
        "disabled by amd_iommu=off on the kernel's command line"
    );
    let intel = bad(&off(&info("GenuineIntel", flags)), "iommu");
    assert!(intel.fix[0].contains("intel_iommu=on iommu=pt"), "{intel:?}");
    let guest = bad(&off(&info("GenuineIntel", &format!("{flags} hypervisor"))), "iommu");
    assert_eq!(guest.found, "off, or the hypervisor provides none");
    assert!(!guest.fix.join("\n").contains("intel_iommu"), "{guest:?}");
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

/// Advice on DPDK is of use only to a program that has it.
#[test]
fn a_program_without_dpdk_is_told_how_to_get_one_with_it() {
    let purpose = Purpose {
        has_dpdk: false,
        ..purpose(&[2, 3])
    };
    let build = "cargo build --release --features dpdk";
    let without = tuned().without("/usr/lib/x").without("/sys/module/vfio_pci");
    for (machine, fix) in [
        (
            without.prints("pkg-config --modversion libdpdk", "21.11.0"),
            &[build][..],
        ),
        (Written::default(), &["sudo apt install libdpdk-dev dpdk", build]),
    ] {
        let all = examine(&machine, &purpose);
        let of = |check: &str| all.iter().filter(|finding| finding.check == check).collect::<Vec<_>>();
        let [dpdk] = of("dpdk")[..] else { panic!("{all:#?}") };
        assert!(dpdk.found.starts_with("this program was built without it"), "{dpdk:?}");
        assert_eq!(dpdk.severity, Severity::Missing);
        assert_eq!(dpdk.fix, fix);
        assert!(
            of("iommu").iter().all(|finding| finding.severity == Severity::Good),
            "{all:#?}"
        );
    }
}
