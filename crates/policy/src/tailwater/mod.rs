//! Tailwater's own core mapper: each flowlet goes to the fullest core that still processes it in time.
//!
//! NetBlaze decides when an epoch ends. By then, packets from the epoch's start have waited for half the objective. But
//! a flow without packets in the system can go to any core at no cost, and on most links most packets are the first of
//! such a *flowlet*. So this mapper decides about each flowlet when it arrives. It decides about flows that already
//! wait only when the queue has grown nevertheless.
//!
//! **Time, not counts.** A core's wait is the sum of three parts: the cost of its packets, the cost of opening flows
//! times the share of flowlets that recently opened one, and the rest of its wake-up time. An idle core sleeps. An
//! active auxiliary core reports a batch when all of it is done. So the part of the batch that must be done by now is
//! subtracted. Costs come from a [`CapacityProfile`] or from defaults, and follow the durations of the core's own
//! batches ([`completed`](CoreMapper::completed)). They are smoothed and stay within a factor of eight of the profile.
//! Small batches are ignored, since they measure the overhead of batches. All arithmetic uses integers, so equal inputs
//! give equal plans. *Budget* below is the objective less the network's allowance.
//!
//! **Buckets.** By default the unit that moves is the [RSS bucket](Unit::Bucket). What is said of flows here applies to
//! buckets then, and the cost of opening flows counts by the share of packets that recently opened one.
//!
//! **Placing.** A flowlet goes to the first of these that applies:
//!
//! 1. this core, if it would be done within [`activate_percent`] of the budget, or, while auxiliary cores are active
//!    and so paid for, within [`share_percent`];
//! 2. the first active auxiliary core that completes it sooner and within `activate_percent`;
//! 3. this core, if within `activate_percent`;
//! 4. an idle auxiliary core, if it wakes up in time to be sooner;
//! 5. the core that completes it first.
//!
//! Packets in the port are processed straight from there as long as they are done within `activate_percent`, less
//! `share_percent` for the time that packets have waited already: the own queue costs time.
//!
//! Both limits are at most the time of a third of the buffers: with an objective of milliseconds, buffers run out
//! first. Auxiliary cores with low numbers fill first and those with high numbers drain. When the load falls all of
//! them drain, since the own core comes first.
//!
//! **Pools.** A core may own more load than it can process itself ([`TailwaterServerMapper`] can arrange that). Then
//! most packets go to auxiliary cores, and all of these but the last must be busy.
//!
//! - With two or more active auxiliary cores, a flowlet goes to the first that has less than `share_percent` of the
//!   budget to do, or two batches. With less, that core would fall asleep before its next packets.
//! - Packets behind the first of their flows count for more, up to a wake-up time. They belong to trains that continue.
//! - This core itself processes little at a time (`share_percent` divided by the number of active auxiliary cores, up
//!   to four), since meanwhile it offloads nothing.
//! - Another auxiliary core is activated once the wait reaches `activate_percent` less a third, or the time of a filled
//!   auxiliary core plus a batch.
//!
//! **Dedicated cores** that have few packets of their own [help](CoreMapper::can_help) others. They poll and are paid
//! for, so they come before an auxiliary core that is to be activated. A core helps while its own packets take at most
//! `share_percent` of the budget, and takes at most as much at a time: that is how much later its own packets can be.
//! A flow beyond that, such as a whale, stays, and the flows beside it go. Chains of less than 375 ns a packet do
//! without that: offloading costs them too much. With more load than all cores can do, none has few packets, and each
//! core works for itself.
//!
//! **Batches** take a tenth of the budget at most, but have at least 12 packets. Packets that arrive meanwhile wait for
//! the whole batch.
//!
//! **Long queues.** Packets of flows that already wait follow them, so the queue can still grow too long. Then flows
//! move, at most every 5 µs (less often with a long queue). The latest flows move first, since those in front are done
//! before an auxiliary core could begin. Large flows move before small ones, so that few move. A flow moves only where
//! it is done sooner than here and in time.
//!
//! **Relief**, NetBlaze's recursion. Packets that follow others to an auxiliary core can make it late, too. One whose
//! load, of several flows, takes longer than [`relieve_percent`] is [relieved](Plan::relieve), as long as another core,
//! this one included, would begin within `activate_percent`. Its flows are then placed like any flowlet, with all their
//! parked packets.
//!
//! **Whales.** A flow that would be late by itself gets an idle auxiliary core of its own. That core then has a long
//! wait, so nothing else goes there, and this core is free for all other flows. If the chain is faster in parts by the
//! [`SplitProfile`], the flow is split instead: this core runs the first functions, an auxiliary core the last. A whole
//! whale that is late on an auxiliary core is relieved, and split. The parts of a flow that is still late half a budget
//! after the last change are divided further, at the point where the slowest part becomes shortest, as long as an
//! auxiliary core is idle and that part gets an eighth shorter, with what handing over costs. While this core's part is
//! late, other flows go to auxiliary cores. Parts are joined, the last first, once one core less would have taken the
//! load of eight release timeouts in at most 60 % of their time. A whale that stays late causes the notice
//! [`WhaleBeyondSplit`](Notice::WhaleBeyondSplit).
//!
//! **Boost mode** is for a core whose dispatching alone is late: packets are placed only after half the budget (or the
//! time of two full batches of 32, if longer), in several decisions in a row, and most of the core's time goes into
//! dispatching. Then the core only offloads, until all work has fit within `share_percent` for the release timeout of
//! an auxiliary core, or dispatching takes less. Without the second condition, a core behind an overload of all cores
//! would stop processing just when it is needed. It requires two usable auxiliary cores, or there would be less
//! processing than before.
//!
//! **Release.** An auxiliary core without work for [`release_percent`] of the budget (and at least the wake-up time) is
//! released.
//!
//! **Wake-up time.** The 90th percentile of the wake-ups so far. It begins with the profile's, or 20 µs.
//!
//! Results, and alternatives that were tried: `docs/lab/scaling.md`.
//!
//! [`CapacityProfile`]: crate::capacity::CapacityProfile
//! [`TailwaterServerMapper`]: crate::server::TailwaterServerMapper
//! [`activate_percent`]: TailwaterOptions::activate_percent
//! [`share_percent`]: TailwaterOptions::share_percent
//! [`release_percent`]: TailwaterOptions::release_percent
//! [`relieve_percent`]: TailwaterOptions::relieve_percent

