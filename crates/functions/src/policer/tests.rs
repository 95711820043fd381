use super::*;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Reference token bucket; counts tokens in units of a billionth, so that `rate` of them come per nanosecond.
struct Bucket {
    rate: u128,
    /// Cost of a packet: its length in bits, or one.
    cost: fn(usize) -> u128,
    depth: u128,
    tokens: u128,
    filled: Nanos,
}

const SECOND: u128 = 1_000_000_000;

impl Bucket {
    fn new(rate: Rate, burst: u64) -> Bucket {
        let (rate, cost, depth): (u64, fn(usize) -> u128, u128) = match rate {
            Rate::Bits(bits) => (bits, |bytes| bytes as u128 * 8, u128::from(burst) * 8),
            Rate::Packets(packets) => (packets, |_| 1, u128::from(burst)),
        };
        Bucket {
            rate: rate.into(),
            cost,
            depth: depth * SECOND,
            tokens: depth * SECOND,
            filled: Nanos::ZERO,
        }
    }

    fn has(&mut self, now: Nanos, bytes: usize) -> bool {
        let since = now.saturating_sub(self.filled);
        self.tokens = (self.tokens + self.rate * u128::from(since.0)).min(self.depth);
        self.filled = self.filled.max(now);
        self.tokens >= (self.cost)(bytes) * SECOND
    }

    fn take(&mut self, now: Nanos, bytes: usize) -> bool {
        let has = self.has(now, bytes);
        if has {
            self.tokens -= (self.cost)(bytes) * SECOND;
        }
        has
    }
}

/// Rates whose token interval is a whole number of 256ths of a nanosecond, so that nothing is rounded.
const EXACT: [Rate; 5] = [
    Rate::Bits(8_000_000_000),
    Rate::Bits(100_000_000),
    Rate::Bits(64_000_000_000),
    Rate::Packets(1_000_000),
    Rate::Packets(250),
];

fn limit(rate: Rate, burst: u64) -> Limit {
    Limit {
        source: None,
        destination: None,
        protocol: None,
        scope: Scope::All,
        committed: Meter::new(rate, burst),
        peak: None,
        conforming: ExceedAction::Pass,
        exceeding: ExceedAction::Pass,
        violating: ExceedAction::Drop,
    }
}

fn rig(limits: Vec<Limit>, default: ExceedAction) -> ChainRig {
    let rules = Arc::new(Live::new(PolicerRules::new(limits, default)));
    ChainRig::new(vec![Box::new(Policer::new(rules))], INPUT)
}

fn udp(source_port: u16) -> FlowKey {
    let ends = ([10, 0, 0, 1].into(), [198, 18, 0, 1].into());
    FlowKey::v4(ends.0, ends.1, protocol::UDP, source_port, 53)
}

/// Returns a frame of `bytes` bytes of flow `flow`.
fn frame(flow: u16, bytes: usize) -> Vec<u8> {
    let headers = FrameBuilder::new(&udp(flow)).to_vec().unwrap().len();
    let payload = vec![7; bytes.saturating_sub(headers)];
    FrameBuilder::new(&udp(flow)).payload(&payload).to_vec().unwrap()
}

/// Returns the count of one of the function's drop reasons or counters.
fn count(rig: &ChainRig, name: &str) -> u64 {
    rig.count(&format!("policer/{name}"))
}

