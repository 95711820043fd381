//! End of flows: idle timeout, eviction, and the end of a run.

use super::partition::NEIGHBOURHOOD;
use super::tick::{TICK_SHIFT, ticks};
use super::{EndedFlows, FlowIndex, FlowTable};
use crate::flow_memory::Links;
use crate::function::Lifetimes;
use std::ops::Range;
use std::sync::Arc;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_net::{FlowKey, Nanos};

/// Maximum timer period for [`FlowTable::timer_period`]. With a million flows, an eighth of a million timers fire per
/// second, which is about 1 % of a core's time.
const TIMEOUT_RECHECK: Nanos = Nanos::from_secs(8);

/// Buckets that a call of [`FlowTable::expire`] looks at, to find one that it may use.
const SCANNED: usize = 64;

impl FlowTable {
    /// Sets the source of idle timeouts, and the range of state bytes it receives.
    pub(crate) fn set_lifetimes(&mut self, lifetimes: Option<(Arc<dyn Lifetimes>, Range<usize>)>) {
        self.lifetimes = lifetimes;
    }

    /// Sets the [timer interval](FlowTable::take_due_flow) of flows; each call handles `budget` flows at most.
    pub(crate) fn set_timer_interval(&mut self, every: Option<Nanos>, budget: usize) {
        self.timer_interval = every.map(ticks);
        // Each flow can have a companion.
        self.looked_at = Vec::with_capacity(every.map_or(0, |_| 2 * budget));
    }

    /// Takes a flow whose timer is due, of those that [`expire`](FlowTable::expire) has visited. No packet of it
    /// that was looked up is in the system.
    #[inline]
    pub(crate) fn take_due_flow(&mut self) -> Option<FlowIndex> {
        self.looked_at.pop()
    }

    /// Idle timeout of a flow with this key.
    pub(crate) fn idle_timeout(&self, key: &FlowKey) -> Nanos {
        self.timeouts.of(key.protocol())
    }

    /// Expires idle flows: checks the timers of one partition, and `budget` flows at most. Repeated calls visit all
    /// partitions held in turn.
    pub(crate) fn expire(&mut self, now: Nanos, budget: usize, ends: &mut EndedFlows) {
        let held = |bucket: &usize| self.held(*bucket).is_some();
        let mut next = (self.cursor..BUCKETS).chain(0..self.cursor).take(SCANNED);
        let Some(bucket) = next.find(held) else {
            self.cursor = (self.cursor + SCANNED) % BUCKETS;
            return;
        };
        self.cursor = (bucket + 1) % BUCKETS;
        self.expire_bucket(bucket as u16, now, budget, ends);
    }

    /// Expires idle flows of a bucket: checks `budget` timers at most.
    pub(crate) fn expire_bucket(&mut self, bucket: u16, now: Nanos, budget: usize, ends: &mut EndedFlows) {
        let bucket = usize::from(bucket);
        if self.kept[bucket] {
            return;
        }
        let soonest = self.timer_period();
        let now = now.0 >> TICK_SHIFT;
        for _ in 0..budget {
            let first = self.shape.first(bucket);
            let Some((partition, _)) = self.partition(bucket) else {
                return;
            };
            let Some(due) = partition.wheel.next_due(now) else {
                return;
            };
            let flow = FlowIndex(first + due);
            let idle = self.idle_ticks(flow, now as u32);
            let timeout = self.timeout(flow);
            if idle >= timeout {
                self.counters.expired += 1 + u64::from(self.close(flow, ends));
                continue;
            }
            if self.timer_interval.is_some() {
                self.record_timer_run(flow);
            }
            if let Some((partition, mut flows)) = self.partition(bucket) {
                partition.wheel.remove(&mut flows, due);
                let left = (timeout - idle).min(soonest);
                partition.wheel.insert(&mut flows, due, now + u64::from(left));
            }
        }
    }

    /// Records that the timer of a flow and its companion is due, unless another core may have their state.
    fn record_timer_run(&mut self, flow: FlowIndex) {
        for flow in [Some(flow), self.companion(flow)].into_iter().flatten() {
            if self.links(flow).active == 0 {
                self.looked_at.push(flow);
            }
        }
    }

