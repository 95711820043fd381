use super::ticks::{BOUND, ClockView, Learner};
use super::*;
use crate::port::round_robin;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Mutex;
use tailwater_chain::buffer::{BufferMemory, HEADROOM};
use tailwater_chain::region::Region;
use tailwater_net::toeplitz::BUCKETS;

const BYTES: usize = 256;
const BUFFERS: u32 = 4096;
const DEVICE_RING: usize = 64;
const RING: usize = 1024;

/// Numbers, hashes and timestamps of packets.
type FakeRing = VecDeque<(u32, Option<u32>, Option<u64>)>;

/// Fake device with queues in memory, and its buffers.
#[derive(Debug)]
struct Fake {
    memory: BufferMemory,
    free: Mutex<Vec<u32>>,
    queues: Vec<Mutex<FakeRing>>,
    sent: Mutex<Vec<u32>>,
}

impl Fake {
    fn new(queues: usize) -> Arc<Fake> {
        let region = Region::zeroed(BYTES * BUFFERS as usize).unwrap();
        let base = region.base();
        // SAFETY: the region has that many bytes, and no other user.
        let memory = unsafe { BufferMemory::lent(base, BUFFERS, [BYTES; 2], Arc::new(region)) };
        Arc::new(Fake {
            memory: memory.unwrap(),
            free: Mutex::new((0..BUFFERS).collect()),
            queues: (0..queues).map(|_| Mutex::default()).collect(),
            sent: Mutex::default(),
        })
    }

    fn part(&self) -> BufferPool {
        BufferPool::lent(self.memory.clone(), BUFFERS as usize)
    }

    /// Lets a packet arrive, with its number in front. Returns `true` if there was room.
    fn give(&self, queue: usize, number: u32, hash: Option<u32>) -> bool {
        self.give_at(queue, number, hash, None)
    }

    /// The same, with a timestamp of the device's clock.
    fn give_at(&self, queue: usize, number: u32, hash: Option<u32>, ticks: Option<u64>) -> bool {
        let mut queue = self.queues[queue].lock().unwrap();
        let room = queue.len() < DEVICE_RING;
        if room {
            queue.push_back((number, hash, ticks));
        }
        room
    }
}

/// Queue of the device, its last packets with their timestamps, and the clock of a device with timestamps.
#[derive(Debug)]
struct FakeQueue(Arc<Fake>, usize, Vec<Arrived>, Vec<Option<u64>>, Option<ClockView>);

impl Receiver for FakeQueue {
    fn receive(&mut self, pool: &mut BufferPool, most: usize) -> usize {
        let mut free = self.0.free.lock().unwrap();
        free.extend(pool.returned());
        self.3.clear();
        let mut count = 0;
        while count < most
            && let Some((number, hash, ticks)) = self.0.queues[self.1].lock().unwrap().pop_front()
        {
            let index = free.pop().unwrap();
            // SAFETY: buffers in the free list have no other handle.
            let mut buffer = unsafe { pool.claim(index) };
            let bytes = self.0.memory.bytes_mut(&mut buffer);
            bytes[HEADROOM..HEADROOM + 4].copy_from_slice(&number.to_le_bytes());
            let packet = Arrived {
                buffer,
                start: HEADROOM as u16,
                length: 60,
                hash,
                entry: 0,
            };
            self.2.push(packet);
            self.3.push(ticks);
            count += 1;
        }
        count
    }

    fn packets(&mut self) -> impl ExactSizeIterator<Item = (Arrived, Option<Nanos>)> {
        self.2.drain(..).map(|packet| (packet, None))
    }

    fn arrivals(&mut self, between: [Nanos; 2], into: &mut Vec<Nanos>) -> bool {
        let clock = self.4.as_mut();
        clock.is_some_and(|clock| clock.arrivals(&self.3, between, into))
    }

    fn ring(&self) -> usize {
        DEVICE_RING
    }
}

impl Sender for FakeQueue {
    fn transmit(&mut self, batch: &mut Batch) -> usize {
        let number = |i| u32::from_le_bytes(*batch.frame(i).first_chunk().unwrap());
        let mut sent = self.0.sent.lock().unwrap();
        sent.extend((0..batch.len()).map(number));
        let mut free = self.0.free.lock().unwrap();
        free.extend(batch.take_buffers().map(|(buffer, ..)| buffer.index()));
        0
    }
}

