//! The `UrlFilter` network function: position of each packet in its stream, and verdicts.

use super::lookup::{Lookup, Matched};
use super::reassembly::Pool;
use super::service::{Action, FilterTable, Rest};
use super::table::UrlTable;
use crate::stream_pool::{Lease, PLACE_BITS};
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;
use tailwater_api::PacketAction;
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{
    DurableState, Explanation, FlowEnds, FlowStates, NetworkFunction, NewFlow, TracedPacket,
};
use tailwater_chain::live::Version;
use tailwater_net::parse::Fragment;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, protocol};
use tailwater_streams::http::host::MAX_HOST;
use tailwater_streams::ring::NoRoom;
use tailwater_streams::sequence::distance;
use tailwater_streams::state::{Event, Parser};

/// Drop reason: a request's URL is blocked.
const URL_BLOCKED: u8 = 0;
/// Drop reason: the server name in a ClientHello is blocked.
const SNI_BLOCKED: u8 = 1;
/// Drop reason: a later packet of a blocked flow.
const FLOW_BLOCKED: u8 = 2;
/// Drop reason: a packet that cannot be inspected for lack of room, or because the request's framing is unclear.
const OVERFLOW: u8 = 3;
/// Drop reason: a fragment of a TCP segment.
const FRAGMENT: u8 = 4;

/// Counters of packets that pass; indices into [`UrlFilter::counters`].
const NOTE_URL: usize = 0;
const NOTE_SNI: usize = 1;
const NOTE_CONFLICT: usize = 2;
const NOTE_OVERFLOW: usize = 3;
const NOTE_RESTART: usize = 4;

/// Not inspected: not TCP, or not a filtered port.
const OFF: u8 = 0;
/// No packet inspected yet.
const NEW: u8 = 1;
/// Being inspected.
const LIVE: u8 = 2;
/// Nothing of interest can follow until a new connection is opened.
const DONE: u8 = 3;
/// Later packets are dropped.
const BLOCKED: u8 = 4;
/// Packets with the byte before [`Stream::next`] are dropped, others pass.
const HELD: u8 = 5;
/// Like [`BLOCKED`], because the stream could not be followed.
const LOST: u8 = 6;
/// Fragments, all dropped.
const FRAGMENTS: u8 = 7;

/// Flow state.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Stream {
    parser: Parser,
    /// Bytes from `next` on to skip.
    skip: u64,
    /// Sequence number of the next byte to inspect.
    next: u32,
    /// Sequence number of the SYN, or the one before the first byte seen.
    first: u32,
    /// The stream's [`Lease`]: the buffer's index, 0 for none, and above [`PLACE_BITS`] the upper bits of the
    /// generation. The number of the buffer pool is the parser's tag, where there is room.
    place: u32,
    generation: u16,
    status: u8,
    /// Protocols to inspect by port, bits [`HTTP`] and [`TLS`]; also [`NAMED`] and [`MIDSTREAM`].
    flags: u8,
}

// Together with the flow's version this is one cache line.
const _: () = assert!(size_of::<Stream>() == 56);

const HTTP: u8 = 1;
const TLS: u8 = 2;
/// Flag: the flow is blocked because of its server name.
const NAMED: u8 = 4;
/// Flag: the stream's start was not seen, and no request since.
const MIDSTREAM: u8 = 8;

/// Result of inspecting a segment.
enum StreamOutcome {
    /// The segment passes.
    Passes,
    /// Nothing of interest follows.
    Finished,
    /// Match, with the drop reason.
    Blocked(u8),
    /// No room at present; a retransmission may succeed.
    NoRoom,
    /// The rest of the stream cannot be interpreted.
    Unclear,
}

/// Network function that drops requests and TLS handshakes for listed hosts and URLs.
#[derive(Debug)]
pub struct UrlFilter {
    table: Arc<FilterTable>,
    cached_rules: Arc<Version<UrlTable>>,
    pub(super) pool: Pool,
    joined: Vec<u8>,
    matched: Matched,
    counters: [u64; 5],
}

