//! Backlog of a dedicated core and its auxiliary cores, as a fluid.
//!
//! Work arrives at a constant rate between events (starts and ends of trains and minnow bursts, ends of steps), and
//! leaves at the rate of the awake cores. So the backlog is linear between events, and where it crosses a limit of the
//! core mapper follows exactly. A packet's latency is the backlog that it finds.

use super::meter::{CALM, Meter};
use super::model::{Limits, Model, Sharing};

/// Backlogs and times that differ less are equal, in nanoseconds.
const EXACT: f64 = 1e-3;
/// Most auxiliary cores of a dedicated core.
const MOST: u32 = tailwater_policy::core::MAX_AUXILIARY_CORES as u32;

/// Packets that arrive at a constant rate until `ends`. Rates are per nanosecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Train {
    pub starts: f64,
    pub ends: f64,
    pub packets: f64,
    /// Work, in nanoseconds per nanosecond.
    pub work: f64,
}

/// Counts of a core since its server mapper last ran.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CoreCounts {
    pub busy: f64,
    pub packets: f64,
    pub late: f64,
    pub lost: f64,
    pub longest: f64,
}

/// Counts of a core since the start of the run, for reports to the ingress: packets, core time in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub packets: f64,
    pub late: f64,
    pub lost: f64,
    /// Counted with Tailwater's core mapper only: no other policy has such an ingress.
    pub spent: f64,
}

/// Actions of the core mapper.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Actions {
    pub activated: u64,
    pub released: u64,
    pub boosts: u64,
    pub offloaded: f64,
}

/// A dedicated core.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// Packets per nanosecond without trains, and the deviation of a step's rate as a share of it.
    pub rate: f64,
    pub deviation: f64,
    /// Current deviation, in multiples.
    pub state: f64,
    trains: Vec<Train>,
    /// Work that waits, in nanoseconds: of all, or with NetBlaze's mapper of the dedicated core and the auxiliary ones.
    work: f64,
    away: f64,
    /// Active auxiliary cores, and when the latest of them are awake.
    active: u32,
    waking: Vec<f64>,
    idle_since: Option<f64>,
    epoch_ends: f64,
    lasting: u32,
    /// Work that arrived in the epoch.
    arrived: f64,
    boosting: bool,
    /// In boost mode, and auxiliary cores take everything in this epoch.
    dispatching: bool,
    /// Epochs for which at most this many auxiliary cores were needed.
    idle_epochs: u32,
    needed: u32,
    /// Time since which the core has had a backlog.
    pub behind_since: Option<f64>,
    pub counts: CoreCounts,
    pub sums: Sums,
    pub actions: Actions,
    /// Sum over time of active auxiliary cores, and time spent on packets.
    pub auxiliary: f64,
    pub busy: f64,
}

/// What a step of a queue needs of its surroundings.
pub(super) struct Surroundings<'a> {
    pub model: &'a Model,
    pub meter: &'a mut Meter,
    /// Cores of the server that can become auxiliary.
    pub free: &'a mut u32,
}

impl Queue {
    /// Returns `true` if the core has neither a backlog nor auxiliary cores.
    pub fn is_empty(&self) -> bool {
        self.work <= 0.0 && self.active == 0 && self.trains.is_empty()
    }

    /// Returns the work that waits, in nanoseconds.
    pub fn waiting(&self) -> f64 {
        self.work + self.away
    }

    pub fn active(&self) -> u32 {
        self.active
    }

