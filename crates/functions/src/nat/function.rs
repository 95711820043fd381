//! Translation of packets, and the bindings of flows.

use crate::kind::StateFormat;
use crate::rewrite::{DESTINATION, PASS, SOURCE, Translation};
use bytemuck::Zeroable;
use ipnet::Ipv4Net;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::flow_table::NoCompanion;
use tailwater_chain::function::{
    CompanionCandidates, DurableState, Explanation, FlowStates, FunctionProperties, MAX_CANDIDATES, NetworkFunction,
    NewFlow, TracedPacket,
};
use tailwater_chain::live::{Live, Version};
use tailwater_chain::region::write_in_order;
use tailwater_net::parse::{Fragment, Network};
use tailwater_net::toeplitz::{BUCKETS, End, RssHasher, bucket_of};
use tailwater_net::{FlowKey, protocol};

/// Translation rules and tables, shared by all workers.
#[derive(Debug)]
pub struct NatTable {
    /// External addresses.
    external: Vec<Ipv4Addr>,
    /// External addresses in sorted order, to recognise return traffic.
    external_sorted: Vec<Ipv4Addr>,
    internal: Vec<Ipv4Net>,
    ports: PortClasses,
    rss: RssHasher,
    drop_others: bool,
    drop_inbound: bool,
}

/// Rules from which a [`NatTable`] is built.
#[derive(Clone, Debug)]
pub struct NatRules {
    /// External addresses; at least one.
    pub external: Vec<Ipv4Addr>,
    /// Source prefixes to translate.
    pub internal: Vec<Ipv4Net>,
    /// External ports.
    pub ports: RangeInclusive<u16>,
    /// Drops packets of internal hosts that cannot be translated (neither TCP nor UDP, or fragments). Otherwise they
    /// pass unchanged.
    pub drop_others: bool,
    /// Drops packets to an external address without a binding. Otherwise they pass.
    pub drop_inbound: bool,
}

impl NatTable {
    /// Builds the tables for these rules under the RSS hash of the port.
    pub fn new(rules: NatRules, rss: RssHasher) -> NatTable {
        let mut external_sorted = rules.external.clone();
        external_sorted.sort_unstable();
        NatTable {
            ports: PortClasses::new(rules.ports, &rss),
            external: rules.external,
            external_sorted,
            internal: rules.internal,
            rss,
            drop_others: rules.drop_others,
            drop_inbound: rules.drop_inbound,
        }
    }

    fn is_external(&self, address: Ipv4Addr) -> bool {
        self.external_sorted.binary_search(&address).is_ok()
    }

    fn is_internal(&self, address: Ipv4Addr) -> bool {
        self.internal.iter().any(|prefix| prefix.contains(&address))
    }

    /// External address of an internal host.
    fn address_of(&self, host: Ipv4Addr) -> Ipv4Addr {
        let spread = FlowKey::v4(host, Ipv4Addr::UNSPECIFIED, 0, 0, 0).hash(0);
        self.external[scaled(spread, self.external.len())]
    }
}

/// Maps a hash uniformly to a number below `count`, which is not 0. It takes the hash's share of the range: a
/// multiplication instead of the division of a remainder.
#[inline]
fn scaled(hash: u64, count: usize) -> usize {
    ((u128::from(hash) * count as u128) >> 64) as usize
}

/// External ports grouped by their contribution to a return packet's bucket.
#[derive(Debug)]
struct PortClasses {
    /// Ports, sorted by class.
    ports: Vec<u16>,
    /// Start of each class in `ports`, and a last element for the end.
    starts: Vec<u32>,
}

impl PortClasses {
    fn new(range: RangeInclusive<u16>, rss: &RssHasher) -> PortClasses {
        let class = |port| bucket_of(rss.port_contribution(Network::V4, End::Destination, port));
        let mut ports: Vec<u16> = range.collect();
        ports.sort_by_key(|&port| class(port));
        let starts = (0..=BUCKETS as u16)
            .map(|bucket| ports.partition_point(|&port| class(port) < bucket) as u32)
            .collect();
        PortClasses { ports, starts }
    }

    /// Ports whose contribution to the bucket is `class`.
    fn of(&self, class: u16) -> &[u16] {
        let class = usize::from(class);
        &self.ports[self.starts[class] as usize..self.starts[class + 1] as usize]
    }
}

/// Candidate external ports of a connection.
struct Ports<'a> {
    table: &'a NatTable,
    key: FlowKey,
    remote: Ipv4Addr,
    address: Ipv4Addr,
    /// Hash of the return packet, except for the port that is to be found.
    base: u32,
    ports: &'a [u16],
    /// Index of the port to start with.
    first: usize,
}

