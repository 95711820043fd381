//! The oracle: a proven lower bound on the cores that any policy needs to meet the objectives.
//!
//! [`oracle()`] reads the same packets as [`simulate`](crate::simulate), once. It stores only packets that can wait
//! within an objective (and one number per flow). The bound also holds for a policy that has all packets in advance,
//! moves flows and wakes cores at no cost, and decides in no time.
//!
//! # Assumptions
//!
//! Epoch `e` is the time from `e E` to `(e+1) E`, `E` = 100 µs (NetBlaze, section 4). A core is *active* in an epoch in
//! which it does anything. The sum of active cores over epochs is counted in *core-epochs*. The following holds for
//! everything that runs on the simulated rack:
//!
//! 1. A working core is active, and does in a time `t` of an epoch at most `t + 1 ns` of work: the simulator carries
//!    parts of nanoseconds from one batch to the next. So `C = E + 1 ns` in an epoch, and `m` cores at a time do no
//!    more than `m (v t + 2 ns)` in any time `t`, `v = C / E`.
//! 2. Packets are processed in batches of at most `b` (the model's), of one chain, after they have arrived, and leave
//!    when their batch is done. A batch takes a part of its own and parts for its packets
//!    ([`ServiceCosts`](tailwater_policy::capacity::ServiceCosts)). Receiving can use other batches than the functions.
//!    A chain is cut only at the points of its model. A cut's parts may sum to less than the whole.
//! 3. The objective `L` of a chain is met if 99 % of its packets leave at most `L` after their arrival. Of `n` packets,
//!    any `K = ⌊n/100⌋` may be late or lost. A lost packet may take no work at all.
//! 4. Packets of a flow are processed in order, each part of the chain by one core at a time. Only theorem 4 needs
//!    this.
//!
//! Nothing else is assumed. The costs of offloading, decisions, migrations and wake-ups are ignored, and so are links,
//! rings, prefixes, and the fact that the future is unknown. With jitter each batch counts as the shortest possible
//! one.
//!
//! **Lemma 1.** *Let `w` of a packet be its part for the batch divided by `b`, plus its own parts, each as small as a
//! cut can make it. The work of cores for packets is at least the sum of their `w`, for any batches. For an on-time
//! packet it is done between its arrival `a` and `a + L`.* A batch has at most `b` packets, so each packet's share of
//! the batch's part is at least the `b`-th of it, and the shares add up to no more than the part. The same holds for
//! receiving and the functions. No packet is received before it arrived, and on time means that its last batch is done
//! by `a + L`. (A packet for whose flow there is no room is always lost: its `w` is zero.) ∎
//!
//! Averages are over the epochs up to the last arrival plus the longest objective. A policy that processes late packets
//! after that has an average over more epochs. Its average may be below the bound, but not its core-epochs.
//!
//! # Theorem 1: none late
//!
//! *Let a packet's work be possible from the epoch of its arrival to the epoch in which it is due. The procedure of
//! `Demand` gives each epoch, in turn, as many cores as its due and unfinished work needs, and lets them also do the
//! work due next, earliest first. If no packet is late, no policy has fewer core-epochs in any first epochs `0..e` than
//! the procedure.*
//!
//! By lemma 1 the work of a policy is possible in this sense, and amounts to at most `C` times its active cores in an
//! epoch. Take an epoch `e` with cores. Go back to the last epoch `s - 1` before it in which the procedure's cores did
//! not work all the time, or worked on something that is due after `e`. (If there is none, `s = 0`. Zero cores count as
//! working all the time.) After `s - 1` no available work due by `e` was left: otherwise its cores would have done it.
//! So from `s` on the cores worked only on work that arrived in `s` or later and is due by `e`. In all epochs but `e`
//! itself they worked all the time, so the work due by `e` exceeded the capacity of all of them less one core. Every
//! policy has to do that work, `W`, in `s..=e`, and needs `⌈W/C⌉` core-epochs there: not fewer than the procedure.
//! Before `s`, it had not fewer by induction. Epochs without cores add nothing. ∎
//!
//! So the procedure is optimal *for arbitrarily divisible work, between epochs' borders*. Only effects within epochs,
//! the order of flows, and partly filled batches can improve the bound.
//!
//! # Theorem 2: one in a hundred late
//!
//! *Let intervals of epochs be disjoint, `X_i` be the work that arrives and is due within the `i`-th, and `H` the work
//! of the `K` heaviest packets of each chain. Removing work from an interval saves its first core-epoch when `r_i =
//! X_i - (⌈X_i/C⌉ - 1) C` is removed, and another for each further `C`. A policy that meets the objectives has at least
//! `Σ ⌈X_i/C⌉` less `S` core-epochs, where `S` is the maximum that can be saved by removing `H` in total.*
//!
//! Whichever packets are late or lost, their work is at most `H`, with `x_i` of it in interval `i`, `Σ x_i ≤ H`. The
//! others are on time, and need `⌈(X_i - x_i)/C⌉` core-epochs in each interval, as above. The sum of these is smallest
//! if the cheapest savings are made: first savings in rising order of `r_i ≤ C`, and only then others at `C` each. No
//! saving is cheaper than one that it depends on. ∎
//!
//! The oracle uses intervals that begin when work arrives while the procedure of theorem 1 has nothing left to do, each
//! up to the start of the next. It also uses the whole time as one interval. The larger bound holds. Under load both
//! are equal: all work less `H`, divided by `C`.
//!
//! # Theorem 3: the most cores of an epoch
//!
//! *With never more than `m` active cores, the work of late and lost packets is at least the overflow of a bucket that
//! leaks `m v` and holds `m (v L + 4 ns)`, into which each packet's `w` is poured on arrival.*
//!
//! Let `Y(t)` be the work of on-time packets that arrived by `t`, and `S(t)` the completed part of it. Let `Y*` and
//! `S*` be the same for the bucket: poured in, and leaked. Let `Y ≤ Y*` up to `t`, and the bucket be last empty at `u`.
//! Then `S(t) ≤ Y(u) + m (v (t - u) + 2 ns) ≤ S*(t) + m · 2 ns`. When the bucket overflows it is full, `Y* - S* = m (v
//! L + 4 ns)`, while `Y - S ≤ m (v L + 2 ns)`, for that has to be done within `L`. So `Y ≤ Y*` then, and until the next
//! overflow, as everything is poured in. The part missing from all work is at least as large with the policy as with
//! the bucket. With several chains, `L` is the longest. ∎
//!
//! So if more than `H` overflows at `m`, some epoch has more than `m` cores. Packets that arrive within a *tick* are
//! poured in at its start, and the bucket is larger by the corresponding amount: they are available earlier, and due no
//! earlier.
//!
//! # Theorem 4: flows beyond a core
//!
//! *The work of late and lost packets is at least the overflow of buckets, one per flow, that leak 1 and hold `L`, into
//! which the work is poured that no two packets of the flow can have at the same time.*
//!
//! By assumption 4 the work of different packets is done at different times, at a speed of at most 1. The rest follows
//! as in theorem 3 with `m = 1`. With a cut chain, the first parts of all packets are processed one after another, and
//! so are the last parts. The larger of the two counts, each as small as any cut makes it. Up to a nanosecond of a
//! batch may be carried over, and is subtracted. ∎
//!
//! If it exceeds the work of the heaviest `K` packets, no number of cores meets the objective. Otherwise order adds
//! nothing to the number of cores here. `H` already limits the work that may be left out. A flow may change cores
//! between any two packets, so flows below a core's speed fill cores without gaps.

