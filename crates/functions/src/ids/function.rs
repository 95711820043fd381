//! The `Ids` network function.

use super::table::IdsTable;
use crate::chunks::ChunkSender;
use crate::stock::{self, StreamPoolCache};
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Verdict};
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_chain::live::Version;
use tailwater_ids::alert::Alert;
use tailwater_ids::connection::{Connection, Lease};
use tailwater_ids::inspector::{self, Inspector};
use tailwater_ids::packet::Input;
use tailwater_ids::ruleset::RuleSet;
use tailwater_ids::slots::Slots;
use tailwater_net::{FlowKey, Nanos};

/// The inspector's counters, and one for alerts that could not be written.
const NOTES: usize = inspector::NOTES.len() + 1;
const NAMES: [&str; NOTES] = {
    let mut names = ["alerts-unwritten"; NOTES];
    let mut i = 0;
    while i < inspector::NOTES.len() {
        names[i] = inspector::NOTES[i];
        i += 1;
    }
    names
};

/// One instance's slots of the buffer pool for streams.
#[derive(Debug)]
struct BufferPoolSlots(StreamPoolCache);

impl Slots for BufferPoolSlots {
    #[inline]
    fn open(&mut self, lease: Lease) -> bool {
        let stock = self.0.stock().number();
        self.0.open(stock::Lease {
            place: lease.place,
            generation: lease.generation,
            stock,
        })
    }

    fn take(&mut self, now: Nanos) -> Option<Lease> {
        let stock::Lease { place, generation, .. } = self.0.take(now)?;
        Some(Lease { place, generation })
    }

    #[inline]
    fn bytes(&mut self) -> Option<&mut [u8]> {
        self.0.bytes_mut()
    }

    #[inline]
    fn close(&mut self, now: Nanos) {
        self.0.close(now);
    }

    fn give(&mut self) {
        self.0.give();
    }
}

/// Network function that matches packets, streams and messages against Suricata rules.
#[derive(Debug)]
pub struct Ids {
    table: Arc<IdsTable>,
    held: Arc<Version<Arc<RuleSet>>>,
    inspector: Inspector,
    slots: BufferPoolSlots,
    /// `None` if alerts are not written to a file.
    sender: Option<ChunkSender<Alert>>,
    notes: [u64; NOTES],
}

impl Ids {
    /// Creates a worker's instance.
    pub fn new(table: Arc<IdsTable>) -> Ids {
        let held = table.rules.current();
        let rules = (held.number, Arc::clone(&held.value));
        let thresholds = Arc::clone(&table.thresholds);
        Ids {
            inspector: Inspector::new(rules, thresholds, table.options.settings),
            held,
            slots: BufferPoolSlots(StreamPoolCache::new(Arc::clone(&table.stock))),
            sender: table.eve.as_ref().and_then(|eve| eve.sender()),
            notes: [0; NOTES],
            table,
        }
    }

    /// Passes the last packet's alerts to the writer thread; counts those that find no room.
    #[cold]
    fn tell(&mut self) {
        let Some(sender) = &mut self.sender else {
            return;
        };
        for alert in self.inspector.alerts() {
            if sender.has_room(1) {
                sender.extend(&[*alert]);
            } else {
                self.notes[NOTES - 1] += 1;
            }
        }
    }
}

impl NetworkFunction for Ids {
    fn kind(&self) -> &'static str {
        "Ids"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        inspector::REASONS
    }

    fn notes(&self) -> &'static [&'static str] {
        &NAMES
    }

    fn note_counts(&self) -> &[u64] {
        &self.notes
    }

    fn state_bytes(&self) -> usize {
        size_of::<Connection>()
    }

    fn tracks_connections(&self) -> bool {
        true
    }

    fn wants_flow_ends(&self) -> bool {
        true
    }

    fn flow_ended(&mut self, _key: &FlowKey, state: &[u8]) {
        let mut connection: Connection = bytemuck::pod_read_unaligned(&state[..size_of::<Connection>()]);
        Inspector::ended(&mut connection, &mut self.slots);
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.table.rules.refresh(&mut self.held);
        if self.held.number != self.inspector.version() {
            let rules = Arc::clone(&self.held.value);
            self.inspector.renew(self.held.number, rules);
        }
        for i in 0..batch.len() {
            let (packet, frame) = batch.packet_mut(i);
            let connection = flows.state::<Connection>(packet);
            let input = Input {
                frame,
                headers: &packet.headers,
                arrival: packet.arrival,
                reversed: packet.is_reversed(),
            };
            let verdict = self.inspector.packet(&input, connection, &mut self.slots);
            if let inspector::Verdict::Drop(reason) = verdict {
                packet.verdict = Verdict::Drop(reason as u8);
            }
            if !self.inspector.alerts().is_empty() {
                self.tell();
            }
        }
        self.notes[..NOTES - 1].copy_from_slice(self.inspector.notes());
    }
}

impl Drop for Ids {
    fn drop(&mut self) {
        if let Some(eve) = &self.table.eve {
            eve.count(self.notes[0], self.notes[NOTES - 1]);
        }
    }
}
