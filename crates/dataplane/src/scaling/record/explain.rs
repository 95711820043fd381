//! Explanation of a record: episodes with more work than could be done in time, and the actions taken.

use super::format::{Flowlets, Header};
use super::lease::{Chance, Lease};
use super::read::Decision;
use serde::Serialize;
use std::collections::BTreeMap;
use tailwater_net::Nanos;
use tailwater_policy::capacity::EpochFrontier;
use tailwater_policy::core::{Load, Notice};

/// Explanation of a record. Field names are stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Name of the chain.
    pub chain: String,
    /// Name of the policy.
    pub policy: String,
    /// Latency objective, in microseconds.
    pub slo_us: f64,
    /// Epoch, in microseconds.
    pub epoch_us: f64,
    /// Auxiliary cores per dispatcher.
    #[serde(rename = "helpers")]
    pub auxiliary: usize,
    /// Other dedicated cores that could help each.
    pub dedicated: usize,
    /// CPUs of the dedicated cores, by dispatcher. Empty if the record does not have them.
    pub dedicated_cpus: Vec<u32>,
    /// CPUs of the auxiliary cores, by their number.
    pub auxiliary_cpus: Vec<u32>,
    /// Summary of all decisions.
    pub summary: Summary,
    /// Worst episodes, worst first.
    pub episodes: Vec<Episode>,
}

/// Summary of all decisions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Decisions in the record.
    pub decisions: u64,
    /// Decisions missing between them.
    pub missing: u64,
    /// Decisions of which not all flows are recorded.
    pub partial: u64,
    /// Dispatchers that decided.
    pub dispatchers: usize,
    /// Time from the first decision to the last.
    pub span_us: f64,
    /// Decisions that moved flows.
    pub moves: u64,
    /// Flows moved. Of partial decisions only recorded ones count.
    pub flows_moved: u64,
    /// Packets of these flows.
    pub packets_moved: u64,
    /// Flows to split, counted once per decision.
    pub splits: u64,
    /// Flowlets that the mapper placed on arrival.
    pub flowlets: u64,
    /// Flowlets placed on auxiliary cores, or on dedicated ones that helped.
    pub flowlets_away: u64,
    /// Flowlets placed on dedicated cores that helped.
    pub flowlets_to_dedicated: u64,
    /// Times an auxiliary core was newly activated.
    #[serde(rename = "recruited")]
    pub activated: u64,
    /// Times an auxiliary core was released.
    pub released: u64,
    /// Times the relief of an overloaded auxiliary core began.
    pub relieved: u64,
    /// Maximum number of packets parked meanwhile.
    #[serde(rename = "most_held")]
    pub most_parked: u32,
    /// Times boost mode began.
    pub boosts: u64,
    /// Time in boost mode, summed over all dispatchers.
    pub boost_us: f64,
    /// Decisions with a flow in the queue that alone exceeded one core's capacity.
    pub whales: u64,
    /// Decisions that reported a whale (a flow beyond one core's capacity) that no split helps.
    pub whales_beyond_split: u64,
    /// Decisions that reported insufficient cores.
    pub out_of_cores: u64,
    /// Longest waiting time of a packet in a dispatcher's queue at a decision.
    pub longest_wait_us: f64,
    /// Mean duration of a decision.
    pub decision_mean_us: f64,
    /// Maximum duration.
    pub decision_max_us: f64,
    /// Number of episodes.
    pub episodes: u64,
    /// Episodes in which a packet waited longer than the objective in the dispatcher's queue.
    pub episodes_late: u64,
}

/// Composition of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One flow makes up at least half of it (NetBlaze: a whale).
    Whale,
    /// Many flows (NetBlaze: minnows).
    Minnows,
}

