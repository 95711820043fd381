//! Companion flows, which share one timer and end together.

use super::tick::TICK_SHIFT;
use super::{EndedFlows, FlowIndex, FlowTable, NoCompanion, Timer};
use crate::flow_memory::Links;
use crate::flow_wheel::Wheel;
use tailwater_net::{FlowKey, Nanos};

impl FlowTable {
    /// Opens a second flow that shares the timer of `flow` and ends with it, such as the return direction of a
    /// translated connection.
    pub(crate) fn open_companion(
        &mut self,
        flow: FlowIndex,
        key: &FlowKey,
        bucket: u16,
        now: Nanos,
        ends: &mut EndedFlows,
    ) -> Result<FlowIndex, NoCompanion> {
        let usable = self.usable[usize::from(bucket)];
        if !usable || self.bucket(flow) != bucket {
            return Err(NoCompanion::OtherBucket);
        }
        if self.links(flow).companion != Links::NONE {
            return Err(NoCompanion::HasOne);
        }
        let home = FlowIndex(self.home(key, bucket));
        if self.find(home, key).is_some() {
            return Err(NoCompanion::Taken);
        }
        let companion = self
            .open(home, key, now.0 >> TICK_SHIFT, ends, Timer::Companions)
            .ok_or(NoCompanion::TableFull)?;
        self.links_mut(companion).companion = flow.0;
        self.links_mut(flow).companion = companion.0;
        Ok(companion)
    }

    /// Companion of the flow.
    pub(crate) fn companion(&self, flow: FlowIndex) -> Option<FlowIndex> {
        self.check(flow);
        let companion = self.links(flow).companion;
        (companion != Links::NONE).then_some(FlowIndex(companion))
    }

    /// Makes two existing flows of one bucket companions, which share the timer of the first from now on.
    pub(crate) fn join(&mut self, flow: FlowIndex, other: FlowIndex) -> Result<(), NoCompanion> {
        if self.bucket(flow) != self.bucket(other) {
            return Err(NoCompanion::OtherBucket);
        }
        let alone = |of| self.links(of).companion == Links::NONE;
        if flow == other || !alone(flow) || !alone(other) {
            return Err(NoCompanion::HasOne);
        }
        self.links_mut(other).companion = flow.0;
        self.links_mut(flow).companion = other.0;
        let index = self.shape.slot(other.0);
        let bucket = self.shape.bucket(other.0);
        if let Some((partition, mut flows)) = self.partition(bucket) {
            partition.wheel.remove(&mut flows, index);
            Wheel::leave_out(&mut flows, index);
        }
        Ok(())
    }
}
