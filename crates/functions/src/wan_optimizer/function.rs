//! The `WanOptimizer` network function.

use super::decoder::{Lost, Missing};
use super::encoder::Encoder;
use super::header::{self, Content, Message, Unreadable};
use super::table::{Lease, Ports, WanTable};
use super::{LINE, MAX_CONTENT};
use crate::ipsec::headers::{ECN, Inner, Outer, decapsulated_ecn, set_ecn};
use crate::upf::answer;
use ipnet::IpNet;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Verdict};
use tailwater_chain::function::{Explanation, FlowStates, FunctionProperties, NetworkFunction, TracedPacket};
use tailwater_chain::live::Version;
use tailwater_net::parse::{Fragment, Headers, Network, parse};
use tailwater_net::protocol::ethertype;
use tailwater_net::{FlowKey, ipv4};

/// Drop reason: the tunnel packet is inconsistent.
const MALFORMED: u8 = 0;
/// Drop reason: unknown version of the header.
const VERSION: u8 = 1;
/// Drop reason: a fragment.
const FRAGMENT: u8 = 2;
/// Drop reason: the restored content is not an IP packet.
const INNER_MALFORMED: u8 = 3;
/// Drop reason: congestion was marked on the path, and the inner packet is not ECN-capable (RFC 6040).
const CONGESTION: u8 = 4;
/// Drop reason: a request of the remote end, which was applied.
const REQUEST: u8 = 5;
/// Drop reason: a request for an epoch that has ended.
const STALE: u8 = 6;
/// Drop reason: the buffer has no room for the resulting packet.
const NO_ROOM: u8 = 7;

// Indices of the counters.
const ENCODED: usize = 0;
const ENCODED_IN: usize = 1;
const ENCODED_OUT: usize = 2;
const SHORTENED: usize = 3;
const SMALL: usize = 4;
const TOO_BIG: usize = 5;
const NO_STREAM: usize = 6;
const DECODED: usize = 7;
const DECODED_IN: usize = 8;
const DECODED_OUT: usize = 9;
const MISSING: usize = 10;
const DAMAGED: usize = 11;
const COUNTERS: &[&str] = &[
    "encoded",
    "encoded-bytes-in",
    "encoded-bytes-out",
    "shortened",
    "small",
    "too-big",
    "no-stream",
    "decoded",
    "decoded-bytes-in",
    "decoded-bytes-out",
    "missing",
    "damaged",
];

/// Network function at one end of a redundancy-eliminating tunnel: encodes packets to the remote end, and restores
/// those from it.
pub struct WanOptimizer {
    table: Arc<WanTable>,
    destinations: Arc<Version<Vec<IpNet>>>,
    /// Encoder with its stream, if one was free. The lease is released after the encoder is dropped.
    encoder: Option<(Encoder, Lease)>,
    missing: Missing,
    /// A datagram's payload, or restored content.
    scratch: Box<[u8]>,
    counts: [u64; COUNTERS.len()],
}

/// Scratch size in bytes: content without any match has the longest encoding.
const SCRATCH: usize = (MAX_CONTENT + header::HEADER).next_multiple_of(LINE);

impl WanOptimizer {
    /// Creates a worker's instance. It leases a stream for its lifetime.
    pub fn new(table: Arc<WanTable>) -> WanOptimizer {
        let encoder = table.lease().map(|lease| {
            let outbound = Arc::clone(table.outbound(lease.stream));
            let fingerprints = table.options().fingerprints;
            let encoder = Encoder::new(outbound, fingerprints);
            (encoder, lease)
        });
        WanOptimizer {
            destinations: table.destinations().current(),
            table,
            encoder,
            missing: Missing::new(),
            scratch: vec![0; SCRATCH].into(),
            counts: [0; COUNTERS.len()],
        }
    }

    #[inline]
    fn goes_there(&self, key: &FlowKey) -> bool {
        let destination = key.destination();
        let mut prefixes = self.destinations.value.iter();
        prefixes.any(|prefix| prefix.contains(&destination))
    }

    /// Encodes packet `i` and sends it through the tunnel, unless it is too small, too big, or there is no stream.
    fn outbound(&mut self, batch: &mut Batch, i: usize) -> Result<(), u8> {
        let Some((encoder, lease)) = &mut self.encoder else {
            self.counts[NO_STREAM] += 1;
            return Ok(());
        };
        let outer = self.table.outer(lease.stream);
        let (packet, frame) = batch.packet_mut(i);
        let headers = &packet.headers;
        if headers.payload(frame).len() < self.table.options().minimum.into() {
            self.counts[SMALL] += 1;
            return Ok(());
        }
        let content = headers.datagram(frame);
        let inner = Inner::of(content).ok_or(INNER_MALFORMED)?;
        let from = headers.payload_offset.saturating_sub(headers.network_offset);
        let coded = encoder.plan(content, from.into());
        if outer.length + coded > usize::from(self.table.options().mtu) {
            self.counts[TOO_BIG] += 1;
            return Ok(());
        }
        let whole = content.len();
        encoder.write(content, &mut self.scratch).ok_or(NO_ROOM)?;
        wrap(batch, i, (outer, inner), &self.scratch[..coded])?;
        self.counts[ENCODED] += 1;
        self.counts[ENCODED_IN] += whole as u64;
        self.counts[ENCODED_OUT] += (outer.length + coded) as u64;
        self.counts[SHORTENED] += u64::from(outer.length + coded < whole);
        Ok(())
    }

