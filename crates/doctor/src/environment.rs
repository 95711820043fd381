//! Environment of a machine: hypervisor, cloud, container, Kubernetes. Read from files, without network.

use crate::text::is_guest;
use crate::{Probe, System};
use serde::Serialize;

/// Provider of a virtual machine, or its hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Host {
    /// Amazon EC2.
    Aws,
    /// Microsoft Azure.
    Azure,
    /// Google Compute Engine.
    Gcp,
    /// Hyper-V outside of Azure.
    HyperV,
    /// VMware.
    Vmware,
    /// VirtualBox.
    VirtualBox,
    /// Xen outside of EC2.
    Xen,
    /// QEMU or KVM.
    Kvm,
    /// A hypervisor that does not give its name.
    Unknown,
}

impl Host {
    /// Returns the name for display.
    pub fn name(self) -> &'static str {
        match self {
            Host::Aws => "Amazon EC2",
            Host::Azure => "Microsoft Azure",
            Host::Gcp => "Google Compute Engine",
            Host::HyperV => "Hyper-V",
            Host::Vmware => "VMware",
            Host::VirtualBox => "VirtualBox",
            Host::Xen => "Xen",
            Host::Kvm => "KVM",
            Host::Unknown => "an unnamed hypervisor",
        }
    }
}

/// Container that this process is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Container {
    /// A pod of Kubernetes.
    Kubernetes,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// Another one.
    Other,
}

impl Container {
    /// Returns the name for display.
    pub fn name(self) -> &'static str {
        match self {
            Container::Kubernetes => "a pod of Kubernetes",
            Container::Docker => "a container of Docker",
            Container::Podman => "a container of Podman",
            Container::Other => "a container",
        }
    }
}

/// Environment that limits which settings can be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Environment {
    /// Provider, also of a bare-metal instance; `None` on a machine of one's own.
    pub host: Option<Host>,
    /// Type of the instance or product, as the firmware names it.
    pub product: Option<String>,
    /// A hypervisor runs the machine.
    pub virtual_machine: bool,
    /// Container of this process.
    pub container: Option<Container>,
}

impl Environment {
    /// Reads the environment.
    pub fn of(system: &dyn System) -> Environment {
        let dmi = |name: &str| {
            system
                .read(&format!("/sys/class/dmi/id/{name}"))
                .value()
                .unwrap_or_default()
        };
        let virtual_machine = is_guest(system);
        let host = host(system, &dmi).or(virtual_machine.then_some(Host::Unknown));
        let product = dmi("product_name");
        Environment {
            product: (host.is_some() && !product.is_empty()).then_some(product),
            host,
            virtual_machine,
            container: container(system),
        }
    }

    /// Describes the environment, or returns nothing for a machine of one's own.
    pub fn words(&self) -> Option<String> {
        let mut parts: Vec<String> = Vec::new();
        if let Some(host) = self.host {
            let product = self
                .product
                .as_ref()
                .map_or(String::new(), |product| format!(" ({product})"));
            let kind = match self.virtual_machine {
                true => "virtual machine",
                false => "bare metal",
            };
            parts.push(format!("{kind} on {}{product}", host.name()));
        }
        parts.extend(self.container.map(|container| format!("in {}", container.name())));
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Asset tag of all virtual machines of Azure.
const AZURE: &str = "7783-7084-3265-9085-8269-3286-77";

fn host(system: &dyn System, dmi: &dyn Fn(&str) -> String) -> Option<Host> {
    let (vendor, product, firmware) = (dmi("sys_vendor"), dmi("product_name"), dmi("bios_version"));
    let xen = system
        .read("/sys/hypervisor/type")
        .value()
        .is_some_and(|text| text == "xen");
    Some(match vendor.as_str() {
        "Amazon EC2" => Host::Aws,
        "Google" => Host::Gcp,
        "Microsoft Corporation" if dmi("chassis_asset_tag") == AZURE => Host::Azure,
        "Microsoft Corporation" if product == "Virtual Machine" => Host::HyperV,
        "innotek GmbH" => Host::VirtualBox,
        "VMware, Inc." => Host::Vmware,
        "Xen" if firmware.contains("amazon") => Host::Aws,
        "Xen" => Host::Xen,
        "QEMU" | "Red Hat" | "KVM" | "OpenStack Foundation" => Host::Kvm,
        _ if product == "KVM" => Host::Kvm,
        _ if xen => Host::Xen,
        _ => return None,
    })
}

fn container(system: &dyn System) -> Option<Container> {
    let exists = |path: &str| system.read(path) != Probe::Absent;
    let groups = system.read("/proc/self/cgroup").value().unwrap_or_default();
    let mounts = system.read("/proc/mounts").value().unwrap_or_default();
    let mounted = |at: &str, is: &dyn Fn(&str, &str) -> bool| {
        mounts.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next() == Some(at) && is(words.next().unwrap_or(""), words.next().unwrap_or(""))
        })
    };
    let secrets = ["/run/secrets", "/var/run/secrets"].map(|folder| format!("{folder}/kubernetes.io/serviceaccount"));
    if groups.contains("kubepods") || secrets.iter().any(|at| mounted(at, &|_, _| true)) {
        return Some(Container::Kubernetes);
    }
    // Virtual machines whose disk was made from an image have the image's marks, too, but their own kernel and root.
    let is_read_only = |_: &str, options: &str| options.split(',').any(|option| option == "ro");
    let overlay = mounted("/", &|kind, _| kind == "overlay");
    if !overlay && !mounted("/proc/sys", &is_read_only) && !mounted("/sys", &is_read_only) {
        return None;
    }
    if exists("/.dockerenv") || groups.contains("/docker") {
        Some(Container::Docker)
    } else if exists("/run/.containerenv") || groups.contains("libpod") {
        Some(Container::Podman)
    } else {
        Some(Container::Other)
    }
}
