//! Port names, as a user writes them.

use crate::error::SpecError;
use crate::located::Located;
use std::fmt;

/// Description of a PCI address in errors.
const PCI: &str = "a PCI address such as 0000:3b:00.1";
/// Description of a DPDK virtual device in errors.
const VIRTUAL: &str = "a DPDK virtual device such as net_af_packet0,iface=veth0";

/// Port: the PCI address of a NIC or of one of its virtual functions, or a DPDK virtual device with its arguments.
///
/// ```
/// use tailwater_api::PortName;
/// let port: PortName = "net_af_packet0,iface=veth0".parse().unwrap();
/// assert_eq!((port.device(), port.driver()), ("net_af_packet0", Some("net_af_packet")));
/// assert_eq!(port.argument("iface"), Some("veth0"));
/// assert!("3b:00.1".parse::<PortName>().unwrap().is_pci());
/// assert!("eth0".parse::<PortName>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    /// Name in DPDK's syntax.
    text: String,
    pci: bool,
}

/// Error of an invalid port name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortNameError {
    /// The name is neither a PCI address nor a virtual device.
    #[error("expected {PCI}, or {VIRTUAL}, found \"{0}\"")]
    Neither(String),
    /// The name resembles that of a kernel interface.
    #[error(
        "expected {PCI}, or {VIRTUAL}, found \"{0}\"; for the kernel's interface of that name write \
         net_af_packet0,iface={0}"
    )]
    Interface(String),
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
        self.pci
    }

    /// Device without arguments: the PCI address, or the virtual device's name with its number.
    pub fn device(&self) -> &str {
        self.text.split(',').next().unwrap_or(&self.text)
    }

    /// Driver of a virtual device: its name without the number.
    pub fn driver(&self) -> Option<&str> {
        let driver = self.device().trim_end_matches(|c: char| c.is_ascii_digit());
        (!self.pci).then_some(driver)
    }

    /// Value of an argument.
    pub fn argument(&self, key: &str) -> Option<&str> {
        let arguments = self.text.split(',').skip(1);
        let mut arguments = arguments.filter_map(|argument| argument.split_once('='));
        arguments.find_map(|(name, value)| (name == key).then_some(value))
    }

    /// Kernel interface to which a virtual device is bound, and which no other port may use.
    pub fn interface(&self) -> Option<&str> {
        match self.driver() {
            Some("net_af_packet" | "net_af_xdp") => self.argument("iface"),
            _ => None,
        }
    }

    /// Returns `true` if both names refer to one device or one interface: a port can be used once.
    pub fn conflicts(&self, other: &PortName) -> bool {
        let interface = self.interface();
        self.device() == other.device() || interface.is_some() && interface == other.interface()
    }
}

impl std::str::FromStr for PortName {
    type Err = PortNameError;

    fn from_str(text: &str) -> Result<PortName, PortNameError> {
        if let Some(address) = pci(text.split(',').next().unwrap_or_default()) {
            let arguments = text.split_once(',').map(|(_, arguments)| arguments);
            let text = match arguments {
                None => address,
                Some(arguments) => format!("{address},{arguments}"),
            };
            return checked(text, true);
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.@".contains(c);
        let name = text.split(',').next().unwrap_or_default();
        if name
            .strip_prefix("net_")
            .is_some_and(|rest| rest.len() > 1 && rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        {
            return checked(text.to_owned(), false);
        }
        // Linux limits interface names to fifteen characters.
        match (1..=15).contains(&text.len()) && text.chars().all(plain) {
            true => Err(PortNameError::Interface(text.to_owned())),
            false => Err(PortNameError::Neither(text.to_owned())),
        }
    }
}

/// Creates a name after checking its arguments.
fn checked(text: String, pci: bool) -> Result<PortName, PortNameError> {
    let wrong = |argument: &&str| match argument.split_once('=') {
        Some((key, _)) => key.is_empty(),
        None => true,
    };
    let odd = text.contains(|c: char| c.is_control() || c.is_whitespace());
    match text.split(',').skip(1).find(wrong) {
        Some(argument) => Err(PortNameError::Argument(argument.to_owned())),
        None if odd => Err(PortNameError::Neither(text)),
        None => Ok(PortName { text, pci }),
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
        assert!(error("eth0").ends_with("write net_af_packet0,iface=eth0"));
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
    }
}
