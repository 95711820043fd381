//! Server mapper's thread: reads the load of all dedicated workers once per period, and moves buckets.
//!
//! It is an ordinary thread on no dedicated core. Its decisions reach the workers through the NIC's bucket table and a
//! ring of orders to each (see [`buckets`](super::buckets)).

use super::buckets::{BucketLinks, Buckets, Moves, ReleaseOrder};
use super::load::{Account, Durations, FLOW, LoadCounters};
use super::spans::BufferedSpans;
use crate::clock::Clock;
use crate::late::LateCounters;
use crate::port::{Port, Reta};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tailwater_chain::buffer::BufferPool;
use tailwater_handover::ring::{Producer, ring};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_policy::server::{BucketLoad, CoreLoad, Move, ServerMapper, ServerView};
use tailwater_state::link::Health;

/// Configuration of bucket migration between a run's dedicated cores.
#[derive(Clone)]
pub struct ServerConfig {
    /// Creates the server mapper. It decides once its period is over and all buckets that it moved before have arrived.
    pub mapper: Arc<dyn Fn() -> Box<dyn ServerMapper> + Send + Sync>,
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig").finish_non_exhaustive()
    }
}

/// Buffers of a worker that may have to buffer packets during migration.
pub(crate) const BUFFERS: u32 = 4096;

/// Maximum interval at which workers publish flow counts.
pub(crate) const LONGEST_EPOCH: Nanos = Nanos::from_millis(1);

/// Buckets that fit into the ring from one worker to another. More take several turns.
const IN_A_RING: usize = 64;

/// Interval at which the thread checks if buckets have arrived.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Maximum sleep time of a worker without buckets. It is limited to a quarter of the time a new bucket table takes, so
/// the worker is awake when its first packet arrives. Below `SHORTEST_REST` it does not sleep at all.
const LONGEST_REST: Nanos = Nanos::from_micros(500);
const SHORTEST_REST: Nanos = Nanos::from_micros(50);

/// Counters of a core at the previous decision.
#[derive(Debug, Default)]
struct Before {
    lost: u64,
    received: u64,
    busy: u64,
    durations: Durations,
}

/// Server mapper, ready to run on the thread that it is moved to.
pub(crate) struct Server {
    mapper: Box<dyn ServerMapper>,
    clock: Clock,
    epoch: Nanos,
    /// Latest bucket table.
    reta: Reta,
    moves: Arc<Moves>,
    orders: Vec<Producer<ReleaseOrder>>,
    boards: Vec<Arc<LoadCounters>>,
    before: Vec<Before>,
    /// Packets and flows published before, by bucket, summed over all workers.
    counted: Box<[[u64; 2]; BUCKETS]>,
    buckets: Vec<BucketLoad>,
    cores: Vec<CoreLoad>,
    plan: Vec<Move>,
    /// Late packets of all workers.
    late: LateCounters,
    /// Health of the store for external flow state. While it is unavailable no bucket moves.
    store: Option<Arc<Health>>,
}

