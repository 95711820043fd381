//! Replay of recorded views with another mapper.
//!
//! The views result from the recorded mapper's plans. A mapper that had acted otherwise would have seen other views
//! later. So a difference shows where two mappers diverge, not how a run with the other would have gone. A mapper is
//! shown queues only. Its input from [batches](CoreMapper::completed) and its placement of
//! [flowlets](CoreMapper::place) are not recorded.

use super::read::Decision;
use serde::Serialize;
use std::collections::BTreeMap;
use tailwater_policy::core::{CoreMapper, Destination, Load, MakeMapper, Notice, Plan, QueuedFlow, View};

/// Outline of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outline {
    /// Flows to move.
    pub flows_moved: u32,
    /// Packets of these flows.
    pub packets_moved: u32,
    /// Auxiliary cores they move to.
    pub helpers: u32,
    /// Auxiliary cores to release.
    pub released: u32,
    /// Auxiliary cores to relieve.
    pub relieved: u32,
    /// Flows to split.
    pub splits: u32,
    /// Boost mode.
    pub boost: bool,
    /// `whale-beyond-split`, `out-of-cores`, or nothing.
    pub notice: Option<&'static str>,
    /// Packets the notice is about.
    pub notice_packets: u32,
}

/// Decision on which two mappers differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Index of the dispatcher.
    pub dispatcher: u32,
    /// Time of the decision, on the run's clock.
    pub at_us: f64,
    /// Packets in the local queue.
    pub packets: u32,
    /// Flows in the local queue.
    pub flows: u32,
    /// Recorded plan.
    pub recorded: Outline,
    /// Plan of the other mapper.
    pub replayed: Outline,
}

/// Number of decisions that differ in each part of the plan. A decision may differ in several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Differences {
    /// Destinations of flows.
    pub places: u64,
    /// Auxiliary cores released.
    pub releases: u64,
    /// Auxiliary cores relieved.
    pub reliefs: u64,
    /// Flows split.
    pub splits: u64,
    /// Boost mode.
    pub boost: u64,
    /// Notice to the operator.
    pub notice: u64,
}

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replay {
    /// Recorded decisions.
    pub decisions: u64,
    /// Decisions for which the mapper would not have been due at that time.
    pub not_due: u64,
    /// Decisions whose queue was too long to be recorded completely. The mapper is shown flows of nearly equal size in
    /// place of the omitted ones, and the plans are not compared.
    pub partial: u64,
    /// Decisions missing in between.
    pub missing: u64,
    /// Equal plans.
    pub same: u64,
    /// Different plans.
    pub different: u64,
    /// Parts of the plans that differ.
    pub differences: Differences,
    /// Packets moved by the recorded plans, over all compared decisions.
    pub packets_moved_recorded: u64,
    /// Packets moved by the mapper's plans.
    pub packets_moved_replayed: u64,
    /// First differences.
    pub first: Vec<Difference>,
}

/// Replay state of one dispatcher.
struct Replayed {
    mapper: Box<dyn CoreMapper>,
    next: u64,
}

/// Shows recorded views to mappers, one per dispatcher, and compares the plans.
pub struct Replayer {
    make: MakeMapper,
    most: usize,
    outcome: Replay,
    mappers: BTreeMap<u32, Replayed>,
    queued: Vec<QueuedFlow>,
    plan: Plan,
}

impl Replayer {
    /// With mappers created by `make`. Keeps the first `most` differences.
    pub fn new(make: MakeMapper, most: usize) -> Replayer {
        Replayer {
            make,
            most,
            outcome: Replay::default(),
            mappers: BTreeMap::new(),
            queued: Vec::new(),
            plan: Plan::default(),
        }
    }

    /// Replays a decision. Decisions of one dispatcher must be in order.
    pub fn add(&mut self, decision: &Decision) {
        let Replayer { outcome, plan, .. } = self;
        outcome.decisions += 1;
        let dispatcher = self.mappers.entry(decision.dispatcher);
        let replayed = dispatcher.or_insert_with(|| Replayed {
            mapper: (self.make)(),
            next: 0,
        });
        let missing = decision.sequence.saturating_sub(replayed.next);
        outcome.missing = outcome.missing.saturating_add(missing);
        replayed.next = decision.sequence.saturating_add(1);
        fill(&mut self.queued, decision);
        let view = View {
            now: decision.now,
            oldest: decision.oldest,
            queued: &self.queued,
            packets: decision.queue.packets,
            parked: decision.held,
            auxiliaries: &decision.helpers,
        };
        if !replayed.mapper.due(view.now, view.packets) {
            outcome.not_due += 1;
            return;
        }
        plan.clear(view.queued.len());
        replayed.mapper.decide(&view, plan);
        match decision.is_whole() {
            true => compare(decision, plan, self.most, outcome),
            false => outcome.partial += 1,
        }
    }

