//! NetBlaze's core mapper: work beyond a core's capacity in half its latency objective is offloaded to auxiliary cores,
//! whole flows at a time.
//!
//! After "Scheduling Network Function Chains Under Sub-Millisecond Latency SLOs" (Wang et al., arXiv 2305.01890),
//! section 3.2. Boost mode is from section 3.3, the ablations from 4.4 and 4.5.
//!
//! **Epochs.** Time is divided into epochs of half the objective, after an allowance for the network is subtracted.
//! Packets that arrived before an epoch began are done by its end, so no packet stays for more than two epochs. At each
//! epoch's end the mapper compares the backlog, as ⟨flows, packets⟩, with the [`EpochFrontier`] of one core. If it is
//! inside, all of it stays.
//!
//! **Groups.** Otherwise the backlog is cut into groups of whole flows, each inside the frontier. One group stays. The
//! others go to auxiliary cores, activating as few new ones as possible. Auxiliary cores already active for this core
//! come first, each only as far as its load plus the group stays inside the frontier. Flows that are
//! [bound](tailwater_policy::core::QueuedFlow::bound) stay, and count towards the group that stays. Like NetBlaze's
//! code this takes flows first fit, in the order of their first packets. A lower bound from the frontier's convex hull
//! shows if fewer auxiliary cores could have sufficed. Only then are the flows tried again, largest first, and with at
//! most eight of them, exhaustively. So the plan activates no more auxiliary cores than any other plan for the same
//! flows (whales apart, which are split before)
//!
//! - with at most eight flows to place and at most eight active cores with room, this one included: always, and if any
//!   plan fits, so does this;
//! - otherwise where the bound is met. Where it is not, there is no guarantee for frontiers in general. If capacity is
//!   the same for all flow counts (the static variants) and the auxiliary cores are idle, the groups are bins of equal
//!   size, filled first fit, largest first. Then it never uses more than 11/9 of the optimum, plus 6/9 (Dósa, "The
//!   tight bound of first fit decreasing bin-packing algorithm is FFD(I) ≤ 11/9 OPT(I) + 6/9", 2007). Sizes are sorted
//!   into [`SIZE_CLASSES`] classes, exact up to that capacity.
//!
//! Where no plan fits, or none was found, the rest stays with the core, and the plan carries the notice
//! [`OutOfCores`](tailwater_policy::core::Notice::OutOfCores).
//!
//! **Whales.** A flow that is outside the frontier by itself is split: the chain's last functions move to an auxiliary
//! core, at the point where the [`SplitProfile`] has room for its packets. Both cores are charged the share of the
//! epoch that it takes of them. If no split has room, the flow stays whole, and the plan carries the notice
//! [`WhaleBeyondSplit`](tailwater_policy::core::Notice::WhaleBeyondSplit).
//!
//! **Boost mode.** When the backlog was outside the frontier for several epochs in a row, the core offloads everything
//! that is not bound. New flowlets are offloaded at once, each to the least loaded auxiliary core that it fits on. This
//! lasts until all work, the core's own and its auxiliary cores', would fit on one core again. No other core can
//! process bound flows, so a core in boost mode still processes them. If auxiliary cores cannot take everything, the
//! core processes its share in that epoch.
//!
//! **Release.** An auxiliary core without work for some epochs is released, unless the plan needs it.
//!
//! **Recursion.** "Each auxiliary core runs a core mapper" (section 3.2). Here the dispatching core runs it for its
//! auxiliary cores, since it has their load. At an epoch's end, an auxiliary core whose backlog, of several flows, is
//! outside the frontier is [relieved](tailwater_policy::core::Plan::relieve), if the other cores have room for the
//! excess (otherwise it would only become idle sooner). Its flows become free as it completes them. Each goes to the
//! first core that it fits on: this one, active auxiliary cores, idle auxiliary cores. Without any, it waits here.
//! NetBlaze's auxiliary cores move waiting packets themselves, and at once. Here every flow has one owner, so an
//! auxiliary core cannot do that without the dispatching core.

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
use tailwater_policy::core::{AuxiliaryCore, CoreMapper, Destination, Flowlet, Load, Loads, Notice, Plan, Split, View};

pub use pack::SIZE_CLASSES;
pub use server::{NetBlazeServerConfig, NetBlazeServerMapper};

/// Capacity that the mapper uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capacity {
    /// The frontier: capacity depends on the number of flows.
    #[default]
    Frontier,
    /// Ablation: the smallest packet count of the frontier, at all flow counts.
    StaticSafe,
    /// Ablation: the largest packet count of the frontier, at all flow counts.
    StaticUnsafe,
}

/// Options of a [`NetBlazeMapper`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetBlazeOptions {
    /// The latency objective.
    pub slo: Nanos,
    /// Part of the objective reserved for the network, before and after this core.
    pub network_allowance: Nanos,
    /// Capacity that the mapper uses.
    pub capacity: Capacity,
    /// `false` disables the core mapper (an ablation): everything stays.
    pub enabled: bool,
    /// Number of epochs in a row with a backlog beyond capacity after which boost mode begins, or `None` to disable it
    /// (an ablation).
    pub boost_after: Option<u32>,
    /// Number of epochs without work after which an auxiliary core is released.
    pub release_after: u32,
    /// `true` if overloaded auxiliary cores are relieved.
    pub recursion: bool,
}

impl NetBlazeOptions {
    /// Returns options for a latency objective, with NetBlaze's values where they are published. These are 40 µs for
    /// the network (its code), and boost after three epochs (the paper: "more than a few"). Release after five epochs
    /// is not published.
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

/// Reason why a [`NetBlazeMapper`] cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetBlazeError {
    /// The allowance leaves no time for an epoch.
    #[error("expected a latency objective above the network allowance of {allowance}, found {slo}")]
    NoEpoch {
        /// Latency objective.
        slo: Nanos,
        /// Allowance for the network.
        allowance: Nanos,
    },
    /// The frontier admits nothing.
    #[error("expected a capacity frontier that admits a packet, found one that admits none")]
    NoCapacity,
}

