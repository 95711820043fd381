//! The `FlowStats` network function.

use super::record::{EndReason, FlowRecord};
use super::table::{FlowStatsTable, OutletSender};
use crate::accounting::{Counts, flags};
use crate::kind::StateFormat;
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Packet};
use tailwater_chain::function::{
    DurableState, FlowEnds, FlowStates, FlowTimer, FunctionProperties, NetworkFunction, RunEnd,
};
use tailwater_net::parse::Network;
use tailwater_net::{FlowKey, Nanos, protocol};

const COUNTERS: &[&str] = &["records", "records-lost", "records-unsent"];
const RECORDS: usize = 0;
const LOST: usize = 1;
const UNSENT: usize = 2;

/// Flow state. All zero while there is nothing to report of the flow.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct FlowState {
    counts: Counts,
    icmp: u16,
    class: u8,
    unused: [u8; 5],
}

impl FlowState {
    /// Returns the state of a flow that begins with this packet, which is not counted yet.
    #[cold]
    fn begin(packet: &Packet, frame: &[u8]) -> FlowState {
        let headers = &packet.headers;
        let ip = frame.get(usize::from(headers.network_offset)..);
        let class = match (headers.network, ip) {
            (Network::V4, Some([_, class, ..])) => *class,
            (_, Some([first, second, ..])) => first << 4 | second >> 4,
            _ => 0,
        };
        let icmp = match headers.key.protocol() {
            protocol::ICMP | protocol::ICMPV6 if headers.has_transport() => {
                match frame.get(usize::from(headers.transport_offset)..) {
                    Some([kind, code, ..]) => u16::from_be_bytes([*kind, *code]),
                    _ => 0,
                }
            }
            _ => 0,
        };
        FlowState {
            counts: Counts::from(packet.arrival),
            icmp,
            class,
            unused: [0; 5],
        }
    }

    fn record(&self, key: &FlowKey, reason: EndReason) -> FlowRecord {
        FlowRecord {
            key: *key,
            packets: self.counts.packets().into(),
            bytes: self.counts.bytes(),
            flags: self.counts.flags(),
            class: self.class,
            icmp: self.icmp,
            first: self.counts.first(),
            last: self.counts.last(),
            reason,
        }
    }
}

/// Timeouts after which a flow is reported.
#[derive(Clone, Copy, Debug)]
struct Timeouts {
    active: Nanos,
    idle: Nanos,
}

impl Timeouts {
    /// Returns the reason to report a flow at this time, or `None` if it is not due.
    #[inline]
    fn end_reason(&self, counts: &Counts, now: Nanos) -> Option<EndReason> {
        if now.saturating_sub(counts.last()) >= self.idle {
            return Some(EndReason::Idle);
        }
        (now.saturating_sub(counts.first()) >= self.active).then_some(EndReason::Active)
    }
}

/// Exports packets and bytes of each flow to collectors.
pub struct FlowStats {
    /// `None` once there are no more records.
    senders: Option<Vec<OutletSender>>,
    table: Arc<FlowStatsTable>,
    timeouts: Timeouts,
    /// Sampling interval, and number of packets to skip until the next sample.
    every: u32,
    before: u32,
    counters: [u64; COUNTERS.len()],
    /// Set once the last packet has passed: from then on the function may wait for room.
    finishing: bool,
}

impl FlowStats {
    /// Creates a worker's instance.
    pub fn new(table: Arc<FlowStatsTable>) -> FlowStats {
        let options = table.options();
        FlowStats {
            timeouts: Timeouts {
                active: options.active,
                idle: options.idle,
            },
            every: options.sampling,
            before: 0,
            senders: Some(table.senders()),
            table,
            counters: [0; COUNTERS.len()],
            finishing: false,
        }
    }

    #[cold]
    fn export(&mut self, record: &FlowRecord) {
        self.counters[RECORDS] += 1;
        for sender in self.senders.iter_mut().flatten() {
            let taken = match self.finishing {
                true => sender.send_waiting(record),
                false => sender.send(record),
            };
            self.counters[LOST] += u64::from(!taken);
        }
    }
}

