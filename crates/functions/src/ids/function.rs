//! The `Ids` network function.

use super::eve::{AlertFile, Eve};
use super::table::IdsTable;
use crate::exporter::Sender;
use crate::stream_pool::{self, StreamPoolCache};
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{
    DurableState, Explanation, FlowEnds, FlowStates, FunctionProperties, NetworkFunction, RunEnd, TracedPacket,
};
use tailwater_chain::live::Version;
use tailwater_ids::alert::Alert;
use tailwater_ids::connection::{Connection, Lease};
use tailwater_ids::inspector::{self, Inspector};
use tailwater_ids::packet::Input;
use tailwater_ids::ruleset::RuleSet;
use tailwater_ids::slots::Slots;
use tailwater_net::{FlowKey, Nanos};

/// The inspector's counters, and one for alerts that could not be written.
const COUNTERS: usize = inspector::COUNTERS.len() + 1;
const NAMES: [&str; COUNTERS] = {
    let mut names = ["alerts-unwritten"; COUNTERS];
    let mut i = 0;
    while i < inspector::COUNTERS.len() {
        names[i] = inspector::COUNTERS[i];
        i += 1;
    }
    names
};

/// One instance's slots of the buffer pool for streams.
#[derive(Debug)]
pub(super) struct BufferPoolSlots(StreamPoolCache);

impl Slots for BufferPoolSlots {
    #[inline]
    fn open(&mut self, lease: Lease) -> bool {
        let stock = self.0.pool().number();
        self.0.open(stream_pool::Lease {
            slot: lease.slot,
            generation: lease.generation,
            pool: stock,
        })
    }

    fn take(&mut self, now: Nanos) -> Option<Lease> {
        let stream_pool::Lease {
            slot: place,
            generation,
            ..
        } = self.0.take(now)?;
        Some(Lease {
            slot: place,
            generation,
        })
    }

    #[inline]
    fn bytes(&mut self) -> Option<&mut [u8]> {
        self.0.bytes_mut()
    }

    #[inline]
    fn close(&mut self, now: Nanos) {
        self.0.close(now);
    }

    fn release(&mut self) {
        self.0.release();
    }
}

/// Network function that matches packets, streams and messages against Suricata rules.
#[derive(Debug)]
pub struct Ids {
    pub(super) table: Arc<IdsTable>,
    cached_rules: Arc<Version<Arc<RuleSet>>>,
    inspector: Inspector,
    pub(super) slots: BufferPoolSlots,
    /// `None` if alerts are not written to a file.
    sender: Option<Sender<AlertFile>>,
    /// Alerts sent.
    sent: u64,
    /// `true` once there was a packet: no other process has this one's part of the streams any more.
    has_begun: bool,
    /// Last alerts of the current batch, for explanations.
    alerted: Alerted,
    counters: [u64; COUNTERS],
}

/// Most alerts of a batch that explanations can name.
const EXPLAINED: usize = 32;

/// First alerts of a batch: each one's packet in it, and rule.
#[derive(Debug, Default)]
struct Alerted {
    alerts: [(u16, u32); EXPLAINED],
    count: usize,
}

impl Alerted {
    #[cold]
    fn add(&mut self, at: usize, alerts: &[Alert]) {
        for (slot, alert) in self.alerts[self.count..].iter_mut().zip(alerts) {
            *slot = (at as u16, alert.rule);
            self.count += 1;
        }
    }

    /// Rules that have alerted on a packet.
    fn of(&self, at: usize) -> impl Iterator<Item = u32> {
        let alerts = self.alerts[..self.count].iter();
        alerts
            .filter(move |alert| usize::from(alert.0) == at)
            .map(|alert| alert.1)
    }
}

impl Ids {
    /// Creates a worker's instance.
    pub fn new(table: Arc<IdsTable>) -> Ids {
        let held = table.rules.current();
        let rules = (held.number, Arc::clone(&held.value));
        let thresholds = Arc::clone(&table.thresholds);
        Ids {
            inspector: Inspector::new(rules, thresholds, table.options.settings),
            cached_rules: held,
            slots: BufferPoolSlots(StreamPoolCache::new(Arc::clone(&table.stream_pool))),
            sender: table.eve.as_ref().map(Eve::sender),
            sent: 0,
            has_begun: false,
            alerted: Alerted::default(),
            counters: [0; COUNTERS],
            table,
        }
    }

