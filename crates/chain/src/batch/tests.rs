//! Batches: frames, buffers and their order.

use super::*;
use tailwater_net::parse::Headers;

fn batch(frames: &[&[u8]]) -> (BufferPool, Batch) {
    let mut pool = BufferPool::new(8, 256).unwrap();
    let mut batch = Batch::new(&pool, 8);
    for (i, frame) in frames.iter().enumerate() {
        assert!(batch.push(&mut pool, frame, Nanos(i as u64), 0));
    }
    (pool, batch)
}

#[test]
fn frames_come_back_as_they_went_in() {
    let (mut pool, mut batch) = batch(&[b"one", b"", b"three"]);
    assert_eq!(batch.frame(0), b"one");
    assert_eq!(batch.frame(1), b"");
    batch.packet_mut(2).1[0] = b'T';
    assert_eq!(batch.frame(2), b"Three");
    batch.release(&mut pool);
    assert_eq!((batch.len(), pool.available()), (0, 8));
}

#[test]
fn flow_keys_stand_in_for_missing_hashes_only() {
    let (mut pool, mut batch) = batch(&[]);
    let frames = [1000, 1001, 1000].map(crate::rig::udp);
    for (frame, hash) in frames.iter().zip([0, 7, 0]) {
        assert!(batch.push(&mut pool, frame, Nanos(1), hash));
    }
    batch.for_each(|packet, frame| packet.headers = tailwater_net::parse::parse(frame).unwrap());
    batch.hash_flow_keys();
    let [first, second, third] = [0, 1, 2].map(|i| batch.packet(i).rss_hash);
    assert_eq!((first, second), (third, 7));
    assert!(first != 0 && first != 7);
    // Of another flow.
    batch.packet_mut(2).0.rss_hash = 0;
    batch.packet_mut(2).0.headers = batch.packet(1).headers;
    batch.hash_flow_keys();
    assert_ne!(batch.packet(2).rss_hash, first);
    batch.release(&mut pool);
}

#[test]
fn chosen_packets_move() {
    let (mut pool, mut batch) = batch(&[b"a", b"-", b"b", b"-", b"c"]);
    let mut other = Batch::new(&pool, 8);
    for (place, letter) in [(0, b'a'), (2, b'b'), (4, b'c')] {
        let (arrived, arrival) = batch.move_out(place);
        assert_eq!(arrived.frame(pool.memory()), [letter]);
        other.receive(arrived, arrival, u32::from(letter));
    }
    batch.remove_moved(3);
    assert_eq!((0..3).map(|i| other.frame(i)[0]).collect::<Vec<_>>(), *b"abc");
    assert_eq!(
        other.iter().map(|packet| packet.arrival.0).collect::<Vec<_>>(),
        [0, 2, 4]
    );
    assert_eq!(batch.iter().map(|packet| packet.arrival.0).collect::<Vec<_>>(), [1, 3]);
    assert!((0..2).all(|i| batch.frame(i) == b"-"));
    batch.release(&mut pool);
    other.release(&mut pool);
    assert_eq!(pool.available(), 8);
}

#[test]
fn a_device_takes_buffers_away_and_sends_some() {
    let (mut pool, mut batch) = batch(&[b"a", b"bb", b"ccc"]);
    let taken: Vec<_> = batch.take_buffers().collect();
    assert_eq!(taken.iter().map(|t| t.2).collect::<Vec<_>>(), [1, 2, 3]);
    batch.remove_unsent(&[0, 2]);
    assert_eq!((batch.len(), batch.packet(0).length()), (1, 2));
    assert_eq!(batch.in_hand(), 3);
    for (buffer, start, length) in taken {
        let packet = Arrived {
            buffer,
            start: start + 1,
            length: length - 1,
            hash: None,
            entry: 0,
        };
        let whole = usize::from(packet.length);
        assert_eq!(packet.frame(pool.memory()).len(), whole);
        let mut other = Batch::new(&pool, 1);
        other.receive(packet, Nanos(1), 2);
        assert_eq!(other.frame(0).len(), whole);
        other.release(&mut pool);
    }
    assert_eq!(pool.available(), 8);
}

#[test]
#[should_panic(expected = "a frame of 10 bytes from")]
fn a_packet_beyond_its_buffer_is_refused() {
    let mut pool = BufferPool::new(1, 64).unwrap();
    let (mut batch, bytes) = (Batch::new(&pool, 1), pool.memory().buffer_bytes());
    let packet = Arrived {
        buffer: pool.take().unwrap(),
        start: bytes as u16 - 9,
        length: 10,
        hash: None,
        entry: 0,
    };
    batch.receive(packet, Nanos::ZERO, 0);
}