    /// Result of the replay.
    pub fn finish(self) -> Replay {
        self.outcome
    }
}

/// Queue as the mapper saw it. For a queue that is not listed completely, one with the same number of flows and packets
/// and the same largest flows.
fn fill(queued: &mut Vec<QueuedFlow>, decision: &Decision) {
    let Load { flows, packets } = decision.queue;
    let listed: u32 = decision.listed.iter().map(|flow| flow.packets).sum();
    let others = flows - decision.listed.len() as u32;
    let rest = packets - listed;
    queued.clear();
    // The first of them have one packet more than the others, so the total is right.
    queued.extend((0..flows).map(|_| QueuedFlow {
        packets: rest.checked_div(others).unwrap_or(0),
        bound: false,
    }));
    let mut more = rest.checked_rem(others).unwrap_or(0);
    let mut listed = decision.listed.iter().peekable();
    for (at, flow) in queued.iter_mut().enumerate() {
        if let Some(known) = listed.next_if(|known| known.position as usize == at) {
            (flow.packets, flow.bound) = (known.packets, known.bound);
        } else if more > 0 {
            flow.packets += 1;
            more -= 1;
        }
    }
}

fn compare(decision: &Decision, plan: &Plan, most: usize, outcome: &mut Replay) {
    let listed = decision.listed.iter();
    let places = listed.zip(&plan.destinations).any(|(flow, place)| flow.place != *place);
    let differs = [
        (places, &mut outcome.differences.places),
        (decision.release != plan.release, &mut outcome.differences.releases),
        (decision.relieve != plan.relieve, &mut outcome.differences.reliefs),
        (decision.splits != plan.splits, &mut outcome.differences.splits),
        (decision.boost != plan.boost, &mut outcome.differences.boost),
        (decision.notice != plan.notice, &mut outcome.differences.notice),
    ];
    let mut different = false;
    for (differs, count) in differs {
        *count += u64::from(differs);
        different |= differs;
    }
    let recorded = outline(
        decision.listed.iter().map(|flow| (flow.packets, flow.place)),
        (decision.release, decision.relieve, decision.splits.len()),
        (decision.boost, decision.notice),
    );
    let flows = decision.listed.iter().zip(&plan.destinations);
    let replayed = outline(
        flows.map(|(flow, place)| (flow.packets, *place)),
        (plan.release, plan.relieve, plan.splits.len()),
        (plan.boost, plan.notice),
    );
    outcome.packets_moved_recorded += u64::from(recorded.packets_moved);
    outcome.packets_moved_replayed += u64::from(replayed.packets_moved);
    if !different {
        outcome.same += 1;
        return;
    }
    outcome.different += 1;
    if outcome.first.len() < most {
        outcome.first.push(Difference {
            dispatcher: decision.dispatcher,
            at_us: decision.now.as_micros_f64(),
            packets: decision.queue.packets,
            flows: decision.queue.flows,
            recorded,
            replayed,
        });
    }
}

fn outline(
    flows: impl Iterator<Item = (u32, Destination)>,
    (release, relieve, splits): (u64, u64, usize),
    (boost, notice): (bool, Option<Notice>),
) -> Outline {
    let (notice, notice_packets) = match notice {
        None => (None, 0),
        Some(Notice::WhaleBeyondSplit { packets }) => (Some("whale-beyond-split"), packets),
        Some(Notice::OutOfCores { packets }) => (Some("out-of-cores"), packets),
    };
    let mut outline = Outline {
        released: release.count_ones(),
        relieved: relieve.count_ones(),
        splits: splits as u32,
        boost,
        notice,
        notice_packets,
        ..Outline::default()
    };
    let mut helpers = 0_u64;
    for (packets, place) in flows {
        if let Some(helper) = place.as_auxiliary() {
            outline.flows_moved += 1;
            outline.packets_moved = outline.packets_moved.saturating_add(packets);
            helpers |= 1 << helper;
        }
    }
    outline.helpers = helpers.count_ones();
    outline
}
