//! Packets: zero-copy header views, checksums, flow keys and the RSS hash.
//!
//! All functions work on plain byte slices and keep no state. [`parse::parse`] checks bytes from the wire once, and
//! returns the offsets of the headers or the reason why the packet is [malformed](parse::Malformed). No function that
//! reads or writes packet bytes panics, whatever the bytes.
//!
//! | task | module |
//! |---|---|
//! | find a frame's headers and flow | [`parse`]: one pass, a few nanoseconds |
//! | read or rewrite a header | the views: [`ethernet`], [`vlan`], [`arp`], [`ipv4`], [`ipv6`], [`tcp`], [`udp`], [`icmp`] |
//! | read a DNS message | [`dns`] |
//! | find the packet inside a tunnel | [`tunnel`] |
//! | verify or update a checksum | [`checksum`] |
//! | identify flows | [`FlowKey`] |
//! | spread flows over queues as a NIC does | [`toeplitz`] |
//! | build frames | [`builder`] |
//! | write frames to a capture file | [`pcap`]: its headers |
//!
//! A function that redirects a flow, in three steps: parse, rewrite, and update the checksums without reading the
//! payload.
//!
//! ```
//! use std::net::Ipv4Addr;
//! use tailwater_net::builder::FrameBuilder;
//! use tailwater_net::checksum::{Checksum, ChecksumDelta, verify_network, verify_transport};
//! use tailwater_net::ipv4::Ipv4View;
//! use tailwater_net::parse::{Malformed, parse};
//! use tailwater_net::tcp::TcpView;
//! use tailwater_net::{FlowKey, protocol};
//!
//! let (client, service) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 80));
//! let key = FlowKey::v4(client, service, protocol::TCP, 4000, 80);
//! let mut frame = FrameBuilder::new(&key).payload(b"GET / HTTP/1.1\r\n").to_vec().unwrap();
//!
//! let headers = parse(&frame)?;
//! assert_eq!(headers.key, key);
//! assert_eq!(headers.key.to_string(), "tcp 10.0.0.1:4000 > 192.0.2.80:80");
//!
//! let backend = Ipv4Addr::new(10, 1, 0, 7);
//! // The same for every packet of the flow.
//! let delta = ChecksumDelta::ipv4(service, backend);
//!
//! let mut ip = Ipv4View::new(&mut frame[headers.network_offset as usize..])?;
//! ip.set_destination(backend);
//! ip.set_checksum(delta.apply(ip.checksum()));
//! let mut tcp = TcpView::new(ip.payload_mut())?;
//! tcp.set_checksum(delta.apply(tcp.checksum()));
//!
//! let headers = parse(&frame)?;
//! assert_eq!(headers.key, FlowKey::v4(client, backend, protocol::TCP, 4000, 80));
//! assert_eq!(verify_network(&frame, &headers), Checksum::Correct);
//! assert_eq!(verify_transport(&frame, &headers), Checksum::Correct);
//!
//! // Bytes that lie are counted under a stable name.
//! let reason = parse(&frame[..40]).unwrap_err();
//! assert_eq!(reason, Malformed::TruncatedIpv4);
//! assert_eq!(reason.name(), "truncated-ipv4");
//! # Ok::<(), Malformed>(())
//! ```
//!
//! Not supported: LLC/SNAP, jumbograms, reassembly, the CRC of SCTP.
//!
//! `fuzz/` has fuzz targets for all modules, which check the properties in `tests/invariants`.

pub mod arp;
pub mod builder;
mod bytes;
pub mod checksum;
pub mod dns;
pub mod ethernet;
pub mod flow;
mod headers;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
mod malformed;
pub mod parse;
pub mod pcap;
pub mod protocol;
pub mod tcp;
pub mod time;
pub mod toeplitz;
pub mod tunnel;
pub mod udp;
pub mod vlan;

pub use flow::FlowKey;
pub use time::{Cycles, Nanos};
