//! Thread that occupies a part of the last-level cache, so that other programs have the rest (Eklov, Nikoleris,
//! Black-Schaffer and Hagersten, "Cache Pirating", ICPP 2011).
//!
//! It walks a buffer line by line, in an order that no prefetcher predicts, on several cycles at once. So its lines are
//! accessed more often than those of others. From time to time it measures a few dependent accesses: a hit takes as
//! long as in a small buffer, a miss as long as in a large one. This gives its miss ratio without hardware counters.
//! It never sleeps: with the chain's largest share it holds the least with which its misses say anything.

use super::control::{CacheControl, CacheError, Method, ShareResult};
use super::geometry::{Caches, sharing};
use memmap2::MmapMut;
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailwater_dataplane::cores::pin_to;
use tailwater_net::Nanos;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Concurrent walks through the buffer: about as many as a core's outstanding misses.
const WALKS: usize = 8;
/// Accesses of each walk between two checks of the clock.
const STEPS: usize = 256;
/// Dependent accesses that are timed together.
const TIMED: usize = 8;
/// Miss ratio up to which a buffer counts as held. Eklov's pirate has at most 3 %, by hardware counters; the estimate
/// by latency is less precise.
const MOST_MISSES: f64 = 0.05;
/// Required ratio of memory latency to cache latency.
const LEAST_CONTRAST: f64 = 1.5;
/// The unit of shares is a sixteenth of the cache, with this minimum.
const PARTS: u64 = 16;
const LEAST_UNIT: u64 = 256 << 10;
/// Maximum buffer size.
const MOST_BYTES: u64 = 512 << 20;
/// Upper bound of a memory access, nanoseconds. A longer one means that the core was preempted.
const SLOWEST: f64 = 1000.0;
/// Time for which a buffer is measured while nothing else runs.
const WATCHED: Duration = Duration::from_millis(30);
/// Time without a response after which the pirate's thread counts as ended.
const PATIENCE: Duration = Duration::from_secs(20);
/// Length and number of the time slices for which results are stored.
const SLICE: Duration = Duration::from_millis(5);
const MOST_SLICES: usize = 4096;
/// Part of a run in which the pirate's misses count, without the start, in which the chain fills its share, and the
/// end, in which the chain is torn down.
const COUNTED: [f64; 2] = [0.7, 0.1];

/// A line of the buffer, which holds the index of the next one.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line {
    next: u64,
    rest: [u64; 7],
}

/// Requests to the thread.
enum PirateRequest {
    /// Hold this number of lines from now on; 0: none, and sleep. Answered after two rounds.
    Hold(usize, Sender<()>),
    /// Return the number of accesses between two times, and their total duration in nanoseconds. Each timed group
    /// counts with at most the given duration.
    Tell(Instant, Instant, f64, Sender<Timed>),
}

/// Timed accesses.
#[derive(Clone, Copy, Debug, Default)]
struct Timed {
    accesses: u64,
    nanos: f64,
}

impl Timed {
    fn mean(&self) -> f64 {
        self.nanos / self.accesses.max(1) as f64
    }
}

/// Results of a time slice.
struct Slice {
    began: Instant,
    /// Duration of each group, nanoseconds.
    groups: Vec<f32>,
}

/// Occupies a part of the cache from another core.
#[derive(Debug)]
pub struct Pirate {
    orders: Option<Sender<PirateRequest>>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    core: usize,
    unit: u64,
    /// Size that stays in the cache while nothing else runs, with the private level, bytes.
    usable: u64,
    private: u64,
    /// Access latency in the cache and in memory, nanoseconds.
    hit: f64,
    miss: f64,
    /// Size of the buffer that is held now, bytes.
    holding: u64,
}

impl Pirate {
    /// Starts a pirate for `core`, on the core `beside` or else the first other core that shares its last-level cache.
    /// Measures the access latency in the cache and in memory, and the part of the cache that can be held: on a shared
    /// machine that may be far from all of it. This takes about a second, in which nothing should run on `core`. Ends
    /// at once when `stop` is set.
    ///
    /// # Errors
    /// There is no such core, or hits and misses cannot be distinguished.
    pub fn new(core: usize, beside: Option<usize>, stop: &Arc<AtomicBool>) -> Result<Pirate, CacheError> {
        let caches = Caches::of(core).ok_or(CacheError::Unknown { core })?;
        let others = sharing(core);
        let own = match beside {
            Some(beside) => others.into_iter().find(|other| *other == beside),
            None => others.first().copied(),
        };
        let own = own.ok_or(CacheError::Alone { core })?;
        let far = (4 * caches.last_bytes).min(MOST_BYTES).max(caches.last_bytes);
        let (orders, receiver) = mpsc::channel();
        let (ready, started) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("pirate".to_owned())
            .spawn({
                let stop = Arc::clone(stop);
                move || hold(own, far as usize / LINE, &receiver, &ready, &stop)
            })
            .map_err(|source| CacheError::System {
                what: "cannot start a thread that occupies the cache",
                source,
            })?;
        let mut pirate = Pirate {
            orders: Some(orders),
            thread: Some(thread),
            stop: Arc::clone(stop),
            core: own,
            unit: (caches.last_bytes / PARTS).max(LEAST_UNIT),
            usable: 0,
            private: caches.private_bytes,
            hit: 0.0,
            miss: 0.0,
            holding: 0,
        };
        pirate.wait(&started)??;
        pirate.calibrate(&caches, far)?;
        Ok(pirate)
    }

