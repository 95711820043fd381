//! State of a group's processes, shared by the worker and the watchdog.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Violation of the protocol that a worker found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Violation {
    /// An invalid response.
    InvalidResponse,
    /// A turn reported as done that had not begun.
    EarlyDone,
    /// The core given up in its turns, again and again.
    GaveUp,
}

impl Violation {
    /// Returns the description for reports.
    pub(super) fn text(self) -> &'static str {
        match self {
            Violation::InvalidResponse => "it responded invalidly",
            Violation::EarlyDone => "it reported a turn as done that had not begun",
            Violation::GaveUp => "it gave up the core in its turns again and again",
        }
    }
}

/// State of the processes of a group.
#[derive(Debug)]
pub(super) struct Status {
    functions: Vec<Function>,
    /// The round under way, or whose responses are being read; 0 for none.
    busy: AtomicU64,
    /// Process ids by function; 0 for none. An id is removed before its process is reaped, since the kernel may reuse
    /// it. Copies are in [`Function::process`].
    processes: Mutex<Box<[u32]>>,
    real_time: AtomicBool,
    /// The worker's thread; 0 while it does not take turns with the functions.
    worker: AtomicU32,
    /// Number, counted from 1, of the function that gave the core up in its turn of the current round; 0 for none.
    gave_up: AtomicUsize,
    /// Set in the last round, in which processes close files and have more time.
    patient: AtomicBool,
    /// Latest [`Measured`] of the worker: the batch size, and the bits of three `f64`.
    measured: [AtomicU64; 4],
}

#[derive(Debug, Default)]
struct Function {
    /// Id of its process, for the guard, which takes no lock; 0 for none.
    process: AtomicU32,
    /// Set once the guard has ended its process.
    ended_by_guard: AtomicBool,
    /// Number of the attached process, counted from 1; 0 while none is.
    up: AtomicU32,
    /// Number of the last process that violated the protocol; 0 for none.
    violation_of: AtomicU32,
    /// Its [`Violation`].
    violation: AtomicU8,
    turns: AtomicU64,
    /// Set while a process is about to be attached.
    announced: AtomicBool,
    /// Set if at the end of the run no process completed the function's remaining work.
    missed: AtomicBool,
}

/// Costs of a worker's rounds, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// Batch size, packets.
    pub(super) batch: usize,
    /// Duration of a round without packets, nanoseconds.
    pub(super) empty: f64,
    /// Fixed duration of a round with packets, without the share per packet, nanoseconds.
    pub(super) switches: f64,
    /// Additional duration per packet, nanoseconds.
    pub(super) packet: f64,
}

impl Status {
    pub(super) fn new(functions: usize) -> Status {
        Status {
            functions: (0..functions).map(|_| Function::default()).collect(),
            busy: AtomicU64::new(0),
            processes: Mutex::new(vec![0; functions].into()),
            real_time: AtomicBool::new(false),
            worker: AtomicU32::new(0),
            gave_up: AtomicUsize::new(0),
            patient: AtomicBool::new(false),
            measured: Default::default(),
        }
    }

    fn processes(&self) -> MutexGuard<'_, Box<[u32]>> {
        // Plain numbers, which are valid even after a panic of another user.
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the id of the process that takes turns as function `k`; 0 for none.
    pub(super) fn set_process(&self, k: usize, process: u32) {
        let mut processes = self.processes();
        processes[k] = process;
        self.functions[k].process.store(process, Ordering::SeqCst);
    }

    /// Returns the number of functions.
    pub(super) fn functions(&self) -> usize {
        self.functions.len()
    }

    /// Returns the id of the process that takes turns as function `k`, without a lock; 0 for none.
    pub(super) fn process(&self, k: usize) -> u32 {
        self.functions[k].process.load(Ordering::SeqCst)
    }

    /// Records that the guard ended function `k`'s process.
    pub(super) fn note_ended_by_guard(&self, k: usize) {
        self.functions[k].ended_by_guard.store(true, Ordering::SeqCst);
    }

    /// Returns `true` once if the guard ended function `k`'s process.
    pub(super) fn was_ended_by_guard(&self, k: usize) -> bool {
        self.functions[k].ended_by_guard.swap(false, Ordering::SeqCst)
    }

    /// Polls with `ended` whether function `k`'s process has ended, and removes its id if so, since the kernel may
    /// reuse it.
    pub(super) fn take_ended<T>(&self, k: usize, ended: impl FnOnce() -> Option<T>) -> Option<T> {
        let mut processes = self.processes();
        let ended = ended()?;
        processes[k] = 0;
        self.functions[k].process.store(0, Ordering::SeqCst);
        Some(ended)
    }

    /// Calls `use_them` with the process ids, which stay valid meanwhile. The worker spins while it waits for the
    /// watchdog, which has a higher priority and holds the lock briefly. So it does not give its core away.
    pub(super) fn with_processes<T>(&self, use_them: impl FnOnce(&[u32]) -> T) -> T {
        /// More than were ever needed. If the watchdog itself is blocked, the worker blocks, too.
        const SPINS: u32 = 100_000;
        for _ in 0..SPINS {
            if let Ok(processes) = self.processes.try_lock() {
                return use_them(&processes);
            }
            std::hint::spin_loop();
        }
        use_them(&self.processes())
    }

    /// Returns `true` if the processes have real-time priority, and so are queued on their core.
    #[inline]
    pub(super) fn is_real_time(&self) -> bool {
        self.real_time.load(Ordering::Relaxed)
    }

    pub(super) fn set_real_time(&self, real_time: bool) {
        self.real_time.store(real_time, Ordering::Relaxed);
    }