mod boost;
mod cost;
mod division;
mod long_queue;
mod options;
mod split_flows;
#[cfg(test)]
mod tests;
mod wake;
mod whales;

use crate::capacity::SplitProfile;
use crate::core::{
    AuxiliaryCore, CoreMapper, Destination, Flowlet, Load, Loads, MAX_AUXILIARY_CORES, Notice, Plan, QUEUES, Review,
    SplitFlow, Unit, View,
};
use cost::Costs;
use division::Divisions;
use options::BATCH;
pub use options::{TailwaterError, TailwaterOptions};
use split_flows::Whales;
use tailwater_net::Nanos;
use wake::WakeTime;
pub use whales::divides;

/// Cost of a packet, in nanoseconds, from which on dedicated cores help each other: queueing, offloading and taking
/// over a packet of a bucket cost a fifth of that. Near capacity, cheaper chains lose more by them than they gain.
const LEAST_HELPED: u64 = 375;
/// Minimum batch size, which limits the overhead of batches per packet.
const LEAST_BATCH: u64 = 12;
/// A batch takes at most one part of this many of the budget.
const BATCHES: u64 = 10;
/// Number of active auxiliary cores beyond which this core's own queue gets no shorter.
const MOST_WAITING: u64 = 4;
/// Minimum time between decisions, in nanoseconds.
const LEAST_INTERVAL: u64 = 5_000;
/// Nanoseconds that each queued packet adds to that.
const INTERVAL_PER_PACKET: u64 = 16;

/// Tailwater's core mapper. See the [module](self).
#[derive(Debug)]
pub struct TailwaterMapper {
    costs: Costs,
    unit: Unit,
    divisions: Divisions,
    /// A whale is faster with its chain split.
    splits_help: bool,
    /// Cost of a packet for which the divisions were made, in nanoseconds.
    profiled: u64,
    whales: Whales,
    /// Maximum time of a packet in the system, in nanoseconds, like the times that follow.
    budget: u64,
    /// Expected delay above which an auxiliary core is activated: from the options, and at the current cost of packets.
    activation_limit_max: u64,
    activate: u64,
    /// The same while auxiliary cores are active.
    share_most: u64,
    share: u64,
    /// Time of the packets in the port that need not pass the queue.
    straight: u64,
    /// Wait up to which auxiliary cores are filled.
    fill: u64,