impl<'a> Ports<'a> {
    #[inline]
    fn new(table: &'a NatTable, key: &FlowKey, (host, remote): (Ipv4Addr, Ipv4Addr), bucket: u16) -> Ports<'a> {
        let address = table.address_of(host);
        let rss = &table.rss;
        let base = rss.address_contribution(End::Source, remote.into())
            ^ rss.address_contribution(End::Destination, address.into())
            ^ rss.port_contribution(Network::V4, End::Source, key.destination_port());
        let ports = table.ports.of(bucket_of(base) ^ bucket);
        Ports {
            table,
            key: *key,
            remote,
            address,
            base,
            ports,
            first: scaled(key.hash(0), ports.len()),
        }
    }

    /// Key and hash of the return direction with this port.
    #[inline]
    fn back(&self, port: u16) -> (FlowKey, u32) {
        let rss = &self.table.rss;
        let part = rss.port_contribution(Network::V4, End::Destination, port);
        let (protocol, theirs) = (self.key.protocol(), self.key.destination_port());
        let back = FlowKey::v4(self.remote, self.address, protocol, theirs, port);
        (back, self.base ^ part)
    }

    /// Index of the first candidate port of a turn, and the number of candidates.
    fn turn(&self, turn: u8) -> (usize, usize) {
        let skipped = usize::from(turn) * MAX_CANDIDATES;
        let count = self.ports.len().min(MAX_CANDIDATES);
        ((self.first + skipped) % self.ports.len().max(1), count)
    }
}

/// Translates connections of internal hosts, and their return traffic back.
#[derive(Debug)]
pub struct Nat {
    table: Arc<Live<NatTable>>,
    cached_rules: Arc<Version<NatTable>>,
}

/// All external ports to the remote end are in use in the flow's bucket.
const PORTS_EXHAUSTED: u8 = 0;
/// A packet to an external address belongs to no connection.
const NO_BINDING: u8 = 1;
/// A packet of an internal host that is neither TCP nor UDP over IPv4, or a fragment.
const NOT_TRANSLATABLE: u8 = 2;
/// The flow table has no slot for the return direction.
const FLOW_TABLE_FULL: u8 = 3;

impl Nat {
    /// Creates an instance for a worker.
    pub fn new(table: Arc<Live<NatTable>>) -> Nat {
        Nat {
            cached_rules: table.current(),
            table,
        }
    }

    /// Opens the return direction of a connection on a free external port.
    fn bind(&self, key: &FlowKey, ends: (Ipv4Addr, Ipv4Addr), flow: &mut NewFlow<'_>) -> Verdict {
        let inside = (ends.0, key.source_port());
        let found = Ports::new(&self.cached_rules.value, key, ends, flow.bucket());
        // The start is arbitrary: the first try nearly always finds a free port.
        let (mut from, mut most) = (found.first, found.ports.len());
        if let Some(turn) = flow.turn() {
            // Redis was queried for the bindings of other instances on these ports only.
            (from, most) = found.turn(turn);
        }
        let (before, behind) = found.ports.split_at(from);
        for (number, &port) in behind.iter().chain(before).take(most).enumerate() {
            if flow.is_taken(number) {
                continue;
            }
            let (back, hash) = found.back(port);
            // The connection's answer may be in the table already, but undecided: it is in the same batch, or a packet
            // of the remote end was refused before. With Redis, other instances were asked about free ports only.
            let opened = match flow.turn() {
                None => flow.rejoin_companion::<Translation>(&back, hash),
                Some(_) => flow.open_companion::<Translation>(&back, hash),
            };
            match opened {
                Ok(translation) => {
                    let outside = (found.address, port);
                    Translation::new(DESTINATION, outside, inside).write(translation);
                    // The return direction exists now. If this process is killed before the next write, the
                    // connection's next packet finds this companion again, by the same port.
                    write_in_order();
                    Translation::new(SOURCE, inside, outside).write(flow.state());
                    return Verdict::Forward;
                }
                Err(NoCompanion::TableFull) => return Verdict::Drop(FLOW_TABLE_FULL),
                Err(NoCompanion::HasOne) => return Verdict::Drop(NOT_TRANSLATABLE),
                Err(NoCompanion::Taken | NoCompanion::OtherBucket) => {}
            }
        }
        Verdict::Drop(PORTS_EXHAUSTED)
    }

    /// Internal host and remote end, if the packet's connection is to be translated.
    fn translated_ends(&self, packet: &Packet) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let key = &packet.headers.key;
        let (IpAddr::V4(host), IpAddr::V4(remote)) = (key.source(), key.destination()) else {
            return None;
        };
        let translated = matches!(key.protocol(), protocol::TCP | protocol::UDP)
            && packet.headers.fragment == Fragment::Whole
            && !self.cached_rules.value.is_external(remote)
            && self.cached_rules.value.is_internal(host);
        translated.then_some((host, remote))
    }

    /// Passes a flow that needs no translation.
    fn pass(flow: &mut NewFlow<'_>) -> Verdict {
        *flow.state() = Translation::zeroed();
        Verdict::Forward
    }
}