mod demand;
mod peak;
mod weights;

use crate::chain::{COUNTED, ChainModel};
use crate::simulation::{Merged, RunOptions, SimError};
use crate::traffic::{ChunkReader, MOST_CHAINS, NO_FLOW_INDEX, Packet, Workload};
use demand::{Blocks, Demand};
use peak::Peak;
use serde::{Deserialize, Serialize};
use tailwater_net::Nanos;
use weights::{Tally, Weights};

/// One of this many packets may be late.
const LATE: u64 = 100;
/// Longest objective.
const LONGEST: Nanos = Nanos::from_secs(100);
/// Work that a core does in an epoch, in picoseconds.
const CAPACITY: u64 = (COUNTED.0 + 1) * 1000;
/// Longest tick. [`TICKS`] is the number of ticks in the shortest objective.
const TICK: Nanos = Nanos(6_250);
const TICKS: u64 = 16;

/// Chain whose cores are to be bounded.
#[derive(Debug)]
pub struct BoundedChain<'a> {
    /// Cost model of its packets.
    pub model: ChainModel,
    /// Its latency objective, for 99 % of the packets.
    pub slo: Nanos,
    /// Its packets.
    pub workload: Workload<'a>,
}

/// Lower bound for every policy that meets all chains' objectives. Field names are stable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OracleReport {
    /// Cores of the whole rack, for all chains together, if 99 % of each chain's packets are in time.
    pub cores: RackBound,
    /// The same if all packets are in time.
    pub cores_none_late: RackBound,
    /// Epochs of 100 µs, from the end of the warm-up to the last arrival plus the longest objective. Averages are over
    /// these.
    pub epochs: u64,
    /// Bounds of the chains.
    pub chains: Vec<ChainBound>,
}