    /// Maximum number of packets of a batch, and their time.
    batch: u64,
    full_batch: u64,
    /// Maximum number of packets that wait for one core.
    queue: u64,
    /// Time without work after which an auxiliary core is released, but for the time to wake it.
    release_timeout: u64,
    /// Wait of an auxiliary core above which it is relieved.
    relieve: u64,
    /// Time to wake an auxiliary core.
    wake: WakeTime,
    boost_after: Option<u32>,
    /// Time at which each activated auxiliary core is awake.
    awake: [u64; MAX_AUXILIARY_CORES],
    /// Number of active auxiliary cores.
    working: u64,
    /// Earliest time of the next decision.
    next: u64,
    /// Time of the next decision with an empty queue, if an auxiliary core is active: it may have to be released.
    tick: u64,
    /// Longest wait of a flowlet's packet for the dispatcher since the last decision.
    lag: u64,
    /// Number of decisions in a row with a too long `lag`.
    late: u32,
    boosting: bool,
    /// Time since which the work would fit on this core alone, in boost mode.
    calm: Option<u64>,
    /// Time spent on dispatching since `measured_from`, and its share of the time before that, in percent.
    dispatching: u64,
    measured_from: u64,
    dispatch_percent: u64,
    /// Flowlets since the last decision that no core can process in time.
    beyond: u32,
    /// Wait of each auxiliary core, within the current decision.
    waits: [u64; MAX_AUXILIARY_CORES],
}

