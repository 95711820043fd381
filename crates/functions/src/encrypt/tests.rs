use super::chacha::{ChaCha20, derive, key_of};
use super::*;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;
use tailwater_chain::chain::Outcome;
use tailwater_chain::live::Live;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

const SECOND: Nanos = Nanos::from_secs(1);

fn counting_key() -> [u8; 32] {
    std::array::from_fn(|i| i as u8)
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

/// Test vector of RFC 8439 §2.4.2. Its nonce has a first word of zero, like those of this function.
#[test]
fn the_rfcs_text_is_encrypted_as_in_the_rfc() {
    let mut text = *b"Ladies and Gentlemen of the class of '99: If I could offer you \
        only one tip for the future, sunscreen would be it.";
    let expected = hex("6e2e359a2568f98041ba0728dd0d6981e97e7aec1d4360c20a27afccfd9fae0b\
         f91b65c5524733ab8f593dabcd62b3571639d624e65152ab8f530c359f0861d8\
         07ca0dbf500d6a6156a38e088a22b65e52bc514d16ccf806818ce91ab7793736\
         5af90bbf74a35be6b40b8eedf2785e42874d");
    let nonce = [0x4a00_0000, 0];
    // The RFC's text starts at block 1.
    ChaCha20::detect().apply(&key_of(&counting_key()), nonce, 64, &mut text);
    assert_eq!(text.as_slice(), expected);
}

/// Test vector of draft-irtf-cfrg-xchacha §2.2.1.
#[test]
fn keys_are_derived_as_in_the_draft() {
    let input = hex("000000090000004a0000000031415927").try_into().unwrap();
    let expected = hex("82413b4227b27bfed30e42508a877d73a0f9e4d58a74a853c12ec41326d3ecdc");
    let expected = key_of(&expected.try_into().unwrap());
    assert_eq!(derive(&key_of(&counting_key()), input), expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// Compares with RustCrypto's implementation for any length and stream position, in the fastest and the portable
    /// variant.
    #[test]
    fn streams_are_those_of_another_implementation(
        key in any::<[u8; 32]>(),
        number in any::<u64>(),
        position in 0u64..1 << 34,
        length in 0usize..3000,
    ) {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&number.to_le_bytes());
        let mut expected = vec![0x5a; length];
        let mut cipher = chacha20::ChaCha20::new(&key.into(), &nonce.into());
        cipher.seek(position);
        cipher.apply_keystream(&mut expected);
        let words = [number as u32, (number >> 32) as u32];
        for cipher in [ChaCha20::detect(), ChaCha20::portable()] {
            let mut found = vec![0x5a; length];
            cipher.apply(&key_of(&key), words, position, &mut found);
            prop_assert_eq!(&found, &expected);
        }
    }
}

fn rules(direction: Direction) -> EncryptRules {
    EncryptRules {
        key: counting_key(),
        direction,
        mtu: 1500,
        midstream: false,
        drop_others: true,
    }
}

fn rig(rules: EncryptRules) -> ChainRig {
    ChainRig::new(
        vec![Box::new(Encrypt::new(
            Arc::new(Live::new(rules)),
            Arc::new(PacketNumbers::starting_now()),
        ))],
        INPUT,
    )
}

/// Builds both ends, on two machines.
fn rigs() -> (ChainRig, ChainRig) {
    (rig(rules(Direction::Encrypt)), rig(rules(Direction::Decrypt)))
}

fn tuple(v6: bool, protocol: u8, port: u16) -> FlowKey {
    match v6 {
        true => FlowKey::v6(1u128.into(), 2u128.into(), protocol, port, 80),
        false => FlowKey::v4([10, 0, 0, 1].into(), [192, 0, 2, 1].into(), protocol, port, 80),
    }
}

fn segment(port: u16, sequence: u32, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
    let fields = TcpFields {
        sequence,
        flags,
        ..TcpFields::default()
    };
    let key = tuple(false, protocol::TCP, port);
    FrameBuilder::new(&key).tcp(fields).payload(payload).to_vec().unwrap()
}

fn datagram(v6: bool, port: u16, payload: &[u8]) -> Vec<u8> {
    FrameBuilder::new(&tuple(v6, protocol::UDP, port))
        .payload(payload)
        .to_vec()
        .unwrap()
}

fn assert_sound(frame: &[u8]) {
    let headers = parse(frame).unwrap();
    assert_ne!(verify_network(frame, &headers), Checksum::Wrong);
    assert_eq!(verify_transport(frame, &headers), Checksum::Correct);
}

fn payload(frame: &[u8]) -> Vec<u8> {
    parse(frame).unwrap().payload(frame).to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Decryption restores every encrypted byte, including padding. In between, all checksums are correct and every
    /// payload of some length has changed.
    #[test]
    fn decryption_restores_every_byte(
        payloads in prop::collection::vec(
            (any::<bool>(), any::<bool>(), 0u16..4, prop::collection::vec(any::<u8>(), 0..200), 0usize..20),
            1..40,
        ),
        initial in any::<u32>(),
    ) {
        let (mut encrypt, mut decrypt) = rigs();
        for port in 0..4 {
            let syn = [segment(port, initial, TcpFlags::SYN, b"")];
            let sent = encrypt.run(&syn, SECOND);
            prop_assert_eq!(&decrypt.run(&sent, SECOND), &syn);
        }
        let mut sequences = [initial.wrapping_add(1); 4];
        for (tcp, v6, port, data, padding) in payloads {
            let mut frame = match tcp {
                true => {
                    let sequence = &mut sequences[usize::from(port)];
                    let frame = segment(port, *sequence, TcpFlags::ACK, &data);
                    *sequence = sequence.wrapping_add(data.len() as u32);
                    frame
                }
                false => datagram(v6, port, &data),
            };
            frame.extend(std::iter::repeat_n(0xee, padding));
            let sent = encrypt.run(std::slice::from_ref(&frame), SECOND);
            assert_sound(&sent[0]);
            let expected = data.len() + if tcp { 0 } else { 8 };
            prop_assert_eq!(payload(&sent[0]).len(), expected);
            if data.len() > 8 {
                prop_assert_ne!(&payload(&sent[0])[..data.len()], &data[..]);
            }
            prop_assert_eq!(decrypt.run(&sent, SECOND), [frame]);
        }
    }

    /// A stream may be segmented differently, retransmitted and reordered. Each byte is encrypted identically, and the
    /// far end restores it. This also holds across a wrap of the sequence numbers.
    #[test]
    fn a_stream_does_not_depend_on_its_segments(
        initial in prop_oneof![any::<u32>(), (u32::MAX - 2000)..=u32::MAX],
        pieces in prop::collection::vec((0usize..2900, 1usize..100), 1..60),
    ) {
        let stream: Vec<u8> = (0..3000u32).map(|i| ((i * i) >> 3) as u8).collect();
        let (mut encrypt, mut decrypt) = rigs();
        let syn = [segment(1, initial, TcpFlags::SYN, b"")];
        encrypt.run(&syn, SECOND);
        decrypt.run(&syn, SECOND);
        let mut cipher: Vec<Option<u8>> = vec![None; stream.len()];
        for (start, length) in pieces {
            let data = &stream[start..start + length];
            let sequence = initial.wrapping_add(1 + start as u32);
            let frame = segment(1, sequence, TcpFlags::ACK, data);
            let sent = encrypt.run(std::slice::from_ref(&frame), SECOND);
            for (byte, seen) in payload(&sent[0]).into_iter().zip(&mut cipher[start..]) {
                prop_assert_eq!(*seen.get_or_insert(byte), byte);
            }
            prop_assert_eq!(decrypt.run(&sent, SECOND), [frame]);
        }
    }
}

/// The 64-bit stream position continues beyond 4 GiB.
#[test]
fn a_stream_beyond_four_gibibytes_repeats_nothing() {
    let (mut encrypt, mut decrypt) = rigs();
    let syn = segment(1, 5, TcpFlags::SYN, b"");
    encrypt.run(std::slice::from_ref(&syn), SECOND);
    decrypt.run(&[syn], SECOND);
    let mut seen = HashSet::new();
    // Steps of 1 GiB: at the fifth, the sequence numbers repeat those of the first.
    for step in 0..9u32 {
        let frame = segment(1, 6u32.wrapping_add(step << 30), TcpFlags::ACK, &[0; 64]);
        let sent = encrypt.run(std::slice::from_ref(&frame), SECOND);
        assert!(seen.insert(payload(&sent[0])), "step {step}");
        assert_eq!(decrypt.run(&sent, SECOND), [frame]);
    }
}

/// Equal packets never give equal ciphertext: not in one flow, in two flows, or in a flow that restarts, in this run or
/// another.
#[test]
fn no_key_stream_is_used_twice() {
    let mut seen = HashSet::new();
    let zeros = [0; 64];
    for _run in 0..3 {
        let mut encrypt = rig(rules(Direction::Encrypt));
        for round in 0..3 {
            let now = Nanos::from_secs(1 + 1000 * round);
            (0..512).for_each(|_| encrypt.chain.expire(now));
            assert_eq!(encrypt.chain.flows(), 0);
            for port in [1, 2] {
                for _ in 0..50 {
                    let sent = encrypt.run(&[datagram(false, port, &zeros)], now);
                    assert!(seen.insert(payload(&sent[0])[..64].to_vec()));
                }
            }
        }
    }
    // TCP connections on the same ports differ in their initial sequence number.
    let mut encrypt = rig(rules(Direction::Encrypt));
    for initial in [1, 2, 0x8000_0001] {
        encrypt.run(&[segment(1, initial, TcpFlags::SYN, b"")], SECOND);
        let sequence = initial.wrapping_add(1);
        let sent = encrypt.run(&[segment(1, sequence, TcpFlags::ACK, &zeros)], SECOND);
        assert!(seen.insert(payload(&sent[0])));
    }
}

#[test]
fn what_cannot_be_encrypted_is_dropped_and_says_why() {
    let mut dropping = rig(rules(Direction::Encrypt));
    let ping = FrameBuilder::new(&tuple(false, protocol::ICMP, 80))
        .payload(b"ping")
        .to_vec();
    let ping = ping.unwrap();
    let mut fragment = datagram(false, 1, &[0; 64]);
    fragment[20..22].copy_from_slice(&0x2000u16.to_be_bytes());
    let others = [ping, fragment];
    assert!(dropping.run(&others, SECOND).is_empty());
    assert_eq!(dropping.count("encrypt/not-encryptable"), 2);
    let mut passing = rig(EncryptRules {
        drop_others: false,
        ..rules(Direction::Encrypt)
    });
    assert_eq!(passing.run(&others, SECOND), others);
    // Data without a SYN is dropped, a bare acknowledgement is not.
    let bare = segment(9, 7, TcpFlags::ACK, b"");
    let frames = [segment(9, 7, TcpFlags::ACK, b"secret"), bare.clone()];
    assert_eq!(passing.run(&frames, SECOND), [bare]);
    assert_eq!(passing.count("encrypt/no-syn"), 1);
    // 20 + 8 + 1464 + 8 bytes equal the MTU.
    assert_eq!(dropping.run(&[datagram(false, 1, &[0; 1464])], SECOND).len(), 1);
    assert!(dropping.run(&[datagram(false, 1, &[0; 1465])], SECOND).is_empty());
    assert_eq!(dropping.count("encrypt/oversize"), 1);
    let mut decrypt = rig(rules(Direction::Decrypt));
    assert!(decrypt.run(&[datagram(false, 1, &[0; 7])], SECOND).is_empty());
    assert_eq!(decrypt.count("encrypt/no-trailer"), 1);
}

/// Regression test: a packet without room in its buffer was counted as one that exceeds the configured MTU.
#[test]
fn no_room_for_the_trailer_is_a_loss_and_too_long_a_drop() {
    /// Function that leaves three bytes of headroom, as functions that add headers would.
    struct Fill;
    impl tailwater_chain::function::NetworkFunction for Fill {
        fn kind(&self) -> &'static str {
            "Fill"
        }
        fn process(
            &mut self,
            batch: &mut tailwater_chain::batch::Batch,
            _: &mut tailwater_chain::function::FlowStates<'_>,
        ) {
            for i in 0..batch.len() {
                assert!(batch.grow_front(i, tailwater_chain::buffer::HEADROOM - 3).is_some());
            }
        }
    }
    for (mtu, lost, dropped) in [(9000, 1, 0), (1500, 0, 1)] {
        let encrypt = Encrypt::new(
            Arc::new(Live::new(EncryptRules {
                mtu,
                ..rules(Direction::Encrypt)
            })),
            Arc::new(PacketNumbers::starting_now()),
        );
        let mut rig = ChainRig::new(vec![Box::new(Fill), Box::new(encrypt)], INPUT);
        // The rig's buffers hold frames of 2,112 bytes: three of the trailer's eight bytes fit, the rest do not.
        let frame = datagram(false, 1, &[0; 2112 - 42]);
        assert!(rig.run(&[frame], SECOND).is_empty());
        assert_eq!(rig.count("encrypt/no-room"), lost);
        assert_eq!(rig.count("encrypt/oversize"), dropped);
        assert_eq!(rig.chain.lost(), lost);
        let reasons = rig.chain.reasons();
        let outcome = |name| reasons.iter().find(|r| r.name == name).unwrap().outcome;
        assert_eq!(outcome("encrypt/no-room"), Outcome::Lost);
        assert_eq!(outcome("encrypt/oversize"), Outcome::Dropped);
    }
}