/// Connects the workers that own the `pools` with each other and with a server mapper. Initially they own the buckets
/// that `reta` assigns to them. Loads are averages over epochs. A new bucket table takes effect after `reta_delay`.
pub(crate) fn connect(
    config: &ServerConfig,
    reta: &Reta,
    pools: &[BufferPool],
    [epoch, reta_delay]: [Nanos; 2],
    clock: Clock,
    late: LateCounters,
) -> (Server, Vec<Buckets>) {
    let (moves, kept) = (Arc::new(Moves::default()), Arc::new(BufferedSpans::default()));
    let rest = Nanos(reta_delay.0 / 4).min(LONGEST_REST);
    let rest = (rest >= SHORTEST_REST).then_some(Duration::from_nanos(rest.0));
    let workers = pools.len();
    let mut to: Vec<Vec<_>> = pools.iter().map(|_| Vec::new()).collect();
    let mut from: Vec<Vec<_>> = pools.iter().map(|_| Vec::new()).collect();
    for (i, to) in to.iter_mut().enumerate() {
        for (j, from) in from.iter_mut().enumerate() {
            let ends = (i != j).then(|| ring(IN_A_RING));
            let (near, far) = ends.unzip();
            to.push(near);
            from.extend(far);
        }
    }
    let boards: Vec<Arc<LoadCounters>> = pools.iter().map(|_| Arc::default()).collect();
    let mut producers = Vec::new();
    let ends = to.into_iter().zip(from).zip(pools).zip(&boards).enumerate();
    let buckets = ends.map(|(worker, (((to, from), pool), board))| {
        let (orders, consumer) = ring(BUCKETS);
        producers.push(orders);
        let links = BucketLinks {
            orders: consumer,
            to,
            from,
        };
        let held = |bucket: usize| usize::from(reta[bucket]) == worker;
        let account = Account::new(Arc::clone(board), epoch);
        let shared = (Arc::clone(&moves), Arc::clone(&kept));
        Buckets::new(held, pool, shared, links, account, rest)
    });
    let buckets = buckets.collect();
    let server = Server {
        mapper: (config.mapper)(),
        clock,
        epoch,
        reta: *reta,
        moves,
        orders: producers,
        boards,
        before: (0..workers).map(|_| Before::default()).collect(),
        counted: Box::new([[0; 2]; BUCKETS]),
        buckets: vec![BucketLoad::default(); BUCKETS],
        cores: vec![CoreLoad::default(); workers],
        plan: Vec::with_capacity(BUCKETS),
        late,
        store: None,
    };
    (server, buckets)
}

impl Server {
    /// Sets the store, for workers with external flow state.
    pub(crate) fn with_store(self, store: Option<Arc<Health>>) -> Server {
        Server { store, ..self }
    }

    /// Runs from `start` until a worker reaches the run's end, or `over` is set and the thread unparked. Returns the
    /// number of decisions, and of those that moved a bucket.
    pub(crate) fn run(mut self, nic: &dyn Port, start: Nanos, over: &AtomicBool) -> [u64; 2] {
        let is_over = |moves: &Moves| over.load(Ordering::Relaxed) || moves.is_over();
        let (mut last, mut decisions, mut moves) = (start, 0, 0);
        loop {
            self.wait(last, &is_over);
            if is_over(&self.moves) {
                return [decisions, moves];
            }
            let now = self.clock.now();
            self.poll(last, now);
            last = now;
            // A bucket to be released would wait for the store, and its packets beyond their bounds.
            if self.store.as_ref().is_some_and(|store| !store.is_available()) {
                continue;
            }
            decisions += 1;
            self.plan.clear();
            let view = ServerView {
                now,
                buckets: &self.buckets,
                cores: &self.cores,
                late: self.late.since_last_call(),
            };
            self.mapper.remap(&view, &mut self.plan);
            let delay = self.mapper.enforcement_delay();
            if delay > Nanos::ZERO && !self.plan.is_empty() {
                let until = now + delay;
                while self.clock.now() < until && !is_over(&self.moves) {
                    std::thread::park_timeout(Duration::from_nanos(delay.0));
                }
            }
            match self.enforce(nic) {
                Some(moved) => moves += u64::from(moved > 0),
                None => return [decisions, moves],
            }
        }
    }

    /// Waits until the next decision is due, after the last one at `last`.
    fn wait(&self, last: Nanos, is_over: &impl Fn(&Moves) -> bool) {
        let due = last + self.mapper.period();
        let lasting = self.mapper.on_backlog_of(self.epoch);
        let epochs = |lasting: Nanos| lasting.0.div_ceil(self.epoch.0.max(1));
        while !is_over(&self.moves) {
            let now = self.clock.now();
            let mut left = Duration::from_nanos(due.saturating_sub(now).0);
            // A backlog counts if it began after the last decision.
            if let Some(lasting) = lasting.filter(|lasting| now >= last + *lasting) {
                let behind = |board: &Arc<LoadCounters>| board.behind.load(Ordering::Relaxed);
                if self
                    .boards
                    .iter()
                    .any(|board| u64::from(behind(board)) >= epochs(lasting))
                {
                    left = Duration::ZERO;
                }
            }
            if left == Duration::ZERO {
                if self.moves.is_done() {
                    return;
                }
                left = POLL_INTERVAL;
            } else if lasting.is_some() {
                let often = lasting.map_or(self.epoch, |lasting| self.epoch.max(Nanos(lasting.0 / 4)));
                left = left.min(Duration::from_nanos(often.0));
            }
            std::thread::park_timeout(left);
        }
    }

