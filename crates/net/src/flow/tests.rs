use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn v4(s: u32, d: u32, protocol: u8, sp: u16, dp: u16) -> FlowKey {
    FlowKey::v4(s.into(), d.into(), protocol, sp, dp)
}

fn v6(s: u128, d: u128, protocol: u8, sp: u16, dp: u16) -> FlowKey {
    FlowKey::v6(s.into(), d.into(), protocol, sp, dp)
}

proptest! {
    #[test]
    fn fields_come_back(
        s in any::<u128>(),
        d in any::<u128>(),
        protocol in any::<u8>(),
        sp in any::<u16>(),
        dp in any::<u16>(),
    ) {
        let (s4, d4) = (Ipv4Addr::from_bits(s as u32), Ipv4Addr::from_bits(d as u32));
        let (s6, d6) = (Ipv6Addr::from_bits(s), Ipv6Addr::from_bits(d));
        for (key, s, d, version) in [
            (FlowKey::v4(s4, d4, protocol, sp, dp), IpAddr::from(s4), IpAddr::from(d4), 4),
            (FlowKey::v6(s6, d6, protocol, sp, dp), IpAddr::from(s6), IpAddr::from(d6), 6),
        ] {
            for key in [key, key.of_fragment()] {
                prop_assert_eq!((key.source(), key.destination()), (s, d));
                prop_assert_eq!((key.source_port(), key.destination_port()), (sp, dp));
                prop_assert_eq!((key.protocol(), key.version()), (protocol, version));
                prop_assert_eq!(key.is_v4(), version == 4);
                let back = key.reversed();
                prop_assert_eq!((back.source(), back.destination()), (d, s));
                prop_assert_eq!((back.source_port(), back.destination_port()), (dp, sp));
                prop_assert_eq!((back.protocol(), back.version()), (protocol, version));
                prop_assert_eq!(back.is_fragment(), key.is_fragment());
                prop_assert_eq!(back.reversed(), key);
            }
            prop_assert!(key != key.of_fragment() && key.of_fragment().is_fragment());
            prop_assert!(key.hash(1) != key.of_fragment().hash(1));
        }
        // The same numbers in both families are different flows.
        prop_assert_ne!(v4(s as u32, d as u32, protocol, sp, dp), v6(s, d, protocol, sp, dp));
    }

    #[test]
    fn both_directions_have_one_connection_key(
        s in prop_oneof![any::<u128>(), 0u128..3],
        d in prop_oneof![any::<u128>(), 0u128..3],
        ports in (0u16..3, 0u16..3),
    ) {
        for key in [v4(s as u32, d as u32, 6, ports.0, ports.1), v6(s, d, 6, ports.0, ports.1)] {
            for key in [key, key.of_fragment()] {
                let ((one, reversed), (other, back)) =
                    (key.of_connection(), key.reversed().of_connection());
                prop_assert_eq!(one, other);
                prop_assert_eq!(if reversed { key.reversed() } else { key }, one);
                // Only a flow from an endpoint to itself has a single direction.
                prop_assert_eq!(reversed == back, key == key.reversed());
            }
        }
    }

    #[test]
    fn both_ways_hash_differently_and_seeds_matter(
        s in any::<u128>(), d in any::<u128>(), sp in any::<u16>(), seed in any::<u64>(),
    ) {
        prop_assume!(s as u32 != d as u32);
        for key in [v4(s as u32, d as u32, 6, sp, 80), v6(s, d, 6, sp, 80)] {
            prop_assert_ne!(key.hash(seed), key.reversed().hash(seed));
            prop_assert_ne!(key.hash(seed), key.hash(!seed));
        }
    }
}

#[test]
fn text() {
    assert_eq!(
        v4(0x0a000001, 0x0a000002, 6, 80, 1234).to_string(),
        "tcp 10.0.0.1:80 > 10.0.0.2:1234"
    );
    assert_eq!(v6(1, 2, 17, 53, 5).to_string(), "udp [::1]:53 > [::2]:5");
    assert_eq!(v4(1, 2, 47, 0, 0).to_string(), "proto-47 0.0.0.1:0 > 0.0.0.2:0");
}

/// Generator of the i-th flow of a sequence.
type Sequence = fn(u32) -> FlowKey;