    /// Handles packet `i`, which has the tunnel's ports: restores content or applies a request.
    fn inbound(&mut self, batch: &mut Batch, i: usize, ports: Ports) -> Result<(), u8> {
        let (packet, frame) = batch.packet_mut(i);
        let headers = packet.headers;
        if headers.fragment != Fragment::Whole {
            return Err(FRAGMENT);
        }
        let transport = headers.transport(frame);
        let length = transport.get(4..6).ok_or(MALFORMED)?;
        if length != (transport.len() as u16).to_be_bytes() {
            return Err(MALFORMED);
        }
        let message = header::parse(headers.payload(frame)).map_err(|why| match why {
            Unreadable::Malformed => MALFORMED,
            Unreadable::Version => VERSION,
        })?;
        let content = match message {
            Message::Content(content) => content,
            Message::Request(request) => {
                let stream = ports.request.ok_or(MALFORMED)?;
                let heeded = self.table.outbound(stream).apply_request(&request);
                return Err(if heeded { REQUEST } else { STALE });
            }
        };
        let stream = ports.content.ok_or(MALFORMED)?;
        let decoder = self.table.inbound(stream);
        let restored = decoder.restore(&content, &mut self.scratch, &mut self.missing);
        let Content { epoch, length, .. } = content;
        match restored {
            Ok(()) => {}
            Err(lost) => return self.send_request(batch, i, (stream, epoch), lost),
        }
        let outer = Inner::of(headers.datagram(frame)).ok_or(MALFORMED)?;
        let came = headers.datagram(frame).len();
        let datagram = &mut self.scratch[..length.into()];
        let inner = Inner::of(datagram).ok_or(INNER_MALFORMED)?;
        let bits = decapsulated_ecn(outer.class, inner.class).ok_or(CONGESTION)?;
        if bits != inner.class & ECN {
            set_ecn(datagram, bits).ok_or(INNER_MALFORMED)?;
        }
        let kind = match datagram.first().map_or(0, |first| first >> 4) {
            4 => ethertype::IPV4,
            6 => ethertype::IPV6,
            _ => return Err(INNER_MALFORMED),
        };
        replace(batch, i, kind, datagram.len())?.copy_from_slice(datagram);
        let (packet, frame) = batch.packet_mut(i);
        packet.headers = parse(frame).map_err(|_| INNER_MALFORMED)?;
        self.counts[DECODED] += 1;
        self.counts[DECODED_IN] += came as u64;
        self.counts[DECODED_OUT] += u64::from(length);
        Ok(())
    }

    /// Turns packet `i`, whose content could not be restored, into a request to the encoder: avoid the missing lines,
    /// or start a new epoch.
    fn send_request(
        &mut self,
        batch: &mut Batch,
        i: usize,
        (stream, epoch): (usize, u32),
        lost: Lost,
    ) -> Result<(), u8> {
        let decoder = self.table.inbound(stream);
        let note = match lost {
            Lost::Missing => MISSING,
            Lost::Damaged => DAMAGED,
        };
        self.counts[note] += 1;
        let numbers = [epoch, decoder.since(epoch), decoder.lines()];
        let ranges = self.missing.ranges();
        let reset = lost == Lost::Damaged;
        let length = header::write_request(&mut self.scratch, numbers, reset, ranges);
        let request = &self.scratch[..length.ok_or(NO_ROOM)?];
        let port = self.table.options().port;
        let to = port + stream as u16;
        answer::datagram(batch, i, [port, to], request).ok_or(NO_ROOM)
    }
}

/// Resizes the IP packet of packet `i`, and returns its bytes for writing.
fn replace(batch: &mut Batch, i: usize, kind: u16, length: usize) -> Result<&mut [u8], u8> {
    answer::resize(batch, i, length).ok_or(NO_ROOM)?;
    let (packet, frame) = batch.packet_mut(i);
    let link = usize::from(packet.headers.network_offset);
    let (link, datagram) = frame.split_at_mut_checked(link).ok_or(NO_ROOM)?;
    *link.last_chunk_mut::<2>().ok_or(NO_ROOM)? = kind.to_be_bytes();
    Ok(datagram)
}

