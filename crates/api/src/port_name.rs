//! Port names, as a user writes them.

use crate::error::SpecError;
use crate::located::Located;
use std::fmt;

/// Description of a PCI address in errors.
const PCI: &str = "a PCI address such as 0000:3b:00.1";
/// Description of a DPDK virtual device in errors.
const VIRTUAL: &str = "a DPDK virtual device such as net_af_packet0,iface=veth0";

/// Prefix of the name of a kernel interface.
const INTERFACE: &str = "interface=";
/// Part of an interface's name that stands for the worker's number, as in the kernel's own name templates.
const NUMBER: &str = "%d";
/// Longest name of a kernel interface, in bytes.
const MAX_INTERFACE: usize = 15;
/// Number of workers whose interfaces are compared: one per RSS bucket.
const MOST_WORKERS: u16 = 512;

/// Port: the PCI address of a NIC or of one of its virtual functions, a DPDK virtual device with its arguments, or a
/// kernel interface without DPDK.
///
/// ```
/// use tailwater_api::PortName;
/// let port: PortName = "interface=fw-in%d".parse().unwrap();
/// assert_eq!(port.interface_of(1).as_deref(), Some("fw-in1"));
/// let port: PortName = "net_af_packet0,iface=veth0".parse().unwrap();
/// assert_eq!((port.device(), port.driver()), ("net_af_packet0", Some("net_af_packet")));
/// assert_eq!(port.argument("iface"), Some("veth0"));
/// assert!("3b:00.1".parse::<PortName>().unwrap().is_pci());
/// assert!("eth0".parse::<PortName>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    /// Name in DPDK's syntax, or of a kernel interface.
    text: String,
    kind: Kind,
}

/// Kind of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pci,
    /// DPDK virtual device.
    Virtual,
    /// Kernel interface without DPDK.
    Kernel,
}

/// Error of an invalid port name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortNameError {
    /// The name is neither a PCI address nor a virtual device.
    #[error("expected {PCI}, or {VIRTUAL}, or a kernel interface such as {INTERFACE}veth0, found \"{0}\"")]
    Neither(String),
    /// The name resembles that of a kernel interface.
    #[error(
        "expected {PCI}, or {VIRTUAL}, found \"{0}\"; for the kernel's interface of that name write {INTERFACE}{0}, \
         or, through DPDK, net_af_packet0,iface={0}"
    )]
    Interface(String),
    /// The kernel has no interface of this name.
    #[error(
        "expected an interface's name of 1 to {MAX_INTERFACE} characters without blanks and any of \"/:,\", with at \
         most one {NUMBER} for the worker's number, found \"{0}\""
    )]
    InterfaceName(String),
    /// Numbered kernel interfaces, as the port of a chain.
    #[error(
        "expected one interface, which all cores of a port share, found {INTERFACE}{0}; {NUMBER} is for ports of \
         external functions"
    )]
    Numbered(String),
    /// An argument is not `key=value`.
    #[error("expected arguments as in {VIRTUAL}, found \"{0}\"")]
    Argument(String),
}

impl PortName {
    /// Parses a port named in a spec.
    pub fn parse(node: &Located<'_>) -> Result<PortName, SpecError> {
        let name = node.text("a port")?.parse::<PortName>();
        name.map_err(|error| node.error(error.to_string()))
    }

    /// Returns `true` if the port is a PCI device.
    pub fn is_pci(&self) -> bool {
        self.kind == Kind::Pci
    }

    /// Returns `true` if the port is a kernel interface that is used without DPDK.
    pub fn is_kernel(&self) -> bool {
        self.kind == Kind::Kernel
    }

    /// Returns `true` if each worker has a kernel interface of its own, numbered by `%d`.
    pub fn is_numbered(&self) -> bool {
        self.is_kernel() && self.text.contains(NUMBER)
    }

    /// Interface of the worker with this number, if the port is a kernel interface that is used without DPDK.
    pub fn interface_of(&self, worker: u16) -> Option<String> {
        let name = self.text.strip_prefix(INTERFACE).filter(|_| self.is_kernel())?;
        Some(name.replacen(NUMBER, &worker.to_string(), 1))
    }

    /// Returns the name if it can be a port of a chain.
    ///
    /// # Errors
    /// It is one of several kernel interfaces, which only external functions have.
    pub fn of_chain(self) -> Result<PortName, PortNameError> {
        match self.interface().filter(|_| self.is_numbered()) {
            None => Ok(self),
            Some(name) => Err(PortNameError::Numbered(name.to_owned())),
        }
    }

