//! `Nat`: source address and port translation, TCP and UDP over IPv4.
//!
//! An internal host's connection gets an external address (always the same for a host, RFC 4787
//! REQ-2) and port. The port is chosen so that the return traffic's RSS hash falls in the bucket
//! that owns the connection: the hash is linear over XOR, so a table made at the start tells for
//! each wanted change of bucket which ports bring it about. Both directions are then flows of one
//! bucket, opened together and ended together, and each finds its translation with the chain's one
//! look-up: there is no other table, and nothing is shared between cores.
//!
//! Since a return tuple includes the remote address and port, an external port serves many
//! connections at once, to different remotes (address and port dependent mapping, RFC 4787 §4.1).

use crate::rewrite::{DESTINATION, PASS, SOURCE, Translation};
use bytemuck::Zeroable;
use ipnet::Ipv4Net;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::flow_table::NoCompanion;
use tailwater_chain::function::{FlowStates, MAX_WISHES, NetworkFunction, NewFlow, Wishes};
use tailwater_chain::live::{Live, Version};
use tailwater_chain::region::write_in_order;
use tailwater_net::parse::{Fragment, Network};
use tailwater_net::toeplitz::{BUCKETS, End, RssHasher, bucket_of};
use tailwater_net::{FlowKey, protocol};

/// What a NAT translates, and to what; shared by all workers.
#[derive(Debug)]
pub struct NatTable {
    /// External addresses.
    external: Vec<Ipv4Addr>,
    /// The same, sorted, to recognise return traffic.
    external_sorted: Vec<Ipv4Addr>,
    internal: Vec<Ipv4Net>,
    ports: PortClasses,
    rss: RssHasher,
    drop_others: bool,
    drop_inbound: bool,
}

/// What a [`NatTable`] is made of.
#[derive(Clone, Debug)]
pub struct NatRules {
    /// External addresses; at least one.
    pub external: Vec<Ipv4Addr>,
    /// Sources that are translated.
    pub internal: Vec<Ipv4Net>,
    /// External ports.
    pub ports: RangeInclusive<u16>,
    /// Whether packets of internal hosts that cannot be translated (neither TCP nor UDP, or
    /// fragments) are dropped rather than passed unchanged.
    pub drop_others: bool,
    /// Whether packets to an external address without a binding are dropped rather than passed.
    pub drop_inbound: bool,
}

impl NatTable {
    /// Tables for these rules under the RSS hash of the port.
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

    /// The external address of an internal host.
    fn address_of(&self, host: Ipv4Addr) -> Ipv4Addr {
        let spread = FlowKey::v4(host, Ipv4Addr::UNSPECIFIED, 0, 0, 0).hash(0);
        self.external[scaled(spread, self.external.len())]
    }
}

/// A number below `count`, which is not 0, for each hash, evenly: its share of the range, which takes a
/// multiplication where a remainder takes a division.
#[inline]
fn scaled(hash: u64, count: usize) -> usize {
    ((u128::from(hash) * count as u128) >> 64) as usize
}

/// External ports by what they do to a return packet's bucket.
#[derive(Debug)]
struct PortClasses {
    /// Ports, class by class.
    ports: Vec<u16>,
    /// Where each class starts in `ports`; one more for the end.
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

    /// The ports whose contribution to the bucket is `class`.
    fn of(&self, class: u16) -> &[u16] {
        let class = usize::from(class);
        &self.ports[self.starts[class] as usize..self.starts[class + 1] as usize]
    }
}

/// The external ports that a connection can have.
struct Ports<'a> {
    table: &'a NatTable,
    key: FlowKey,
    remote: Ipv4Addr,
    address: Ipv4Addr,
    /// The return packet's hash but for the port that is to be found.
    base: u32,
    ports: &'a [u16],
    /// With which of them to begin.
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

    /// The return direction's key and hash with this port.
    #[inline]
    fn back(&self, port: u16) -> (FlowKey, u32) {
        let rss = &self.table.rss;
        let part = rss.port_contribution(Network::V4, End::Destination, port);
        let (protocol, theirs) = (self.key.protocol(), self.key.destination_port());
        let back = FlowKey::v4(self.remote, self.address, protocol, theirs, port);
        (back, self.base ^ part)
    }

    /// Where in the ports the wishes of a turn begin, and how many they are.
    fn turn(&self, turn: u8) -> (usize, usize) {
        let skipped = usize::from(turn) * MAX_WISHES;
        let count = self.ports.len().min(MAX_WISHES);
        ((self.first + skipped) % self.ports.len().max(1), count)
    }
}

/// Translates connections of internal hosts, and their return traffic back.
#[derive(Debug)]
pub struct Nat {
    table: Arc<Live<NatTable>>,
    held: Arc<Version<NatTable>>,
}

/// All external ports to the remote end are in use in the flow's bucket.
const PORTS_EXHAUSTED: u8 = 0;
/// A packet to an external address belongs to no connection.
const NO_BINDING: u8 = 1;
/// A packet of an internal host that is neither TCP nor UDP over IPv4, or a fragment.
const NOT_TRANSLATABLE: u8 = 2;
/// The flow table has no place for the return direction.
const NO_PLACE: u8 = 3;

impl Nat {
    /// A worker's instance.
    pub fn new(table: Arc<Live<NatTable>>) -> Nat {
        Nat {
            held: table.current(),
            table,
        }
    }