impl UrlFilter {
    /// Creates a worker's instance.
    pub fn new(table: Arc<FilterTable>) -> UrlFilter {
        let config = table.config();
        UrlFilter {
            pool: Pool::new(Arc::clone(table.stream_pool())),
            joined: Vec::with_capacity(config.buffer_bytes + MAX_HOST),
            matched: Matched::default(),
            counters: [0; 5],
            cached_rules: table.live().current(),
            table,
        }
    }

    /// Inspects a packet of a filtered flow.
    fn examine(&mut self, stream: &mut Stream, packet: &Packet, frame: &[u8]) -> Verdict {
        let verdict = self.judge(stream, packet, frame);
        self.pool.close(packet.arrival);
        verdict
    }

    /// Like [`examine`](Self::examine), but leaves the stream's buffer open.
    fn judge(&mut self, stream: &mut Stream, packet: &Packet, frame: &[u8]) -> Verdict {
        let headers = &packet.headers;
        let Some(header) = headers.transport(frame).first_chunk::<20>() else {
            return Verdict::Forward;
        };
        let mut sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let flags = TcpFlags(header[13]);
        let payload = headers.payload(frame);
        if flags.intersects(TcpFlags::SYN) {
            if let Some(verdict) = self.open(stream, sequence) {
                return verdict;
            }
            // Data on a SYN starts one sequence number later (RFC 7413).
            sequence = sequence.wrapping_add(1);
        } else if stream.status == NEW {
            if payload.is_empty() {
                return Verdict::Forward;
            }
            // The stream's start was not seen.
            stream.start(sequence.wrapping_sub(1));
            stream.flags |= MIDSTREAM;
        }
        if stream.status != LIVE {
            return stream.settled(sequence, payload.len());
        }
        if let Some(lease) = stream.lease()
            && !self.pool.open(lease, sequence)
        {
            // The stream was idle for too long and lost its buffer.
            return self.unclear(stream);
        }
        let mut verdict = Verdict::Forward;
        if !payload.is_empty() {
            let before = *stream;
            let mut outcome = self.advance(stream, sequence, payload, packet);
            if matches!(outcome, StreamOutcome::Passes) {
                outcome = self.settle_buffer(stream, packet);
            }
            verdict = match outcome {
                StreamOutcome::Passes => Verdict::Forward,
                // This may be the rest of a request.
                StreamOutcome::Finished if self.is_strict() && stream.flags & MIDSTREAM != 0 => self.unclear(stream),
                StreamOutcome::Finished => {
                    self.release(stream);
                    stream.status = DONE;
                    Verdict::Forward
                }
                StreamOutcome::Blocked(reason) => {
                    self.release(stream);
                    stream.flags |= if reason == SNI_BLOCKED { NAMED } else { 0 };
                    stream.status = match self.table.config().rest {
                        Rest::Drop => BLOCKED,
                        Rest::Pass => HELD,
                    };
                    return Verdict::Drop(reason);
                }
                StreamOutcome::NoRoom if self.is_strict() => {
                    // The sender will retransmit: the stream is reset to its state before this segment.
                    if before.lease().is_none() {
                        self.release(stream);
                        *stream = before;
                    }
                    return Verdict::Drop(OVERFLOW);
                }
                StreamOutcome::NoRoom | StreamOutcome::Unclear => self.unclear(stream),
            };
        }
        // All bytes before the FIN were inspected, or the receiver accepts the RST (RFC 5961 §3).
        let end = sequence.wrapping_add(payload.len() as u32);
        let fin = flags.intersects(TcpFlags::FIN) && stream.skip == 0;
        if stream.status == LIVE && end == stream.next && (fin || flags.intersects(TcpFlags::RST)) {
            self.release(stream);
            stream.status = DONE;
        }
        verdict
    }

