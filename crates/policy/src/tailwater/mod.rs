//! Tailwater's own core mapper: each flowlet goes to the fullest core that still does it in time.
//!
//! NetBlaze looks at its queue when an epoch ends, and by then what came at the epoch's start has
//! waited for half the objective. But a flow none of whose packets is in the system may go anywhere
//! at no cost, and on most links most packets are the first of such a *flowlet*. So this mapper
//! decides about each of them when it comes, and about flows that already wait only when the queue
//! has grown in spite of that.
//!
//! **Time, not counts.** A core's wait is what its packets cost, plus what opening flows costs times
//! the share of flowlets that lately opened one, plus what is left of its waking up; one that has nothing to do
//! sleeps. Of a helper that works at a batch, which it tells of when all of it is done, what must be done by now
//! is taken off. Costs come from
//! a [`CapacityProfile`], or from nothing, and follow what the
//! core's own batches [took](CoreMapper::completed), smoothed and held within a factor of eight of
//! the profile. Small batches are not learnt from: they tell of batches, not of packets. All in whole
//! numbers, so equal inputs give equal plans. *Budget* below is the objective less the network's
//! allowance.
//!
//! **Placing.** A flowlet stays while it would be done within [`recruit_percent`] of the budget; while
//! helpers are at work, and so are paid for, within [`share_percent`]. Beyond that it goes to the
//! first helper at work that does it sooner and within `recruit_percent`; then it may still stay
//! within `recruit_percent`; then a helper is recruited, if it is awake in time to be sooner; then it
//! goes wherever it is done first. Both times are at most what a third of the buffers takes: with an objective of
//! milliseconds, buffers end before it does. Low helpers fill first and high ones drain, and when the load falls
//! all of them do, since the own core comes before any.
//!
//! **Pools.** Of a core that has more to do than it can do itself for long ([`TailwaterServerMapper`] may arrange
//! that) most packets go to helpers, and what counts is that all of these but the last are busy. So with two
//! helpers or more at work a flowlet goes to the first that has less than `share_percent` of the budget to do, or two
//! batches, for with less it would fall asleep before it is handed more; more than single packets of their flows
//! count for more than they are, up to a wake-up, because they are of trains that go on. This core itself
//! takes little in one go (`share_percent` divided by the helpers at work, up to four), for meanwhile it hands nothing over; and
//! another helper is recruited once `recruit_percent` less a third, or what a filled helper and a batch take, is waited for.
//!
//! **Batches** take a tenth of the budget at most, but have at least 12 packets: what comes meanwhile waits for all of one.
//!
//! **Relief.** Packets of flows that already wait follow them, so the queue can still grow too long.
//! When it has, and at most every 5 µs (less often with a long queue), flows move: those that came last
//! first, since those in front are done before a helper could begin, large ones before small ones, so that
//! few move, and only where they are done sooner than here and in time.
//!
//! **Recursion.** What follows packets that are with a helper can make it late, too. One that is busy for
//! longer than [`relieve_percent`] with what it has, of several flows, is [relieved](Plan::relieve), as
//! long as another core, this one included, would begin within `recruit_percent`; its flows are then
//! placed like any flowlet, with all their packets that were held.
//!
//! **Whales.** A flow that alone would be late gets a helper without work for itself. Its helper then
//! shows a long wait, so nothing else goes there, and this core is free for everybody else. With a
//! [`SplitProfile`] that has room for it, it is split instead. The operator is
//! [told](Notice::WhaleBeyondSplit) of a whale that stays late.
//!
//! **Boost mode** is for a core whose dispatching alone is late: packets come to be placed only after
//! half the budget (and two batches' time), several looks in a row. Then the core only hands over,
//! until all work would fit within `share_percent` for as long as a helper is held. It takes two
//! usable helpers, or there would be less processing than before.
//!
//! **Release.** A helper without work for [`hold_percent`] of the budget (and at least the time that
//! waking takes) is let go.
//!
//! # What it comes to
//!
//! In the rack simulator (`crates/sim/tests/compared`; receiving and handing over take what was measured live), with nothing known of costs, a
//! 200 µs objective, two helpers that wake in 20 µs, a chain of 2.2 Mpps on a core and seed 2; p99 in µs and
//! average cores:
//!
//! | traffic | static | NetBlaze | NetBlaze without boost | Tailwater |
//! |---|---|---|---|---|
//! | smooth, 90 % of a core | 52, 1.00 | 146, 1.98 | 139, 1.98 | 94, 1.29 |
//! | bursts | 1589, 1.00 | 208, 1.69 | 207, 1.63 | 119, 1.55 |
//! | minnows | 545, 1.00 | 231, 1.39 | 228, 1.27 | 103, 1.22 |
//! | whale of 60 % beside 70 % | 1688, 1.00 | 146, 1.27 | 154, 1.20 | 67, 1.19 |
//! | surges to 180 % | 25952, 1.00 | 252, 2.46 | 252, 2.46 | 132, 2.41 |
//! | all of these, mixed | 2703, 1.00 | 221, 1.85 | 256, 1.64 | 173, 1.57 |
//!
//! Over all objectives, helpers and seeds, 660 of the 1,080 cases can be served in time in which packets cost 445 ns
//! or more. There p99 is 0.56 to 0.74 of NetBlaze's (geometric means, by chain and seed), and cores are 0.86 to 0.87. In 14 of
//! them p99 is higher or cores are more: eight at a load of 90 %, six with half a whale. On a chain of 130 ns handing a packet over takes
//! longer than processing it, and few cases can be served by anybody. The whole table, checked:
//!
//! ```sh
//! cargo test --release -p tailwater-sim --test compared -- --ignored --nocapture
//! ```
//!
//! # What was tried
//!
//! When handing over was still taken to cost 12 ns and nothing else,
//! with seed 1, over the 80 of 108 cases on that machine that can be served in time: p99 and cores as
//! parts of NetBlaze's, and cases that have more of either (`options_tried` in the same file):
//!
//! | options | p99 | cores | worse |
//! |---|---|---|---|
//! | as they are | 0.620 | 0.904 | 1 |
//! | recruit at 40, 50 % | 0.554, 0.588 | 0.916, 0.910 | 1, 2 |
//! | recruit at 70 % | 0.651 | 0.902 | 1 |
//! | share at 10 % | 0.614 | 0.910 | 1 |
//! | share at 40 % | 0.653 | 0.893 | 1 |
//! | share as late as recruit | 0.718 | 0.897 | 4 |
//! | hold for 25 % | 0.627 | 0.896 | 1 |
//! | hold for 100 % | 0.618 | 0.922 | 1 |
//! | relieve at 60, 100 %, never | 0.622, 0.619, 0.618 | 0.904, 0.904, 0.904 | 1, 1, 1 |
//! | no boost | 0.620 | 0.904 | 1 |
//!
//! Recruiting sooner buys latency for cores, and then takes a helper now and then for a burst that
//! NetBlaze's queue outlasts between two looks. Using a helper that is there at once, instead of only
//! when the own queue is full, is what helps most.
//!
//! Three things did not help. Letting half a percent of the packets wait longer, as the 99th
//! percentile allows, before a helper is recruited: no better than a later `recruit_percent`. Taking
//! the dispatcher's own delay for a reason to recruit: a few more cores, and no lower p99. Boost mode with a
//! single helper, or where batches rather than dispatching delay packets: less processing than
//! before, and queues of milliseconds.
//!
//! Relief hardly ever happens there: flowlets go elsewhere before a helper has too much. Where
//! flows grow after they were handed over, it decides: see `tests/recursion.rs` beside it. There
//! 60 % of the budget cost 20 µs of p99 where helpers would have been in time, 80 and 100 % nothing. It is 60 % all
//! the same: at 200 µs, on a rack with trains that are faster than a core, it left 0.9 % of the packets late instead of 1.2.
//! To relieve a helper with a share of the buffers, too, lost as many packets on more cores at an objective of 5 ms.
//!
//! One core decides there, and nothing deschedules it. Options were chosen, and the three things tried, in a
//! simpler model of queues that the simulator has replaced.
//!
//! [`TailwaterServerMapper`]: crate::server::TailwaterServerMapper
//! [`recruit_percent`]: TailwaterOptions::recruit_percent
//! [`share_percent`]: TailwaterOptions::share_percent
//! [`hold_percent`]: TailwaterOptions::hold_percent
//! [`relieve_percent`]: TailwaterOptions::relieve_percent

