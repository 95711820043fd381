//! The oracle: cores without which no policy keeps the objectives, proven.
//!
//! [`oracle()`] reads the same packets as [`simulate`](crate::simulate), once, and holds no more of them than what may
//! wait within an objective (and, of each flow, a number). Whoever knows all packets before they come, moves flows
//! and wakes cores at no cost and decides in no time still needs what it says.
//!
//! # What is assumed
//!
//! Epoch `e` is the time from `e E` to `(e+1) E`, `E` = 100 µs (NetBlaze, section 4). A core is *active* in an
//! epoch in which it does anything; the sum of active cores over epochs is counted in *core-epochs*. What holds for
//! whatever runs on the simulated rack:
//!
//! 1. A core that works is active, and does in a time `t` of an epoch at most `t + 1 ns` of work: the simulator carries
//!    parts of nanoseconds from one batch to the next. So `C = E + 1 ns` in an epoch, and `m` cores at a time do no
//!    more than `m (v t + 2 ns)` in any time `t`, `v = C / E`.
//! 2. Packets are processed in batches of at most `b` (the model's), of one chain, after they have arrived, and
//!    leave when their batch is through. A batch takes a part of its own and parts for its packets
//!    ([`ServiceCosts`](tailwater_policy::capacity::ServiceCosts)); receiving may be done in other batches than the
//!    functions. A chain is cut only where its model says; a cut's parts may be less than the whole together.
//! 3. The objective `L` of a chain is kept if 99 % of its packets leave at most `L` after they came. Of `n` packets
//!    `K = ⌊n/100⌋` may be late or lost, whichever; a packet that is lost may take nothing at all.
//! 4. Packets of a flow are processed in order, each part of the chain by one core at a time (idea C). Only theorem 4
//!    needs this.
//!
//! Nothing else is: not what hand-overs, decisions, moves or waking up take, not links, rings and prefixes, nor that
//! the future is unknown. With jitter each batch counts as the shortest there can be.
//!
//! **Lemma 1.** *Let `w` of a packet be its part for the batch divided by `b`, plus its own parts, each as small as
//! a cut can make it. What cores do for packets is at least the sum of their `w`, whatever the batches; and for a packet
//! that is on time it is done between its arrival `a` and `a + L`.*
//! A batch has at most `b` packets, so each packet's share of its part is at least the `b`-th of it, and the shares
//! add up to no more than the part; of receiving and the functions likewise. No packet is received before it
//! arrived, and on time means that its last batch is through by `a + L`. (A packet for whose flow there is no room is
//! always lost: its `w` is zero.) ∎
//!
//! Averages are over the epochs up to the last arrival plus the longest objective. A policy that leaves late packets for
//! after that has an average over more of them, and may come below: not in core-epochs.
//!
//! # Theorem 1: none late
//!
//! *Let a packet's work be possible from the epoch in which it arrives to that in which it is due. The procedure of
//! `Demand` gives each epoch, in turn, as many cores as what is due in it and not done needs, and
//! lets them do also what is due next, earliest first. If no packet is late, no policy has fewer core-epochs in any
//! first epochs `0..e` than the procedure.*
//!
//! By lemma 1 the work of a policy is possible in this sense; it does at most `C` times its active cores in an epoch.
//! Take an epoch `e` with cores, and go back to the last epoch `s - 1` before it in which the procedure's cores did
//! not work all the time, or worked on something that is due after `e`. (If there is none, `s = 0`. No cores do work all
//! the time.) After `s - 1` nothing was left that was there and is due by `e`: had there been, its cores would have done
//! it instead. So from `s` on the cores worked only on what came in `s` or later and is due by `e`, and in all but `e`
//! itself they worked all the time, so that what is due by `e` was more than all of them less one core could do. Every
//! policy has to do that work, `W`, in `s..=e`, and needs `⌈W/C⌉` core-epochs there: not fewer than the procedure. Before
//! `s`, it had not fewer by induction. Epochs without cores add nothing. ∎
//!
//! So the procedure is the best there is *for work that can be divided at will, between epochs' borders*: the bound
//! can be improved on only by what happens within epochs, by flows' order, and by batches that are not full.
//!
//! # Theorem 2: one in a hundred late
//!
//! *Let intervals of epochs have no epoch in common, `X_i` be the work that comes and is due within the `i`-th, and
//! `H` the work of the `K` heaviest packets of each chain. Removing work from an interval saves its first
//! core-epoch when `r_i = X_i - (⌈X_i/C⌉ - 1) C` has gone, and another for each further `C`. A policy that keeps the
//! objectives has at least `Σ ⌈X_i/C⌉` less `S` core-epochs, where `S` is the most that can be saved by removing
//! `H` in all.*
//!
//! Whatever packets are late or lost, their work is at most `H`, and `x_i` of it in interval `i`, `Σ x_i ≤ H`. The
//! others are on time, and need `⌈(X_i - x_i)/C⌉` core-epochs in each interval, as above. The sum of these is
//! smallest if the cheapest savings are made: first savings in rising order of `r_i ≤ C`, and only then others at `C`
//! each; what is cheaper than what it depends on does not occur. ∎
//!
//! The oracle uses intervals that begin when work comes while the procedure of theorem 1 has nothing left to do, each to
//! the begin of the next; and the whole time as one. The larger bound holds. Under load both come to the same: all
//! work less `H`, divided by `C`.
//!
//! # Theorem 3: the most cores of an epoch
//!
//! *With never more than `m` active cores, the work of late and lost packets is at least what overflows from a bucket
//! that leaks `m v` and holds `m (v L + 4 ns)`, into which each packet's `w` is poured when it comes.*
//!
//! Let `Y(t)` be the work of on-time packets that came by `t`, `S(t)` what of it is done; `Y*` and `S*` the same of the
//! bucket: poured in, and leaked. Let `Y ≤ Y*` up to `t`, and the bucket be last empty at `u`. Then `S(t) ≤ Y(u) +
//! m (v (t - u) + 2 ns) ≤ S*(t) + m · 2 ns`. When the bucket overflows it is full, `Y* - S* = m (v L + 4 ns)`, while
//! `Y - S ≤ m (v L + 2 ns)`, for that has to be done within `L`: so `Y ≤ Y*` then, and until the next time, as
//! everything is poured in. What is missing of all work is at least as much with the policy as with the bucket. Of several
//! chains, `L` is the longest. ∎
//!
//! So if more than `H` overflows at `m`, some epoch has more than `m` cores. Packets that come within a *tick* are
//! poured in at its begin, and the bucket is larger by so much: they are there earlier, and due no earlier.
//!
//! # Theorem 4: flows beyond a core
//!
//! *The work of late and lost packets is at least what overflows from buckets, one for each flow, that leak 1 and hold
//! `L`, into which is poured what no two packets of the flow can have at the same time.*
//!
//! By assumption 4 that of different packets is done at different times, at a speed of at most 1; then as theorem 3
//! with `m = 1`. Whoever cuts a chain has the first parts of all packets one after another, and the last parts; the
//! larger of the two counts, each as small as any cut makes it. Up to a nanosecond of a batch may be carried over, and
//! is taken off. ∎
//!
//! If it is more than what the heaviest `K` packets take, no number of cores keeps the objective. Otherwise order
//! adds nothing to the number of cores here: `H` says already how much may be left out, and a flow may change cores
//! between any two packets, so that flows below a core's speed fill cores without gaps.

