//! Order of the functions in their core's run queue: which process runs when the worker yields.
//!
//! Processes of one real-time priority (`SCHED_FIFO`) run in the order in which they were queued. A process that
//! yields, or wakes up, is queued behind all others, the worker among them. So between two times at which the worker
//! has the core, a *pass*, each function runs at most once, whatever it does: sleep, yield, spin, report its turn done.
//! Once a later function has begun to build on its result, it cannot run again in that pass.
//!
//! If a function is not done after a pass, the worker decides who may run in the next one, and *holds* all others at a
//! priority below its own. They cannot run until it lets them.
//!
//! - A function that requests a companion yields in the middle of its turn. Until its turn is done, it runs alone. If a
//!   batch has flows that no function has seen, functions behind the first one that may make requests are held from the
//!   beginning, and so on.
//! - A function that gives the core up for another reason, by sleeping or yielding, lets functions behind it run before
//!   their turn. So does one that slept after its last turn, and is now queued behind the next one; then the latter,
//!   which is innocent, is not done. In both cases the round is [spoilt](super::round). The kernel counts how often
//!   each process has slept, which tells the guilty one, unless it only yielded. For some time after that, rounds are
//!   *strict*: the worker lets functions run one by one, which is slower, and in which nobody can run too early. One
//!   that gives the core up then is known.
//!
//! The order is restored before a round's packets are written if a function or the worker has slept since the last
//! round. The kernel counts how often the worker's thread did; honest functions announce it in their response areas.
//!
//! On a [core that chains share](SharedCore), the functions of all groups but one are held in the same way. A group
//! that takes the core queues its functions first.
//!
//! On an auxiliary core the functions *rest* while the worker sleeps: they get the core only while no ordinary program
//! wants it. The worker queues all of them before the next round's packets are written, as after any sleep of its own,
//! and none of them rests in a round.
//!
//! All this holds while the worker is pinned to the functions' core and has their priority. Otherwise functions run
//! at any time, and packets are not protected between turns.

use super::area::Area;
use super::schedule;
use super::shared_core::SharedCore;
use super::status::Status;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Strict rounds after the first spoilt one; twice as many after each further one.
const STRICT_ROUNDS: u32 = 64;
/// Maximum number of strict rounds: minutes.
const MOST_STRICT_ROUNDS: u32 = 1 << 20;
/// Time after a spoilt round after which it no longer counts.
const FORGIVEN: Duration = Duration::from_secs(10);

/// Reason for which a round needs another pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassEnd {
    /// The next functions were held, or a companion was requested.
    Expected,
    /// The function that is not done, or one in front of it, gave the core up. Functions behind may have run too early.
    OutOfOrder,
    /// The function gave the core up in its turn. Nobody else ran.
    GaveUp,
}

/// Functions that may run in one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stride {
    /// All that are left.
    All,
    /// Those up to the next one that may request companions.
    ToCompanions,
    /// One.
    One,
}

/// The worker's view of its functions' positions in the run queue.
pub(super) struct RunQueueOrder {
    status: Arc<Status>,
    area: Arc<Area>,
    core: usize,
    /// The core, if its thread gives other groups turns, too.
    shared: Option<SharedCore>,
    /// `true` for each function that may request companions.
    may_request_companions: Box<[bool]>,
    /// Set while the functions rest, since they were attached or the worker has slept.
    rests: bool,
    /// Set if the functions may be queued in another order than the chain's.
    lost: bool,
    /// Number of sleeps of the worker's thread when the order was last restored.
    sleeps: u64,
    /// Set if the worker takes turns with the functions, so that the kernel keeps the order.
    is_kept: bool,
    /// Set if the batch has flows that no function has seen.
    new_flows: bool,
    /// Functions that may run in each pass of this round.
    stride: Stride,
    /// Functions that may run in the current pass.
    admitted: Range<usize>,
    /// Functions at the lower priority; `None` if that is unknown.
    held: Box<[Option<bool>]>,
    /// Sleeps that each function announced, and was woken from.
    announced: Box<[u64]>,
    /// Sleeps of each function's process beyond those announced, when last read.
    unannounced: Box<[u64]>,
    /// Number of strict rounds to come.
    strict: u32,
    /// Number of strict rounds after the next spoilt one.
    next_strict: u32,
    /// Time of the last spoilt round.
    spoilt_at: Option<Instant>,
}