/// Worker: its queue, and its part of [`Buckets`](crate::scaling::buckets)'s work.
struct Worker {
    queue: DeviceQueue<FakeQueue, FakeQueue>,
    pool: BufferPool,
    batch: Batch,
    held: Vec<bool>,
    kept_back: Vec<u32>,
}

struct Rig {
    fake: Arc<Fake>,
    steering: Steering,
    clock: Clock,
    workers: Vec<Worker>,
    reta: Reta,
    /// Migrating buckets: bucket, from, to, since.
    moving: Vec<(u16, u16, u16, Nanos)>,
    processed: Vec<u32>,
    offered: u64,
    lost: u64,
}

/// Number of flows, one bucket each.
const FLOWS: u32 = 16;

impl Rig {
    fn new(workers: u16, device_queues: usize) -> Rig {
        Rig::stamped(workers, device_queues, &|_| None)
    }

    /// With a device that timestamps packets, on a clock that `learn` provides.
    fn stamped(workers: u16, device_queues: usize, learn: &dyn Fn(&Clock) -> Option<Learner>) -> Rig {
        let fake = Fake::new(device_queues);
        let (clock, reta) = (Clock::start(), round_robin(workers));
        let (rss, learner) = (RssHasher::default(), learn(&clock));
        let steering = Steering::new(rss, (workers, RING), &reta, Nanos(1), clock.clone()).unwrap();
        let devices = (0..usize::from(workers)).map(|worker| {
            let view = || learner.as_ref().map(Learner::view);
            let queue = |queue| FakeQueue(fake.clone(), queue, Vec::new(), Vec::new(), view());
            let receivers = (worker < device_queues).then(|| queue(worker));
            (receivers.into_iter().collect(), queue(0))
        });
        let queues = steering.queues(devices.collect(), Nanos::ZERO, Nanos::MAX);
        let workers = queues.into_iter().enumerate().map(|(worker, queue)| {
            let pool = fake.part();
            Worker {
                queue,
                batch: Batch::new(&pool, 32),
                pool,
                held: reta.iter().map(|&owner| usize::from(owner) == worker).collect(),
                kept_back: Vec::new(),
            }
        });
        Rig {
            workers: workers.collect(),
            fake: Arc::clone(&fake),
            steering,
            clock,
            reta,
            moving: Vec::new(),
            processed: Vec::new(),
            offered: 0,
            lost: 0,
        }
    }

    /// Runs one turn of a worker. Returns `true` if it has ended.
    fn turn(&mut self, number: usize) -> bool {
        let worker = &mut self.workers[number];
        let now = self.clock.now();
        let received = worker.queue.receive(now, &mut worker.pool, &mut worker.batch);
        self.offered += received.offered;
        self.lost += received.lost_ring_full;
        for i in 0..worker.batch.len() {
            let packet = u32::from_le_bytes(*worker.batch.frame(i).first_chunk().unwrap());
            assert!(worker.batch.packet(i).arrival <= now);
            match worker.held[usize::from(bucket_of(worker.batch.packet(i).rss_hash))] {
                true => self.processed.push(packet),
                false => worker.kept_back.push(packet),
            }
        }
        worker.queue.transmit(&mut worker.batch);
        worker.batch.release(&mut worker.pool);
        let before = worker.queue.received_before();
        let leaves = |moving: &&mut (u16, u16, u16, Nanos)| usize::from(moving.1) == number && before >= moving.3;
        let gone: Vec<_> = self.moving.iter_mut().filter(leaves).map(|m| *m).collect();
        self.moving.retain(|moving| !gone.contains(moving));
        for (bucket, from, to, _) in gone {
            self.workers[usize::from(from)].held[usize::from(bucket)] = false;
            let to = &mut self.workers[usize::from(to)];
            to.held[usize::from(bucket)] = true;
            let arrived = to.kept_back.extract_if(.., |packet| (*packet % FLOWS) as u16 == bucket);
            self.processed.extend(arrived);
        }
        received.ended && received.waiting == 0
    }