/// Lower bounds on the cores of a rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RackBound {
    /// Active cores in an epoch of 100 µs, averaged over all epochs.
    pub average: f64,
    /// Maximum cores of an epoch.
    pub most: u32,
    /// Sum of active cores over all epochs.
    pub core_epochs: u64,
}

/// Lower bounds on one chain's cores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainBound {
    /// Name of the chain.
    pub chain: String,
    /// Name of the traffic.
    pub traffic: String,
    /// Latency objective, in microseconds.
    pub slo_us: f64,
    /// Packets that arrived.
    pub packets: u64,
    /// Flows that began.
    pub flows: u64,
    /// Packets that may be late or lost.
    pub late_allowed: u64,
    /// Minimum number of late or lost packets, because their flows exceed a core.
    pub late_unavoidable: u64,
    /// `true` if `late_unavoidable` is at most `late_allowed`.
    pub attainable: bool,
    /// Cores in use, averaged over time. This counts working time, not the epochs in which cores are active.
    pub cores: f64,
    /// The same if no packet is late.
    pub cores_none_late: f64,
}

/// Returns a lower bound on the cores of any policy that meets all chains' objectives. See the
/// [module](mod@crate::oracle) for the definition and the proofs.
///
/// Of the options only the warm-up matters. As in a run, it is not reported, and packets that arrive in it may have
/// been processed in it. A policy may have `i` packets in the system at its end, which then count as offered. So
/// `i/100` more packets may be late than this bound allows.
///
/// # Errors
/// A chain is invalid, its traffic cannot be read, its objective is zero or longer than 100 s, or windows are shorter
/// than 100 µs.
pub fn oracle(chains: Vec<BoundedChain<'_>>, options: &RunOptions) -> Result<OracleReport, SimError> {
    oracle_with(chains, options, |_| true)
}

/// Like [`oracle`], with calls of `progress` with the time of arrivals. If `progress` returns `false`, the run ends.
///
/// # Errors
/// As [`oracle`].
pub fn oracle_with(
    chains: Vec<BoundedChain<'_>>,
    options: &RunOptions,
    progress: impl FnMut(Nanos) -> bool,
) -> Result<OracleReport, SimError> {
    let warm_up = options.warm_up()?;
    bounds(chains, warm_up, LATE, progress)
}

