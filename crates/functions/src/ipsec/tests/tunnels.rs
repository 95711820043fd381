//! Tests of both tunnel ends against the oracle, with packets of every kind.

use super::*;
use proptest::prelude::*;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::ethernet::MacAddress;
use tailwater_net::protocol::ethertype;
use tailwater_net::vlan::VlanTag;
use tailwater_net::{FlowKey, protocol};

/// Strategy for packets that go through a tunnel.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let parts = (
        any::<(bool, bool, bool, bool, u16)>(),
        (0u8..64, 0u8..3),
        prop::collection::vec(any::<u8>(), 0..1200),
        prop::collection::vec(any::<u8>(), 0..20),
    );
    parts.prop_map(|((v6, tcp, whole, tagged, port), (dscp, ecn), payload, padding)| {
        let protocol = if tcp { protocol::TCP } else { protocol::UDP };
        let key = match v6 {
            true => FlowKey::v6(1u128.into(), 2u128.into(), protocol, port, 80),
            false => FlowKey::v4([10, 0, 0, 1].into(), [10, 9, 0, 1].into(), protocol, port, 80),
        };
        let macs = (MacAddress([2, 0, 0, 0, 0, 7]), MacAddress([2, 0, 0, 0, 0, 8]));
        let mut builder = FrameBuilder::new(&key).macs(macs.0, macs.1).dscp_ecn(dscp, ecn);
        if !v6 {
            builder = builder.dont_fragment(whole);
        }
        if tagged {
            let tag = VlanTag {
                id: 7,
                priority: 3,
                drop_eligible: false,
                ethertype: ethertype::VLAN,
            };
            builder = builder.vlan(tag);
        }
        let mut frame = builder.payload(&payload).to_vec().unwrap();
        frame.extend(padding);
        frame
    })
}

fn any_ends() -> impl Strategy<Value = Ends> {
    let dscp = prop::option::of(0u8..64);
    let dont_fragment = prop::sample::select(vec![DontFragment::Copy, DontFragment::Set, DontFragment::Clear]);
    (
        prop::sample::select(CIPHERS.to_vec()),
        any::<(bool, bool, bool)>(),
        dscp,
        dont_fragment,
        1u8..,
    )
        .prop_map(|(cipher, (extended, v6, udp), dscp, dont_fragment, ttl)| {
            let mut ends = Ends::new(cipher, extended);
            ends = if v6 { ends.over_ipv6() } else { ends };
            ends = if udp { ends.in_udp() } else { ends };
            ends.out.dscp = dscp;
            ends.out.dont_fragment = dont_fragment;
            ends.out.ttl = ttl;
            ends
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// Encapsulated packets equal the oracle's to the byte, and the far end restores the original.
    #[test]
    fn packets_go_through_as_the_oracle_says(
        ends in any_ends(),
        frames in prop::collection::vec(any_frame(), 1..20),
    ) {
        let (mut sender, mut receiver) = ends.rigs();
        for (count, frames) in frames.chunks(5).enumerate() {
            let sent = sender.run(frames, Nanos::from_secs(1));
            prop_assert_eq!(sent.len(), frames.len());
            for (i, (sent, frame)) in sent.iter().zip(frames).enumerate() {
                let headers = parse(frame).unwrap();
                let (link, end) = (headers.network_offset.into(), headers.end.into());
                let inner = &frame[link..end];
                let number = (count * 5 + i) as u64;
                let esp = oracle::esp(&ends.out.association, 1 + number, IV_BASE + number, &oracle::text(inner));
                prop_assert_eq!(sent, &oracle::frame(&frame[..link], &ends.out, 1 + number, inner, &esp));
                let headers = parse(sent).unwrap();
                prop_assert_ne!(verify_network(sent, &headers), Checksum::Wrong);
                prop_assert_ne!(verify_transport(sent, &headers), Checksum::Wrong);
            }
            let restored = receiver.run(&sent, Nanos::from_secs(1));
            prop_assert_eq!(restored.len(), frames.len());
            for (restored, frame) in restored.iter().zip(frames) {
                prop_assert_eq!(restored, without_padding(frame));
            }
        }
        prop_assert_eq!(sender.count("ipsec/encapsulated"), frames.len() as u64);
        prop_assert_eq!(receiver.count("ipsec/decapsulated"), frames.len() as u64);
    }
}

fn udp(length: usize) -> Vec<u8> {
    let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 9, 0, 1].into(), protocol::UDP, 1, 2);
    FrameBuilder::new(&key).payload(&vec![0; length]).to_vec().unwrap()
}

#[test]
fn what_would_exceed_the_mtu_is_dropped() {
    for (ends, headers) in [
        (Ends::new(Cipher::Aes128Gcm, false), 20 + 16),
        (Ends::new(Cipher::Aes128Gcm, false).in_udp(), 20 + 8 + 16),
        (Ends::new(Cipher::Aes128Gcm, false).over_ipv6(), 40 + 16),
    ] {
        let mut sender = rig(&ends.sending());
        // Inner packet plus trailer is a multiple of four bytes.
        let most = (1500 - headers - 16) / 4 * 4 - 2 - 28;
        let sent = run(&mut sender, &udp(most)).unwrap();
        assert!((1497..=1500).contains(&(sent.len() - 14)), "{}", sent.len());
        assert_dropped(&mut sender, &udp(most + 1), "too-big");
        // The dropped packet took no sequence number.
        let next = run(&mut sender, &udp(0)).unwrap();
        let esp = parse(&next).unwrap().payload(&next).to_vec();
        assert_eq!(esp[4..8], [0, 0, 0, 2]);
    }
}

