use super::*;
use tailwater_chain::batch::Batch;

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
    let (mut outlets, inbox) = connect(&progress, (size, held), 8, &missed, true);
    (outlets.remove(0), inbox, missed, of_poller, of_worker)
}

fn deliver(outlet: &mut Outlet, pool: &mut BufferPool, frames: &[&[u8]]) {
    let mut batch = Batch::new(pool, 8);
    for (i, frame) in frames.iter().enumerate() {
        assert!(batch.push(pool, frame, Nanos(i as u64), 7));
    }
    batch.hand_over(
        |_| Some(()),
        |(), packet, arrival| assert!(outlet.deliver(packet, arrival, pool)),
    );
    outlet.flush(pool);
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
    batch.hand_over(
        |_| Some(()),
        |(), packet, arrival| assert!(!outlet.deliver(packet, arrival, &mut of_poller)),
    );
    assert!(outlet.is_over());
    // The first loss was never read.
    assert_eq!(outlet.settle(&mut of_poller), 1);
    assert_eq!(of_poller.available(), 8);
    assert_eq!(of_worker.take_returned().map(|buffer| buffer.index()), None);
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
