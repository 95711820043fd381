use super::*;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

mod behaviour;
mod icmp;
mod rules;
mod tcp;
mod transfer;

pub(super) fn seconds(seconds: u64) -> Nanos {
    Nanos::from_secs(seconds)
}

pub(super) fn zones() -> Vec<Zone> {
    let zone = |name: &str, prefixes: &[&str]| Zone {
        name: name.to_owned(),
        prefixes: prefixes.iter().map(|p| p.parse().unwrap()).collect(),
        port: None,
    };
    vec![
        zone("lan", &["10.0.0.0/8", "fd00::/8"]),
        zone("wan", &["0.0.0.0/0", "::/0"]),
        zone("servers", &["10.9.0.0/16"]),
    ]
}

/// Creates a firewall in a chain of its own, and its table.
pub(super) fn firewall(rules: &str, options: Options) -> (Arc<FirewallTable>, ChainRig) {
    firewall_of(&zones(), rules, options)
}

pub(super) fn firewall_of(zones: &[Zone], rules: &str, options: Options) -> (Arc<FirewallTable>, ChainRig) {
    let rules = language::parse(rules, zones).unwrap();
    let table = FirewallTable::new((zones, &rules, Action::Deny), options, 4096, 7).unwrap();
    let table = Arc::new(table);
    let rig = ChainRig::new(vec![Box::new(Firewall::new(Arc::clone(&table)))], INPUT);
    (table, rig)
}

pub(super) const LAN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(super) const WAN: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

pub(super) fn key(protocol: u8, port: u16) -> FlowKey {
    FlowKey::v4(LAN, WAN, protocol, port, 443)
}

pub(super) fn udp(key: &FlowKey) -> Vec<u8> {
    FrameBuilder::new(key).payload(b"data").to_vec().unwrap()
}

/// Returns a TCP segment with these flags, sequence and acknowledgment numbers, and payload.
pub(super) fn tcp_frame(
    key: &FlowKey,
    flags: TcpFlags,
    (sequence, acknowledgment): (u32, u32),
    payload: &[u8],
) -> Vec<u8> {
    let fields = TcpFields {
        sequence,
        acknowledgment,
        flags,
        ..TcpFields::default()
    };
    let frame = FrameBuilder::new(key).tcp(fields).payload(payload);
    frame.to_vec().unwrap()
}

pub(super) const SYN: TcpFlags = TcpFlags::SYN;
pub(super) const ACK: TcpFlags = TcpFlags::ACK;
pub(super) const SYN_ACK: TcpFlags = TcpFlags(0x12);
pub(super) const FIN_ACK: TcpFlags = TcpFlags(0x11);
pub(super) const RST: TcpFlags = TcpFlags::RST;

/// Returns the three segments of a handshake. Data begins at sequence numbers 1001 and 5001.
pub(super) fn handshake(key: &FlowKey) -> Vec<Vec<u8>> {
    let back = key.reversed();
    vec![
        tcp_frame(key, SYN, (1000, 0), b""),
        tcp_frame(&back, SYN_ACK, (5000, 1001), b""),
        tcp_frame(key, ACK, (1001, 5001), b""),
    ]
}

/// Returns the number of frames that pass.
pub(super) fn passing(rig: &mut ChainRig, frames: &[Vec<u8>], now: Nanos) -> usize {
    rig.run(frames, now).len()
}

/// Runs all expiry timers.
pub(super) fn expire(rig: &mut ChainRig, now: Nanos) {
    (0..512).for_each(|_| rig.chain.expire(now));
}

pub(super) const UDP: u8 = protocol::UDP;
pub(super) const TCP: u8 = protocol::TCP;