impl NetworkFunction for FlowStats {
    fn kind(&self) -> &'static str {
        "FlowStats"
    }

    fn counters(&self) -> &'static [&'static str] {
        COUNTERS
    }

    fn counter_values(&self) -> &[u64] {
        &self.counters
    }

    fn state_bytes(&self) -> usize {
        size_of::<FlowState>()
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties::HEADERS_ONLY
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.table.set_origin(flows.now());
        self.counters[UNSENT] += self.table.take_unsent();
        batch.for_each(|packet, frame| {
            if self.before > 0 {
                self.before -= 1;
                return;
            }
            self.before = self.every - 1;
            let flags = flags(packet, frame);
            let arrival = packet.arrival;
            let headers = &packet.headers;
            let bytes = usize::from(headers.end - headers.network_offset);
            let state = flows.state::<FlowState>(packet);
            let over = match state.counts.packets() {
                0 => {
                    *state = FlowState::begin(packet, frame);
                    None
                }
                _ => self.timeouts.end_reason(&state.counts, arrival),
            };
            if over.is_none() && state.counts.add(arrival, bytes, flags) {
                return;
            }
            // A timeout has elapsed or a counter is full: the flow continues in a new record.
            let counted = std::mem::replace(state, FlowState::begin(packet, frame));
            // Fresh counters have room.
            let _ = state.counts.add(arrival, bytes, flags);
            let key = flows.key(packet);
            self.export(&counted.record(&key, over.unwrap_or(EndReason::Active)));
        });
    }

    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        Some(self)
    }

    fn run_end(&mut self) -> Option<&mut dyn RunEnd> {
        Some(self)
    }

    fn timer(&mut self) -> Option<&mut dyn FlowTimer> {
        Some(self)
    }

    fn portable(&mut self) -> Option<&mut dyn DurableState> {
        Some(self)
    }
}

impl Drop for FlowStats {
    fn drop(&mut self) {
        if let Some(senders) = self.senders.take() {
            self.table.deregister(senders);
        }
    }
}

impl FlowEnds for FlowStats {
    fn flow_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let counted: FlowState = bytemuck::pod_read_unaligned(state);
        if counted.counts.packets() > 0 {
            let reason = match self.finishing {
                true => EndReason::Forced,
                false => EndReason::Idle,
            };
            self.export(&counted.record(key, reason));
        }
    }
}

/// State passes to a process that takes over from this one.
/// Version of the state's portable form.
const FORMAT_VERSION: u32 = 1;

/// Portable form of the state, made without an instance.
pub(super) fn state_format() -> StateFormat {
    StateFormat::converted((FORMAT_VERSION, size_of::<FlowState>()), to_durable, restore_durable)
}

fn to_durable(state: &mut [u8], origin: Nanos) {
    change(state, |counts| counts.to_durable(origin));
}

fn restore_durable(state: &mut [u8], origin: Nanos) {
    change(state, |counts| counts.of_durable(origin));
}

impl DurableState for FlowStats {
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

/// Converts the times of a flow's state. Those of a flow without packets to report stay.
fn change(state: &mut [u8], change: impl FnOnce(Counts) -> Counts) {
    let state = &mut state[..size_of::<FlowState>()];
    let mut flow: FlowState = bytemuck::pod_read_unaligned(state);
    if flow.counts.packets() > 0 {
        flow.counts = change(flow.counts);
    }
    state.copy_from_slice(bytemuck::bytes_of(&flow));
}

impl RunEnd for FlowStats {
    fn drain(&mut self) {
        self.finishing = true;
        self.table.begin_drain();
    }

    fn after_flow_ends(&mut self) {
        let last = self
            .senders
            .take()
            .is_some_and(|senders| self.table.deregister(senders));
        if last {
            // Only now is the number of unsent records final. The last instance adds it to its counters.
            self.table.end();
            self.counters[UNSENT] += self.table.take_unsent();
        }
    }
}

impl FlowTimer for FlowStats {
    fn interval(&self) -> Nanos {
        self.timeouts.idle.min(self.timeouts.active)
    }

    fn on_timer(&mut self, key: &FlowKey, state: &mut [u8], now: Nanos) {
        let counted: FlowState = bytemuck::pod_read_unaligned(state);
        if counted.counts.packets() > 0
            && let Some(reason) = self.timeouts.end_reason(&counted.counts, now)
        {
            state.fill(0);
            self.export(&counted.record(key, reason));
        }
    }
}
