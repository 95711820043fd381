use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, Nanos, protocol};

use super::*;
use crate::{Notice, PacketSource, TrafficError};

/// Time in nanoseconds and frame.
type Made = (u64, Vec<u8>);

fn all(source: &mut dyn PacketSource) -> Vec<Made> {
    let mut made = Vec::new();
    while let Some(packet) = source.next_packet().unwrap() {
        assert_eq!(packet.wire_length as usize, packet.data.len());
        made.push((packet.timestamp.0, packet.data.to_vec()));
    }
    assert!(source.next_packet().unwrap().is_none(), "the end is lasting");
    made
}

fn bursty(config: &BurstyConfig) -> Vec<Made> {
    all(&mut Bursty::new(config.clone()).unwrap())
}

/// Short configuration without warm-up and with short flows, so that every flow is complete.
fn short() -> BurstyConfig {
    let mut config = BurstyConfig::preset();
    config.duration = Nanos::from_millis(200);
    config.warm_up = Nanos::ZERO;
    config.flow_packets.max = 50;
    config.mean_gap = Nanos::from_micros(100);
    config.mean_rate_pps = 50_000.0;
    config
}

fn uniform_config() -> UniformConfig {
    UniformConfig {
        seed: 5,
        flows: 100,
        size: FrameSize::Fixed(64),
        transport: Transport::Udp,
        rate_pps: 3_000_000,
        packets: 1_000,
    }
}

fn uniform(config: &UniformConfig) -> Vec<Made> {
    all(&mut Uniform::new(config.clone()).unwrap())
}

/// FNV-1a hash over times, lengths and bytes, which identifies a stream of packets.
fn identity(packets: &[Made]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut eat = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for (time, data) in packets {
        eat(&time.to_le_bytes());
        eat(&(data.len() as u64).to_le_bytes());
        eat(data);
    }
    hash
}

/// A failure means that published measurements used other traffic: announce the change.
#[test]
fn streams_are_what_they_were() {
    let mut config = BurstyConfig::preset();
    config.duration = Nanos::from_millis(20);
    config.warm_up = Nanos::from_millis(50);
    let made = bursty(&config);
    assert_eq!((made.len(), identity(&made)), (BURSTY_PACKETS, BURSTY));

    let mut config = uniform_config();
    assert_eq!(identity(&uniform(&config)), UNIFORM_UDP);
    config.transport = Transport::Tcp;
    config.size = FrameSize::Imix;
    assert_eq!(identity(&uniform(&config)), UNIFORM_TCP_IMIX);
}

const BURSTY_PACKETS: usize = 3114;
const BURSTY: u64 = 6730216099174389421;
const UNIFORM_UDP: u64 = 942516533176359876;
const UNIFORM_TCP_IMIX: u64 = 9333950160130933753;

#[test]
fn a_seed_selects_a_stream() {
    let mut config = short();
    let first = bursty(&config);
    assert_eq!(first, bursty(&config));
    config.seed = 2;
    assert_ne!(first, bursty(&config));

    let mut config = uniform_config();
    let first = uniform(&config);
    assert_eq!(first, uniform(&config));
    config.seed = 6;
    assert_ne!(first, uniform(&config));
}

#[test]
fn every_packet_is_sound_and_in_its_range() {
    let config = short();
    let made = bursty(&config);
    assert!(made.len() > 5_000);
    assert!(made.is_sorted_by_key(|(time, _)| *time));
    assert!(made.iter().all(|(time, _)| *time < config.duration.0));
    for (_, frame) in &made {
        check_sound(frame);
        assert!((60..=1514).contains(&frame.len()));
    }
    for (size, longest) in [(FrameSize::Imix, 1514), (FrameSize::Fixed(9018), 9014)] {
        for transport in [Transport::Udp, Transport::Tcp] {
            let made = uniform(&UniformConfig {
                size,
                transport,
                ..uniform_config()
            });
            made.iter().for_each(|(_, frame)| check_sound(frame));
            assert_eq!(made.iter().map(|(_, frame)| frame.len()).max(), Some(longest));
        }
    }
}