/// A frame without tailroom is moved within its buffer; without headroom either, it is dropped.
#[test]
fn a_packet_without_room_is_lost() {
    struct Fill(usize);
    impl NetworkFunction for Fill {
        fn kind(&self) -> &'static str {
            "Fill"
        }
        fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
            for i in 0..batch.len() {
                assert!(batch.grow_front(i, self.0).is_some());
                let (packet, frame) = batch.packet_mut(i);
                // Filler in front of the headers, like VLAN tags.
                frame.copy_within(self.0.., 0);
                let length = packet.length();
                packet.headers.network_offset -= self.0 as u16;
                packet.headers.end = length as u16;
            }
        }
    }
    let ends = Ends {
        mtu: 9000,
        ..Ends::new(Cipher::Aes128Gcm, false)
    };
    // The rig's buffers have 128 bytes of headroom and 2,048 for frames; 36 in front and 18 to 21 behind are needed.
    for (filled, sent) in [(40, 1), (127, 0)] {
        let ipsec = Ipsec::new(table(&ends.sending()));
        let mut rig = ChainRig::new(vec![Box::new(Fill(filled)), Box::new(ipsec)], INPUT);
        let frame = udp(2048 - 42);
        assert_eq!(rig.run(&[frame], Nanos::from_secs(1)).len(), sent);
        assert_eq!(rig.count("ipsec/no-room"), 1 - sent as u64);
        assert_eq!(rig.chain.lost(), 1 - sent as u64);
    }
}

/// RFC 6040's decapsulation table, with whole packets.
#[test]
fn congestion_outside_is_told_inside() {
    let [not, one, zero, congested] = [0, 1, 2, 3];
    for (inner, outer, expected) in [
        (not, not, Some(not)),
        (not, zero, Some(not)),
        (not, one, Some(not)),
        (not, congested, None),
        (zero, not, Some(zero)),
        (zero, zero, Some(zero)),
        (zero, one, Some(one)),
        (zero, congested, Some(congested)),
        (one, not, Some(one)),
        (one, zero, Some(one)),
        (one, one, Some(one)),
        (one, congested, Some(congested)),
        (congested, not, Some(congested)),
        (congested, zero, Some(congested)),
        (congested, one, Some(congested)),
        (congested, congested, Some(congested)),
    ] {
        for (v6_inside, v6_outside) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut ends = Ends::new(Cipher::Aes128Gcm, false);
            ends = if v6_outside { ends.over_ipv6() } else { ends };
            let (mut sender, mut receiver) = ends.rigs();
            let key = match v6_inside {
                true => FlowKey::v6(1u128.into(), 2u128.into(), protocol::UDP, 1, 2),
                false => FlowKey::v4([10, 0, 0, 1].into(), [10, 9, 0, 1].into(), protocol::UDP, 1, 2),
            };
            let frame = |ecn| {
                FrameBuilder::new(&key)
                    .dscp_ecn(46, ecn)
                    .payload(b"x")
                    .to_vec()
                    .unwrap()
            };
            let mut sent = run(&mut sender, &frame(inner)).unwrap();
            // The outer traffic class is not authenticated: routers on the path may set its bits.
            let outside = Some(outer);
            match (v6_outside, outside) {
                (true, Some(bits)) => sent[15] = sent[15] & 0xcf | bits << 4,
                (false, Some(bits)) => {
                    sent[15] = sent[15] & 0xfc | bits;
                    sent[24..26].fill(0);
                    let checksum = !tailwater_net::checksum::sum(&sent[14..34]);
                    sent[24..26].copy_from_slice(&checksum.to_be_bytes());
                }
                _ => {}
            }
            let expected = expected.map(frame);
            assert_eq!(run(&mut receiver, &sent), expected, "{inner} in {outer}");
            let dropped = u64::from(expected.is_none());
            assert_eq!(receiver.count("ipsec/congestion"), dropped);
        }
    }
}

/// Fragments go through a tunnel like any packet.
#[test]
fn fragments_go_through_and_those_of_esp_do_not() {
    let (mut sender, mut receiver) = Ends::new(Cipher::Aes128Gcm, false).rigs();
    let mut fragment = udp(64);
    fragment[20..22].copy_from_slice(&0x2000u16.to_be_bytes());
    fragment[24..26].fill(0);
    let checksum = !tailwater_net::checksum::sum(&fragment[14..34]);
    fragment[24..26].copy_from_slice(&checksum.to_be_bytes());
    let sent = run(&mut sender, &fragment).unwrap();
    assert_eq!(run(&mut receiver, &sent).unwrap(), fragment);
    for bits in [0x2000u16, 0x0010] {
        let mut part = sent.clone();
        part[20..22].copy_from_slice(&bits.to_be_bytes());
        assert_dropped(&mut receiver, &part, "fragment");
    }
}
