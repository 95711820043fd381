use super::*;
use crate::builder::FrameBuilder;
use crate::vlan::VlanTag;
use proptest::prelude::*;

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

fn ipv4(protocol: u8, fragment: u16, data: &[u8]) -> Vec<u8> {
    let mut frame = [&MACS[..], &[8, 0, 0x45, 0]].concat();
    frame.extend((20 + data.len() as u16).to_be_bytes());
    frame.extend([0, 1]);
    frame.extend(fragment.to_be_bytes());
    frame.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(data);
    frame
}

fn ipv6(next: u8, data: &[u8]) -> Vec<u8> {
    let mut frame = [&MACS[..], &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    frame.extend((data.len() as u16).to_be_bytes());
    frame.extend([next, 64]);
    frame.extend([0x20; 16]);
    frame.extend([0x21; 16]);
    frame.extend(data);
    frame
}

fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

fn cut(mut frame: Vec<u8>, length: usize) -> Vec<u8> {
    frame.truncate(length);
    frame
}

/// TCP header with ports 1 and 2, without options.
const TCP: [u8; 20] = [0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0x50, 0x10, 1, 0, 0, 0, 0, 0];
/// UDP header with ports 1 and 2, without payload.
const UDP: [u8; 8] = [0, 1, 0, 2, 0, 8, 0, 0];
/// Destination options, followed by an upper layer of TCP, UDP or themselves.
const BEFORE_TCP: [u8; 8] = [6, 0, 1, 4, 0, 0, 0, 0];
const BEFORE_UDP: [u8; 8] = [17, 0, 1, 4, 0, 0, 0, 0];
const BEFORE_OPTIONS: [u8; 8] = [60, 0, 1, 4, 0, 0, 0, 0];

/// Builds a fragment header.
fn fragment_header(next: u8, bits: u16) -> [u8; 8] {
    let [high, low] = bits.to_be_bytes();
    [next, 0, high, low, 0, 0, 0, 7]
}

/// Every error of `parse`, from a minimal frame that causes it.
#[test]
fn every_reason() {
    let options = |count: usize| BEFORE_OPTIONS.repeat(count);
    let long_options = |next: u8| [&[next, 1][..], &[0; 14]].concat();
    let vlans = |count: usize| [&MACS[..], &[0x81, 0, 0, 1].repeat(count), &[8, 6]].concat();
    #[rustfmt::skip]
    let cases: &[(Malformed, Vec<u8>)] = &[
        (Malformed::TruncatedEthernet, vec![0; 13]),
        (Malformed::TruncatedEthernet, cut(vlans(1), 17)),
        (Malformed::Oversize, vec![0; 65_536]),
        (Malformed::TooManyVlanTags, vlans(4)),
        (Malformed::TruncatedIpv4Header, cut(ipv4(6, 0, &TCP), 33)),
        (Malformed::TruncatedIpv4Header, with(cut(ipv4(6, 0, &TCP), 37), 14, &[0x46])),
        (Malformed::Ipv4Version, with(ipv4(6, 0, &TCP), 14, &[0x65])),
        (Malformed::Ipv4HeaderLength, with(ipv4(6, 0, &TCP), 14, &[0x44])),
        (Malformed::Ipv4TotalLength, with(ipv4(6, 0, &TCP), 16, &[0, 19])),
        (Malformed::Ipv4TotalLength, with(ipv4(6, 0, &TCP), 16, &[0, 0])),
        (Malformed::TruncatedIpv4, with(ipv4(6, 0, &TCP), 16, &[0, 41])),
        (Malformed::TruncatedIpv6Header, cut(ipv6(6, &TCP), 53)),
        (Malformed::Ipv6Version, with(ipv6(6, &TCP), 14, &[0x45])),
        (Malformed::Ipv6ZeroLength, ipv6(6, &[])),
        (Malformed::Ipv6ZeroLength, with(ipv6(0, &TCP), 18, &[0, 0])),
        (Malformed::TruncatedIpv6, with(ipv6(6, &TCP), 18, &[0, 21])),
        (Malformed::TruncatedExtension, ipv6(60, &BEFORE_TCP[..7])),
        (Malformed::TruncatedExtension, with(ipv6(60, &BEFORE_TCP), 55, &[1])),
        (Malformed::TooManyExtensions, ipv6(60, &[&options(8)[..], &BEFORE_TCP, &TCP].concat())),
        (Malformed::HopByHopNotFirst, ipv6(60, &[&[0, 0, 1, 4, 0, 0, 0, 0], &BEFORE_TCP[..], &TCP].concat())),
        (Malformed::RepeatedFragmentHeader,
            ipv6(44, &[fragment_header(44, 0), fragment_header(17, 0), UDP].concat())),
        (Malformed::FragmentLength, ipv4(17, 0x2000, &[&UDP[..], &[0]].concat())),
        (Malformed::FragmentLength, ipv6(44, &[&fragment_header(17, 1)[..], &UDP, &[0]].concat())),
        (Malformed::FragmentOverflow, ipv4(17, 0x1fff, &UDP)),
        (Malformed::FragmentOverflow, ipv6(44, &[fragment_header(17, 0xfff8), UDP].concat())),
        (Malformed::TinyFragment, ipv4(6, 0x2000, &TCP[..16])),
        (Malformed::TinyFragment, ipv4(17, 0x2000, &[])),
        (Malformed::TinyFragment, ipv6(44, &[&fragment_header(58, 1)[..]].concat())),
        (Malformed::FragmentOverlap, ipv4(6, 0x2001, &[0; 8])),
        (Malformed::FragmentOverlap, ipv6(44, &[fragment_header(6, 8), [0; 8]].concat())),
        (Malformed::TruncatedTcp, ipv4(6, 0, &TCP[..19])),
        (Malformed::TruncatedTcp, with(ipv4(6, 0, &TCP), 46, &[0x60])),
        (Malformed::TcpDataOffset, with(ipv4(6, 0, &TCP), 46, &[0x40])),
        (Malformed::TruncatedUdp, ipv4(17, 0, &UDP[..7])),
        (Malformed::UdpLength, with(ipv4(17, 0, &UDP), 39, &[7])),
        (Malformed::UdpLength, with(ipv4(17, 0, &UDP), 39, &[9])),
        (Malformed::UdpLength, with(ipv4(17, 0x2000, &UDP), 39, &[7])),
        (Malformed::TruncatedIcmp, ipv4(1, 0, &[8, 0, 0, 0, 0, 0, 0])),
        (Malformed::TruncatedIcmp, ipv6(58, &[128, 0, 0, 0, 0, 0, 0])),
        (Malformed::TruncatedIcmp, ipv6(58, &[152, 0, 0])),
        (Malformed::TruncatedSctp, ipv6(60, &[&[132, 0, 1, 4, 0, 0, 0, 0][..], &[0; 11]].concat())),
    ];
    for (reason, frame) in cases {
        assert_eq!(parse(frame), Err(*reason), "{frame:02x?}");
        // Padding does not change the reason, unless the datagram was truncated.
        let name = reason.name();
        if !name.starts_with("truncated-ip") && !name.ends_with("ethernet") && frame.len() < 1000 {
            let padded = [&frame[..], &[0; 60]].concat();
            assert_eq!(parse(&padded), Err(*reason), "padded {frame:02x?}");
        }
    }
    // Errors of views only.
    let of_views = [
        Malformed::TruncatedArp,
        Malformed::ArpFormat,
        Malformed::Ipv4Options,
        Malformed::TcpOptions,
    ];
    for reason in Malformed::ALL {
        let covered = cases.iter().any(|(given, _)| given == reason);
        assert!(covered != of_views.contains(reason), "{}", reason.name());
    }
    // Valid frames from which the cases are derived.
    let sound = [
        ipv4(6, 0, &TCP),
        ipv4(17, 0, &UDP),
        ipv6(6, &TCP),
        vlans(3),
        ipv6(60, &[&options(7)[..], &BEFORE_TCP, &TCP].concat()),
        ipv6(60, &[&long_options(17)[..], &UDP].concat()),
        ipv6(0, &[&BEFORE_UDP[..], &UDP].concat()),
        ipv4(6, 0x2000, &[&TCP[..], &[0; 4]].concat()),
        ipv4(17, 0x1ffe, &UDP),
        ipv4(17, 0x2001, &[0; 8]),
    ];
    for frame in sound {
        assert!(parse(&frame).is_ok(), "{frame:02x?}");
    }
}

#[test]
fn offsets_and_key() {
    let frame = [&ipv4(6, 0, &[&TCP[..], b"data"].concat())[..], &[0; 2]].concat();
    let expected = Headers {
        network: Network::V4,
        fragment: Fragment::Whole,
        network_offset: 14,
        transport_offset: 34,
        payload_offset: 54,
        end: 58,
        key: FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, 1, 2),
    };
    assert_eq!(parse(&frame), Ok(expected));
    assert_eq!(expected.payload(&frame), b"data");
    assert_eq!(expected.transport(&frame), [&TCP[..], b"data"].concat());
    assert_eq!(expected.datagram(&frame), &frame[14..58]);
    // Options and tags take the general path, with the same result.
    let mut tagged = frame.clone();
    tagged.splice(12..12, [0x88, 0xa8, 0, 1, 0x81, 0, 0, 2]);
    let expected = Headers {
        network_offset: 22,
        transport_offset: 42,
        payload_offset: 62,
        end: 66,
        ..expected
    };
    assert_eq!(parse(&tagged), Ok(expected));

    let frame = ipv6(60, &[&BEFORE_UDP[..], &UDP].concat());
    let expected = Headers {
        network: Network::V6,
        fragment: Fragment::Whole,
        network_offset: 14,
        transport_offset: 62,
        payload_offset: 70,
        end: 70,
        key: FlowKey::v6([0x20; 16].into(), [0x21; 16].into(), 17, 1, 2),
    };
    assert_eq!(parse(&frame), Ok(expected));
    let mut kept = Headers::default();
    assert!(!parse_ordinary(&frame, &mut kept), "IPv6 takes the general path");
    assert_eq!(kept, Headers::default());
}

