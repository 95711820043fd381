//! NetBlaze's two experiments, as queues in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::latencies::Latencies;

/// Number of core counts tried in one pass.
pub(super) const TRIED: u32 = 12;

/// Returns the start of service of a packet that arrives at `time` in a FIFO queue with a fixed service time. `free` is
/// the time at which the queue is free, and is updated.
#[inline]
pub(super) fn serve(time: u64, free: &mut u64, service: u64) -> u64 {
    let start = time.max(*free);
    *free = start.saturating_add(service);
    start
}

/// Flows hashed to cores, for several core counts at once. Each flow is shaped: its packets are at least a service time
/// apart.
pub(super) struct Cores {
    service: u64,
    candidates: Vec<Candidate>,
    /// Packets delayed by their shapers: departure time, a number that orders equal times, and the flow's hash.
    shaped: BinaryHeap<Reverse<(u64, u64, u32)>>,
    held: u64,
}

/// Simulation of one core count.
struct Candidate {
    free: Vec<u64>,
    latencies: Latencies,
}

impl Cores {
    pub(super) fn new(service: u64, fewest: u32) -> Self {
        let candidate = |cores: u32| Candidate {
            free: vec![0; cores as usize],
            latencies: Latencies::new(),
        };
        Cores {
            service,
            candidates: (fewest..fewest + TRIED).map(candidate).collect(),
            shaped: BinaryHeap::new(),
            held: 0,
        }
    }

    /// Adds a packet that arrives at `time` and leaves its shaper at `start`. `time` never goes back.
    pub(super) fn add(&mut self, time: u64, start: u64, hash: u32) {
        self.release(time);
        if start > time {
            self.shaped.push(Reverse((start, self.held, hash)));
            self.held += 1;
        } else {
            self.arrive(time, hash);
        }
    }

    /// Returns the number of packets in shapers.
    pub(super) fn held(&self) -> usize {
        self.shaped.len()
    }

    /// Releases packets that leave their shaper up to `time`.
    fn release(&mut self, time: u64) {
        while let Some(Reverse((start, _, hash))) = self.shaped.peek().copied()
            && start <= time
        {
            self.shaped.pop();
            self.arrive(start, hash);
        }
    }

    #[inline]
    fn arrive(&mut self, time: u64, hash: u32) {
        for candidate in &mut self.candidates {
            let core = core(hash, candidate.free.len());
            let free = &mut candidate.free[core];
            serve(time, free, self.service);
            candidate.latencies.add(*free - time);
        }
    }

    /// Ends the simulation. Returns the fewest cores that keep the median below `median`, and their latencies.
    pub(super) fn finish(mut self, median: u64) -> Option<(u32, Latencies)> {
        self.release(u64::MAX);
        let fits = |candidate: &Candidate| candidate.latencies.percentile(0.5).0 < median;
        let found = self.candidates.into_iter().find(fits)?;
        Some((found.free.len() as u32, found.latencies))
    }
}

/// Returns the core of a flow. Hashes are spread evenly over cores.
#[inline]
pub(super) fn core(hash: u32, cores: usize) -> usize {
    ((u64::from(hash) * cores as u64) >> 32) as usize
}