fn check_sound(frame: &[u8]) {
    let headers = parse(frame).unwrap();
    assert_eq!(verify_network(frame, &headers), Checksum::Correct);
    assert_eq!(verify_transport(frame, &headers), Checksum::Correct);
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (headers.key.source(), headers.key.destination()) else {
        panic!("not IPv4");
    };
    assert_eq!(source.octets()[0], 10);
    let reserved = matches!(
        destination.octets(),
        [198, 18 | 19, ..] | [203, 0, 113, _] | [198, 51, 100, _] | [192, 0, 2, _]
    );
    assert!(reserved, "{destination}");
    assert!(headers.key.source_port() >= 1024);
}

#[test]
fn addresses_stay_in_their_networks() {
    for index in [0, 253, 254, 65_535, frame::MAX_CLIENTS - 1] {
        let [network, .., host] = frame::client(index).octets();
        assert!(network == 10 && (1..=254).contains(&host), "{index}");
    }
    let servers: HashSet<_> = (0..frame::MAX_SERVERS).map(frame::server).collect();
    assert_eq!(servers.len(), frame::MAX_SERVERS as usize, "all are distinct");
    assert_eq!(frame::server(0).to_string(), "203.0.113.1");
    assert_eq!(frame::server(frame::MAX_SERVERS - 1).to_string(), "198.19.255.255");
}

#[test]
fn tcp_flows_open_and_close() {
    // Long enough that early flows have ended.
    let config = short();
    let mut flows: HashMap<FlowKey, Vec<(u64, u8, u32, usize)>> = HashMap::new();
    for (time, frame) in bursty(&config) {
        let headers = parse(&frame).unwrap();
        if headers.key.protocol() == protocol::TCP {
            let tcp = &frame[headers.transport_offset as usize..];
            let sequence = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
            let payload = headers.payload(&frame).len();
            let packets = flows.entry(headers.key).or_default();
            packets.push((time, tcp[13], sequence, payload));
        }
    }
    const SYN: u8 = 0x02;
    const FIN_ACK: u8 = 0x11;
    const PSH_ACK: u8 = 0x18;
    let mut whole = 0;
    for packets in flows.values() {
        assert_eq!(packets[0].1, SYN);
        assert_eq!(packets[0].3, 0);
        let last = packets.len() - 1;
        let ended = packets[last].1 == FIN_ACK;
        whole += usize::from(ended && last > 1);
        for (i, pair) in packets.windows(2).enumerate() {
            let ((_, flags, sequence, payload), (_, next_flags, next, _)) = (pair[0], pair[1]);
            let taken = payload as u32 + u32::from(flags != PSH_ACK);
            assert_eq!(next, sequence.wrapping_add(taken), "sequence numbers have no gap");
            assert!(next_flags == PSH_ACK || (next_flags == FIN_ACK && i + 1 == last));
        }
    }
    assert!(whole > 100, "{whole} whole flows");
}

#[test]
fn flows_arrive_as_a_poisson_process() {
    let mut config = short();
    config.duration = Nanos::from_secs(1);
    // With flows of one packet, every packet is an arrival.
    config.flow_packets.max = 1;
    let made = bursty(&config);
    let bins = 1_000;
    let mut counts = vec![0f64; bins];
    for (time, _) in &made {
        counts[(*time / 1_000_000) as usize] += 1.0;
    }
    let mean = made.len() as f64 / bins as f64;
    let variance = counts.iter().map(|n| (n - mean) * (n - mean)).sum::<f64>() / bins as f64;
    // 50,000 arrivals have a standard deviation of 224; with 1000 bins, that of the dispersion is 4.5 %.
    assert!((mean - 50.0).abs() < 1.0, "{mean}");
    assert!((variance / mean - 1.0).abs() < 0.15, "{}", variance / mean);
}

