//! Losses of records on the way to an outlet.

use super::ipfix::NotSent;
use super::record::FlowRecord;
use crate::exporter::LossCounters;
use std::sync::Arc;

/// Counters of the records that an outlet did not get. Workers and its thread share them.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Records, packets and bytes.
    not_sent: LossCounters<3>,
    /// Records of all outlets that were lost behind the rings, until a worker counts them.
    unsent: Arc<LossCounters<1>>,
}

impl Losses {
    /// Creates the counters of one outlet. Losses behind its rings are added to `unsent` as well.
    pub(super) fn new(unsent: Arc<LossCounters<1>>) -> Losses {
        Losses {
            not_sent: LossCounters::default(),
            unsent,
        }
    }

    /// Counts a record that a worker lost.
    pub(super) fn add_without_room(&self, record: &FlowRecord) {
        self.add(NotSent::from(record));
    }

    /// Counts records that the outlet's thread lost.
    pub(super) fn add_unsent(&self, lost: NotSent) {
        self.add(lost);
        self.unsent.add([lost.records]);
    }

    fn add(&self, lost: NotSent) {
        self.not_sent.add([lost.records, lost.packets, lost.bytes]);
    }

    /// Returns the sums.
    pub(super) fn not_sent(&self) -> NotSent {
        let [records, packets, bytes] = self.not_sent.get();
        NotSent {
            records,
            packets,
            bytes,
        }
    }
}