impl TailwaterMapper {
    /// Creates a mapper. `splits` may be empty.
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
        let costs = Costs::new(options.costs, options.unit);
        let profiled = costs.packet(false);
        // A profile is of epochs of half the budget.
        let divisions = Divisions::new(&splits, budget / 2, profiled);
        let mut mapper = TailwaterMapper {
            costs,
            unit: options.unit,
            splits_help: divisions.used(1) != 0,
            divisions,
            profiled,
            whales: Whales::new(),
            budget,
            activation_limit_max: part(options.activate_percent),
            activate: 0,
            share_most: part(options.share_percent),
            share: 0,
            straight: 0,
            fill: 0,
            batch: 0,
            full_batch: 0,
            queue: u64::from(options.buffers / QUEUES).max(1),
            release_timeout: part(options.release_percent),
            relieve: options.relieve_percent.map_or(u64::MAX, part),
            wake: WakeTime::new(options.wake),
            boost_after: options.boost_after,
            awake: [0; MAX_AUXILIARY_CORES],
            working: 0,
            next: 0,
            tick: 0,
            lag: 0,
            late: 0,
            boosting: false,
            calm: None,
            dispatching: 0,
            measured_from: 0,
            dispatch_percent: 0,
            beyond: 0,
            waits: [0; MAX_AUXILIARY_CORES],
        };
        mapper.batch = match options.costs {
            Some(_) => (budget / BATCHES / mapper.costs.packet(false)).clamp(LEAST_BATCH, BATCH),
            None => BATCH,
        };
        mapper.costs.fit(mapper.batch as u32);
        mapper.fit();
        Ok(mapper)
    }

    /// Recomputes the limits from the current cost of packets. Whatever the objective, a queue is limited to its part
    /// of the buffers: further packets would wait in the ring, where they cannot be offloaded, or be lost.
    fn fit(&mut self) {
        let packet = self.costs.packet(false);
        let full = self.queue * packet;
        self.activate = self.activation_limit_max.min(full);
        self.share = self.share_most.min(self.activate);
        self.straight = self.activation_limit_max.saturating_sub(self.share_most).min(full);
        self.full_batch = self.batch * packet;
        // An auxiliary core reports completions batch by batch. With less than two batches it would often run out of
        // work before the next offload, and fall asleep.
        self.fill = self.share.max(2 * self.full_batch).min(self.activate);
    }

    /// Returns the time without work after which an auxiliary core is released.
    #[inline]
    fn release_timeout(&self) -> u64 {
        self.release_timeout.max(self.wake.nanos())
    }

    /// Returns the expected delay up to which a packet stays here. While `self.working` auxiliary cores wait for
    /// packets, this core processes only little at a time.
    #[inline]
    fn limit(&self) -> u64 {
        match self.working {
            0 => self.activate,
            auxiliaries => self.share / auxiliaries.min(MOST_WAITING),
        }
    }

    /// Returns the expected delay above which another auxiliary core is activated. Once several are active, most
    /// packets go to them, and packets that wait here only delay these.
    #[inline]
    fn activation_limit(&self) -> u64 {
        match self.working {
            0 | 1 => self.activate,
            _ => (self.fill + self.full_batch)
                .max(self.activate * 2 / 3)
                .min(self.activate),
        }
    }

    /// Returns the time until an auxiliary core has completed its load.
    #[inline]
    fn wait(&self, i: usize, auxiliary: &AuxiliaryCore, now: Nanos) -> u64 {
        let load = self.costs.of(auxiliary.load);
        if auxiliary.dedicated {
            return load;
        }
        if !auxiliary.active || auxiliary.load.packets == 0 {
            // It sleeps, or is about to.
            return self.wake.nanos() + load;
        }
        match self.awake[i].checked_sub(now.0) {
            Some(left) => left + load,
            None => {
                // The current batch is reported only when all of it is done.
                let began = self.awake[i].max(auxiliary.last_done.0);
                let done = now.0.saturating_sub(began).min(self.full_batch);
                load.saturating_sub(done)
            }
        }
    }

    /// Returns the time that a flowlet's packet has waited already. No auxiliary core can make up for the dispatcher's
    /// own delay, so only a part of the budget counts towards activating one.
    #[inline]
    fn lag_of(&self, flowlet: Flowlet, loads: &Loads<'_>) -> u64 {
        let lag = loads.now.saturating_sub(flowlet.arrival).0;
        lag.min(self.share)
    }

    /// Updates the state for an auxiliary core that is about to get work.
    #[inline]
    fn use_auxiliary(&mut self, i: usize, auxiliary: &AuxiliaryCore, now: Nanos) {
        if auxiliary.dedicated {
            return;
        }
        if !auxiliary.active {
            self.working += 1;
        }
        if !auxiliary.active || auxiliary.load.packets == 0 {
            self.awake[i] = now.0 + self.wake.nanos();
        }
    }

    /// Places a flowlet that does not simply stay. It would be done here after `mine`.
    fn place_elsewhere(&mut self, flowlet: Flowlet, loads: &Loads<'_>, mine: u64) -> Destination {
        let own = self.lag_of(flowlet, loads) + self.costs.flowlet(flowlet);
        let limit = self.budget.saturating_sub(own);
        let here = if self.boosting { u64::MAX } else { mine };
        let activate = self.activation_limit();
        let mut least: Option<(u64, usize)> = None;
        let mut idle: Option<usize> = None;
        let mut helping: Option<(u64, usize)> = None;
        for (i, auxiliary) in loads.auxiliaries.iter().enumerate() {
            if auxiliary.taken {
                continue;
            }
            if auxiliary.dedicated {
                let end = self.costs.of(auxiliary.load) + self.costs.flowlet(flowlet);
                if end <= self.share && helping.is_none_or(|helping| end < helping.0) {
                    helping = Some((end, i));
                }
                continue;
            }
            if !auxiliary.active {
                idle = idle.or(Some(i));
                continue;
            }
            let wait = self.wait(i, auxiliary, loads.now);
            // Packets behind the first of their flows belong to trains, and more of these will follow.
            let trains = auxiliary.load.packets.saturating_sub(auxiliary.load.flows);
            let trains = (u64::from(trains) * self.costs.packet(false) / 2).min(self.wake.nanos());
            let filled = self.working > 1 && wait + trains <= self.fill;
            let fits = filled || wait + own < here && wait <= activate;
            if fits && wait <= limit {
                self.use_auxiliary(i, auxiliary, loads.now);
                return Destination::auxiliary(i);
            }
            if least.is_none_or(|least| wait < least.0) {
                least = Some((wait, i));
            }
        }
        if let Some((end, i)) = helping
            && end < here
        {
            return Destination::auxiliary(i);
        }
        if here <= activate {
            return Destination::OWN_CORE;
        }
        if let Some(i) = idle
            && self.wake.nanos() + own < here
        {
            self.use_auxiliary(i, &loads.auxiliaries[i], loads.now);
            return Destination::auxiliary(i);
        }
        self.beyond = self.beyond.saturating_add(u32::from(here > self.budget));
        match least {
            Some((wait, i)) if wait + own < here => {
                self.use_auxiliary(i, &loads.auxiliaries[i], loads.now);
                Destination::auxiliary(i)
            }
            _ => Destination::OWN_CORE,
        }
    }
}

