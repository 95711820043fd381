//! Tests of tunnels: the inner packet's key and payload, at any depth, and any truncation.

use super::*;
use crate::FlowKey;
use crate::builder::FrameBuilder;
use crate::parse::parse;
use proptest::prelude::*;

const PAYLOAD: &[u8] = b"inner payload";

fn inner_key() -> FlowKey {
    FlowKey::v4([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), protocol::TCP, 4000, 80)
}

fn inner_frame() -> Vec<u8> {
    FrameBuilder::new(&inner_key()).payload(PAYLOAD).to_vec().unwrap()
}

/// Returns a frame that carries bytes behind an IPv4 header of a protocol.
fn over_ip(number: u8, carried: &[u8]) -> Vec<u8> {
    let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), number, 0, 0);
    FrameBuilder::new(&key).payload(carried).to_vec().unwrap()
}

fn over_udp(port: u16, carried: &[u8]) -> Vec<u8> {
    let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol::UDP, 50_000, port);
    FrameBuilder::new(&key).payload(carried).to_vec().unwrap()
}

fn over_ethernet(kind: u16, carried: &[u8]) -> Vec<u8> {
    [&[2; 12][..], &kind.to_be_bytes(), carried].concat()
}

/// Returns all tunnels, by name, each with the inner packet.
fn tunnels() -> Vec<(&'static str, Vec<u8>)> {
    let frame = inner_frame();
    let ip = &frame[14..];
    let join = |head: &[u8], rest: &[u8]| [head, rest].concat();
    let gre = |head: &[u8], rest: &[u8]| over_ip(protocol::GRE, &join(head, rest));
    vec![
        ("ipip", over_ip(protocol::IPV4, ip)),
        ("gre", gre(&[0, 0, 8, 0], ip)),
        (
            "gre with all fields",
            gre(&[0xb0, 0, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9], ip),
        ),
        ("gre with ethernet", gre(&[0, 0, 0x65, 0x58], &frame)),
        (
            "pptp",
            gre(
                &[
                    0x30, 0x81, 0x88, 0x0b, 0, 9, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0xff, 3, 0, 0x21,
                ],
                ip,
            ),
        ),
        ("erspan I", gre(&[0, 0, 0x88, 0xbe], &frame)),
        (
            "erspan II",
            gre(&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 1, 0, 0, 0, 0, 0, 0], &frame),
        ),
        (
            "erspan III",
            gre(
                &[0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                &frame,
            ),
        ),
        ("vxlan", over_udp(4789, &join(&[8, 0, 0, 0, 0, 0, 9, 0], &frame))),
        (
            "geneve",
            over_udp(6081, &join(&[1, 0, 0x65, 0x58, 0, 0, 9, 0, 1, 2, 3, 4], &frame)),
        ),
        ("geneve with ip", over_udp(6081, &join(&[0, 0, 8, 0, 0, 0, 9, 0], ip))),
        (
            "pppoe",
            over_ethernet(0x8864, &join(&[0x11, 0, 0, 7, 0, 99, 0, 0x21], ip)),
        ),
        ("mpls", over_ethernet(0x8847, &join(&[0, 1, 0, 64, 0, 2, 1, 64], ip))),
        (
            "mpls with ethernet",
            over_ethernet(0x8847, &join(&[0, 2, 1, 64, 0, 0, 0, 1], &frame)),
        ),
        ("vlan in gre", gre(&[0, 0, 0x81, 0, 0, 5, 8, 0], ip)),
    ]
}

#[test]
fn inner_packets_are_found_in_all_tunnels() {
    for (name, frame) in tunnels() {
        let headers = inner(&frame, &parse(&frame).unwrap()).unwrap().expect(name);
        assert_eq!(headers.key, inner_key(), "{name}");
        assert_eq!(headers.payload(&frame), PAYLOAD, "{name}");
        assert_eq!(inner(&frame, &headers).unwrap(), None, "{name}");
    }
    // IPv6 over IPv4 (6in4).
    let key = FlowKey::v6([1; 16].into(), [2; 16].into(), protocol::UDP, 1, 2);
    let six = FrameBuilder::new(&key).payload(PAYLOAD).to_vec().unwrap();
    let frame = over_ip(protocol::IPV6, &six[14..]);
    let headers = inner(&frame, &parse(&frame).unwrap()).unwrap().unwrap();
    assert_eq!((headers.key, headers.payload(&frame)), (key, PAYLOAD));
    // Others carry nothing.
    let plain = inner_frame();
    assert_eq!(inner(&plain, &parse(&plain).unwrap()), Ok(None));
    let dns = over_udp(53, &plain);
    assert_eq!(inner(&dns, &parse(&dns).unwrap()), Ok(None));
}

#[test]
fn tunnels_in_tunnels_are_followed_one_by_one() {
    let mut frame = inner_frame();
    for _ in 0..3 {
        frame = over_ip(protocol::GRE, &[&[0, 0, 8, 0][..], &frame[14..]].concat());
    }
    let mut headers = parse(&frame).unwrap();
    for _ in 0..3 {
        headers = inner(&frame, &headers).unwrap().unwrap();
    }
    assert_eq!((headers.key, headers.payload(&frame)), (inner_key(), PAYLOAD));
}

proptest! {
    /// However a tunnel is cut or damaged, offsets stay inside the frame.
    #[test]
    fn damaged_tunnels_are_errors_or_inside_the_frame(
        which in any::<prop::sample::Index>(),
        cut in 0usize..200,
        damage in prop::collection::vec((14usize..120, any::<u8>()), 0..4),
    ) {
        let tunnels = tunnels();
        let (_, mut frame) = tunnels[which.index(tunnels.len())].clone();
        frame.truncate(frame.len().saturating_sub(cut).max(14));
        for (at, byte) in damage {
            if let Some(there) = frame.get_mut(at) {
                *there = byte;
            }
        }
        let Ok(mut headers) = parse(&frame) else { return Ok(()) };
        for _ in 0..MAX_TUNNELS {
            match inner(&frame, &headers) {
                Ok(Some(found)) => {
                    prop_assert!(found.network_offset <= found.transport_offset);
                    prop_assert!(found.transport_offset <= found.payload_offset);
                    prop_assert!(found.payload_offset <= found.end);
                    prop_assert!(usize::from(found.end) <= frame.len());
                    prop_assert!(found.network_offset > headers.network_offset);
                    headers = found;
                }
                _ => break,
            }
        }
    }
}