impl RunQueueOrder {
    /// Creates the order of functions on `core`, which chains may share. `may_request_companions[k]` is `true` if
    /// function `k` may request companions.
    pub(super) fn new(
        status: Arc<Status>,
        area: Arc<Area>,
        (core, shared): (usize, Option<SharedCore>),
        may_request_companions: Box<[bool]>,
    ) -> RunQueueOrder {
        RunQueueOrder {
            status,
            area,
            core,
            shared,
            lost: true,
            sleeps: 0,
            is_kept: false,
            new_flows: false,
            stride: Stride::All,
            admitted: 0..0,
            held: vec![None; may_request_companions.len()].into(),
            announced: vec![0; may_request_companions.len()].into(),
            unannounced: vec![0; may_request_companions.len()].into(),
            may_request_companions,
            rests: true,
            strict: 0,
            next_strict: STRICT_ROUNDS,
            spoilt_at: None,
        }
    }

    /// Returns `true` if the kernel keeps the order in this round.
    #[inline]
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Notes that the next batch has a flow that no function has seen.
    #[inline]
    pub(super) fn expect_companion_requests(&mut self) {
        self.new_flows = true;
    }

    /// Restores the order for a round with packets, before the packets are written to shared memory.
    #[inline]
    pub(super) fn restore_for_packets(&mut self) {
        self.restore();
        if std::mem::take(&mut self.new_flows) && self.is_kept && self.stride == Stride::All {
            let end = self.behind_companions(0);
            if end < self.held.len() {
                self.stride = Stride::ToCompanions;
                self.admit(0..end);
            }
        }
    }

    /// Restores the order for a round without packets.
    #[inline]
    pub(super) fn restore(&mut self) {
        self.stride = Stride::All;
        self.admitted = 0..self.held.len();
        self.rests = false;
        if !self.status.is_real_time() {
            self.is_kept = false;
            return;
        }
        if self.shared.as_ref().is_some_and(|core| core.take(&self.status)) {
            self.forget();
        }
        let slept = self.wake(0) || self.lost || schedule::sleeps() != self.sleeps;
        if slept {
            self.restore_lost();
        }
    }

    #[cold]
    fn restore_lost(&mut self) {
        self.is_kept = schedule::takes_turns_on(self.core);
        self.status
            .set_worker(if self.is_kept { schedule::this_thread() } else { 0 });
        if self.is_kept && self.strict > 0 {
            self.strict -= 1;
            self.stride = Stride::One;
            self.admit(0..1);
        } else {
            self.lost = false;
            self.queue(0..self.held.len());
        }
        self.sleeps = schedule::sleeps();
    }

    /// Lets the functions rest: the worker is about to sleep. Only between two rounds.
    #[inline]
    pub(super) fn rest(&mut self) {
        if !std::mem::replace(&mut self.rests, true) && self.status.is_real_time() {
            self.give_core_back();
        }
    }

    #[cold]
    fn give_core_back(&mut self) {
        if let Some(core) = &self.shared {
            // Otherwise the next group would raise these to hold them.
            core.leave(&self.status);
        }
        self.forget();
        self.status
            .with_processes(|processes| processes.iter().for_each(|process| schedule::give_core_back(*process)));
    }

    /// Returns `true` if the worker has slept since the order was restored, so that functions may have run meanwhile.
    #[inline]
    pub(super) fn has_slept(&self) -> bool {
        self.is_kept && schedule::sleeps() != self.sleeps
    }

    /// Prepares another pass of the round, with `k` the first function that is not done. `requested`: it requested a
    /// companion in the last pass.
    #[cold]
    pub(super) fn next_pass(&mut self, k: usize, requested: bool) -> PassEnd {
        self.lost = true;
        if !self.is_kept {
            // Functions run at any time, and the worker polls them.
            return PassEnd::Expected;
        }
        if !self.admitted.contains(&k) {
            self.admit(k..self.end_of_pass(k));
            return PassEnd::Expected;
        }
        let was_alone = self.admitted.len() == 1;
        // Those behind may make requests, too.
        if self.stride == Stride::All {
            self.stride = Stride::ToCompanions;
        }
        self.admit(k..k + 1);
        match (requested, was_alone) {
            (true, _) => PassEnd::Expected,
            (false, true) => PassEnd::GaveUp,
            (false, false) => {
                self.be_strict();
                PassEnd::OutOfOrder
            }
        }
    }

