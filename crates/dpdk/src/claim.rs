//! An interface of the kernel's is used by one program at a time.
//!
//! The kernel lets several have one, and they take packets from each other. With XDP it is worse: a second program is refused,
//! and DPDK, as it clears away what it began, takes the first one's program off the interface, which is then deaf.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use tailwater_api::PortName;

/// A port's interface, claimed as long as this lives: the kernel lets go of it however the program ends.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Nobody sends to it. Such names are a network namespace's own, as interfaces' are.
    _socket: UnixDatagram,
}

impl Claim {
    /// Claims the interface of a port, if it has one. `Err` says who has it.
    pub(crate) fn of(name: &PortName) -> Result<Option<Claim>, String> {
        let Some(interface) = name.interface() else {
            return Ok(None);
        };
        let address = SocketAddr::from_abstract_name(format!("tailwater/{interface}"));
        match address.and_then(|address| UnixDatagram::bind_addr(&address)) {
            Ok(socket) => Ok(Some(Claim { _socket: socket })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(format!(
                "another tailwater uses \"{interface}\": a port can be used once"
            )),
            // Where there are no such names, nobody is warned.
            Err(_) => Ok(None),
        }
    }
}