    /// Device without arguments: the PCI address, or the virtual device's name with its number.
    pub fn device(&self) -> &str {
        self.text.split(',').next().unwrap_or(&self.text)
    }

    /// Driver of a virtual device: its name without the number.
    pub fn driver(&self) -> Option<&str> {
        let driver = self.device().trim_end_matches(|c: char| c.is_ascii_digit());
        (self.kind == Kind::Virtual).then_some(driver)
    }

    /// Value of an argument.
    pub fn argument(&self, key: &str) -> Option<&str> {
        let arguments = self.text.split(',').skip(1);
        let mut arguments = arguments.filter_map(|argument| argument.split_once('='));
        arguments.find_map(|(name, value)| (name == key).then_some(value))
    }

    /// Kernel interface to which the port is bound, and which no other port may use. It may be
    /// [numbered](Self::is_numbered).
    pub fn interface(&self) -> Option<&str> {
        match self.driver() {
            None => self.text.strip_prefix(INTERFACE),
            Some("net_af_packet" | "net_af_xdp") => self.argument("iface"),
            _ => None,
        }
    }

    /// Returns `true` if both names refer to one device or one interface: a port can be used once.
    pub fn conflicts(&self, other: &PortName) -> bool {
        let interfaces = self.interface().zip(other.interface());
        self.device() == other.device() || interfaces.is_some_and(|(one, two)| may_be_one(one, two))
    }
}

/// Returns `true` if both names can be of one interface. Each may be numbered.
fn may_be_one(one: &str, two: &str) -> bool {
    let numbers = |name: &str| if name.contains(NUMBER) { MOST_WORKERS } else { 1 };
    one == two || (0..numbers(one)).any(|worker| is_numbered_as(two, &one.replacen(NUMBER, &worker.to_string(), 1)))
}

/// Returns `true` if `template` is this name, or becomes it with some number.
fn is_numbered_as(template: &str, name: &str) -> bool {
    let Some((before, behind)) = template.split_once(NUMBER) else {
        return template == name;
    };
    let number = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(behind));
    number.is_some_and(|number| number.parse::<u16>().is_ok_and(|parsed| parsed.to_string() == number))
}

/// Checks the name of a kernel interface, which may be numbered.
fn interface(name: &str) -> Result<PortName, PortNameError> {
    let shortest = name.replacen(NUMBER, "0", 1);
    let odd = |c: char| c.is_whitespace() || c.is_control() || "/:,%".contains(c);
    let fits = (1..=MAX_INTERFACE).contains(&shortest.len());
    match fits && !shortest.contains(odd) && shortest != "." && shortest != ".." {
        false => Err(PortNameError::InterfaceName(name.to_owned())),
        true => Ok(PortName {
            text: format!("{INTERFACE}{name}"),
            kind: Kind::Kernel,
        }),
    }
}

impl std::str::FromStr for PortName {
    type Err = PortNameError;

