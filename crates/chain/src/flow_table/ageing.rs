//! How flows end: idle ones, those that make room, and all of them at the end of a run.

use super::partition::NEIGHBOURHOOD;
use super::{EndedFlows, FlowIndex, FlowTable, TICK_SHIFT};
use crate::flow_memory::Links;
use crate::function::Lifetimes;
use std::ops::Range;
use std::sync::Arc;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_net::{FlowKey, Nanos};

/// See [`FlowTable::look_again`]: at a million flows, an eighth of a million timers a second, which is
/// about a hundredth of a core's time.
const LOOK_AGAIN: Nanos = Nanos::from_secs(8);

impl FlowTable {
    /// Has somebody else say how long flows are kept, told these bytes of their state.
    pub(crate) fn set_lifetimes(&mut self, lifetimes: Option<(Arc<dyn Lifetimes>, Range<usize>)>) {
        self.lifetimes = lifetimes;
    }

    /// Has flows be [told](FlowTable::take_looked_at) about that often, a turn's `budget` of them at most.
    pub(crate) fn look_every(&mut self, every: Option<Nanos>, budget: usize) {
        self.look_every = every.map(ticks);
        // Each with its companion.
        self.looked_at = Vec::with_capacity(every.map_or(0, |_| 2 * budget));
    }

    /// A flow whose state it is time to look at, of those that [`expire`](FlowTable::expire) came by. None of its
    /// packets is in the system.
    #[inline]
    pub(crate) fn take_looked_at(&mut self) -> Option<FlowIndex> {
        self.looked_at.pop()
    }

    /// How long a flow of that key may be idle.
    pub(crate) fn idle_timeout(&self, key: &FlowKey) -> Nanos {
        self.timeouts.of(key.protocol())
    }

    /// Forgets idle flows: looks at the timers of one partition, and at `budget` flows at the most.
    /// Called in every turn of a worker's loop, it comes round the partitions held.
    pub(crate) fn expire(&mut self, now: Nanos, budget: usize, ends: &mut EndedFlows) {
        let held = |bucket: &usize| self.partitions[*bucket].is_some();
        let Some(bucket) = (self.cursor..BUCKETS).chain(0..self.cursor).find(held) else {
            return;
        };
        self.cursor = (bucket + 1) % BUCKETS;
        let soonest = self.look_again();
        let now = now.0 >> TICK_SHIFT;
        for _ in 0..budget {
            let mask = self.mask();
            let base = (bucket as u32) << self.shift;
            let Some((partition, _)) = self.partition(bucket) else {
                return;
            };
            let Some(due) = partition.wheel.next_due(now) else {
                return;
            };
            let flow = FlowIndex(base + due);
            let idle = self.idle_ticks(flow, now as u32);
            let timeout = self.timeout(flow);
            if idle >= timeout {
                self.counters.expired += 1 + u64::from(self.close(flow, ends));
                continue;
            }
            if self.look_every.is_some() {
                self.note_looked_at(flow);
            }
            if let Some((partition, mut flows)) = self.partition(bucket) {
                let place = flow.0 & mask;
                partition.wheel.remove(&mut flows, place);
                let left = (timeout - idle).min(soonest);
                partition.wheel.insert(&mut flows, place, now + u64::from(left));
            }
        }
    }

    /// Notes a flow and its companion to be looked at, unless their state may be another core's.
    fn note_looked_at(&mut self, flow: FlowIndex) {
        for flow in [Some(flow), self.companion(flow)].into_iter().flatten() {
            if self.links(flow).active == 0 {
                self.looked_at.push(flow);
            }
        }
    }

    /// How long the flow is kept without packets, in ticks.
    fn timeout(&mut self, flow: FlowIndex) -> u32 {
        let key = *self.key_of(flow);
        // The state of a flow with packets in the system may be another core's.
        if self.links(flow).active == 0
            && let Some((lifetimes, bytes)) = self.lifetimes.take()
        {
            let timeout = lifetimes.idle_timeout(&key, self.state(flow, &bytes));
            self.lifetimes = Some((lifetimes, bytes));
            return ticks(timeout);
        }
        ticks(self.timeouts.of(key.protocol()))
    }

