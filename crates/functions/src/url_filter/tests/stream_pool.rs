//! Tests of the buffer pool shared by all instances.

use super::super::reassembly::Pool;
use super::*;
use crate::stream_pool::{Lease, SILENT, StreamPool, StreamPoolCache};
use std::sync::mpsc::sync_channel;
use tailwater_chain::shared_counters::SharedCounters;

const SIZE: usize = 1024;
const NOW: Nanos = Nanos::from_secs(100);

fn stock(count: usize) -> Arc<StreamPool> {
    Arc::new(super::super::reassembly::pool(count, SIZE).unwrap())
}

fn pool(stock: &Arc<StreamPool>) -> Pool {
    Pool::new(Arc::clone(stock))
}

/// Takes a buffer and closes it.
fn take(pool: &mut Pool, now: Nanos) -> Option<Lease> {
    let lease = pool.take(now, 0, 0);
    pool.close(now);
    lease
}

fn give(pool: &mut Pool, lease: Lease) -> bool {
    let held = pool.open(lease, 0);
    pool.release();
    held
}

#[test]
fn one_instance_gives_back_what_another_took() {
    for count in [1, 7, 500, 4096] {
        let stock = stock(count);
        let (mut first, mut second) = (pool(&stock), pool(&stock));
        let leases: Vec<_> = (0..count).map_while(|_| take(&mut first, NOW)).collect();
        assert_eq!(leases.len(), count);
        let mut places: Vec<u32> = leases.iter().map(|lease| lease.slot).collect();
        places.sort_unstable();
        assert!(places.iter().copied().eq(1..=count as u32));
        // The limit applies to all instances together.
        assert_eq!(take(&mut second, NOW), None);
        assert_eq!(stock.free(), 0);
        assert!(leases.iter().all(|lease| give(&mut second, *lease)));
        assert!(leases.iter().all(|lease| !first.open(*lease, 0)), "twice");
        // Instances cache few buffers, and none of a small pool.
        assert!(stock.free() >= count - count / 128);
        drop((first, second));
        assert_eq!(stock.free(), count);
    }
}

#[test]
fn an_instance_that_ends_gives_back_what_is_free_with_it() {
    let stock = stock(4096);
    let mut instances: Vec<Pool> = (0..8).map(|_| pool(&stock)).collect();
    for instance in &mut instances {
        let lease = take(instance, NOW).unwrap();
        assert!(give(instance, lease));
    }
    assert!(stock.free() < 4096, "blocks are with the instances");
    let mut open = instances.pop().unwrap();
    assert!(open.take(NOW, 0, 0).is_some());
    drop((instances, open));
    assert_eq!(stock.free(), 4096);
}

#[test]
fn silent_streams_lose_their_buffers_to_other_instances() {
    let stock = stock(3);
    let (mut first, mut second) = (pool(&stock), pool(&stock));
    let leases = [0, 1, 2].map(|_| take(&mut first, NOW).unwrap());
    // Two streams stay active, one at a later time, as another worker's clock may be.
    let later = Nanos(NOW.0 + SILENT.0 - 10_000_000);
    for (lease, at) in [(leases[0], later), (leases[2], later + Nanos::from_secs(5))] {
        assert!(first.open(lease, 0));
        first.close(at);
    }
    assert_eq!(take(&mut second, later), None, "not quite silent enough");
    let later = NOW + SILENT + Nanos::from_millis(2);
    let taken = take(&mut second, later).unwrap();
    assert_eq!(taken.slot, leases[1].slot);
    assert!(!first.open(leases[1], 0), "it is another stream's");
    assert!(give(&mut first, leases[0]) && give(&mut first, leases[2]));
    assert!(give(&mut first, taken));
    drop((first, second));
    assert_eq!(stock.free(), 3);
}

/// Leases that outlive a replaced process are not valid in the next process's pool.
#[test]
fn leases_of_another_stock_open_nothing() {
    let (before, after) = (stock(500), stock(500));
    let (mut first, mut second) = (pool(&before), pool(&after));
    for _ in 0..500 {
        let (old, new) = (take(&mut first, NOW).unwrap(), take(&mut second, NOW).unwrap());
        assert_eq!((old.slot, old.generation), (new.slot, new.generation));
        assert!(!second.open(old, 0), "another flow's text");
        assert!(second.open(new, 0));
        second.close(NOW);
    }
}

