use super::*;
use crate::kept_packets::SharedSender;
use crate::shared_port::lists::LISTS;
use tailwater_chain::batch::{Batch, DEFAULT_BATCH};

fn ends(size: usize) -> (Outlet, Inbox, Arc<AtomicU64>, BufferPool, BufferPool) {
    ends_with(size, 8)
}

/// For a worker that holds at most `held` buffers.
fn ends_with(size: usize, held: usize) -> (Outlet, Inbox, Arc<AtomicU64>, BufferPool, BufferPool) {
    let mut pools = BufferPool::sharing(1, 8, 64).unwrap();
    let of_poller = pools.remove(0);
    let of_worker = BufferPool::lent(of_poller.memory().clone(), 8);
    let missed = Arc::<AtomicU64>::default();
    let progress = [Arc::<Progress>::default()];
    let (mut outlets, inbox) = connect(&progress, (size, held), (of_poller.memory(), 8), &missed, (true, true));
    (outlets.remove(0), inbox, missed, of_poller, of_worker)
}

fn deliver(outlet: &mut Outlet, pool: &mut BufferPool, frames: &[&[u8]]) {
    let mut batch = Batch::new(pool, 8);
    for (i, frame) in frames.iter().enumerate() {
        assert!(batch.push(pool, frame, Nanos(i as u64), 7));
    }
    assert!(pass(outlet, &mut batch, pool));
}

/// Passes all packets of a batch on, one by one.
fn pass(outlet: &mut Outlet, batch: &mut Batch, pool: &mut BufferPool) -> bool {
    let places: Vec<u8> = (0..batch.len() as u8).collect();
    let delivered = outlet.deliver(batch, &places, pool);
    batch.remove_moved(places.len());
    assert!(batch.is_empty());
    delivered
}

fn receive(inbox: &mut Inbox, batch: &mut Batch) {
    let packets = inbox.packets();
    batch.receive_timed(packets.map(|(packet, time)| (packet, time.expect("a time"), 7)));
}

#[test]
fn packets_and_buffers_go_round() {
    let (mut outlet, mut inbox, missed, mut of_poller, mut of_worker) = ends(4);
    for _ in 0..20 {
        deliver(&mut outlet, &mut of_poller, &[b"one", b"two"]);
        assert_eq!(inbox.receive(&mut of_worker, 8), 2);
        let mut batch = Batch::new(&of_worker, 8);
        receive(&mut inbox, &mut batch);
        assert_eq!([0, 1].map(|i| batch.packet(i).arrival), [Nanos(0), Nanos(1)]);
        assert_eq!((batch.frame(0), batch.frame(1)), (&b"one"[..], &b"two"[..]));
        batch.release(&mut of_worker);
        inbox.reclaim(&mut of_worker);
        outlet.settle(&mut of_poller);
        assert_eq!(of_poller.available(), 8);
    }
    assert_eq!(missed.load(Ordering::Relaxed), 0);
}

#[test]
fn a_full_ring_loses_and_counts_and_keeps_no_buffer() {
    let (mut outlet, mut inbox, missed, mut of_poller, mut of_worker) = ends(2);
    deliver(&mut outlet, &mut of_poller, &[b"a", b"b", b"c"]);
    outlet.settle(&mut of_poller);
    assert_eq!((missed.load(Ordering::Relaxed), of_poller.available()), (1, 6));
    let mut lost = Vec::new();
    assert_eq!(inbox.discard(&mut |arrival, hash| lost.push((arrival, hash))), 2);
    assert_eq!(lost, [(Nanos(0), 7), (Nanos(1), 7)]);
    drop(inbox);
    // Nobody would take them out again.
    let mut batch = Batch::new(&of_poller, 8);
    assert!(batch.push(&mut of_poller, b"d", Nanos(9), 7));
    assert!(!pass(&mut outlet, &mut batch, &mut of_poller));
    assert!(outlet.is_over());
    // The first loss was never read.
    assert_eq!(outlet.settle(&mut of_poller), 1);
    assert_eq!(of_poller.available(), 8);
    assert_eq!(of_worker.take_returned().map(|buffer| buffer.index()), None);
}