impl NetworkFunction for Nat {
    fn kind(&self) -> &'static str {
        "Nat"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["ports-exhausted", "no-binding", "not-translatable", "flow-table-full"]
    }

    fn is_loss(&self, reason: u8) -> bool {
        matches!(reason, PORTS_EXHAUSTED | FLOW_TABLE_FULL)
    }

    fn state_bytes(&self) -> usize {
        size_of::<Translation>()
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            opens_companions: true,
            ..FunctionProperties::HEADERS_ONLY
        }
    }

    fn version(&self) -> u32 {
        self.table.number()
    }

    fn new_flow(&mut self, packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        self.table.refresh(&mut self.cached_rules);
        if flow.state::<Translation>().mode != PASS {
            // A connection seen again keeps its translation.
            return Verdict::Forward;
        }
        let table = &self.cached_rules.value;
        let key = &packet.headers.key;
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (key.source(), key.destination()) else {
            return Nat::pass(flow);
        };
        let translatable =
            matches!(key.protocol(), protocol::TCP | protocol::UDP) && packet.headers.fragment == Fragment::Whole;
        // A refused flow is not stored: its next packet is checked again.
        match (table.is_external(destination), table.is_internal(source)) {
            (true, _) if table.drop_inbound => Verdict::Drop(NO_BINDING),
            (false, true) if translatable => self.bind(key, (source, destination), flow),
            (false, true) if table.drop_others => Verdict::Drop(NOT_TRANSLATABLE),
            _ => Nat::pass(flow),
        }
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        batch.for_each(|packet, frame| {
            let translation = *flows.state::<Translation>(packet);
            if translation.mode != PASS && translation.apply(packet, frame).is_none() {
                packet.verdict = Verdict::Drop(NOT_TRANSLATABLE);
            }
        });
    }

    fn explain(&self, traced: &TracedPacket<'_>, flows: &mut FlowStates<'_>, text: &mut Explanation) {
        let packet = traced.packet();
        let translation = *flows.state::<Translation>(packet);
        let (address, port) = translation.target();
        let age = if packet.is_new() { "new" } else { "existing" };
        let key = &traced.key;
        match translation.mode {
            SOURCE => text.add(format_args!(
                "{age} binding, inside {}:{}, outside {address}:{port}",
                key.source(),
                key.source_port(),
            )),
            DESTINATION => text.add(format_args!(
                "{age} binding, inside {address}:{port}, outside {}:{}",
                key.destination(),
                key.destination_port(),
            )),
            _ => text.add(format_args!("no binding")),
        }
    }

    fn durable(&mut self) -> Option<&mut dyn DurableState> {
        Some(self)
    }
}

/// Version of the state's portable form.
const FORMAT_VERSION: u32 = 1;

/// Portable form of the state, made without an instance.
pub(super) fn state_format() -> StateFormat {
    StateFormat::as_it_is(FORMAT_VERSION, size_of::<Translation>())
}

impl DurableState for Nat {
    fn format_version(&self) -> u32 {
        FORMAT_VERSION
    }

    /// Resumes a binding that another instance made, from either direction's first packet, if this instance could have
    /// made it.
    fn resume(&mut self, packet: &Packet, flow: &mut NewFlow<'_>) -> bool {
        let (table, key) = (&self.cached_rules.value, &packet.headers.key);
        let state = *flow.state::<Translation>();
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (key.source(), key.destination()) else {
            return false;
        };
        let fits = |host, address, port: u16| {
            table.is_internal(host) && table.address_of(host) == address && table.ports.ports.contains(&port)
        };
        let (mode, other, old) = match state.mode {
            SOURCE if self.translated_ends(packet).is_some() => {
                let (address, port) = state.target();
                let found = Ports::new(table, key, (source, destination), flow.bucket());
                if !fits(source, address, port) {
                    return false;
                }
                (DESTINATION, found.back(port), (source, key.source_port()))
            }
            DESTINATION => {
                let (host, port) = state.target();
                let outside = (destination, key.destination_port());
                if !fits(host, outside.0, outside.1) {
                    return false;
                }
                let theirs = key.source_port();
                let forward = FlowKey::v4(host, source, key.protocol(), port, theirs);
                (SOURCE, (forward, table.rss.hash(&forward)), outside)
            }
            _ => return false,
        };
        let target = state.target();
        let Ok(companion) = flow.rejoin_companion::<Translation>(&other.0, other.1) else {
            return false;
        };
        *companion = Translation::new(mode, target, old);
        *flow.state() = Translation::new(state.mode, old, target);
        true
    }

    fn companion_candidates(&self, packet: &Packet, turn: u8, wish: &mut CompanionCandidates<'_>) -> u8 {
        let Some(ends) = self.translated_ends(packet) else {
            return turn;
        };
        let bucket = bucket_of(packet.rss_hash);
        let found = Ports::new(&self.cached_rules.value, &packet.headers.key, ends, bucket);
        let turns = found.ports.len().div_ceil(MAX_CANDIDATES).min(255) as u8;
        let key_of = |from: usize, number| found.back(found.ports[(from + number) % found.ports.len()]).0;
        // First turn with a port that is free locally. If there is none, any turn will do.
        let is_free = |turn: &u8| {
            let (from, count) = found.turn(*turn);
            (0..count).any(|number| wish.is_free(&key_of(from, number), bucket))
        };
        let later = (0..turns).map(|later| turn.wrapping_add(later));
        let turn = later.into_iter().find(is_free).unwrap_or(turn);
        let (from, count) = found.turn(turn);
        for number in 0..count {
            wish.add(number as u8, key_of(from, number));
        }
        turn
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
