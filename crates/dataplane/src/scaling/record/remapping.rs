//! Explanation and replay of a server mapper's decisions.

use super::server::ServerDecision;
use serde::Serialize;
use tailwater_policy::server::{MakeServerMapper, Move, ServerMapper};

/// Explanation of a server mapper's decisions. Field names are stable.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServerExplanation {
    /// Decisions in the record.
    pub decisions: u64,
    /// Decisions missing between them.
    pub missing: u64,
    /// Decisions that moved a bucket.
    pub moves: u64,
    /// RSS buckets moved.
    pub buckets_moved: u64,
    /// Maximum number of dedicated cores in use after a decision.
    pub most_cores: u32,
    /// Minimum number.
    pub fewest_cores: u32,
    /// Mean duration of a decision.
    pub decision_mean_us: f64,
    /// Maximum duration.
    pub decision_max_us: f64,
    /// Decisions that moved most buckets, in order of time.
    pub list: Vec<Remapping>,
}

/// Decision that moved buckets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remapping {
    /// Time of the decision, on the run's clock.
    pub at_us: f64,
    /// Buckets moved.
    pub buckets_moved: u32,
    /// Dedicated cores in use before.
    pub cores_before: u32,
    /// Dedicated cores in use afterwards.
    pub cores_after: u32,
    /// Dedicated cores.
    pub cores: Vec<CoreChange>,
}

/// Load of a core since the previous decision, and the change by this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CoreChange {
    /// RSS buckets it had.
    pub buckets: u32,
    /// Mean number of active flows in them.
    pub flows: f64,
    /// Packets per second in them.
    pub pps: f64,
    /// Share of its time spent on packets.
    pub busy: f64,
    /// Packets lost because its ring was full.
    pub lost: u64,
    /// RSS buckets that leave it.
    pub leaving: u32,
    /// RSS buckets that move to it.
    pub coming: u32,
}

/// Builds an explanation from decisions of a server mapper.
#[derive(Debug, Default)]
pub struct ServerExplainer {
    most: usize,
    next: u64,
    took_us: f64,
    explanation: ServerExplanation,
}

impl ServerExplainer {
    /// Keeps the `most` decisions that moved most buckets.
    pub fn new(most: usize) -> ServerExplainer {
        ServerExplainer {
            most,
            ..ServerExplainer::default()
        }
    }

    /// Adds a decision. Decisions must be in order.
    pub fn add(&mut self, decision: &ServerDecision) {
        let missing = decision.sequence.saturating_sub(self.next);
        self.next = decision.sequence.saturating_add(1);
        let took = decision.took.as_micros_f64();
        self.took_us += took;
        let remapping = remapping(decision);
        let all = &mut self.explanation;
        let fewest = match all.decisions {
            0 => u32::MAX,
            _ => all.fewest_cores,
        };
        all.decisions += 1;
        all.missing = all.missing.saturating_add(missing);
        all.moves += u64::from(remapping.buckets_moved > 0);
        all.buckets_moved += u64::from(remapping.buckets_moved);
        all.most_cores = all.most_cores.max(remapping.cores_after);
        all.fewest_cores = fewest.min(remapping.cores_after);
        all.decision_max_us = all.decision_max_us.max(took);
        if remapping.buckets_moved == 0 {
            return;
        }
        all.list.push(remapping);
        if all.list.len() > self.most {
            // Among equals the last is removed.
            let moved = |at: &usize| all.list[*at].buckets_moved;
            let least = (0..all.list.len()).rev().min_by_key(moved);
            least.map(|least| all.list.remove(least));
        }
    }

    /// Completed explanation, or `None` without decisions.
    pub fn finish(mut self) -> Option<ServerExplanation> {
        let decisions = self.explanation.decisions;
        self.explanation.decision_mean_us = self.took_us / decisions.max(1) as f64;
        (decisions > 0).then_some(self.explanation)
    }
}

fn remapping(decision: &ServerDecision) -> Remapping {
    let loads = decision.cores.iter().map(|core| CoreChange {
        busy: core.busy,
        lost: core.lost,
        ..CoreChange::default()
    });
    let mut cores: Vec<CoreChange> = loads.collect();
    for bucket in &decision.buckets {
        let core = &mut cores[usize::from(bucket.core)];
        core.buckets += 1;
        core.flows += bucket.flows;
        core.pps += bucket.rate;
    }
    for &Move { bucket, to } in &decision.moves {
        let from = decision.buckets[usize::from(bucket)].core;
        cores[usize::from(from)].leaving += 1;
        cores[usize::from(to)].coming += 1;
    }
    let used = |buckets: fn(&CoreChange) -> u32| cores.iter().filter(|core| buckets(core) > 0).count() as u32;
    Remapping {
        at_us: decision.now.as_micros_f64(),
        buckets_moved: decision.moves.len() as u32,
        cores_before: used(|core| core.buckets),
        cores_after: used(|core| core.buckets + core.coming - core.leaving),
        cores,
    }
}

/// Result of a replay of a server mapper's decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ServerReplay {
    /// Recorded decisions.
    pub decisions: u64,
    /// Equal plans.
    pub same: u64,
    /// Different plans.
    pub different: u64,
    /// RSS buckets moved by the recorded plans.
    pub buckets_moved_recorded: u64,
    /// RSS buckets moved by the other mapper's plans.
    pub buckets_moved_replayed: u64,
}

/// Shows recorded views to another server mapper, and compares the plans. The views do not reflect the effects of its
/// own plans.
pub struct ServerReplayer {
    mapper: Box<dyn ServerMapper>,
    plan: Vec<Move>,
    outcome: ServerReplay,
}

impl ServerReplayer {
    /// With a mapper created by `make`.
    pub fn new(make: &MakeServerMapper) -> ServerReplayer {
        ServerReplayer {
            mapper: make(),
            plan: Vec::new(),
            outcome: ServerReplay::default(),
        }
    }

    /// Replays a decision. Decisions must be in order.
    pub fn add(&mut self, decision: &ServerDecision) {
        self.plan.clear();
        self.mapper.remap(&decision.view(), &mut self.plan);
        self.plan.sort_unstable_by_key(|moved| moved.bucket);
        let outcome = &mut self.outcome;
        let same = self.plan == decision.moves;
        outcome.decisions += 1;
        outcome.same += u64::from(same);
        outcome.different += u64::from(!same);
        outcome.buckets_moved_recorded += decision.moves.len() as u64;
        outcome.buckets_moved_replayed += self.plan.len() as u64;
    }

    /// Result of the replay.
    pub fn finish(self) -> ServerReplay {
        self.outcome
    }
}