    /// Moves some buckets, once no other is in migration. The device's own table changes at once.
    fn remap(&mut self, reta: Reta) {
        if self.moving.is_empty() {
            let effective = self.steering.set_reta(&reta).unwrap();
            for (bucket, (&from, &to)) in self.reta.iter().zip(&reta).enumerate() {
                if from != to {
                    self.moving.push((bucket as u16, from, to, effective));
                }
            }
            self.reta = reta;
        }
    }

    /// Ends the run: every packet is accounted for, and each flow's are in order.
    fn finish(mut self, given: u32) {
        self.workers.iter_mut().for_each(|worker| worker.queue.stop());
        let mut turns = 0;
        let mut through = vec![false; self.workers.len()];
        while through.contains(&false) || !self.moving.is_empty() {
            for (worker, through) in through.iter_mut().enumerate() {
                *through = self.turn(worker);
            }
            turns += 1;
            assert!(turns < 10_000, "the run does not end");
        }
        assert_eq!(self.offered, u64::from(given));
        assert_eq!(self.processed.len() as u64 + self.lost, u64::from(given));
        let mut last = [None; FLOWS as usize];
        for packet in &self.processed {
            let last = &mut last[(*packet % FLOWS) as usize];
            assert!(*last < Some(*packet), "{packet} after {last:?}");
            *last = Some(*packet);
        }
        for worker in &mut self.workers {
            self.fake.free.lock().unwrap().extend(worker.pool.returned());
            assert_eq!(worker.pool.available(), BUFFERS as usize);
        }
        assert_eq!(self.fake.free.lock().unwrap().len(), BUFFERS as usize);
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A number of packets arrive, of flows from this one on.
    Arrive(u32, u32),
    /// A worker takes a turn.
    Turn(usize),
    /// Every flow's bucket moves to the given worker.
    Remap(Vec<u16>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..FLOWS, 1..100u32).prop_map(|(flow, packets)| Step::Arrive(flow, packets)),
        6 => (0..3usize).prop_map(Step::Turn),
        1 => prop::collection::vec(0..3u16, FLOWS as usize).prop_map(Step::Remap),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    /// In any order of turns and moves, and whether or not the device uses the same table, packets are lost only for
    /// lack of room, and none overtakes another of its flow.
    #[test]
    fn packets_keep_their_order_whatever_moves(
        steps in steps(), workers in 1..4u16, device_queues in 1..4usize, follows: bool,
        stamps: bool,
    ) {
        let device_queues = device_queues.min(usize::from(workers));
        // Only a device with one queue per worker can use the same table.
        let follows = follows && device_queues == usize::from(workers);
        let known = |clock: &Clock| stamps.then(|| known(clock));
        let mut rig = Rig::stamped(workers, device_queues, &known);
        let (mut numbers, mut given) = (0, 0);
        for step in steps {
            match step {
                Step::Arrive(flow, packets) => for i in 0..packets {
                    // The number determines the flow, which is its bucket.
                    let flow = (flow + i % 3) % FLOWS;
                    let number = numbers * FLOWS + flow;
                    let queue = match follows {
                        true => usize::from(rig.reta[flow as usize]),
                        false => flow as usize % device_queues,
                    };
                    // Right or wrong timestamps, in any order.
                    let ticks = (!number.is_multiple_of(5)).then(|| {
                        ticks_at(rig.clock.now()) + u64::from(number % 7 * 1_000_000)
                            - u64::from(number % 3 * 1_000_000)
                    });
                    given += u32::from(rig.fake.give_at(queue, number, Some(flow), ticks));
                    numbers += 1;
                },
                Step::Turn(worker) => {
                    rig.turn(worker % usize::from(workers));
                }
                Step::Remap(owners) => {
                    let mut reta = rig.reta;
                    for (bucket, owner) in owners.into_iter().enumerate() {
                        reta[bucket] = owner % workers;
                    }
                    rig.remap(reta);
                }
            }
        }
        rig.finish(given);
    }
}

#[test]
fn what_finds_a_full_ring_is_lost_and_counted() {
    let mut rig = Rig::new(2, 1);
    for number in 0..2000 {
        // All are for worker 1, which takes none.
        assert!(rig.fake.give(0, number * FLOWS + 1, Some(1)));
        rig.turn(0);
    }
    assert_eq!(rig.lost, 2000 - RING as u64);
    rig.finish(2000);
}

#[test]
fn the_hash_is_the_devices_or_that_of_the_trace_nic() {
    // The device's own hash takes precedence.
    let mut rig = Rig::new(1, 1);
    assert!(rig.fake.give(0, 0, Some(7)) && rig.fake.give(0, 1, None));
    let worker = &mut rig.workers[0];
    let (pool, batch) = (&mut worker.pool, &mut worker.batch);
    worker.queue.receive(Nanos(1), pool, batch);
    assert_eq!([0, 1].map(|i| batch.packet(i).rss_hash), [7, 0]);
}

/// Frames of real packets, unlike those of [`Fake`], each with the device's hash or without one.
struct Frames(Vec<(Vec<u8>, Option<u32>)>, Vec<Arrived>);

impl Receiver for Frames {
    fn receive(&mut self, pool: &mut BufferPool, most: usize) -> usize {
        let count = most.min(self.0.len());
        for (frame, hash) in self.0.drain(..count) {
            let mut buffer = pool.take_many(1).next().unwrap();
            let room = &mut pool.memory().bytes_mut(&mut buffer)[HEADROOM..];
            room[..frame.len()].copy_from_slice(&frame);
            self.1.push(Arrived {
                buffer,
                start: HEADROOM as u16,
                length: frame.len() as u16,
                hash,
                entry: 0,
            });
        }
        count
    }