#[test]
fn not_ip() {
    for kind in [[8, 6], [0x88, 0xcc], [0, 46], [0x88, 0x64], [0x88, 0x47]] {
        let frame = [&MACS[..], &kind, &[0; 46]].concat();
        let expected = Headers {
            network_offset: 14,
            transport_offset: 14,
            payload_offset: 14,
            end: 60,
            ..Headers::default()
        };
        assert_eq!(parse(&frame), Ok(expected));
        assert!(!expected.has_transport());
    }
}

#[test]
fn fragments() {
    let first = parse(&ipv4(17, 0x2000, &with(UDP.to_vec(), 4, &[9, 9]))).unwrap();
    assert_eq!((first.fragment, first.key.source_port()), (Fragment::First, 1));
    assert!(first.has_transport());
    let later = parse(&ipv4(17, 0x2002, &[1; 8])).unwrap();
    assert_eq!((later.fragment, later.key.source_port()), (Fragment::Later, 0));
    assert_eq!((later.transport_offset, later.payload_offset, later.end), (34, 34, 42));
    assert!(!later.has_transport());
    // "Do not fragment" and the reserved bit have no influence.
    for bits in [0x4000, 0x8000, 0xc000] {
        assert_eq!(parse(&ipv4(17, bits, &UDP)).unwrap().fragment, Fragment::Whole);
    }
    // An atomic fragment is whole; a later fragment's protocol may be an extension header.
    let atomic = parse(&ipv6(44, &[fragment_header(17, 0), UDP].concat())).unwrap();
    assert_eq!((atomic.fragment, atomic.key.source_port()), (Fragment::Whole, 1));
    let later = parse(&ipv6(44, &[fragment_header(60, 0x0100), [0xff; 8]].concat())).unwrap();
    assert_eq!((later.fragment, later.key.protocol()), (Fragment::Later, 60));
    assert_eq!((later.transport_offset, later.end), (62, 70));
}