#[test]
fn another_key_restores_nothing() {
    let mut encrypt = rig(rules(Direction::Encrypt));
    let mut wrong = rules(Direction::Decrypt);
    wrong.key[31] ^= 1;
    let mut decrypt = rig(wrong);
    let frame = datagram(false, 1, &[7; 100]);
    let sent = encrypt.run(std::slice::from_ref(&frame), SECOND);
    let found = decrypt.run(&sent, SECOND);
    assert_ne!(found, [frame]);
    assert_sound(&found[0]);
}

#[test]
fn a_udp_checksum_of_zero_stays_zero() {
    let (mut encrypt, mut decrypt) = rigs();
    let key = tuple(false, protocol::UDP, 1);
    let builder = FrameBuilder::new(&key).without_udp_checksum();
    let frame = builder.payload(b"whatever").to_vec().unwrap();
    let sent = encrypt.run(std::slice::from_ref(&frame), SECOND);
    assert_eq!(sent[0][40..42], [0, 0]);
    assert_eq!(decrypt.run(&sent, SECOND), [frame]);
}

#[test]
fn the_key_is_not_in_debug_output() {
    let text = format!("{:?}", rules(Direction::Encrypt));
    assert!(text.contains("mtu") && !text.contains("31"), "{text}");
}

/// Without a SYN, stream positions are sequence numbers. This also holds across their wrap.
#[test]
fn connections_may_be_joined_midstream() {
    let joining = |direction| EncryptRules {
        midstream: true,
        ..rules(direction)
    };
    let mut encrypt = rig(joining(Direction::Encrypt));
    let mut decrypt = rig(joining(Direction::Decrypt));
    let mut seen = HashSet::new();
    for step in 0..8u32 {
        let sequence = (u32::MAX - 200).wrapping_add(step * 64);
        let frame = segment(3, sequence, TcpFlags::ACK, &[0; 64]);
        let sent = encrypt.run(std::slice::from_ref(&frame), SECOND);
        assert!(seen.insert(payload(&sent[0])));
        assert_eq!(decrypt.run(&sent, SECOND), [frame]);
    }
    // A new connection has its own key.
    let syn = segment(3, 77, TcpFlags::SYN, b"");
    let syn = [syn];
    assert_eq!(encrypt.run(&syn, SECOND), syn);
    assert_eq!(decrypt.run(&syn, SECOND), syn);
    let frame = segment(3, 78, TcpFlags::ACK, &[0; 64]);
    let sent = encrypt.run(std::slice::from_ref(&frame), SECOND);
    assert!(seen.insert(payload(&sent[0])));
    assert_eq!(decrypt.run(&sent, SECOND), [frame]);
}