    /// Switches to the latest rules.
    #[inline]
    fn refresh_rules(&mut self) {
        if !self.has_begun {
            self.has_begun = true;
            self.slots.0.pool().recover();
        }
        self.table.rules.refresh(&mut self.cached_rules);
        if self.cached_rules.number != self.inspector.version() {
            let rules = Arc::clone(&self.cached_rules.value);
            self.inspector.renew(self.cached_rules.number, rules);
        }
    }

    /// Updates the counters.
    #[inline]
    fn update_counters(&mut self) {
        self.counters[..COUNTERS - 1].copy_from_slice(self.inspector.counters());
        if let Some(eve) = &self.table.eve {
            self.counters[COUNTERS - 1] += eve.take_unwritten();
        }
        if let Some((_, unwritten)) = &self.table.alerts {
            self.counters[COUNTERS - 1] += unwritten.take();
        }
    }

    /// Passes the last packet's alerts to the writer thread; counts those that find no room.
    #[cold]
    fn send_alerts(&mut self) {
        if let Some((ring, _)) = &self.table.alerts {
            let lost = self.inspector.alerts().iter().filter(|alert| !ring.send(alert));
            self.counters[COUNTERS - 1] += lost.count() as u64;
        }
        let Some(sender) = &mut self.sender else {
            return;
        };
        for alert in self.inspector.alerts() {
            let has_room = sender.send(*alert);
            self.sent += u64::from(has_room);
            self.counters[COUNTERS - 1] += u64::from(!has_room);
        }
    }

    /// Gives the sender back; the last instance waits for the file if it `may_wait`.
    fn leave(&mut self, may_wait: bool) {
        if let Some((sender, eve)) = self.sender.take().zip(self.table.eve.as_ref()) {
            self.counters[COUNTERS - 1] += eve.deregister(sender, self.sent, may_wait);
        }
    }
}

impl NetworkFunction for Ids {
    fn kind(&self) -> &'static str {
        "Ids"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        inspector::DROP_REASONS
    }

    fn counters(&self) -> &'static [&'static str] {
        &NAMES
    }

    fn counter_values(&self) -> &[u64] {
        &self.counters
    }

    fn state_bytes(&self) -> usize {
        size_of::<Connection>()
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            tracks_connections: true,
            ..FunctionProperties::default()
        }
    }

    fn inspect_non_ip(&mut self, packet: &Packet, frame: &[u8]) -> Verdict {
        self.refresh_rules();
        let input = Input {
            frame,
            headers: &packet.headers,
            arrival: packet.arrival,
            reversed: false,
        };
        let verdict = self.inspector.non_ip(&input, &mut self.slots);
        if !self.inspector.alerts().is_empty() {
            self.send_alerts();
        }
        self.update_counters();
        match verdict {
            inspector::Verdict::Drop(reason) => Verdict::Drop(reason as u8),
            inspector::Verdict::Pass => Verdict::Forward,
        }
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.refresh_rules();
        self.alerted.count = 0;
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
                self.alerted.add(i, self.inspector.alerts());
                self.send_alerts();
            }
        }
        self.update_counters();
    }

    fn explain(&self, traced: &TracedPacket<'_>, _: &mut FlowStates<'_>, text: &mut Explanation) {
        for rule in self.alerted.of(traced.at) {
            match self.cached_rules.value.rule(rule) {
                Some(rule) => text.add_part(format_args!("rule sid {} alerted", rule.about.sid)),
                None => text.add_part(format_args!("a rule alerted")),
            }
        }
        if self.alerted.count > 0 || matches!(traced.packet().verdict, Verdict::Drop(_)) {
            return;
        }
        text.add(format_args!("no alert"));
    }

    fn run_end(&mut self) -> Option<&mut dyn RunEnd> {
        Some(self)
    }

    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        Some(self)
    }

    fn portable(&mut self) -> Option<&mut dyn DurableState> {
        Some(self)
    }
}

impl RunEnd for Ids {
    fn drain(&mut self) {}

    fn after_flow_ends(&mut self) {
        self.leave(true);
    }
}

impl Drop for Ids {
    fn drop(&mut self) {
        self.leave(false);
    }
}

impl FlowEnds for Ids {
    fn flow_ended(&mut self, _key: &FlowKey, state: &[u8]) {
        let mut connection: Connection = bytemuck::pod_read_unaligned(&state[..size_of::<Connection>()]);
        Inspector::ended(&mut connection, &mut self.slots);
    }
}