    /// Returns the pirate's core.
    pub fn core(&self) -> usize {
        self.core
    }

    /// Returns the access latency in the cache and in memory, nanoseconds.
    pub fn latencies(&self) -> [f64; 2] {
        [self.hit, self.miss]
    }

    /// Measures the access latencies, and the size that stays in the cache.
    fn calibrate(&mut self, caches: &Caches, far: u64) -> Result<(), CacheError> {
        self.miss = self.alone(far)?;
        // Larger than the private level, of which nothing is left after a round; small within the shared one.
        let near = (caches.last_bytes / 4).max(2 * caches.private_bytes);
        self.hit = self.alone(near)?;
        if self.miss < LEAST_CONTRAST * self.hit {
            return Err(CacheError::Blurred {
                hit: self.hit,
                miss: self.miss,
                least: LEAST_CONTRAST,
            });
        }
        // Bisects the largest number of units that stay in the cache almost completely.
        let (mut stay, mut leave) = (0, caches.last_bytes / self.unit + 1);
        while leave - stay > 1 {
            let units = stay + (leave - stay) / 2;
            let took = self.alone(units * self.unit)?;
            match self.misses(took) <= MOST_MISSES {
                true => stay = units,
                false => leave = units,
            }
        }
        self.usable = stay * self.unit;
        if self.most() < 2 * self.unit {
            let bytes = self.least_held() + 2 * self.unit;
            return Err(CacheError::Taken { bytes });
        }
        self.hold(self.least_held())
    }

    /// Returns the least that the pirate holds, bytes: as much as its private level, and one unit of the shared one. It
    /// never sleeps, so that all points of a curve are measured alike, and its misses verify each of them.
    fn least_held(&self) -> u64 {
        self.private + self.unit
    }

    /// Returns the access latency in a buffer of this size while nothing else runs, nanoseconds.
    fn alone(&mut self, bytes: u64) -> Result<f64, CacheError> {
        self.hold(bytes)?;
        let began = Instant::now();
        std::thread::sleep(WATCHED);
        let cap = match self.miss {
            0.0 => SLOWEST,
            miss => miss,
        };
        let timed = self.tell(began, Instant::now(), cap)?;
        Ok(timed.mean())
    }

    /// Returns the miss ratio for this mean access latency.
    fn misses(&self, nanos: f64) -> f64 {
        ((nanos - self.hit) / (self.miss - self.hit)).clamp(0.0, 1.0)
    }

    fn hold(&mut self, bytes: u64) -> Result<(), CacheError> {
        let (done, held) = mpsc::channel();
        self.order(PirateRequest::Hold(bytes as usize / LINE, done))?;
        self.wait(&held)?;
        self.holding = bytes;
        Ok(())
    }

    fn tell(&self, from: Instant, to: Instant, cap: f64) -> Result<Timed, CacheError> {
        let (reply, told) = mpsc::channel();
        self.order(PirateRequest::Tell(from, to, cap, reply))?;
        self.wait(&told)
    }

    fn order(&self, order: PirateRequest) -> Result<(), CacheError> {
        let orders = self.orders.as_ref().ok_or(CacheError::Gone)?;
        orders.send(order).map_err(|_| self.gone())
    }

    fn wait<T>(&self, answer: &Receiver<T>) -> Result<T, CacheError> {
        answer.recv_timeout(PATIENCE).map_err(|_| self.gone())
    }

    /// Returns the reason for which the thread does not respond.
    fn gone(&self) -> CacheError {
        match self.stop.load(Ordering::Relaxed) {
            true => CacheError::Stopped,
            false => CacheError::Gone,
        }
    }
}

impl CacheControl for Pirate {
    fn method(&self) -> Method {
        Method::Pirate
    }

    /// Returns the size that can be held, without the least that the pirate holds.
    fn most(&self) -> u64 {
        self.usable.saturating_sub(self.least_held()) / self.unit * self.unit
    }

    fn unit(&self) -> u64 {
        self.unit
    }

    fn set(&mut self, bytes: u64) -> Result<(), CacheError> {
        let bytes = (bytes / self.unit * self.unit).clamp(self.unit, self.most());
        self.hold(self.most() - bytes + self.least_held())
    }