/// Regression test: numbers were counted per flow. Two flows to which an earlier function had given the same 5-tuple
/// had the same key and used the same numbers.
#[test]
fn flows_with_one_tuple_never_share_a_number() {
    struct Merge;
    impl tailwater_chain::function::NetworkFunction for Merge {
        fn kind(&self) -> &'static str {
            "Merge"
        }
        fn process(
            &mut self,
            batch: &mut tailwater_chain::batch::Batch,
            _: &mut tailwater_chain::function::FlowStates<'_>,
        ) {
            let one = FlowKey::v4(1.into(), 2.into(), protocol::UDP, 3, 4);
            batch.iter_mut().for_each(|packet| packet.headers.key = one);
        }
    }
    let rules = EncryptRules {
        key: [7; 32],
        direction: Direction::Encrypt,
        mtu: 1500,
        midstream: false,
        drop_others: true,
    };
    let numbers = Arc::new(PacketNumbers::starting_now());
    let mut trailers = HashSet::new();
    // Two workers with many flows each, and more packets than a worker reserves numbers at a time.
    for _ in 0..2 {
        let encrypt = Encrypt::new(Arc::new(Live::new(rules.clone())), Arc::clone(&numbers));
        let mut rig = ChainRig::new(vec![Box::new(Merge), Box::new(encrypt)], INPUT);
        for round in 0..60u64 {
            let frames: Vec<_> = (0..32).map(tailwater_chain::rig::udp).collect();
            for frame in rig.run(&frames, Nanos::from_millis(1000 + round)) {
                assert!(trailers.insert(frame[frame.len() - 8..].to_vec()));
            }
        }
    }
    assert_eq!(trailers.len(), 2 * 60 * 32);
}