mod cost;
mod relief;
#[cfg(test)]
mod tests;

use crate::capacity::{CapacityProfile, ServiceCosts, SplitProfile};
use crate::core::{CoreMapper, Flowlet, Helper, Load, Loads, MAX_HELPERS, Notice, Place, Plan, View};
use cost::Costs;
use tailwater_net::Nanos;

/// What a [`TailwaterMapper`] holds to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TailwaterOptions {
    /// The latency objective.
    pub slo: Nanos,
    /// What of it the network may take, before and after this core.
    pub network_allowance: Nanos,
    /// What it takes until a helper that is recruited processes packets.
    pub wake: Nanos,
    /// What was measured of the chain on this machine; without, costs are learnt from nothing.
    pub costs: Option<ServiceCosts>,
    /// Packets that this core may have in its hands, with helpers or in its own queue.
    pub buffers: u32,
    /// For how long a packet may be here, by all that is known, before a helper is recruited: in
    /// hundredths of what the network leaves of the objective.
    pub recruit_percent: u32,
    /// For how long a packet may be here while helpers are at work, in the same measure; at most
    /// `recruit_percent`.
    pub share_percent: u32,
    /// For how long a helper is without work before it is let go, in the same measure, but at least
    /// `wake`.
    pub hold_percent: u32,
    /// For how long a helper may be busy with what it has before it is relieved, in the same measure;
    /// `None` for never.
    pub relieve_percent: Option<u32>,
    /// For how many looks in a row packets reach the dispatcher too late before boost mode begins;
    /// `None` for never.
    pub boost_after: Option<u32>,
}

