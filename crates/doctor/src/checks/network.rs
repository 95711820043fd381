//! Checks of the NICs: NUMA node and distribution of packets.

use super::cores::list;
use crate::cpus::CpuList;
use crate::finding::{Finding, Severity};
use crate::text::field;
use crate::{Probe, Purpose, System};

/// Network interface of a device.
pub(super) struct Interface {
    pub(super) name: String,
    /// Kernel driver.
    pub(super) driver: Option<String>,
    /// PCI address.
    address: Option<String>,
    node: Option<usize>,
    queues: usize,
}

/// Returns the interfaces of devices, without loopback, bridges and the like.
pub(super) fn interfaces_of(system: &dyn System) -> Vec<Interface> {
    const FOLDER: &str = "/sys/class/net";
    let names = system.list(FOLDER).value().unwrap_or_default();
    let device = |name: String| {
        let folder = format!("{FOLDER}/{name}");
        let address = system.link(&format!("{folder}/device")).value()?;
        let node = system.read(&format!("{folder}/device/numa_node")).value();
        let queues = system.list(&format!("{folder}/queues")).value().unwrap_or_default();
        Some(Interface {
            driver: system.link(&format!("{folder}/device/driver")).value(),
            address: Some(address),
            // The file contains -1 if there is only one node.
            node: node.and_then(|text| text.parse().ok()),
            queues: queues.iter().filter(|queue| queue.starts_with("rx-")).count(),
            name,
        })
    };
    names.into_iter().filter_map(device).collect()
}

/// Checks that NICs are on the cores' NUMA node and distribute flows to several queues.
pub(super) fn interfaces(system: &dyn System, purpose: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "nics";
    let found = interfaces_of(system);
    if found.is_empty() {
        let why = "chains can run on captures and presets, and on virtual devices";
        return vec![Finding::bad(CHECK, Severity::Missing, "no interface of a device", why)];
    }
    let mut findings = Vec::new();
    for interface in &found {
        findings.extend(far_cores(system, interface, purpose));
        findings.push(spread(system, interface));
    }
    findings
}

/// Bit of `CAP_NET_RAW`, which packet sockets require.
const NET_RAW: u32 = 13;

/// Checks that packet sockets are permitted.
pub(super) fn packet_sockets(system: &dyn System, _: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "packet-sockets";
    let status = system.read("/proc/self/status").value().unwrap_or_default();
    let capabilities = field(&status, "CapEff").and_then(|text| u64::from_str_radix(text, 16).ok());
    vec![match capabilities {
        None => Finding::unknown(CHECK, "the kernel does not report the capabilities of this process"),
        Some(bits) if bits >> NET_RAW & 1 != 0 => Finding::good(CHECK, "permitted (CAP_NET_RAW)"),
        Some(_) => {
            let why = "ports and external functions on kernel interfaces (interface=NAME) require them";
            Finding::bad(CHECK, Severity::Missing, "not permitted for this user", why)
                .fixed_by("sudo setcap cap_net_raw+ep \"$(command -v tailwater)\"")
        }
    }]
}

/// Reports cores on another NUMA node than the NIC.
fn far_cores(system: &dyn System, interface: &Interface, purpose: &Purpose) -> Option<Finding> {
    let node = interface.node?;
    let near = list(system, &format!("/sys/devices/system/node/node{node}/cpulist"));
    let far = CpuList::from(purpose.cores.clone()).without(&near);
    if near.is_empty() || far.is_empty() {
        return None;
    }
    let found = format!(
        "{} is on NUMA node {node} (cores {near}), but packets are processed on {far}",
        interface.name
    );
    let why = "every packet crosses between the nodes: 100 ns and more for each cache line";
    Some(Finding::bad("numa", Severity::Costs, found, why))
}

/// Reports how an interface distributes flows.
fn spread(system: &dyn System, interface: &Interface) -> Finding {
    const CHECK: &str = "nics";
    let Interface {
        name,
        driver,
        address,
        queues,
        ..
    } = interface;
    let what = format!(
        "{name} ({}, {}), {queues} queue{}",
        driver.as_deref().unwrap_or("no driver"),
        address.as_deref().unwrap_or("no address"),
        if *queues == 1 { "" } else { "s" }
    );
    let said = system.run("ethtool", &["-x", name]);
    let entries = said.clone().value().map_or(0, |text| table_entries(&text));
    if entries > 0 {
        return Finding::good(CHECK, format!("{what}; RSS by a table of {entries}"));
    }
    if said == Probe::Forbidden {
        return Finding::unknown(CHECK, format!("{what}; RSS settings are readable by root only"));
    }
    if system.run("ethtool", &["--version"]) == Probe::Absent {
        return Finding::unknown(
            CHECK,
            format!("{what}; RSS settings require ethtool, which is not installed"),
        )
        .fixed_by("sudo apt install ethtool");
    }
    let found = format!("{what}; no RSS table");
    let why = "Tailwater distributes flows to cores in software, which takes some nanoseconds per packet";
    Finding::bad(CHECK, Severity::Missing, found, why)
}

/// Counts the entries of the table printed by ethtool, with rows of `first entry: queue queue ...`.
fn table_entries(text: &str) -> usize {
    let rows = text.lines().filter_map(|line| line.trim().split_once(':'));
    let rows = rows.filter(|(first, _)| first.parse::<usize>().is_ok());
    rows.map(|(_, queues)| queues.split_whitespace().count()).sum()
}
