//! Flows that live and end together, by one timer.

use super::{EndedFlows, FlowIndex, FlowTable, TICK_SHIFT, Timer};
use crate::flow_memory::Links;
use crate::flow_wheel::Wheel;
use tailwater_net::{FlowKey, Nanos};

/// Why a companion flow cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCompanion {
    /// There is a flow of that key already.
    #[error("the flow is there already")]
    Taken,
    /// The flows would be in two buckets, which can move apart.
    #[error("the flow is of another RSS bucket")]
    OtherBucket,
    /// The flow has a companion already: flows live in pairs at the most.
    #[error("the flow has a companion already")]
    HasOne,
    /// The table is full.
    #[error("the flow table has no place")]
    NoPlace,
}

impl FlowTable {
    /// Opens a second flow that lives and ends with `flow`, whose timer is that of both: the return
    /// direction of a translated connection.
    pub(crate) fn open_companion(
        &mut self,
        flow: FlowIndex,
        key: &FlowKey,
        bucket: u16,
        now: Nanos,
        ends: &mut EndedFlows,
    ) -> Result<FlowIndex, NoCompanion> {
        let held = self.partitions[usize::from(bucket)].is_some();
        if !held || flow.0 >> self.shift != u32::from(bucket) {
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
            .ok_or(NoCompanion::NoPlace)?;
        self.links_mut(companion).companion = flow.0;
        self.links_mut(flow).companion = companion.0;
        Ok(companion)
    }

    /// The flow that lives and ends with this one.
    pub(crate) fn companion(&self, flow: FlowIndex) -> Option<FlowIndex> {
        self.check(flow);
        let companion = self.links(flow).companion;
        (companion != Links::NONE).then_some(FlowIndex(companion))
    }

    /// Has two flows of one bucket that are there live and end together from now on, by the timer of the first.
    pub(crate) fn join(&mut self, flow: FlowIndex, other: FlowIndex) -> Result<(), NoCompanion> {
        if flow.0 >> self.shift != other.0 >> self.shift {
            return Err(NoCompanion::OtherBucket);
        }
        let alone = |of| self.links(of).companion == Links::NONE;
        if flow == other || !alone(flow) || !alone(other) {
            return Err(NoCompanion::HasOne);
        }
        self.links_mut(other).companion = flow.0;
        self.links_mut(flow).companion = other.0;
        let place = other.0 & self.mask();
        let bucket = (other.0 >> self.shift) as usize;
        if let Some((partition, mut flows)) = self.partition(bucket) {
            partition.wheel.remove(&mut flows, place);
            Wheel::leave_out(&mut flows, place);
        }
        Ok(())
    }
}