    fn held(&mut self, run: Nanos) -> Result<ShareResult, CacheError> {
        let now = Instant::now();
        let before = |part: f64| {
            let time = Duration::from_nanos((run.0 as f64 * part) as u64);
            now.checked_sub(time).unwrap_or(now)
        };
        let [from, to] = COUNTED.map(before);
        let timed = self.tell(from, to, self.miss)?;
        let misses = match timed.accesses {
            // The pirate did not run, so it held nothing.
            0 => 1.0,
            _ => self.misses(timed.mean()),
        };
        Ok(ShareResult {
            held: misses <= MOST_MISSES,
            misses,
            occupied: None,
        })
    }
}

/// Ends the thread, which releases the cache.
impl Drop for Pirate {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread releases the cache, too.
            let _ = thread.join();
        }
    }
}

/// Runs the pirate's thread, with memory for `most` lines.
fn hold(
    core: usize,
    most: usize,
    orders: &Receiver<PirateRequest>,
    ready: &Sender<Result<(), CacheError>>,
    stop: &AtomicBool,
) {
    let memory = pin_to(core).map_err(CacheError::from).and_then(|()| {
        MmapMut::map_anon(most * LINE).map_err(|source| CacheError::System {
            what: "no memory to occupy the cache",
            source,
        })
    });
    let mut memory = match memory {
        Ok(memory) => memory,
        Err(error) => return drop(ready.send(Err(error))),
    };
    // Works without huge pages, with more TLB misses.
    let _ = memory.advise(memmap2::Advice::HugePage);
    let _ = ready.send(Ok(()));
    let mut walk = Walk::new(bytemuck::cast_slice_mut(&mut memory));
    let mut awaited: Option<(u64, Sender<()>)> = None;
    while !stop.load(Ordering::Relaxed) {
        let order = match walk.lines {
            0 => orders.recv().map_err(|_| TryRecvError::Disconnected),
            _ => orders.try_recv(),
        };
        match order {
            Ok(PirateRequest::Hold(lines, done)) => {
                walk.begin(lines.min(most), stop);
                match walk.lines {
                    0 => drop(done.send(())),
                    _ => awaited = Some((2, done)),
                }
            }
            Ok(PirateRequest::Tell(from, to, cap, reply)) => drop(reply.send(walk.told(from, to, cap))),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        if walk.lines > 0 {
            walk.go();
        }
        if let Some((rounds, done)) = awaited.take() {
            match walk.rounds >= rounds {
                true => drop(done.send(())),
                false => awaited = Some((rounds, done)),
            }
        }
    }
}

/// Rounds through the first lines of a buffer.
struct Walk<'a> {
    buffer: &'a mut [Line],
    /// Number of lines in use.
    lines: usize,
    at: [u64; WALKS],
    /// Index of the walk that is timed next.
    turn: usize,
    steps: usize,
    rounds: u64,
    slices: VecDeque<Slice>,
}