    /// Advances from `from` to `to`, with the trains that start meanwhile, by start.
    pub fn advance(&mut self, (from, to): (f64, f64), starting: &[Train], s: &mut Surroundings<'_>) {
        let base = self.rate * (1.0 + self.state * self.deviation).max(0.0);
        let packet = s.model.packet;
        if self.is_empty() && starting.is_empty() && base * packet < CALM && !self.boosting {
            let packets = base * (to - from);
            s.meter.steady(packets, base * packet, false);
            self.counts.packets += packets;
            self.sums.packets += packets;
            self.worked(base * packet * (to - from));
            self.sums.spent += s.model.busy(base * packet) * (to - from);
            self.behind_since = None;
            return;
        }
        let (mut now, mut next) = (from, 0);
        loop {
            while let Some(train) = starting.get(next)
                && train.starts <= now + EXACT
            {
                self.trains.push(*train);
                next += 1;
            }
            self.trains.retain(|train| train.ends > now + EXACT);
            if now >= to - EXACT {
                break;
            }
            let mut until = starting.get(next).map_or(to, |train| train.starts.min(to));
            let (mut packets, mut work) = (base, base * packet);
            for train in &self.trains {
                packets += train.packets;
                work += train.work;
                until = until.min(train.ends);
            }
            let until = until.max(now + EXACT);
            match s.model.sharing {
                Sharing::Alone => self.alone((now, until), (packets, work), s),
                Sharing::Tailwater(limits) => self.tailwater((now, until), (packets, work), &limits, s),
                Sharing::NetBlaze { .. } => self.netblaze((now, until), (packets, work), s),
            }
            now = until;
        }
        self.counts.longest = self.counts.longest.max(self.work / packet);
        match self.work > packet * 32.0 {
            true => self.behind_since = self.behind_since.or(Some(from)),
            false => self.behind_since = None,
        }
    }

    #[inline]
    fn worked(&mut self, time: f64) {
        self.busy += time;
        self.counts.busy += time;
    }

    /// Counts packets that arrive while the backlog changes evenly.
    #[inline]
    fn ramp(&mut self, packets: f64, latency: impl Fn(f64) -> f64, s: &mut Surroundings<'_>) {
        let late = s.meter.ramp(packets, latency);
        self.counts.packets += packets;
        self.counts.late += late;
        self.sums.packets += packets;
        self.sums.late += late;
    }

    #[inline]
    fn steady(&mut self, packets: f64, utilisation: f64, s: &mut Surroundings<'_>) {
        let helped = *s.free > 0 && s.model.sharing != Sharing::Alone;
        let late = s.meter.steady(packets, utilisation, helped);
        self.counts.packets += packets;
        self.counts.late += late;
        self.sums.packets += packets;
        self.sums.late += late;
    }

    #[inline]
    fn lose(&mut self, packets: f64, s: &mut Surroundings<'_>) {
        self.counts.packets += packets;
        self.counts.lost += packets;
        self.sums.packets += packets;
        self.sums.lost += packets;
        s.meter.lost(packets);
    }

    fn alone(&mut self, (from, to): (f64, f64), (packets, work): (f64, f64), s: &mut Surroundings<'_>) {
        let most = s.model.most[0];
        let net = work - 1.0;
        let mut now = from;
        while to - now > EXACT / 2.0 {
            if self.work <= 0.0 && net <= 0.0 {
                self.steady(packets * (to - now), work, s);
                self.worked(work * (to - now));
                return;
            }
            if net > 0.0 && self.work >= most {
                let all = packets * (to - now);
                let lost = all * net / work;
                self.lose(lost, s);
                let latency = most + s.model.in_batch(most);
                self.ramp(all - lost, |_| latency, s);
                self.worked(to - now);
                return;
            }
            let stop = crossing(now, to, self.work, net, 0.0, most);
            let (first, change) = (self.work, net * (stop - now));
            let model = s.model;
            let latency = |at: f64| {
                let wait = first + change * at;
                wait + model.in_batch(wait)
            };
            self.ramp(packets * (stop - now), latency, s);
            self.work = snapped(first + change, most);
            self.worked(stop - now);
            now = stop;
        }
    }

