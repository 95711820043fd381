use std::collections::{HashMap, HashSet};

use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::icmp::IcmpView;
use tailwater_net::parse::{Headers, parse};
use tailwater_net::tcp::TcpView;
use tailwater_net::vlan::tags;

use super::*;
use crate::generate::FrameSize;

fn config() -> MixedConfig {
    MixedConfig {
        seed: 3,
        flows: 500,
        sizes: FrameSize::Imix.frames(),
        shares: FlowShares::MIXED,
        popularity: Popularity::Uniform,
        senders: Senders::Clients,
        open: true,
        new_flows: 0.0,
        rate_pps: 1_000_000,
        packets: 50_000,
    }
}

fn frames(config: &MixedConfig) -> Vec<Vec<u8>> {
    let mut source = Mixed::new(config.clone()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = source.next_packet().unwrap() {
        assert_eq!(packet.timestamp.0, frames.len() as u64 * 1_000);
        assert_eq!(packet.wire_length as usize, packet.data.len());
        frames.push(packet.data.to_vec());
    }
    assert!(source.next_packet().unwrap().is_none(), "the end is lasting");
    frames
}

fn share(frames: &[Vec<u8>], is: impl Fn(&[u8], &Headers) -> bool) -> f64 {
    let count = frames.iter().filter(|frame| is(frame, &parse(frame).unwrap())).count();
    count as f64 / frames.len() as f64
}

#[track_caller]
fn near(found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() <= tolerance, "{found}, not {expected}");
}

#[test]
fn protocols_have_their_shares() {
    let made = frames(&MixedConfig {
        flows: 20_000,
        packets: 40_000,
        ..config()
    });
    let of = |protocols: &'static [u8]| {
        let is = move |_: &[u8], headers: &Headers| protocols.contains(&headers.key.protocol());
        share(&made, is)
    };
    near(of(&[protocol::TCP]), 0.6, 0.02);
    near(of(&[protocol::UDP]), 0.38, 0.02);
    near(of(&[protocol::ICMP, protocol::ICMPV6]), 0.02, 0.005);
    near(share(&made, |_, headers| !headers.key.is_v4()), 0.2, 0.02);
    near(share(&made, |frame, _| tags(frame).next().is_some()), 0.2, 0.02);
    // Independent of each other.
    let both = share(&made, |frame, headers| {
        !headers.key.is_v4() && tags(frame).next().is_some()
    });
    near(both, 0.04, 0.01);

    let made = frames(&MixedConfig {
        shares: FlowShares::TCP_UDP,
        ..config()
    });
    let is_tcp = |_: &[u8], headers: &Headers| headers.key.protocol() == protocol::TCP;
    near(share(&made, is_tcp), 0.5, 0.05);
    assert!(made.iter().all(|frame| parse(frame).unwrap().key.is_v4()));
}

/// A predictor of branches that sees the last ten protocols finds no pattern: it guesses as well as one that always
/// guesses the most frequent protocol.
#[test]
fn the_order_of_protocols_is_unpredictable() {
    let made = frames(&MixedConfig {
        flows: 5_000,
        shares: FlowShares::TCP_UDP,
        packets: 100_000,
        ..config()
    });
    let is_tcp = |frame: &Vec<u8>| u32::from(parse(frame).unwrap().key.protocol() == protocol::TCP);
    let (mut history, mut counters, mut hits) = (0, vec![0i32; 1 << 10], 0);
    for tcp in made.iter().map(is_tcp) {
        let counter = &mut counters[history as usize];
        hits += u32::from((*counter >= 0) == (tcp == 1));
        *counter = (*counter + if tcp == 1 { 1 } else { -1 }).clamp(-2, 1);
        history = (history << 1 | tcp) & 1_023;
    }
    near(f64::from(hits) / made.len() as f64, 0.5, 0.02);
}