    /// After how many ticks at the latest a flow's timer is looked at: state that says how long the flow is
    /// kept changes while the timer runs, and somebody may want to look at it now and then.
    pub(super) fn look_again(&self) -> u32 {
        let changing = self.lifetimes.as_ref().map(|_| ticks(LOOK_AGAIN));
        let soonest = changing.into_iter().chain(self.look_every).min();
        // No further than the timers go.
        soonest.map_or(u32::MAX, |soonest| soonest.min(ticks(self.timeouts.longest())))
    }

    /// Forgets flows, idle or not: about `most` of them. Says whether there are more.
    pub(crate) fn end_some(&mut self, most: usize, ends: &mut EndedFlows) -> bool {
        let mut ended = 0;
        for bucket in 0..BUCKETS {
            let taken = |table: &FlowTable| table.partitions[bucket].as_ref()?.0.first_taken();
            while let Some(place) = taken(self) {
                if ended >= most {
                    return true;
                }
                let flow = FlowIndex(((bucket as u32) << self.shift) | place);
                ended += 1 + usize::from(self.close(flow, ends));
            }
        }
        false
    }

    /// How long neither the flow nor its companion has had a packet.
    pub(super) fn idle_ticks(&self, flow: FlowIndex, tick: u32) -> u32 {
        // A flow seen at a later time than now, by a worker whose partition this was, is not idle.
        let since = |last_seen| (tick.wrapping_sub(last_seen) as i32).max(0) as u32;
        let idle = |links: &Links| match links.active {
            0 => since(links.last_seen),
            // Packets of the flow are still in the system.
            _ => 0,
        };
        let links = self.links(flow);
        match links.companion {
            Links::NONE => idle(links),
            companion => idle(links).min(idle(self.links(FlowIndex(companion)))),
        }
    }

    /// Makes room in a home's neighbourhood: the flow idle longest goes, with its companion; or, where each
    /// flow has a time of its own, the one whose time is up first. Flows seen in this very tick stay: the batch
    /// under way may hold packets of theirs.
    pub(super) fn evict(&mut self, home: FlowIndex, tick: u32, ends: &mut EndedFlows) -> Option<u32> {
        let mut chosen = None;
        for distance in 0..NEIGHBOURHOOD {
            let flow = self.at(home.0, distance);
            let idle = self.idle_ticks(flow, tick);
            if idle == 0 {
                continue;
            }
            let over = match self.lifetimes {
                Some(_) => i64::from(idle) - i64::from(self.timeout(flow)),
                None => i64::from(idle),
            };
            chosen = chosen.max(Some((over, distance)));
        }
        let (_, distance) = chosen?;
        let flow = self.at(home.0, distance);
        self.counters.evicted += 1 + u64::from(self.close(flow, ends));
        Some(distance)
    }

    /// Forgets a flow and its companion. Says whether there was one.
    fn close(&mut self, flow: FlowIndex, ends: &mut EndedFlows) -> bool {
        let companion = self.links(flow).companion;
        self.remove(flow, ends);
        if companion == Links::NONE {
            return false;
        }
        self.remove(FlowIndex(companion), ends);
        true
    }

    fn remove(&mut self, flow: FlowIndex, ends: &mut EndedFlows) {
        let key = *self.key_of(flow);
        ends.push(&key, self.whole_state(flow));
        let mask = self.mask();
        let bucket = (flow.0 >> self.shift) as usize;
        let distance = u32::from(self.links(flow).distance);
        let home = FlowIndex((flow.0 & !mask) | (flow.0.wrapping_sub(distance) & mask));
        self.links_mut(home).near &= !(1 << distance);
        if let Some((partition, mut flows)) = self.partition(bucket) {
            partition.wheel.remove(&mut flows, flow.0 & mask);
            partition.set_taken(flow.0 & mask, false);
            partition.live -= 1;
        }
    }
}

/// A span as whole ticks, at least one.
pub(super) fn ticks(span: Nanos) -> u32 {
    (span.0 >> TICK_SHIFT).clamp(1, u64::from(u32::MAX / 2)) as u32
}