    fn from_str(text: &str) -> Result<PortName, PortNameError> {
        if let Some(name) = text.strip_prefix(INTERFACE) {
            return interface(name);
        }
        if let Some(address) = pci(text.split(',').next().unwrap_or_default()) {
            let arguments = text.split_once(',').map(|(_, arguments)| arguments);
            let text = match arguments {
                None => address,
                Some(arguments) => format!("{address},{arguments}"),
            };
            return checked(text, Kind::Pci);
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.@".contains(c);
        let name = text.split(',').next().unwrap_or_default();
        if name
            .strip_prefix("net_")
            .is_some_and(|rest| rest.len() > 1 && rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        {
            return checked(text.to_owned(), Kind::Virtual);
        }
        match (1..=MAX_INTERFACE).contains(&text.len()) && text.chars().all(plain) {
            true => Err(PortNameError::Interface(text.to_owned())),
            false => Err(PortNameError::Neither(text.to_owned())),
        }
    }
}

/// Creates a name after checking its arguments.
fn checked(text: String, kind: Kind) -> Result<PortName, PortNameError> {
    let wrong = |argument: &&str| match argument.split_once('=') {
        Some((key, _)) => key.is_empty(),
        None => true,
    };
    let odd = text.contains(|c: char| c.is_control() || c.is_whitespace());
    match text.split(',').skip(1).find(wrong) {
        Some(argument) => Err(PortNameError::Argument(argument.to_owned())),
        None if odd => Err(PortNameError::Neither(text)),
        None => Ok(PortName { text, kind }),
    }
}

/// Completes a PCI address with its domain, which may be omitted.
fn pci(text: &str) -> Option<String> {
    let hex = |text: &str, digits: usize| text.len() == digits && text.chars().all(|c| c.is_ascii_hexdigit());
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, slot) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
    let function_fits = hex(function, 1) && function < "8";
    (hex(domain, 4) && hex(bus, 2) && hex(slot, 2) && function_fits)
        .then(|| format!("{domain}:{bus}:{slot}.{function}").to_ascii_lowercase())
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> PortName {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_read_as_dpdk_reads_them() {
        for (text, device) in [
            ("3B:00.1", "0000:3b:00.1"),
            ("0001:3b:00.7", "0001:3b:00.7"),
            ("0000:3b:00.0,mprq_en=1", "0000:3b:00.0"),
        ] {
            assert!(name(text).is_pci());
            assert_eq!((name(text).device(), name(text).driver()), (device, None));
        }
        let memif = name("net_memif12,role=server,socket=/run/memif.sock,socket-abstract=no");
        assert_eq!(memif.driver(), Some("net_memif"));
        assert_eq!(memif.argument("socket"), Some("/run/memif.sock"));
        assert_eq!((memif.argument("rol"), memif.interface()), (None, None));
    }

    #[test]
    fn other_names_are_refused_with_a_hint() {
        let error = |text: &str| text.parse::<PortName>().unwrap_err().to_string();
        assert!(error("eth0").contains("write interface=eth0, or, through DPDK, net_af_packet0,iface=eth0"));
        for text in ["", "3b:00.8", "3b:0.1", "net_", "a:b", "net_ring 0", "0000:zz:00.0"] {
            assert!(error(text).contains("expected a PCI address"), "{text}");
        }
        assert!(error("net_null0,copy").ends_with("found \"copy\""));
        assert!(error("net_null0,=1").ends_with("found \"=1\""));
    }

    #[test]
    fn one_device_or_interface_is_one_port() {
        let packet = name("net_af_packet0,iface=veth0");
        assert!(packet.conflicts(&name("net_af_packet0,iface=veth1")));
        assert!(packet.conflicts(&name("net_af_xdp1,start_queue=0,iface=veth0")));
        assert!(!packet.conflicts(&name("net_af_packet1,iface=veth1")));
        assert!(!name("net_ring0").conflicts(&name("net_ring1")));
        assert!(name("3b:00.0").conflicts(&name("0000:3b:00.0,x=1")));
        let numbered = name("interface=veth%d");
        for (other, conflict) in [
            ("interface=veth%d", true),
            ("interface=veth0", true),
            ("interface=veth511", true),
            ("interface=veth01", false),
            ("interface=veth", false),
            ("interface=veth+1", false),
            ("interface=veth1%d", true),
            ("interface=out%d", false),
            ("net_af_packet0,iface=veth3", true),
            ("net_af_packet0,iface=veth3a", false),
        ] {
            assert_eq!(numbered.conflicts(&name(other)), conflict, "{other}");
            assert_eq!(name(other).conflicts(&numbered), conflict, "{other}");
        }
    }

    #[test]
    fn kernel_interfaces_are_named_and_numbered_by_worker() {
        let plain = name("interface=fw-in.7@x");
        assert!(plain.is_kernel() && !plain.is_numbered() && !plain.is_pci());
        assert_eq!((plain.driver(), plain.interface()), (None, Some("fw-in.7@x")));
        assert_eq!(plain.interface_of(3).as_deref(), Some("fw-in.7@x"));
        let numbered = name("interface=fw%d-in");
        assert!(numbered.is_numbered());
        assert_eq!(numbered.interface_of(12).as_deref(), Some("fw12-in"));
        assert_eq!(numbered.to_string(), "interface=fw%d-in");
        assert_eq!(name("net_af_packet0,iface=a%d").interface_of(0), None);
        // Fifteen bytes with a number of one digit.
        assert!(name("interface=abcdefghijklmn%d").is_numbered());
        for wrong in [
            "",
            ".",
            "..",
            "a b",
            "a/b",
            "a:b",
            "a,b",
            "%s",
            "a%",
            "%d%d",
            "abcdefghijklmno%d",
            "abcdefghijklmnop",
        ] {
            let error = format!("interface={wrong}").parse::<PortName>().unwrap_err();
            assert_eq!(error, PortNameError::InterfaceName(wrong.to_owned()));
        }
        let error = numbered.of_chain().unwrap_err().to_string();
        assert!(
            error.contains("expected one interface, which all cores of a port share"),
            "{error}"
        );
        assert_eq!(plain.clone().of_chain(), Ok(plain));
        assert_eq!(name("net_ring0").of_chain(), Ok(name("net_ring0")));
    }
}
