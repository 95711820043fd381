use std::collections::HashMap;

use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::parse::parse;

use super::*;
use crate::bursts::{BurstStudy, StudyOptions};
use crate::generate::{Preset, preset};

/// Returns a preset with little warm-up.
fn named(name: &str, duration: Nanos) -> AggregateConfig {
    let Ok(Preset::Aggregate { mut config, .. }) = preset(name) else {
        panic!("{name} is an aggregate");
    };
    (config.duration, config.warm_up) = (duration, Nanos::from_millis(300));
    config
}

fn packets(config: &AggregateConfig) -> Vec<(u64, Vec<u8>)> {
    let mut source = Aggregate::new(config.clone(), "test").unwrap();
    let mut packets = vec![];
    while let Some(packet) = source.next_packet().unwrap() {
        packets.push((packet.timestamp.0, packet.data.to_vec()));
    }
    assert_eq!(PacketSource::notices(&source), []);
    packets
}

/// Returns the FNV-1a hash of times and bytes.
fn digest(packets: &[(u64, Vec<u8>)]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for (time, data) in packets {
        for byte in time.to_le_bytes().iter().chain(data) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

#[test]
fn presets_are_the_same_bytes_on_every_machine() {
    let made = ["backbone", "as", "smooth"].map(|name| {
        let made = packets(&named(name, Nanos::from_millis(20)));
        (name, made.len(), digest(&made))
    });
    assert_eq!(made, GOLDEN);
}

const GOLDEN: [(&str, usize, u64); 3] = [
    ("backbone", 4_579, 9_596_118_786_917_861_011),
    ("as", 1_686, 16_727_474_927_768_437_453),
    ("smooth", 1_590, 722_023_769_446_848_506),
];

#[test]
fn arrivals_are_those_of_the_packets() {
    let config = named("backbone", Nanos::from_millis(30));
    let mut arrivals = Aggregate::new(config.clone(), "test").unwrap();
    let mut flows = HashMap::new();
    for (time, data) in packets(&config) {
        let arrival = arrivals.next_arrival().unwrap().unwrap();
        assert_eq!(arrival.time, Nanos(time));
        assert_eq!(arrival.bytes as usize, data.len());
        let key = parse(&data).unwrap().key;
        assert_eq!(*flows.entry(arrival.flow).or_insert(key), key);
    }
    assert_eq!(arrivals.next_arrival().unwrap(), None);
}

#[test]
fn packets_are_right_and_connections_open_and_close() {
    let mut config = named("as", Nanos::from_millis(200));
    config.warm_up = Nanos::ZERO;
    config.mean_gap = Nanos::from_millis(1);
    let mut flows: HashMap<FlowKey, Vec<Vec<u8>>> = HashMap::new();
    let mut last = 0;
    for (time, data) in packets(&config) {
        let headers = parse(&data).unwrap();
        assert_ne!(verify_network(&data, &headers), Checksum::Wrong);
        assert_eq!(verify_transport(&data, &headers), Checksum::Correct);
        assert!(time >= last && (54..=1_514).contains(&data.len()));
        last = time;
        flows.entry(headers.key).or_default().push(data);
    }
    let (mut opened, mut closed) = (0, 0);
    for (key, packets) in flows.iter().filter(|(key, _)| key.protocol() == protocol::TCP) {
        let tcp = |i: usize| {
            let data = &packets[i];
            let payload = parse(data).unwrap().payload(data).len() as u32;
            let sequence = u32::from_be_bytes(data[38..42].try_into().unwrap());
            (data[47], sequence, payload)
        };
        assert_eq!(tcp(0).0, 0x02, "{key} starts with a SYN");
        let mut expected = tcp(0).1.wrapping_add(1);
        for i in 1..packets.len() {
            let (flags, sequence, payload) = tcp(i);
            assert_eq!(sequence, expected, "{key} packet {i}");
            expected = expected.wrapping_add(payload);
            if flags & 0x01 != 0 {
                assert_eq!(i, packets.len() - 1, "nothing comes after a FIN");
                closed += 1;
            }
        }
        if packets.len() >= 3 {
            assert!(tcp(1).0 == 0x10 && tcp(1).2 == 0, "an ACK ends the handshake");
            opened += 1;
        }
    }
    assert!(opened > 100 && closed > 100, "{opened} {closed}");
}

#[test]
fn clients_ask_for_hosts() {
    let mut config = named("backbone", Nanos::from_millis(250));
    config.warm_up = Nanos::ZERO;
    config.mean_gap = Nanos::from_millis(1);
    config.blocked_share = 0.25;
    let (mut http, mut tls, mut blocked) = (0, 0, 0);
    let mut seen: HashMap<FlowKey, usize> = HashMap::new();
    for (_, data) in packets(&config) {
        let headers = parse(&data).unwrap();
        let count = seen.entry(headers.key).or_default();
        *count += 1;
        let port = headers.key.destination_port();
        let last = data[47] & 0x01 != 0;
        if headers.key.protocol() != protocol::TCP || *count != 3 || last {
            continue;
        }
        let payload = headers.payload(&data);
        let host = match port {
            80 => {
                http += 1;
                http_host(payload)
            }
            443 => {
                tls += 1;
                tls_host(payload)
            }
            _ => continue,
        };
        assert!(host.ends_with(".example"), "{host}");
        blocked += u32::from(host.ends_with(".blocked.example"));
    }
    assert!(http > 50 && tls > 200, "{http} {tls}");
    let share = f64::from(blocked) / f64::from(http + tls);
    assert!((share - 0.25).abs() < 0.06, "{share}");
}

/// Parses a request according to RFC 9112, and returns its host.
fn http_host(payload: &[u8]) -> String {
    let text = std::str::from_utf8(payload).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(body.is_empty());
    let mut lines = head.split("\r\n");
    let request: Vec<&str> = lines.next().unwrap().split(' ').collect();
    assert!(matches!(request[..], ["GET" | "HEAD", path, "HTTP/1.1"] if path.starts_with('/')));
    let fields: HashMap<&str, &str> = lines.map(|line| line.split_once(": ").unwrap()).collect();
    fields["Host"].to_owned()
}

/// Takes a vector off the front, with a length field of `length_bytes` bytes.
fn vector<'a>(bytes: &mut &'a [u8], length_bytes: usize) -> &'a [u8] {
    let (length, rest) = bytes.split_at(length_bytes);
    let length = length.iter().fold(0, |sum, b| sum << 8 | usize::from(*b));
    let (vector, rest) = rest.split_at(length);
    *bytes = rest;
    vector
}