    /// Returns the number of the process attached as function `k`; 0 for none.
    #[inline]
    pub(super) fn up(&self, k: usize) -> u32 {
        self.functions[k].up.load(Ordering::Acquire)
    }

    /// Marks function `k` as attached under a number that it never had before.
    pub(super) fn set_up(&self, k: usize, number: u32) {
        self.functions[k].up.store(number, Ordering::Release);
    }

    /// Marks function `k` as having no process.
    pub(super) fn set_down(&self, k: usize) {
        self.functions[k].up.store(0, Ordering::SeqCst);
    }

    /// Announces that a process is about to be attached as function `k`, or that none is. No round that
    /// [bypasses](Status::begin) the function begins meanwhile: either the worker sees this, or the watchdog, which
    /// reads [`busy`](Status::busy) afterwards, sees the round.
    pub(super) fn announce(&self, k: usize, is_ready: bool) {
        self.functions[k].announced.store(is_ready, Ordering::SeqCst);
    }

    /// Returns `true` if function `k` has no process, and none is about to be attached.
    pub(super) fn is_vacant(&self, k: usize) -> bool {
        self.up(k) == 0 && !self.functions[k].announced.load(Ordering::SeqCst)
    }

    /// Reports a violation by the process with this number, which the watchdog then ends if it still runs.
    #[cold]
    pub(super) fn report_violation(&self, k: usize, number: u32, violation: Violation) {
        let function = &self.functions[k];
        function.violation.store(violation as u8, Ordering::Relaxed);
        function.violation_of.store(number, Ordering::Release);
    }

    /// Returns the violation of the attached process, if there is one.
    pub(super) fn violation(&self, k: usize) -> Option<Violation> {
        let function = &self.functions[k];
        let (of, up) = (function.violation_of.load(Ordering::Acquire), self.up(k));
        if up == 0 || of != up {
            return None;
        }
        let violation = function.violation.load(Ordering::Relaxed);
        let all = [Violation::InvalidResponse, Violation::EarlyDone, Violation::GaveUp];
        all.into_iter().find(|it| *it as u8 == violation)
    }

    /// Sets the worker's thread; 0 while it does not take turns with the functions.
    pub(super) fn set_worker(&self, thread: u32) {
        self.worker.store(thread, Ordering::Relaxed);
    }

    /// Returns the worker's thread; 0 while it does not take turns with the functions.
    pub(super) fn worker(&self) -> u32 {
        self.worker.load(Ordering::Relaxed)
    }

    /// Records the function that gave the core up in its turn of the current round.
    pub(super) fn set_gave_up(&self, k: Option<usize>) {
        self.gave_up.store(k.map_or(0, |k| k + 1), Ordering::Relaxed);
    }

    /// Returns the function that gave the core up in its turn of the current round.
    pub(super) fn gave_up(&self) -> Option<usize> {
        self.gave_up.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Begins a round if the processes still have these numbers; 0 for a function that the round bypasses. Otherwise
    /// returns the first function with another process or none. A process attached later finds the round
    /// [busy](Status::busy) and stays out of it: either the worker sees that the predecessor is down, or the watchdog
    /// sees the round.
    #[inline]
    pub(super) fn begin(&self, round: u64, numbers: impl Iterator<Item = u32>) -> Result<(), usize> {
        self.busy.store(round, Ordering::SeqCst);
        let mut functions = self.functions.iter().zip(numbers);
        let other = functions.position(|(function, number)| {
            function.up.load(Ordering::SeqCst) != number || number == 0 && function.announced.load(Ordering::SeqCst)
        });
        match other {
            None => Ok(()),
            Some(k) => Err(k),
        }
    }

    /// Ends the round.
    #[inline]
    pub(super) fn end(&self) {
        self.busy.store(0, Ordering::Release);
    }

    /// Returns the round under way, or 0.
    pub(super) fn busy(&self) -> u64 {
        self.busy.load(Ordering::SeqCst)
    }

    pub(super) fn set_last_round(&self) {
        self.patient.store(true, Ordering::Release);
    }

    pub(super) fn is_last_round(&self) -> bool {
        self.patient.load(Ordering::Acquire)
    }

    /// Counts a turn of each of the first `functions`. Called by the worker only.
    #[inline]
    pub(super) fn count_turns(&self, functions: usize) {
        for function in &self.functions[..functions] {
            let turns = function.turns.load(Ordering::Relaxed);
            function.turns.store(turns + 1, Ordering::Relaxed);
        }
    }

    pub(super) fn measure(&self, measured: &Measured) {
        let words = [
            measured.batch as u64,
            measured.empty.to_bits(),
            measured.switches.to_bits(),
            measured.packet.to_bits(),
        ];
        for (to, word) in self.measured.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    pub(super) fn measured(&self) -> Measured {
        let [batch, empty, switches, packet] = [0, 1, 2, 3].map(|i| self.measured[i].load(Ordering::Relaxed));
        Measured {
            batch: batch as usize,
            empty: f64::from_bits(empty),
            switches: f64::from_bits(switches),
            packet: f64::from_bits(packet),
        }
    }

    /// Records that at the end of the run no process completes the function's remaining work.
    #[cold]
    pub(super) fn miss(&self, k: usize) {
        self.functions[k].missed.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_missed(&self, k: usize) -> bool {
        self.functions[k].missed.load(Ordering::Relaxed)
    }

    pub(super) fn turns(&self, k: usize) -> u64 {
        self.functions[k].turns.load(Ordering::Relaxed)
    }
}
