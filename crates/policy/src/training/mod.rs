//! A mapper that moves nothing and notes what its core could do.
//!
//! NetBlaze (arXiv 2305.01890, section 3.2) learns what one core can process in an epoch by running
//! everything but flow migration, and noting in each *violating* epoch, one at whose end packets are
//! left over, the flows and packets that were processed. Their Pareto frontier is the capacity
//! ([`EpochFrontier`](crate::capacity::EpochFrontier)).
//!
//! Here an epoch is noted only if the core was at work all the time:
//!
//! - it began and ended with packets waiting;
//! - the turns of the core's loop in which packets were processed add up to at least nine tenths of
//!   it: an epoch in which the queue ran dry for a while, or that nobody ended because there was
//!   nothing to do, shows no capacity;
//! - no turn took longer than four times what its packets take on average and 20 µs more. The core
//!   was taken away then. (The same measure as for the gaps in a run's report.)
//!
//! A turn is not interrupted, so an epoch ends a little late. Its packets are scaled down to the
//! nominal length.
//!
//! **Flows.** A core sees how many packets of each flow wait, in the order of the flows' first
//! packets, and takes packets first in, first out. So what stands before a flow's first packet
//! belongs to flows listed before it, and a flow is certain to be among the `p` packets processed
//! if those flows have fewer than `p`. Exactly these are counted: never more than were processed, and
//! all of them if flows have one packet each, or if all that waited was done.

#[cfg(test)]
mod tests;

use crate::core::{CoreMapper, Load, Plan, View};
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_net::Nanos;

/// A turn may take so many times its packets' average, and [`GRACE`] more.
const PATIENCE: f64 = 4.0;
/// See [`PATIENCE`].
const GRACE: Nanos = Nanos::from_micros(20);
/// Packets that must have been seen before an average is one.
const TELLING: u64 = 256;
/// The share of an epoch that the core must have been at work.
const AT_WORK: f64 = 0.9;
/// The most flows in a queue that are looked at; those beyond are not counted.
const MOST_FLOWS: usize = 1 << 15;

/// What a core did in an epoch in which it had more to do than it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Flows and packets processed, in the length of an epoch.
    pub load: Load,
    /// How long the epoch lasted.
    pub elapsed: Nanos,
}

/// What [`TrainingMapper`]s noted. Clones share their notes.
#[derive(Clone, Debug)]
pub struct TrainingNotes {
    seen: Arc<Mutex<Vec<Observation>>>,
    most: usize,
}

impl TrainingNotes {
    /// Room for `most` observations; later ones are left out.
    pub fn new(most: usize) -> Self {
        TrainingNotes {
            seen: Arc::new(Mutex::new(Vec::with_capacity(most))),
            most,
        }
    }

    /// A mapper that notes here, with epochs of this length.
    pub fn mapper(&self, epoch: Nanos) -> TrainingMapper {
        TrainingMapper {
            notes: self.clone(),
            epoch,
            ends: Nanos::ZERO,
            busy: None,
            ahead: Vec::with_capacity(MOST_FLOWS),
            took: Nanos::ZERO,
            packets: 0,
        }
    }

    /// The observations so far, in the order of their epochs' ends. They are gone from here.
    pub fn take(&self) -> Vec<Observation> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = seen.clone();
        seen.clear();
        taken
    }

    fn note(&self, observation: Observation) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() < self.most {
            seen.push(observation);
        }
    }
}

/// An epoch that began with packets waiting.
#[derive(Clone, Copy, Debug)]
struct Busy {
    began: Nanos,
    processed: u32,
    /// Packets of the first turn, and how long it took from its beginning, which was before the
    /// epoch's.
    first: Option<(u32, Nanos)>,
    /// All other turns.
    rest: Nanos,
    /// The core was taken away.
    away: bool,
}

/// Moves nothing and notes what its core could do; see the [module](self).
#[derive(Debug)]
pub struct TrainingMapper {
    notes: TrainingNotes,
    epoch: Nanos,
    ends: Nanos,
    busy: Option<Busy>,
    /// For each flow that waited when the epoch began, the packets of those listed before it.
    ahead: Vec<u32>,
    /// Turns that were not interrupted, and their packets.
    took: Nanos,
    packets: u64,
}

impl TrainingMapper {
    /// Whether the core was away in a turn that took so long.
    fn is_away(&self, packets: u32, took: Nanos) -> bool {
        if self.packets < TELLING {
            return false;
        }
        let average = self.took.0 as f64 / self.packets as f64;
        took.0 as f64 > PATIENCE * average * f64::from(packets) + GRACE.0 as f64
    }

    /// What the epoch shows that ends now, with packets left.
    fn observe(&self, now: Nanos) -> Option<Observation> {
        let busy = self.busy.as_ref()?;
        let elapsed = now.saturating_sub(busy.began);
        let (first_packets, first_took) = busy.first?;
        let at_work = (first_took.0 + busy.rest.0) as f64;
        // What of the first turn is not accounted for by the others was in this epoch.
        let first = elapsed.saturating_sub(busy.rest);
        if busy.away || at_work < AT_WORK * elapsed.0 as f64 || self.is_away(first_packets, first) {
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
    #[inline]
    fn due(&self, now: Nanos, _packets: u32) -> bool {
        now >= self.ends
    }

    fn decide(&mut self, view: &View<'_>, _plan: &mut Plan) {
        if view.packets > 0
            && let Some(observation) = self.observe(view.now)
        {
            self.notes.note(observation);
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
            away: false,
        });
    }

    fn completed(&mut self, packets: u32, _new: u32, took: Nanos) {
        let away = self.is_away(packets, took);
        if !away {
            self.took += took;
            self.packets += u64::from(packets);
        }
        let Some(busy) = &mut self.busy else {
            return;
        };
        busy.processed += packets;
        match busy.first {
            // It began before the epoch did, and may have received a lot then.
            None => busy.first = Some((packets, took)),
            Some(_) => {
                busy.rest += took;
                busy.away |= away;
            }
        }
    }
}
