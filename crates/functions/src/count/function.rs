//! The `Count` network function.

use super::rules::{CountTable, Counters};
use crate::tunnel::outer_vlan;
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{FlowStates, FunctionProperties, NetworkFunction, NewFlow};
use tailwater_chain::live::Version;

/// Flow state of the function.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct FlowState {
    /// Bit set of the counters that the flow's packets match, VLAN tags aside.
    counters: u64,
    /// Version of the counters to which the bits refer.
    version: u32,
    unused: u32,
}

impl FlowState {
    fn decide(cached_rules: &Version<Counters>, packet: &Packet) -> FlowState {
        FlowState {
            counters: cached_rules.value.of_flow(&packet.headers.key),
            version: cached_rules.number,
            unused: 0,
        }
    }
}

/// Counts packets and bytes by rule.
pub struct Count {
    table: Arc<CountTable>,
    held: Arc<Version<Counters>>,
    /// Packets and bytes of each counter, alternating.
    counters: Box<[u64]>,
}

impl Count {
    /// Creates a worker's instance.
    pub fn new(table: Arc<CountTable>) -> Count {
        Count {
            held: table.live().current(),
            counters: vec![0; table.names().len()].into(),
            table,
        }
    }
}

impl NetworkFunction for Count {
    fn kind(&self) -> &'static str {
        "Count"
    }

    fn counters(&self) -> &'static [&'static str] {
        self.table.names()
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

    fn version(&self) -> u32 {
        self.table.live().number()
    }

    fn new_flow(&mut self, packet: &Packet, _: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        self.table.live().refresh(&mut self.held);
        *flow.state() = FlowState::decide(&self.held, packet);
        Verdict::Forward
    }

    fn can_restart(&self) -> bool {
        true
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.table.live().refresh(&mut self.held);
        let Count {
            held, counters: notes, ..
        } = self;
        batch.for_each(|packet, frame| {
            let state = flows.state::<FlowState>(packet);
            if state.version != held.number {
                // The counters were replaced between the batch's look-up and this point.
                *state = FlowState::decide(held, packet);
            }
            let matching = state.counters;
            let vlan = || outer_vlan(packet, frame);
            let mut left = matching & !held.value.of_other_vlans(matching, vlan);
            while left != 0 {
                let at = 2 * left.trailing_zeros() as usize;
                left &= left - 1;
                // `counters` has an entry for every counter that can be in force.
                if let Some([packets, bytes]) = notes.get_mut(at..at + 2) {
                    *packets += 1;
                    *bytes += packet.length() as u64;
                }
            }
        });
    }
}
