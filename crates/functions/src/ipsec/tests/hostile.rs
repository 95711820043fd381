//! Tests with malformed and forged packets.

use super::*;
use proptest::prelude::*;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, protocol};

fn packet(v6: bool) -> Vec<u8> {
    let key = match v6 {
        true => FlowKey::v6(1u128.into(), 2u128.into(), protocol::UDP, 1, 2),
        false => FlowKey::v4([10, 0, 0, 1].into(), [10, 9, 0, 1].into(), protocol::UDP, 1, 2),
    };
    FrameBuilder::new(&key).payload(b"some bytes").to_vec().unwrap()
}

const ETHERNET: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];

/// Returns a correctly sealed frame with any plaintext.
fn sealed(ends: &Ends, sequence: u64, text: &[u8]) -> Vec<u8> {
    let esp = oracle::esp(&ends.out.association, sequence, sequence, text);
    oracle::frame(&ETHERNET, &ends.out, sequence, &[0x45, 0, 0, 0, 0, 0, 0, 0], &esp)
}

#[test]
fn what_is_sealed_is_checked_all_the_same() {
    let ends = Ends::new(Cipher::Aes128Gcm, false);
    let mut receiver = rig(&ends.receiving());
    let inner = packet(false)[14..].to_vec();
    let with = |tail: &[u8]| [&inner[..], tail].concat();
    let mut broken = inner.clone();
    broken[2..4].copy_from_slice(&2000u16.to_be_bytes());
    let mut shorter = inner.clone();
    shorter.extend([9; 10]);
    for (sequence, (text, expected)) in (1..).zip([
        (with(&[1, 2, 2, 4]), None),
        (with(&[0, 4]), None),
        // Traffic flow confidentiality padding (RFC 4303 §2.7).
        ([&shorter[..], &[1, 1, 4]].concat(), None),
        (with(&[1, 3, 2, 4]), Some("bad-padding")),
        (with(&[0, 0, 2, 4]), Some("bad-padding")),
        (with(&[255, 4]), Some("bad-padding")),
        (vec![1, 4], Some("bad-padding")),
        (vec![0, 4], Some("inner-malformed")),
        (with(&[0, 41]), Some("inner-malformed")),
        ([&broken[..], &[0, 4]].concat(), Some("inner-malformed")),
        (with(&[0, 17]), Some("wrong-next-header")),
        (with(&[0, 59]), Some("keep-alive")),
        (vec![0, 59], Some("keep-alive")),
    ]) {
        let frame = sealed(&ends, sequence, &text);
        match expected {
            Some(reason) => assert_dropped(&mut receiver, &frame, reason),
            None => {
                let found = run(&mut receiver, &frame).unwrap();
                assert_eq!(without_padding(&found), packet(false), "{text:?}");
            }
        }
        // The packet was authentic, so its number is used up.
        assert_dropped(&mut receiver, &frame, "replayed");
    }
    let number_0 = sealed(&ends, 0, &with(&[0, 4]));
    assert_dropped(&mut receiver, &number_0, "too-old");
}

/// A forged number far ahead must not move the window past genuine ones.
#[test]
fn forged_packets_move_no_window() {
    let ends = Ends::new(Cipher::Aes128Gcm, false);
    let (mut sender, mut receiver) = ends.rigs();
    let sent = run(&mut sender, &packet(false)).unwrap();
    let mut forged = sent.clone();
    forged[38..42].copy_from_slice(&u32::MAX.to_be_bytes());
    for _ in 0..3 {
        assert_dropped(&mut receiver, &forged, "not-authentic");
    }
    assert_eq!(run(&mut receiver, &sent).unwrap(), packet(false));
}

fn any_ends() -> impl Strategy<Value = Ends> {
    (prop::sample::select(CIPHERS.to_vec()), any::<(bool, bool, bool)>()).prop_map(|(cipher, (extended, v6, udp))| {
        let mut ends = Ends::new(cipher, extended);
        ends = if v6 { ends.over_ipv6() } else { ends };
        if udp { ends.in_udp() } else { ends }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// With one bit behind the outer headers flipped, nothing is decapsulated.
    #[test]
    fn a_changed_bit_is_found(ends in any_ends(), v6 in any::<bool>(), at in any::<prop::sample::Index>(), bit in 0u32..8) {
        let (mut sender, mut receiver) = ends.rigs();
        let mut sent = run(&mut sender, &packet(v6)).unwrap();
        let start = usize::from(parse(&sent).unwrap().payload_offset);
        let at = start + at.index(sent.len() - start);
        sent[at] ^= 1u8 << bit;
        prop_assert_eq!(run(&mut receiver, &sent), None);
        let reasons = ["not-authentic", "no-association", "too-old"];
        let dropped: u64 = reasons.iter().map(|reason| receiver.count(&format!("ipsec/{reason}"))).sum();
        prop_assert_eq!(dropped, 1);
    }

    /// With any bytes behind the headers of a packet to this endpoint, or inside a sealed one, the packet is sent or
    /// counted. Sent packets are well formed, which the next function checks.
    #[test]
    fn any_bytes_are_borne(
        ends in any_ends(),
        (known, seal) in any::<(bool, bool)>(),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut receiver = rig(&ends.receiving());
        let mut payload = match seal {
            true => oracle::esp(&ends.out.association, 7, 7, &bytes),
            false if known => [&ends.out.association.spi.to_be_bytes()[..], &bytes].concat(),
            false => bytes,
        };
        payload.truncate(payload.len() - cut.index(payload.len() + 1) / 4);
        let inner = packet(false);
        let frame = oracle::frame(&ETHERNET, &ends.out, 7, &inner[14..], &payload);
        let sent = u64::from(run(&mut receiver, &frame).is_some());
        let reasons = receiver.chain.reasons();
        let dropped = reasons.iter().zip(receiver.chain.reason_counts());
        let dropped = dropped.filter(|(reason, _)| reason.outcome != tailwater_chain::chain::Outcome::Passed);
        prop_assert_eq!(sent + dropped.map(|(_, count)| count).sum::<u64>(), 1);
    }
}
