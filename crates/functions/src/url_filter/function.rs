//! The function: each packet's place in its stream, and what becomes of it.

use super::parser::{Event, Lookup, Parser};
use super::reassembly::{NoRoom, Pool, distance};
use super::service::{Action, FilterTable, Rest};
use super::table::UrlTable;
use crate::stock::{Lease, PLACE_BITS};
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;
use tailwater_api::Fate;
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{FlowStates, NetworkFunction, NewFlow};
use tailwater_chain::live::Version;
use tailwater_net::parse::Fragment;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, protocol};

/// A request's URL is blocked.
const URL_BLOCKED: u8 = 0;
/// The name in a ClientHello is blocked.
const SNI_BLOCKED: u8 = 1;
/// A later packet of a flow that was blocked.
const FLOW_BLOCKED: u8 = 2;
/// A packet that cannot be looked into for want of room, or because the request's framing is unclear.
const OVERFLOW: u8 = 3;
/// A fragment of a TCP segment.
const FRAGMENT: u8 = 4;

/// What the function notes of packets that pass; places in [`UrlFilter::notes`].
const NOTE_URL: usize = 0;
const NOTE_SNI: usize = 1;
const NOTE_CONFLICT: usize = 2;
const NOTE_OVERFLOW: usize = 3;
const NOTE_RESTART: usize = 4;

/// Not looked at: not TCP, or of a port that is not filtered.
const OFF: u8 = 0;
/// Nothing was seen yet.
const NEW: u8 = 1;
/// Looked at.
const LIVE: u8 = 2;
/// Nothing of interest can follow, until the connection is opened anew.
const DONE: u8 = 3;
/// Later packets are dropped.
const BLOCKED: u8 = 4;
/// Packets with the byte in front of [`Stream::next`] are dropped, others pass.
const HELD: u8 = 5;
/// As [`BLOCKED`], since the stream could not be followed.
const LOST: u8 = 6;
/// Fragments, which are dropped.
const FRAGMENTS: u8 = 7;

/// A flow's state.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct Stream {
    parser: Parser,
    /// Bytes from `next` on that are of no interest.
    skip: u64,
    /// The sequence number of the next byte to look at.
    next: u32,
    /// The sequence number of the SYN, or the one in front of the first byte seen.
    first: u32,
    /// The stream's [`Lease`]: the buffer's place, 0 for none, and above [`PLACE_BITS`] the upper bits
    /// of the generation. The stock is with the parser, where there is room.
    place: u32,
    generation: u16,
    status: u8,
    /// What is looked at by port, bits [`HTTP`] and [`TLS`]; [`NAMED`] and [`MIDSTREAM`].
    flags: u8,
}

// With the flow's version, a cache line.
const _: () = assert!(size_of::<Stream>() == 56);

const HTTP: u8 = 1;
const TLS: u8 = 2;
/// The flow is blocked for its server name.
const NAMED: u8 = 4;
/// The stream's start was not seen, and no request since.
const MIDSTREAM: u8 = 8;

/// What a segment led to.
enum Outcome {
    /// Nothing: it passes.
    Passes,
    /// Nothing that follows is of interest.
    Finished,
    /// A match: the reason to drop.
    Blocked(u8),
    /// There is no room now; there may be when the sender tries again.
    NoRoom,
    /// What follows cannot be told.
    Unclear,
}

/// Drops requests and TLS handshakes for hosts and URLs on a list.
#[derive(Debug)]
pub struct UrlFilter {
    table: Arc<FilterTable>,
    held: Arc<Version<UrlTable>>,
    pool: Pool,
    joined: Vec<u8>,
    notes: [u64; 5],
}

impl UrlFilter {
    /// A worker's instance.
    pub fn new(table: Arc<FilterTable>) -> UrlFilter {
        let config = table.config();
        UrlFilter {
            pool: Pool::new(Arc::clone(table.stock())),
            joined: Vec::with_capacity(config.buffer_bytes + super::normalize::MAX_HOST),
            notes: [0; 5],
            held: table.live().current(),
            table,
        }
    }

    /// Looks at a packet of a flow that is filtered.
    fn examine(&mut self, stream: &mut Stream, packet: &Packet, frame: &[u8]) -> Verdict {
        let verdict = self.judge(stream, packet, frame);
        self.pool.close(packet.arrival);
        verdict
    }

