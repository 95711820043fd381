//! The `Ipsec` network function.

use super::association::PolicyAction;
use super::cipher::{ICV, IV};
use super::headers::{ECN, ESP, Inner, UDP, decapsulated_ecn, set_ecn};
use super::sequence::Refused;
use super::table::{InboundSa, IpsecTable, OutboundSa};
use std::ops::Range;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet, Verdict};
use tailwater_chain::function::{Explanation, FlowStates, FunctionProperties, NetworkFunction, TracedPacket};
use tailwater_chain::live::{Live, Version};
use tailwater_net::parse::{Fragment, Headers, Network, parse};
use tailwater_net::protocol::ethertype;
use tailwater_net::vlan::{MAX_VLAN_TAGS, TAG};
use tailwater_net::{FlowKey, ethernet, ipv4, protocol};

/// Bytes of the pad length and next header fields, behind the padding.
const TRAILER: usize = 2;
/// Alignment in bytes of the ciphertext's end (RFC 4303 §2.4).
const ALIGNMENT: usize = 4;
/// Next header value of IPv4.
const IPV4: u8 = 4;
/// Next header value of IPv6.
const IPV6: u8 = 41;

/// Drop reason: a policy drops the packet, or no policy matches.
const POLICY: u8 = 0;
/// Drop reason: the encapsulated packet would exceed the MTU.
const TOO_BIG: u8 = 1;
/// Drop reason: the association's sequence numbers are exhausted.
const EXHAUSTED: u8 = 2;
/// Drop reason: the buffer has no room for the new headers.
const NO_ROOM: u8 = 3;
/// Drop reason: the packet is for this endpoint, but no association has its SPI at that address.
const NO_ASSOCIATION: u8 = 4;
/// Drop reason: shorter than the minimum of ESP, or the UDP length disagrees with the IP length.
const MALFORMED: u8 = 5;
/// Drop reason: a fragment of ESP.
const FRAGMENT: u8 = 6;
/// Drop reason: the sequence number was received before.
const REPLAYED: u8 = 7;
/// Drop reason: the sequence number is left of the window.
const TOO_OLD: u8 = 8;
/// Drop reason: authentication failed.
const NOT_AUTHENTIC: u8 = 9;
/// Drop reason: padding is not 1, 2, 3, ..., or is longer than the packet.
const PADDING: u8 = 10;
/// Drop reason: the payload is not an IP packet.
const NEXT_HEADER: u8 = 11;
/// Drop reason: the inner IP packet is malformed.
const INNER_MALFORMED: u8 = 12;
/// Drop reason: the association does not allow the inner packet.
const NOT_ALLOWED: u8 = 13;
/// Drop reason: congestion was marked on the path, and the inner packet is not ECN-capable (RFC 6040).
const CONGESTION: u8 = 14;
/// Drop reason: a NAT keep-alive, or a dummy packet, neither of which has a recipient.
const KEEP_ALIVE: u8 = 15;

/// Network function that encapsulates packets in ESP tunnels by policy, and decapsulates those of inbound tunnels.
pub struct Ipsec {
    table: Arc<Live<IpsecTable>>,
    cached_rules: Arc<Version<IpsecTable>>,
    scratch: Box<Scratch>,
    /// Packets of the batch to encapsulate, per outbound association.
    pending: Vec<u32>,
    /// Sequence numbers taken for them, per outbound association.
    taken: Vec<Range<u64>>,
    /// Counts of encapsulated and decapsulated packets.
    counts: [u64; 2],
}

/// Working memory for the classification of one batch.
struct Scratch {
    keys: [FlowKey; MAX_BATCH],
    places: [u16; MAX_BATCH],
    policies: [Option<u32>; MAX_BATCH],
    /// Packets to encapsulate: index in the batch and association.
    protect: [(u16, u32); MAX_BATCH],
    /// SPI of each packet that was decapsulated, by index in the batch, for explanations.
    spis: [u32; MAX_BATCH],
}

/// Kind of a packet, seen from this endpoint.
enum Kind {
    /// ESP to this endpoint.
    Esp,
    /// UDP to this endpoint's ESP port.
    Udp,
    /// Anything else.
    Other,
}