proptest! {
    /// One at a time or in batches, the same packets pass as with counted tokens.
    #[test]
    fn a_bucket_admits_what_tokens_would(
        rate in prop::sample::select(&EXACT[..]),
        burst in 1_u64..20_000,
        packets in prop::collection::vec((0_u64..30_000, 60_usize..1514), 1..200),
        cut in 1_usize..40,
    ) {
        let meter = Meter::new(rate, burst);
        let mut tokens = Bucket::new(rate, burst);
        let mut now = Nanos::ZERO;
        let packets: Vec<(Nanos, usize)> = packets
            .into_iter()
            .map(|(gap, bytes)| {
                now += Nanos(gap);
                (now, bytes)
            })
            .collect();
        let expected: Vec<bool> = packets.iter().map(|(now, bytes)| tokens.take(*now, *bytes)).collect();
        let mut full = 0;
        let alone: Vec<bool> = packets.iter().map(|(now, bytes)| meter.take(&mut full, *now, *bytes)).collect();
        prop_assert_eq!(&alone, &expected);
        let (shared, mut some, mut together) = (AtomicU64::new(0), Vec::new(), Vec::new());
        for packets in packets.chunks(cut) {
            meter.take_all(&shared, packets.iter().copied(), &mut some);
            together.extend_from_slice(&some);
        }
        prop_assert_eq!(&together, &expected);
    }

    /// Two rates as in RFC 2698, colour-blind mode, with per-flow and shared buckets.
    #[test]
    fn two_rates_tell_three_colours(
        rates in prop::sample::select(&[(EXACT[1], EXACT[0]), (EXACT[4], EXACT[3])][..]),
        bursts in (1514_u64..4000, 1514_u64..8000),
        packets in prop::collection::vec((0_u64..40_000, 60_usize..1514, 0_u16..3), 1..120),
        scope in prop::sample::select(&[Scope::All, Scope::Flow][..]),
    ) {
        let rule = Limit {
            peak: Some(Meter::new(rates.1, bursts.1)),
            scope,
            conforming: ExceedAction::Mark(46),
            exceeding: ExceedAction::Mark(10),
            violating: ExceedAction::Drop,
            ..limit(rates.0, bursts.0)
        };
        // A limit that matches nothing makes decisions live in the flow state.
        let nobody = Limit { protocol: Some(protocol::TCP), ..rule.clone() };
        let mut rig = rig(vec![nobody, rule], ExceedAction::Drop);
        let buckets = || (Bucket::new(rates.0, bursts.0), Bucket::new(rates.1, bursts.1));
        let mut all: Vec<(Bucket, Bucket)> = (0..3).map(|_| buckets()).collect();
        let mut now = Nanos::ZERO;
        let mut exceeding = 0;
        for (gap, bytes, flow) in packets {
            now += Nanos(gap);
            let frame = frame(flow, bytes);
            let own = if scope == Scope::All { 0 } else { usize::from(flow) };
            let (committed, peak) = &mut all[own];
            let expected = match peak.take(now, frame.len()) {
                false => None,
                true if committed.take(now, frame.len()) => Some(46 << 2),
                true => {
                    exceeding += 1;
                    Some(10 << 2)
                }
            };
            let sent = rig.run(&[frame], now);
            prop_assert_eq!(sent.first().map(|frame| frame[15]), expected);
        }
        prop_assert_eq!(count(&rig, "exceeding-passed"), exceeding);
    }

    /// With rates whose intervals are rounded, at most burst plus rate passes, and at worst 0.1 % less.
    #[test]
    fn odd_rates_are_met(bits in 1_000_000_u64..100_000_000_000, bytes in 64_usize..1514) {
        let (burst, meter) = (10_000, Meter::new(Rate::Bits(bits), 10_000));
        let (mut full, mut passed) = (0, 0_u64);
        // Packets arrive at twice the permitted rate.
        let gap = bytes as f64 * 8e9 / bits as f64 / 2.0;
        let time = |packet: u64| Nanos((packet as f64 * gap) as u64);
        for packet in 0..20_000 {
            passed += u64::from(meter.take(&mut full, time(packet), bytes));
        }
        let may = bits as f64 * time(19_999).as_secs_f64() / 8.0;
        let passed = passed as f64 * bytes as f64;
        prop_assert!(passed <= (may + burst as f64) * 1.001 + bytes as f64, "{passed} of {may}");
        prop_assert!(passed >= may * 0.999 - bytes as f64, "{passed} of {may}");
    }
}