mod demand;
mod peak;
mod weights;

use crate::chain::{COUNTED, ChainModel};
use crate::simulation::{Merged, RunOptions, SimError};
use crate::traffic::{Feed, MOST_TENANTS, NO_PLACE, Packet, Workload};
use demand::{Blocks, Demand};
use peak::Peak;
use serde::{Deserialize, Serialize};
use tailwater_net::Nanos;
use weights::{Tally, Weights};

/// Of so many packets one may be late.
const LATE: u64 = 100;
/// The longest objective.
const LONGEST: Nanos = Nanos::from_secs(100);
/// What a core does in an epoch, in picoseconds.
const CAPACITY: u64 = (COUNTED.0 + 1) * 1000;
/// The longest tick, and of how many parts of the shortest objective it is one.
const TICK: Nanos = Nanos(6_250);
const TICKS: u64 = 16;

/// A chain to be bounded.
#[derive(Debug)]
pub struct BoundedChain<'a> {
    /// What its packets take.
    pub model: ChainModel,
    /// Its latency objective, for 99 % of the packets.
    pub slo: Nanos,
    /// Its packets.
    pub workload: Workload<'a>,
}

/// What no policy goes below that keeps all chains' objectives. Field names are stable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OracleReport {
    /// Cores of the whole rack, whoever uses them, if 99 % of each chain's packets are in time.
    pub cores: RackBound,
    /// The same if all packets are.
    pub cores_none_late: RackBound,
    /// Epochs of 100 µs, from the end of the warm-up to the last arrival plus the longest objective. Averages are
    /// over these.
    pub epochs: u64,
    /// The chains.
    pub chains: Vec<ChainBound>,
}