impl Ipsec {
    /// Creates a worker's instance.
    pub fn new(table: Arc<Live<IpsecTable>>) -> Ipsec {
        let held = table.current();
        let scratch = Scratch {
            keys: [FlowKey::default(); MAX_BATCH],
            places: [0; MAX_BATCH],
            policies: [None; MAX_BATCH],
            protect: [(0, 0); MAX_BATCH],
            spis: [0; MAX_BATCH],
        };
        Ipsec {
            pending: vec![0; held.value.leaving.len()],
            taken: vec![0..0; held.value.leaving.len()],
            cached_rules: held,
            table,
            scratch: Box::new(scratch),
            counts: [0; 2],
        }
    }

    /// Switches to the current version of the table.
    #[cold]
    fn fetch(&mut self) {
        self.table.refresh(&mut self.cached_rules);
        self.pending.resize(self.cached_rules.value.leaving.len(), 0);
        self.taken.resize(self.cached_rules.value.leaving.len(), 0..0);
    }

    #[inline]
    fn kind_of(&self, packet: &Packet) -> Kind {
        let key = &packet.headers.key;
        match key.protocol() {
            protocol::ESP if self.cached_rules.value.is_end(key.destination(), None) => Kind::Esp,
            protocol::UDP
                if self
                    .cached_rules
                    .value
                    .is_end(key.destination(), Some(key.destination_port())) =>
            {
                Kind::Udp
            }
            _ => Kind::Other,
        }
    }

    /// Classifies packets that are not for this endpoint, and encapsulates those whose policy says so.
    fn outbound(&mut self, batch: &mut Batch, others: usize) {
        let Scratch {
            keys,
            places,
            policies,
            protect,
            ..
        } = &mut *self.scratch;
        self.cached_rules
            .value
            .find_policies(&keys[..others], &mut policies[..others]);
        let mut found = 0;
        for (policy, place) in policies[..others].iter().zip(&*places) {
            let packet = batch.packet_mut((*place).into()).0;
            let association = match self.cached_rules.value.action_of(*policy) {
                PolicyAction::Pass => continue,
                PolicyAction::Drop => {
                    packet.verdict = Verdict::Drop(POLICY);
                    continue;
                }
                PolicyAction::Protect(association) => association,
            };
            let outer = &self.cached_rules.value.leaving[association as usize].outer;
            if length_outside(outer.length, &packet.headers) > self.cached_rules.value.mtu {
                packet.verdict = Verdict::Drop(TOO_BIG);
                continue;
            }
            self.pending[association as usize] += 1;
            protect[found] = (*place, association);
            found += 1;
        }
        // Workers share an association's sequence numbers: one atomic step takes them for all its packets of the batch.
        for &(place, association) in &protect[..found] {
            let at = association as usize;
            let leaving = &self.cached_rules.value.leaving[at];
            let pending = std::mem::take(&mut self.pending[at]);
            if pending > 0 {
                self.taken[at] = leaving.sequence.take(pending);
            }
            let done = match self.taken[at].next() {
                None => Err(EXHAUSTED),
                Some(sequence) => encapsulate(batch, place.into(), leaving, sequence),
            };
            match done {
                Ok(()) => self.counts[0] += 1,
                Err(reason) => batch.packet_mut(place.into()).0.verdict = Verdict::Drop(reason),
            }
        }
    }

    /// Decapsulates packet `i`, or returns a drop reason. `in_udp`: the packet is a datagram to the ESP port.
    fn inbound(&mut self, batch: &mut Batch, i: usize, in_udp: bool) -> Result<(), u8> {
        let (packet, frame) = batch.packet_mut(i);
        let Some(found) = uncover(&self.cached_rules.value, &packet.headers, frame, in_udp)? else {
            self.scratch.spis[i] = 0;
            return Ok(());
        };
        let (start, length) = (found.start, found.length);
        self.scratch.spis[i] = found.spi;
        let link = usize::from(packet.headers.network_offset);
        frame.copy_within(..link, start - link);
        frame[start - 2..start].copy_from_slice(&found.ethertype.to_be_bytes());
        let whole = packet.length();
        let headers = &mut packet.headers;
        headers.network_offset = start as u16;
        headers.transport_offset = start as u16;
        headers.payload_offset = start as u16;
        headers.end = whole as u16;
        // The inner packet lies within the frame, so this cannot fail.
        let _ = batch.shrink_back(i, whole - start - length);
        let _ = batch.shrink_front(i, start - link);
        let (packet, frame) = batch.packet_mut(i);
        packet.headers = parse(frame).map_err(|_| INNER_MALFORMED)?;
        if !found.association.allows(&packet.headers.key) {
            return Err(NOT_ALLOWED);
        }
        self.counts[1] += 1;
        Ok(())
    }
}