#[test]
fn echo_identifiers_are_both_ports() {
    let echo = |kind| [kind, 0, 0, 0, 0x12, 0x34, 0, 1];
    for (frame, identifier) in [
        (ipv4(1, 0, &echo(8)), 0x1234),
        (ipv4(1, 0, &echo(0)), 0x1234),
        (ipv4(1, 0, &echo(3)), 0),
        (ipv6(58, &echo(128)), 0x1234),
        (ipv6(58, &echo(129)), 0x1234),
        (ipv6(58, &echo(2)), 0),
        // Each ICMP version belongs to its IP version.
        (ipv4(58, 0, &echo(128)), 0),
        (ipv6(1, &echo(8)), 0),
    ] {
        let key = parse(&frame).unwrap().key;
        assert_eq!((key.source_port(), key.destination_port()), (identifier, identifier));
    }
}

/// Encrypted, absent and unknown upper layers end parsing without ports.
#[test]
fn upper_layers_without_ports() {
    for next in [protocol::ESP, protocol::NO_NEXT_HEADER, 89, 253] {
        for frame in [ipv6(next, &[1; 4]), ipv4(next, 0, &[1; 4])] {
            let headers = parse(&frame).unwrap();
            assert_eq!(headers.key.protocol(), next);
            assert_eq!((headers.key.source_port(), headers.key.destination_port()), (0, 0));
            assert_eq!(headers.payload(&frame), [1; 4]);
        }
    }
    assert!(parse(&ipv6(protocol::NO_NEXT_HEADER, &[])).is_ok());
}