    /// Handles a SYN, which starts or restarts a stream. Returns a verdict if nothing is left to inspect.
    fn open(&mut self, stream: &mut Stream, sequence: u32) -> Option<Verdict> {
        if stream.status == NEW {
            stream.start(sequence);
            return None;
        }
        if stream.first == sequence {
            return None;
        }
        // A receiver does not accept a SYN within a connection (RFC 5961 §4), so this one may be an evasion: the
        // receiver would interpret the following bytes differently. The sequence number is no excuse, since a second
        // SYN could lead back.
        match stream.status {
            DONE => {}
            BLOCKED if self.is_strict() => return Some(Verdict::Drop(FLOW_BLOCKED)),
            _ if self.is_strict() => return Some(Verdict::Drop(OVERFLOW)),
            LIVE => self.counters[NOTE_RESTART] += 1,
            _ => {}
        }
        self.release(stream);
        stream.start(sequence);
        None
    }

    /// Returns `true` if packets that cannot be inspected are dropped.
    fn is_strict(&self) -> bool {
        self.table.config().on_overflow == PacketAction::Drop
    }

    /// Gives up a stream that can no longer be followed, and returns the packet's verdict.
    fn unclear(&mut self, stream: &mut Stream) -> Verdict {
        self.release(stream);
        match self.table.config().on_overflow {
            PacketAction::Drop => {
                stream.status = LOST;
                Verdict::Drop(OVERFLOW)
            }
            PacketAction::Pass => {
                self.counters[NOTE_OVERFLOW] += 1;
                stream.status = DONE;
                Verdict::Forward
            }
        }
    }

    /// Parses the new bytes of a segment, or buffers them if they are out of order.
    fn advance(&mut self, stream: &mut Stream, mut sequence: u32, mut data: &[u8], packet: &Packet) -> StreamOutcome {
        if self.pool.conflicts(sequence, data) {
            self.counters[NOTE_CONFLICT] += 1;
        }
        loop {
            let seen = distance(stream.next, sequence).clamp(0, data.len() as i32) as usize;
            sequence = sequence.wrapping_add(seen as u32);
            data = &data[seen..];
            let kept = self.pool.ranges();
            if stream.skip > 0 {
                let end = kept.last().map_or(stream.next, |last| last.end);
                let mut known = i64::from(distance(end, stream.next));
                if !data.is_empty() {
                    let ahead = i64::from(distance(sequence, stream.next));
                    known = known.max(ahead + data.len() as i64);
                }
                let known = known.max(0) as u64;
                if known == 0 {
                    return StreamOutcome::Passes;
                }
                let step = known.min(stream.skip);
                stream.skip -= step;
                stream.next = stream.next.wrapping_add(step as u32);
                self.pool.discard_before(stream.next);
                continue;
            }
            let gap = kept.first().map(|first| distance(first.start, stream.next));
            let ahead = distance(sequence, stream.next);
            let mut lookup = Lookup {
                table: &self.cached_rules.value,
                joined: &mut self.joined,
                port: packet.headers.key.destination_port(),
                http: stream.flags & HTTP != 0,
                tls: stream.flags & TLS != 0,
                begun: false,
                matched: &mut self.matched,
            };
            // The first copy of a byte counts: buffered bytes take precedence over the segment's.
            let (used, event) = if gap == Some(0) {
                let Some((piece, mut text)) = self.pool.first() else {
                    return StreamOutcome::Passes;
                };
                stream.parser.feed(piece, &mut text, &mut lookup)
            } else if ahead == 0 && !data.is_empty() {
                let end = gap.map_or(data.len(), |gap| data.len().min(gap as usize));
                let mut text = self.pool.text();
                stream.parser.feed(&data[..end], &mut text, &mut lookup)
            } else {
                break;
            };
            if lookup.begun {
                stream.flags &= !MIDSTREAM;
            }
            stream.next = stream.next.wrapping_add(used as u32);
            self.pool.discard_before(stream.next);
            let (note, reason) = match event {
                Event::More => continue,
                Event::Skip(bytes) => {
                    stream.skip = bytes;
                    continue;
                }
                Event::Finished => return StreamOutcome::Finished,
                Event::Unclear => return StreamOutcome::Unclear,
                Event::Url => (NOTE_URL, URL_BLOCKED),
                Event::ServerName => (NOTE_SNI, SNI_BLOCKED),
            };
            self.matched.packet = Some((packet.arrival, packet.rss_hash));
            if self.table.config().action == Action::Drop {
                return StreamOutcome::Blocked(reason);
            }
            // A request is counted once, however many patterns it matches.
            self.counters[note] += u64::from(stream.parser.reported == 0);
            stream.parser.reported = 1;
        }
        if data.is_empty() {
            return StreamOutcome::Passes;
        }
        if !self.pool.is_open() && self.take(stream, packet).is_err() {
            return StreamOutcome::NoRoom;
        }
        match self.pool.insert(stream.next, sequence, data) {
            Ok(()) => StreamOutcome::Passes,
            Err(NoRoom) => StreamOutcome::NoRoom,
        }
    }