#[test]
fn packets_that_find_the_ring_full_are_kept() {
    let (sender, receiver) = std::sync::mpsc::sync_channel(8);
    let packets: SharedSender = Arc::new(Some(sender).into());
    let (mut outlet, _inbox, missed, mut of_poller, _of_worker) = ends(2);
    outlet.keep_lost(RingKeeper::new(3, &packets));
    deliver(&mut outlet, &mut of_poller, &[b"a", b"b", b"c", b"d"]);
    outlet.settle(&mut of_poller);
    assert_eq!((missed.load(Ordering::Relaxed), of_poller.available()), (2, 6));
    let kept: Vec<_> = receiver.try_iter().collect();
    let found: Vec<_> = kept
        .iter()
        .map(|kept| (kept.arrival, kept.captured(), kept.event))
        .collect();
    assert_eq!(found, [(Nanos(2), &b"c"[..], 1), (Nanos(3), b"d", 2)]);
}

/// Regression: a poller that was not called for a while, and then delivers before it takes buffers back.
#[test]
fn buffers_come_back_though_the_poller_takes_them_late() {
    let (mut outlet, mut inbox, _, mut of_poller, mut of_worker) = ends_with(1, 1);
    let mut batch = Batch::new(&of_worker, 8);
    for packets in [2, 1] {
        // One in the worker's hands, and one in the ring.
        for _ in 0..packets {
            deliver(&mut outlet, &mut of_poller, &[b"a"]);
            assert_eq!(inbox.receive(&mut of_worker, 1), 1);
            receive(&mut inbox, &mut batch);
        }
        batch.release(&mut of_worker);
        inbox.reclaim(&mut of_worker);
    }
    outlet.settle(&mut of_poller);
    assert_eq!(of_poller.available(), 8);
}

/// Packets that are in the ring when the worker ends, and losses that it never read, are counted once.
#[test]
fn what_an_ended_worker_left_comes_back_and_is_counted() {
    let (mut outlet, inbox, missed, mut of_poller, _of_worker) = ends(2);
    deliver(&mut outlet, &mut of_poller, &[b"a", b"b", b"c"]);
    assert_eq!(outlet.settle(&mut of_poller), 0, "the worker counts them");
    drop(inbox);
    assert_eq!(outlet.settle(&mut of_poller), 3);
    assert_eq!(outlet.settle(&mut of_poller), 0);
    assert_eq!((missed.load(Ordering::Relaxed), of_poller.available()), (0, 8));
}

/// Poller and worker of a chain alone on its port, with lists, and packets numbered by their arrival time.
struct Pair {
    outlet: Outlet,
    inbox: Inbox,
    missed: Arc<AtomicU64>,
    pools: [BufferPool; 2],
    batches: [Batch; 2],
    sent: u64,
    seen: Vec<u64>,
}

impl Pair {
    const BUFFERS: u32 = 256;

    fn new(size: usize) -> Pair {
        let of_poller = BufferPool::sharing(1, Pair::BUFFERS, 64).unwrap().remove(0);
        let of_worker = BufferPool::lent(of_poller.memory().clone(), 64);
        let missed = Arc::<AtomicU64>::default();
        let progress = [Arc::<Progress>::default()];
        let of_pollers = (of_poller.memory(), Pair::BUFFERS);
        let (mut outlets, inbox) = connect(&progress, (size, 64), of_pollers, &missed, (true, true));
        Pair {
            outlet: outlets.remove(0),
            inbox,
            missed,
            batches: [&of_poller, &of_worker].map(|pool| Batch::new(pool, DEFAULT_BATCH)),
            pools: [of_poller, of_worker],
            sent: 0,
            seen: Vec::new(),
        }
    }