impl TailwaterOptions {
    /// For a latency objective: 40 µs for the network, as NetBlaze has it, 20 µs to wake a helper,
    /// costs learnt from nothing, and for the rest what a simple model of queues showed to be best.
    pub const fn new(slo: Nanos) -> Self {
        TailwaterOptions {
            slo,
            network_allowance: Nanos::from_micros(40),
            wake: Nanos::from_micros(20),
            costs: None,
            buffers: 2048,
            recruit_percent: 60,
            share_percent: 20,
            hold_percent: 50,
            relieve_percent: Some(60),
            boost_after: Some(4),
        }
    }
}

impl TailwaterOptions {
    /// For a latency objective of which the network takes nothing any more, and what was measured of the
    /// chain. Where the highest rate tells of dearer packets than the costs alone (these do not say how long
    /// packets are), it is believed.
    pub fn measured(slo: Nanos, profile: &CapacityProfile) -> Self {
        let at_most = match profile.rates.largest() {
            rate if rate > 0.0 => 1e9 / rate,
            _ => 0.0,
        };
        let costs = profile.costs.map(|costs| ServiceCosts {
            packet: costs.packet.max(at_most - costs.batch / BATCH as f64),
            ..costs
        });
        TailwaterOptions {
            costs,
            network_allowance: Nanos::ZERO,
            ..TailwaterOptions::new(slo)
        }
    }
}

/// Why there is no [`TailwaterMapper`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TailwaterError {
    /// Nothing of the objective is left.
    #[error("expected a latency objective above the network allowance of {allowance}, found {slo}")]
    NoBudget {
        /// The objective.
        slo: Nanos,
        /// The allowance.
        allowance: Nanos,
    },
}

/// Queues that share the buffers: the own one, and those of two helpers.
const QUEUES: u32 = 3;
/// The most packets of a batch, and the least that the overhead of a batch is spread over.
const BATCH: u64 = 32;
const LEAST_BATCH: u64 = 12;
/// A batch takes no more than one part in so many of the budget.
const BATCHES: u64 = 10;
/// This core's own queue gets no shorter for more helpers than these.
const MOST_WAITING: u64 = 4;
/// The shortest time between decisions, in nanoseconds.
const LEAST_INTERVAL: u64 = 5_000;
/// What each packet in the queue adds to that.
const LOOK_APART: u64 = 16;