/// Cores of a rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RackBound {
    /// Cores that are active in an epoch of 100 µs, at least, averaged over all epochs.
    pub average: f64,
    /// Cores of the epoch with most of them, at least.
    pub most: u32,
    /// The sum of active cores over all epochs, at least.
    pub core_epochs: u64,
}

/// One chain's cores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainBound {
    /// The chain's name.
    pub chain: String,
    /// The traffic's name.
    pub traffic: String,
    /// The latency objective, in microseconds.
    pub slo_us: f64,
    /// Packets that arrived.
    pub packets: u64,
    /// Flows that began.
    pub flows: u64,
    /// Packets that may be late or lost.
    pub late_allowed: u64,
    /// Packets that are late or lost at least, as their flows are too much for a core.
    pub late_unavoidable: u64,
    /// Whether these are no more than may be.
    pub attainable: bool,
    /// Cores in use, at least, averaged over time: their time, not the epochs in which they are active.
    pub cores: f64,
    /// The same if no packet is late.
    pub cores_none_late: f64,
}

/// The fewest cores that any policy needs which keeps all chains' objectives: see the
/// [module](mod@crate::oracle) for what that means, and the proofs.
///
/// Of the options only the warm-up matters: as in a run, it is not reported, and what arrives in it may have been
/// processed in it. A policy may have `i` packets in the system at its end, which then count as offered: `i/100` more
/// may be late than are allowed for here.
///
/// # Errors
/// A chain is none, its traffic cannot be read, its objective is zero or longer than 100 s, or windows are shorter than
/// 100 µs.
pub fn oracle(chains: Vec<BoundedChain<'_>>, options: &RunOptions) -> Result<OracleReport, SimError> {
    oracle_with(chains, options, |_| true)
}

/// As [`oracle`]; `progress` is told the time of arrivals now and then, and may end the run by `false`.
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

/// From the end of the warm-up on, one in `late` packets may be late.
fn bounds(
    mut chains: Vec<BoundedChain<'_>>,
    warm_up: Nanos,
    late: u64,
    mut progress: impl FnMut(Nanos) -> bool,
) -> Result<OracleReport, SimError> {
    if chains.is_empty() || chains.len() > MOST_TENANTS {
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
        feeds.push(Feed::new(&mut chain.workload));
    }
    let mut rack = Bounds::new(known);
    let mut traffic = Merged::new(feeds);
    loop {
        // A flow is forgotten only when what it has to do is due.
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

/// What is known of a chain.
struct Chain {
    name: String,
    traffic: String,
    slo: u64,
    weights: Weights,
    tally: Tally,
    /// By flow: when it is through with its packets, in picoseconds.
    through: Vec<u64>,
    /// What flows have to do more than can be in time.
    beyond: u64,
    /// Work that has not been told on, the epoch in which it is due, and from when on packets are due later.
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

    /// Packets that come now are due in the epoch in which the last moment is at which they may be worked on.
    #[cold]
    fn set_due(&mut self, now: u64) {
        self.due = now.saturating_add(self.slo - 1) / COUNTED.0;
        let next = (self.due + 1).saturating_mul(COUNTED.0);
        self.later = next.saturating_sub(self.slo - 1);
    }

    /// Lets a packet's flow do it.
    #[inline]
    fn pour(&mut self, packet: &Packet) {
        let flow = packet.flow as usize;
        if flow >= self.through.len() {
            if packet.flow == NO_PLACE {
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

/// Everything that is counted.
struct Bounds {
    chains: Vec<Chain>,
    demand: Demand,
    peak: Peak,
    longest: u64,
    last: u64,
    /// The tick that lasts, and its epoch.
    tick: u64,
    began: u64,
    ends: u64,
    epoch: u64,
    /// What came in it and has been told on.
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
        let number = packet.tenant();
        if packet.arrival >= self.chains[number].later {
            self.tell(number);
            self.chains[number].set_due(packet.arrival);
        }
        let chain = &mut self.chains[number];
        chain.work = chain.work.saturating_add(chain.weights.work(packet));
        chain.tally.count(packet);
        chain.pour(packet);
    }

    /// Tells on what has come in this tick and is due in the same epoch.
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

    /// A packet that comes now begins the next tick.
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