/// Parses a ClientHello according to RFC 8446, with every length, and returns its server name.
fn tls_host(payload: &[u8]) -> String {
    let mut record = payload;
    assert_eq!(record[..3], [22, 3, 1]);
    record = &record[3..];
    let mut handshake = vector(&mut record, 2);
    assert!(record.is_empty());
    assert_eq!(handshake[0], 1);
    handshake = &handshake[1..];
    let mut hello = vector(&mut handshake, 3);
    assert!(handshake.is_empty());
    assert_eq!(hello[..2], [3, 3]);
    hello = &hello[34..];
    assert_eq!(vector(&mut hello, 1).len(), 32);
    assert_eq!(vector(&mut hello, 2).len() % 2, 0);
    assert_eq!(vector(&mut hello, 1), [0]);
    let mut extensions = vector(&mut hello, 2);
    assert!(hello.is_empty());
    let mut host = None;
    let mut kinds = vec![];
    while !extensions.is_empty() {
        let kind = u16::from_be_bytes([extensions[0], extensions[1]]);
        extensions = &extensions[2..];
        let mut extension = vector(&mut extensions, 2);
        kinds.push(kind);
        if kind == 0 {
            let mut list = vector(&mut extension, 2);
            assert_eq!(list[0], 0);
            list = &list[1..];
            host = Some(String::from_utf8(vector(&mut list, 2).to_vec()).unwrap());
            assert!(list.is_empty() && extension.is_empty());
        } else if kind != 43 {
            assert!(!vector(&mut extension, 2).is_empty() && extension.is_empty());
        }
    }
    assert_eq!(kinds, [0, 10, 13, 16, 43, 51]);
    host.unwrap()
}

