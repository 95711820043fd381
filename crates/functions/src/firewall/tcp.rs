//! State of a TCP connection as observed between its two ends. It decides whether a segment can belong to the
//! connection.
//!
//! The bounds on sequence and acknowledgment numbers are those of van Rooij, "Real stateful TCP packet filtering in IP
//! Filter" (2001). They use three values for each end: the highest number it has sent, the highest number it may send,
//! and the largest window it has announced. The second follows from the peer's acknowledgment and window. A reset ends
//! the connection only where a receiver would accept it (RFC 5961 §3.2).

use bytemuck::{Pod, Zeroable};
use tailwater_net::tcp::TcpFlags;

/// Maximum lag of acknowledgments if windows are small: enough for two segments of 64 KiB.
const ACK_LAG: u32 = 66_000;
/// Maximum window scale (RFC 7323 §2.3).
const MOST_SHIFT: u8 = 14;

/// State of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Side {
    /// Sequence number after the last sent byte.
    end: u32,
    /// Sequence number after the last byte that may be sent.
    limit: u32,
    /// Largest announced window.
    window: u32,
    /// Sequence number acknowledged by the peer.
    acked: u32,
}

/// State of a TCP connection. Index 0 is the initiator, index 1 the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Tcp {
    sides: [Side; 2],
    /// Progress of each end: flags from [`SYN`] to [`FIN_ACKED`], [`RESET`] and [`LOOSE`].
    marks: [u8; 2],
    /// Window scale of each end. Contains [`SCALE_OFFERED`] until the responder has answered.
    shifts: [u8; 2],
}

const SYN: u8 = 1;
const SYN_ACKED: u8 = 2;
const FIN: u8 = 4;
const FIN_ACKED: u8 = 8;
/// Mark: the end's last sequence number is unknown, because the connection was picked up in midstream. [`Side::end`] is
/// an upper bound.
const LOOSE: u8 = 32;
/// Mark: the end has reset the connection.
const RESET: u8 = 16;
/// Flag in a window scale: the SYN had the option.
const SCALE_OFFERED: u8 = 0x80;

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A SYN was sent and not answered.
    SynSent,
    /// Both ends have sent a SYN, but not both are acknowledged.
    SynReceived,
    Established,
    /// At least one end has sent a FIN, and not both are acknowledged.
    Closing,
    /// Both FINs are acknowledged.
    TimeWait,
    /// The connection was reset.
    Closed,
}

/// Fields of a segment that the state machine uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) flags: TcpFlags,
    pub(super) sequence: u32,
    pub(super) acknowledgment: u32,
    pub(super) window: u16,
    /// Bytes of payload.
    pub(super) length: u32,
    /// Window scale option of a SYN.
    pub(super) shift: Option<u8>,
}

/// Relation of a segment to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentVerdict {
    /// The segment belongs to the connection.
    Fits,
    /// The segment passes and changes nothing. Such segments let ends resynchronise after a loss of state.
    Tolerated,
    /// The segment is outside the bounds.
    OutOfWindow,
    /// A reset that the receiver would not, or should not, accept.
    ResetOutOfWindow,
    /// The flags are invalid for the connection.
    Flags,
    /// The segment opens a new connection between the same ports. The old one is over.
    Reopens,
}

/// Returns `true` if `a` comes after `b` in the cyclic sequence space (RFC 9293 §3.4).
fn after(a: u32, b: u32) -> bool {
    (b.wrapping_sub(a) as i32) < 0
}

fn later(a: u32, b: u32) -> u32 {
    if after(a, b) { a } else { b }
}

impl Segment {
    fn has(&self, flag: TcpFlags) -> bool {
        self.flags.contains(flag)
    }

    /// Returns the sequence number after the segment.
    fn end(&self) -> u32 {
        let controls = u32::from(self.has(TcpFlags::SYN)) + u32::from(self.has(TcpFlags::FIN));
        self.sequence.wrapping_add(self.length).wrapping_add(controls)
    }

    /// Returns `true` for flags that a TCP can send (RFC 9293 §3.10). At most one of SYN, FIN and RST is set. All
    /// segments but a first SYN and a reset have an acknowledgment.
    pub(super) fn makes_sense(&self) -> bool {
        let [syn, fin, reset, ack] =
            [TcpFlags::SYN, TcpFlags::FIN, TcpFlags::RST, TcpFlags::ACK].map(|flag| self.has(flag));
        u8::from(syn) + u8::from(fin) + u8::from(reset) <= 1 && (syn || reset || ack)
    }