#[test]
fn compaction_keeps_order_and_loses_no_buffer() {
    let (mut pool, mut batch) = batch(&[b"a", b"b", b"c", b"d", b"e"]);
    batch.packet_mut(0).0.verdict = Verdict::Drop(3);
    batch.packet_mut(2).0.verdict = Verdict::Bypass;
    batch.packet_mut(4).0.verdict = Verdict::Drop(1);
    let mut reasons = vec![];
    batch.compact(|_, reason| reasons.push(reason));
    assert_eq!(reasons, [3, 1]);
    assert_eq!((batch.frame(0), batch.frame(1), batch.len()), (&b"b"[..], &b"d"[..], 2));
    batch.rejoin_bypass();
    assert_eq!(batch.frame(2), b"c");
    batch.release(&mut pool);
    assert_eq!(pool.available(), 8);
}

#[test]
fn a_batch_is_divided_in_order() {
    let (mut pool, mut batch) = batch(&[b"a", b"b", b"c", b"d"]);
    let mut other = Batch::new(&pool, 4);
    batch.packet_mut(1).0.set_number(1);
    batch.packet_mut(2).0.set_number(1);
    batch.divide(&mut other, |packet| packet.number() == 1);
    let frames = |batch: &Batch| -> Vec<Vec<u8>> {
        let frames = (0..batch.len()).map(|i| batch.frame(i).to_vec());
        frames.collect()
    };
    assert_eq!(frames(&batch), [b"a", b"d"]);
    assert_eq!(frames(&other), [b"b", b"c"]);
    batch.release(&mut pool);
    other.release(&mut pool);
    assert_eq!(pool.available(), 8);
}

#[test]
fn frames_grow_and_shrink_at_the_front() {
    let (mut pool, mut batch) = batch(&[b"0123456789"]);
    batch.packet_mut(0).0.headers = Headers {
        network_offset: 4,
        transport_offset: 6,
        payload_offset: 8,
        end: 10,
        ..Headers::default()
    };
    let (packet, frame) = batch.grow_front(0, 2).unwrap();
    frame[..2].copy_from_slice(b"ab");
    assert_eq!(
        (frame.len(), packet.headers.network_offset, packet.headers.end),
        (12, 6, 12)
    );
    assert_eq!(batch.frame(0), b"ab0123456789");
    assert!(batch.grow_front(0, HEADROOM).is_none());
    assert!(batch.shrink_front(0, 7).is_none());
    let (packet, frame) = batch.shrink_front(0, 6).unwrap();
    assert_eq!((&*frame, packet.headers.network_offset), (&b"456789"[..], 0));
    assert_eq!((packet.headers.transport_offset, packet.headers.end), (2, 6));
    batch.release(&mut pool);
    assert_eq!(pool.available(), 8);
}

#[test]
fn datagrams_grow_and_shrink_at_the_end() {
    // Uses the room behind the frame once, and the headroom once, when there is too little room behind.
    for length in [10, 64] {
        let mut pool = BufferPool::new(1, 64).unwrap();
        let mut batch = Batch::new(&pool, 1);
        let whole: Vec<u8> = (0..length).collect();
        assert!(batch.push(&mut pool, &whole, Nanos::ZERO, 0));
        let headers = Headers {
            network_offset: 1,
            transport_offset: 2,
            payload_offset: 4,
            end: 8,
            ..Headers::default()
        };
        batch.packet_mut(0).0.headers = headers;
        assert!(batch.grow_back(0, 1000).is_none());
        let (packet, frame) = batch.grow_back(0, 3).unwrap();
        assert_eq!((packet.headers.end, frame.len()), (11, whole.len() + 3));
        assert_eq!((&frame[..8], &frame[11..]), (&whole[..8], &whole[8..]));
        assert_eq!(packet.headers.payload_offset, 4);
        assert!(batch.shrink_back(0, 8).is_none());
        let (packet, frame) = batch.shrink_back(0, 3).unwrap();
        assert_eq!((packet.headers, &*frame), (headers, &whole[..]));
    }
}

#[test]
fn a_full_batch_and_an_empty_pool_take_no_more() {
    let mut pool = BufferPool::new(2, 64).unwrap();
    let mut batch = Batch::new(&pool, 1);
    assert!(batch.push(&mut pool, &[1], Nanos::ZERO, 0));
    assert!(!batch.push(&mut pool, &[2], Nanos::ZERO, 0));
    let mut wide = Batch::new(&pool, 8);
    let incoming = Incoming {
        length: 3,
        arrival: Nanos::ZERO,
        rss_hash: 0,
        rest: 0,
    };
    assert_eq!(wide.fill(&mut pool, 8, |_| incoming), 1);
    batch.release(&mut pool);
    wide.release(&mut pool);
    assert_eq!(pool.available(), 2);
}