fn study(config: &AggregateConfig) -> BurstStudy {
    let options = StudyOptions {
        services: vec![Nanos::from_micros(5), Nanos::from_micros(20)],
        memory_limit_bytes: 1 << 30,
    };
    BurstStudy::measure(|| Aggregate::new(config.clone(), "test"), &options).unwrap()
}

#[test]
fn whales_and_minnows_are_what_smooth_traffic_lacks() {
    let duration = Nanos::from_millis(250);
    let (bursty, smooth) = (study(&named("backbone", duration)), study(&named("smooth", duration)));
    assert!(bursty.whales[0].latency.p99 > Nanos::from_micros(200));
    let lone = smooth.whales[1].latency.p99;
    assert!(lone < Nanos::from_micros(60), "{lone}");
    assert!(bursty.worst_millisecond.new_flows > 2 * smooth.worst_millisecond.new_flows);
    let mean = smooth.new_flows_per_second.mean.unwrap();
    assert!(mean > 25_000.0 && mean < 45_000.0, "{mean}");
}

#[test]
fn caps_hold_and_more_flows_are_more_packets() {
    let mut config = named("backbone", Nanos::from_millis(300));
    config.flow_bytes_max = 20_000;
    config.lifetime_max = Nanos::from_millis(50);
    let capped = study(&config);
    assert!((18_000..=20_000).contains(&capped.flow_bytes.max));
    assert!(capped.longest_flow <= Nanos::from_millis(50));
    assert_eq!(capped.flow_bytes.min, 54);
    let twice = study(&config.clone().scaled(2.0));
    let ratio = twice.packets as f64 / capped.packets as f64;
    assert!((1.7..2.3).contains(&ratio), "{ratio}");
}

#[test]
fn settings_out_of_range_are_named() {
    type Change = fn(&mut AggregateConfig);
    let cases: &[(&str, Change)] = &[
        ("duration", |c| c.duration = Nanos::ZERO),
        ("arrivals", |c| c.arrivals.mean_per_second = f64::NAN),
        ("minnows", |c| {
            c.minnows = Some(MinnowBursts {
                per_second: 1e6,
                flows: c.short_packets,
                spread: Nanos::ZERO,
            });
        }),
        ("short_share", |c| c.short_share = 1.5),
        ("short_packets", |c| c.short_packets.min = 0),
        ("flow_packets", |c| c.flow_packets.0.clear()),
        ("flow_bytes_max", |c| c.flow_bytes_max = 0),
        ("lifetime_max", |c| c.lifetime_max = Nanos::ZERO),
        ("trains", |c| c.trains.clear()),
        ("trains", |c| c.trains.truncate(0)),
        ("trains", |c| c.trains[0].flow_packets_min = 2),
        ("trains.packets", |c| c.trains[0].packets.shape = 0.0),
        ("mean_gap", |c| c.mean_gap = Nanos::MAX),
        ("tcp_share", |c| c.tcp_share = -0.1),
        ("blocked_share", |c| c.blocked_share = f64::NAN),
        ("sizes", |c| c.sizes[0].min = 53),
        ("clients", |c| c.clients = 0),
        ("servers", |c| c.servers = u32::MAX),
        ("max_active_flows", |c| c.max_active_flows = 0),
    ];
    for (field, change) in cases {
        let mut config = named("backbone", Nanos::from_secs(1));
        change(&mut config);
        let Err(TrafficError::Setting { field: seen, .. }) = Aggregate::new(config, "test") else {
            panic!("{field} was accepted");
        };
        assert_eq!(seen, *field);
    }
}
