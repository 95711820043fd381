//! Frames of all kinds: whole, truncated and damaged.

mod invariants;

use proptest::prelude::*;
use proptest::sample::Index;

use invariants::{check, checksums_hold};
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::{Fragment, Network, parse};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::vlan::{self, VlanTag};
use tailwater_net::{FlowKey, protocol};

fn protocols() -> impl Strategy<Value = u8> {
    prop_oneof![
        4 => Just(protocol::TCP),
        4 => Just(protocol::UDP),
        2 => Just(protocol::ICMP),
        2 => Just(protocol::ICMPV6),
        1 => Just(protocol::SCTP),
        1 => any::<u8>(),
    ]
}

fn keys() -> impl Strategy<Value = FlowKey> {
    let addresses = any::<[u128; 2]>();
    (any::<bool>(), addresses, protocols(), any::<[u16; 2]>()).prop_map(|(v4, [s, d], protocol, [sp, dp])| match v4 {
        true => FlowKey::v4((s as u32).into(), (d as u32).into(), protocol, sp, dp),
        false => FlowKey::v6(s.into(), d.into(), protocol, sp, dp),
    })
}

fn bytes(lengths: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), lengths)
}

/// Options of 0 to 40 bytes, in steps of 4.
fn options() -> impl Strategy<Value = Vec<u8>> {
    (0..=10usize).prop_flat_map(|words| bytes(4 * words..4 * words + 1))
}

#[derive(Clone, Debug)]
struct Frame {
    key: FlowKey,
    tags: Vec<u16>,
    ip_options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
    tcp_options: Vec<u8>,
    flags: u8,
    payload: Vec<u8>,
    padded: bool,
}

impl Frame {
    fn build(&self) -> Vec<u8> {
        let extensions: Vec<(u8, &[u8])> = self.extensions.iter().map(|(kind, data)| (*kind, &data[..])).collect();
        let mut builder = FrameBuilder::new(&self.key).payload(&self.payload);
        for &id in &self.tags {
            builder = builder.vlan(VlanTag::customer(id));
        }
        if self.key.is_v4() {
            builder = builder.ip_options(&self.ip_options);
        } else {
            builder = builder.extensions(&extensions);
        }
        if self.key.protocol() == protocol::TCP {
            builder = builder.tcp(TcpFields {
                flags: TcpFlags(self.flags),
                options: &self.tcp_options,
                ..TcpFields::default()
            });
        }
        if self.padded {
            builder = builder.pad_to_minimum();
        }
        builder.to_vec().expect("every part fits")
    }
}

/// Frames as a sender builds them, with `extensions` extension headers of `kinds`.
fn frames(kinds: impl Strategy<Value = u8>, extensions: std::ops::Range<usize>) -> impl Strategy<Value = Frame> {
    let extension = (kinds, prop_oneof![Just(6), Just(14), Just(30)])
        .prop_flat_map(|(kind, length)| (Just(kind), bytes(length..length + 1)));
    (
        keys(),
        prop::collection::vec(0..4096u16, 0..=3),
        options(),
        prop::collection::vec(extension, extensions),
        options(),
        any::<u8>(),
        bytes(1..200),
        any::<bool>(),
    )
        .prop_map(
            |(key, tags, ip_options, extensions, tcp_options, flags, payload, padded)| Frame {
                key,
                tags,
                ip_options,
                extensions,
                tcp_options,
                flags,
                payload,
                padded,
            },
        )
}

fn sound_frames() -> impl Strategy<Value = Frame> {
    let kinds = prop_oneof![
        Just(protocol::ROUTING),
        Just(protocol::DESTINATION_OPTIONS),
        Just(protocol::MOBILITY),
    ];
    // A random protocol number may be that of an IPv6 extension header, which the payload is not.
    frames(kinds, 0..5).prop_filter("an upper layer", |frame| {
        frame.key.is_v4() || !protocol::is_extension(frame.key.protocol())
    })
}

/// Extension headers in any order and number, fragment headers with random contents included.
fn wild_frames() -> impl Strategy<Value = Frame> {
    let kinds = prop_oneof![
        Just(protocol::HOP_BY_HOP),
        Just(protocol::ROUTING),
        Just(protocol::FRAGMENT),
        Just(protocol::AUTHENTICATION),
        Just(protocol::DESTINATION_OPTIONS),
    ];
    frames(kinds, 0..9)
}