/// Flows as generators and scanners produce them: one field counts up.
fn sequences() -> [(&'static str, Sequence); 10] {
    [
        ("v4 source port", |i| {
            v4(0x0a000001, 0x0a000002 + (i >> 16), 6, i as u16, 80)
        }),
        ("v4 destination port", |i| {
            v4(0x0a000001, 0x0a000002, 17, 5000, i as u16)
        }),
        ("v4 source", |i| v4(0x0a000000 + i, 0xc0a80001, 6, 1024, 80)),
        ("v4 destination", |i| v4(0x0a000000, 0xc0a80000 + i, 6, 1024, 80)),
        ("v4 source and destination", |i| {
            v4(0x0a000000 + i, 0x0b000000 + i, 17, 1, 2)
        }),
        ("v6 source, low half", |i| {
            v6((0x20010db8 << 96) + i as u128, 1, 6, 1024, 80)
        }),
        ("v6 source, high half", |i| {
            v6(0x20010db8 << 96 | (i as u128) << 64, 1, 6, 1024, 80)
        }),
        ("v6 source to ::", |i| {
            v6((i as u128) << 64, 0x20010db8 << 96, 6, 1024, 80)
        }),
        ("v6 port, zeros", |i| v6(0, 0, 6, i as u16, 0)),
        ("v6 destination", |i| v6(1, (0x20010db8 << 96) + i as u128, 6, 1024, 80)),
    ]
}

/// 65,536 keys hashed at random into 65,536 slots leave a fraction 1/e of them empty.
#[test]
fn sequential_flows_spread_over_any_sixteen_bits() {
    const KEYS: u32 = 65_536;
    let expected = KEYS as f64 * (1.0 - (-1.0f64).exp());
    for seed in [0, 1, 0x1234_5678_9abc_def0] {
        for (name, key) in sequences() {
            for shift in [0, 7, 24, 48] {
                let places: HashSet<u16> = (0..KEYS).map(|i| (key(i).hash(seed) >> shift) as u16).collect();
                let off = (places.len() as f64 - expected).abs();
                // Ten standard deviations: sqrt(n (1/e - 2/e^2)) is 79.
                assert!(off < 800.0, "{name}, bits {shift} on, seed {seed}: {}", places.len());
            }
        }
    }
}

/// Flows of one RSS bucket share the low bits of their Toeplitz hash. The table of the bucket must spread them
/// nevertheless.
#[test]
fn flows_of_one_bucket_spread_too() {
    let rss = crate::toeplitz::RssHasher::default();
    let keys: Vec<FlowKey> = (0..512 * 4096)
        .map(|i| v4(0x0a000000 + (i >> 16), 0xc0a80001, 6, i as u16, 80))
        .filter(|key| crate::toeplitz::bucket_of(rss.hash(key)) == 77)
        .collect();
    let count = keys.len() as f64;
    assert!(count > 2000.0, "{count}");
    let places: HashSet<u16> = keys.iter().map(|key| key.hash(9) as u16 % 4096).collect();
    let expected = 4096.0 * (1.0 - (-count / 4096.0).exp());
    assert!(
        (places.len() as f64 - expected).abs() < 200.0,
        "{} of {expected}",
        places.len()
    );
}

/// A flipped input bit flips each output bit with probability 1/2.
#[test]
fn avalanche() {
    // Any keys do: a fixed linear congruential sequence.
    let mut state = 1u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state ^ state >> 32
    };
    const ROUNDS: u32 = 2000;
    for bits in [104, 296] {
        for bit in 0..bits {
            let mut flips = [0u32; 64];
            for _ in 0..ROUNDS {
                let mut bytes = [0u8; 40];
                bytes
                    .as_chunks_mut::<8>()
                    .0
                    .iter_mut()
                    .for_each(|word| *word = random().to_le_bytes());
                let key = |b: &[u8; 40]| {
                    let ports = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
                    if bits == 104 {
                        let address = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
                        v4(address(5), address(9), b[4], ports(0), ports(2))
                    } else {
                        let address = |i: usize| u128::from_le_bytes(b[i..i + 16].try_into().unwrap());
                        v6(address(5), address(21), b[4], ports(0), ports(2))
                    }
                };
                let before = key(&bytes).hash(5);
                bytes[bit / 8] ^= 1 << (bit % 8);
                let changed = before ^ key(&bytes).hash(5);
                for (i, count) in flips.iter_mut().enumerate() {
                    *count += (changed >> i & 1) as u32;
                }
            }
            for (i, &count) in flips.iter().enumerate() {
                let share = count as f64 / ROUNDS as f64;
                assert!(
                    (0.4..0.6).contains(&share),
                    "input bit {bit} of {bits}, output bit {i}: {share}"
                );
            }
        }
    }
}

#[test]
fn one_end_is_replaced() {
    let key = v4(0x0102_0304, 0x0506_0708, 17, 9, 10);
    for (address, port) in [(0, 0), (0xfffe_fdfc, 0xfbfa)] {
        let source = key.with_v4_end(false, address.into(), port);
        assert_eq!(source, v4(address, 0x0506_0708, 17, port, 10));
        let destination = key.with_v4_end(true, address.into(), port);
        assert_eq!(destination, v4(0x0102_0304, address, 17, 9, port));
    }
}
