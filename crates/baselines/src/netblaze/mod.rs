//! NetBlaze's core mapper: work beyond what a core can do in half its latency objective goes to
//! helpers, whole flows at a time. Its server mapper is [`NetBlazeServerMapper`].
//!
//! After "Scheduling Network Function Chains Under Sub-Millisecond Latency SLOs" (Wang et al.,
//! arXiv 2305.01890), section 3.2; boost mode from section 3.3, the ablations from 4.4 and 4.5.
//!
//! **Epochs.** Time goes in epochs of half the objective, from which an allowance for the network
//! is taken first. What arrived before an epoch began is done by its end, so nothing stays for more
//! than two. At each epoch's end the mapper compares the backlog, as ⟨flows, packets⟩, with the
//! [`EpochFrontier`] of one core. If it is inside, all of it stays.
//!
//! **Groups.** Otherwise the backlog is cut into groups of whole flows, each inside the frontier.
//! One stays; the others go to helpers, as few as can be newly recruited. First come those that
//! already work for this core, and each only as far as the work that it has plus the group stays
//! inside the frontier. Flows that are [bound](tailwater_policy::core::QueuedFlow::bound) stay, and count
//! towards the group that stays. Like NetBlaze's code this takes flows first fit, in the order of
//! their first packets. A lower bound from the frontier's convex hull tells whether fewer helpers
//! could have sufficed; only then are the flows tried again, largest first, and if there are
//! at most eight of them, all ways. So the plan recruits no more helpers than any other plan for
//! the same flows would (whales apart, which are split before)
//!
//! - with at most eight flows to place and at most eight cores at work with room, this one
//!   included: always, and if any plan fits, so does this;
//! - otherwise where the bound is met. Where it is not, nothing is promised for frontiers in
//!   general. If capacity is the same for all flow counts (the static variants) and the helpers are
//!   idle, the groups are bins of equal size, largest first into the first that has room: never
//!   more than 11/9 of the fewest, plus 6/9 (Dósa, "The tight bound of first fit decreasing
//!   bin-packing algorithm is FFD(I) ≤ 11/9 OPT(I) + 6/9", 2007). Sizes are sorted into
//!   [`SIZE_CLASSES`] classes, exact up to that capacity.
//!
//! Where no plan fits, or none was found, what is left stays with the core, and the operator is
//! [told](tailwater_policy::core::Notice::OutOfCores).
//!
//! **Whales.** A flow that is by itself outside the frontier is split: the chain's last functions
//! move to a helper, at the point that the [`SplitProfile`] says has room for its packets. Both
//! cores are charged the share of the epoch that it takes of them. If no split has room, the flow
//! stays whole, as well as it goes, and the operator is
//! [told](tailwater_policy::core::Notice::WhaleBeyondSplit).
//!
//! **Boost mode.** When the backlog was outside the frontier for several epochs in a row, the core
//! hands over everything that is not bound, and new flowlets at once, each to the least loaded
//! helper that it fits on. This lasts until all work, its own and its helpers', would fit on one
//! core again. Bound flows are nobody else's to process: a core in boost mode still processes them.
//! If helpers cannot take everything, the core takes its share for that epoch.
//!
//! **Release.** A helper without work for some epochs is let go, unless the plan needs it.
//!
//! **Recursion.** "Each auxiliary core runs a core mapper" (section 3.2). Here the core that dispatches
//! runs it for its helpers, since it knows what they have: at an epoch's end, a helper whose backlog, of
//! several flows, is outside the frontier is [relieved](tailwater_policy::core::Plan::relieve), if the other cores
//! have room for what is too much (else it would only be idle sooner). Its flows are free to go as it gets done with them, and each goes to the first core that it fits
//! on: this one, helpers at work, helpers to be recruited; without any it waits here. NetBlaze's auxiliary cores move packets that wait on, and at once; the rule that a flow has
//! one owner does not let a helper do that without the dispatching core in between.

mod exact;
mod load;
mod lower_bound;
mod pack;
mod server;
mod shed;
#[cfg(test)]
mod tests;

use load::{grown, sum};
use pack::Packer;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{EpochFrontier, SplitProfile};
use tailwater_policy::core::{CoreMapper, Flowlet, Helper, Load, Loads, Notice, Place, Plan, Split, View};

pub use pack::SIZE_CLASSES;
pub use server::{NetBlazeServerConfig, NetBlazeServerMapper};

/// Which capacity the mapper goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capacity {
    /// The frontier: flows count.
    #[default]
    Frontier,
    /// Ablation: the smallest packet count of the frontier, at all flow counts.
    StaticSafe,
    /// Ablation: the largest packet count of the frontier, at all flow counts.
    StaticUnsafe,
}