/// Tailwater's core mapper; see the [module](self).
#[derive(Debug)]
pub struct TailwaterMapper {
    costs: Costs,
    splits: SplitProfile,
    /// What a packet may take in the system, in nanoseconds, like the times that follow.
    budget: u64,
    /// For how long they may be here before a helper is recruited: as the options have it, and at what
    /// packets cost now.
    recruit_most: u64,
    recruit: u64,
    /// The same while helpers are at work.
    share_most: u64,
    share: u64,
    /// To how long a wait helpers are filled.
    fill: u64,
    /// The most packets that are processed in one go, and how long they take.
    batch: u64,
    full_batch: u64,
    /// The most packets that may wait for one core.
    queue: u64,
    /// For how long a helper is without work before it is let go.
    hold: u64,
    /// For how long a helper may be busy before it is relieved.
    relieve: u64,
    /// What waking a helper takes.
    wake: u64,
    boost_after: Option<u32>,
    /// When each helper that was recruited is awake.
    awake: [u64; MAX_HELPERS],
    /// How many helpers are at work.
    working: u64,
    /// No decision before.
    next: u64,
    /// When to look without a queue, too, if a helper is at work: it may have to be let go.
    tick: u64,
    /// The longest that a flowlet's packet waited for the dispatcher since the last decision.
    lag: u64,
    /// Decisions in a row that found it too long.
    late: u32,
    boosting: bool,
    /// Since when the work would fit on this core alone, in boost mode.
    calm: Option<u64>,
    /// Flowlets that found no place in time since the last decision.
    beyond: u32,
    /// How long it is until each helper has done what it has; of the decision in hand.
    waits: [u64; MAX_HELPERS],
}

impl TailwaterMapper {
    /// A mapper; `splits` may be empty.
    ///
    /// # Errors
    /// The objective leaves nothing beyond the network's allowance.
    pub fn new(options: TailwaterOptions, splits: SplitProfile) -> Result<Self, TailwaterError> {
        let (slo, allowance) = (options.slo, options.network_allowance);
        let budget = slo.saturating_sub(allowance).0;
        if budget == 0 {
            return Err(TailwaterError::NoBudget { slo, allowance });
        }
        let part = |percent: u32| budget * u64::from(percent) / 100;
        let mut mapper = TailwaterMapper {
            costs: Costs::new(options.costs),
            splits,
            budget,
            recruit_most: part(options.recruit_percent),
            recruit: 0,
            share_most: part(options.share_percent),
            share: 0,
            fill: 0,
            batch: 0,
            full_batch: 0,
            queue: u64::from(options.buffers / QUEUES).max(1),
            hold: part(options.hold_percent).max(options.wake.0),
            relieve: options.relieve_percent.map_or(u64::MAX, part),
            wake: options.wake.0,
            boost_after: options.boost_after,
            awake: [0; MAX_HELPERS],
            working: 0,
            next: 0,
            tick: 0,
            lag: 0,
            late: 0,
            boosting: false,
            calm: None,
            beyond: 0,
            waits: [0; MAX_HELPERS],
        };
        mapper.batch = match options.costs {
            Some(_) => (budget / BATCHES / mapper.costs.packet(false)).clamp(LEAST_BATCH, BATCH),
            None => BATCH,
        };
        mapper.costs.fit(mapper.batch as u32);
        mapper.fit();
        Ok(mapper)
    }

    /// Goes by what packets cost now. Whatever the objective, a queue has no room for more than its part
    /// of the buffers: what comes then would wait in the ring, where nobody can hand it over, or be lost.
    fn fit(&mut self) {
        let packet = self.costs.packet(false);
        let full = self.queue * packet;
        self.recruit = self.recruit_most.min(full);
        self.share = self.share_most.min(self.recruit);
        self.full_batch = self.batch * packet;
        // A helper tells of what it has done batch by batch. With less than two it would often have nothing to
        // do between being told of more, and fall asleep.
        self.fill = self.share.max(2 * self.full_batch).min(self.recruit);
    }

    /// For how long a packet may be here, by all that is known: while `self.working` helpers wait to be
    /// handed more, this core does only little in one go.
    #[inline]
    fn limit(&self) -> u64 {
        match self.working {
            0 => self.recruit,
            helpers => self.share / helpers.min(MOST_WAITING),
        }
    }