#[test]
fn every_frame_is_sound_and_of_its_size() {
    for (sizes, senders) in [
        (FrameSize::Imix.frames(), Senders::BothEnds),
        (vec![64], Senders::Clients),
        (vec![64, 9_018], Senders::BothEnds),
    ] {
        let allowed: HashSet<usize> = sizes.iter().map(|size| usize::from(*size) - FCS).collect();
        let config = MixedConfig {
            sizes,
            senders,
            packets: 5_000,
            new_flows: 0.01,
            ..config()
        };
        let mut lengths = HashSet::new();
        for frame in frames(&config) {
            let headers = parse(&frame).unwrap();
            assert_ne!(verify_network(&frame, &headers), Checksum::Wrong);
            assert_eq!(verify_transport(&frame, &headers), Checksum::Correct);
            lengths.insert(frame.len());
            let header_length = usize::from(headers.payload_offset);
            let fits = allowed.contains(&frame.len()) || frame.len() == header_length.max(60);
            assert!(fits, "{} bytes", frame.len());
        }
        assert!(allowed.is_subset(&lengths));
    }
}

/// Flow as an observer between its ends sees it.
#[derive(Default)]
struct Observed {
    stage: usize,
    next: [u32; 2],
    pushes: u32,
    connections: u32,
}

/// Checks the TCP packets of `config`, which begin with a SYN, and returns the number of complete connections, and of
/// segments with PSH.
fn check_connections(config: &MixedConfig) -> (u32, u32) {
    let both = config.senders == Senders::BothEnds;
    let mut flows: HashMap<FlowKey, Observed> = HashMap::new();
    for frame in frames(config) {
        let headers = parse(&frame).unwrap();
        if headers.key.protocol() != protocol::TCP {
            continue;
        }
        let from = usize::from(matches!(headers.key.source_port(), 80 | 443));
        let key = if from == CLIENT {
            headers.key
        } else {
            headers.key.reversed()
        };
        let tcp = TcpView::new(&frame[usize::from(headers.transport_offset)..]).unwrap();
        let (flags, payload) = (tcp.flags(), headers.payload(&frame).len() as u32);
        let flow = flows.entry(key).or_default();
        let control = [
            (CLIENT, TcpFlags::SYN),
            (SERVER, TcpFlags::SYN | TcpFlags::ACK),
            (CLIENT, TcpFlags::ACK),
            (CLIENT, TcpFlags::FIN | TcpFlags::ACK),
            (SERVER, TcpFlags::FIN | TcpFlags::ACK),
            (CLIENT, TcpFlags::ACK),
        ];
        // Stage 3 is data, until a FIN.
        if flow.stage == 3 && !flags.contains(TcpFlags::FIN) {
            assert!(flags.contains(TcpFlags::ACK) && !flags.contains(TcpFlags::SYN));
            flow.pushes += u32::from(flags.contains(TcpFlags::PSH));
            assert!(payload > 0 || !flags.contains(TcpFlags::PSH));
        } else {
            if !both && control[flow.stage].0 == SERVER {
                flow.next[SERVER] = flow.next[SERVER].wrapping_add(1);
                flow.stage += 1;
            }
            assert_eq!(
                (from, flags, payload),
                (control[flow.stage].0, control[flow.stage].1, 0)
            );
            flow.stage = (flow.stage + 1) % control.len();
            flow.connections += u32::from(flow.stage == 0);
        }
        assert!(both || from == CLIENT);
        // The first SYN of each end has any number.
        let is_first = flags.contains(TcpFlags::SYN) && flow.connections == 0;
        assert!(is_first || tcp.sequence() == flow.next[from]);
        if flags.contains(TcpFlags::ACK) && (both || flow.stage > 3 || flow.stage == 0) {
            assert!(!both || tcp.acknowledgment() == flow.next[1 - from]);
        }
        let controls = u32::from(flags.intersects(TcpFlags::SYN | TcpFlags::FIN));
        flow.next[from] = tcp.sequence().wrapping_add(payload).wrapping_add(controls);
    }
    let sum = |of: fn(&Observed) -> u32| flows.values().map(of).sum();
    (sum(|flow| flow.connections), sum(|flow| flow.pushes))
}

#[test]
fn flags_and_numbers_are_those_of_connections() {
    for senders in [Senders::Clients, Senders::BothEnds] {
        for new_flows in [0.0, 0.05] {
            let config = MixedConfig {
                senders,
                new_flows,
                open: false,
                ..config()
            };
            let (connections, pushes) = check_connections(&config);
            // 60 % of 50,000 packets are TCP, in connections of 32 or 20 packets on average.
            let mean = if new_flows > 0.0 { 20.0 } else { 32.0 };
            near(f64::from(connections) * mean / 30_000.0, 1.0, 0.35);
            // Of half of the data, unless headers of IPv6 take all 64 bytes.
            let control = if senders == Senders::Clients { 4.0 } else { 6.0 };
            let data = (mean - control) / mean * (1.0 - 0.2 * 7.0 / 12.0);
            near(f64::from(pushes) / 30_000.0, data / 2.0, 0.03);
        }
    }
}