/// Consecutive decisions with more work than one core can do in an epoch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Episode {
    /// Index of the dispatcher.
    pub dispatcher: u32,
    /// Arrival of the oldest packet at the first of them, on the run's clock.
    pub start_us: f64,
    /// Time from there to the first decision with less work, or to the last one if none followed.
    pub length_us: f64,
    /// Number of decisions.
    pub decisions: u64,
    /// Decisions missing in between.
    pub missing: u64,
    /// Maximum number of packets in the local queue.
    pub peak_packets: u32,
    /// Number of flows at that time.
    pub peak_flows: u32,
    /// Packets of the largest of these flows.
    pub largest_flow_packets: u32,
    /// Share of that flow.
    pub largest_flow_share: f64,
    /// Resulting classification.
    pub kind: Kind,
    /// Maximum number of packets in the local queue, on auxiliary cores and parked.
    pub peak_packets_everywhere: u64,
    /// Longest waiting time of a packet in the local queue.
    pub longest_wait_us: f64,
    /// The wait exceeds the objective: packets were late before they were processed.
    pub late: bool,
    /// Lease that could have saved the first of these packets, and why it did not.
    pub lease: Option<Lease>,
    /// Flows moved.
    pub flows_moved: u64,
    /// Packets of these flows.
    pub packets_moved: u64,
    /// Flows to split, counted once per decision.
    pub splits: u64,
    /// Flowlets placed on auxiliary cores on arrival, since the previous decision.
    pub flowlets_away: u64,
    /// Time of the first move of a flow out of the queue, after the start.
    pub first_move_us: Option<f64>,
    /// Auxiliary cores activated.
    #[serde(rename = "recruited")]
    pub activated: u64,
    /// Maximum number of auxiliary cores at work.
    #[serde(rename = "most_helpers")]
    pub most_auxiliary: u32,
    /// Times the relief of an overloaded auxiliary core began.
    pub relieved: u64,
    /// Maximum number of packets parked meanwhile.
    pub most_held: u32,
    /// Time at which boost mode was first on, after the start.
    pub first_boost_us: Option<f64>,
    /// Time in boost mode.
    pub boost_us: f64,
    /// Decisions that reported a whale that no split helps.
    pub whales_beyond_split: u64,
    /// Decisions that reported insufficient cores.
    pub out_of_cores: u64,
    /// A decision with less work followed.
    pub over: bool,
}

/// Episode in progress.
struct Open {
    start: Nanos,
    longest: Nanos,
    boost: Nanos,
    episode: Episode,
}

/// State of a dispatcher after its last decision.
#[derive(Default)]
struct Dispatcher {
    sequence: u64,
    now: Nanos,
    /// Auxiliary cores that worked for it after that decision, as far as recorded.
    activated: u64,
    /// Auxiliary cores it relieved.
    relieved: u64,
    boost: bool,
    /// Last decision.
    chance: Option<Chance>,
    open: Option<Open>,
}

/// Builds an explanation from decisions.
pub struct Explainer {
    header: Header,
    frontier: EpochFrontier,
    most: usize,
    dispatchers: BTreeMap<u32, Dispatcher>,
    summary: Summary,
    span: Option<(Nanos, Nanos)>,
    longest_wait: Nanos,
    boost: Nanos,
    took: Nanos,
    longest_took: Nanos,
    worst: Vec<Episode>,
}

impl Explainer {
    /// Keeps the `most` worst episodes. Without a `frontier`, an episode is when a packet has waited for more than two
    /// epochs.
    pub fn new(header: &Header, frontier: EpochFrontier, most: usize) -> Explainer {
        Explainer {
            header: header.clone(),
            frontier,
            most,
            dispatchers: BTreeMap::new(),
            summary: Summary::default(),
            span: None,
            longest_wait: Nanos::ZERO,
            boost: Nanos::ZERO,
            took: Nanos::ZERO,
            longest_took: Nanos::ZERO,
            worst: Vec::new(),
        }
    }

    /// Adds a decision. Decisions of one dispatcher must be in order.
    pub fn add(&mut self, decision: &Decision) {
        let now = decision.now;
        let mut known = self.dispatchers.remove(&decision.dispatcher).unwrap_or_default();
        let missing = decision.sequence.saturating_sub(known.sequence);
        known.sequence = decision.sequence.saturating_add(1);
        let silence = now.saturating_sub(known.now);
        let boosted = if known.boost { silence } else { Nanos::ZERO };
        let bits = |wanted: &dyn Fn(usize) -> bool| {
            let helpers = (0..decision.helpers.len()).filter(|i| wanted(*i));
            helpers.fold(0_u64, |bits, i| bits | 1 << i)
        };
        // Dedicated cores that help are activated and released between decisions: flowlets count these.
        let at_work = bits(&|i| decision.helpers[i].active && !decision.helpers[i].dedicated);
        let activated = u64::from((at_work & !known.activated).count_ones());
        let released = bits(&|i| {
            let helper = decision.helpers[i];
            decision.release >> i & 1 != 0 && helper.active && !helper.dedicated && helper.load.packets == 0
        });
        let relieved = u64::from((decision.relieve & !known.relieved).count_ones());
        self.count(decision, missing, activated, released);
        self.summary.relieved += relieved;
        self.boost = Nanos(self.boost.0.saturating_add(boosted.0));
        self.summary.boosts += u64::from(decision.boost && !known.boost);

        // A dispatcher without packets makes no decisions. A decision after such a pause belongs to another episode.
        if silence > self.header.slo && decision.oldest > known.now {
            self.close(known.open.take(), known.now, true);
        }
        let beyond = self.is_beyond(decision);
        if let Some(open) = &mut known.open {
            open.boost = Nanos(open.boost.0.saturating_add(boosted.0));
            let sum = &mut open.episode.missing;
            *sum = sum.saturating_add(missing);
        } else if beyond {
            known.open = Some(begin(decision));
        }
        // Actions since the previous decision concerned the packets that wait now.
        if let Some(open) = &mut known.open {
            open.episode.activated += activated;
            open.episode.relieved += relieved;
            open.episode.most_held = open.episode.most_held.max(decision.held.packets);
            let away = &mut open.episode.flowlets_away;
            *away = away.saturating_add(decision.flowlets.away);
            if beyond {
                let chance = known.chance.filter(|chance| chance.now >= decision.oldest);
                go_on(open, decision, (at_work, chance), self.header.slo);
            }
        }
        if !beyond {
            self.close(known.open.take(), now, true);
        }
        known.activated = at_work & !released;
        known.relieved = decision.relieve;
        known.boost = decision.boost;
        known.chance = Some(Chance::of(decision));
        known.now = now;
        self.dispatchers.insert(decision.dispatcher, known);
    }

