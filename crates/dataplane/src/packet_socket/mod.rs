//! Packet sockets (AF_PACKET) of kernel interfaces: of [ports](crate::interfaces), and of
//! [external functions](crate::external::kernel).
//!
//! Packets are received from a ring that the kernel fills, without a system call, and copied once into a buffer. A
//! batch is sent with one system call. A VLAN tag that the kernel has taken out of a frame is put back, and a checksum
//! that the sender left to a device is completed.

mod checksum;
mod error;
pub(crate) mod monitor;
pub(crate) mod renewal;
pub(crate) mod ring;
pub(crate) mod sending;
mod slot;
pub(crate) mod socket;

pub use error::{InterfaceError, Problem};
pub use socket::PassedInterface;

/// Bytes of a received frame beyond the MTU: Ethernet header, two VLAN tags.
pub(crate) const MOST_HEADERS: usize = 14 + 2 * 4;