impl NetworkFunction for Ipsec {
    fn kind(&self) -> &'static str {
        "Ipsec"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &[
            "policy",
            "too-big",
            "sequence-exhausted",
            "no-room",
            "no-association",
            "malformed",
            "fragment",
            "replayed",
            "too-old",
            "not-authentic",
            "bad-padding",
            "wrong-next-header",
            "inner-malformed",
            "not-allowed",
            "congestion",
            "keep-alive",
        ]
    }

    fn is_loss(&self, reason: u8) -> bool {
        reason == NO_ROOM
    }

    fn counters(&self) -> &'static [&'static str] {
        &["encapsulated", "decapsulated"]
    }

    fn counter_values(&self) -> &[u64] {
        &self.counts
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            mixes_flows: self.cached_rules.value.decapsulates(),
            ..FunctionProperties::default()
        }
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        if self.table.number() != self.cached_rules.number {
            self.fetch();
        }
        let mut others = 0;
        for i in 0..batch.len() {
            let packet = batch.packet(i);
            let done = match self.kind_of(packet) {
                Kind::Esp => self.inbound(batch, i, false),
                Kind::Udp => self.inbound(batch, i, true),
                Kind::Other => {
                    self.scratch.keys[others] = packet.headers.key;
                    self.scratch.places[others] = i as u16;
                    others += 1;
                    Ok(())
                }
            };
            if let Err(reason) = done {
                batch.packet_mut(i).0.verdict = Verdict::Drop(reason);
            }
        }
        if others > 0 {
            self.outbound(batch, others);
        }
    }

    fn explain(&self, traced: &TracedPacket<'_>, _: &mut FlowStates<'_>, text: &mut Explanation) {
        let (table, key) = (&self.cached_rules.value, &traced.key);
        let refused = matches!(traced.packet().verdict, Verdict::Drop(_));
        let port = (key.protocol() == protocol::UDP).then_some(key.destination_port());
        if matches!(key.protocol(), protocol::ESP | protocol::UDP) && table.is_end(key.destination(), port) {
            match (refused, self.scratch.spis.get(traced.at)) {
                (false, Some(spi)) if *spi != 0 => text.add(format_args!("inbound association {spi:#x}")),
                _ => text.add(format_args!("inbound, to {}", key.destination())),
            }
            return;
        }
        let mut policy = [None];
        table.find_policies(&[*key], &mut policy);
        match policy[0] {
            Some(policy) => text.add(format_args!("policy {}", policy + 1)),
            None => text.add(format_args!("no policy, default")),
        }
        match table.action_of(policy[0]) {
            PolicyAction::Pass => text.add(format_args!(": pass")),
            PolicyAction::Drop => text.add(format_args!(": drop")),
            PolicyAction::Protect(association) => {
                if let Some(leaving) = table.leaving.get(association as usize) {
                    text.add(format_args!(": outbound association {:#x}", leaving.spi));
                }
            }
        }
    }
}

/// Position of the decrypted inner packet within its frame.
struct Decapsulated<'a> {
    association: &'a InboundSa,
    spi: u32,
    start: usize,
    length: usize,
    ethertype: u16,
}