#[test]
fn the_mean_rate_holds_after_warming_up() {
    // Because of heavy tails, the rate of one run varies by 2 %, that of eight by 0.7 %.
    let (mut packets, mut early) = (0, 0);
    for seed in 1..=8 {
        let mut config = short();
        config.seed = seed;
        config.warm_up = Nanos::from_millis(100);
        config.duration = Nanos::from_millis(800);
        let made = bursty(&config);
        packets += made.len();
        early += made.iter().filter(|(time, _)| *time < 80_000_000).count();
    }
    let expected = 8.0 * 0.8 * 50_000.0;
    assert!((packets as f64 / expected - 1.0).abs() < 0.025, "{packets}");
    // The rate is right from the start, not only on average.
    assert!((early as f64 * 10.0 / expected - 1.0).abs() < 0.08, "{early}");
}

#[test]
fn the_bursty_preset_is_as_documented() {
    let mut config = BurstyConfig::preset();
    config.duration = Nanos::from_millis(500);
    let made = bursty(&config);
    let rate = made.len() as f64 * 2.0;
    assert!((rate / 200e3 - 1.0).abs() < 0.15, "{rate} packets per second");
    let bytes: usize = made.iter().map(|(_, frame)| frame.len()).sum();
    let mean = bytes as f64 / made.len() as f64;
    assert!((mean - 988.0).abs() < 25.0, "{mean} bytes");
}

#[test]
fn a_train_comes_at_the_line_rate() {
    let mut config = short();
    config.mean_rate_pps = 1_000.0;
    config.tcp_share = 0.0;
    config.flow_packets = HeavyTail {
        shape: 1.0,
        min: 10,
        max: 10,
    };
    config.train_packets = HeavyTail {
        shape: 1.0,
        min: 5,
        max: 5,
    };
    config.train_rate_bps = 1e9;
    config.mean_gap = Nanos::from_millis(1);
    config.sizes = vec![SizeRange {
        weight: 1.0,
        min: 1_226,
        max: 1_226,
    }];
    let mut flows: HashMap<FlowKey, Vec<u64>> = HashMap::new();
    for (time, frame) in bursty(&config) {
        let key = parse(&frame).unwrap().key;
        flows.entry(key).or_default().push(time);
    }
    let mut gaps = 0;
    for times in flows.values().filter(|times| times.len() == 10) {
        for (i, pair) in times.windows(2).enumerate() {
            // 1226 bytes, 4 of check sequence and 20 of preamble and gap: 10,000 bits.
            let apart = pair[1] - pair[0];
            if i == 4 {
                gaps += u64::from(apart != 10_000);
            } else {
                assert_eq!(apart, 10_000);
            }
        }
    }
    assert!(gaps >= 5, "{gaps}");
}

#[test]
fn too_many_flows_are_refused_and_counted() {
    let mut config = short();
    config.max_active_flows = 3;
    config.mean_gap = Nanos::from_secs(1);
    let mut source = Bursty::new(config).unwrap();
    while source.next_packet().unwrap().is_some() {}
    let notices = source.notices();
    let [Notice::FlowsRefused { flows, limit: 3 }] = notices[..] else {
        panic!("{notices:?}");
    };
    assert!(flows > 100, "{flows}");
}