/// NetBlaze's core mapper. See the [module](self).
#[derive(Debug)]
pub struct NetBlazeMapper {
    options: NetBlazeOptions,
    epoch: Nanos,
    splits: SplitProfile,
    packer: Packer,
    /// End of the current epoch.
    ends: Nanos,
    /// Epochs in a row, up to this one, whose backlog was beyond capacity.
    lasting: u32,
    /// `true` from the start of boost mode to its end.
    boosting: bool,
    /// `boost` of the last plan.
    dispatching: bool,
}

impl NetBlazeMapper {
    /// Creates a mapper for a core whose capacity per epoch is `frontier`. `splits` may be empty.
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

    /// Returns the epoch: half of the objective after the network's allowance.
    pub fn epoch(&self) -> Nanos {
        self.epoch
    }

    /// Counts the epochs of overload, and starts and ends boost mode.
    fn watch(&mut self, fits: bool, own: Load, view: &View<'_>) {
        self.lasting = if fits { 0 } else { self.lasting + 1 };
        if self.boosting {
            let mine = view.auxiliaries.iter().filter(|auxiliary| auxiliary.active);
            let own = sum(own, view.parked);
            let all = mine.fold(own, |all, auxiliary| sum(all, auxiliary.load));
            self.boosting = !self.packer.frontier.admits(all);
        } else if let Some(epochs) = self.options.boost_after {
            self.boosting = !fits && self.lasting >= epochs;
        }
    }

    /// Returns the auxiliary cores whose load exceeds an epoch's capacity, as a bit map, as far as the other cores have
    /// room for the excess.
    #[cold]
    fn overloaded(&self, own: Load, view: &View<'_>, boost: bool) -> u64 {
        let room = |load: Load| {
            let capacity = self.packer.frontier.capacity(load.flows);
            i64::from(capacity) - i64::from(load.packets)
        };
        // A single flow would take as long on another core.
        let several = |auxiliary: &AuxiliaryCore| auxiliary.load.flows > 1 && room(auxiliary.load) < 0;
        let open = view.auxiliaries.iter().filter(|auxiliary| !auxiliary.taken);
        let mut left: i64 = open.map(|auxiliary| room(auxiliary.load).max(0)).sum();
        left += match boost {
            true => -i64::from(own.packets),
            false => room(own),
        };
        left -= i64::from(view.parked.packets);
        let mut overloaded = 0;
        for (i, auxiliary) in view.auxiliaries.iter().enumerate() {
            let beyond = -room(auxiliary.load);
            if several(auxiliary) && beyond <= left {
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
            placed = self.packer.pack(view.queued, false, &mut plan.destinations);
            plan.boost = placed;
        }
        if !placed {
            self.packer.pack(view.queued, true, &mut plan.destinations);
        }
        // Flows that stay: bound ones, whales that are not split, and those without room elsewhere.
        let here = self.packer.here();
        let beyond = here.packets.saturating_sub(self.packer.frontier.capacity(here.flows));
        if beyond > 0 && plan.notice.is_none() {
            plan.notice = Some(Notice::OutOfCores { packets: beyond });
        }
    }

    /// Splits the flows that exceed a core by themselves, where that suffices.
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
            // Share of an epoch, in packets of which a core can process `largest`.
            let share = |capacity: u32| {
                let packets = u64::from(queued.packets) * u64::from(largest);
                packets.div_ceil(u64::from(capacity)) as u32
            };
            let split = split.and_then(|point| {
                let auxiliary = self.packer.take_split(share(point.first), share(point.last))?;
                Some(Split {
                    flow,
                    last_functions: point.last_functions,
                    auxiliary,
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
    fn split_points(&mut self, _: usize) -> u64 {
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
        for (i, auxiliary) in view.auxiliaries.iter().enumerate() {
            busy |= auxiliary.load.flows > 1;
            let lapsed =
                auxiliary.active && auxiliary.load.packets == 0 && view.now.saturating_sub(auxiliary.last_done) >= idle;
            plan.release |= u64::from(lapsed) << i;
        }
        plan.release &= !used;
        if busy && self.options.recursion {
            plan.relieve = self.overloaded(own, view, plan.boost);
        }
        self.dispatching = plan.boost;
    }

    #[inline]
    fn place(&mut self, flowlet: Flowlet, loads: &Loads<'_>) -> Destination {
        // A parked flow has waited already.
        if !self.dispatching && !flowlet.parked {
            return Destination::OWN_CORE;
        }
        let here = grown(loads.here, flowlet.packets);
        if !self.dispatching && self.packer.frontier.admits(here) {
            return Destination::OWN_CORE;
        }
        let mut best: Option<(bool, Load, usize)> = None;
        for (i, auxiliary) in loads.auxiliaries.iter().enumerate() {
            let load = grown(auxiliary.load, flowlet.packets);
            if auxiliary.taken || !self.packer.frontier.admits(load) {
                continue;
            }
            // Active before idle auxiliary cores, then the least loaded.
            let rank = |(idle, load, _): &(bool, Load, usize)| (*idle, load.packets, load.flows);
            let candidate = (!auxiliary.active, auxiliary.load, i);
            if best.as_ref().is_none_or(|best| rank(&candidate) < rank(best)) {
                best = Some(candidate);
            }
        }
        // Without room anywhere it waits here, and can still move at the epoch's end.
        best.map_or(Destination::OWN_CORE, |(_, _, auxiliary)| {
            Destination::auxiliary(auxiliary)
        })
    }
}
