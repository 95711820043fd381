//! Flows of another table, whose chain this one's has succeeded.

use super::tick::TICK_SHIFT;
use super::{EndedFlows, FlowIndex, FlowTable, Timer};
use tailwater_net::{FlowKey, Nanos};

impl FlowTable {
    /// First flow of a bucket that this table holds.
    pub(crate) fn first_flow(&self, bucket: u16) -> Option<FlowIndex> {
        let index = self.held(bucket.into())?.first_taken()?;
        Some(FlowIndex(self.shape.first(bucket.into()) + index))
    }

    /// Removes a flow and its companion without telling anybody. Returns their keys, times of the last packet, and
    /// indices, which `state` reads the states by before.
    pub(crate) fn take_flow(&mut self, flow: FlowIndex, mut take: impl FnMut(&FlowKey, u32, &mut [u8])) {
        let companion = self.companion(flow);
        for flow in [Some(flow), companion].into_iter().flatten() {
            let (key, seen) = (*self.key_of(flow), self.links(flow).last_seen);
            take(&key, seen, self.whole_state(flow));
            self.detach(flow);
        }
    }

    /// Inserts flows that another table had: one, and its companion. Each has its key, the time of its last packet as
    /// that table had it, and its state. What finds no slot is reported as ended.
    pub(crate) fn receive_flows(
        &mut self,
        bucket: u16,
        flows: &[(FlowKey, u32)],
        states: &[u8],
        now: Nanos,
        ends: &mut EndedFlows,
    ) {
        let bytes = self.state_bytes();
        let (mut first, mut all) = (None, [None; 2]);
        for (at, (key, seen)) in flows.iter().enumerate() {
            let state = &states[at * bytes..(at + 1) * bytes];
            let opened = match first {
                None => {
                    let home = FlowIndex(self.home(key, bucket));
                    self.open(home, key, now.0 >> TICK_SHIFT, ends, Timer::Own)
                }
                Some(first) => self.open_companion(first, key, bucket, now, ends).ok(),
            };
            let Some(flow) = opened else {
                ends.push(key, state);
                continue;
            };
            // It was opened before, in the other table.
            self.counters.opened -= 1;
            self.whole_state(flow).copy_from_slice(state);
            first.get_or_insert(flow);
            if let Some(place) = all.iter_mut().find(|place| place.is_none()) {
                *place = Some((flow, *seen));
            }
        }
        // Not before: a full table makes room for the companion by ending a flow of an earlier tick.
        for (flow, seen) in all.into_iter().flatten() {
            self.links_mut(flow).last_seen = seen;
        }
    }

    /// Tick of the flow's last packet.
    pub(crate) fn last_seen(&self, flow: FlowIndex) -> u32 {
        self.links(flow).last_seen
    }

    /// Number of buckets that this view holds and has lent.
    pub(crate) fn lent_buckets(&self) -> usize {
        let held = self.partitions.iter().zip(self.usable.iter());
        held.filter(|(partition, usable)| partition.is_some() && !**usable)
            .count()
    }

    /// Returns `true` if flows are connections.
    pub(crate) fn has_connections(&self) -> bool {
        self.connections
    }

    /// Returns `true` if this table finds flows by the same keys as another one: those of packets, or of connections.
    pub(crate) fn has_keys_of(&self, other: &FlowTable) -> bool {
        self.connections == other.connections
    }
}