impl CoreMapper for TailwaterMapper {
    fn unit(&self) -> Unit {
        self.unit
    }

    fn split_points(&mut self, auxiliaries: usize) -> u64 {
        let points = self.divisions.used(auxiliaries);
        self.divisions.keep(points);
        points
    }

    fn batch(&self) -> usize {
        self.batch as usize
    }

    #[inline]
    fn is_in_time(&self, packets: u32) -> bool {
        let load = Load {
            flows: packets,
            packets,
        };
        !self.boosting && self.costs.of(load) <= self.straight
    }

    #[inline]
    fn can_help(&self, packets: u32) -> bool {
        let load = Load {
            flows: packets,
            packets,
        };
        let is_worth_it = self.unit == Unit::Bucket && self.costs.packet(false) >= LEAST_HELPED;
        is_worth_it && !self.boosting && self.costs.of(load) <= self.share
    }

    #[inline]
    fn due(&self, now: Nanos, packets: u32) -> bool {
        if now.0 < self.next {
            return false;
        }
        let limit = if self.working > 0 { self.share } else { self.activate };
        // Only a decision counts the flows, so this assumes the maximum and errs towards deciding.
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
        // A decision costs time for each queued packet, which must stay a small share.
        let looking = u64::from(view.packets) * INTERVAL_PER_PACKET;
        self.next = now + LEAST_INTERVAL.max(self.share / 4) + looking;
        self.tick = now + LEAST_INTERVAL.max(self.release_timeout() / 4);
        let wait = self.costs.of(Load {
            flows: view.queued.len() as u32,
            packets: view.packets,
        });
        self.watch(view, wait);
        let split_on = std::mem::take(&mut self.whales.split_on);
        self.whales.here = 0;
        let used = self.shorten(view, plan, wait);
        plan.relieve = self.overloaded(view, wait, split_on);
        plan.boost = self.boosting;
        self.working = 0;
        for (i, auxiliary) in view.auxiliaries.iter().enumerate() {
            if auxiliary.dedicated {
                continue;
            }
            if !auxiliary.active {
                self.working += used >> i & 1;
                continue;
            }
            if auxiliary.taken {
                continue;
            }
            let idle = auxiliary.load.packets == 0
                && view.now.saturating_sub(auxiliary.last_done).0 >= self.release_timeout()
                && used & 1 << i == 0;
            plan.release |= u64::from(idle) << i;
            self.working += u64::from(!idle);
            let is_whole = auxiliary.load.flows == 1 && split_on >> i & 1 == 0;
            let whale = is_whole && self.costs.of(auxiliary.load) > self.budget;
            if whale && plan.notice.is_none() {
                let packets = auxiliary.load.packets;
                plan.notice = Some(Notice::WhaleBeyondSplit { packets });
            }
        }
        plan.notice = plan.notice.or(self.notice_of_whales());
        let beyond = std::mem::take(&mut self.beyond);
        if beyond > 0 && plan.notice.is_none() {
            plan.notice = Some(Notice::OutOfCores { packets: beyond });
        }
    }

    fn review(&mut self, split: &SplitFlow<'_>) -> Review {
        self.review_whale(split)
    }

    #[inline]
    fn place(&mut self, flowlet: Flowlet, loads: &Loads<'_>) -> Destination {
        self.costs.see(flowlet.new);
        if !flowlet.parked {
            self.lag = (self.lag).max(loads.now.saturating_sub(flowlet.arrival).0);
        }
        let own = self.lag_of(flowlet, loads) + self.costs.flowlet(flowlet);
        let mine = own + self.costs.of(loads.here) + self.whales.here;
        if mine <= self.limit() && !self.boosting || self.is_to_be_split(flowlet) {
            return Destination::OWN_CORE;
        }
        self.place_elsewhere(flowlet, loads, mine)
    }

    #[inline]
    fn completed(&mut self, packets: u32, new: u32, took: Nanos) {
        self.costs.learn(packets, new, took);
        self.fit();
    }

    #[inline]
    fn dispatched(&mut self, took: Nanos) {
        self.dispatching += took.0;
    }

    #[inline]
    fn woke(&mut self, took: Nanos) {
        self.wake.learn(took);
    }
}