proptest! {
    #[test]
    fn random_bytes(frame in bytes(0..200)) {
        check(&frame);
    }

    #[test]
    fn random_bytes_after_an_ethertype(
        mut frame in bytes(14..200),
        head in prop_oneof![Just([8, 0, 0x45]), Just([8, 0, 0x46]), Just([0x86, 0xdd, 0x60])],
    ) {
        frame.insert(14, 0);
        frame[12..15].copy_from_slice(&head);
        check(&frame);
    }

    #[test]
    fn built_frames_parse_to_what_was_built(frame in sound_frames()) {
        let built = frame.build();
        check(&built);
        let headers = parse(&built).unwrap();
        let protocol = frame.key.protocol();
        prop_assert_eq!(headers.network == Network::V4, frame.key.is_v4());
        prop_assert_eq!(headers.fragment, Fragment::Whole);
        prop_assert_eq!(headers.key.source(), frame.key.source());
        prop_assert_eq!(headers.key.destination(), frame.key.destination());
        prop_assert_eq!(headers.key.protocol(), protocol);
        if matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP) {
            prop_assert_eq!(headers.key, frame.key);
        }
        prop_assert_eq!(headers.payload(&built), &frame.payload[..]);
        prop_assert!(checksums_hold(&built, &headers));
        let ids: Vec<u16> = vlan::tags(&built).map(|tag| tag.id).collect();
        prop_assert_eq!(ids, frame.tags);
        prop_assert!(frame.padded || headers.end as usize == built.len());
    }

    #[test]
    fn cut_at_every_length(frame in sound_frames()) {
        let built = frame.build();
        let whole = parse(&built);
        for length in 0..built.len() {
            let cut = &built[..length];
            check(cut);
            // Only padding may be missing.
            let complete = whole.is_ok_and(|headers| headers.end as usize <= length);
            prop_assert_eq!(parse(cut).is_ok(), complete, "{} bytes", length);
        }
    }

    #[test]
    fn damaged(
        frame in wild_frames(),
        damage in prop::collection::vec((any::<Index>(), any::<u8>()), 0..6),
        length in any::<Index>(),
    ) {
        let mut built = frame.build();
        for (index, byte) in damage {
            // Damage matters most in headers.
            let reach = built.len().min(80);
            built[index.index(reach)] = byte;
        }
        check(&built);
        built.truncate(length.index(built.len()) + 1);
        check(&built);
    }

    #[test]
    fn a_damaged_bit_is_seen_by_a_checksum(
        frame in sound_frames(),
        index in any::<Index>(),
        bit in 0..8u8,
    ) {
        prop_assume!(matches!(frame.key.protocol(), protocol::TCP | protocol::UDP));
        // A random routing header may change the final destination.
        prop_assume!(frame.key.is_v4() || frame.extensions.iter().all(|e| e.0 != protocol::ROUTING));
        let mut built = frame.build();
        let headers = parse(&built).unwrap();
        // Over IPv6 only the transport checksum exists.
        let start = if frame.key.is_v4() { headers.network_offset } else { headers.transport_offset };
        let at = start as usize + index.index((headers.end - start) as usize);
        built[at] ^= 1 << bit;
        if let Ok(damaged) = parse(&built) {
            // The damage may turn the packet into one whose checksum covers less.
            let comparable = damaged.end == headers.end
                && damaged.fragment == headers.fragment
                && damaged.key.protocol() == frame.key.protocol()
                && damaged.transport_offset == headers.transport_offset;
            prop_assert!(!comparable || !checksums_hold(&built, &damaged), "byte {}", at);
        }
    }
}

/// Frames of the greatest length and one byte more.
#[test]
fn longest_frames() {
    let key = FlowKey::v4([1; 4].into(), [2; 4].into(), protocol::UDP, 1, 2);
    let mut longest = FrameBuilder::new(&key).frame_length(65_535).to_vec().unwrap();
    check(&longest);
    assert_eq!(parse(&longest).unwrap().end, 65_535);
    longest.push(0);
    check(&longest);
    assert!(parse(&longest).is_err());
}
