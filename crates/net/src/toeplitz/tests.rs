use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::builder::FrameBuilder;
use crate::vlan::VlanTag;

/// The definition, bit by bit: for each one bit of the input, the top 32 bits of the key shifted left by its position.
fn oracle(key: &RssKey, input: &[u8]) -> u32 {
    let bit = |i: usize| (key[i / 8] >> (7 - i % 8) & 1) as u32;
    let mut hash = 0;
    for i in 0..input.len() * 8 {
        if input[i / 8] >> (7 - i % 8) & 1 == 1 {
            hash ^= (0..32).fold(0, |window, j| window << 1 | bit(i + j));
        }
    }
    hash
}

/// Returns the hash input of a key, in the layout of Microsoft's specification.
fn input(key: &FlowKey, ports: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for address in [key.source(), key.destination()] {
        match address {
            IpAddr::V4(ip) => bytes.extend(ip.octets()),
            IpAddr::V6(ip) => bytes.extend(ip.octets()),
        }
    }
    if ports {
        bytes.extend(key.source_port().to_be_bytes());
        bytes.extend(key.destination_port().to_be_bytes());
    }
    bytes
}

fn tcp(source: &str, source_port: u16, destination: &str, destination_port: u16) -> FlowKey {
    match (source.parse().unwrap(), destination.parse().unwrap()) {
        (IpAddr::V4(s), IpAddr::V4(d)) => FlowKey::v4(s, d, 6, source_port, destination_port),
        (IpAddr::V6(s), IpAddr::V6(d)) => FlowKey::v6(s, d, 6, source_port, destination_port),
        _ => panic!("mixed address families"),
    }
}

/// "Verifying the RSS hash calculation", Windows driver documentation: all of its vectors.
#[test]
fn microsoft_verification_suite() {
    #[rustfmt::skip]
    let vectors = [
        ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e8fc2, 0x51ccc178),
        ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718262a, 0xc626b0ea),
        ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0a5de, 0x5c2b394a),
        ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x82989176, 0xafc7327f),
        ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d1809c5, 0x10e828a2),
        ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc18cd5, 0x40207d3d),
        ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c461c, 0xdde51bbf),
        ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, "fe80::200:f8ff:fe21:67cf", 38024,
            0x4b61e985, 0x02d1feef),
    ];
    let rss = RssHasher::default();
    for (source, source_port, destination, destination_port, addresses, ports) in vectors {
        let key = tcp(source, source_port, destination, destination_port);
        assert_eq!(rss.hash(&key), ports, "{key}");
        assert_eq!(rss.hash_addresses(&key), addresses, "{key}");
    }
}

#[test]
fn only_whole_tcp_and_udp_packets_hash_ports() {
    let rss = RssHasher::default();
    let (s, d) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    for protocol in 0..=255 {
        let key = FlowKey::v4(s, d, protocol, 7, 8);
        let ports = rss.hash(&key) != rss.hash_addresses(&key);
        assert_eq!(ports, protocol == 6 || protocol == 17, "protocol {protocol}");
    }
    let key = FlowKey::v4(s, d, 17, 7, 8);
    for (fragment, expected) in [
        (Fragment::Whole, rss.hash(&key)),
        (Fragment::First, rss.hash_addresses(&key)),
        (Fragment::Later, rss.hash_addresses(&key)),
    ] {
        let headers = Headers {
            network: Network::V4,
            fragment,
            key,
            ..Headers::default()
        };
        assert_eq!(rss.hash_headers(&headers), expected);
    }
    assert_eq!(rss.hash(&key.of_fragment()), rss.hash_addresses(&key));
    assert_eq!(rss.hash(&FlowKey::default()), 0);
}

#[test]
fn buckets_are_the_low_nine_bits() {
    assert_eq!(bucket_of(0xffff_ffff), 511);
    assert_eq!(bucket_of(0x0001_0200), 0);
    assert_eq!(bucket_of(0x0000_0301), 257);
}

fn any_key() -> impl Strategy<Value = FlowKey> {
    let protocol = prop_oneof![Just(6), Just(17), any::<u8>()];
    (any::<bool>(), any::<[u128; 2]>(), protocol, any::<[u16; 2]>()).prop_map(|(v4, [s, d], protocol, [sp, dp])| {
        if v4 {
            let (s, d) = (Ipv4Addr::from(s as u32), Ipv4Addr::from(d as u32));
            FlowKey::v4(s, d, protocol, sp, dp)
        } else {
            FlowKey::v6(Ipv6Addr::from(s), Ipv6Addr::from(d), protocol, sp, dp)
        }
    })
}

fn any_rss_key() -> impl Strategy<Value = RssKey> {
    prop::collection::vec(any::<u8>(), 40).prop_map(|bytes| bytes.try_into().unwrap())
}

proptest! {
    #[test]
    fn equals_the_definition(rss_key in any_rss_key(), key in any_key()) {
        let rss = RssHasher::new(&rss_key);
        let ports = matches!(key.protocol(), 6 | 17);
        prop_assert_eq!(rss.hash(&key), oracle(&rss_key, &input(&key, ports)));
        prop_assert_eq!(rss.hash_addresses(&key), oracle(&rss_key, &input(&key, false)));
    }

    #[test]
    fn is_the_sum_of_its_contributions(key in any_key()) {
        let rss = RssHasher::default();
        let network = if key.is_v4() { Network::V4 } else { Network::V6 };
        let addresses = rss.address_contribution(End::Source, key.source())
            ^ rss.address_contribution(End::Destination, key.destination());
        prop_assert_eq!(rss.hash_addresses(&key), addresses);
        let ports = rss.port_contribution(network, End::Source, key.source_port())
            ^ rss.port_contribution(network, End::Destination, key.destination_port());
        if matches!(key.protocol(), 6 | 17) {
            prop_assert_eq!(rss.hash(&key), addresses ^ ports);
        }
    }

    #[test]
    fn symmetric_key_joins_directions(key in any_key()) {
        let rss = RssHasher::symmetric();
        prop_assert_eq!(rss.hash(&key), rss.hash(&key.reversed()));
    }
}

proptest! {
    /// Ordinary, tagged, fragmented and truncated frames, and other protocols.
    #[test]
    fn a_frame_has_the_hash_of_its_headers(
        (source, destination) in any::<(u32, u32)>(),
        ports in any::<[u16; 2]>(),
        protocol in prop_oneof![Just(6u8), Just(17), Just(1)],
        tagged in any::<bool>(),
        (at, value) in (12usize..48, any::<u8>()),
        damaged in any::<bool>(),
        length in 0usize..120,
    ) {
        let [source, destination] = [source, destination].map(Ipv4Addr::from);
        let key = FlowKey::v4(source, destination, protocol, ports[0], ports[1]);
        let builder = FrameBuilder::new(&key).payload(b"something to carry");
        let builder = match tagged {
            true => builder.vlan(VlanTag::customer(7)),
            false => builder,
        };
        let mut frame = builder.to_vec().unwrap();
        let rss = RssHasher::default();
        prop_assert_eq!(rss.hash_frame(&frame), rss.hash(&key));
        if damaged {
            frame[at] = value;
        }
        frame.truncate(length);
        let expected = parse(&frame).map_or(0, |headers| rss.hash_headers(&headers));
        prop_assert_eq!(rss.hash_frame(&frame), expected);
    }
}
