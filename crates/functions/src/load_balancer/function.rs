//! The `LoadBalancer` network function.

use super::table::{LoadBalancerTable, ServiceTable, Target, TargetNumber};
use crate::rewrite::{DESTINATION, Translation, redirect_v6};
use std::net::IpAddr;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{
    DurableState, Explanation, FlowStates, FunctionProperties, NetworkFunction, NewFlow, TracedPacket,
};
use tailwater_chain::live::Version;
use tailwater_net::Nanos;

/// Drop reason: the packet has IPv6 extension headers and cannot be rewritten.
const NOT_REWRITABLE: u8 = 2;

/// Flow state: a [`TargetNumber`], with room for the fingerprint that replaces it in durable state.
type DurableTarget = u64;

/// Network function that sends each flow to one of its service's backends.
#[derive(Debug)]
pub struct LoadBalancer {
    table: Arc<LoadBalancerTable>,
    /// Table version this worker uses.
    cached_rules: Arc<Version<ServiceTable>>,
}

impl LoadBalancer {
    /// Creates a worker's instance.
    pub fn new(table: Arc<LoadBalancerTable>) -> LoadBalancer {
        let held = table.live().current();
        LoadBalancer {
            table,
            cached_rules: held,
        }
    }

    #[inline]
    fn refresh(&mut self) {
        self.table.live().refresh(&mut self.cached_rules);
    }
}

impl NetworkFunction for LoadBalancer {
    fn kind(&self) -> &'static str {
        "LoadBalancer"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["no-service", "no-backend", "not-rewritable"]
    }

    fn state_bytes(&self) -> usize {
        size_of::<DurableTarget>()
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties::HEADERS_ONLY
    }

    fn version(&self) -> u32 {
        self.table.version()
    }

    fn new_flow(&mut self, packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        self.refresh();
        let target = flow.state::<DurableTarget>();
        let present = *target as TargetNumber;
        let chosen = self.cached_rules.value.choose(&packet.headers.key, present);
        *target = chosen.into();
        if chosen != present {
            flow.rekeyed();
        }
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        // A flow migrated from another worker may have a target of a later version.
        self.refresh();
        let targets = &*self.cached_rules.value.targets;
        batch.for_each(|packet, frame| {
            let number = *flows.state::<DurableTarget>(packet) as usize;
            let target = targets.get(number).copied().unwrap_or(Target::Pass);
            if let Err(reason) = send_to(target, packet, frame) {
                packet.verdict = Verdict::Drop(reason);
            }
        });
    }

    fn explain(&self, traced: &TracedPacket<'_>, flows: &mut FlowStates<'_>, text: &mut Explanation) {
        let packet = traced.packet();
        let number = *flows.state::<DurableTarget>(packet) as TargetNumber;
        self.cached_rules
            .value
            .explain(&traced.key, number, packet.is_new(), text);
    }

    fn durable(&mut self) -> Option<&mut dyn DurableState> {
        Some(self)
    }
}

impl DurableState for LoadBalancer {
    fn format_version(&self) -> u32 {
        2
    }

    /// Replaces the target number, which is local to an instance, by the target's fingerprint.
    fn to_durable(&self, state: &mut [u8], _origin: Nanos) {
        let number: DurableTarget = bytemuck::pod_read_unaligned(state);
        let fingerprint = self.cached_rules.value.fingerprints.get(number as usize);
        let fingerprint = fingerprint.copied().unwrap_or_default();
        state.copy_from_slice(&fingerprint.to_le_bytes());
    }

    fn restore_durable(&mut self, state: &mut [u8], _origin: Nanos) {
        self.refresh();
        let fingerprint: u64 = bytemuck::pod_read_unaligned(state);
        let mut known = self.cached_rules.value.fingerprints.iter();
        let number = known.position(|known| *known == fingerprint);
        // A target that is gone counts as none: the flow gets a new one.
        let number = number.map_or(0, |number| number as DurableTarget);
        state.copy_from_slice(bytemuck::bytes_of(&number));
    }
}

/// Rewrites a packet for its target, or returns a drop reason.
#[inline]
fn send_to(target: Target, packet: &mut Packet, frame: &mut [u8]) -> Result<(), u8> {
    let key = packet.headers.key;
    let rewritten = match target {
        Target::Pass => Some(()),
        Target::Refuse(reason) => return Err(reason),
        Target::V4(address, port) => {
            let IpAddr::V4(old) = key.destination() else {
                return Err(NOT_REWRITABLE);
            };
            let old = (old, key.destination_port());
            let new = (address, port.unwrap_or(old.1));
            Translation::new(DESTINATION, old, new).apply(packet, frame)
        }
        Target::V6(address, port) => {
            let port = port.unwrap_or(key.destination_port());
            redirect_v6(packet, frame, (address, port))
        }
        Target::Mac(address) => frame.first_chunk_mut::<6>().map(|destination| *destination = address),
    };
    rewritten.ok_or(NOT_REWRITABLE)
}