/// Decrypts a packet to this endpoint in place, or returns a drop reason. `None`: the packet is not ESP and passes.
fn uncover<'a>(
    table: &'a IpsecTable,
    headers: &Headers,
    frame: &mut [u8],
    in_udp: bool,
) -> Result<Option<Decapsulated<'a>>, u8> {
    if headers.fragment != Fragment::Whole {
        return Err(FRAGMENT);
    }
    if in_udp && !fills_its_packet(headers, frame) {
        return Err(MALFORMED);
    }
    let (start, end) = (headers.payload_offset.into(), headers.end.into());
    let parts = frame
        .get_mut(..end)
        .and_then(|packet| packet.split_at_mut_checked(start));
    let (outside, esp) = parts.ok_or(MALFORMED)?;
    match *esp {
        [0xff] if in_udp && table.pass_keep_alives => return Ok(None),
        [0xff] if in_udp => return Err(KEEP_ALIVE),
        [0, 0, 0, 0, ..] if in_udp && table.pass_ike => return Ok(None),
        [0, 0, 0, 0, ..] if in_udp => return Err(POLICY),
        _ => {}
    }
    let (head, text) = esp.split_first_chunk_mut::<{ ESP + IV }>().ok_or(MALFORMED)?;
    if text.len() < TRAILER + ICV {
        return Err(MALFORMED);
    }
    let [s0, s1, s2, s3, n0, n1, n2, n3, iv @ ..] = *head;
    let (spi, low) = (
        u32::from_be_bytes([s0, s1, s2, s3]),
        u32::from_be_bytes([n0, n1, n2, n3]),
    );
    let port = in_udp.then_some(headers.key.destination_port());
    let association = table
        .inbound_sa(spi, headers.key.destination(), port)
        .ok_or(NO_ASSOCIATION)?;
    let refused = |refused| match refused {
        Refused::Replayed => REPLAYED,
        Refused::TooOld => TOO_OLD,
    };
    let window = association.window.as_ref();
    let sequence = window
        .map_or(Ok(low.into()), |window| window.check(low))
        .map_err(refused)?;
    association.sealer.open(spi, sequence, iv, text).ok_or(NOT_AUTHENTIC)?;
    // Only after authentication: a forged packet must not move the window.
    window.map_or(Ok(()), |window| window.mark(sequence)).map_err(refused)?;
    let (text, _) = text.split_last_chunk_mut::<ICV>().ok_or(MALFORMED)?;
    let (text, [padding, next]) = text.split_last_chunk_mut::<TRAILER>().ok_or(MALFORMED)?;
    let length = text.len().checked_sub((*padding).into()).ok_or(PADDING)?;
    let (datagram, padding) = text.split_at_mut(length);
    if !padding
        .iter()
        .zip(1..=u8::MAX)
        .all(|(byte, expected)| *byte == expected)
    {
        return Err(PADDING);
    }
    let version = datagram.first().map_or(0, |first| first >> 4);
    let ethertype = match (*next, version) {
        (IPV4, 4) => ethertype::IPV4,
        (IPV6, 6) => ethertype::IPV6,
        (IPV4 | IPV6, _) => return Err(INNER_MALFORMED),
        (protocol::NO_NEXT_HEADER, _) => return Err(KEEP_ALIVE),
        _ => return Err(NEXT_HEADER),
    };
    let outer = outside.get(headers.network_offset.into()..).and_then(Inner::of);
    copy_ecn(outer.ok_or(MALFORMED)?, datagram)?;
    let start = start + ESP + IV;
    Ok(Some(Decapsulated {
        association,
        spi,
        start,
        length,
        ethertype,
    }))
}

/// Returns `true` if a UDP datagram fills its IP packet.
#[inline]
fn fills_its_packet(headers: &Headers, frame: &[u8]) -> bool {
    let transport = headers.transport(frame);
    let udp = transport.first_chunk::<UDP>();
    udp.is_some_and(|udp| usize::from(u16::from_be_bytes([udp[4], udp[5]])) == transport.len())
}

/// Copies congestion marks of the outer header to the inner packet (RFC 6040).
#[inline]
fn copy_ecn(outer: Inner, datagram: &mut [u8]) -> Result<(), u8> {
    let inner = Inner::of(datagram).ok_or(INNER_MALFORMED)?.class;
    let bits = decapsulated_ecn(outer.class, inner).ok_or(CONGESTION)?;
    if bits != inner & ECN {
        set_ecn(datagram, bits).ok_or(INNER_MALFORMED)?;
    }
    Ok(())
}