    /// Returns `true` for the first segment of a connection.
    pub(super) fn opens(&self) -> bool {
        self.makes_sense() && self.has(TcpFlags::SYN) && !self.has(TcpFlags::ACK)
    }

    /// Returns `true` if a connection can be picked up in midstream with this segment.
    pub(super) fn continues(&self) -> bool {
        let not = self.has(TcpFlags::SYN) || self.has(TcpFlags::RST);
        self.makes_sense() && !not
    }
}

impl Side {
    /// Returns the state of an end after its SYN.
    fn opened(segment: &Segment) -> Side {
        Side {
            end: segment.end(),
            limit: segment.end(),
            window: u32::from(segment.window).max(1),
            acked: segment.sequence,
        }
    }
}

impl Tcp {
    /// Returns the state of a connection after its first SYN.
    pub(super) fn opened(segment: &Segment) -> Tcp {
        let mut tcp = Tcp::zeroed();
        tcp.sides[0] = Side::opened(segment);
        tcp.marks[0] = SYN;
        tcp.shifts[0] = segment.shift.map_or(0, |shift| SCALE_OFFERED | shift.min(MOST_SHIFT));
        tcp
    }

    /// Picks up a connection in midstream, with a segment whose sender counts as the initiator. The window scales are
    /// unknown. The maximum is assumed, so that no segment of the connection is rejected.
    pub(super) fn picked_up(segment: &Segment) -> Tcp {
        let window = u32::from(u16::MAX) << MOST_SHIFT;
        // Half a window may have been sent before, or may be sent again.
        let side = |end: u32, acked| Side {
            end: end.wrapping_add(window / 2),
            limit: end.wrapping_add(window),
            window,
            acked,
        };
        let acknowledged = segment.acknowledgment;
        let mut tcp = Tcp {
            sides: [side(segment.end(), segment.sequence), side(acknowledged, acknowledged)],
            marks: [SYN | SYN_ACKED | LOOSE; 2],
            shifts: [MOST_SHIFT; 2],
        };
        tcp.advance(0, segment);
        tcp
    }

    pub(super) fn phase(&self) -> Phase {
        let [a, b] = self.marks;
        let both = a & b;
        match () {
            () if (a | b) & RESET != 0 => Phase::Closed,
            () if both & FIN_ACKED != 0 => Phase::TimeWait,
            () if (a | b) & FIN != 0 => Phase::Closing,
            () if both & SYN_ACKED != 0 => Phase::Established,
            () if both & SYN != 0 => Phase::SynReceived,
            () => Phase::SynSent,
        }
    }

    /// Processes a segment of the initiator (0) or the responder (1). Only a segment that [fits](SegmentVerdict::Fits)
    /// changes the state.
    pub(super) fn take(&mut self, from: usize, segment: &Segment) -> SegmentVerdict {
        if !segment.makes_sense() {
            return SegmentVerdict::Flags;
        }
        if segment.has(TcpFlags::RST) {
            return self.reset(from, segment);
        }
        let to = 1 - from;
        let (seen, answered) = (self.marks[from] & SYN != 0, self.marks[to] & SYN != 0);
        let (syn, ack) = (segment.has(TcpFlags::SYN), segment.has(TcpFlags::ACK));
        if syn && !ack && matches!(self.phase(), Phase::TimeWait | Phase::Closed) {
            return SegmentVerdict::Reopens;
        }
        if syn && !seen {
            return self.answer(from, segment);
        }
        if syn && !ack {
            // A retransmission or a new start: an end that has lost its state begins at any sequence number.
            return match (from, answered) {
                (0, false) => {
                    if segment.end() != self.sides[0].end {
                        *self = Tcp::opened(segment);
                    }
                    SegmentVerdict::Fits
                }
                (0, true) => SegmentVerdict::Tolerated,
                _ if segment.end() == self.sides[1].end => SegmentVerdict::Tolerated,
                _ => SegmentVerdict::Flags,
            };
        }
        if !seen {
            // The responder acknowledges an old connection, which the initiator then resets (RFC 9293 §3.5.1).
            let bare = segment.length == 0 && !segment.has(TcpFlags::FIN);
            return match bare {
                true => SegmentVerdict::Tolerated,
                false => SegmentVerdict::OutOfWindow,
            };
        }
        if !answered || !self.fits(from, segment) {
            return SegmentVerdict::OutOfWindow;
        }
        self.advance(from, segment);
        SegmentVerdict::Fits
    }

