//! Exclusive use of a kernel interface by one Tailwater process.
//!
//! The kernel lets several processes open the same interface, and they steal packets from each other. XDP is worse: the
//! kernel refuses the second process, and DPDK's clean-up then detaches the first process's XDP program. The interface
//! receives nothing from then on.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use tailwater_api::PortName;

/// Lock on a port's kernel interface. The kernel releases it when the process ends, crashes included.
#[derive(Debug)]
pub(crate) struct InterfaceLock {
    /// Bound to an abstract address and never sent to. Abstract names are local to the network namespace, as interface
    /// names are.
    _socket: UnixDatagram,
}

impl InterfaceLock {
    /// Locks the interface of the port, if the port has one. `Err` names the current holder.
    pub(crate) fn of(name: &PortName) -> Result<Option<InterfaceLock>, String> {
        let Some(interface) = name.interface() else {
            return Ok(None);
        };
        let address = SocketAddr::from_abstract_name(format!("tailwater/{interface}"));
        match address.and_then(|address| UnixDatagram::bind_addr(&address)) {
            Ok(socket) => Ok(Some(InterfaceLock { _socket: socket })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(format!("\"{interface}\" is in use by another tailwater"))
            }
            // Without abstract Unix addresses there is no lock, and no warning.
            Err(_) => Ok(None),
        }
    }
}