    /// Idle timeout of the flow in ticks.
    fn timeout(&mut self, flow: FlowIndex) -> u32 {
        let key = *self.key_of(flow);
        // Another core may have the state of a flow with packets in the system.
        if self.links(flow).active == 0
            && let Some((lifetimes, bytes)) = self.lifetimes.take()
        {
            let timeout = lifetimes.idle_timeout(&key, self.state(flow, &bytes));
            self.lifetimes = Some((lifetimes, bytes));
            return ticks(timeout);
        }
        ticks(self.timeouts.of(key.protocol()))
    }

    /// Maximum period in ticks after which a flow's timer is checked. State that determines the timeout changes while
    /// the timer runs, and functions may have timers of their own.
    pub(super) fn timer_period(&self) -> u32 {
        let changing = self.lifetimes.as_ref().map(|_| ticks(TIMEOUT_RECHECK));
        let soonest = changing.into_iter().chain(self.timer_interval).min();
        // Limited to the range of the timers.
        soonest.map_or(u32::MAX, |soonest| soonest.min(ticks(self.timeouts.longest())))
    }

    /// Ends about `most` flows, idle or not. Returns `true` if there are more.
    pub(crate) fn end_some(&mut self, most: usize, ends: &mut EndedFlows) -> bool {
        let mut ended = 0;
        for bucket in 0..BUCKETS {
            let taken = |table: &FlowTable| table.held(bucket)?.first_taken();
            while let Some(index) = taken(self) {
                if ended >= most {
                    return true;
                }
                let flow = FlowIndex(self.shape.first(bucket) + index);
                ended += 1 + usize::from(self.close(flow, ends));
            }
        }
        false
    }

    /// Ends a flow and its companion.
    pub(crate) fn end_flow(&mut self, flow: FlowIndex, ends: &mut EndedFlows) {
        self.close(flow, ends);
    }

    /// Ticks since the last packet of the flow or its companion.
    pub(super) fn idle_ticks(&self, flow: FlowIndex, tick: u32) -> u32 {
        // A flow last seen after the current time, by a worker that held this partition before, is not idle.
        let since = |last_seen| (tick.wrapping_sub(last_seen) as i32).max(0) as u32;
        let idle = |links: &Links| match links.active {
            0 => since(links.last_seen),
            // Packets of the flow are still in the system.
            _ => 0,
        };
        if self.kept[self.shape.bucket(flow.0)] {
            return 0;
        }
        let links = self.links(flow);
        match links.companion {
            Links::NONE => idle(links),
            companion => idle(links).min(idle(self.links(FlowIndex(companion)))),
        }
    }

    /// Makes room in a home's neighbourhood. Evicts the flow that has been idle longest, with its companion, or, where
    /// flows have individual timeouts, the one whose timeout ends first. Flows seen in this tick stay, because the
    /// current batch may hold their packets.
    pub(super) fn evict(&mut self, home: FlowIndex, tick: u32, ends: &mut EndedFlows) -> Option<u32> {
        let mut chosen = None;
        let end = self.shape.first(self.shape.bucket(home.0)) + self.shape.slots;
        for distance in 0..NEIGHBOURHOOD {
            let slot = home.0 + distance;
            let flow = FlowIndex(if slot < end { slot } else { slot - self.shape.slots });
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

    /// Removes a flow and its companion. Returns `true` if there was a companion.
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
        self.detach(flow);
    }

    /// Frees a flow's slot.
    pub(super) fn detach(&mut self, flow: FlowIndex) {
        let bucket = self.shape.bucket(flow.0);
        let distance = u32::from(self.links(flow).distance);
        let home = FlowIndex(self.shape.before(flow.0, distance));
        let slot = self.shape.slot(flow.0);
        self.links_mut(home).near &= !(1 << distance);
        if let Some((partition, mut flows)) = self.partition(bucket) {
            partition.wheel.remove(&mut flows, slot);
            partition.set_taken(slot, false);
            partition.live -= 1;
        }
    }
}
