//! Device checks without DPDK: existence, permissions, and the cause of a refusal.

use crate::error::{DpdkError, last_lines, of_device};
use crate::ffi;
use std::ffi::c_int;
use std::fs;
use std::path::Path;
use tailwater_api::PortName;

/// Index of a kernel interface, which tells it from a later one of the same name.
pub(super) fn interface_number(name: &str) -> Option<String> {
    fs::read_to_string(Path::new("/sys/class/net").join(name).join("ifindex")).ok()
}

/// Checks for problems that DPDK would not report.
pub(super) fn check(name: &PortName) -> Result<(), String> {
    if let Some(interface) = name.interface()
        && interface_number(interface).is_none()
    {
        return Err(format!(
            "no interface \"{interface}\" in this network namespace (see ip link)"
        ));
    }
    if name.is_pci() {
        let folder = Path::new("/sys/bus/pci/devices").join(name.device());
        if !folder.exists() {
            return Err("no such PCI device (see lspci -D)".to_owned());
        }
        let driver = fs::read_link(folder.join("driver")).ok();
        let driver = driver.as_ref().and_then(|d| d.file_name()?.to_str());
        // NVIDIA NICs stay bound to the kernel's driver.
        let bound = !matches!(
            driver,
            None | Some("vfio-pci" | "uio_pci_generic" | "igb_uio" | "mlx4_core" | "mlx5_core")
        );
        if bound {
            return Err(format!(
                "bound to the kernel driver {}: dpdk-devbind.py --bind=vfio-pci {} (see docs/how-to/use-ports.md)",
                driver.unwrap_or_default(),
                name.device()
            ));
        }
        if driver.is_none() {
            return Err(format!(
                "no driver bound: dpdk-devbind.py --bind=vfio-pci {} (see docs/how-to/use-ports.md)",
                name.device()
            ));
        }
    }
    Ok(())
}

/// Error for a device that refused an operation, with the cause from DPDK's latest log lines.
pub(super) fn refused(name: &PortName, what: &str, code: c_int) -> DpdkError {
    of_refusal(name, what, code, &ffi::said())
}

pub(super) fn of_refusal(name: &PortName, what: &str, code: c_int, said: &str) -> DpdkError {
    let denied = said.contains("not permitted") || said.contains("ermission denied");
    if denied || !may_use(name) {
        let driver = name.driver().unwrap_or("it");
        return DpdkError::Port {
            port: name.to_string(),
            problem: format!(
                "no permission: {driver} requires root, or CAP_NET_RAW and CAP_NET_ADMIN ({})",
                last_lines(said)
            ),
        };
    }
    of_device(name, what, code, said)
}

/// Returns `true` if this process has the capabilities that kernel devices need to come up. Root in a container may
/// lack them, and drivers then report misleading causes.
fn may_use(name: &PortName) -> bool {
    const NET_ADMIN: u64 = 1 << 12;
    const NET_RAW: u64 = 1 << 13;
    let needed = match name.driver() {
        Some("net_af_packet") => NET_RAW,
        Some("net_af_xdp") => NET_ADMIN | NET_RAW,
        Some("net_tap") => NET_ADMIN,
        _ => return true,
    };
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| {
        let mask = line.strip_prefix("CapEff:")?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    effective.is_none_or(|effective| effective & needed == needed)
}