    /// Returns the rate at which work leaves with `active` auxiliary cores, `awake` of which work.
    fn capacity(&self, model: &Model, (packets, work): (f64, f64), active: u32, awake: u32) -> f64 {
        if active == 0 {
            return 1.0;
        }
        let own = 1.0 - packets * model.receive;
        let away = (1.0 - own.max(0.0) / work.max(EXACT)).clamp(0.0, 1.0);
        let own = (own - packets * away * model.hand_over).max(0.0);
        own + f64::from(awake) / model.dearer
    }

    fn release(&mut self, cores: u32, s: &mut Surroundings<'_>) {
        let cores = cores.min(self.active);
        self.active -= cores;
        self.waking.truncate(self.active as usize);
        *s.free += cores;
        self.actions.released += u64::from(cores);
    }

    fn activate(&mut self, now: f64, cores: u32, s: &mut Surroundings<'_>) {
        self.active += cores;
        *s.free -= cores;
        self.actions.activated += u64::from(cores);
        for _ in 0..cores {
            self.waking.push(now + s.model.wake);
        }
    }

    fn tailwater(
        &mut self,
        (from, to): (f64, f64),
        rates @ (packets, work): (f64, f64),
        limits: &Limits,
        s: &mut Surroundings<'_>,
    ) {
        let mut now = from;
        while to - now > EXACT / 2.0 {
            self.waking.retain(|awake| *awake > now + EXACT);
            let active = self.active;
            let awake = active - (self.waking.len() as u32).min(active);
            let capacity = self.capacity(s.model, rates, active, awake);
            let net = work - capacity;
            let each = if active < 2 { limits.first } else { limits.further };
            let limit = f64::from(active + 1) * each;
            let can_grow = *s.free > 0 && active < MOST;
            if can_grow && net > 0.0 && self.work >= limit - EXACT {
                self.activate(now, 1, s);
                self.idle_since = None;
                continue;
            }
            // Without usable auxiliary cores, packets go straight through.
            let most = match active == 0 && *s.free == 0 {
                true => s.model.ring,
                false => s.model.most[(active as usize).min(2)],
            };
            let above = if can_grow { limit.min(most) } else { most };
            // The dedicated core's own packets, and those of all auxiliary cores but the last.
            let own = limits.share / f64::from(active.clamp(1, 4));
            let kept = own + f64::from(active.saturating_sub(1)) * limits.fill;
            let mut stop = crossing(now, to, self.work, net, 0.0, above);
            stop = crossing(now, stop, self.work, net, kept, f64::MAX);
            if let Some(first) = self.waking.first() {
                stop = stop.min(*first);
            }
            if active > 0 {
                let less = self.capacity(s.model, rates, active - 1, active - 1);
                let is_idle = self.waking.is_empty() && self.work <= kept + EXACT && work < less;
                match is_idle {
                    true => {
                        let since = *self.idle_since.get_or_insert(now);
                        if now >= since + limits.release - EXACT {
                            self.release(1, s);
                            self.idle_since = None;
                            continue;
                        }
                        stop = stop.min(since + limits.release);
                    }
                    false => self.idle_since = None,
                }
            }
            let time = (stop - now).max(EXACT);
            let stop = now + time;
            self.auxiliary += f64::from(active) * time;
            let all = packets * time;
            if net > 0.0 && self.work >= most - EXACT {
                let lost = all * net / work;
                self.lose(lost, s);
                let latency = most / f64::from(active + 1);
                let latency = latency + s.model.in_batch(latency);
                self.ramp(all - lost, |_| latency, s);
            } else if self.work <= 0.0 && net <= 0.0 && active == 0 {
                self.steady(all, work, s);
            } else {
                let cores = f64::from(active + 1);
                let (first, change) = (self.work, net * time);
                // In a pool all auxiliary cores but the last are kept filled.
                let filled = if work > 1.0 && active > 0 { limits.fill } else { 0.0 };
                let model = s.model;
                let latency = |at: f64| {
                    let waiting = (first + change * at).max(0.0);
                    let wait = (waiting / cores).max(waiting.min(limits.fill)).max(filled * at);
                    wait + model.in_batch(wait)
                };
                self.ramp(all, latency, s);
            }
            if active > 0 {
                self.actions.offloaded += all * (1.0 - 1.0 / work.max(1.0)).max(0.0);
            }
            let done = capacity.min(work.max(if self.work > 0.0 { capacity } else { 0.0 }));
            self.worked(done * time);
            self.sums.spent += time
                * match active == 0 && self.work <= 0.0 {
                    true => s.model.busy(work),
                    // Awake auxiliary cores are busy as far as there is work for them.
                    false => done / capacity.max(EXACT) * f64::from(awake + 1),
                };
            self.work = snapped(self.work + net * time, most);
            now = stop;
        }
    }