    fn count(&mut self, decision: &Decision, missing: u64, activated: u64, released: u64) {
        let now = decision.now;
        let (first, last) = self.span.unwrap_or((now, now));
        self.span = Some((first.min(now), last.max(now)));
        self.longest_wait = self.longest_wait.max(decision.wait());
        self.took = Nanos(self.took.0.saturating_add(decision.took.0));
        self.longest_took = self.longest_took.max(decision.took);
        let summary = &mut self.summary;
        let moved = decision.moved();
        summary.decisions += 1;
        summary.missing = summary.missing.saturating_add(missing);
        summary.partial += u64::from(!decision.is_whole());
        summary.moves += u64::from(moved.flows > 0);
        summary.flows_moved += u64::from(moved.flows);
        summary.packets_moved += u64::from(moved.packets);
        summary.splits += decision.splits.len() as u64;
        let Flowlets {
            placed,
            away,
            dedicated,
        } = decision.flowlets;
        summary.flowlets = summary.flowlets.saturating_add(placed);
        summary.flowlets_away = summary.flowlets_away.saturating_add(away);
        summary.flowlets_to_dedicated = summary.flowlets_to_dedicated.saturating_add(dedicated);
        summary.activated += activated;
        summary.released += u64::from(released.count_ones());
        summary.most_parked = summary.most_parked.max(decision.held.packets);
        let alone = Load {
            flows: 1,
            packets: decision.largest(),
        };
        let whale = !self.frontier.is_empty() && !self.frontier.admits(alone);
        let (beyond_split, out_of_cores) = notices(decision);
        summary.whales += u64::from(whale || beyond_split > 0);
        summary.whales_beyond_split += beyond_split;
        summary.out_of_cores += out_of_cores;
    }

    /// Returns `true` if the work here and on auxiliary cores exceeds one core's capacity in an epoch, or a packet has
    /// waited too long.
    fn is_beyond(&self, decision: &Decision) -> bool {
        let limit = match self.header.epoch {
            Nanos::ZERO => self.header.slo,
            epoch => Nanos(epoch.0.saturating_mul(2)),
        };
        let all = everywhere(decision);
        let outside = !self.frontier.is_empty() && !self.frontier.admits(all);
        outside || decision.wait() > limit
    }

    fn close(&mut self, open: Option<Open>, end: Nanos, over: bool) {
        let Some(open) = open else {
            return;
        };
        let mut episode = open.episode;
        episode.length_us = end.saturating_sub(open.start).as_micros_f64();
        episode.longest_wait_us = open.longest.as_micros_f64();
        episode.boost_us = open.boost.as_micros_f64();
        episode.largest_flow_share = f64::from(episode.largest_flow_packets) / f64::from(episode.peak_packets.max(1));
        episode.over = over;
        if episode.largest_flow_share >= 0.5 {
            episode.kind = Kind::Whale;
        }
        self.summary.episodes += 1;
        self.summary.episodes_late += u64::from(episode.late);
        // Worst first. Ties in order of time.
        let better = |kept: &Episode| {
            (kept.longest_wait_us, kept.peak_packets_everywhere)
                >= (episode.longest_wait_us, episode.peak_packets_everywhere)
        };
        let at = self.worst.partition_point(better);
        if at < self.most {
            self.worst.truncate(self.most - 1);
            self.worst.insert(at, episode);
        }
    }

