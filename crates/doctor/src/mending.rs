//! Plan of mending: for each finding what is done, how it is undone, and where it must be done if not here.

use crate::action::{Action, Undo};
use crate::environment::{Container, Environment, Host};
use crate::{Finding, Severity, System};

/// Step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A change that can be made here.
    Change {
        /// The change.
        action: Action,
        /// How it is undone.
        undo: Undo,
    },
    /// A command for the user.
    ByHand {
        /// The command.
        command: String,
        /// Reason for which the program does not run it.
        reason: &'static str,
    },
    /// Nothing here helps: where the setting is.
    Elsewhere(String),
}

/// Plan for a finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Mending<'f> {
    /// The finding.
    pub finding: &'f Finding,
    /// Steps, in order. Empty if nothing is known to help.
    pub steps: Vec<Step>,
}

/// Plans how to mend all findings that are problems.
pub fn plan<'f>(findings: &'f [Finding], system: &dyn System, environment: &Environment) -> Vec<Mending<'f>> {
    let bad = findings.iter().filter(|finding| finding.severity < Severity::Unknown);
    let mendings = bad.map(|finding| {
        let mut steps = Vec::new();
        if let Some(place) = elsewhere(finding.check, environment) {
            steps.push(Step::Elsewhere(place));
        }
        // In a container the kernel's settings are read-only or those of the host, for all its programs.
        let here = environment.container.is_none();
        steps.extend(finding.actions.iter().filter(|_| here).map(|action| match action {
            Action::ByHand(command) => Step::ByHand {
                command: command.clone(),
                reason: by_hand(command),
            },
            action => Step::Change {
                undo: action.undo(system),
                action: action.clone(),
            },
        }));
        Mending { finding, steps }
    });
    mendings.collect()
}

fn by_hand(command: &str) -> &'static str {
    if command.contains("update-grub") {
        "changes the kernel's command line for good, and restarts the machine"
    } else if command.contains("apt install") {
        "installs software"
    } else if command.contains("cargo build") {
        "builds another program, in a folder that this one does not know"
    } else if command.contains("noiommu") {
        "gives a NIC access to all memory"
    } else {
        "grants rights for good"
    }
}

/// Settings of the kernel that all its containers share.
const OF_THE_KERNEL: [&str; 13] = [
    "huge-pages",
    "transparent-huge-pages",
    "isolated-cores",
    "programs-on-cores",
    "interrupts",
    "smt-siblings",
    "real-time-throttling",
    "frequency",
    "sleep-states",
    "clock",
    "iommu",
    "cache-partitions",
    "performance-counters",
];

/// Where to change what cannot be changed here, or `None`.
fn elsewhere(check: &str, environment: &Environment) -> Option<String> {
    let mut places: Vec<String> = Vec::new();
    let container = environment
        .container
        .and_then(|container| in_container(check, container));
    places.extend(container.map(str::to_owned));
    if environment.virtual_machine
        && let Some(host) = environment.host
        && let Some(place) = by_hypervisor(check, host)
    {
        match host {
            Host::Unknown => places.push(format!("hypervisor: {place}")),
            host => places.push(format!("{}: {place}", host.name())),
        }
    }
    (!places.is_empty()).then(|| places.join("; "))
}

fn in_container(check: &str, container: Container) -> Option<&'static str> {
    let pod = container == Container::Kubernetes;
    Some(match check {
        "processor-quota" if pod => {
            "in the pod: whole CPUs, requests equal to limits (Guaranteed); on the node: \
             `cpuManagerPolicy: static` or `cpuCFSQuota: false` of the kubelet"
        }
        "processor-quota" => "of the container: start it without --cpus and --cpu-quota, with --cpuset-cpus",
        "huge-pages" if pod => "on the node: reserve them, restart the kubelet; in the pod: limits `hugepages-2Mi`",
        "huge-pages" => "on the host: reserve them; then start the container with -v /dev/hugepages:/dev/hugepages",
        "isolated-cores" | "programs-on-cores" if pod => {
            "on the node: `cpuManagerPolicy: static` and `reservedSystemCPUs` of the kubelet, and isolcpus for the \
             others"
        }
        "real-time-priority" if pod => "in the pod: securityContext.capabilities.add: [SYS_NICE]",
        "real-time-priority" => "of the container: start it with --cap-add SYS_NICE --ulimit rtprio=50",
        "packet-sockets" if pod => "in the pod: securityContext.capabilities.add: [NET_RAW]",
        "packet-sockets" => "of the container: start it with --cap-add NET_RAW",
        "dpdk" => "in the image: DPDK and the NIC's driver",
        "nics" | "numa" if pod => "on the node: a device plugin or Multus gives the pod a NIC",
        "nics" | "numa" => "of the container: start it with --network host, or move an interface into it",
        check if OF_THE_KERNEL.contains(&check) && pod => {
            "on the node, whose kernel it is: `tailwater doctor --fix` there"
        }
        check if OF_THE_KERNEL.contains(&check) => "on the host, whose kernel it is: `tailwater doctor --fix` there",
        "scheduling-gaps" => "on the host: no other program on these cores",
        _ => return None,
    })
}

fn by_hypervisor(check: &str, host: Host) -> Option<&'static str> {
    Some(match (check, host) {
        ("scheduling-gaps", Host::Aws) => {
            "gaps that remain with isolated cores are its own: a .metal size, or a dedicated host; no burstable \
             (t) size"
        }
        ("scheduling-gaps", Host::Azure) => {
            "gaps that remain with isolated cores are its own: an isolated size, or a dedicated host; no \
             burstable (B) size"
        }
        ("scheduling-gaps", Host::Gcp) => {
            "gaps that remain with isolated cores are its own: sole-tenant nodes, or a bare-metal type; no \
             shared-core (e2-micro, e2-small, e2-medium) type"
        }
        ("scheduling-gaps", _) => "gaps that remain with isolated cores are its own: pin its virtual CPUs",
        ("smt-siblings", Host::Aws) => "at launch: --cpu-options ThreadsPerCore=1",
        ("smt-siblings", Host::Gcp) => "on the stopped machine: --threads-per-core=1",
        ("smt-siblings", Host::Azure) => "choose a size whose virtual CPUs are whole cores",
        ("iommu", Host::Aws | Host::Azure | Host::Gcp) => {
            "virtual machines get no IOMMU: a bare-metal size, or vfio-pci in no-IOMMU mode"
        }
        ("iommu", Host::Kvm) => "add a virtual IOMMU to the machine (intel-iommu or virtio-iommu)",
        ("cache-partitions" | "performance-counters", Host::Aws | Host::Azure | Host::Gcp) => {
            "virtual machines of most sizes get none: a bare-metal size has them"
        }
        ("cache-partitions" | "performance-counters", _) => "it does not pass them on",
        ("clock", Host::Aws | Host::Gcp | Host::Kvm) => "a newer size or processor passes an invariant counter on",
        ("memory-latency", _) => "other machines on the host share its caches and memory",
        _ => return None,
    })
}
