//! Core mapper for training: it moves nothing and measures its core's capacity.
//!
//! NetBlaze (arXiv 2305.01890, section 3.2) measures a core's capacity per epoch by running everything but flow
//! migration. For each *violating* epoch, one that ends with packets left over, it records the flows and packets
//! processed. Their Pareto frontier is the capacity ([`EpochFrontier`](crate::capacity::EpochFrontier)).
//!
//! Here an epoch is recorded only if the core worked all the time:
//!
//! - the epoch began and ended with packets waiting;
//! - the loop iterations that processed packets add up to at least nine tenths of it. An epoch in which the queue ran
//!   dry, or that ended late because the core was idle, shows no capacity;
//! - no iteration took longer than four times the average of its packets plus 20 µs. Otherwise the core was preempted.
//!   (Gaps in a run's report use the same measure.)
//!
//! An iteration is not interrupted, so an epoch ends slightly late. Its packets are scaled down to the nominal length.
//!
//! **Flows.** A core counts the waiting packets of each flow, in the order of the flows' first packets, and takes
//! packets first in, first out. So packets in front of a flow's first packet belong to flows listed before it. A flow
//! is certainly among the `p` packets processed if the flows before it have fewer than `p`. Exactly these flows are
//! counted. The count never exceeds the flows processed. It is exact if flows have one packet each, or if all waiting
//! packets were processed.

#[cfg(test)]
mod tests;

use crate::core::{CoreMapper, Load, Plan, View};
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_net::Nanos;

/// Factor on the average time of an iteration's packets. With [`GRACE`] added, longer iterations count as preempted.
const PATIENCE: f64 = 4.0;
/// See [`PATIENCE`].
const GRACE: Nanos = Nanos::from_micros(20);
/// Number of packets from which on an average is valid.
const MIN_SAMPLES: u64 = 256;
/// Share of an epoch that the core must have worked.
const AT_WORK: f64 = 0.9;
/// Maximum number of flows of a queue that are considered. Flows beyond it are not counted.
const MOST_FLOWS: usize = 1 << 15;

/// Work of a core in an epoch in which it was overloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Flows and packets processed, scaled to the length of an epoch.
    pub load: Load,
    /// Actual length of the epoch.
    pub elapsed: Nanos,
}

/// Observations of [`TrainingMapper`]s. Clones share them.
#[derive(Clone, Debug)]
pub struct TrainingRecorder {
    seen: Arc<Mutex<Vec<Observation>>>,
    most: usize,
}

impl TrainingRecorder {
    /// Creates an empty list for up to `most` observations. Later ones are dropped.
    pub fn new(most: usize) -> Self {
        TrainingRecorder {
            seen: Arc::new(Mutex::new(Vec::with_capacity(most))),
            most,
        }
    }

    /// Returns a mapper that records here, with epochs of this length.
    pub fn mapper(&self, epoch: Nanos) -> TrainingMapper {
        TrainingMapper {
            recorder: self.clone(),
            epoch,
            ends: Nanos::ZERO,
            busy: None,
            ahead: Vec::with_capacity(MOST_FLOWS),
            took: Nanos::ZERO,
            packets: 0,
        }
    }

    /// Removes and returns the observations so far, in the order of their epochs' ends.
    pub fn take(&self) -> Vec<Observation> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = seen.clone();
        seen.clear();
        taken
    }

    fn record(&self, observation: Observation) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() < self.most {
            seen.push(observation);
        }
    }
}

/// State of an epoch that began with packets waiting.
#[derive(Clone, Copy, Debug)]
struct Busy {
    began: Nanos,
    processed: u32,
    /// Packets of the first iteration and its duration, which starts before the epoch.
    first: Option<(u32, Nanos)>,
    /// Duration of all other iterations.
    rest: Nanos,
    /// `true` if the core was preempted.
    preempted: bool,
}

/// Core mapper that moves nothing and measures its core's capacity. See the [module](self).
#[derive(Debug)]
pub struct TrainingMapper {
    recorder: TrainingRecorder,
    epoch: Nanos,
    ends: Nanos,
    busy: Option<Busy>,
    /// For each flow that waited when the epoch began, the packets of those listed before it.
    ahead: Vec<u32>,
    /// Duration of iterations without preemption, and their packets.
    took: Nanos,
    packets: u64,
}

impl TrainingMapper {
    /// Returns `true` if the core was preempted in an iteration of duration `took`.
    fn is_preempted(&self, packets: u32, took: Nanos) -> bool {
        if self.packets < MIN_SAMPLES {
            return false;
        }
        let average = self.took.0 as f64 / self.packets as f64;
        took.0 as f64 > PATIENCE * average * f64::from(packets) + GRACE.0 as f64
    }

    /// Returns the observation of the epoch that ends now, with packets left.
    fn observe(&self, now: Nanos) -> Option<Observation> {
        let busy = self.busy.as_ref()?;
        let elapsed = now.saturating_sub(busy.began);
        let (first_packets, first_took) = busy.first?;
        let at_work = (first_took.0 + busy.rest.0) as f64;
        // The part of the first iteration within this epoch is the time that the others do not account for.
        let first = elapsed.saturating_sub(busy.rest);
        if busy.preempted || at_work < AT_WORK * elapsed.0 as f64 || self.is_preempted(first_packets, first) {
            return None;
        }
        let longest = elapsed.max(self.epoch).0;
        let packets = u64::from(busy.processed) * self.epoch.0 / longest.max(1);
        let packets = packets as u32;
        let flows = self.ahead.partition_point(|&ahead| ahead < packets) as u32;
        (packets > 0).then_some(Observation {
            load: Load { flows, packets },
            elapsed,
        })
    }
}

impl CoreMapper for TrainingMapper {
    fn measures_queues(&self) -> bool {
        true
    }

    #[inline]
    fn due(&self, now: Nanos, _packets: u32) -> bool {
        now >= self.ends
    }

    fn decide(&mut self, view: &View<'_>, _plan: &mut Plan) {
        if view.packets > 0
            && let Some(observation) = self.observe(view.now)
        {
            self.recorder.record(observation);
        }
        self.ends = view.now + self.epoch;
        self.ahead.clear();
        let mut ahead = 0;
        for flow in view.queued.iter().take(MOST_FLOWS) {
            self.ahead.push(ahead);
            ahead += flow.packets;
        }
        self.busy = (view.packets > 0).then_some(Busy {
            began: view.now,
            processed: 0,
            first: None,
            rest: Nanos::ZERO,
            preempted: false,
        });
    }

    fn completed(&mut self, packets: u32, _new: u32, took: Nanos) {
        let preempted = self.is_preempted(packets, took);
        if !preempted {
            self.took += took;
            self.packets += u64::from(packets);
        }
        let Some(busy) = &mut self.busy else {
            return;
        };
        busy.processed += packets;
        match busy.first {
            // The first iteration began before the epoch, and may include receiving many packets.
            None => busy.first = Some((packets, took)),
            Some(_) => {
                busy.rest += took;
                busy.preempted |= preempted;
            }
        }
    }
}