/// The paths for plain and for common packets find what the general path finds, or nothing.
fn paths_agree(frame: &[u8]) -> Result<Headers, Malformed> {
    let expected = parse_any(frame);
    assert_eq!(parse(frame), expected, "{frame:02x?}");
    let plain = parse_plain_v4(frame);
    let common = parse_common(frame);
    for found in [plain, common].into_iter().flatten() {
        assert_eq!(Ok(found), expected, "{frame:02x?}");
    }
    let is_plain = common.is_some_and(|headers| is_plain(&headers));
    assert_eq!(plain.is_some(), is_plain, "{frame:02x?}");
    let mut guessed = Headers::default();
    if guess_v4(frame, &mut guessed) {
        assert_eq!(common, Some(guessed), "{frame:02x?}");
    }
    expected
}

/// Common kinds of packets: protocol, IP version, tagged, and the frame with room at its end.
fn common() -> Vec<(u8, bool, bool, Vec<u8>)> {
    let protocols = [protocol::TCP, protocol::UDP, protocol::ICMP, protocol::ICMPV6];
    let kinds = (0..16).map(|kind| (protocols[kind >> 2], kind & 1 != 0, kind & 2 != 0));
    let kinds = kinds.map(|(protocol, is_v6, is_tagged)| {
        let key = match is_v6 {
            false => FlowKey::v4([1, 2, 3, 4].into(), [5, 6, 7, 8].into(), protocol, 9, 10),
            true => FlowKey::v6([0x20; 16].into(), [0x21; 16].into(), protocol, 9, 10),
        };
        let mut builder = FrameBuilder::new(&key);
        if is_tagged {
            builder = builder.vlan(VlanTag::customer(1));
        }
        (protocol, is_v6, is_tagged, builder.frame_length(100).to_vec().unwrap())
    });
    kinds.collect()
}

