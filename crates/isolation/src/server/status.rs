//! What a worker and the watch tell each other of a group's processes.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How the processes of a group are.
#[derive(Debug)]
pub(super) struct Status {
    functions: Vec<Function>,
    /// The round under way, or whose outcome is being read; or 0.
    busy: AtomicU64,
    /// The processes that take turns, by function; 0 for none. Who ends one takes it out first: its number may soon be
    /// another's.
    processes: Mutex<Box<[u32]>>,
    real_time: AtomicBool,
    /// Whether the round may take its time: the last, in which files are closed.
    patient: AtomicBool,
    /// As the worker last wrote it down: the size, and three numbers' bits.
    measured: [AtomicU64; 4],
}

#[derive(Debug, Default)]
struct Function {
    /// How often a process was attached. 0 while none is.
    up: AtomicU32,
    /// The number of the process that lied last. 0 if none has.
    liar: AtomicU32,
    turns: AtomicU64,
    /// Whether it had no process at the end of the run that did all there was to do.
    missed: AtomicBool,
}

/// What a worker measures of its rounds, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// The size of batches.
    pub(super) batch: usize,
    /// Nanoseconds of a round of no packets.
    pub(super) empty: f64,
    /// Nanoseconds of any other besides its packets.
    pub(super) switches: f64,
    /// Nanoseconds that each packet adds.
    pub(super) packet: f64,
}

impl Status {
    pub(super) fn new(functions: usize) -> Status {
        Status {
            functions: (0..functions).map(|_| Function::default()).collect(),
            busy: AtomicU64::new(0),
            processes: Mutex::new(vec![0; functions].into()),
            real_time: AtomicBool::new(false),
            patient: AtomicBool::new(false),
            measured: Default::default(),
        }
    }

    fn processes(&self) -> MutexGuard<'_, Box<[u32]>> {
        // Numbers, which are right whatever happened to their last user.
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process that takes turns as function `k`; 0 for none.
    pub(super) fn set_process(&self, k: usize, process: u32) {
        self.processes()[k] = process;
    }

    /// Asks whether that process has ended, upon which its number is nobody's, or another's.
    pub(super) fn take_ended<T>(&self, k: usize, ended: impl FnOnce() -> Option<T>) -> Option<T> {
        let mut processes = self.processes();
        let ended = ended()?;
        processes[k] = 0;
        Some(ended)
    }

    /// Does something with the processes that take turns. Their numbers remain theirs meanwhile. The worker does not give its
    /// core away while it waits for the watch, which goes before it and is soon done.
    pub(super) fn with_processes<T>(&self, use_them: impl FnOnce(&[u32]) -> T) -> T {
        /// More than ever were needed: if the watch itself waits, so do we.
        const SPINS: u32 = 100_000;
        for _ in 0..SPINS {
            if let Ok(processes) = self.processes.try_lock() {
                return use_them(&processes);
            }
            std::hint::spin_loop();
        }
        use_them(&self.processes())
    }

    /// Whether the processes have real-time priority, and so are queued on their core.
    #[inline]
    pub(super) fn is_real_time(&self) -> bool {
        self.real_time.load(Ordering::Relaxed)
    }

    pub(super) fn set_real_time(&self, real_time: bool) {
        self.real_time.store(real_time, Ordering::Relaxed);
    }

    /// The number of the process that is attached as function `k`; 0 if none is.
    #[inline]
    pub(super) fn up(&self, k: usize) -> u32 {
        self.functions[k].up.load(Ordering::Acquire)
    }

    /// Another number than ever before for this function.
    pub(super) fn set_up(&self, k: usize, number: u32) {
        self.functions[k].up.store(number, Ordering::Release);
    }

    /// No process is attached.
    pub(super) fn set_down(&self, k: usize) {
        self.functions[k].up.store(0, Ordering::SeqCst);
    }

    /// The process of this number has lied: it is to be ended, unless it has been already.
    #[cold]
    pub(super) fn accuse(&self, k: usize, number: u32) {
        self.functions[k].liar.store(number, Ordering::Release);
    }

    /// Whether the process that is attached has lied.
    pub(super) fn has_lied(&self, k: usize) -> bool {
        let (liar, up) = (self.functions[k].liar.load(Ordering::Acquire), self.up(k));
        up != 0 && liar == up
    }

    /// Begins a round, if the processes are still those of these numbers; else the first function with another one, or
    /// none. A process that is attached later finds the round [busy](Status::busy), and stays out of it: either the
    /// worker sees that the process before is down, or who attaches the next one sees the round.
    #[inline]
    pub(super) fn begin(&self, round: u64, numbers: impl Iterator<Item = u32>) -> Result<(), usize> {
        self.busy.store(round, Ordering::SeqCst);
        let mut functions = self.functions.iter().zip(numbers);
        let other = functions.position(|(function, number)| function.up.load(Ordering::SeqCst) != number);
        match other {
            None => Ok(()),
            Some(k) => Err(k),
        }
    }

    /// The round is over.
    #[inline]
    pub(super) fn end(&self) {
        self.busy.store(0, Ordering::Release);
    }

    /// The round under way, or 0.
    pub(super) fn busy(&self) -> u64 {
        self.busy.load(Ordering::SeqCst)
    }

    pub(super) fn be_patient(&self) {
        self.patient.store(true, Ordering::Release);
    }

    pub(super) fn is_patient(&self) -> bool {
        self.patient.load(Ordering::Acquire)
    }

    /// Counts a turn of the first `functions`. By the worker only.
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

    /// At the end of the run there is no process that does what the function has still to do.
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
