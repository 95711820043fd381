//! The `Count` network function.

use super::rules::{CountTable, Counters};
use crate::tunnel::outer_vlan;
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{FlowStates, NetworkFunction, NewFlow};
use tailwater_chain::live::Version;

/// What is kept of a flow.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct FlowState {
    /// The counters that its packets match, whatever tags they have.
    counters: u64,
    /// The version of the counters that these are.
    version: u32,
    unused: u32,
}

impl FlowState {
    fn decide(held: &Version<Counters>, packet: &Packet) -> FlowState {
        FlowState {
            counters: held.value.of_flow(&packet.headers.key),
            version: held.number,
            unused: 0,
        }
    }
}

/// Counts packets and bytes by rule.
pub struct Count {
    table: Arc<CountTable>,
    held: Arc<Version<Counters>>,
    /// Packets and bytes of each counter.
    notes: Box<[u64]>,
}

impl Count {
    /// A worker's instance.
    pub fn new(table: Arc<CountTable>) -> Count {
        Count {
            held: table.live().current(),
            notes: vec![0; table.notes().len()].into(),
            table,
        }
    }
}

impl NetworkFunction for Count {
    fn kind(&self) -> &'static str {
        "Count"
    }

    fn notes(&self) -> &'static [&'static str] {
        self.table.notes()
    }

    fn note_counts(&self) -> &[u64] {
        &self.notes
    }

    fn needs_payload(&self) -> bool {
        false
    }

    fn state_bytes(&self) -> usize {
        size_of::<FlowState>()
    }

    fn version(&self) -> u32 {
        self.table.live().number()
    }

    fn new_flow(&mut self, packet: &Packet, _: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        self.table.live().refresh(&mut self.held);
        *flow.state() = FlowState::decide(&self.held, packet);
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.table.live().refresh(&mut self.held);
        let Count { held, notes, .. } = self;
        batch.for_each(|packet, frame| {
            let state = flows.state::<FlowState>(packet);
            if state.version != held.number {
                // Counters were replaced between the batch's look-up and here.
                *state = FlowState::decide(held, packet);
            }
            let matching = state.counters;
            let vlan = || outer_vlan(packet, frame);
            let mut left = matching & !held.value.of_other_vlans(matching, vlan);
            while left != 0 {
                let at = 2 * left.trailing_zeros() as usize;
                left &= left - 1;
                // As many notes as counters that can be in force.
                if let Some([packets, bytes]) = notes.get_mut(at..at + 2) {
                    *packets += 1;
                    *bytes += packet.length() as u64;
                }
            }
        });
    }
}