/// What a [`NetBlazeMapper`] holds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetBlazeOptions {
    /// The latency objective.
    pub slo: Nanos,
    /// What of it the network may take, before and after this core.
    pub network_allowance: Nanos,
    /// Which capacity counts.
    pub capacity: Capacity,
    /// Whether there is a core mapper at all. Without (an ablation), everything stays.
    pub enabled: bool,
    /// After how many epochs in a row with a backlog beyond capacity boost mode begins; `None` for
    /// never (an ablation).
    pub boost_after: Option<u32>,
    /// For how many epochs a helper is without work before it is let go.
    pub release_after: u32,
    /// Whether helpers that have too much are relieved.
    pub recursion: bool,
}

impl NetBlazeOptions {
    /// For a latency objective; all else as NetBlaze has it, or as near as it says: 40 µs for the
    /// network (its code), boost after three epochs and release after five (it says "more than a
    /// few", and nothing).
    pub const fn new(slo: Nanos) -> Self {
        NetBlazeOptions {
            slo,
            network_allowance: Nanos::from_micros(40),
            capacity: Capacity::Frontier,
            enabled: true,
            boost_after: Some(3),
            release_after: 5,
            recursion: true,
        }
    }
}

/// Why there is no [`NetBlazeMapper`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetBlazeError {
    /// Nothing of the objective is left for an epoch.
    #[error("expected a latency objective above the network allowance of {allowance}, found {slo}")]
    NoEpoch {
        /// The objective.
        slo: Nanos,
        /// The allowance.
        allowance: Nanos,
    },
    /// The frontier admits nothing.
    #[error("expected a capacity frontier that admits a packet, found one that admits none")]
    NoCapacity,
}

/// NetBlaze's core mapper; see the [module](self).
#[derive(Debug)]
pub struct NetBlazeMapper {
    options: NetBlazeOptions,
    epoch: Nanos,
    splits: SplitProfile,
    packer: Packer,
    /// When the epoch ends.
    ends: Nanos,
    /// Epochs in a row, up to this one, whose backlog was beyond capacity.
    lasting: u32,
    /// Boost mode has begun and not ended.
    boosting: bool,
    /// The last plan said so, too.
    dispatching: bool,
}

impl NetBlazeMapper {
    /// A mapper for a core whose capacity in an epoch is `frontier`; `splits` may be empty.
    ///
    /// # Errors
    /// The objective leaves no time for an epoch, or the frontier admits nothing.
    pub fn new(
        options: NetBlazeOptions,
        frontier: &EpochFrontier,
        splits: SplitProfile,
    ) -> Result<Self, NetBlazeError> {
        let (slo, allowance) = (options.slo, options.network_allowance);
        let epoch = Nanos(slo.saturating_sub(allowance).0 / 2);
        if epoch == Nanos::ZERO {
            return Err(NetBlazeError::NoEpoch { slo, allowance });
        }
        if frontier.is_empty() {
            return Err(NetBlazeError::NoCapacity);
        }
        let frontier = match options.capacity {
            Capacity::Frontier => frontier.clone(),
            Capacity::StaticSafe => frontier.static_safe(),
            Capacity::StaticUnsafe => frontier.static_unsafe(),
        };
        Ok(NetBlazeMapper {
            options,
            epoch,
            splits,
            packer: Packer::new(frontier),
            ends: Nanos::ZERO,
            lasting: 0,
            boosting: false,
            dispatching: false,
        })
    }

    /// Half of what the network leaves of the objective.
    pub fn epoch(&self) -> Nanos {
        self.epoch
    }

    /// Counts the epochs of overload, and begins and ends boost mode.
    fn watch(&mut self, fits: bool, own: Load, view: &View<'_>) {
        self.lasting = if fits { 0 } else { self.lasting + 1 };
        if self.boosting {
            let mine = view.helpers.iter().filter(|helper| helper.recruited);
            let own = sum(own, view.held);
            let all = mine.fold(own, |all, helper| sum(all, helper.load));
            self.boosting = !self.packer.frontier.admits(all);
        } else if let Some(epochs) = self.options.boost_after {
            self.boosting = !fits && self.lasting >= epochs;
        }
    }

    /// The helpers that have more than they can do in an epoch, as a bit map, as far as the other cores
    /// have room for what is too much.
    #[cold]
    fn overloaded(&self, own: Load, view: &View<'_>, boost: bool) -> u64 {
        let room = |load: Load| {
            let capacity = self.packer.frontier.capacity(load.flows);
            i64::from(capacity) - i64::from(load.packets)
        };
        // A flow alone would be no better off elsewhere.
        let several = |helper: &Helper| helper.load.flows > 1 && room(helper.load) < 0;
        let open = view.helpers.iter().filter(|helper| !helper.taken);
        let mut left: i64 = open.map(|helper| room(helper.load).max(0)).sum();
        left += match boost {
            true => -i64::from(own.packets),
            false => room(own),
        };
        left -= i64::from(view.held.packets);
        let mut overloaded = 0;
        for (i, helper) in view.helpers.iter().enumerate() {
            let beyond = -room(helper.load);
            if several(helper) && beyond <= left {
                left -= beyond;
                overloaded |= 1 << i;
            }
        }
        overloaded
    }