    /// Opens the return direction of a connection on a free external port.
    fn bind(&self, key: &FlowKey, ends: (Ipv4Addr, Ipv4Addr), flow: &mut NewFlow<'_>) -> Verdict {
        let inside = (ends.0, key.source_port());
        let found = Ports::new(&self.held.value, key, ends, flow.bucket());
        // Start anywhere: the first try nearly always finds a free port.
        let (mut from, mut most) = (found.first, found.ports.len());
        if let Some(turn) = flow.turn() {
            // What other instances have bound was asked about these ports only.
            (from, most) = found.turn(turn);
        }
        let (before, behind) = found.ports.split_at(from);
        for (number, &port) in behind.iter().chain(before).take(most).enumerate() {
            if flow.is_taken(number) {
                continue;
            }
            let (back, hash) = found.back(port);
            match flow.open_companion::<Translation>(&back, hash) {
                Ok(translation) => {
                    let outside = (found.address, port);
                    Translation::new(DESTINATION, outside, inside).write(translation);
                    // Now the connection is there. Should this process be killed before, its next packet finds the
                    // companion again, by the same port.
                    write_in_order();
                    Translation::new(SOURCE, inside, outside).write(flow.state());
                    return Verdict::Forward;
                }
                Err(NoCompanion::NoPlace) => return Verdict::Drop(NO_PLACE),
                Err(NoCompanion::HasOne) => return Verdict::Drop(NOT_TRANSLATABLE),
                Err(NoCompanion::Taken | NoCompanion::OtherBucket) => {}
            }
        }
        Verdict::Drop(PORTS_EXHAUSTED)
    }

    /// The host and the remote end of a connection that is translated.
    fn translated_ends(&self, packet: &Packet) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let key = &packet.headers.key;
        let (IpAddr::V4(host), IpAddr::V4(remote)) = (key.source(), key.destination()) else {
            return None;
        };
        let translated = matches!(key.protocol(), protocol::TCP | protocol::UDP)
            && packet.headers.fragment == Fragment::Whole
            && !self.held.value.is_external(remote)
            && self.held.value.is_internal(host);
        translated.then_some((host, remote))
    }

    /// The flow needs no translation.
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

    fn loses(&self, reason: u8) -> bool {
        matches!(reason, PORTS_EXHAUSTED | NO_PLACE)
    }

    fn state_bytes(&self) -> usize {
        size_of::<Translation>()
    }

    fn opens_companions(&self) -> bool {
        true
    }

    fn version(&self) -> u32 {
        self.table.number()
    }

    fn new_flow(&mut self, packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        self.table.refresh(&mut self.held);
        if flow.state::<Translation>().mode != PASS {
            // A connection that is shown again stays as it was opened.
            return Verdict::Forward;
        }
        let table = &self.held.value;
        let key = &packet.headers.key;
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (key.source(), key.destination()) else {
            return Nat::pass(flow);
        };
        let translatable =
            matches!(key.protocol(), protocol::TCP | protocol::UDP) && packet.headers.fragment == Fragment::Whole;
        // A flow that is refused is not remembered: its next packet is looked at again.
        match (table.is_external(destination), table.is_internal(source)) {
            (true, _) if table.drop_inbound => Verdict::Drop(NO_BINDING),
            (false, true) if translatable => self.bind(key, (source, destination), flow),
            (false, true) if table.drop_others => Verdict::Drop(NOT_TRANSLATABLE),
            _ => Nat::pass(flow),
        }
    }

    fn durable(&self) -> Option<u32> {
        Some(1)
    }

    /// A binding that another instance made is kept, whichever direction comes first, as long as this one could have
    /// made it.
    fn resume(&mut self, packet: &Packet, flow: &mut NewFlow<'_>) -> bool {
        let (table, key) = (&self.held.value, &packet.headers.key);
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

    fn wishes(&self, packet: &Packet, turn: u8, wish: &mut Wishes<'_>) -> u8 {
        let Some(ends) = self.translated_ends(packet) else {
            return turn;
        };
        let bucket = bucket_of(packet.rss_hash);
        let found = Ports::new(&self.held.value, &packet.headers.key, ends, bucket);
        let turns = found.ports.len().div_ceil(MAX_WISHES).min(255) as u8;
        let key_of = |from: usize, number| found.back(found.ports[(from + number) % found.ports.len()]).0;
        // The first turn in which a port is free here; should none be, it does not matter which.
        let is_free = |turn: &u8| {
            let (from, count) = found.turn(*turn);
            (0..count).any(|number| wish.is_free(&key_of(from, number), bucket))
        };
        let later = (0..turns).map(|later| turn.wrapping_add(later));
        let turn = later.into_iter().find(is_free).unwrap_or(turn);
        let (from, count) = found.turn(turn);
        for number in 0..count {
            wish.ask(number as u8, key_of(from, number));
        }
        turn
    }

    fn needs_payload(&self) -> bool {
        false
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        batch.for_each(|packet, frame| {
            let translation = *flows.state::<Translation>(packet);
            if translation.mode != PASS && translation.apply(packet, frame).is_none() {
                packet.verdict = Verdict::Drop(NOT_TRANSLATABLE);
            }
        });
    }
}

#[cfg(test)]
mod tests;
