//! Check of IOMMU and VFIO, which give DPDK access to a NIC.

use crate::action::Action;
use crate::finding::{Finding, Severity, boot_with};
use crate::text::{Vendor, is_guest, vendor};
use crate::{Probe, Purpose, System};

/// Checks that a NIC can be passed to a program safely, if the program has DPDK.
pub(super) fn iommu(system: &dyn System, purpose: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "iommu";
    if !purpose.has_dpdk {
        return vec![Finding::good(
            CHECK,
            "not required: this program was built without DPDK",
        )];
    }
    let units = system.list("/sys/class/iommu").value().unwrap_or_default();
    let vfio = system.list("/sys/module/vfio_pci") != Probe::Absent;
    let parameter = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
    let unsafe_mode = system.read(parameter).value().is_some_and(|text| text == "Y");
    let load = "sudo modprobe vfio-pci";
    let why = "a NIC cannot be bound to vfio-pci for DPDK (NICs with a split driver, such as mlx5, need none)";
    vec![match (units.is_empty(), vfio) {
        (false, true) => Finding::good(CHECK, "on, with vfio-pci"),
        (false, false) => Finding::bad(CHECK, Severity::Missing, "on, but vfio-pci is not loaded", why)
            .fixed_by(Action::Load { module: "vfio-pci" }),
        (true, true) if unsafe_mode => {
            let why = "DPDK works, but a NIC has DMA access to all memory";
            Finding::bad(CHECK, Severity::Missing, "off; vfio-pci is in no-IOMMU mode", why)
        }
        (true, _) => off(system, why).fixed_by(format!(
            "{load} && echo 1 | sudo tee {parameter}  # without an IOMMU, at your own risk"
        )),
    }]
}

/// Returns the finding for a machine whose IOMMU is off or absent. Intel's is off by default in many kernels; AMD's is
/// on unless the firmware or the command line disables it.
fn off(system: &dyn System, why: &'static str) -> Finding {
    let bad = |found: &str| Finding::bad("iommu", Severity::Missing, found, why);
    if is_guest(system) {
        return bad("off, or the hypervisor provides none");
    }
    match vendor(system) {
        Vendor::Intel => bad("off, or the machine has none").fixed_by(boot_with("intel_iommu=on iommu=pt")),
        Vendor::Amd => {
            let line = system.read("/proc/cmdline").value().unwrap_or_default();
            let disabled = line
                .split_whitespace()
                .find(|word| ["amd_iommu=off", "iommu=off"].contains(word));
            match disabled {
                Some(word) => bad(&format!("disabled by {word} on the kernel's command line")),
                None => bad("disabled in the firmware (AMD-Vi), or the machine has none"),
            }
        }
        Vendor::Other => bad("off, or the machine has none"),
    }
}