    /// For how long a packet may be here before another helper is recruited. Once several are at work, most
    /// packets go to them, and what waits here only delays these.
    #[inline]
    fn recruit_limit(&self) -> u64 {
        match self.working {
            0 | 1 => self.recruit,
            _ => (self.fill + self.full_batch)
                .max(self.recruit * 2 / 3)
                .min(self.recruit),
        }
    }

    /// How long it is until a helper has done what it has.
    #[inline]
    fn wait(&self, i: usize, helper: &Helper, now: Nanos) -> u64 {
        let load = self.costs.of(helper.load);
        if !helper.recruited || helper.load.packets == 0 {
            // It sleeps, or is about to.
            return self.wake + load;
        }
        match self.awake[i].checked_sub(now.0) {
            Some(left) => left + load,
            None => {
                // What it works at is told of when all of it is done.
                let began = self.awake[i].max(helper.last_done.0);
                let done = now.0.saturating_sub(began).min(self.full_batch);
                load.saturating_sub(done)
            }
        }
    }

    /// How long a flowlet's packet has waited already. What the dispatcher's own delay makes late
    /// beyond a part of the budget, no helper makes good, so it is no reason to recruit one.
    #[inline]
    fn lag_of(&self, flowlet: Flowlet, loads: &Loads<'_>) -> u64 {
        let lag = loads.now.saturating_sub(flowlet.arrival).0;
        lag.min(self.share)
    }

    /// A helper is about to be given work.
    #[inline]
    fn use_helper(&mut self, i: usize, helper: &Helper, now: Nanos) {
        if !helper.recruited {
            self.working += 1;
        }
        if !helper.recruited || helper.load.packets == 0 {
            self.awake[i] = now.0 + self.wake;
        }
    }

    /// Places a flowlet that should not simply stay, and would be done here after `mine`.
    fn place_elsewhere(&mut self, flowlet: Flowlet, loads: &Loads<'_>, mine: u64) -> Place {
        let own = self.lag_of(flowlet, loads) + self.costs.flowlet(flowlet);
        let limit = self.budget.saturating_sub(own);
        let here = if self.boosting { u64::MAX } else { mine };
        let recruit = self.recruit_limit();
        let mut least: Option<(u64, usize)> = None;
        let mut idle: Option<usize> = None;
        for (i, helper) in loads.helpers.iter().enumerate() {
            if helper.taken {
                continue;
            }
            if !helper.recruited {
                idle = idle.or(Some(i));
                continue;
            }
            let wait = self.wait(i, helper, loads.now);
            // Packets behind the first of their flows are of trains, and more of these will come.
            let trains = helper.load.packets.saturating_sub(helper.load.flows);
            let trains = (u64::from(trains) * self.costs.packet(false) / 2).min(self.wake);
            let filled = self.working > 1 && wait + trains <= self.fill;
            let fits = filled || wait + own < here && wait <= recruit;
            if fits && wait <= limit {
                self.use_helper(i, helper, loads.now);
                return Place::helper(i);
            }
            if least.is_none_or(|least| wait < least.0) {
                least = Some((wait, i));
            }
        }
        if here <= recruit {
            return Place::HERE;
        }
        if let Some(i) = idle
            && self.wake + own < here
        {
            self.use_helper(i, &loads.helpers[i], loads.now);
            return Place::helper(i);
        }
        self.beyond = self.beyond.saturating_add(u32::from(here > self.budget));
        match least {
            Some((wait, i)) if wait + own < here => {
                self.use_helper(i, &loads.helpers[i], loads.now);
                Place::helper(i)
            }
            _ => Place::HERE,
        }
    }

    /// The helpers that are busy for too long with what they have, as a bit map, if another core would do
    /// it sooner: this one takes `wait` nanoseconds for its queue.
    fn overloaded(&self, view: &View<'_>, wait: u64) -> u64 {
        let recruit = self.recruit_limit();
        let (mut overloaded, mut room) = (0, wait <= recruit);
        for (i, helper) in view.helpers.iter().enumerate() {
            if helper.taken {
                continue;
            }
            let wait = self.wait(i, helper, view.now);
            // A flow alone would be no better off elsewhere.
            overloaded |= u64::from(wait > self.relieve && helper.load.flows > 1) << i;
            room |= wait <= recruit;
        }
        if room { overloaded } else { 0 }
    }

