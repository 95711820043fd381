//! The `Synthetic` network function.

use super::{Memory, Work, WorkingSet, burn, mix};
use crate::kind::StateFormat;
use bytemuck::{Pod, Zeroable};
use std::alloc::{Layout, handle_alloc_error};
use std::hint::black_box;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{DurableState, FlowStates, FunctionProperties, NetworkFunction, NewFlow};
use tailwater_chain::live::{Live, Version};

/// Flow state.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct FlowState {
    /// Start of its next visits.
    place: u64,
    /// Packets so far. Drops depend on flow and packet number, on any core.
    packets: u64,
}

/// Network function with the costs of [`Work`] and [`Memory`].
///
/// A packet's visits start after its arithmetic, and the next packet's arithmetic starts after all reads have
/// completed. So costs add up and do not overlap.
#[derive(Debug)]
pub struct Synthetic {
    work: Arc<Live<Work>>,
    cached_rules: Arc<Version<Work>>,
    set: WorkingSet,
    of_flows: bool,
    /// `true` if flows are looked up.
    has_flows: bool,
    /// Start of the next packet's visits; `packets` is its number. Used without flow state.
    place: u64,
    packets: u64,
    /// Last result of the arithmetic, the input of the next packet's.
    value: u64,
    /// Zero, unknown to the compiler: masking with it creates a data dependency.
    nothing: u64,
}

impl Synthetic {
    /// Creates an instance with its own memory. Flows are looked up if visits are per flow, or if the current work has
    /// a cost for new flows.
    ///
    /// Aborts the program when memory allocation fails, as other allocations do.
    pub fn new(work: Arc<Live<Work>>, memory: &Memory) -> Synthetic {
        let held = work.current();
        let set = WorkingSet::new(memory).unwrap_or_else(|_| {
            handle_alloc_error(Layout::array::<u8>(memory.bytes as usize).unwrap_or(Layout::new::<u8>()))
        });
        Synthetic {
            work,
            has_flows: memory.of_flows || held.value.new_flow_cycles > 0,
            cached_rules: held,
            set,
            of_flows: memory.of_flows,
            place: 0,
            packets: 0,
            value: 1,
            nothing: black_box(0),
        }
    }
}

/// State passes to a process that takes over from this one.
/// Version of the state's portable form.
const FORMAT_VERSION: u32 = 1;

/// Portable form of the state, made without an instance.
pub(super) fn state_format() -> StateFormat {
    StateFormat::as_it_is(FORMAT_VERSION, size_of::<FlowState>())
}

impl DurableState for Synthetic {
    fn format_version(&self) -> u32 {
        FORMAT_VERSION
    }
}

impl NetworkFunction for Synthetic {
    fn kind(&self) -> &'static str {
        "Synthetic"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["by-chance"]
    }

    fn state_bytes(&self) -> usize {
        match self.has_flows {
            true => size_of::<FlowState>(),
            false => 0,
        }
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties::HEADERS_ONLY
    }

    fn new_flow(&mut self, packet: &Packet, _: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        self.work.refresh(&mut self.cached_rules);
        self.value = burn(self.value, self.cached_rules.value.new_flow_cycles);
        flow.state::<FlowState>().place = self.set.place_of(packet.rss_hash);
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.work.refresh(&mut self.cached_rules);
        let work = self.cached_rules.value;
        let visits = (work.reads, work.writes);
        for packet in batch.iter_mut() {
            self.value = burn(self.value, work.cycles);
            let (place, number) = match self.of_flows {
                true => {
                    let state = flows.state::<FlowState>(packet);
                    state.packets += 1;
                    (state.place, mix(u64::from(packet.rss_hash)) ^ state.packets)
                }
                false => {
                    self.packets += 1;
                    (self.place, self.packets)
                }
            };
            let visited = self.set.visit(place ^ self.value & self.nothing, visits, self.value);
            self.place = visited.next;
            self.value ^= visited.sum & self.nothing;
            if mix(number) < work.drop {
                packet.verdict = Verdict::Drop(0);
            }
        }
    }

    fn portable(&mut self) -> Option<&mut dyn DurableState> {
        Some(self)
    }
}
