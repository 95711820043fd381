//! Output of ACL, load balancer and accounting, compared with values computed from the plain frames.

use super::chains::{self, BACKENDS};
use super::{Replay, Sent};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use tailwater_net::checksum::{verify_network, verify_transport};
use tailwater_net::parse::{Fragment, Headers, parse};
use tailwater_net::protocol;

/// Returns `true` if the packet must be sent to a backend.
fn is_balanced(headers: &Headers) -> bool {
    matches!(headers.key.protocol(), protocol::TCP | protocol::UDP) && headers.fragment == Fragment::Whole
}

/// Returns `true` if the packet must be refused: to a backend, but with IPv6 extension headers.
fn is_refused(headers: &Headers) -> bool {
    is_balanced(headers) && !headers.key.is_v4() && headers.transport_offset != headers.network_offset + 40
}

/// Compares every sent packet with the received one. The destination is a backend, the same for all packets of the
/// flow. Nothing else has changed, and checksums are as right as before. Compares the records with packets and bytes of
/// each flow. Returns (packets to backends, backends that got some).
pub fn check(replay: &Replay<'_>, plain: &Sent) -> (usize, BTreeSet<IpAddr>) {
    let name = replay.name();
    let records = replay.path("records.csv");
    let spec = replay.file_name("lb.yaml");
    let chain = chains::acl_lb_accounting(replay.folder, &spec, Some(&records));
    let (out, sent) = replay.send(&chain, "balanced.pcap");
    assert_eq!(sent.other, plain.other, "{name}");

    let backends: BTreeSet<IpAddr> = BACKENDS.map(|text| text.parse().unwrap()).into();
    let (mut chosen, mut balanced) = (HashMap::new(), 0);
    let mut flows: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut leaving = sent.ip.iter();
    for (i, before) in plain.ip.iter().enumerate() {
        let told = format!("{name}: IP packet {i}");
        let old = parse(before).unwrap();
        if is_refused(&old) {
            continue;
        }
        let after = leaving.next().expect(&told);
        let flow = flows.entry(record_of(&old)).or_default();
        *flow = (flow.0 + 1, flow.1 + before.len() as u64);
        if !is_balanced(&old) {
            assert_eq!(before, after, "{told}");
            continue;
        }
        let new = parse(after).unwrap();
        let destination = new.key.destination();
        assert!(backends.contains(&destination), "{told}: {destination}");
        let first = *chosen.entry(old.key).or_insert(destination);
        assert_eq!(first, destination, "{told}");
        assert_eq!(
            (verify_network(before, &old), verify_transport(before, &old)),
            (verify_network(after, &new), verify_transport(after, &new)),
            "{told}"
        );
        assert_eq!(
            redirected(before, &old, destination),
            redirected(after, &new, destination),
            "{told}"
        );
        balanced += 1;
    }
    assert_eq!(leaving.next(), None, "{name}");
    std::fs::remove_file(out).unwrap();

    let mut recorded: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for line in std::fs::read_to_string(&records).unwrap().lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let flow = recorded.entry(fields[..6].join(",")).or_default();
        *flow = (
            flow.0 + fields[6].parse::<u64>().unwrap(),
            flow.1 + fields[7].parse::<u64>().unwrap(),
        );
    }
    assert_eq!(recorded, flows, "{name}");
    (balanced, chosen.into_values().collect())
}

/// Returns the prefix of a flow's record.
fn record_of(headers: &Headers) -> String {
    let key = headers.key;
    format!(
        "{},{},{},{},{},{}",
        key.source(),
        key.destination(),
        key.protocol(),
        key.source_port(),
        key.destination_port(),
        u8::from(headers.fragment != Fragment::Whole)
    )
}

/// Returns the frame with another destination address and without checksums.
fn redirected(frame: &[u8], headers: &Headers, destination: IpAddr) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let (ip, transport) = (
        usize::from(headers.network_offset),
        usize::from(headers.transport_offset),
    );
    match destination {
        IpAddr::V4(address) => {
            frame[ip + 16..ip + 20].copy_from_slice(&address.octets());
            frame[ip + 10..ip + 12].fill(0);
        }
        IpAddr::V6(address) => frame[ip + 24..ip + 40].copy_from_slice(&address.octets()),
    }
    let checksum = match headers.key.protocol() {
        protocol::UDP => transport + 6,
        _ => transport + 16,
    };
    frame[checksum..checksum + 2].fill(0);
    frame
}