/// Turns packet `i` into a tunnel datagram with this payload. `inner` holds fields copied from the inner packet.
fn wrap(batch: &mut Batch, i: usize, (outer, inner): (&Outer, Inner), payload: &[u8]) -> Result<(), u8> {
    let (network, kind) = match outer.network {
        ipv4::HEADER => (Network::V4, ethertype::IPV4),
        _ => (Network::V6, ethertype::IPV6),
    };
    let total = outer.length + payload.len();
    let datagram = replace(batch, i, kind, total)?;
    let (_, room) = datagram.split_at_mut_checked(outer.length).ok_or(NO_ROOM)?;
    room.copy_from_slice(payload);
    // "Don't fragment" is set, so no identification is needed (RFC 6864).
    outer.write(datagram, total as u16, inner, 0).ok_or(NO_ROOM)?;
    if outer.wants_checksum() {
        outer.finish(datagram).ok_or(NO_ROOM)?;
    }
    let (packet, _) = batch.packet_mut(i);
    let link = packet.headers.network_offset;
    packet.headers = Headers {
        network,
        fragment: Fragment::Whole,
        network_offset: link,
        transport_offset: link + outer.network as u16,
        payload_offset: link + outer.length as u16,
        end: link + total as u16,
        key: outer.key,
    };
    Ok(())
}

impl NetworkFunction for WanOptimizer {
    fn kind(&self) -> &'static str {
        "WanOptimizer"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &[
            "malformed",
            "version",
            "fragment",
            "inner-malformed",
            "congestion",
            "request",
            "stale-request",
            "no-room",
        ]
    }

    fn is_loss(&self, reason: u8) -> bool {
        reason == NO_ROOM
    }

    fn counters(&self) -> &'static [&'static str] {
        COUNTERS
    }

    fn counter_values(&self) -> &[u64] {
        &self.counts
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            mixes_flows: true,
            ..FunctionProperties::default()
        }
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        self.table.destinations().refresh(&mut self.destinations);
        if let Some((encoder, _)) = &mut self.encoder
            && encoder.refresh()
        {
            encoder.begin(self.table.new_epoch());
            encoder.refresh();
        }
        for i in 0..batch.len() {
            let key = batch.packet(i).headers.key;
            let done = match self.table.ports_of(&key) {
                Some(ports) => self.inbound(batch, i, ports),
                None if self.goes_there(&key) => self.outbound(batch, i),
                None => Ok(()),
            };
            if let Err(reason) = done {
                batch.packet_mut(i).0.verdict = Verdict::Drop(reason);
            }
        }
    }
    fn explain(&self, traced: &TracedPacket<'_>, _: &mut FlowStates<'_>, text: &mut Explanation) {
        match self.table.ports_of(&traced.key) {
            Some(ports) => explain_inbound(ports, traced, text),
            None if self.goes_there(&traced.key) => self.explain_outbound(traced, text),
            None => text.add(format_args!("not behind the remote end")),
        }
    }
}

impl WanOptimizer {
    fn explain_outbound(&self, traced: &TracedPacket<'_>, text: &mut Explanation) {
        let Some((_, lease)) = &self.encoder else {
            return text.add(format_args!("no stream is free, not encoded"));
        };
        let headers = &traced.packet().headers;
        let payload = headers.payload(traced.frame());
        if matches!(traced.packet().verdict, Verdict::Drop(_)) {
            return text.add(format_args!("stream {}", lease.stream));
        }
        let minimum = self.table.options().minimum;
        match header::parse(payload) {
            Ok(Message::Content(content)) if headers.key != traced.key => {
                let found = usize::from(content.length) - content.literals.len();
                text.add(format_args!(
                    "stream {}, {found} of {} bytes in the cache, in {} regions",
                    lease.stream,
                    content.length,
                    content.regions().len()
                ));
            }
            _ if payload.len() < minimum.into() => {
                text.add(format_args!("payload of {} bytes, minimum {minimum}", payload.len()));
            }
            _ => text.add(format_args!("encoded longer than mtu {}", self.table.options().mtu)),
        }
    }
}

fn explain_inbound(ports: Ports, traced: &TracedPacket<'_>, text: &mut Explanation) {
    let packet = traced.packet();
    match packet.verdict {
        Verdict::Drop(REQUEST) => return text.add(format_args!("request of the remote end, applied")),
        Verdict::Drop(STALE) => return text.add(format_args!("request of the remote end for an epoch that has ended")),
        Verdict::Drop(_) => return text.add(format_args!("from the remote end")),
        _ => {}
    }
    text.add(format_args!("stream {}", ports.content.unwrap_or_default()));
    match header::parse(packet.headers.payload(traced.frame())) {
        Ok(Message::Request(request)) if packet.turns_back() => match request.reset {
            true => text.add_part(format_args!("wrong checksum, a new epoch is requested")),
            false => {
                let lines: u32 = request.ranges().map(|[_, count]| count).sum();
                text.add_part(format_args!(
                    "not in the cache, a request to avoid {lines} lines is sent"
                ));
            }
        },
        _ => {
            let length = packet.headers.datagram(traced.frame()).len();
            text.add_part(format_args!("{length} bytes restored"));
        }
    }
}
