//! Packets: zero-copy header views, checksums, flow keys and the RSS hash.
//!
//! Everything here works on plain byte slices and keeps no state. Bytes from the wire are
//! checked once, by [`parse::parse`], which says where the headers lie or why the packet is
//! [malformed](parse::Malformed); nothing in this crate panics on any input.

pub mod arp;
pub mod builder;
mod bytes;
pub mod checksum;
pub mod ethernet;
pub mod flow;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
mod malformed;
pub mod parse;
pub mod protocol;
pub mod tcp;
pub mod time;
pub mod toeplitz;
pub mod udp;
pub mod vlan;

pub use flow::FlowKey;
pub use time::{Cycles, Nanos};