    /// Sends some packets, whole if that is possible and wanted. Returns `true` if they went as a list.
    fn send(&mut self, count: usize, whole: bool) -> bool {
        let (batch, pool) = (&mut self.batches[0], &mut self.pools[0]);
        for _ in 0..count {
            self.sent += 1;
            assert!(batch.push(pool, b"frame", Nanos(self.sent), 7));
        }
        if whole && self.outlet.deliver_all(batch, pool) {
            assert!(batch.is_empty());
            return true;
        }
        assert!(pass(&mut self.outlet, batch, pool));
        false
    }

    /// Takes packets, at most `most`. Returns their number.
    fn take(&mut self, most: usize, whole: bool) -> usize {
        let (batch, pool) = (&mut self.batches[1], &mut self.pools[1]);
        batch.limit(most);
        let taken = whole.then(|| self.inbox.receive_whole(pool, most, batch)).flatten();
        if taken.is_none() {
            self.inbox.receive(pool, most);
            receive(&mut self.inbox, batch);
        }
        assert!(taken.is_none_or(|taken| taken == batch.len()));
        self.seen.extend(batch.iter().map(|packet| packet.arrival.0));
        let count = batch.len();
        assert!(count <= most);
        batch.release(pool);
        count
    }

    fn settle(&mut self) -> u64 {
        self.outlet.settle(&mut self.pools[0])
    }

    /// Number of lists that are with the poller.
    fn spare(&self) -> usize {
        self.outlet.lists.as_ref().map_or(0, ListProducer::spare)
    }
}

#[test]
fn lists_and_single_packets_keep_their_order_and_lose_nothing() {
    let mut pair = Pair::new(128);
    let (mut state, mut lists, mut wholes) = (1u32, 0, 0);
    let mut random = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % below
    };
    for _ in 0..20_000 {
        match random(3) {
            0 => {
                let (count, whole) = (random(9) as usize, random(2) == 0);
                // Below the bound, at which packets would be lost.
                if pair.sent as usize - pair.seen.len() + count <= 100 && count > 0 {
                    lists += u32::from(pair.send(count, whole));
                }
            }
            1 => {
                let whole = random(2) == 0;
                let before = pair.spare();
                pair.take(1 + random(8) as usize, whole);
                pair.settle();
                wholes += u32::from(whole && pair.spare() > before);
            }
            _ => assert_eq!(pair.settle(), 0),
        }
    }
    while pair.inbox.has_more() {
        pair.take(8, false);
    }
    pair.inbox.reclaim(&mut pair.pools[1]);
    pair.settle();
    assert!(pair.seen.iter().copied().eq(1..=pair.sent), "{:?}", pair.seen);
    assert_eq!((pair.spare(), pair.pools[0].available()), (LISTS, 256));
    assert_eq!(pair.missed.load(Ordering::Relaxed), 0);
    assert!(lists > 100 && wholes > 100, "{lists} lists, {wholes} taken whole");
}

#[test]
fn lists_count_in_the_bound_of_the_ring() {
    let mut pair = Pair::new(16);
    assert!(pair.send(8, true) && pair.send(6, true));
    // The ring has room for two more.
    assert!(!pair.send(3, true));
    assert_eq!(pair.settle(), 0);
    assert_eq!(pair.missed.load(Ordering::Relaxed), 1);
    while pair.take(32, true) > 0 {}
    assert_eq!(pair.seen, (1..=16).collect::<Vec<_>>());
    pair.settle();
    assert!(pair.send(16, true));
}

#[test]
fn what_a_worker_that_ends_left_of_its_lists_is_counted() {
    let mut pair = Pair::new(64);
    assert!(pair.send(8, true) && pair.send(5, true));
    pair.send(3, false);
    // Three packets of the first list, taken singly.
    assert_eq!(pair.take(3, true), 3);
    pair.inbox.reclaim(&mut pair.pools[1]);
    let of_pollers = (pair.pools[0].memory(), 1);
    let of_nobody = connect(&[], (16, 64), of_pollers, &Arc::default(), (true, true)).1;
    drop(std::mem::replace(&mut pair.inbox, of_nobody));
    assert_eq!(pair.settle(), 13);
    assert_eq!((pair.spare(), pair.pools[0].available()), (LISTS, 256));
}

