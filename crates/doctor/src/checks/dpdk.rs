//! Checks of DPDK and its drivers.

use super::network::{Interface, interfaces_of};
use crate::finding::{Finding, Severity};
use crate::{Purpose, System};

const INSTALL: &str = "sudo apt install libdpdk-dev dpdk";

/// In the sources of Tailwater.
const BUILD: &str = "cargo build --release --features dpdk";

/// Range of supported DPDK releases: year and month.
const RELEASES: [(u32, u32); 2] = [(22, 11), (25, 11)];

/// Returns the DPDK driver for a kernel driver, where the names differ.
fn driver_for(kernel: &str) -> &str {
    match kernel {
        "mlx5_core" => "mlx5",
        "mlx4_core" => "mlx4",
        "virtio_net" | "virtio-pci" => "virtio",
        "bnxt_en" => "bnxt",
        "hv_netvsc" => "netvsc",
        "igb" | "igbvf" | "e1000e" => "e1000",
        "ixgbevf" => "ixgbe",
        same => same,
    }
}

/// Checks that the program was built with DPDK, and that it is installed in a supported release, with drivers for the
/// NICs.
pub(super) fn dpdk(system: &dyn System, purpose: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "dpdk";
    let why = "ports require it, apart from kernel interfaces (interface=NAME) and traffic";
    let version = system.run("pkg-config", &["--modversion", "libdpdk"]).value();
    if !purpose.has_dpdk {
        let found = "this program was built without it: build one with it in the sources of Tailwater";
        let finding = Finding::bad(CHECK, Severity::Missing, found, why);
        let finding = match version {
            None => finding.fixed_by(INSTALL),
            Some(_) => finding,
        };
        return vec![finding.fixed_by(BUILD)];
    }
    let Some(version) = version else {
        let found = "not found by pkg-config";
        return vec![Finding::bad(CHECK, Severity::Missing, found, why).fixed_by(INSTALL)];
    };
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().ok());
    let release = numbers.next().flatten().zip(numbers.next().flatten());
    let [first, last] = RELEASES;
    let mut findings = vec![match release {
        Some(release) if release >= first && release <= last => Finding::good(CHECK, format!("release {version}")),
        _ => {
            let found = format!("release {version}; supported are 22.11 to 25.11");
            Finding::bad(CHECK, Severity::Missing, found, why)
        }
    }];
    let Some(folder) = system.run("pkg-config", &["--variable=libdir", "libdpdk"]).value() else {
        return findings;
    };
    // Debian has a driver directory whose name contains the ABI version.
    let mut files = system.list(&folder).value().unwrap_or_default();
    for name in system.list(&format!("{folder}/dpdk")).value().unwrap_or_default() {
        files.extend(
            system
                .list(&format!("{folder}/dpdk/{name}"))
                .value()
                .unwrap_or_default(),
        );
    }
    for Interface { name, driver, .. } in interfaces_of(system) {
        let Some(driver) = driver.as_deref().map(driver_for) else {
            continue;
        };
        let library = format!("librte_net_{driver}.");
        if !files.iter().any(|file| file.starts_with(&library)) {
            let found = format!("no driver librte_net_{driver} for {name}");
            let why = "this NIC can be used through net_af_xdp or net_af_packet only, which are slower";
            findings.push(Finding::bad(CHECK, Severity::Missing, found, why).fixed_by(INSTALL));
        }
    }
    findings
}
