//! The `IpForward` network function.

use super::route::Decision;
use super::table::RouteTable;
use super::v6::Search;
use std::net::IpAddr;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet, Verdict};
use tailwater_chain::function::{Explanation, FlowStates, FunctionProperties, NetworkFunction, NewFlow, TracedPacket};
use tailwater_chain::live::{Live, Version};
use tailwater_net::checksum::ChecksumDelta;
use tailwater_net::parse::Network;

const NO_ROUTE: u8 = 0;
const TTL_EXPIRED: u8 = 1;
const BLACKHOLE: u8 = 2;
const LOCAL: u8 = 3;

/// Checksum change for one hop. The TTL is the high byte of its word, so the change does not depend on the word's
/// value.
const ONE_HOP: ChecksumDelta = ChecksumDelta::u16(0x0100, 0);

/// Options of a forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardOptions {
    /// `true` to pass packets addressed to the router itself unchanged, instead of dropping them.
    pub pass_local: bool,
    /// `true` to store the decision with the flow, instead of a look-up for each packet.
    pub in_flow: bool,
}

/// Forwards packets to the next hop of the longest prefix that contains their destination. Decrements the TTL or hop
/// limit and sets the MAC addresses.
pub struct IpForward {
    table: Arc<Live<RouteTable>>,
    cached_rules: Arc<Version<RouteTable>>,
    options: ForwardOptions,
    /// Scratch space, one entry per packet of a batch.
    decisions: Box<[Decision; MAX_BATCH]>,
    v4_addresses: Box<[u32; MAX_BATCH]>,
    v6_searches: Vec<Search>,
}

/// Decision stored in a flow's state. The lower half is the [`Decision`], the upper half the lower 16 bits of the
/// version number. Next-hop numbers are valid in one version only.
type Decided = u32;

/// Encodes a decision and its version for the flow's state.
#[inline]
fn encode_decision(decision: Decision, version: u32) -> Decided {
    version << 16 | Decided::from(decision.0)
}

impl IpForward {
    /// Creates a worker's instance.
    pub fn new(table: Arc<Live<RouteTable>>, options: ForwardOptions) -> IpForward {
        IpForward {
            cached_rules: table.current(),
            table,
            options,
            decisions: Box::new([Decision::NONE; MAX_BATCH]),
            v4_addresses: Box::new([0; MAX_BATCH]),
            v6_searches: Vec::with_capacity(MAX_BATCH),
        }
    }

    /// Looks up the destinations of all packets with overlapping memory accesses.
    #[inline]
    fn decide_all(&mut self, batch: &Batch) {
        let IpForward {
            cached_rules: held,
            decisions,
            v4_addresses,
            v6_searches,
            ..
        } = self;
        let table = &held.value;
        v6_searches.clear();
        for (i, (packet, v4_address)) in batch.iter().zip(v4_addresses.iter_mut()).enumerate() {
            match packet.headers.key.destination() {
                IpAddr::V4(address) => {
                    *v4_address = address.to_bits();
                    table.v4.prefetch(*v4_address);
                }
                IpAddr::V6(address) => {
                    // IPv6 packets look up a dummy address, which is cheaper than a second test of the version.
                    *v4_address = 0;
                    v6_searches.push(Search::new(address.to_bits(), i));
                }
            }
        }
        let pairs = decisions.iter_mut().zip(v4_addresses.iter());
        for (decision, v4_address) in pairs.take(batch.len()) {
            *decision = table.v4.find(*v4_address);
        }
        if !v6_searches.is_empty() {
            table.v6.find_all(v6_searches);
            for search in v6_searches.iter() {
                if let Some(decision) = decisions.get_mut(search.packet) {
                    *decision = search.decision();
                }
            }
        }
    }
}

/// Decrements the TTL or hop limit. Returns `false` and changes nothing if it was 1 or 0.
#[inline(always)]
fn take_hop(packet: &Packet, frame: &mut [u8]) -> bool {
    let header = frame.get_mut(usize::from(packet.headers.network_offset)..);
    let Some(header) = header.and_then(|header| header.first_chunk_mut::<12>()) else {
        return false;
    };
    let is_v4 = packet.headers.network == Network::V4;
    let hops = &mut header[if is_v4 { 8 } else { 7 }];
    if *hops <= 1 {
        return false;
    }
    *hops -= 1;
    if is_v4 {
        let checksum = ONE_HOP.apply(u16::from_be_bytes([header[10], header[11]]));
        [header[10], header[11]] = checksum.to_be_bytes();
    }
    true
}

impl NetworkFunction for IpForward {
    fn kind(&self) -> &'static str {
        "IpForward"
    }

    fn can_restart(&self) -> bool {
        true
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["no-route", "ttl-expired", "blackhole", "local"]
    }

    fn state_bytes(&self) -> usize {
        match self.options.in_flow {
            true => size_of::<Decided>(),
            false => 0,
        }
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties::HEADERS_ONLY
    }

    fn version(&self) -> u32 {
        self.table.number()
    }

    fn new_flow(&mut self, packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        self.table.refresh(&mut self.cached_rules);
        let held = &self.cached_rules;
        let decision = held.value.decide(packet.headers.key.destination());
        *flow.state::<Decided>() = encode_decision(decision, held.number);
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.table.refresh(&mut self.cached_rules);
        if self.options.in_flow {
            let held = &self.cached_rules;
            for (packet, decision) in batch.iter().zip(self.decisions.iter_mut()) {
                let decided = *flows.state::<Decided>(packet);
                *decision = Decision(decided as u16);
                if decided >> 16 != held.number & 0xffff {
                    // The routes were replaced between the batch's look-up and this point.
                    *decision = held.value.decide(packet.headers.key.destination());
                }
            }
        } else {
            self.decide_all(batch);
        }
        let mut decisions = self.decisions.iter();
        let addresses = &*self.cached_rules.value.addresses;
        batch.for_each(|packet, frame| {
            let decision = decisions.next().copied().unwrap_or(Decision::NONE);
            match addresses.get(decision.hop()) {
                Some(addresses) if take_hop(packet, frame) => {
                    if let Some(ethernet) = frame.first_chunk_mut() {
                        *ethernet = *addresses;
                    }
                }
                Some(_) => packet.verdict = Verdict::Drop(TTL_EXPIRED),
                None => {
                    packet.verdict = match decision {
                        Decision::LOCAL if self.options.pass_local => Verdict::Forward,
                        Decision::LOCAL => Verdict::Drop(LOCAL),
                        Decision::BLACKHOLE => Verdict::Drop(BLACKHOLE),
                        _ => Verdict::Drop(NO_ROUTE),
                    };
                }
            }
        });
    }

    fn explain(&self, traced: &TracedPacket<'_>, _: &mut FlowStates<'_>, text: &mut Explanation) {
        self.cached_rules.value.explain(traced.key.destination(), text);
    }
}