#[test]
fn settings_out_of_range_are_named() {
    type Change = fn(&mut BurstyConfig);
    let cases: &[(&str, Change)] = &[
        ("duration", |c| c.duration = Nanos::ZERO),
        ("duration", |c| c.duration = Nanos::MAX),
        ("rate", |c| c.mean_rate_pps = 0.0),
        ("rate", |c| c.mean_rate_pps = f64::NAN),
        ("mean_rate_pps", |c| c.mean_rate_pps = 1e10),
        ("flow_packets", |c| c.flow_packets.min = 0),
        ("flow_packets", |c| c.flow_packets.max = 1_000_001),
        ("train_packets", |c| c.train_packets.shape = 0.0),
        ("train_packets", |c| c.train_packets.min = 3_000),
        ("train_rate_bps", |c| c.train_rate_bps = f64::INFINITY),
        ("mean_gap", |c| c.mean_gap = Nanos::MAX),
        ("tcp_share", |c| c.tcp_share = 1.5),
        ("tcp_share", |c| c.tcp_share = f64::NAN),
        ("sizes", |c| c.sizes.clear()),
        ("sizes", |c| c.sizes[0].min = 59),
        ("sizes", |c| c.sizes[0].max = 1_515),
        ("sizes", |c| c.sizes[0].weight = -1.0),
        ("sizes", |c| c.sizes.iter_mut().for_each(|s| s.weight = 0.0)),
        ("clients", |c| c.clients = 0),
        ("clients", |c| c.clients = u32::MAX),
        ("servers", |c| c.servers = 131_835),
        ("max_active_flows", |c| c.max_active_flows = 0),
    ];
    for (field, change) in cases {
        let mut config = short();
        change(&mut config);
        let Err(TrafficError::Setting { field: named, .. }) = Bursty::new(config) else {
            panic!("{field} was accepted");
        };
        assert_eq!(named, *field);
    }
    for (field, config) in [
        (
            "flows",
            UniformConfig {
                flows: 0,
                ..uniform_config()
            },
        ),
        (
            "flows",
            UniformConfig {
                flows: 1 << 25,
                ..uniform_config()
            },
        ),
        (
            "size",
            UniformConfig {
                size: FrameSize::Fixed(63),
                ..uniform_config()
            },
        ),
        (
            "size",
            UniformConfig {
                size: FrameSize::Fixed(9_019),
                ..uniform_config()
            },
        ),
        (
            "rate",
            UniformConfig {
                rate_pps: 0,
                ..uniform_config()
            },
        ),
        (
            "packets",
            UniformConfig {
                packets: 0,
                ..uniform_config()
            },
        ),
    ] {
        let Err(TrafficError::Setting { field: named, .. }) = Uniform::new(config) else {
            panic!("{field} was accepted");
        };
        assert_eq!(named, field);
    }
}

#[test]
fn uniform_rounds_hold_every_flow_once() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let made = uniform(&UniformConfig {
            transport,
            ..uniform_config()
        });
        assert_eq!(made.len(), 1_000);
        let keys: Vec<FlowKey> = made.iter().map(|(_, f)| parse(f).unwrap().key).collect();
        let first: HashSet<_> = keys[..100].iter().collect();
        assert_eq!(first.len(), 100);
        for round in keys.chunks(100) {
            assert_eq!(round.iter().collect::<HashSet<_>>(), first);
        }
        assert_ne!(keys[..100], keys[100..200], "the order differs");
        for (i, (time, frame)) in made.iter().enumerate() {
            assert_eq!(*time, i as u64 * 1_000_000_000 / 3_000_000);
            assert_eq!(frame.len(), 60);
            if transport == Transport::Tcp {
                let syn = frame[14 + 20 + 13] == 0x02;
                assert_eq!(syn, i < 100, "packet {i}");
            }
        }
    }
}

#[test]
fn uniform_flows_are_distinct_in_great_number() {
    let flows = 200_000;
    let mut source = Uniform::new(UniformConfig {
        flows,
        packets: u64::from(flows),
        ..uniform_config()
    })
    .unwrap();
    let mut keys = HashSet::new();
    while let Some(packet) = source.next_packet().unwrap() {
        keys.insert(parse(packet.data).unwrap().key);
    }
    assert_eq!(keys.len(), flows as usize);
}

#[test]
fn imix_is_seven_four_one() {
    let made = uniform(&UniformConfig {
        size: FrameSize::Imix,
        packets: 24_000,
        ..uniform_config()
    });
    for (length, expected) in [(60, 14_000.0), (590, 8_000.0), (1_514, 2_000.0)] {
        let seen = made.iter().filter(|(_, frame)| frame.len() == length).count() as f64;
        assert!((seen / expected - 1.0).abs() < 0.06, "{seen} of {length} bytes");
    }
}
