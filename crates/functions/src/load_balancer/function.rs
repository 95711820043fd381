//! The `LoadBalancer` network function.

use super::spec::LoadBalancerConfig;
use super::table::{LoadBalancerTable, ServiceTable, Target, TargetNumber};
use crate::kind::StateFormat;
use crate::rewrite::{DESTINATION, Translation, redirect_v6};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
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

/// Version of the state's portable form.
const FORMAT_VERSION: u32 = 2;

/// Portable form of the state, made without an instance: numbers of targets follow from the configuration.
pub(super) fn state_format(config: &LoadBalancerConfig) -> StateFormat {
    let config = config.clone();
    // Only a take-over uses it.
    let fingerprints = LazyLock::new(move || {
        let table = LoadBalancerTable::new(&config.services, config.table_size, false);
        table.map_or_else(
            |_| Vec::new(),
            |table| table.live().current().value.fingerprints.clone(),
        )
    });
    let fingerprints = Arc::new(fingerprints);
    let own = Arc::clone(&fingerprints);
    StateFormat::converted(
        (FORMAT_VERSION, size_of::<DurableTarget>()),
        move |state, _| to_durable(&own, state),
        move |state, _| restore_durable(&fingerprints, state),
    )
}

/// Replaces the target number, which is local to an instance, by the target's fingerprint.
fn to_durable(fingerprints: &[u64], state: &mut [u8]) {
    let number: DurableTarget = bytemuck::pod_read_unaligned(state);
    let fingerprint = usize::try_from(number).ok().and_then(|number| fingerprints.get(number));
    state.copy_from_slice(&fingerprint.copied().unwrap_or_default().to_le_bytes());
}

/// Replaces a target's fingerprint by its number. A target that is gone counts as none: the flow gets a new one.
fn restore_durable(fingerprints: &[u64], state: &mut [u8]) {
    let fingerprint: u64 = bytemuck::pod_read_unaligned(state);
    let number = fingerprints.iter().position(|known| *known == fingerprint);
    let number = number.map_or(0, |number| number as DurableTarget);
    state.copy_from_slice(bytemuck::bytes_of(&number));
}

impl DurableState for LoadBalancer {
    fn format_version(&self) -> u32 {
        FORMAT_VERSION
    }

    fn to_durable(&self, state: &mut [u8], _origin: Nanos) {
        to_durable(&self.cached_rules.value.fingerprints, state);
    }

    fn restore_durable(&mut self, state: &mut [u8], _origin: Nanos) {
        self.refresh();
        restore_durable(&self.cached_rules.value.fingerprints, state);
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