/// Returns the bytes of padding for an inner packet of this length.
#[inline]
fn padding(inner: usize) -> usize {
    (inner + TRAILER).next_multiple_of(ALIGNMENT) - inner - TRAILER
}

/// Returns the length of a packet once encapsulated with `outer` bytes of outer headers.
#[inline]
fn length_outside(outer: usize, headers: &Headers) -> usize {
    let inner = usize::from(headers.end - headers.network_offset);
    outer + ESP + IV + inner + padding(inner) + TRAILER + ICV
}

/// Encapsulates packet `i`, or returns a drop reason.
#[inline]
fn encapsulate(batch: &mut Batch, i: usize, leaving: &OutboundSa, sequence: u64) -> Result<(), u8> {
    let (packet, frame) = batch.packet_mut(i);
    let (link, end) = (
        usize::from(packet.headers.network_offset),
        usize::from(packet.headers.end),
    );
    let (inner, whole) = (end - link, packet.length());
    let seen = frame.get(link..end).and_then(Inner::of).ok_or(INNER_MALFORMED)?;
    let next = if packet.headers.network == Network::V4 {
        IPV4
    } else {
        IPV6
    };
    if whole > end {
        // Ethernet padding is cut off: bytes behind the packet become part of it.
        packet.headers.end = whole as u16;
        let _ = batch.shrink_back(i, whole - end);
    }
    let outer = &leaving.outer;
    let padding = padding(inner);
    let (front, back) = (outer.length + ESP + IV, padding + TRAILER + ICV);
    batch.grow_back(i, back).ok_or(NO_ROOM)?;
    let (packet, frame) = batch.grow_front(i, front).ok_or(NO_ROOM)?;
    // A copy of constant size covers the longest possible link header; the excess is overwritten later. The frame has
    // these bytes, since the inner packet is longer.
    const LINK: usize = ethernet::HEADER + MAX_VLAN_TAGS * TAG;
    let link_header: [u8; LINK] = *frame.get(front..).and_then(<[u8]>::first_chunk).ok_or(NO_ROOM)?;
    *frame.first_chunk_mut().ok_or(NO_ROOM)? = link_header;
    let (network, ethertype) = match outer.network {
        ipv4::HEADER => (Network::V4, ethertype::IPV4),
        _ => (Network::V6, ethertype::IPV6),
    };
    let (addresses, datagram) = frame.split_at_mut_checked(link).ok_or(NO_ROOM)?;
    *addresses.last_chunk_mut::<2>().ok_or(NO_ROOM)? = ethertype.to_be_bytes();
    let total = datagram.len();
    let (head, rest) = datagram.split_at_mut_checked(front).ok_or(NO_ROOM)?;
    outer.write(head, total as u16, seen, sequence as u16).ok_or(NO_ROOM)?;
    let iv = leaving.iv_base.wrapping_add(sequence).to_be_bytes();
    let esp = head.last_chunk_mut::<{ ESP + IV }>().ok_or(NO_ROOM)?;
    esp[..4].copy_from_slice(&leaving.spi.to_be_bytes());
    esp[4..8].copy_from_slice(&(sequence as u32).to_be_bytes());
    esp[8..].copy_from_slice(&iv);
    let (text, icv) = rest.split_last_chunk_mut::<ICV>().ok_or(NO_ROOM)?;
    let (_, trailer) = text.split_at_mut_checked(inner).ok_or(NO_ROOM)?;
    let (padded, last) = trailer.split_last_chunk_mut::<TRAILER>().ok_or(NO_ROOM)?;
    padded.iter_mut().zip(1..).for_each(|(byte, count)| *byte = count);
    *last = [padding as u8, next];
    leaving
        .sealer
        .seal(leaving.spi, sequence, iv, text, icv)
        .ok_or(NO_ROOM)?;
    if outer.wants_checksum() {
        outer.finish(datagram).ok_or(NO_ROOM)?;
    }
    packet.headers = Headers {
        network,
        fragment: Fragment::Whole,
        network_offset: link as u16,
        transport_offset: (link + outer.network) as u16,
        payload_offset: (link + outer.length) as u16,
        end: (link + total) as u16,
        key: outer.key,
    };
    Ok(())
}