    fn netblaze(&mut self, (from, to): (f64, f64), (packets, work): (f64, f64), s: &mut Surroundings<'_>) {
        let Sharing::NetBlaze { epoch, capacity, .. } = s.model.sharing else {
            return;
        };
        let mut now = from;
        if self.epoch_ends <= 0.0 {
            self.epoch_ends = from + epoch;
        }
        while to - now > EXACT / 2.0 {
            if self.epoch_ends <= now + EXACT {
                self.decide(now, s);
                self.epoch_ends = now + epoch;
            }
            self.waking.retain(|awake| *awake > now + EXACT);
            let awake = f64::from(self.active) - self.waking.len() as f64;
            let model = *s.model;
            let boosting = self.dispatching && self.active > 0;
            // The backlog is that of received packets. In boost mode the dedicated core only dispatches.
            let dispatched = packets * (model.receive + model.hand_over);
            let processing = work * model.process;
            let (arriving, leaving) = match boosting {
                true if dispatched > 1.0 => (processing * (1.0 - 1.0 / dispatched), 0.0),
                true => (0.0, (1.0 - dispatched).max(0.0)),
                // In an overload the core receives no more than it processes.
                false => (processing, (1.0 - packets * model.receive).max(model.process)),
            };
            let net = arriving - leaving;
            let most = model.most[0] * model.process;
            let mut stop = crossing(now, to.min(self.epoch_ends), self.work, net, 0.0, most);
            if let Some(first) = self.waking.first() {
                stop = stop.min(*first);
            }
            let time = (stop - now).max(EXACT);
            let stop = now + time;
            let all = packets * time;
            let (first, change) = (self.work, net * time);
            let (left, away, active) = (self.epoch_ends - now, self.away, self.active);
            let asleep = if awake > 0.0 { 0.0 } else { model.wake };
            let helpers = *s.free > 0 || active > 0;
            let latency = |at: f64| {
                let waiting = (first + change * at).max(0.0);
                let left = left - time * at;
                let wait = if boosting {
                    away / f64::from(active.max(1)) + asleep
                } else if helpers && waiting > capacity + left * leaving {
                    left + model.wake + capacity / 2.0
                } else {
                    waiting / leaving
                };
                wait + model.in_batch(wait)
            };
            if net > 0.0 && self.work >= most - EXACT {
                let lost = all * net / processing.max(EXACT);
                self.lose(lost.min(all), s);
                self.ramp((all - lost).max(0.0), latency, s);
            } else if first <= 0.0 && net <= 0.0 && !boosting {
                self.steady(all, work, s);
            } else {
                self.ramp(all, latency, s);
            }
            let done = if self.work > 0.0 { 1.0 } else { work.min(1.0) };
            let helped = awake.min(if self.away > 0.0 { awake } else { 0.0 });
            self.worked((done + helped) * time);
            self.auxiliary += f64::from(active) * time;
            self.work = snapped(first + change, most);
            self.arrived += processing * time;
            let offered = if boosting {
                processing * model.dearer * time
            } else {
                0.0
            };
            if boosting {
                self.actions.offloaded += all;
            }
            self.away = (self.away + offered - awake * time).max(0.0);
            now = stop;
        }
    }