/// Computes the bounds if, from the end of the warm-up on, one in `late` packets may be late.
fn bounds(
    mut chains: Vec<BoundedChain<'_>>,
    warm_up: Nanos,
    late: u64,
    mut progress: impl FnMut(Nanos) -> bool,
) -> Result<OracleReport, SimError> {
    if chains.is_empty() || chains.len() > MOST_CHAINS {
        let found = chains.len();
        return Err(SimError::Chains { found });
    }
    let mut known = Vec::new();
    let mut feeds = Vec::new();
    for chain in &mut chains {
        if chain.slo == Nanos::ZERO || chain.slo > LONGEST {
            return Err(SimError::Setting {
                field: "slo",
                expected: "more than 0s, and at most 100s",
            });
        }
        let name = chain.model.name.clone();
        let costs = chain.model.compile().map_err(|source| SimError::Chain {
            name: name.clone(),
            source,
        })?;
        let traffic = chain.workload.name().to_owned();
        known.push(Chain::new(name, traffic, chain.slo, Weights::of(&costs)));
        feeds.push(ChunkReader::new(&mut chain.workload));
    }
    let mut rack = Bounds::new(known);
    let mut traffic = Merged::new(feeds);
    loop {
        // A flow is removed only when its work is due.
        let oldest = rack.last.saturating_sub(rack.longest);
        let chunk = traffic.next(oldest)?;
        let Some(last) = chunk.packets.last() else {
            break;
        };
        let reported = chunk.packets.iter().filter(|p| p.arrival >= warm_up.0);
        reported.for_each(|packet| rack.take(packet));
        rack.last = last.arrival;
        if !progress(Nanos(last.arrival)) {
            break;
        }
    }
    Ok(rack.finish(warm_up.0, late))
}

/// State of a chain.
struct Chain {
    name: String,
    traffic: String,
    slo: u64,
    weights: Weights,
    tally: Tally,
    /// By flow: completion time of its packets, in picoseconds.
    through: Vec<u64>,
    /// Work of flows beyond the amount that can be done in time.
    beyond: u64,
    /// Work that is not passed on yet, the epoch in which it is due, and the time from which on packets are due later.
    work: u64,
    due: u64,
    later: u64,
}

impl Chain {
    fn new(name: String, traffic: String, slo: Nanos, weights: Weights) -> Chain {
        Chain {
            name,
            traffic,
            slo: slo.0,
            weights,
            tally: Tally::default(),
            through: Vec::new(),
            beyond: 0,
            work: 0,
            due: 0,
            later: 0,
        }
    }

    /// Sets the due epoch of packets that arrive now: it contains the last moment at which they may be processed.
    #[cold]
    fn set_due(&mut self, now: u64) {
        self.due = now.saturating_add(self.slo - 1) / COUNTED.0;
        let next = (self.due + 1).saturating_mul(COUNTED.0);
        self.later = next.saturating_sub(self.slo - 1);
    }

    /// Adds a packet's work to its flow.
    #[inline]
    fn pour(&mut self, packet: &Packet) {
        let flow = packet.flow as usize;
        if flow >= self.through.len() {
            if packet.flow == NO_FLOW_INDEX {
                return;
            }
            self.through.resize(flow + 1, 0);
        }
        let through = &mut self.through[flow];
        let now = packet.arrival.saturating_mul(1000);
        let latest = now.saturating_add(self.slo * 1000);
        *through = now.max(*through) + self.weights.serial(packet);
        if *through > latest {
            self.beyond = self.beyond.saturating_add(*through - latest);
            *through = latest;
        }
    }
}

/// State of the whole computation.
struct Bounds {
    chains: Vec<Chain>,
    demand: Demand,
    peak: Peak,
    longest: u64,
    last: u64,
    /// Length of a tick, start and end of the current tick, and its epoch.
    tick: u64,
    began: u64,
    ends: u64,
    epoch: u64,
    /// Work that arrived in it and has been passed on.
    work: u64,
}

