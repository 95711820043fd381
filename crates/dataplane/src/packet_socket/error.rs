//! Errors of kernel interfaces.

use std::io;

/// Error of an interface that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("interface {interface}: {problem}")]
pub struct InterfaceError {
    /// Name of the interface.
    pub interface: String,
    /// Cause, with the remedy.
    pub problem: Problem,
}

impl InterfaceError {
    pub(crate) fn new(interface: &str, problem: Problem) -> InterfaceError {
        InterfaceError {
            interface: interface.to_owned(),
            problem,
        }
    }
}

/// Causes why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The name is longer than the kernel allows.
    #[error("expected a name of at most 15 bytes, the worker's number included")]
    NameTooLong,
    /// There is no such interface.
    #[error("no such interface in this network namespace; a veth pair: ip link add NAME type veth peer name OTHER")]
    Missing,
    /// Packet sockets are not permitted.
    #[error("no permission: packet sockets require root or CAP_NET_RAW")]
    Permission,
    /// The interface is not up.
    #[error("it is down; bring it up: ip link set NAME up")]
    Down,
    /// The interface does not carry Ethernet frames.
    #[error("expected an Ethernet interface, such as one end of a veth pair")]
    NotEthernet,
    /// Another process uses the interface.
    #[error("in use by another tailwater")]
    InUse,
    /// Several workers would use it.
    #[error(
        "{workers} cores need an interface each: write the worker's number as %d, such as interface=fw-in%d for \
         fw-in0, fw-in1, ..."
    )]
    Shared {
        /// Number of workers.
        workers: u16,
    },
    /// Its frames are shorter than the wanted MTU.
    #[error("expected an MTU of at least {wanted}, found {found}: ip link set NAME mtu {wanted}")]
    Mtu {
        /// Wanted maximum payload in bytes.
        wanted: u16,
        /// That of the interface.
        found: usize,
    },
    /// Its frames are longer than those for which rings and buffers were made.
    #[error("expected an MTU of at most {most}, found {found}: ip link set NAME mtu {most}, or start anew")]
    MtuAbove {
        /// Maximum payload in bytes at the start.
        most: usize,
        /// That of the interface.
        found: usize,
    },
    /// Sockets of another process cannot be used.
    #[error("the running server's sockets cannot be taken over: {0}")]
    Passed(String),
    /// The port is a DPDK device.
    #[error("a DPDK device; ports of all external functions of a chain are either DPDK devices or interface=NAME")]
    Dpdk,
    /// A system call failed.
    #[error("cannot open: {0}")]
    Open(io::Error),
    /// The ring could not be created.
    #[error("cannot receive: {0}")]
    Ring(io::Error),
}