#[test]
fn packets_in_lists_are_discarded_and_told() {
    let mut pair = Pair::new(64);
    pair.send(2, false);
    assert!(pair.send(8, true));
    pair.send(1, false);
    assert_eq!(pair.take(4, false), 2);
    assert_eq!(pair.take(3, false), 3);
    let mut lost = Vec::new();
    assert_eq!(pair.inbox.discard(&mut |arrival, _| lost.push(arrival.0)), 6);
    assert_eq!(lost, (6..=11).collect::<Vec<_>>());
    pair.settle();
    assert_eq!(pair.spare(), LISTS);
}

/// Lists that fit together, and the buffers of packets that were taken before, which they bring along.
#[test]
fn a_worker_takes_several_lists_at_a_time() {
    let mut pair = Pair::new(64);
    for _ in 0..20 {
        assert!(pair.send(3, true) && pair.send(4, true) && pair.send(5, true));
        assert_eq!([10, 10, 10].map(|most| pair.take(most, true)), [7, 5, 0]);
        assert_eq!(pair.settle(), 0);
        // Those of the last batch went by the ring: no list came after it.
        assert_eq!((pair.spare(), pair.pools[0].available()), (LISTS, 256));
    }
    assert!(pair.seen.iter().copied().eq(1..=pair.sent), "{:?}", pair.seen);
}

/// A list is full, and the next one begins; without lists, packets go singly.
#[test]
fn batches_longer_than_a_list_keep_their_order() {
    let mut pair = Pair::new(512);
    pair.batches[0] = Batch::new(&pair.pools[0], MAX_BATCH);
    assert!(!pair.send(2 * DEFAULT_BATCH + 3, true));
    assert_eq!(pair.spare(), LISTS - 3);
    for _ in 0..LISTS {
        pair.send(1, false);
    }
    assert_eq!(pair.spare(), 0);
    while pair.inbox.has_more() {
        pair.take(DEFAULT_BATCH, true);
    }
    pair.inbox.reclaim(&mut pair.pools[1]);
    assert_eq!(pair.settle(), 0);
    assert!(pair.seen.iter().copied().eq(1..=pair.sent), "{:?}", pair.seen);
    assert_eq!((pair.spare(), pair.pools[0].available()), (LISTS, 256));
}

/// Regression: the flows of one poller had no packet for seconds.
#[test]
fn single_packets_do_not_wait_for_as_long_as_another_poller_sends_lists() {
    let mut pools = BufferPool::sharing(1, 512, 64).unwrap();
    let mut of_poller = pools.remove(0);
    let mut of_worker = BufferPool::lent(of_poller.memory().clone(), 64);
    let progress = [(); 2].map(|()| Arc::<Progress>::default());
    let of_pollers = (of_poller.memory(), 256);
    let (mut outlets, mut inbox) = connect(&progress, (128, 64), of_pollers, &Arc::default(), (true, true));
    // Behind its lists, two single packets.
    for _ in 0..=LISTS {
        deliver(&mut outlets[1], &mut of_poller, &[b"a", b"b"]);
    }
    let (mut batch, mut of_first) = (Batch::new(&of_worker, DEFAULT_BATCH), Batch::new(&of_poller, 8));
    let mut singles = 0;
    for _ in 0..16 {
        assert!(of_first.push(&mut of_poller, b"c", Nanos(9), 7));
        assert!(outlets[0].deliver_all(&mut of_first, &mut of_poller));
        if inbox.receive_whole(&mut of_worker, 4, &mut batch).is_none() {
            inbox.receive(&mut of_worker, 4);
            receive(&mut inbox, &mut batch);
            singles += batch.iter().filter(|packet| packet.arrival < Nanos(9)).count();
        }
        batch.release(&mut of_worker);
        outlets[0].settle(&mut of_poller);
    }
    assert_eq!(singles, 2, "packets in time");
}