    /// Places the flows of a backlog beyond capacity.
    fn cut(&mut self, view: &View<'_>, plan: &mut Plan) {
        self.packer.gather(view);
        let whales = self.packer.has_whales();
        if whales {
            self.split_whales(view, plan);
        }
        let mut placed = false;
        if self.boosting && !whales {
            placed = self.packer.pack(view.queued, false, &mut plan.places);
            plan.boost = placed;
        }
        if !placed {
            self.packer.pack(view.queued, true, &mut plan.places);
        }
        // What stays: bound, whales that are not split, and what found no room.
        let here = self.packer.here();
        let beyond = here.packets.saturating_sub(self.packer.frontier.capacity(here.flows));
        if beyond > 0 && plan.notice.is_none() {
            plan.notice = Some(Notice::OutOfCores { packets: beyond });
        }
    }

    /// Splits the flows that exceed a core by themselves, where that helps.
    fn split_whales(&mut self, view: &View<'_>, plan: &mut Plan) {
        let largest = self.packer.frontier.largest();
        let mut whole = Load::default();
        for (flow, queued) in view.queued.iter().enumerate() {
            if queued.bound || queued.packets <= largest {
                continue;
            }
            let split = self.splits.choose(queued.packets);
            if split.is_none() {
                let packets = queued.packets;
                plan.notice = Some(Notice::WhaleBeyondSplit { packets });
            }
            // What part of an epoch it takes, in packets of which a core can process `largest`.
            let share = |capacity: u32| {
                let packets = u64::from(queued.packets) * u64::from(largest);
                packets.div_ceil(u64::from(capacity)) as u32
            };
            let split = split.and_then(|point| {
                let helper = self.packer.take_split(share(point.first), share(point.last))?;
                Some(Split {
                    flow,
                    last_functions: point.last_functions,
                    helper,
                })
            });
            match split {
                Some(split) => plan.splits.push(split),
                None => whole = grown(whole, queued.packets),
            }
        }
        self.packer.keep(whole);
    }
}

impl CoreMapper for NetBlazeMapper {
    fn split_points(&self) -> u64 {
        self.splits.chosen()
    }

    #[inline]
    fn due(&self, now: Nanos, _packets: u32) -> bool {
        self.options.enabled && now >= self.ends
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        self.ends = view.now + self.epoch;
        let own = Load {
            flows: view.queued.len() as u32,
            packets: view.packets,
        };
        let fits = self.packer.frontier.admits(own);
        self.watch(fits, own, view);
        let idle = Nanos(self.epoch.0 * u64::from(self.options.release_after));
        let mut used = 0;
        if !fits || self.boosting {
            self.cut(view, plan);
            used = self.packer.used();
        }
        let mut busy = false;
        for (i, helper) in view.helpers.iter().enumerate() {
            busy |= helper.load.flows > 1;
            let lapsed =
                helper.recruited && helper.load.packets == 0 && view.now.saturating_sub(helper.last_done) >= idle;
            plan.release |= u64::from(lapsed) << i;
        }
        plan.release &= !used;
        if busy && self.options.recursion {
            plan.relieve = self.overloaded(own, view, plan.boost);
        }
        self.dispatching = plan.boost;
    }

    #[inline]
    fn place(&mut self, flowlet: Flowlet, loads: &Loads<'_>) -> Place {
        // One that leaves a helper has waited already.
        if !self.dispatching && !flowlet.held {
            return Place::HERE;
        }
        let here = grown(loads.here, flowlet.packets);
        if !self.dispatching && self.packer.frontier.admits(here) {
            return Place::HERE;
        }
        let mut best: Option<(bool, Load, usize)> = None;
        for (i, helper) in loads.helpers.iter().enumerate() {
            let load = grown(helper.load, flowlet.packets);
            if helper.taken || !self.packer.frontier.admits(load) {
                continue;
            }
            // Those at work before those to be recruited, then the least loaded.
            let rank = |(idle, load, _): &(bool, Load, usize)| (*idle, load.packets, load.flows);
            let candidate = (!helper.recruited, helper.load, i);
            if best.as_ref().is_none_or(|best| rank(&candidate) < rank(best)) {
                best = Some(candidate);
            }
        }
        // Without room anywhere it waits here, and can still go anywhere at the epoch's end.
        best.map_or(Place::HERE, |(_, _, helper)| Place::helper(helper))
    }
}
