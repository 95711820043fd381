//! When there was more to do than could be done in time, and what was done about it.

use super::format::{Flowlets, Header};
use super::read::Decision;
use serde::Serialize;
use std::collections::BTreeMap;
use tailwater_net::Nanos;
use tailwater_policy::capacity::EpochFrontier;
use tailwater_policy::core::{Load, Notice};

/// What a record comes to. Field names are stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The chain's name.
    pub chain: String,
    /// The policy's name.
    pub policy: String,
    /// The latency objective.
    pub slo_us: f64,
    /// The epoch.
    pub epoch_us: f64,
    /// Helpers of each dispatcher.
    pub helpers: usize,
    /// What all decisions come to.
    pub summary: Summary,
    /// The worst episodes, worst first.
    pub episodes: Vec<Episode>,
}

/// What all decisions come to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Decisions in the record.
    pub decisions: u64,
    /// Those that are missing between them.
    pub missing: u64,
    /// Those of which not all flows are recorded.
    pub partial: u64,
    /// Dispatchers that decided.
    pub dispatchers: usize,
    /// From the first decision to the last.
    pub span_us: f64,
    /// Decisions that moved flows.
    pub moves: u64,
    /// Flows moved; of partial decisions those recorded.
    pub flows_moved: u64,
    /// Their packets.
    pub packets_moved: u64,
    /// Flows that were to be split, each as often as a decision said so.
    pub splits: u64,
    /// Flowlets that the mapper placed when they came.
    pub flowlets: u64,
    /// Those of them that it placed with helpers.
    pub flowlets_away: u64,
    /// Times a helper was found recruited that was not before.
    pub recruited: u64,
    /// Times a helper was let go.
    pub released: u64,
    /// Times a helper began to be relieved, since it had too much.
    pub relieved: u64,
    /// The most packets that were held meanwhile.
    pub most_held: u32,
    /// Times boost mode began.
    pub boosts: u64,
    /// Time in boost mode, of all dispatchers.
    pub boost_us: f64,
    /// Decisions with a flow in the queue that alone was beyond what one core can do.
    pub whales: u64,
    /// Decisions that told of a whale that no split helps.
    pub whales_beyond_split: u64,
    /// Decisions that told of more work than all cores can do.
    pub out_of_cores: u64,
    /// The longest that a packet had waited in a dispatcher's queue when the mapper was asked.
    pub longest_wait_us: f64,
    /// What the mapper took for a decision, on average.
    pub decision_mean_us: f64,
    /// The longest.
    pub decision_max_us: f64,
    /// All episodes.
    pub episodes: u64,
    /// Those in which a packet waited for longer than the objective in the dispatcher's queue.
    pub episodes_late: u64,
}

/// Which flows a queue is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One flow is at least half of it.
    Whale,
    /// Many flows.
    Minnows,
}

/// Decisions in a row with more work than one core can do in an epoch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Episode {
    /// Who decided.
    pub dispatcher: u32,
    /// When the packet arrived that had waited longest at the first of them, on the run's clock.
    pub start_us: f64,
    /// From there to the first decision with less work, or to the last if none came.
    pub length_us: f64,
    /// How many decisions.
    pub decisions: u64,
    /// Decisions that are missing in between.
    pub missing: u64,
    /// The most packets in the own queue.
    pub peak_packets: u32,
    /// Flows there then.
    pub peak_flows: u32,
    /// The packets of the largest of these flows.
    pub largest_flow_packets: u32,
    /// Their share.
    pub largest_flow_share: f64,
    /// What that makes it.
    pub kind: Kind,
    /// The most packets in the own queue, with helpers and held.
    pub peak_packets_everywhere: u64,
    /// The longest that a packet had waited in the own queue.
    pub longest_wait_us: f64,
    /// Whether that is longer than the objective: packets were late before they were processed.
    pub late: bool,
    /// Flows moved.
    pub flows_moved: u64,
    /// Their packets.
    pub packets_moved: u64,
    /// Flows that were to be split, each as often as a decision said so.
    pub splits: u64,
    /// Flowlets placed with helpers when they came, since the decision before.
    pub flowlets_away: u64,
    /// When the first flow was moved out of the queue, after the start.
    pub first_move_us: Option<f64>,
    /// Helpers recruited.
    pub recruited: u64,
    /// The most helpers at work.
    pub most_helpers: u32,
    /// Times a helper began to be relieved, since it had too much.
    pub relieved: u64,
    /// The most packets that were held meanwhile.
    pub most_held: u32,
    /// When boost mode was first on, after the start.
    pub first_boost_us: Option<f64>,
    /// Time in boost mode.
    pub boost_us: f64,
    /// Decisions that told of a whale that no split helps.
    pub whales_beyond_split: u64,
    /// Decisions that told of more work than all cores can do.
    pub out_of_cores: u64,
    /// Whether a decision with less work followed.
    pub over: bool,
}

