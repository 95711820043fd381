//! Spans of packets that were late, lost or dropped, and are kept.

use super::endpoint::ExportConfig;
use super::queue::{Counts, Dropped, SPANS, WAITING};
use super::records::{Identifiers, kept_spans};
use crate::metrics::LateExemplar;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use tailwater_dataplane::kept_packets::KeptObserver;

impl ExportConfig {
    /// Observer of kept packets, and their spans; those that nobody reads in time are dropped and counted. `None` if no
    /// spans are exported.
    pub fn observe_kept(&self, counts: &Arc<Counts>) -> (Option<KeptObserver>, Option<Receiver<String>>) {
        if self.endpoints()[SPANS].is_none() {
            return (None, None);
        }
        let (sender, receiver) = sync_channel(WAITING);
        let (counts, identifiers) = (Arc::clone(counts), Identifiers::default());
        let observer = KeptObserver::new(move |record| {
            let (trace, spans) = kept_spans(record, &identifiers);
            let mut is_sent = true;
            for span in spans {
                if sender.try_send(span).is_err() {
                    is_sent = false;
                    counts.drop_records(SPANS, Dropped::QueueFull, 1);
                }
            }
            if is_sent && record.verdict == "late" {
                let [arrival, _, departure] = record.times;
                counts.add_late(LateExemplar {
                    chain: record.chain.to_owned(),
                    trace,
                    latency: departure.saturating_sub(arrival),
                    time: departure,
                });
            }
        });
        (Some(observer), Some(receiver))
    }
}