    /// Completed explanation.
    pub fn finish(mut self) -> Explanation {
        let dispatchers = std::mem::take(&mut self.dispatchers);
        self.summary.dispatchers = dispatchers.len();
        for known in dispatchers.into_values() {
            self.close(known.open, known.now, false);
        }
        let (first, last) = self.span.unwrap_or_default();
        let decisions = self.summary.decisions.max(1) as f64;
        Explanation {
            chain: self.header.chain,
            policy: self.header.policy,
            slo_us: self.header.slo.as_micros_f64(),
            epoch_us: self.header.epoch.as_micros_f64(),
            auxiliary: self.header.auxiliary - self.header.dedicated,
            dedicated: self.header.dedicated,
            dedicated_cpus: self.header.dedicated_cpus,
            auxiliary_cpus: self.header.auxiliary_cpus,
            summary: Summary {
                span_us: (last - first).as_micros_f64(),
                boost_us: self.boost.as_micros_f64(),
                longest_wait_us: self.longest_wait.as_micros_f64(),
                decision_mean_us: self.took.as_micros_f64() / decisions,
                decision_max_us: self.longest_took.as_micros_f64(),
                ..self.summary
            },
            episodes: self.worst,
        }
    }
}

/// Load of the local queue, the auxiliary cores and the parked packets.
fn everywhere(decision: &Decision) -> Load {
    let mut all = decision.queue;
    // Flows with parked packets count on their auxiliary core.
    all.packets = all.packets.saturating_add(decision.held.packets);
    decision.helpers.iter().fold(all, |all, helper| Load {
        flows: all.flows.saturating_add(helper.load.flows),
        packets: all.packets.saturating_add(helper.load.packets),
    })
}

/// 1 for a notice of a whale, and 1 for one of insufficient cores.
fn notices(decision: &Decision) -> (u64, u64) {
    match decision.notice {
        Some(Notice::WhaleBeyondSplit { .. }) => (1, 0),
        Some(Notice::OutOfCores { .. }) => (0, 1),
        None => (0, 0),
    }
}

fn begin(decision: &Decision) -> Open {
    Open {
        start: decision.oldest,
        longest: Nanos::ZERO,
        boost: Nanos::ZERO,
        episode: Episode {
            dispatcher: decision.dispatcher,
            start_us: decision.oldest.as_micros_f64(),
            length_us: 0.0,
            decisions: 0,
            missing: 0,
            peak_packets: 0,
            peak_flows: 0,
            largest_flow_packets: 0,
            largest_flow_share: 0.0,
            kind: Kind::Minnows,
            peak_packets_everywhere: 0,
            longest_wait_us: 0.0,
            late: false,
            lease: None,
            flows_moved: 0,
            packets_moved: 0,
            splits: 0,
            flowlets_away: 0,
            first_move_us: None,
            activated: 0,
            most_auxiliary: 0,
            relieved: 0,
            most_held: 0,
            first_boost_us: None,
            boost_us: 0.0,
            whales_beyond_split: 0,
            out_of_cores: 0,
            over: false,
        },
    }
}

/// Adds a decision to an episode. `chance` is the previous one, if the oldest packet waited then.
fn go_on(open: &mut Open, decision: &Decision, (at_work, chance): (u64, Option<Chance>), slo: Nanos) {
    let since = decision.now.saturating_sub(open.start).as_micros_f64();
    open.longest = open.longest.max(decision.wait());
    let episode = &mut open.episode;
    if decision.wait() > slo && !episode.late {
        episode.late = true;
        episode.lease = Some(chance.map_or(Lease::NO_DECISION, |chance| chance.lease));
    }
    episode.decisions += 1;
    if decision.queue.packets > episode.peak_packets {
        episode.peak_packets = decision.queue.packets;
        episode.peak_flows = decision.queue.flows;
        episode.largest_flow_packets = decision.largest();
    }
    let all = u64::from(everywhere(decision).packets);
    episode.peak_packets_everywhere = episode.peak_packets_everywhere.max(all);
    let moved = decision.moved();
    if moved.flows > 0 {
        episode.first_move_us.get_or_insert(since);
    }
    episode.flows_moved += u64::from(moved.flows);
    episode.packets_moved += u64::from(moved.packets);
    episode.splits += decision.splits.len() as u64;
    if decision.boost {
        episode.first_boost_us.get_or_insert(since);
    }
    episode.most_auxiliary = episode.most_auxiliary.max(at_work.count_ones());
    let (beyond_split, out_of_cores) = notices(decision);
    episode.whales_beyond_split += beyond_split;
    episode.out_of_cores += out_of_cores;
}