/// An episode that goes on.
struct Open {
    start: Nanos,
    longest: Nanos,
    boost: Nanos,
    episode: Episode,
}

/// What is known of a dispatcher from its last decision.
#[derive(Default)]
struct Dispatcher {
    sequence: u64,
    now: Nanos,
    /// Helpers that worked for it after that decision, as far as it tells.
    recruited: u64,
    /// Helpers that it relieved.
    relieved: u64,
    boost: bool,
    open: Option<Open>,
}

/// Takes in decisions, and tells what they come to.
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
    /// Keeps the `most` worst episodes. Without a `frontier`, an episode is when a packet has waited
    /// for more than two epochs.
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

    /// Takes in a decision, after all that its dispatcher took before.
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
        let at_work = bits(&|i| decision.helpers[i].recruited);
        let recruited = u64::from((at_work & !known.recruited).count_ones());
        let released = bits(&|i| {
            let helper = decision.helpers[i];
            decision.release >> i & 1 != 0 && helper.recruited && helper.load.packets == 0
        });
        let relieved = u64::from((decision.relieve & !known.relieved).count_ones());
        self.count(decision, missing, recruited, released);
        self.summary.relieved += relieved;
        self.boost = Nanos(self.boost.0.saturating_add(boosted.0));
        self.summary.boosts += u64::from(decision.boost && !known.boost);

        // A dispatcher without packets is not asked: what comes after that is another episode.
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
        // What was done since the decision before was done about the packets that wait now.
        if let Some(open) = &mut known.open {
            open.episode.recruited += recruited;
            open.episode.relieved += relieved;
            open.episode.most_held = open.episode.most_held.max(decision.held.packets);
            let away = &mut open.episode.flowlets_away;
            *away = away.saturating_add(decision.flowlets.away);
            if beyond {
                go_on(open, decision, at_work, self.header.slo);
            }
        }
        if !beyond {
            self.close(known.open.take(), now, true);
        }
        known.recruited = at_work & !released;
        known.relieved = decision.relieve;
        known.boost = decision.boost;
        known.now = now;
        self.dispatchers.insert(decision.dispatcher, known);
    }

    fn count(&mut self, decision: &Decision, missing: u64, recruited: u64, released: u64) {
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
        let Flowlets { placed, away } = decision.flowlets;
        summary.flowlets = summary.flowlets.saturating_add(placed);
        summary.flowlets_away = summary.flowlets_away.saturating_add(away);
        summary.recruited += recruited;
        summary.released += u64::from(released.count_ones());
        summary.most_held = summary.most_held.max(decision.held.packets);
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

    /// Whether there is more to do, here and with helpers, than one core can in an epoch, or a
    /// packet has waited for longer than it should.
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
        // Worst first; of equals the first.
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

    /// What all of it comes to.
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
            helpers: self.header.helpers,
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

/// What waits in the own queue, is with helpers and is held.
fn everywhere(decision: &Decision) -> Load {
    let mut all = decision.queue;
    // Flows that are held count with the helper that has them.
    all.packets = all.packets.saturating_add(decision.held.packets);
    decision.helpers.iter().fold(all, |all, helper| Load {
        flows: all.flows.saturating_add(helper.load.flows),
        packets: all.packets.saturating_add(helper.load.packets),
    })
}

/// 1 for a notice of a whale, and for one of too few cores.
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
            flows_moved: 0,
            packets_moved: 0,
            splits: 0,
            flowlets_away: 0,
            first_move_us: None,
            recruited: 0,
            most_helpers: 0,
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

fn go_on(open: &mut Open, decision: &Decision, at_work: u64, slo: Nanos) {
    let since = decision.now.saturating_sub(open.start).as_micros_f64();
    open.longest = open.longest.max(decision.wait());
    let episode = &mut open.episode;
    episode.late |= decision.wait() > slo;
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
    episode.most_helpers = episode.most_helpers.max(at_work.count_ones());
    let (beyond_split, out_of_cores) = notices(decision);
    episode.whales_beyond_split += beyond_split;
    episode.out_of_cores += out_of_cores;
}