    /// Returns `true` if a segment lies within the bounds. The receiver must have room for its data, which may not be
    /// too old. The acknowledgment must refer to sent data and may not be too old.
    fn fits(&self, from: usize, segment: &Segment) -> bool {
        let (me, peer) = (&self.sides[from], &self.sides[1 - from]);
        let end = segment.end();
        let lag = me.window.max(ACK_LAG);
        !after(end, me.limit)
            && !after(me.end.wrapping_sub(peer.window), segment.sequence)
            && !after(segment.acknowledgment, peer.end)
            && !after(peer.end.wrapping_sub(lag), segment.acknowledgment)
            // After an acknowledged FIN, an end sends nothing new.
            && (self.marks[from] & FIN_ACKED == 0 || !after(end, me.end))
    }

    /// Updates the state with a segment that fits.
    fn advance(&mut self, from: usize, segment: &Segment) {
        let to = 1 - from;
        let shift = match segment.has(TcpFlags::SYN) {
            true => 0,
            false => self.shifts[from] & !SCALE_OFFERED,
        };
        let window = u32::from(segment.window) << shift;
        let acknowledged = segment.acknowledgment;
        let (me, marks) = (&mut self.sides[from], &mut self.marks[from]);
        let end = segment.end();
        if after(end, me.end) {
            me.end = end;
            // Data after the FIN: it was not the last segment.
            *marks &= !(FIN | LOOSE);
        }
        me.window = me.window.max(window);
        if segment.has(TcpFlags::FIN) && (end == me.end || *marks & LOOSE != 0) {
            me.end = end;
            *marks = *marks & !LOOSE | FIN;
        }
        let peer = &mut self.sides[to];
        peer.limit = later(acknowledged.wrapping_add(window.max(1)), peer.limit);
        if after(acknowledged, peer.acked) {
            peer.acked = acknowledged;
            self.marks[to] |= SYN_ACKED;
        }
        if self.marks[to] & FIN != 0 && acknowledged == peer.end {
            self.marks[to] |= FIN_ACKED;
        }
    }

    /// Processes the responder's SYN, either with an acknowledgment or as a simultaneous open.
    fn answer(&mut self, from: usize, segment: &Segment) -> SegmentVerdict {
        let to = 1 - from;
        let peer = self.sides[to];
        let acknowledged = segment.acknowledgment;
        let ack = segment.has(TcpFlags::ACK);
        // Part of a SYN's data may be acknowledged (RFC 7413).
        if ack && (!after(acknowledged, peer.acked) || after(acknowledged, peer.end)) {
            return SegmentVerdict::OutOfWindow;
        }
        let mut me = Side::opened(segment);
        // The peer's SYN has announced a window for the data after this SYN.
        me.limit = me.end.wrapping_add(peer.window);
        self.sides[from] = me;
        self.marks[from] |= SYN;
        let asked = self.shifts[to] & SCALE_OFFERED != 0;
        match segment.shift.filter(|_| asked) {
            Some(shift) => {
                self.shifts[from] = shift.min(MOST_SHIFT);
                self.shifts[to] &= !SCALE_OFFERED;
            }
            None => self.shifts = [0; 2],
        }
        let peer = &mut self.sides[to];
        if ack {
            peer.acked = acknowledged;
            self.marks[to] |= SYN_ACKED;
            peer.limit = later(acknowledged.wrapping_add(me.window), peer.limit);
        } else {
            peer.limit = peer.end.wrapping_add(me.window);
        }
        SegmentVerdict::Fits
    }

    fn reset(&mut self, from: usize, segment: &Segment) -> SegmentVerdict {
        let (me, peer) = (self.sides[from], self.sides[1 - from]);
        let exact = match [self.marks[from], self.marks[1 - from]].map(|marks| marks & SYN != 0) {
            // The responder rejects the SYN, which the acknowledgment must cover.
            [false, _] => {
                let acknowledged = segment.acknowledgment;
                let refuses =
                    segment.has(TcpFlags::ACK) && after(acknowledged, peer.acked) && !after(acknowledged, peer.end);
                if !refuses {
                    return SegmentVerdict::ResetOutOfWindow;
                }
                true
            }
            // The initiator may reset before an answer, to end an old connection of the responder.
            [true, false] => segment.sequence == me.end,
            [true, true] => {
                let sequence = segment.sequence;
                let outside = after(sequence, me.limit) || after(me.end.wrapping_sub(peer.window), sequence);
                let ahead = segment.has(TcpFlags::ACK) && after(segment.acknowledgment, peer.end);
                if outside || ahead {
                    return SegmentVerdict::ResetOutOfWindow;
                }
                sequence == me.end || sequence == me.acked
            }
        };
        if !exact {
            return SegmentVerdict::Tolerated;
        }
        self.marks[from] |= RESET;
        SegmentVerdict::Fits
    }
}