    /// Ends an epoch: what a core cannot do in the next goes to auxiliary cores.
    fn decide(&mut self, now: f64, s: &mut Surroundings<'_>) {
        let Sharing::NetBlaze {
            capacity,
            boost_after,
            release_after,
            ..
        } = s.model.sharing
        else {
            return;
        };
        let fits = self.work <= capacity;
        self.lasting = if fits { 0 } else { self.lasting + 1 };
        if self.boosting {
            self.boosting = self.work + self.away > capacity;
        } else if boost_after.is_some_and(|after| self.lasting >= after) {
            self.boosting = true;
            self.actions.boosts += 1;
        }
        // In boost mode auxiliary cores need room for the next epoch's packets, too.
        let coming = if self.boosting { self.arrived } else { 0.0 };
        self.arrived = 0.0;
        let excess = if self.boosting {
            self.work + coming
        } else {
            self.work - capacity
        };
        let mut needed = libm::ceil(self.away / capacity) as u32;
        if excess > 0.0 {
            let room = f64::from(self.active) * capacity - self.away;
            let more = libm::ceil(((excess - room) / capacity).max(0.0)) as u32;
            let more = more.min(*s.free).min(MOST - self.active);
            if more > 0 {
                self.activate(now, more, s);
            }
            let room = (f64::from(self.active) * capacity - self.away).max(0.0);
            self.dispatching = self.boosting && room >= excess;
            let excess = match self.dispatching {
                true => self.work,
                false => (self.work - capacity).max(0.0),
            };
            let moved = excess.min(room);
            self.work -= moved;
            self.away += moved * s.model.dearer;
            self.actions.offloaded += moved / (s.model.packet * s.model.process);
            needed = libm::ceil((self.away + coming) / capacity) as u32;
        } else {
            self.dispatching = false;
        }
        if needed >= self.active {
            (self.idle_epochs, self.needed) = (0, 0);
            return;
        }
        self.needed = self.needed.max(needed);
        self.idle_epochs += 1;
        if self.idle_epochs >= release_after && self.active > self.needed {
            self.release(self.active - self.needed, s);
            (self.idle_epochs, self.needed) = (0, 0);
        }
    }

    /// Gives an auxiliary core back, for another use.
    pub fn give_back(&mut self, free: &mut u32) {
        if self.active > 0 {
            self.active -= 1;
            self.waking.truncate(self.active as usize);
            *free += 1;
            self.actions.released += 1;
        }
    }

    /// Ends the core's use as a dedicated one: its auxiliary cores are released, and its backlog goes to another.
    pub fn retire(&mut self, heir: Option<&mut Queue>, free: &mut u32) {
        *free += self.active;
        self.actions.released += u64::from(self.active);
        if let Some(heir) = heir {
            heir.work += self.work + self.away;
            heir.trains.append(&mut self.trains);
        }
        let kept = (self.counts, self.sums, self.actions, self.auxiliary, self.busy);
        *self = Queue::default();
        (self.counts, self.sums, self.actions, self.auxiliary, self.busy) = kept;
    }
}

/// Returns the time at which `work`, which changes by `net`, reaches `low` from above or `high` from below, at most
/// `to`.
#[inline]
fn crossing(now: f64, to: f64, work: f64, net: f64, low: f64, high: f64) -> f64 {
    if net < 0.0 && work > low + EXACT {
        to.min(now + (work - low) / -net)
    } else if net > 0.0 && work < high - EXACT {
        to.min(now + (high - work) / net)
    } else {
        to
    }
}

/// Returns a backlog within its limits.
#[inline]
fn snapped(work: f64, most: f64) -> f64 {
    if work < EXACT {
        0.0
    } else if work > most - EXACT {
        most
    } else {
        work
    }
}