impl<'a> Walk<'a> {
    fn new(buffer: &'a mut [Line]) -> Walk<'a> {
        Walk {
            buffer,
            lines: 0,
            at: [0; WALKS],
            turn: 0,
            steps: 0,
            rounds: 0,
            slices: VecDeque::new(),
        }
    }

    /// Rearranges the lines into `WALKS` sections, each one cycle in random order (Sattolo).
    fn begin(&mut self, lines: usize, stop: &AtomicBool) {
        let each = lines / WALKS;
        self.slices.clear();
        (self.rounds, self.steps) = (0, 0);
        self.lines = if each < 2 { 0 } else { each * WALKS };
        if self.lines == 0 {
            return;
        }
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for walk in 0..WALKS {
            let first = walk * each;
            for line in first..first + each {
                self.buffer[line].next = line as u64;
            }
            for line in (1..each).rev() {
                if line % (1 << 16) == 0 && stop.load(Ordering::Relaxed) {
                    return;
                }
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let other = (state % line as u64) as usize;
                let next = self.buffer[first + line].next;
                self.buffer[first + line].next = self.buffer[first + other].next;
                self.buffer[first + other].next = next;
            }
            self.at[walk] = first as u64;
        }
    }

    /// Runs some steps of all walks, and a few timed ones of one walk.
    fn go(&mut self) {
        let mut at = self.at;
        for _ in 0..STEPS {
            for at in &mut at {
                *at = self.buffer[*at as usize].next;
            }
        }
        // The clock read is ordered after earlier loads, and later loads after it, as in the kernel's implementation.
        let began = Instant::now();
        let mut timed = black_box(at)[self.turn];
        for _ in 0..TIMED {
            timed = self.buffer[timed as usize].next;
        }
        at[self.turn] = black_box(timed);
        let ended = Instant::now();
        self.at = at;
        self.turn = (self.turn + 1) % WALKS;
        self.steps += STEPS * WALKS + TIMED;
        if self.steps >= self.lines {
            self.steps -= self.lines;
            self.rounds += 1;
        }
        self.note(began, ended - began);
    }

    fn note(&mut self, began: Instant, took: Duration) {
        let fresh = self.slices.back();
        if fresh.is_none_or(|slice| began - slice.began >= SLICE) {
            let mut slice = match self.slices.len() {
                MOST_SLICES.. => self.slices.pop_front(),
                _ => None,
            }
            .unwrap_or(Slice {
                began,
                groups: Vec::new(),
            });
            slice.began = began;
            slice.groups.clear();
            self.slices.push_back(slice);
        }
        if let Some(slice) = self.slices.back_mut() {
            slice.groups.push(took.as_nanos() as f32);
        }
    }

    /// Returns the accesses of a time range. A group that took longer than if all its accesses had missed was
    /// interrupted, and counts as missed.
    fn told(&self, from: Instant, to: Instant, cap: f64) -> Timed {
        let within = |slice: &&Slice| slice.began >= from && slice.began < to;
        let groups = self.slices.iter().filter(within).flat_map(|slice| &slice.groups);
        let most = cap * TIMED as f64;
        groups.fold(Timed::default(), |all, nanos| Timed {
            accesses: all.accesses + TIMED as u64,
            nanos: all.nanos + f64::from(*nanos).min(most),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walked(lines: usize) -> Vec<u64> {
        let mut buffer = vec![<Line as bytemuck::Zeroable>::zeroed(); 4096];
        let mut walk = Walk::new(&mut buffer);
        walk.begin(lines, &AtomicBool::new(false));
        let held = walk.lines;
        let mut seen = vec![0; 4096];
        for mut at in walk.at {
            for _ in 0..held / WALKS {
                seen[at as usize] += 1;
                at = walk.buffer[at as usize].next;
            }
        }
        seen
    }

    #[test]
    fn a_round_touches_each_line_once_and_no_other() {
        for lines in [16, 17, 1000, 4096] {
            let seen = walked(lines);
            let held = lines / WALKS * WALKS;
            assert!(seen[..held].iter().all(|times| *times == 1), "{lines}");
            assert!(seen[held..].iter().all(|times| *times == 0), "{lines}");
        }
        assert!(walked(15).iter().all(|times| *times == 0));
    }

    #[test]
    fn what_was_seen_is_kept_for_a_while() {
        let mut buffer = vec![<Line as bytemuck::Zeroable>::zeroed(); 64];
        let mut walk = Walk::new(&mut buffer);
        let start = Instant::now();
        let at = |slices: u32| start + SLICE * slices;
        for slice in 0..MOST_SLICES as u32 + 10 {
            walk.note(at(slice), Duration::from_nanos(80));
            walk.note(at(slice) + SLICE / 2, Duration::from_nanos(1 << 30));
        }
        assert_eq!(walk.slices.len(), MOST_SLICES);
        assert_eq!(walk.told(at(0), at(10), 100.0).accesses, 0);
        let told = walk.told(at(100), at(110), 100.0);
        assert_eq!(told.accesses, 10 * 2 * TIMED as u64);
        // Half of them took 10 ns each, the others were interrupted and count as 100.
        assert_eq!(told.mean(), 55.0);
    }

    #[test]
    fn a_pirate_gives_shares_and_goes() {
        let stop = Arc::new(AtomicBool::new(false));
        let core = tailwater_dataplane::cores::default_core();
        // On a busy or unusual machine the cache may not be measurable, which is an error.
        let mut pirate = match Pirate::new(core, None, &stop) {
            Ok(pirate) => pirate,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        assert_ne!(pirate.core(), core);
        assert!(pirate.most() >= pirate.unit() && pirate.most() % pirate.unit() == 0);
        for bytes in [0, pirate.unit(), pirate.most(), u64::MAX] {
            pirate.set(bytes).unwrap();
            let held = pirate.held(Nanos::from_millis(10)).unwrap();
            assert!((0.0..=1.0).contains(&held.misses));
        }
        // The pirate stays awake with the largest share of the chain.
        assert_eq!(pirate.holding, pirate.least_held());
        stop.store(true, Ordering::Relaxed);
        drop(pirate);
        let stopped = Pirate::new(core, None, &stop);
        assert!(matches!(stopped, Err(CacheError::Stopped)), "{stopped:?}");
    }

    #[test]
    fn another_core_is_needed() {
        let stop = Arc::new(AtomicBool::new(false));
        let core = tailwater_dataplane::cores::default_core();
        let error = Pirate::new(core, Some(core), &stop).unwrap_err();
        let expected = matches!(error, CacheError::Alone { .. } | CacheError::Unknown { .. });
        assert!(expected, "{error}");
    }
}
