//! Values that several checks read from the kernel's files.

use crate::System;

/// Returns the processor's flags.
pub(crate) fn cpu_flags(system: &dyn System) -> Option<Vec<String>> {
    let text = system.read("/proc/cpuinfo").value()?;
    let line = text.lines().find(|line| line.starts_with("flags"))?;
    let (_, flags) = line.split_once(':')?;
    Some(flags.split_whitespace().map(str::to_owned).collect())
}

/// Maker of the processor, where the kernel's parameters depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vendor {
    Intel,
    Amd,
    Other,
}

/// Returns the maker of the processor.
pub(crate) fn vendor(system: &dyn System) -> Vendor {
    let text = system.read("/proc/cpuinfo").value().unwrap_or_default();
    let vendor = text.lines().find(|line| line.starts_with("vendor_id"));
    match vendor
        .and_then(|line| line.split_once(':'))
        .map(|(_, name)| name.trim())
    {
        Some("GenuineIntel") => Vendor::Intel,
        // Hygon's processors are AMD's design, with AMD's IOMMU.
        Some("AuthenticAMD" | "HygonGenuine") => Vendor::Amd,
        _ => Vendor::Other,
    }
}

/// Returns `true` if the machine is a virtual machine.
pub(crate) fn is_guest(system: &dyn System) -> bool {
    cpu_flags(system).is_some_and(|flags| flags.iter().any(|flag| flag == "hypervisor"))
}

/// Returns a value from text with lines of the form `name: value` or `name value`.
pub(crate) fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = rest.strip_prefix(':').or(rest.strip_prefix(' '))?;
        Some(value.trim())
    })
}

/// Returns the text between brackets, as in `always [madvise] never`.
pub(crate) fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}
