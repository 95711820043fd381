//! Descriptions of machines.

use std::collections::BTreeMap;
use tailwater_doctor::{Probe, System};

/// Machine described by files, links and program outputs. Directories follow from the paths.
#[derive(Clone, Default)]
pub struct Written {
    pub files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
    pub prints: BTreeMap<String, String>,
    /// Paths without read permission.
    forbidden: Vec<String>,
}

impl Written {
    pub fn file(mut self, path: &str, text: &str) -> Written {
        self.files.insert(path.to_owned(), text.to_owned());
        self
    }

    pub fn link(mut self, path: &str, to: &str) -> Written {
        self.links.insert(path.to_owned(), to.to_owned());
        self
    }

    pub fn prints(mut self, command: &str, text: &str) -> Written {
        self.prints.insert(command.to_owned(), text.to_owned());
        self
    }

    pub fn without(mut self, path: &str) -> Written {
        self.files.retain(|name, _| !name.starts_with(path));
        self
    }

    pub fn forbid(mut self, path: &str) -> Written {
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
pub fn stat(process: u32, name: &str, flags: u64, processor: usize) -> String {
    let mut fields = vec!["1".to_owned(); 52];
    fields[0] = process.to_string();
    fields[1] = format!("({name})");
    fields[2] = "S".to_owned();
    fields[8] = flags.to_string();
    fields[38] = processor.to_string();
    fields.join(" ")
}

pub const CPU: &str = "/sys/devices/system/cpu";

/// Returns a machine with four cores, the last two of them for packets, without any problem.
pub fn tuned() -> Written {
    let mut machine = Written::default()
        .file("/proc/sys/kernel/osrelease", "6.12.1\n")
        .file(
            "/proc/cpuinfo",
            "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon Test\n\
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