#[test]
#[should_panic(expected = "a frame of 4096 bytes in a buffer for")]
fn a_frame_beyond_its_buffer_is_refused() {
    let mut pool = BufferPool::new(1, 64).unwrap();
    Batch::new(&pool, 1).push(&mut pool, &[0; 4096], Nanos::ZERO, 0);
}

#[test]
fn a_packet_leaves_from_wherever_it_is() {
    for packets in 1..=8 {
        for at in 0..packets {
            let frames: Vec<Vec<u8>> = (0..packets).map(|i| vec![i as u8; 4]).collect();
            let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            let (mut pool, mut batch) = batch(&frames);
            batch.packet_mut(at).0.verdict = Verdict::Drop(3);
            let mut dropped = Vec::new();
            batch.compact(|packet, reason| dropped.push((packet.arrival, reason)));
            assert_eq!(dropped, [(Nanos(at as u64), 3)]);
            let left: Vec<u64> = batch.iter().map(|packet| packet.arrival.0).collect();
            let expected: Vec<u64> = (0..packets as u64).filter(|&i| i != at as u64).collect();
            assert_eq!(left, expected);
            batch.release(&mut pool);
            assert_eq!(pool.available(), 8);
        }
    }
}

#[test]
fn dropped_packets_can_be_read_until_they_are_released() {
    let mut pool = BufferPool::new(4, 128).unwrap();
    let mut batch = Batch::new(&pool, 4);
    for i in 0..4u8 {
        assert!(batch.push(&mut pool, &[i; 60], Nanos(u64::from(i)), u32::from(i) + 100));
    }
    batch.packet_mut(1).0.verdict = Verdict::Drop(3);
    batch.compact_by(DroppedBy::Function(2), |_, _| {});
    batch.packet_mut(2).0.verdict = Verdict::Drop(0);
    batch.compact(|_, _| {});
    let dropped: Vec<_> = batch
        .dropped()
        .map(|packet| {
            (
                packet.by,
                packet.reason,
                packet.arrival.0,
                packet.rss_hash,
                packet.frame,
            )
        })
        .collect();
    let expected = [
        (DroppedBy::Function(2), 3, 1, 101, &[1; 60][..]),
        (DroppedBy::Input, 0, 3, 103, &[3; 60][..]),
    ];
    assert_eq!(dropped, expected);
    batch.release(&mut pool);
    assert_eq!((batch.dropped().count(), pool.available()), (0, 4));
}

#[test]
fn packets_leave_in_lists_and_buffers_come_along() {
    let (mut pool, mut batch) = batch(&[b"a", b"-", b"b", b"c"]);
    let mut of_worker = BufferPool::lent(pool.memory().clone(), 8);
    // One that is appended to, one that is exchanged, and one that is moved packet by packet.
    let mut lists = [2, 8, 3].map(|capacity| Packets::new(pool.memory(), capacity));
    batch.append_to(&mut lists[0], &[0, 2]);
    batch.remove_moved(2);
    assert_eq!((lists[0].room(), batch.len()), (0, 2));
    assert!(batch.move_to(&mut lists[1]) && batch.is_empty());
    let mut other = Batch::new(&of_worker, 8);
    of_worker.admit_all(4);
    assert!(other.add_all(&mut lists[0]) && other.add_all(&mut lists[1]));
    let frames: Vec<_> = (0..4).map(|i| other.frame(i)[0]).collect();
    assert_eq!(frames, *b"ab-c");
    assert_eq!(
        other.iter().map(|packet| packet.arrival.0).collect::<Vec<_>>(),
        [0, 2, 1, 3]
    );
    // Four packets in a list for three.
    assert!(!other.move_to(&mut lists[2]));
    other.release(&mut of_worker);
    for (list, returned) in lists[1..].iter_mut().zip([4, 0]) {
        list.take_along(&mut of_worker);
        assert!(!of_worker.has_returned());
        let before = pool.available();
        list.return_to(&mut pool);
        assert_eq!(pool.available() - before, returned);
    }
    // A list of which packets were taken stays as it is.
    assert!(batch.push(&mut pool, b"d", Nanos(9), 7) && batch.move_to(&mut lists[2]));
    assert_eq!(lists[2].take().map(|(_, arrival)| arrival), Some(Nanos(9)));
    assert!(!other.add_all(&mut lists[2]) && lists[2].is_empty());
    lists[2].clear_taken();
}
