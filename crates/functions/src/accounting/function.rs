//! The `Accounting` network function.

use super::counts::{Counts, flags};
use super::export::{AccountingTable, FlowRecord, FlowRecordFile, Totals};
use crate::exporter::Sender;
use crate::kind::StateFormat;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{
    DurableState, FlowEnds, FlowStates, FunctionProperties, NetworkFunction, NewFlow, RunEnd,
};
use tailwater_net::{FlowKey, Nanos};

const COUNTERS: &[&str] = &["records", "records-lost", "records-unwritten"];
const RECORDS: usize = 0;
const LOST: usize = 1;
const UNWRITTEN: usize = 2;

/// Builds a flow's record from its counters.
fn record(counts: &Counts, key: &FlowKey) -> FlowRecord {
    FlowRecord {
        key: *key,
        packets: counts.packets().into(),
        bytes: counts.bytes(),
        flags: counts.flags(),
        first: counts.first(),
        last: counts.last(),
    }
}

/// Counts each flow's packets and bytes.
#[derive(Debug)]
pub struct Accounting {
    table: Arc<AccountingTable>,
    /// `None` without a file.
    sender: Option<Sender<FlowRecordFile>>,
    totals: Totals,
    counters: [u64; COUNTERS.len()],
    /// Set once the last packet has passed: from then on the function may wait for room.
    finishing: bool,
}

impl Accounting {
    /// Creates a worker's instance.
    pub fn new(table: Arc<AccountingTable>) -> Accounting {
        Accounting {
            sender: table.sender(),
            table,
            totals: Totals::default(),
            counters: [0; COUNTERS.len()],
            finishing: false,
        }
    }

    #[cold]
    fn export(&mut self, record: FlowRecord) {
        self.totals.records += 1;
        self.totals.packets += record.packets;
        self.totals.bytes += record.bytes;
        let Some(sender) = &mut self.sender else {
            return;
        };
        self.counters[RECORDS] += 1;
        let has_room = match self.finishing {
            true => sender.send_waiting(record),
            false => sender.send(record),
        };
        self.totals.lost_records += u64::from(!has_room);
        self.counters[LOST] += u64::from(!has_room);
    }

    /// Gives the sender back; the last instance waits for the file if it `may_wait`.
    fn leave(&mut self, may_wait: bool) {
        if let Some(sender) = self.sender.take() {
            let sent = self.counters[RECORDS] - self.counters[LOST];
            self.counters[UNWRITTEN] += self.table.deregister(sender, sent, may_wait);
        }
    }
}

impl NetworkFunction for Accounting {
    fn kind(&self) -> &'static str {
        "Accounting"
    }

    fn counters(&self) -> &'static [&'static str] {
        COUNTERS
    }

    fn counter_values(&self) -> &[u64] {
        &self.counters
    }

    fn state_bytes(&self) -> usize {
        size_of::<Counts>()
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties::HEADERS_ONLY
    }

    fn new_flow(&mut self, packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        // A flow that is presented again keeps its counters.
        let counts = flow.state::<Counts>();
        if counts.packets() == 0 {
            *counts = Counts::from(packet.arrival);
        }
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.counters[UNWRITTEN] += self.table.take_unwritten();
        batch.for_each(|packet, frame| {
            let flags = flags(packet, frame);
            let (arrival, bytes) = (packet.arrival, packet.length());
            if !flows.state::<Counts>(packet).add(arrival, bytes, flags) {
                let key = flows.key(packet);
                let counts = flows.state::<Counts>(packet);
                let full = std::mem::replace(counts, Counts::from(arrival));
                // Fresh counters have room.
                let _ = counts.add(arrival, bytes, flags);
                self.export(record(&full, &key));
            }
        });
    }

    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        Some(self)
    }

    fn run_end(&mut self) -> Option<&mut dyn RunEnd> {
        Some(self)
    }

    fn durable(&mut self) -> Option<&mut dyn DurableState> {
        Some(self)
    }
}

impl FlowEnds for Accounting {
    fn flow_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let counts: Counts = bytemuck::pod_read_unaligned(state);
        if counts.packets() > 0 {
            self.export(record(&counts, key));
        }
    }
}

impl RunEnd for Accounting {
    fn drain(&mut self) {
        self.finishing = true;
    }

    fn after_flow_ends(&mut self) {
        self.leave(true);
    }
}

/// Version of the state's portable form.
const FORMAT_VERSION: u32 = 1;

/// Portable form of the state, made without an instance.
pub(super) fn state_format() -> StateFormat {
    StateFormat::converted((FORMAT_VERSION, size_of::<Counts>()), to_durable, restore_durable)
}

fn to_durable(state: &mut [u8], origin: Nanos) {
    change(state, |counts| counts.to_durable(origin));
}

fn restore_durable(state: &mut [u8], origin: Nanos) {
    change(state, |counts| counts.of_durable(origin));
}

impl DurableState for Accounting {
    fn format_version(&self) -> u32 {
        FORMAT_VERSION
    }

    fn to_durable(&self, state: &mut [u8], origin: Nanos) {
        to_durable(state, origin);
    }

    fn restore_durable(&mut self, state: &mut [u8], origin: Nanos) {
        restore_durable(state, origin);
    }
}

/// Applies a conversion between the in-memory and the externally stored form to a flow's state.
fn change(state: &mut [u8], change: impl FnOnce(Counts) -> Counts) {
    let counts = change(bytemuck::pod_read_unaligned(state));
    state.copy_from_slice(bytemuck::bytes_of(&counts));
}

impl Drop for Accounting {
    fn drop(&mut self) {
        self.leave(false);
        self.table.add(&self.totals);
    }
}