impl Bounds {
    fn new(chains: Vec<Chain>) -> Bounds {
        let slos = || chains.iter().map(|chain| chain.slo);
        let longest = slos().max().unwrap_or(1);
        let tick = (slos().min().unwrap_or(1) / TICKS).clamp(1, TICK.0);
        Bounds {
            demand: Demand::new(CAPACITY),
            peak: Peak::new(longest + tick),
            longest,
            last: 0,
            tick,
            began: 0,
            ends: 0,
            epoch: 0,
            work: 0,
            chains,
        }
    }

    #[inline]
    fn take(&mut self, packet: &Packet) {
        if packet.arrival >= self.ends {
            self.next_tick(packet.arrival);
        }
        let number = packet.chain();
        if packet.arrival >= self.chains[number].later {
            self.tell(number);
            self.chains[number].set_due(packet.arrival);
        }
        let chain = &mut self.chains[number];
        chain.work = chain.work.saturating_add(chain.weights.work(packet));
        chain.tally.count(packet);
        chain.pour(packet);
    }

    /// Passes on a chain's work that arrived in this tick and is due in the same epoch.
    fn tell(&mut self, number: usize) {
        let chain = &mut self.chains[number];
        let work = std::mem::take(&mut chain.work);
        if work > 0 {
            self.demand.add(self.epoch, chain.due, work);
            self.work = self.work.saturating_add(work);
        }
    }

    fn end_tick(&mut self) {
        (0..self.chains.len()).for_each(|number| self.tell(number));
        self.peak.add(self.began, std::mem::take(&mut self.work));
    }

    /// Starts the next tick, with a packet that arrives now.
    #[cold]
    fn next_tick(&mut self, now: u64) {
        self.end_tick();
        self.began = now;
        self.epoch = now / COUNTED.0;
        let epoch_ends = (self.epoch + 1).saturating_mul(COUNTED.0);
        self.ends = now.saturating_add(self.tick).min(epoch_ends);
    }

    fn finish(mut self, warm_up: u64, late: u64) -> OracleReport {
        self.end_tick();
        let end = self.last.saturating_add(self.longest);
        let epochs = end.div_ceil(COUNTED.0);
        let epochs = epochs.saturating_sub(warm_up / COUNTED.0).max(1);
        let time = end.saturating_sub(warm_up).max(1);
        let (mut all, mut left_out) = (0, 0);
        let chains = self.chains.iter().map(|chain| {
            let heaviest = chain.tally.heaviest(&chain.weights);
            let late_allowed = chain.tally.packets / late;
            let (work, late_work) = (heaviest.all(), heaviest.of(late_allowed));
            all += work;
            left_out += late_work;
            let cores = |work: u128| work as f64 / 1e3 / time as f64;
            ChainBound {
                chain: chain.name.clone(),
                traffic: chain.traffic.clone(),
                slo_us: Nanos(chain.slo).as_micros_f64(),
                packets: chain.tally.packets,
                flows: chain.tally.flows,
                late_allowed,
                late_unavoidable: heaviest.needed(chain.beyond.into()),
                attainable: u128::from(chain.beyond) <= late_work,
                cores: cores(work - late_work),
                cores_none_late: cores(work),
            }
        });
        let chains = chains.collect();
        let (core_epochs_none_late, blocks) = self.demand.finish();
        let mut whole = Blocks::new(CAPACITY);
        whole.add(all);
        let core_epochs = blocks.core_epochs(left_out).max(whole.core_epochs(left_out));
        let cores = |core_epochs: u64, left_out: u128| RackBound {
            average: core_epochs as f64 / epochs as f64,
            most: if all > left_out { self.peak.cores(left_out) } else { 0 },
            core_epochs,
        };
        OracleReport {
            cores: cores(core_epochs, left_out),
            cores_none_late: cores(core_epochs_none_late.max(whole.core_epochs(0)), 0),
            epochs,
            chains,
        }
    }
}

#[cfg(test)]
mod tests;