    /// As [`examine`](Self::examine); leaves the stream's buffer open.
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
            // Data on a SYN follows it (RFC 7413).
            sequence = sequence.wrapping_add(1);
        } else if stream.status == NEW {
            if payload.is_empty() {
                return Verdict::Forward;
            }
            // Its start was not seen.
            stream.start(sequence.wrapping_sub(1));
            stream.flags |= MIDSTREAM;
        }
        if stream.status != LIVE {
            return stream.settled(sequence, payload.len());
        }
        if let Some(lease) = stream.lease()
            && !self.pool.open(lease, sequence)
        {
            // It was silent for too long.
            return self.unclear(stream);
        }
        let mut verdict = Verdict::Forward;
        if !payload.is_empty() {
            let before = *stream;
            let mut outcome = self.advance(stream, sequence, payload, packet);
            if matches!(outcome, Outcome::Passes) {
                outcome = self.settle_buffer(stream, packet);
            }
            verdict = match outcome {
                Outcome::Passes => Verdict::Forward,
                // The rest of a request, for all that is known.
                Outcome::Finished if self.is_strict() && stream.flags & MIDSTREAM != 0 => self.unclear(stream),
                Outcome::Finished => {
                    self.release(stream);
                    stream.status = DONE;
                    Verdict::Forward
                }
                Outcome::Blocked(reason) => {
                    self.release(stream);
                    stream.flags |= if reason == SNI_BLOCKED { NAMED } else { 0 };
                    stream.status = match self.table.config().rest {
                        Rest::Drop => BLOCKED,
                        Rest::Pass => HELD,
                    };
                    return Verdict::Drop(reason);
                }
                Outcome::NoRoom if self.is_strict() => {
                    // The sender will try again: nothing of this segment was seen.
                    if before.lease().is_none() {
                        self.release(stream);
                        *stream = before;
                    }
                    return Verdict::Drop(OVERFLOW);
                }
                Outcome::NoRoom | Outcome::Unclear => self.unclear(stream),
            };
        }
        // The last byte before a FIN was looked at, or the receiver takes the RST (RFC 5961 §3).
        let end = sequence.wrapping_add(payload.len() as u32);
        let fin = flags.intersects(TcpFlags::FIN) && stream.skip == 0;
        if stream.status == LIVE && end == stream.next && (fin || flags.intersects(TcpFlags::RST)) {
            self.release(stream);
            stream.status = DONE;
        }
        verdict
    }

    /// A SYN: a stream starts, again perhaps. A verdict if there is nothing more to look at.
    fn open(&mut self, stream: &mut Stream, sequence: u32) -> Option<Verdict> {
        if stream.status == NEW {
            stream.start(sequence);
            return None;
        }
        if stream.first == sequence {
            return None;
        }
        // A receiver in the middle of a connection takes no SYN (RFC 5961 §4), so it could be there
        // to mislead: what it makes of the stream's next bytes is another request, or none. Wherever
        // its number lies: a second one can lead back.
        match stream.status {
            DONE => {}
            BLOCKED if self.is_strict() => return Some(Verdict::Drop(FLOW_BLOCKED)),
            _ if self.is_strict() => return Some(Verdict::Drop(OVERFLOW)),
            LIVE => self.notes[NOTE_RESTART] += 1,
            _ => {}
        }
        self.release(stream);
        stream.start(sequence);
        None
    }

    /// Whether nothing passes that cannot be looked into.
    fn is_strict(&self) -> bool {
        self.table.config().on_overflow == Fate::Drop
    }

    /// The stream can no longer be followed.
    fn unclear(&mut self, stream: &mut Stream) -> Verdict {
        self.release(stream);
        match self.table.config().on_overflow {
            Fate::Drop => {
                stream.status = LOST;
                Verdict::Drop(OVERFLOW)
            }
            Fate::Pass => {
                self.notes[NOTE_OVERFLOW] += 1;
                stream.status = DONE;
                Verdict::Forward
            }
        }
    }

    /// Reads what a segment adds to the stream, and keeps it if it comes too early.
    fn advance(&mut self, stream: &mut Stream, mut sequence: u32, mut data: &[u8], packet: &Packet) -> Outcome {
        if self.pool.conflicts(sequence, data) {
            self.notes[NOTE_CONFLICT] += 1;
        }
        loop {
            let seen = distance(stream.next, sequence).clamp(0, data.len() as i32) as usize;
            sequence = sequence.wrapping_add(seen as u32);
            data = &data[seen..];
            let kept = self.pool.stretches();
            if stream.skip > 0 {
                let end = kept
                    .last()
                    .map_or(stream.next, |last| last.start.wrapping_add(last.length));
                let mut known = i64::from(distance(end, stream.next));
                if !data.is_empty() {
                    let ahead = i64::from(distance(sequence, stream.next));
                    known = known.max(ahead + data.len() as i64);
                }
                let known = known.max(0) as u64;
                if known == 0 {
                    return Outcome::Passes;
                }
                let step = known.min(stream.skip);
                stream.skip -= step;
                stream.next = stream.next.wrapping_add(step as u32);
                self.pool.forget_before(stream.next);
                continue;
            }
            let gap = kept.first().map(|first| distance(first.start, stream.next));
            let ahead = distance(sequence, stream.next);
            let mut lookup = Lookup {
                table: &self.held.value,
                joined: &mut self.joined,
                port: packet.headers.key.destination_port(),
                http: stream.flags & HTTP != 0,
                tls: stream.flags & TLS != 0,
                begun: false,
            };
            // What came first counts: bytes kept go before those of the segment.
            let (used, event) = if gap == Some(0) {
                let Some((piece, mut text)) = self.pool.first() else {
                    return Outcome::Passes;
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
            self.pool.forget_before(stream.next);
            let (note, reason) = match event {
                Event::More => continue,
                Event::Skip(bytes) => {
                    stream.skip = bytes;
                    continue;
                }
                Event::Finished => return Outcome::Finished,
                Event::Unclear => return Outcome::Unclear,
                Event::Url => (NOTE_URL, URL_BLOCKED),
                Event::ServerName => (NOTE_SNI, SNI_BLOCKED),
            };
            if self.table.config().action == Action::Drop {
                return Outcome::Blocked(reason);
            }
            // A request is noted once, however many patterns it matches.
            self.notes[note] += u64::from(stream.parser.reported == 0);
            stream.parser.reported = 1;
        }
        if data.is_empty() {
            return Outcome::Passes;
        }
        if !self.pool.is_open() && self.take(stream, packet).is_err() {
            return Outcome::NoRoom;
        }
        match self.pool.keep(stream.next, sequence, data) {
            Ok(()) => Outcome::Passes,
            Err(NoRoom) => Outcome::NoRoom,
        }
    }

    /// Gives the stream a buffer if something has to be kept, takes it back if not.
    fn settle_buffer(&mut self, stream: &mut Stream, packet: &Packet) -> Outcome {
        let text = stream.parser.holds_text();
        if !self.pool.is_open() {
            if text && self.take(stream, packet).is_err() {
                return Outcome::NoRoom;
            }
        } else if !text && self.pool.stretches().is_empty() {
            self.release(stream);
        }
        Outcome::Passes
    }

    fn take(&mut self, stream: &mut Stream, packet: &Packet) -> Result<(), NoRoom> {
        let (target, host) = (stream.parser.target, stream.parser.host);
        let lease = self.pool.take(packet.arrival, target, host).ok_or(NoRoom)?;
        stream.set_lease(lease);
        Ok(())
    }

    /// Gives the stream's buffer back, if it has one.
    fn release(&mut self, stream: &mut Stream) {
        let Some(lease) = stream.lease() else {
            return;
        };
        // What is open is this stream's; else it may have lost its buffer.
        if self.pool.is_open() || self.pool.open(lease, stream.next) {
            self.pool.give();
        }
        stream.place = 0;
    }
}

impl Stream {
    /// The stream's right to a buffer, if it has one.
    #[inline]
    fn lease(&self) -> Option<Lease> {
        let place = self.place & ((1 << PLACE_BITS) - 1);
        (place != 0).then_some(Lease {
            place,
            generation: self.place >> PLACE_BITS << 16 | u32::from(self.generation),
            stock: self.parser.stock,
        })
    }

    fn set_lease(&mut self, lease: Lease) {
        self.place = lease.place | lease.generation >> 16 << PLACE_BITS;
        self.generation = lease.generation as u16;
        self.parser.stock = lease.stock;
    }

    /// A stream whose first byte follows `first`.
    fn start(&mut self, first: u32) {
        *self = Stream {
            first,
            next: first.wrapping_add(1),
            status: LIVE,
            flags: self.flags & (HTTP | TLS),
            ..Stream::default()
        };
    }

    /// The verdict on a segment of a flow that is not looked at any more.
    #[inline]
    fn settled(&self, sequence: u32, length: usize) -> Verdict {
        match self.status {
            BLOCKED => Verdict::Drop(FLOW_BLOCKED),
            LOST => Verdict::Drop(OVERFLOW),
            FRAGMENTS => Verdict::Drop(FRAGMENT),
            // The byte that completed the match, sent again.
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

/// Whether a TCP segment has its SYN flag set.
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

    fn notes(&self) -> &'static [&'static str] {
        &[
            "url-matched",
            "sni-matched",
            "overlap-conflict",
            "overflow-passed",
            "stream-restarted",
        ]
    }

    fn note_counts(&self) -> &[u64] {
        &self.notes
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
            } else if config.fragments == Fate::Drop {
                status = FRAGMENTS;
            }
        }
        let stream = flow.state::<Stream>();
        // A flow that is shown again stays where it is in its stream.
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

    fn wants_flow_ends(&self) -> bool {
        true
    }

    fn flow_ended(&mut self, _key: &FlowKey, state: &[u8]) {
        let mut stream: Stream = bytemuck::pod_read_unaligned(state);
        self.release(&mut stream);
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.table.live().refresh(&mut self.held);
        for i in 0..batch.len() {
            let (packet, frame) = batch.packet_mut(i);
            let stream = flows.state::<Stream>(packet);
            packet.verdict = match stream.status {
                OFF => continue,
                NEW | LIVE | HELD => self.examine(stream, packet, frame),
                FRAGMENTS => Verdict::Drop(FRAGMENT),
                // The connection may be over, and another one have its addresses and ports.
                _ if is_syn(packet, frame) => self.examine(stream, packet, frame),
                _ => stream.settled(0, 0),
            };
        }
    }
}
