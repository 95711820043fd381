//! Output of tunnel and IP forwarding, compared with frames computed from the plain ones.

use super::chains::{self, DEFAULT_HOP, NEXT_HOPS, ROUTER};
use super::{Replay, Sent};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;
use tailwater_net::checksum::{Checksum, verify_network};
use tailwater_net::parse::{Headers, parse};

/// Maximum number of routes for a capture.
const ROUTES: usize = 4000;

/// Next hops by prefix; `None` is a blackhole.
type Routes = BTreeMap<IpNet, Option<usize>>;

/// Returns nested prefixes of all lengths around the packets' destinations.
fn routes_for(frames: &[Vec<u8>]) -> Routes {
    let destinations: BTreeSet<IpAddr> = frames
        .iter()
        .map(|frame| parse(frame).unwrap().key.destination())
        .collect();
    let mut routes = Routes::new();
    for (i, address) in destinations.into_iter().take(ROUTES).enumerate() {
        let length = match address {
            IpAddr::V4(_) => 4 + i * 7 % 29,
            IpAddr::V6(_) => 16 + i * 11 % 113,
        };
        let prefix = IpNet::new(address, length as u8).unwrap().trunc();
        let hop = (i % 20 != 19).then_some(i % NEXT_HOPS.len());
        routes.entry(prefix).or_insert(hop);
    }
    routes
}

/// Returns the next hop by trying prefixes from the longest.
fn next_hop(routes: &Routes, destination: IpAddr) -> Option<usize> {
    let longest = if destination.is_ipv4() { 32 } else { 128 };
    (0..=longest)
        .rev()
        .find_map(|length| routes.get(&IpNet::new(destination, length).unwrap().trunc()))
        .map_or(Some(DEFAULT_HOP), |hop| *hop)
}

/// Returns the tag of packets to an address.
pub fn tag(destination: IpAddr) -> [u8; 4] {
    match destination {
        IpAddr::V4(address) if address.octets()[0] >= 128 => [0x88, 0xa8, 5 << 5, 200],
        _ => [0x81, 0x00, 0, 100],
    }
}

/// Returns the expected frame without the new tag; `None` if it must be dropped.
fn routed(frame: &[u8], headers: &Headers, routes: &Routes) -> Option<Vec<u8>> {
    let ip = usize::from(headers.network_offset);
    let hops = ip + if headers.key.is_v4() { 8 } else { 7 };
    let next = next_hop(routes, headers.key.destination())?;
    // A fourth tag would make the frame unreadable.
    if frame[hops] <= 1 || ip >= 14 + 3 * 4 {
        return None;
    }
    let mut sent = frame.to_vec();
    sent[..6].copy_from_slice(&NEXT_HOPS[next].1);
    sent[6..12].copy_from_slice(&ROUTER);
    sent[hops] -= 1;
    if headers.key.is_v4() {
        let at = ip + 10;
        let checksum = match verify_network(frame, headers) {
            Checksum::Correct => {
                sent[at..at + 2].fill(0);
                !folded(&sent[ip..headers.transport_offset.into()])
            }
            // Preserves a wrong checksum: one hop less in the sum is one more here.
            _ => folded(&[frame[at], frame[at + 1], 1, 0]),
        };
        sent[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    Some(sent)
}

/// Returns the one's complement sum of RFC 1071.
fn folded(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks_exact(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Compares every sent frame with the computed one: tag, Ethernet addresses, hop limit and checksum. Then removes the
/// tags with another chain and compares again. Returns (packets routed, dropped).
pub fn check(replay: &Replay<'_>, plain: &Sent) -> (usize, usize) {
    let name = replay.name();
    let routes = routes_for(&plain.ip);
    let mut lines = String::new();
    for (prefix, hop) in &routes {
        let hop = hop.map_or("blackhole", |hop| NEXT_HOPS[hop].0);
        writeln!(lines, "{prefix} {hop}").unwrap();
    }
    let file = replay.path("capture.routes");
    std::fs::write(&file, lines).unwrap();
    let spec = replay.file_name("router.yaml");
    let chain = chains::tunnel_ip_forward(replay.folder, &spec, Some(&file));
    let (out, sent) = replay.send(&chain, "routed.pcap");

    let mut expected = Vec::new();
    for frame in &plain.ip {
        let headers = parse(frame).unwrap();
        if let Some(frame) = routed(frame, &headers, &routes) {
            expected.push((frame, tag(headers.key.destination())));
        }
    }
    assert_eq!(sent.ip.len(), expected.len(), "{name}");
    assert_eq!(sent.other, plain.other, "{name}");
    for (i, ((frame, tag), sent)) in expected.iter().zip(&sent.ip).enumerate() {
        let tagged = [&frame[..12], tag, &frame[12..]].concat();
        assert_eq!(&tagged, sent, "{name}: IP packet {i}");
    }
    let dropped = plain.ip.len() - expected.len();
    if sent.is_empty() {
        return (0, dropped);
    }

    let (again, popped) = replay.of(&out).send(&replay.chains.pop, "popped.pcap");
    assert_eq!(popped.ip.len(), expected.len(), "{name}");
    assert_eq!(popped.other, plain.other, "{name}");
    for (i, ((frame, _), popped)) in expected.iter().zip(&popped.ip).enumerate() {
        assert_eq!(frame, popped, "{name}: IP packet {i} without its tag");
    }
    for file in [out, again] {
        std::fs::remove_file(file).unwrap();
    }
    (expected.len(), dropped)
}