/// Every value of every header byte.
#[test]
fn all_paths_agree_on_every_byte() {
    for (protocol, is_v6, is_tagged, frame) in common() {
        for at in 12..82 {
            for value in 0..=255 {
                let _ = paths_agree(&with(frame.clone(), at, &[value]));
            }
        }
        let is_icmp = protocol == if is_v6 { protocol::ICMPV6 } else { protocol::ICMP };
        let is_common = is_icmp || matches!(protocol, protocol::TCP | protocol::UDP);
        assert_eq!(parse_common(&frame).is_some(), is_common, "{frame:02x?}");
        let is_plain = is_common && !is_icmp && !is_v6 && !is_tagged;
        assert_eq!(parse_plain_v4(&frame).is_some(), is_plain, "{frame:02x?}");
        let is_guessed = is_common && !is_icmp && !is_v6;
        assert_eq!(guess_v4(&frame, &mut Headers::default()), is_guessed, "{frame:02x?}");
    }
    let key = FlowKey::v4([1, 2, 3, 4].into(), [5, 6, 7, 8].into(), protocol::UDP, 9, 10);
    let service = FrameBuilder::new(&key)
        .vlan(VlanTag::service(1))
        .frame_length(80)
        .to_vec()
        .unwrap();
    assert!(parse_common(&service).is_some());
    let two = FrameBuilder::new(&key)
        .vlan(VlanTag::service(1))
        .vlan(VlanTag::customer(1))
        .frame_length(80)
        .to_vec()
        .unwrap();
    assert!(parse_common(&two).is_none());
}

/// Frames from too short for any header to longer than needed, with all header lengths and some datagram lengths.
#[test]
fn all_paths_agree_on_every_length() {
    let mut reached = std::collections::BTreeSet::new();
    for (_, is_v6, is_tagged, frame) in common() {
        let network = 14 + 4 * usize::from(is_tagged);
        let (length_at, transport) = match is_v6 {
            false => (network + 2, network + 20),
            true => (network + 4, network + 40),
        };
        for length in 40..=86usize {
            let datagram = length.saturating_sub(if is_v6 { transport } else { network });
            for stated in (0..=datagram + 2).rev().take(32).chain([0, 65_535]) {
                let frame = with(frame.clone(), length_at, &(stated as u16).to_be_bytes());
                for header in 0..16u8 {
                    // The data offset of TCP, and the length of UDP in the neighbourhood of its least and of its most.
                    let frame = with(frame.clone(), transport + 12, &[header << 4]);
                    let udp = match header {
                        0..12 => u16::from(header),
                        _ => (datagram as u16 + u16::from(header)).wrapping_sub(14),
                    };
                    let mut frame = with(frame, transport + 4, &udp.to_be_bytes());
                    frame.truncate(length);
                    reached.extend(paths_agree(&frame).err().map(Malformed::name));
                }
            }
        }
    }
    let reasons = [
        Malformed::Ipv4TotalLength,
        Malformed::TruncatedIpv4,
        Malformed::TruncatedIpv6,
        Malformed::Ipv6ZeroLength,
        Malformed::TcpDataOffset,
        Malformed::TruncatedTcp,
        Malformed::UdpLength,
        Malformed::TruncatedUdp,
        Malformed::TruncatedIcmp,
    ];
    for reason in reasons {
        assert!(reached.contains(reason.name()), "{}", reason.name());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    /// Several damaged bytes at once, and any length.
    #[test]
    fn all_paths_agree_on_damaged_frames(
        kind in 0..16usize,
        damage in prop::collection::vec((12..82usize, prop_oneof![any::<u8>(), Just(0), Just(255)]), 0..4),
        length in 0..=100usize,
    ) {
        let mut frame = common().swap_remove(kind).3;
        for (at, value) in damage {
            frame[at] = value;
        }
        frame.truncate(length);
        let _ = paths_agree(&frame);
    }
}
