//! The `IpForward` network function.

use super::route::Decision;
use super::table::RouteTable;
use super::v6::Search;
use std::net::IpAddr;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet, Verdict};
use tailwater_chain::function::{FlowStates, NetworkFunction, NewFlow};
use tailwater_chain::live::{Live, Version};
use tailwater_net::checksum::ChecksumDelta;
use tailwater_net::parse::Network;

const NO_ROUTE: u8 = 0;
const TTL_EXPIRED: u8 = 1;
const BLACKHOLE: u8 = 2;
const LOCAL: u8 = 3;

/// One hop less: the time to live is the high byte of its word, and whatever the word is, the change
/// is the same.
const ONE_HOP: ChecksumDelta = ChecksumDelta::u16(0x0100, 0);

/// What else a forwarder is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardOptions {
    /// Packets to the router itself go on unchanged instead of being dropped.
    pub pass_local: bool,
    /// The decision is kept with the flow instead of being looked up for each packet.
    pub in_flow: bool,
}

/// Sends packets to the next hop of the longest prefix that holds their destination: takes one off
/// the time to live or hop limit, and sets the MAC addresses.
pub struct IpForward {
    table: Arc<Live<RouteTable>>,
    held: Arc<Version<RouteTable>>,
    options: ForwardOptions,
    /// Scratch space, one entry for each packet of a batch.
    decisions: Box<[Decision; MAX_BATCH]>,
    v4_addresses: Box<[u32; MAX_BATCH]>,
    v6_searches: Vec<Search>,
}

/// A flow's decision: the [`Decision`] in the lower half, the lower half of the version's number above, since the numbers
/// of next hops are a version's own.
type Decided = u32;

/// A decision of a version as it is kept.
#[inline]
fn kept(decision: Decision, version: u32) -> Decided {
    version << 16 | Decided::from(decision.0)
}

impl IpForward {
    /// A worker's instance.
    pub fn new(table: Arc<Live<RouteTable>>, options: ForwardOptions) -> IpForward {
        IpForward {
            held: table.current(),
            table,
            options,
            decisions: Box::new([Decision::NONE; MAX_BATCH]),
            v4_addresses: Box::new([0; MAX_BATCH]),
            v6_searches: Vec::with_capacity(MAX_BATCH),
        }
    }

    /// Looks all packets' destinations up, their memory accesses overlapped.
    #[inline]
    fn decide_all(&mut self, batch: &Batch) {
        let IpForward {
            held,
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
                    // Looked up as well, rather than told apart again.
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

/// Takes one hop off. `false`, with nothing changed, if it was the last.
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

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["no-route", "ttl-expired", "blackhole", "local"]
    }

    fn state_bytes(&self) -> usize {
        match self.options.in_flow {
            true => size_of::<Decided>(),
            false => 0,
        }
    }

    fn version(&self) -> u32 {
        self.table.number()
    }

    fn new_flow(&mut self, packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        self.table.refresh(&mut self.held);
        let held = &self.held;
        let decision = held.value.decide(packet.headers.key.destination());
        *flow.state::<Decided>() = kept(decision, held.number);
        Verdict::Forward
    }

    fn needs_payload(&self) -> bool {
        false
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.table.refresh(&mut self.held);
        if self.options.in_flow {
            let held = &self.held;
            for (packet, decision) in batch.iter().zip(self.decisions.iter_mut()) {
                let decided = *flows.state::<Decided>(packet);
                *decision = Decision(decided as u16);
                if decided >> 16 != held.number & 0xffff {
                    // The routes were replaced between the batch's look-up and here.
                    *decision = held.value.decide(packet.headers.key.destination());
                }
            }
        } else {
            self.decide_all(batch);
        }
        let mut decisions = self.decisions.iter();
        let addresses = &*self.held.value.addresses;
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
}