    /// Begins and ends boost mode.
    fn watch(&mut self, view: &View<'_>, wait: u64) {
        // A batch that is processed delays what comes meanwhile: that is no overload.
        let bearable = (self.budget / 2).max(64 * self.costs.packet(false));
        let late = std::mem::take(&mut self.lag) > bearable;
        self.late = if late { self.late.saturating_add(1) } else { 0 };
        let usable = view.helpers.iter().filter(|helper| !helper.taken).count() >= 2;
        if !self.boosting {
            self.boosting = usable && self.boost_after.is_some_and(|after| self.late >= after);
            self.calm = None;
            return;
        }
        let helpers = view.helpers.iter().filter(|helper| helper.recruited);
        let wait = wait + self.costs.of(view.held);
        let all = helpers.fold(wait, |all, helper| all + self.costs.of(helper.load));
        if all > self.share {
            self.calm = None;
        }
        let calm = *self.calm.get_or_insert(view.now.0);
        self.boosting = usable && (all > self.share || view.now.0 - calm < self.hold);
    }
}

impl CoreMapper for TailwaterMapper {
    fn split_points(&self) -> u64 {
        self.splits.chosen()
    }

    fn batch(&self) -> usize {
        self.batch as usize
    }

    #[inline]
    fn due(&self, now: Nanos, packets: u32) -> bool {
        if now.0 < self.next {
            return false;
        }
        let limit = if self.working > 0 { self.share } else { self.recruit };
        // How many flows they are of is known only to a decision, so this asks rather too often.
        let load = Load {
            flows: packets,
            packets,
        };
        self.costs.of(load) > limit
            || (self.working > 0 || self.boosting) && now.0 >= self.tick
            || self.boosting && packets > 0
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        let now = view.now.0;
        // A decision costs time for each packet that waits: it may take a small part only.
        let looking = u64::from(view.packets) * LOOK_APART;
        self.next = now + LEAST_INTERVAL.max(self.share / 4) + looking;
        self.tick = now + LEAST_INTERVAL.max(self.hold / 4);
        let wait = self.costs.of(Load {
            flows: view.queued.len() as u32,
            packets: view.packets,
        });
        self.watch(view, wait);
        let used = self.shorten(view, plan, wait);
        plan.relieve = self.overloaded(view, wait);
        plan.boost = self.boosting;
        self.working = 0;
        for (i, helper) in view.helpers.iter().enumerate() {
            if !helper.recruited {
                self.working += used >> i & 1;
                continue;
            }
            let idle = helper.load.packets == 0
                && view.now.saturating_sub(helper.last_done).0 >= self.hold
                && used & 1 << i == 0;
            plan.release |= u64::from(idle) << i;
            self.working += u64::from(!idle);
            let whale = helper.load.flows == 1 && self.costs.of(helper.load) > self.budget;
            if whale && plan.notice.is_none() {
                let packets = helper.load.packets;
                plan.notice = Some(Notice::WhaleBeyondSplit { packets });
            }
        }
        let beyond = std::mem::take(&mut self.beyond);
        if beyond > 0 && plan.notice.is_none() {
            plan.notice = Some(Notice::OutOfCores { packets: beyond });
        }
    }

    #[inline]
    fn place(&mut self, flowlet: Flowlet, loads: &Loads<'_>) -> Place {
        self.costs.see(flowlet.new);
        if !flowlet.held {
            self.lag = (self.lag).max(loads.now.saturating_sub(flowlet.arrival).0);
        }
        let own = self.lag_of(flowlet, loads) + self.costs.flowlet(flowlet);
        let mine = own + self.costs.of(loads.here);
        if mine <= self.limit() && !self.boosting {
            return Place::HERE;
        }
        self.place_elsewhere(flowlet, loads, mine)
    }

    #[inline]
    fn completed(&mut self, packets: u32, new: u32, took: Nanos) {
        self.costs.learn(packets, new, took);
        self.fit();
    }
}