/// A stream's buffered bytes are available to the next instance, and to no other stream.
#[test]
fn threads_hand_streams_to_each_other() {
    const WORKERS: usize = 4;
    const ROUNDS: u32 = 20_000;
    for count in [3, 300] {
        let stock = stock(count);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..WORKERS).map(|_| sync_channel(64)).unzip();
        std::thread::scope(|scope| {
            for (i, receiver) in receivers.into_iter().enumerate() {
                let (next, stock) = (senders[(i + 1) % WORKERS].clone(), &stock);
                scope.spawn(move || {
                    let mut pool = pool(stock);
                    let finish = |pool: &mut Pool, (lease, mark): (Lease, u32)| {
                        assert!(pool.open(lease, 0));
                        assert_eq!(pool.first().unwrap().0, mark.to_be_bytes());
                        assert_eq!(pool.text().target[..4], mark.to_be_bytes());
                        pool.release();
                    };
                    for round in 0..ROUNDS {
                        let mark = round * WORKERS as u32 + i as u32;
                        if let Some(lease) = pool.take(NOW, 0, 0) {
                            pool.insert(7, 8, &mark.to_be_bytes()).unwrap();
                            pool.text().target[..4].copy_from_slice(&mark.to_be_bytes());
                            pool.close(NOW);
                            if let Err(full) = next.try_send((lease, mark)) {
                                let (std::sync::mpsc::TrySendError::Full(own)
                                | std::sync::mpsc::TrySendError::Disconnected(own)) = full;
                                finish(&mut pool, own);
                            }
                        }
                        while let Ok(other) = receiver.try_recv() {
                            finish(&mut pool, other);
                        }
                    }
                    drop(next);
                    receiver.iter().for_each(|other| finish(&mut pool, other));
                });
            }
            drop(senders);
        });
        assert_eq!(stock.free(), count);
    }
}

/// Words of smaller rings would be unaligned.
#[test]
#[should_panic(expected = "a ring of 32 bytes")]
fn small_rings_are_refused() {
    let _ = super::super::reassembly::pool(1, 32);
}

#[test]
fn too_much_memory_is_an_error() {
    let error = FilterTable::new(
        &[],
        FilterConfig {
            streams: 1 << 20,
            ..config()
        },
    );
    assert!(matches!(error, Err(TableError::Buffers { streams, .. }) if streams == 1 << 20));
}

/// The successor of a process that was killed while it had a buffer open frees it; other processes' buffers stay.
#[test]
fn the_buffer_of_a_killed_process_is_free_again() {
    const COUNT: usize = 8;
    let shape = (COUNT, SIZE);
    let file = tailwater_chain::rig::unlinked_file(StreamPool::shared_bytes(shape, 2));
    let counters = || SharedCounters::in_file(&file).unwrap();
    StreamPool::fill_shared(shape, 2, &counters()).unwrap();
    let process = |part| {
        let pool = StreamPool::sharing(shape, [part, 2], &counters()).unwrap();
        StreamPoolCache::new(Arc::new(pool))
    };
    let (mut first, mut second) = (process(0), process(1));
    let kept = first.take(NOW).unwrap();
    first.bytes_mut().unwrap().fill(7);
    first.close(NOW);
    let other = second.take(NOW).unwrap();
    let lost = first.take(NOW).unwrap();
    // Killed: nothing is dropped.
    std::mem::forget(first);
    let mut successor = process(0);
    assert_eq!(successor.pool().free(), COUNT - 3);
    successor.pool().recover();
    assert_eq!(successor.pool().free(), COUNT - 2);
    assert!(!successor.open(lost));
    // Streams continue, also in another process.
    assert!(successor.open(kept) && successor.bytes().unwrap().iter().all(|byte| *byte == 7));
    successor.release();
    assert!(!successor.open(other), "open in another process");
    second.close(NOW);
    assert!(successor.open(other));
    successor.release();
    drop((second, successor));
    assert_eq!(process(1).pool().free(), COUNT);
}