#[test]
fn echo_requests_precede_their_replies() {
    let config = MixedConfig {
        shares: FlowShares {
            tcp: 0.0,
            icmp: 1.0,
            ..FlowShares::MIXED
        },
        senders: Senders::BothEnds,
        packets: 10_000,
        ..config()
    };
    let mut pending: HashMap<FlowKey, u16> = HashMap::new();
    for frame in frames(&config) {
        let headers = parse(&frame).unwrap();
        let icmp = IcmpView::new(&frame[usize::from(headers.transport_offset)..]).unwrap();
        match icmp.kind() {
            icmp::v4::ECHO_REQUEST | icmp::v6::ECHO_REQUEST => {
                assert_eq!(pending.insert(headers.key, icmp.sequence()), None);
            }
            _ => assert_eq!(pending.remove(&headers.key.reversed()), Some(icmp.sequence())),
        }
    }
}

#[test]
fn flows_begin_at_their_rate() {
    for (new_flows, senders) in [
        (0.01, Senders::Clients),
        (0.1, Senders::Clients),
        (0.1, Senders::BothEnds),
    ] {
        let config = MixedConfig {
            new_flows,
            senders,
            flows: 1_000,
            packets: 200_000,
            ..config()
        };
        let mut seen = HashSet::new();
        let mut begun = 0;
        for frame in frames(&config) {
            let (key, _) = parse(&frame).unwrap().key.of_connection();
            begun += u32::from(seen.insert(key) && is_new_flow(&key));
        }
        near(f64::from(begun) / 200_000.0 / new_flows, 1.0, 0.05);
        let open = seen.iter().filter(|key| !is_new_flow(key)).count();
        assert_eq!(open, 1_000, "open at the start");
    }
    let standing = frames(&config()).len();
    assert_eq!(standing, 50_000);
    assert!(
        frames(&config())
            .iter()
            .all(|frame| !is_new_flow(&parse(frame).unwrap().key))
    );
}

#[test]
fn popular_flows_have_zipfs_shares() {
    let config = MixedConfig {
        popularity: Popularity::Zipf(1.0),
        packets: 100_000,
        ..config()
    };
    let mut counts: HashMap<FlowKey, u32> = HashMap::new();
    for frame in frames(&config) {
        *counts.entry(parse(&frame).unwrap().key).or_default() += 1;
    }
    let mut counts: Vec<u32> = counts.into_values().collect();
    counts.sort_by_key(|count| std::cmp::Reverse(*count));
    let harmonic: f64 = (1..=500).map(|rank| 1.0 / f64::from(rank)).sum();
    for rank in [1, 2, 10] {
        let expected = 100_000.0 / harmonic / rank as f64;
        near(f64::from(counts[rank - 1]) / expected, 1.0, 0.1);
    }
}

/// A failure means that published measurements used other traffic: announce the change.
#[test]
fn the_traffic_is_what_it_was() {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in frames(&config()).concat() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    assert_eq!(hash, 1_004_137_828_753_610_347);
}

#[test]
fn a_seed_selects_the_traffic() {
    let first = frames(&config());
    assert_eq!(first, frames(&config()));
    assert_ne!(first, frames(&MixedConfig { seed: 4, ..config() }));
}

#[test]
fn wrong_settings_are_refused() {
    type Change = fn(&mut MixedConfig);
    let cases: [(Change, &str); 8] = [
        (|config| config.flows = 0, "flows"),
        (|config| config.sizes = vec![], "sizes"),
        (|config| config.sizes = vec![64, 63], "sizes"),
        (|config| config.shares.icmp = 0.5, "tcp and icmp"),
        (|config| config.shares.vlan = f64::NAN, "vlan"),
        (|config| config.new_flows = 0.2, "new_flows"),
        (|config| config.popularity = Popularity::Zipf(0.0), "popularity"),
        (|config| config.packets = 0, "packets"),
    ];
    for (change, field) in cases {
        let mut config = config();
        change(&mut config);
        let error = Mixed::new(config).unwrap_err().to_string();
        assert!(error.contains(field), "{field}: {error}");
    }
}