    /// Prepares the pass of the functions behind function `k`, which has no process and which the worker responds for.
    /// Those behind may have had the core before their turn, since the worker had yet to respond, and are innocent.
    /// Those in front are held: they could run again before the others begin to build on their results, and change
    /// them.
    #[cold]
    pub(super) fn skip(&mut self, k: usize) {
        let behind = k + 1;
        if !self.is_kept || behind == self.held.len() {
            return;
        }
        let next = behind..self.end_of_pass(behind);
        // They may have slept meanwhile, and be queued in another order.
        self.held[next.clone()].fill(None);
        self.admit(next);
    }

    /// Returns the end of the functions from `k` on that may run in the next pass.
    fn end_of_pass(&self, k: usize) -> usize {
        match self.stride {
            Stride::All => self.held.len(),
            Stride::ToCompanions => self.behind_companions(k),
            Stride::One => k + 1,
        }
    }

    /// Makes the next rounds strict ones.
    fn be_strict(&mut self) {
        let before = self.spoilt_at.replace(Instant::now());
        if before.is_none_or(|before| before.elapsed() > FORGIVEN) {
            self.next_strict = STRICT_ROUNDS;
        }
        self.strict = self.next_strict;
        self.next_strict = (self.next_strict * 2).min(MOST_STRICT_ROUNDS);
    }

    /// Notes that a round ended early, or a process was replaced: functions are queued in any order, at any priority.
    #[cold]
    pub(super) fn forget(&mut self) {
        self.lost = true;
        self.held.fill(None);
    }

    /// Notes that function `k` has another process.
    #[cold]
    pub(super) fn replaced(&mut self, k: usize) {
        self.forget();
        self.announced[k] = 0;
        self.slept_unannounced(k);
    }

    /// Wakes the functions from `from` on that have announced a sleep. Returns `true` if there were any.
    #[inline]
    pub(super) fn wake(&mut self, from: usize) -> bool {
        let mut slept = false;
        for (responses, announced) in self.area.response_areas.iter().zip(&mut self.announced).skip(from) {
            if responses.wake() {
                *announced += 1;
                slept = true;
            }
        }
        slept
    }

    /// Returns the function that spoilt the round in which `k` is not done, if it slept for that: `k` itself, or one in
    /// front, which is now queued behind it.
    #[cold]
    pub(super) fn find_sleeper(&mut self, k: usize) -> Option<usize> {
        let mut found = None;
        for function in 0..=k {
            if self.slept_unannounced(function) {
                found = Some(function);
            }
        }
        found
    }

    /// Returns `true` if function `k` has slept without announcing it since the last call.
    fn slept_unannounced(&mut self, k: usize) -> bool {
        let sleeps = self
            .status
            .with_processes(|processes| schedule::sleeps_of(processes[k]));
        // One announced by mistake counts for later.
        let unannounced = sleeps.saturating_sub(self.announced[k]);
        let before = std::mem::replace(&mut self.unannounced[k], unannounced);
        unannounced > before
    }

    /// Lets only these functions run in the next pass.
    fn admit(&mut self, functions: Range<usize>) {
        self.lost = true;
        let held = &mut self.held;
        let is_other = |k: &usize| !functions.contains(k);
        if (0..held.len()).filter(is_other).any(|k| held[k] != Some(true)) {
            self.status.with_processes(|processes| {
                for k in (0..held.len()).filter(is_other) {
                    if held[k].replace(true) != Some(true) {
                        schedule::set_back(processes[k]);
                    }
                }
            });
        }
        if held[functions.clone()].iter().any(|held| *held != Some(false)) {
            self.queue(functions.clone());
        }
        self.admitted = functions;
    }

    /// Returns the end of the functions from `from` on up to the first one that may request companions.
    fn behind_companions(&self, from: usize) -> usize {
        let mut may_request = self.may_request_companions[from..].iter();
        let next = may_request.position(|may| *may);
        next.map_or(self.held.len(), |next| from + next + 1)
    }

    /// Queues these functions in order behind all others.
    fn queue(&mut self, functions: Range<usize>) {
        // On failure they are replaced or continue as ordinary processes; the watchdog handles that.
        let (areas, announced) = (&self.area.response_areas, &mut self.announced);
        self.status.with_processes(|processes| {
            // Once more: they had the core while the lock was held by the watchdog.
            for k in functions.clone() {
                announced[k] += u64::from(areas[k].wake());
            }
            let processes = processes[functions.clone()].iter().copied();
            let _ = schedule::queue(processes.filter(|process| *process != 0));
        });
        self.held[functions].fill(Some(false));
    }
}
