//! Recent packets of a chain by class of flows, from samples of its port.

use std::sync::Arc;
use tailwater_dataplane::shared_port::FlowSample;
use tailwater_net::Nanos;
use tailwater_policy::server::{ClassLoad, FlowClass, FlowClassCounts};

/// Classes of a chain that are shown; beyond these, neighbours are summed up.
const MOST_CLASSES: usize = 256;

/// Recent packets of a chain by class of flows.
#[derive(Debug, Default)]
pub(super) struct RecentClasses {
    counts: FlowClassCounts,
    /// Those at the end of the last window, and that end.
    shown: Arc<[ClassLoad]>,
    until: Nanos,
}

impl RecentClasses {
    /// Counts a sample of the chain's packets.
    pub(super) fn add(&mut self, sample: &FlowSample) {
        let class = FlowClass::by_source(sample.source, sample.destination);
        self.counts.add(class, sample.packets);
    }

    /// Returns the packets of the last windows, of which the last has ended at `until`.
    pub(super) fn shown(&mut self, until: Nanos) -> Arc<[ClassLoad]> {
        if self.until != until {
            self.until = until;
            self.shown = self.counts.loads(MOST_CLASSES).into();
            self.counts.begin_period();
        }
        Arc::clone(&self.shown)
    }
}