    /// Collects the loads from `last` to `now`.
    fn poll(&mut self, last: Nanos, now: Nanos) {
        let elapsed = now.saturating_sub(last).0.max(1);
        let seconds = Nanos(elapsed).as_secs_f64();
        let epochs = elapsed as f64 / self.epoch.0.max(1) as f64;
        // Factor by which each bucket's load exceeds its received packets, because of losses.
        let mut more = [1.0; BUCKETS];
        for (number, board) in self.boards.iter().enumerate() {
            let before = &mut self.before[number];
            let since = |now: u64, before: &mut u64| now - std::mem::replace(before, now);
            let received = since(board.received.load(Ordering::Relaxed), &mut before.received);
            let lost = since(board.lost.load(Ordering::Relaxed), &mut before.lost);
            let busy = since(board.busy.load(Ordering::Relaxed), &mut before.busy);
            self.cores[number] = CoreLoad {
                dedicated: self.reta.iter().any(|&owner| usize::from(owner) == number),
                busy: (busy as f64 / elapsed as f64).min(1.0),
                lost,
                batch_p99: before.durations.p99(board),
                longest_queue: board.longest_queue.swap(0, Ordering::Relaxed),
                worst_delay: Nanos(board.worst_delay.swap(0, Ordering::Relaxed)),
            };
            if received > 0 {
                // The buckets of packets lost by a full ring are unknown: assume them in proportion.
                let share = 1.0 + lost as f64 / received as f64;
                let owners = more.iter_mut().zip(&self.reta);
                owners
                    .filter(|(_, owner)| usize::from(**owner) == number)
                    .for_each(|(more, _)| *more = share);
            }
        }
        for (bucket, load) in self.buckets.iter_mut().enumerate() {
            let mut sums = [0; 2];
            for board in &self.boards {
                sums[0] += board.packets[bucket].load(Ordering::Relaxed);
                sums[1] += board.flows[bucket].load(Ordering::Relaxed);
            }
            let before = std::mem::replace(&mut self.counted[bucket], sums);
            *load = BucketLoad {
                flows: (sums[1] - before[1]) as f64 / FLOW / epochs,
                rate: (sums[0] - before[0]) as f64 / seconds * more[bucket],
                core: self.reta[bucket],
            };
        }
    }

    /// Carries out the plan's moves with one table. Returns their number, or `None` if the run is ending.
    fn enforce(&mut self, nic: &dyn Port) -> Option<u32> {
        let mut reta = self.reta;
        for &Move { bucket, to } in &self.plan {
            reta[usize::from(bucket)] = to;
        }
        let old = &self.reta;
        let moved = || (0..BUCKETS).filter(|&bucket| reta[bucket] != old[bucket]);
        let count = moved().count() as u32;
        if count == 0 {
            return Some(0);
        }
        if !self.moves.announce(count) {
            return None;
        }
        let effective = match nic.set_reta(&reta) {
            Ok(effective) => effective,
            Err(error) => {
                // The mapper's error: it names a core that does not exist.
                self.moves.withdraw(count);
                panic!("the server mapper's plan is invalid: {error}");
            }
        };
        for bucket in moved() {
            let order = ReleaseOrder {
                bucket: bucket as u16,
                to: reta[bucket],
                effective,
            };
            // Every earlier order has been carried out, and the ring has room for one order per bucket.
            let pushed = self.orders[usize::from(old[bucket])].push(order);
            assert!(pushed.is_ok(), "a ring of orders is full");
        }
        self.reta = reta;
        Some(count)
    }
}
