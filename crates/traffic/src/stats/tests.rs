use proptest::prelude::*;
use tailwater_net::builder::FrameBuilder;

use super::*;
use crate::Packet;

/// Packets from a list of (time, frame).
struct List(Vec<(u64, Vec<u8>)>, usize);

impl PacketSource for List {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        self.1 += 1;
        Ok(self.0.get(self.1 - 1).map(|(time, data)| Packet {
            timestamp: Nanos(*time),
            data,
            wire_length: data.len() as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "list"
    }
}

fn measure(packets: &[(u64, Vec<u8>)]) -> Statistics {
    Statistics::measure(&mut List(packets.to_vec(), 0), u64::MAX).unwrap()
}

fn key(source: u8, destination: u8, number: u8, ports: (u16, u16)) -> FlowKey {
    let address = |last| [10, 0, 0, last].into();
    FlowKey::v4(address(source), address(destination), number, ports.0, ports.1)
}

fn frame(key: &FlowKey, length: usize) -> Vec<u8> {
    FrameBuilder::new(key).frame_length(length).to_vec().unwrap()
}

#[test]
fn a_small_trace_in_full() {
    let there = key(1, 2, protocol::TCP, (5_000, 80));
    let udp = key(1, 2, protocol::UDP, (5_000, 80));
    // With equal ends a flow is its own reverse, and counts as one flow.
    let own = key(3, 3, protocol::UDP, (7, 7));
    let gre = key(1, 2, 47, (0, 0));
    let mut arp = vec![0xff; 12];
    arp.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    arp.resize(60, 0);
    let mut lldp = vec![0; 60];
    lldp[12..14].copy_from_slice(&[0x88, 0xcc]);
    let mut cut = frame(&there, 100);
    cut.truncate(30);
    let ms = 1_000_000;
    let stats = measure(&[
        (50 * ms, frame(&there, 100)),
        (50 * ms, frame(&there.reversed(), 1_500)),
        (50 * ms + 99_999, frame(&there, 100)),
        (50 * ms + 100_000, frame(&there, 100)),
        (52 * ms, frame(&udp, 60)),
        (51 * ms, frame(&own, 60)),
        (53 * ms, frame(&gre, 60)),
        (54 * ms, arp),
        (55 * ms, lldp),
        (150 * ms, cut),
    ]);
    assert_eq!((stats.packets, stats.flows, stats.bidirectional_flows), (10, 5, 4));
    assert_eq!(stats.bytes, 3 * 100 + 1_500 + 5 * 60 + 30);
    assert_eq!(stats.duration, Nanos::from_millis(100));
    assert!(!stats.time_sorted);
    assert_eq!(stats.mean_packets_per_second, Some(100.0));
    assert_eq!(stats.mean_bits_per_second, Some(2_130.0 * 80.0));
    assert_eq!(
        stats.packet_bytes,
        Sizes {
            mean: 213.0,
            min: 30,
            p25: 60,
            p50: 60,
            p75: 100,
            p99: 1_500,
            max: 1_500
        }
    );
    let shares: Vec<(&str, u64, u64)> = stats
        .protocols
        .iter()
        .map(|s| (s.protocol.as_str(), s.packets, s.bytes))
        .collect();
    assert_eq!(
        shares,
        [
            ("tcp", 4, 1_800),
            ("udp", 2, 120),
            ("gre", 1, 60),
            ("arp", 1, 60),
            ("non-ip", 1, 60),
            ("malformed", 1, 30)
        ]
    );
    assert_eq!(stats.malformed.values().sum::<u64>(), 1);
    let top = stats.top_flow.as_ref().unwrap();
    assert_eq!((top.flow.as_str(), top.packets), ("tcp 10.0.0.1:5000 > 10.0.0.2:80", 3));
    let [micros, milli, ten] = stats.bursts[..] else {
        panic!("three windows");
    };
    assert_eq!(
        micros,
        Burst {
            window: Nanos::from_micros(100),
            max_packets: 3,
            max_bytes: 1_700,
            max_flow_packets: 2,
            max_new_flows: 2
        }
    );
    // 51 ms is one millisecond after 50 ms: beyond the half-open window.
    assert_eq!((milli.max_packets, milli.max_flow_packets), (4, 3));
    assert_eq!((ten.max_packets, ten.max_new_flows), (9, 5));
    assert_eq!(ten.peak_packets_per_second(), 900.0);
    assert_eq!(milli.peak_bits_per_second(), 1_800.0 * 8_000.0);
}

#[test]
fn json_names_are_stable() {
    let udp = key(1, 2, protocol::UDP, (5_000, 80));
    let stats = measure(&[(1, frame(&udp, 60)), (1_000_001, frame(&udp, 60))]);
    let json = serde_json::to_value(&stats).unwrap();
    let expected = serde_json::json!({
        "name": "list",
        "packets": 2,
        "bytes": 120,
        "duration_ns": 1_000_000,
        "time_sorted": true,
        "flows": 1,
        "bidirectional_flows": 1,
        "mean_packets_per_second": 2_000.0,
        "mean_bits_per_second": 960_000.0,
        "packet_bytes": {
            "mean": 60.0, "min": 60, "p25": 60, "p50": 60, "p75": 60, "p99": 60, "max": 60
        },
        "protocols": [{"protocol": "udp", "packets": 2, "bytes": 120}],
        "malformed": {},
        "top_flow": {
            "flow": "udp 10.0.0.1:5000 > 10.0.0.2:80", "packets": 2, "packet_share": 1.0
        },
        "bursts": [
            {"window_ns": 100_000, "max_packets": 1, "max_bytes": 60,
             "max_flow_packets": 1, "max_new_flows": 1},
            {"window_ns": 1_000_000, "max_packets": 1, "max_bytes": 60,
             "max_flow_packets": 1, "max_new_flows": 1},
            {"window_ns": 10_000_000, "max_packets": 2, "max_bytes": 120,
             "max_flow_packets": 2, "max_new_flows": 1}
        ],
        "notices": []
    });
    assert_eq!(json, expected);
    let table = stats.to_string();
    assert!(
        table.contains("mean rate               2.00 kpps, 960 kbit/s"),
        "{table}"
    );
}

#[test]
fn no_duration_means_no_rate() {
    let udp = key(1, 2, protocol::UDP, (5_000, 80));
    let stats = measure(&[(7, frame(&udp, 60)), (7, frame(&udp, 60))]);
    assert_eq!(stats.mean_packets_per_second, None);
    assert_eq!(stats.bursts[0].max_flow_packets, 2);
    assert!(!stats.to_string().contains("mean rate"));
}

#[test]
fn memory_is_limited_and_nothing_is_an_error() {
    let udp = key(1, 2, protocol::UDP, (5_000, 80));
    let packets = vec![(7, frame(&udp, 60)); 10];
    let limit = 10 * BYTES_PER_PACKET + BYTES_PER_FLOW;
    assert!(Statistics::measure(&mut List(packets.clone(), 0), limit).is_ok());
    let error = Statistics::measure(&mut List(packets, 0), limit - 1).unwrap_err();
    assert!(matches!(error, TrafficError::MemoryLimit { packets: 10, .. }));
    let error = Statistics::measure(&mut List(Vec::new(), 0), limit).unwrap_err();
    assert!(matches!(error, TrafficError::NoPackets { .. }));
}

/// Computes the maxima by their definition: over every window that starts at a packet.
fn oracle(samples: &[Sample], window: Nanos) -> Burst {
    let mut burst = Burst {
        window,
        max_packets: 0,
        max_bytes: 0,
        max_flow_packets: 0,
        max_new_flows: 0,
    };
    for start in samples {
        let inside: Vec<&Sample> = samples
            .iter()
            .filter(|s| s.time >= start.time && (s.time - start.time) < window)
            .collect();
        let of_flow = |flow| inside.iter().filter(|s| s.flow == flow).count() as u64;
        let whale = inside.iter().map(|s| s.flow).filter(|flow| *flow != NO_FLOW);
        let firsts = inside.iter().filter(|s| s.first).count() as u64;
        let bytes = inside.iter().map(|s| u64::from(s.length)).sum();
        burst.max_packets = burst.max_packets.max(inside.len() as u64);
        burst.max_bytes = burst.max_bytes.max(bytes);
        burst.max_new_flows = burst.max_new_flows.max(firsts);
        burst.max_flow_packets = burst.max_flow_packets.max(whale.map(of_flow).max().unwrap_or(0));
    }
    burst
}

proptest! {
    #[test]
    fn windows_match_their_definition(
        packets in prop::collection::vec((0u64..60, 0u32..6, 60u16..100), 1..80),
        window in 1u64..30,
    ) {
        let mut samples: Vec<Sample> = packets
            .into_iter()
            .map(|(time, flow, length)| Sample {
                time: Nanos(time),
                flow: if flow == 5 { NO_FLOW } else { flow },
                length,
                first: false,
            })
            .collect();
        samples.sort_by_key(|sample| sample.time);
        let mut seen = std::collections::HashSet::new();
        for sample in &mut samples {
            sample.first = sample.flow != NO_FLOW && seen.insert(sample.flow);
        }
        prop_assert_eq!(burst(&samples, 5, Nanos(window)), oracle(&samples, Nanos(window)));
    }
}