/// Many cores take from one bucket concurrently: exactly as many packets pass as it holds.
#[test]
fn a_shared_bucket_is_never_overdrawn() {
    let meter = Meter::new(Rate::Packets(1000), 1000);
    let full = AtomicU64::new(0);
    let passed: usize = std::thread::scope(|scope| {
        let take = || {
            let (mut conforms, mut passed) = (Vec::new(), 0);
            for _ in 0..50 {
                let packets = (0..20).map(|_| (Nanos::from_micros(3), 100));
                meter.take_all(&full, packets, &mut conforms);
                passed += conforms.iter().filter(|conforms| **conforms).count();
            }
            passed
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(passed, 1000);
}

#[test]
fn the_first_limit_that_matches_counts() {
    let within = |prefix: &str, burst| Limit {
        destination: Some(prefix.parse().unwrap()),
        ..limit(Rate::Packets(1), burst)
    };
    let key = |last: u8| {
        let destination = [198, 18, 0, last].into();
        FlowKey::v4([10, 0, 0, 1].into(), destination, protocol::UDP, 1, 2)
    };
    let frames = |last: u8, count: usize| {
        let frame = FrameBuilder::new(&key(last)).to_vec().unwrap();
        vec![frame; count]
    };
    let limits = vec![within("198.18.0.7/32", 1), within("198.18.0.0/28", 3)];
    let mut some = rig(limits.clone(), ExceedAction::Drop);
    let now = Nanos::from_secs(1);
    // One batch with packets of two limits and of none.
    let batch = [frames(7, 3), frames(8, 2), frames(200, 1), frames(9, 2)].concat();
    let sent = some.run(&batch, now);
    let kept: Vec<u8> = sent.iter().map(|frame| frame[33]).collect();
    assert_eq!(kept, [7, 8, 8, 9]);
    assert_eq!((count(&some, "violating"), count(&some, "no-limit")), (3, 1));
    let mut passing = rig(limits, ExceedAction::Pass);
    assert_eq!(passing.run(&frames(200, 2), now).len(), 2);
    // If every packet falls to one shared limit, there is no flow state and no flow lookup.
    let all = PolicerRules::new(vec![limit(Rate::Packets(1), 1), within("::/0", 1)], ExceedAction::Pass);
    assert_eq!(all.limits().len(), 1);
    assert_eq!(Policer::new(Arc::new(Live::new(all))).state_bytes(), 0);
}

#[test]
fn marks_leave_the_rest_of_a_packet_right() {
    let mut rig = rig(
        vec![Limit {
            conforming: ExceedAction::Mark(46),
            violating: ExceedAction::Mark(8),
            ..limit(Rate::Packets(1), 1)
        }],
        ExceedAction::Pass,
    );
    let v6 = FlowKey::v6(
        "2001:db8::1".parse().unwrap(),
        "2001:db8::2".parse().unwrap(),
        protocol::UDP,
        1,
        2,
    );
    let mut frames: Vec<Vec<u8>> = [udp(1), v6, v6]
        .iter()
        .map(|key| FrameBuilder::new(key).payload(b"question").to_vec().unwrap())
        .collect();
    // Sets congestion experienced and a flow label.
    let parsed = parse(&frames[0]).unwrap();
    frames[0][15] |= 3;
    let sum = tailwater_net::checksum::sum(&[&frames[0][14..24], &frames[0][26..34]].concat());
    frames[0][24..26].copy_from_slice(&(!sum).to_be_bytes());
    assert_eq!(verify_network(&frames[0], &parsed), Checksum::Correct);
    frames[1][15] |= 0x3a;
    frames[1][16] = 0xbc;
    let before = frames[1].clone();
    let sent = rig.run(&frames, Nanos::from_secs(5));
    assert_eq!(sent[0][15], 46 << 2 | 3);
    assert_eq!(verify_network(&sent[0], &parsed), Checksum::Correct);
    assert_eq!(verify_transport(&sent[0], &parsed), Checksum::Correct);
    // The second and third packet exceed the burst of one packet.
    assert_eq!(sent[1][14..16], [0x62, 0x3a]);
    assert_eq!(sent[1][16..], before[16..]);
    assert_eq!(sent[2][14..16], [0x62, 0]);
    assert_eq!(count(&rig, "violating-passed"), 2);
}

/// Returns this many packets of one flow.
fn of_flow(packets: usize) -> Vec<Vec<u8>> {
    vec![FrameBuilder::new(&udp(1)).to_vec().unwrap(); packets]
}

/// On a change of rates an unchanged bucket keeps its level; a smaller bucket is at most empty.
#[test]
fn what_was_taken_counts_under_new_rates() {
    let second = Nanos::from_secs(1);
    let at = |seconds: u64| Nanos(seconds * second.0);
    for scope in [Scope::All, Scope::Flow] {
        let limits = |rate, burst| {
            let limit = Limit {
                scope,
                ..limit(Rate::Packets(rate), burst)
            };
            let other = Limit {
                source: Some("2001:db8::/32".parse().unwrap()),
                ..limit.clone()
            };
            vec![other, limit]
        };
        let live = Arc::new(Live::new(PolicerRules::new(limits(1, 100), ExceedAction::Pass)));
        let policer = Policer::new(Arc::clone(&live));
        let mut rig = ChainRig::new(vec![Box::new(policer)], INPUT);
        assert_eq!(rig.run(&of_flow(60), at(1000)).len(), 60);
        assert_eq!(rig.run(&of_flow(60), at(1000)).len(), 40);
        let change = |rate, burst| {
            let next = live
                .current()
                .value
                .next_version(limits(rate, burst), ExceedAction::Pass);
            live.replace(next)
        };
        // The bucket neither refills nor loses tokens.
        change(1, 100);
        assert_eq!(rig.run(&of_flow(10), at(1000)).len(), 0);
        assert_eq!(rig.run(&of_flow(10), at(1002)).len(), 2);
        // The empty bucket would take 100 s to fill; the new one takes 1 s and starts empty, too.
        change(10, 10);
        assert_eq!(rig.run(&of_flow(10), at(1002)).len(), 0);
        assert_eq!(rig.run(&of_flow(20), at(1003)).len(), 10);
    }
    // A run started without flow lookup cannot serve limits that need it.
    let one = |scope| {
        let limit = limit(Rate::Packets(1), 1);
        vec![Limit { scope, ..limit }]
    };
    let all = PolicerRules::new(one(Scope::All), ExceedAction::Pass);
    assert!(
        all.next_version(one(Scope::Flow), ExceedAction::Pass)
            .need_missing_flow_state()
    );
    let flows = PolicerRules::new(one(Scope::Flow), ExceedAction::Pass);
    assert!(
        !flows
            .next_version(one(Scope::All), ExceedAction::Pass)
            .next_version(one(Scope::Flow), ExceedAction::Pass)
            .need_missing_flow_state()
    );
}

/// Limits on prefixes replace one for all packets: without flow lookup they are matched per packet.
#[test]
fn limits_are_found_without_flows() {
    let live = Arc::new(Live::new(PolicerRules::new(
        vec![limit(Rate::Packets(1), 1000)],
        ExceedAction::Pass,
    )));
    let policer = Policer::new(Arc::clone(&live));
    assert_eq!(policer.state_bytes(), 0);
    let mut rig = ChainRig::new(vec![Box::new(policer)], INPUT);
    assert_eq!(rig.run(&of_flow(20), Nanos::from_secs(5)).len(), 20);
    let limits = vec![Limit {
        source: Some("0.0.0.0/0".parse().unwrap()),
        ..limit(Rate::Packets(1), 3)
    }];
    let next = live.current().value.next_version(limits, ExceedAction::Pass);
    live.replace(next);
    assert_eq!(rig.run(&of_flow(20), Nanos::from_secs(5)).len(), 3);
}
