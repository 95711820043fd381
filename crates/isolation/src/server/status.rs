//! What a worker and the watch tell each other of a group's processes.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// How the processes of a group are.
#[derive(Debug)]
pub(super) struct Status {
    functions: Vec<Function>,
    /// The round under way, or 0.
    busy: AtomicU64,
    /// Whether the round may take its time: the last, in which files are closed.
    patient: AtomicBool,
    /// As the worker last wrote it down: the size, and three numbers' bits.
    measured: [AtomicU64; 4],
}

#[derive(Debug, Default)]
struct Function {
    /// How often a process was attached. 0 while none is.
    up: AtomicU32,
    lied: AtomicBool,
    turns: AtomicU64,
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
            patient: AtomicBool::new(false),
            measured: Default::default(),
        }
    }

    /// The number of the process that is attached as function `k`; 0 if none is.
    #[inline]
    pub(super) fn up(&self, k: usize) -> u32 {
        self.functions[k].up.load(Ordering::Acquire)
    }

    /// Another number than ever before for this function.
    pub(super) fn set_up(&self, k: usize, number: u32) {
        let function = &self.functions[k];
        function.lied.store(false, Ordering::Relaxed);
        function.up.store(number, Ordering::Release);
    }

    pub(super) fn set_down(&self, k: usize) {
        self.functions[k].up.store(0, Ordering::Release);
    }

    /// The process has lied: it is to be ended.
    #[cold]
    pub(super) fn accuse(&self, k: usize) {
        self.functions[k].lied.store(true, Ordering::Release);
    }

    pub(super) fn has_lied(&self, k: usize) -> bool {
        self.functions[k].lied.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn set_busy(&self, round: u64) {
        self.busy.store(round, Ordering::Release);
    }

    pub(super) fn busy(&self) -> u64 {
        self.busy.load(Ordering::Acquire)
    }

    pub(super) fn be_patient(&self) {
        self.patient.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_patient(&self) -> bool {
        self.patient.load(Ordering::Relaxed)
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
        let [batch, empty, switches, packet] =
            [0, 1, 2, 3].map(|i| self.measured[i].load(Ordering::Relaxed));
        Measured {
            batch: batch as usize,
            empty: f64::from_bits(empty),
            switches: f64::from_bits(switches),
            packet: f64::from_bits(packet),
        }
    }

    pub(super) fn turns(&self, k: usize) -> u64 {
        self.functions[k].turns.load(Ordering::Relaxed)
    }
}
