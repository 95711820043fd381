//! End of flows: idle timeout, eviction, and the end of a run.

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

/// Slots of a full partition among which the flow to evict is chosen.
const CANDIDATES: u32 = 32;

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
            let flow = FlowIndex(first + u32::from(due));
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
                let flow = FlowIndex(self.shape.first(bucket) + u32::from(index));
                ended += 1 + usize::from(self.close(flow, ends));
            }
        }
        false
    }

    /// Ticks since the last packet of the flow or its companion.
    pub(super) fn idle_ticks(&self, flow: FlowIndex, tick: u32) -> u32 {
        let idle = |flow: FlowIndex| match self.links(flow).active {
            // A flow last seen after the current time, by a worker that held this partition before, is not idle.
            0 => (tick.wrapping_sub(self.last_seen(flow)) as i32).max(0) as u32,
            // Packets of the flow are still in the system.
            _ => 0,
        };
        if self.kept[self.shape.bucket(flow.0)] {
            return 0;
        }
        match self.links(flow).companion {
            Links::NONE => idle(flow),
            companion => idle(flow).min(idle(FlowIndex(companion))),
        }
    }

    /// Makes room in the full partition of a home. Of some flows, evicts the one that has been idle longest, with its
    /// companion, or, where flows have individual timeouts, the one whose timeout ends first. Flows seen in this tick
    /// stay, because the current batch may hold their packets. Returns `false` if all of them stay.
    pub(super) fn evict(&mut self, home: u32, tick: u32, ends: &mut EndedFlows) -> bool {
        let slots = self.shape.slots;
        let first = self.shape.first(self.shape.bucket_of_home(home));
        let candidates = self.shape.first_candidate(home);
        let mut chosen = None;
        for candidate in candidates..candidates + CANDIDATES {
            let flow = FlowIndex(first + candidate % slots);
            let idle = self.idle_ticks(flow, tick);
            if idle == 0 {
                continue;
            }
            let over = match self.lifetimes {
                Some(_) => i64::from(idle) - i64::from(self.timeout(flow)),
                None => i64::from(idle),
            };
            chosen = chosen.max(Some((over, flow.0)));
        }
        let Some((_, flow)) = chosen else {
            return false;
        };
        self.counters.evicted += 1 + u64::from(self.close(FlowIndex(flow), ends));
        true
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
        let key = *self.key_of(flow);
        self.unchain(flow, &key);
        let (bucket, slot) = (self.shape.bucket(flow.0), self.shape.slot(flow.0));
        if let Some((partition, mut flows)) = self.partition(bucket) {
            partition.wheel.remove(&mut flows, slot);
            partition.set_taken(slot, false);
            partition.live -= 1;
            flows.at(slot).chain = std::mem::replace(&mut partition.left, flow.0);
        }
    }

    /// Takes a flow out of its home's list.
    fn unchain(&mut self, flow: FlowIndex, key: &FlowKey) {
        let home = self.home(key, self.bucket(flow));
        let behind = self.links(flow).chain;
        let mut before = self.head(home);
        if before == flow.0 {
            return self.set_head(home, behind);
        }
        while before != self.memory.none() {
            let links = self.links_mut(FlowIndex(before));
            if links.chain == flow.0 {
                links.chain = behind;
                return;
            }
            before = links.chain;
        }
    }
}
