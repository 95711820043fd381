use super::*;
use crate::port::round_robin;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::checksum::{Checksum, verify_transport};
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_net::{FlowKey, protocol};
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, TrafficError};

static RSS: LazyLock<RssHasher> = LazyLock::new(RssHasher::default);

/// Packets at given times (ns), each of the flow identified by its source port.
struct Schedule {
    packets: Vec<(u64, Vec<u8>)>,
    next: usize,
}

impl PacketSource for Schedule {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        self.next += 1;
        Ok(self.packets.get(self.next - 1).map(|(time, data)| Packet {
            timestamp: Nanos(*time),
            data,
            wire_length: data.len() as u32,
        }))
    }
    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }
    fn name(&self) -> &str {
        "schedule"
    }
}

fn frame(flow: u16) -> Vec<u8> {
    let ends = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(198, 18, 0, 1));
    let key = FlowKey::v4(ends.0, ends.1, protocol::UDP, flow, 53);
    FrameBuilder::new(&key).payload(&[7; 80]).to_vec().unwrap()
}

fn trace(times: &[u64]) -> Trace {
    let packets = times
        .iter()
        .enumerate()
        .map(|(i, &time)| (time, frame(i as u16)))
        .collect();
    Trace::load(&mut Schedule { packets, next: 0 }, &LoadOptions::default()).unwrap()
}

struct Rig {
    nic: TraceNic,
    queues: Vec<TraceQueue>,
    pool: BufferPool,
    batch: Batch,
}

impl Rig {
    fn new(trace: Trace, queues: u16, config: TraceNicConfig) -> Rig {
        let clock = Clock::start();
        let reta = round_robin(queues);
        let nic = TraceNic::new(trace, RssHasher::default(), queues, &reta, config, clock).unwrap();
        let pool = BufferPool::new(64, 2048).unwrap();
        let batch = Batch::new(&pool, 32);
        Rig {
            queues: nic.queues(Nanos::ZERO),
            nic,
            pool,
            batch,
        }
    }

    /// Polls a queue. Returns the poll's result, and each packet's source port and arrival.
    fn poll(&mut self, queue: usize, now: u64) -> (Received, Vec<(u16, u64)>) {
        let received = self.queues[queue].receive(Nanos(now), &mut self.pool, &mut self.batch);
        let packets = (0..self.batch.len())
            .map(|i| {
                let headers = parse(self.batch.frame(i)).unwrap();
                assert_eq!(verify_transport(self.batch.frame(i), &headers), Checksum::Correct);
                let packet = self.batch.iter().nth(i).unwrap();
                assert_eq!(packet.rss_hash, RSS.hash_headers(&headers));
                (headers.key.source_port(), packet.arrival.0)
            })
            .collect();
        self.batch.release(&mut self.pool);
        assert_eq!(self.pool.available(), self.pool.capacity());
        (received, packets)
    }
}

#[test]
fn only_what_has_arrived_is_received() {
    let mut rig = Rig::new(trace(&[0, 100, 200, 10_000]), 1, TraceNicConfig::default());
    assert_eq!(rig.poll(0, 50).1, [(0, 0)]);
    assert_eq!(rig.poll(0, 99).1, []);
    let (received, packets) = rig.poll(0, 300);
    assert_eq!(packets, [(1, 100), (2, 200)]);
    assert_eq!((received.offered, received.ended), (2, false));
    let (received, packets) = rig.poll(0, 20_000);
    assert_eq!((packets, received.ended), (vec![(3, 10_000)], true));
}

#[test]
fn what_finds_the_ring_full_is_lost_and_the_order_stays() {
    let config = TraceNicConfig {
        ring: 40,
        ..TraceNicConfig::default()
    };
    let times: Vec<u64> = (0..100).collect();
    let mut rig = Rig::new(trace(&times), 1, config);
    // A late poll: 40 fit, 60 are lost, a batch of 32 is taken.
    let (received, first) = rig.poll(0, 1000);
    assert_eq!(
        (received.offered, received.lost_ring_full, received.waiting),
        (100, 60, 8)
    );
    let (received, rest) = rig.poll(0, 1001);
    assert_eq!((received.offered, received.waiting, received.ended), (0, 0, true));
    let ports: Vec<u16> = first.into_iter().chain(rest).map(|(port, _)| port).collect();
    assert_eq!(ports, (0..40).collect::<Vec<u16>>());
}