    fn packets(&mut self) -> impl ExactSizeIterator<Item = (Arrived, Option<Nanos>)> {
        self.1.drain(..).map(|packet| (packet, None))
    }

    fn ring(&self) -> usize {
        DEVICE_RING
    }
}

/// Hashes of two packets that the first of `workers` workers receives, and `true` if some have none. The device reports
/// the hash 0x200 for the first.
fn hashes(workers: u16, left_out: bool) -> (Vec<u32>, bool) {
    let (clock, mut pool) = (Clock::start(), BufferPool::new(8, BYTES).unwrap());
    let steering = Steering::new(RssHasher::default(), (workers, RING), &[0; BUCKETS], Nanos(1), clock).unwrap();
    let frames = [Some(0x200), None].map(|hash| (tailwater_chain::rig::udp(1000), hash));
    let mut frames = Some(Frames(frames.into(), Vec::new()));
    let fake = Fake::new(1);
    let devices = (0..workers).map(|_| {
        let sender = FakeQueue(fake.clone(), 0, Vec::new(), Vec::new(), None);
        (frames.take().into_iter().collect(), sender)
    });
    let mut queue = steering.queues(devices.collect(), Nanos::ZERO, Nanos::MAX).remove(0);
    if left_out {
        queue.leave_out_hashes();
    }
    let mut batch = Batch::new(&pool, 8);
    let received = queue.receive(Nanos(1), &mut pool, &mut batch);
    let hashes = batch.iter().map(|packet| packet.rss_hash).collect();
    batch.release(&mut pool);
    (hashes, received.unhashed)
}

#[test]
fn hashes_are_left_out_only_where_no_worker_needs_them() {
    let frame = tailwater_chain::rig::udp(1000);
    let computed = vec![0x200, RssHasher::default().hash_frame(&frame)];
    assert_ne!(computed[1], 0);
    assert_eq!(hashes(1, false), (computed.clone(), false));
    assert_eq!(hashes(1, true), (vec![0x200, 0], true));
    // The first worker forwards to the second by bucket.
    assert_eq!(hashes(2, true), (computed, false));
}

#[test]
fn arrivals_are_when_the_device_was_last_empty() {
    let mut rig = Rig::new(1, 1);
    let worker = &mut rig.workers[0];
    let mut receive = |now: u64| {
        let received = worker.queue.receive(Nanos(now), &mut worker.pool, &mut worker.batch);
        let arrival = worker.batch.first().map(|packet| packet.arrival.0);
        let before = worker.queue.received_before();
        worker.queue.transmit(&mut worker.batch);
        worker.batch.release(&mut worker.pool);
        (received.waiting > 0, arrival, before.0)
    };
    assert_eq!(receive(100), (false, None, 100));
    // Full bursts do not prove that the ring is empty, but a ring full of them does.
    let arrive = |packets| assert!((0..packets).all(|i| rig.fake.give(0, i, Some(0))));
    arrive(64);
    assert_eq!(receive(200), (true, Some(100), 100));
    arrive(32);
    assert_eq!(receive(300), (true, Some(100), 200));
    assert_eq!(receive(400), (true, Some(200), 200));
    arrive(10);
    assert_eq!(receive(500), (false, Some(200), 400));
    assert_eq!(receive(600), (false, None, 600));
    rig.steering.add_missed(3);
    let worker = &mut rig.workers[0];
    let received = worker.queue.receive(Nanos(700), &mut worker.pool, &mut worker.batch);
    assert_eq!((received.offered, received.lost_ring_full), (3, 3));
    assert!(!received.ended);
    rig.steering.end();
    let received = worker.queue.receive(Nanos(800), &mut worker.pool, &mut worker.batch);
    assert!(received.ended);
}

/// Ticks of the device's clock: one every two nanoseconds, with an offset.
fn ticks_at(time: Nanos) -> u64 {
    time.0 / 2 + 1_000_000_000
}

/// Learner with an estimate of that clock.
fn known(clock: &Clock) -> Learner {
    Learner::taught(clock.clone(), ticks_at)
}

#[test]
fn arrivals_are_when_the_device_says() {
    // With two workers one of them sorts for both.
    for workers in [1, 2] {
        let mut rig = Rig::stamped(workers, 1, &|clock| Some(known(clock)));
        let (clock, fake) = (rig.clock.clone(), Arc::clone(&rig.fake));
        let turn = |rig: &mut Rig, worker: usize, now: Nanos| {
            let Worker { queue, pool, batch, .. } = &mut rig.workers[worker];
            queue.receive(now, pool, batch);
            let number = |i| u32::from_le_bytes(*batch.frame(i).first_chunk().unwrap());
            let seen: Vec<(u32, Nanos)> = (0..batch.len()).map(|i| (number(i), batch.packet(i).arrival)).collect();
            queue.transmit(batch);
            batch.release(pool);
            seen
        };
        // Empty at this time. Later packets are received even later.
        let empty = clock.now();
        assert_eq!(turn(&mut rig, 0, empty), []);
        let [came, now] = [1_000_000, 2_000_000].map(|later| empty + Nanos(later));
        let stamps = [
            Some(ticks_at(came)),
            None,
            // Before the queue was empty, and after now.
            Some(ticks_at(empty) - 400_000),
            Some(ticks_at(now) + 400_000),
        ];
        // For each worker in turn, if there are two.
        for (number, ticks) in (0..).zip(stamps) {
            for bucket in 0..u32::from(workers) {
                assert!(fake.give_at(0, 10 * bucket + number, Some(bucket), ticks));
            }
        }
        for worker in 0..usize::from(workers) {
            let mut seen = turn(&mut rig, worker, now);
            if worker > 0 {
                // Forwarded packets may be taken after the receiving worker has polled once more.
                seen = turn(&mut rig, worker, now);
            }
            let numbers: Vec<u32> = seen.iter().map(|(number, _)| number % 10).collect();
            assert_eq!(numbers, [0, 1, 2, 3], "worker {worker} of {workers}");
            let off = seen[0].1.0.abs_diff(came.0);
            assert!(off <= BOUND.0 + 2, "off by {off}");
            assert_eq!(seen[1].1, empty);
            // No arrival is earlier than one before it.
            assert!(seen[2].1 >= seen[0].1 && seen[2].1 <= now);
            assert_eq!(seen[3].1, now);
        }
    }
}

#[test]
fn a_device_whose_clock_is_not_known_has_times_of_software() {
    let mut rig = Rig::stamped(1, 1, &|clock| Some(Learner::new(clock.clone())));
    let Worker { queue, pool, batch, .. } = &mut rig.workers[0];
    queue.receive(Nanos(100), pool, batch);
    assert!(rig.fake.give_at(0, 0, Some(0), Some(150)));
    queue.receive(Nanos(200), pool, batch);
    assert_eq!(batch.packet(0).arrival, Nanos(100));
}