    /// Takes a buffer for the stream if bytes must be kept, and releases it otherwise.
    fn settle_buffer(&mut self, stream: &mut Stream, packet: &Packet) -> StreamOutcome {
        let text = stream.parser.holds_text();
        if !self.pool.is_open() {
            if text && self.take(stream, packet).is_err() {
                return StreamOutcome::NoRoom;
            }
        } else if !text && self.pool.ranges().is_empty() {
            self.release(stream);
        }
        StreamOutcome::Passes
    }

    fn take(&mut self, stream: &mut Stream, packet: &Packet) -> Result<(), NoRoom> {
        let (target, host) = (stream.parser.target, stream.parser.host);
        let lease = self.pool.take(packet.arrival, target, host).ok_or(NoRoom)?;
        stream.set_lease(lease);
        Ok(())
    }

    /// Releases the stream's buffer, if it has one.
    fn release(&mut self, stream: &mut Stream) {
        let Some(lease) = stream.lease() else {
            return;
        };
        // An open buffer is this stream's; a closed one may have gone to another stream.
        if self.pool.is_open() || self.pool.open(lease, stream.next) {
            self.pool.release();
        }
        stream.place = 0;
    }
}

impl Stream {
    /// Returns the stream's lease of a buffer, if it has one.
    #[inline]
    pub(super) fn lease(&self) -> Option<Lease> {
        let place = self.place & ((1 << PLACE_BITS) - 1);
        (place != 0).then_some(Lease {
            slot: place,
            generation: self.place >> PLACE_BITS << 16 | u32::from(self.generation),
            pool: self.parser.tag,
        })
    }

    pub(super) fn set_lease(&mut self, lease: Lease) {
        self.place = lease.slot | lease.generation >> 16 << PLACE_BITS;
        self.generation = lease.generation as u16;
        self.parser.tag = lease.pool;
    }

    /// Gives the stream a lease that no pool but another than that of this number has: its buffer counts as lost.
    pub(super) fn lose_lease(&mut self, pool: u32) {
        self.set_lease(Lease {
            slot: 1,
            generation: 0,
            pool: pool.wrapping_add(1),
        });
    }

    /// Restarts the stream; its first byte follows sequence number `first`.
    fn start(&mut self, first: u32) {
        *self = Stream {
            first,
            next: first.wrapping_add(1),
            status: LIVE,
            flags: self.flags & (HTTP | TLS),
            ..Stream::default()
        };
    }

    /// Returns the verdict on a segment of a flow no longer inspected.
    #[inline]
    fn settled(&self, sequence: u32, length: usize) -> Verdict {
        match self.status {
            BLOCKED => Verdict::Drop(FLOW_BLOCKED),
            LOST => Verdict::Drop(OVERFLOW),
            FRAGMENTS => Verdict::Drop(FRAGMENT),
            // Retransmission of the byte that completed the match.
            HELD if distance(self.next, sequence) > 0 && distance(self.next, sequence) <= length as i32 => {
                Verdict::Drop(if self.flags & NAMED != 0 {
                    SNI_BLOCKED
                } else {
                    URL_BLOCKED
                })
            }
            _ => Verdict::Forward,
        }
    }
}