#[test]
fn every_packet_goes_to_one_queue_under_changing_tables() {
    let times: Vec<u64> = (0..4000).map(|i| i * 1_000).collect();
    let delay = Nanos::from_micros(100);
    let config = TraceNicConfig {
        reta_delay: delay,
        ring: 1 << 14,
        ..TraceNicConfig::default()
    };
    let mut rig = Rig::new(trace(&times), 3, config);
    let start = rig.nic.clock.now();
    rig.queues = rig.nic.queues(start);
    let mut seen = Vec::new();
    let mut effective = Vec::new();
    let mut promised = [0; 3];
    for step in 0..60u64 {
        // The clock for updates is real. Polls happen at its time, of queues in changing order.
        let now = rig.nic.clock.now().0;
        for queue in 0..3 {
            let queue = (queue + step as usize) % 3;
            let (received, packets) = rig.poll(queue, now);
            let first = packets.iter().map(|(_, arrival)| *arrival).min();
            assert!(
                first.is_none_or(|first| first >= promised[queue]),
                "arrived before what was said to be there"
            );
            promised[queue] = rig.queues[queue].received_before().0;
            assert_eq!(received.waiting == 0, promised[queue] > now, "what waits");
            seen.extend(packets.into_iter().map(|(port, arrival)| (port, arrival, queue)));
        }
        if step % 5 == 0 {
            let reta: Reta = std::array::from_fn(|b| ((b as u64 + step) % 3) as u16);
            effective.push((rig.nic.set_reta(&reta).unwrap(), reta));
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    let end = start.0 + 1_000_000_000;
    for queue in 0..3 {
        loop {
            let (received, packets) = rig.poll(queue, end);
            seen.extend(packets.into_iter().map(|(port, arrival)| (port, arrival, queue)));
            if received.ended && received.waiting == 0 {
                break;
            }
        }
    }
    let ports: BTreeSet<u16> = seen.iter().map(|(port, ..)| *port).collect();
    assert_eq!((seen.len(), ports.len()), (4000, 4000), "received twice or by nobody");
    // Each packet by the queue in the table in force at its arrival.
    let rss = RssHasher::default();
    for (port, arrival, queue) in seen {
        let bucket = bucket_of(rss.hash_headers(&parse(&frame(port)).unwrap()));
        let in_force = effective.iter().rev().find(|(from, _)| from.0 <= arrival);
        let expected = in_force.map_or(bucket % 3, |(_, reta)| reta[usize::from(bucket)]);
        assert_eq!(usize::from(expected), queue);
    }
}

#[test]
fn a_table_with_a_missing_queue_is_refused() {
    let rig = Rig::new(trace(&[0, 1]), 2, TraceNicConfig::default());
    let error = rig.nic.set_reta(&[2; BUCKETS]).unwrap_err();
    assert_eq!(
        error,
        RetaError::NoQueue {
            bucket: 0,
            queue: 2,
            queues: 2
        }
    );
    let saturate = TraceNicConfig {
        pacing: Pacing::Saturate,
        ..TraceNicConfig::default()
    };
    let rig = Rig::new(trace(&[0, 1]), 2, saturate);
    assert_eq!(rig.nic.set_reta(&[0; BUCKETS]), Err(RetaError::NotPaced));
}

#[test]
fn laps_bring_new_flows_at_the_traces_pace() {
    let duration = Some(Nanos(10 * 300));
    let config = TraceNicConfig {
        duration,
        ..TraceNicConfig::default()
    };
    // 100 ns apart, so a lap takes 300 ns: ten laps of three packets.
    let mut rig = Rig::new(trace(&[0, 100, 200]), 1, config);
    let (received, packets) = rig.poll(0, 100_000);
    assert_eq!(received.offered, 30);
    let arrivals: Vec<u64> = packets.iter().map(|(_, arrival)| *arrival).collect();
    assert_eq!(arrivals, (0..30).map(|i| i * 100).collect::<Vec<_>>());
    let mut keys = BTreeSet::new();
    let mut rig = Rig::new(
        trace(&[0, 100, 200]),
        1,
        TraceNicConfig {
            duration,
            ..TraceNicConfig::default()
        },
    );
    rig.queues[0].receive(Nanos(100_000), &mut rig.pool, &mut rig.batch);
    for i in 0..30 {
        keys.insert(parse(rig.batch.frame(i)).unwrap().key.to_string());
    }
    assert_eq!(keys.len(), 30, "flows of different laps are the same");
    rig.batch.release(&mut rig.pool);
    let config = TraceNicConfig {
        duration,
        renumber: Renumber::None,
        ..TraceNicConfig::default()
    };
    let mut rig = Rig::new(trace(&[0, 100, 200]), 1, config);
    let ports: BTreeSet<u16> = rig.poll(0, 100_000).1.iter().map(|(port, _)| *port).collect();
    assert_eq!(ports.len(), 3, "flows that are to stay have changed");
}

#[test]
fn laps_bring_new_flows_of_those_that_are_to_change() {
    let config = TraceNicConfig {
        duration: Some(Nanos(3_000)),
        renumber: Renumber::Some(|key| key.source_port() == 1),
        ..TraceNicConfig::default()
    };
    let mut rig = Rig::new(trace(&[0, 100, 200]), 1, config);
    rig.queues[0].receive(Nanos(100_000), &mut rig.pool, &mut rig.batch);
    let keys: BTreeSet<(u16, String)> = (0..rig.batch.len())
        .map(|i| parse(rig.batch.frame(i)).unwrap().key)
        .map(|key| (key.source_port(), key.to_string()))
        .collect();
    let of = |port| keys.iter().filter(|(of, _)| *of == port).count();
    assert_eq!([of(0), of(1), of(2)], [1, 10, 1]);
    rig.batch.release(&mut rig.pool);
}

#[test]
fn with_fewer_bits_longer_prefixes_stay_and_flows_come_again() {
    for (bits, expected) in [(0, 1), (2, 4), (16, 5)] {
        let config = TraceNicConfig {
            duration: Some(Nanos(1_000)),
            renumber_bits: bits,
            ..TraceNicConfig::default()
        };
        let mut rig = Rig::new(trace(&[0, 100]), 1, config);
        rig.queues[0].receive(Nanos(100_000), &mut rig.pool, &mut rig.batch);
        let keys = (0..rig.batch.len()).map(|i| parse(rig.batch.frame(i)).unwrap().key);
        let keys: Vec<_> = keys.filter(|key| key.source_port() == 0).collect();
        let IpAddr::V4(first) = keys[0].source() else {
            panic!("{}", keys[0]);
        };
        let mut sources = BTreeSet::new();
        for key in &keys {
            let IpAddr::V4(source) = key.source() else {
                panic!("{key}");
            };
            assert!((source.to_bits() ^ first.to_bits()) < 1 << bits, "{source}");
            sources.insert(source);
        }
        assert_eq!((keys.len(), sources.len()), (5, expected), "{bits}: {sources:?}");
        rig.batch.release(&mut rig.pool);
    }
}

#[test]
fn saturation_gives_full_batches_that_arrive_now() {
    let config = TraceNicConfig {
        pacing: Pacing::Saturate,
        duration: Some(Nanos::from_secs(1)),
        ..TraceNicConfig::default()
    };
    let mut rig = Rig::new(trace(&[0, 1_000_000]), 1, config);
    let (received, packets) = rig.poll(0, 7);
    assert_eq!((received.offered, received.lost_ring_full), (32, 0));
    assert!(packets.iter().all(|(_, arrival)| *arrival == 7));
    assert!(rig.poll(0, 1_000_000_000).0.ended);
}

#[test]
fn after_a_stop_nothing_arrives_and_the_ring_is_drained_or_discarded() {
    let times: Vec<u64> = (0..100).collect();
    let mut rig = Rig::new(trace(&times), 1, TraceNicConfig::default());
    let (received, packets) = rig.poll(0, 49);
    assert_eq!((received.offered, packets.len(), received.waiting), (50, 32, 18));
    rig.queues[0].stop();
    let mut lost = Vec::new();
    rig.queues[0].discard(&mut |arrival, _| lost.push(arrival.0));
    assert_eq!(lost, (32..50).collect::<Vec<_>>());
    assert!(rig.poll(0, 2000).0.ended);
}

#[test]
fn old_packets_leave_the_ring_but_for_the_last() {
    let times: Vec<u64> = (0..100).collect();
    let mut rig = Rig::new(trace(&times), 1, TraceNicConfig::default());
    assert_eq!(rig.poll(0, 59).0.waiting, 28);
    let mut discard = |before, leave| {
        let mut lost = Vec::new();
        rig.queues[0].discard_before(Nanos(before), leave, &mut |arrival, _| lost.push(arrival.0));
        lost
    };
    assert_eq!(discard(35, 0), [32, 33, 34]);
    assert_eq!(discard(1000, 20), [35, 36, 37, 38, 39]);
    assert_eq!(discard(1000, 20), [0; 0]);
    let (received, packets) = rig.poll(0, 59);
    assert_eq!((received.offered, packets[0].1, packets.len()), (0, 40, 20));
}

#[test]
fn without_buffers_packets_stay_in_the_ring() {
    let times: Vec<u64> = (0..20).collect();
    let mut rig = Rig::new(trace(&times), 1, TraceNicConfig::default());
    let held: Vec<_> = (0..60).map(|_| rig.pool.take().unwrap()).collect();
    let received = rig.queues[0].receive(Nanos(1000), &mut rig.pool, &mut rig.batch);
    assert_eq!((rig.batch.len(), received.waiting), (4, 16));
    assert_eq!(rig.pool.exhausted(), 1);
    held.into_iter().for_each(|buffer| rig.pool.give(buffer));
    rig.batch.release(&mut rig.pool);
    assert_eq!(rig.poll(0, 1000).1.len(), 16);
}

/// Regression: a queue to which no packet hashed searched for one without end, and never saw the stop flag.
#[test]
fn a_queue_with_nothing_to_receive_returns() {
    let config = TraceNicConfig {
        pacing: Pacing::Saturate,
        duration: Some(Nanos::from_secs(1)),
        renumber: Renumber::None,
        ..TraceNicConfig::default()
    };
    let mut rig = Rig::new(trace(&[0]), 2, config);
    let polls = [rig.poll(0, 1).0, rig.poll(1, 1).0];
    assert!(polls.iter().any(|received| received.offered == 0));
    assert!(polls.iter().all(|received| !received.ended));
    rig.queues.iter_mut().for_each(|queue| queue.stop());
    assert!(rig.poll(0, 2).0.ended && rig.poll(1, 2).0.ended);
}

/// Regression: a ring smaller than a batch lost the packets that did not fit the batch. No packet may be lost when
/// packets arrive only as fast as they are taken.
#[test]
fn saturation_loses_nothing_in_a_small_ring() {
    let pacing = Pacing::Saturate;
    let duration = Some(Nanos::from_secs(1));
    let config = TraceNicConfig {
        pacing,
        duration,
        ring: 8,
        ..TraceNicConfig::default()
    };
    let mut rig = Rig::new(trace(&[0, 1]), 1, config);
    let (received, packets) = rig.poll(0, 7);
    assert_eq!((received.offered, received.lost_ring_full, packets.len()), (8, 0, 8));
}

/// Regression: without pacing packets arrived before the start, although time was counted from it.
#[test]
fn nothing_arrives_before_the_start() {
    for pacing in [Pacing::Saturate, Pacing::Arrivals] {
        let config = TraceNicConfig {
            pacing,
            ..TraceNicConfig::default()
        };
        let mut rig = Rig::new(trace(&[0, 1]), 1, config);
        rig.queues = rig.nic.queues(Nanos(1000));
        assert_eq!(rig.poll(0, 999).0.offered, 0);
        assert!(rig.poll(0, 1000).0.offered > 0);
    }
}

/// A queue that continues at another one's position receives what that one has not, in order, also what waits in its
/// ring, and in the pass in which it was.
#[test]
fn a_queue_continues_at_the_position_of_another_one() {
    let times: Vec<u64> = (0..10).map(|number| number * 100).collect();
    let config = || TraceNicConfig {
        duration: Some(Nanos(10_000)),
        renumber: Renumber::None,
        ..TraceNicConfig::default()
    };
    let rig = |queues| Rig::new(trace(&times), queues, config());
    let mut whole = rig(1);
    let mut expected = Vec::new();
    for now in (0..10_000).step_by(2_000) {
        expected.extend(whole.poll(0, now + 2_000).1);
    }
    for until in [0, 350, 1_500, 4_321] {
        let (mut old, mut new) = (rig(1), rig(1));
        let mut received = old.poll(0, until).1;
        // Arrived, and not received.
        let waiting = old.queues[0].admit(Nanos(until + 500), 1024).0;
        let position = PortQueue::position(&old.queues[0]).unwrap();
        assert!(position.waiting.len() as u64 >= waiting);
        assert!(PortQueue::continue_at(&mut new.queues[0], &position));
        for now in (until..10_000).step_by(1_000) {
            received.extend(new.poll(0, now + 1_000).1);
        }
        assert_eq!(received, expected, "{until}");
        // Of a shorter trace.
        let mut other = Rig::new(trace(&[0]), 1, config());
        assert!(!PortQueue::continue_at(&mut other.queues[0], &position));
    }
}

/// Queues of another number receive what the others have not, each the packets of its buckets, in order: also what
/// waits in rings, and what one queue has seen arrive and another has not.
#[test]
fn another_number_of_queues_continues_at_the_positions_of_others() {
    let times: Vec<u64> = (0..300).map(|number| number * 10).collect();
    let config = |ring| TraceNicConfig {
        duration: Some(Nanos(10_000)),
        renumber: Renumber::All,
        ring,
        ..TraceNicConfig::default()
    };
    let rig = |queues, ring| Rig::new(trace(&times), queues, config(ring));
    let all = |rig: &mut Rig, from: u64| {
        let mut received = Vec::new();
        for now in (from..=40_000).step_by(100) {
            for queue in 0..rig.queues.len() {
                received.extend(rig.poll(queue, now).1);
            }
        }
        received.sort_unstable();
        received
    };
    let expected = all(&mut rig(1, 1024), 0);
    assert_eq!(expected.len(), 1_000);
    for (before, after) in [(1, 2), (2, 1), (2, 3), (3, 2), (4, 1)] {
        for until in [0, 350, 2_980, 3_005, 9_990, 11_000] {
            let (mut old, mut new) = (rig(before, 1024), rig(after, 16));
            let mut received = Vec::new();
            for queue in 0..usize::from(before) {
                // One after the other, and each leaves some in its ring.
                let now = until + 130 * queue as u64;
                received.extend(old.poll(queue, now).1);
                old.queues[queue].admit(Nanos(now + 500), 1024);
            }
            let positions: Vec<_> = old
                .queues
                .iter()
                .map(|queue| PortQueue::position(queue).unwrap())
                .collect();
            let divided = Port::divide(&new.nic, positions.clone()).unwrap();
            assert_eq!(divided.len(), usize::from(after));
            for (queue, position) in new.queues.iter_mut().zip(&divided) {
                assert!(position.waiting.is_sorted());
                assert!(PortQueue::continue_at(queue, position));
                PortQueue::catch_up(queue, Nanos(20_000));
            }
            received.extend(all(&mut new, until + 1_000));
            received.sort_unstable();
            assert_eq!(received, expected, "{before} to {after} at {until}");
            // Of a shorter trace.
            let other = Rig::new(trace(&[0]), after, config(16));
            assert!(Port::divide(&other.nic, positions).is_none());
        }
    }
}

/// After a pause, arrivals for which the ring has no room wait.
#[test]
fn what_arrived_in_a_pause_is_not_lost() {
    let times: Vec<u64> = (0..100).collect();
    let config = TraceNicConfig {
        ring: 8,
        ..TraceNicConfig::default()
    };
    let mut rig = Rig::new(trace(&times), 1, config.clone());
    PortQueue::catch_up(&mut rig.queues[0], Nanos(5_000));
    let mut received = 0;
    for now in 1_000..1_020 {
        let (poll, packets) = rig.poll(0, now);
        assert_eq!(poll.lost_ring_full, 0);
        received += packets.len();
    }
    assert_eq!(received, 100);
    let mut rig = Rig::new(trace(&times), 1, config);
    PortQueue::catch_up(&mut rig.queues[0], Nanos(900));
    assert!(rig.poll(0, 1_000).0.lost_ring_full > 0, "but not for ever");
}
