//! Conditions of a filter.

use std::net::IpAddr;
use tailwater_net::FlowKey;

/// Condition on a flow key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    All,
    Not(Box<Node>),
    Both(Box<Node>, Box<Node>),
    Either(Box<Node>, Box<Node>),
    /// IP version.
    Version(u8),
    Protocol(u8),
    Address(End, IpAddr, u8),
    Ports(End, u16, u16),
}

/// End of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
    Any,
}

impl Node {
    pub(super) fn matches(&self, key: &FlowKey) -> bool {
        match self {
            Node::All => true,
            Node::Not(node) => !node.matches(key),
            Node::Both(one, two) => one.matches(key) && two.matches(key),
            Node::Either(one, two) => one.matches(key) || two.matches(key),
            Node::Version(version) => key.version() == *version,
            Node::Protocol(protocol) => key.protocol() == *protocol,
            Node::Address(end, prefix, bits) => end.of([key.source(), key.destination()], |address| {
                is_within(address, *prefix, *bits)
            }),
            Node::Ports(end, first, last) => {
                has_ports(key.protocol())
                    && end.of([key.source_port(), key.destination_port()], |port| {
                        (*first..=*last).contains(&port)
                    })
            }
        }
    }
}

impl End {
    fn of<T>(self, [source, destination]: [T; 2], holds: impl Fn(T) -> bool) -> bool {
        match self {
            End::Source => holds(source),
            End::Destination => holds(destination),
            End::Any => holds(source) || holds(destination),
        }
    }
}

/// TCP, UDP, DCCP, SCTP and UDP-Lite.
fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 33 | 132 | 136)
}

fn is_within(address: IpAddr, prefix: IpAddr, bits: u8) -> bool {
    match (address, prefix) {
        (IpAddr::V4(address), IpAddr::V4(prefix)) => {
            let differ = address.to_bits() ^ prefix.to_bits();
            differ.checked_shr(32 - u32::from(bits)).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(prefix)) => {
            let differ = address.to_bits() ^ prefix.to_bits();
            differ.checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
        }
        _ => false,
    }
}