/// Returns `true` if a TCP segment has its SYN flag set.
#[inline]
fn is_syn(packet: &Packet, frame: &[u8]) -> bool {
    let flags = frame.get(usize::from(packet.headers.transport_offset) + 13);
    flags.is_some_and(|&flags| flags & TcpFlags::SYN.0 != 0)
}

impl NetworkFunction for UrlFilter {
    fn kind(&self) -> &'static str {
        "UrlFilter"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["url-blocked", "sni-blocked", "flow-blocked", "overflow", "fragment"]
    }

    fn counters(&self) -> &'static [&'static str] {
        &[
            "url-matched",
            "sni-matched",
            "overlap-conflict",
            "overflow-passed",
            "stream-restarted",
        ]
    }

    fn counter_values(&self) -> &[u64] {
        &self.counters
    }

    fn state_bytes(&self) -> usize {
        size_of::<Stream>()
    }

    fn new_flow(&mut self, packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        let config = self.table.config();
        let key = &packet.headers.key;
        let (mut status, mut protocols) = (OFF, 0);
        if key.protocol() == protocol::TCP {
            if packet.headers.fragment == Fragment::Whole {
                let port = key.destination_port();
                protocols = if config.http_ports.contain(port) { HTTP } else { 0 }
                    | if config.tls_ports.contain(port) { TLS } else { 0 };
                if protocols != 0 {
                    status = NEW;
                }
            } else if config.fragments == PacketAction::Drop {
                status = FRAGMENTS;
            }
        }
        let stream = flow.state::<Stream>();
        // A known flow keeps its position in the stream.
        if status != NEW || stream.status == OFF || stream.flags & (HTTP | TLS) != protocols {
            self.release(stream);
            *stream = Stream {
                status,
                flags: protocols,
                ..Stream::default()
            };
        }
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.table.live().refresh(&mut self.cached_rules);
        for i in 0..batch.len() {
            let (packet, frame) = batch.packet_mut(i);
            let stream = flows.state::<Stream>(packet);
            packet.verdict = match stream.status {
                OFF => continue,
                NEW | LIVE | HELD => self.examine(stream, packet, frame),
                FRAGMENTS => Verdict::Drop(FRAGMENT),
                // The connection may have ended, and a new one uses the same addresses and ports.
                _ if is_syn(packet, frame) => self.examine(stream, packet, frame),
                _ => stream.settled(0, 0),
            };
        }
    }

    fn explain(&self, traced: &TracedPacket<'_>, flows: &mut FlowStates<'_>, text: &mut Explanation) {
        let packet = traced.packet();
        if self.matched.packet == Some((packet.arrival, packet.rss_hash)) {
            let (name, goes_on) = self.matched.name();
            let dots = if goes_on { "..." } else { "" };
            return text.add(format_args!("a pattern matches {name}{dots}"));
        }
        let status = match flows.state::<Stream>(packet).status {
            OFF => "not a filtered port",
            NEW => "stream with no data yet",
            LIVE => "stream inspected, no match so far",
            DONE => "stream needs no more inspection",
            BLOCKED | HELD => "stream blocked by an earlier match",
            LOST => "stream could not be followed",
            _ => "fragment",
        };
        text.add(format_args!("{status}"));
    }

    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        Some(self)
    }

    fn portable(&mut self) -> Option<&mut dyn DurableState> {
        Some(self)
    }
}

impl FlowEnds for UrlFilter {
    fn flow_ended(&mut self, _key: &FlowKey, state: &[u8]) {
        let mut stream: Stream = bytemuck::pod_read_unaligned(state);
        self.release(&mut stream);
    }
}
