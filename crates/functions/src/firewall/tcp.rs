//! TCP connections as somebody between the two ends sees them: how far each has come, and whether a segment
//! can be of the connection.
//!
//! The bounds on sequence and acknowledgment numbers are those of van Rooij, "Real stateful TCP packet filtering in
//! IP Filter" (2001): for each end the highest number that it has sent, the highest that it may send (from what the
//! other has acknowledged, and its window), and the largest window that it has announced. Resets are taken for
//! the connection's end only where a receiver takes them (RFC 5961 §3.2).

use bytemuck::{Pod, Zeroable};
use tailwater_net::tcp::TcpFlags;

/// How far acknowledgments may lag, if windows are small: what two segments of 64 KiB take.
const ACK_LAG: u32 = 66_000;
/// The largest shift of a window (RFC 7323 §2.3).
const MOST_SHIFT: u8 = 14;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Side {
    /// The number after the last that it has sent.
    end: u32,
    /// The number after the last that it may send.
    limit: u32,
    /// The largest window that it has announced.
    window: u32,
    /// What the other end has acknowledged.
    acked: u32,
}

/// What is known of a TCP connection: of the initiator, then of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Tcp {
    sides: [Side; 2],
    /// What each has sent, of [`SYN`] to [`FIN_ACKED`].
    marks: [u8; 2],
    /// How far each one's windows are shifted; [`ASKS`] until the other has answered.
    shifts: [u8; 2],
}

const SYN: u8 = 1;
const SYN_ACKED: u8 = 2;
const FIN: u8 = 4;
const FIN_ACKED: u8 = 8;
/// Where it ends is not known, since the connection was picked up: [`Side::end`] is beyond.
const LOOSE: u8 = 32;
/// The connection was reset.
const RESET: u8 = 16;
/// In a shift: the SYN had the option.
const ASKS: u8 = 0x80;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A SYN that was not answered.
    SynSent,
    /// Both have sent a SYN, and not both acknowledged them.
    SynReceived,
    Established,
    /// One end has sent a FIN, or both have and not both been acknowledged.
    Closing,
    /// Both FINs are acknowledged.
    TimeWait,
    /// Reset.
    Closed,
}

/// What of a segment counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) flags: TcpFlags,
    pub(super) sequence: u32,
    pub(super) acknowledgment: u32,
    pub(super) window: u16,
    /// Bytes of payload.
    pub(super) length: u32,
    /// The option of a SYN.
    pub(super) shift: Option<u8>,
}

/// What a segment is to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// A part of it.
    Fits,
    /// It passes and changes nothing: ends that have lost touch find each other again so.
    Tolerated,
    /// No part of it.
    OutOfWindow,
    /// A reset that the receiver would not take, or should not.
    ResetOutOfWindow,
    /// The flags make no sense in it.
    Flags,
    /// A new connection between the same ports: the old one is over.
    Reopens,
}

/// Whether `a` comes after `b` on the circle of sequence numbers (RFC 9293 §3.4).
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

    /// The number after its last.
    fn end(&self) -> u32 {
        let controls = u32::from(self.has(TcpFlags::SYN)) + u32::from(self.has(TcpFlags::FIN));
        self.sequence.wrapping_add(self.length).wrapping_add(controls)
    }

    /// Whether any TCP sends such flags (RFC 9293 §3.10): not none, nor two of SYN, FIN and RST, and an
    /// acknowledgment in everything but a first SYN and a reset.
    pub(super) fn makes_sense(&self) -> bool {
        let [syn, fin, reset, ack] =
            [TcpFlags::SYN, TcpFlags::FIN, TcpFlags::RST, TcpFlags::ACK].map(|flag| self.has(flag));
        u8::from(syn) + u8::from(fin) + u8::from(reset) <= 1 && (syn || reset || ack)
    }

    /// Whether it is the first of a connection.
    pub(super) fn opens(&self) -> bool {
        self.makes_sense() && self.has(TcpFlags::SYN) && !self.has(TcpFlags::ACK)
    }

    /// Whether a connection may be picked up here that began before.
    pub(super) fn continues(&self) -> bool {
        let not = self.has(TcpFlags::SYN) || self.has(TcpFlags::RST);
        self.makes_sense() && !not
    }
}

impl Side {
    /// After its SYN.
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
    /// A connection with its first SYN.
    pub(super) fn opened(segment: &Segment) -> Tcp {
        let mut tcp = Tcp::zeroed();
        tcp.sides[0] = Side::opened(segment);
        tcp.marks[0] = SYN;
        tcp.shifts[0] = segment.shift.map_or(0, |shift| ASKS | shift.min(MOST_SHIFT));
        tcp
    }

    /// A connection that began before, with a segment of an end that counts as the initiator. What windows are
    /// shifted by is not known: as far as can be, so that nothing of the connection is refused.
    pub(super) fn picked_up(segment: &Segment) -> Tcp {
        let window = u32::from(u16::MAX) << MOST_SHIFT;
        // As much may have been sent before as half a window, or be sent again.
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

    /// Takes a segment of the initiator (0) or the other end (1). Only one that [fits](Judgement::Fits) changes
    /// anything.
    pub(super) fn take(&mut self, from: usize, segment: &Segment) -> Judgement {
        if !segment.makes_sense() {
            return Judgement::Flags;
        }
        if segment.has(TcpFlags::RST) {
            return self.reset(from, segment);
        }
        let to = 1 - from;
        let (seen, answered) = (self.marks[from] & SYN != 0, self.marks[to] & SYN != 0);
        let (syn, ack) = (segment.has(TcpFlags::SYN), segment.has(TcpFlags::ACK));
        if syn && !ack && matches!(self.phase(), Phase::TimeWait | Phase::Closed) {
            return Judgement::Reopens;
        }
        if syn && !seen {
            return self.answer(from, segment);
        }
        if syn && !ack {
            // Again, or anew: an end that has lost its state begins where it likes.
            return match (from, answered) {
                (0, false) => {
                    if segment.end() != self.sides[0].end {
                        *self = Tcp::opened(segment);
                    }
                    Judgement::Fits
                }
                (0, true) => Judgement::Tolerated,
                _ if segment.end() == self.sides[1].end => Judgement::Tolerated,
                _ => Judgement::Flags,
            };
        }
        if !seen {
            // The other end has an old connection: it says so, and the initiator resets that (RFC 9293 §3.5.1).
            let bare = segment.length == 0 && !segment.has(TcpFlags::FIN);
            return match bare {
                true => Judgement::Tolerated,
                false => Judgement::OutOfWindow,
            };
        }
        if !answered || !self.fits(from, segment) {
            return Judgement::OutOfWindow;
        }
        self.advance(from, segment);
        Judgement::Fits
    }

    /// Whether a segment lies within the bounds: data that the receiver has room for and that may not have arrived
    /// yet, acknowledging what was sent, and not long ago.
    fn fits(&self, from: usize, segment: &Segment) -> bool {
        let (me, peer) = (&self.sides[from], &self.sides[1 - from]);
        let end = segment.end();
        let lag = me.window.max(ACK_LAG);
        !after(end, me.limit)
            && !after(me.end.wrapping_sub(peer.window), segment.sequence)
            && !after(segment.acknowledgment, peer.end)
            && !after(peer.end.wrapping_sub(lag), segment.acknowledgment)
            // After a FIN that the other end has, there is nothing.
            && (self.marks[from] & FIN_ACKED == 0 || !after(end, me.end))
    }

    /// What a segment that fits changes.
    fn advance(&mut self, from: usize, segment: &Segment) {
        let to = 1 - from;
        let shift = match segment.has(TcpFlags::SYN) {
            true => 0,
            false => self.shifts[from] & !ASKS,
        };
        let window = u32::from(segment.window) << shift;
        let acknowledged = segment.acknowledgment;
        let (me, marks) = (&mut self.sides[from], &mut self.marks[from]);
        let end = segment.end();
        if after(end, me.end) {
            me.end = end;
            // What looked like the last was not.
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

    /// The other end's SYN: with an acknowledgment, or at the same time as the initiator's.
    fn answer(&mut self, from: usize, segment: &Segment) -> Judgement {
        let to = 1 - from;
        let peer = self.sides[to];
        let acknowledged = segment.acknowledgment;
        let ack = segment.has(TcpFlags::ACK);
        // Of a SYN with data, part may be acknowledged (RFC 7413).
        if ack && (!after(acknowledged, peer.acked) || after(acknowledged, peer.end)) {
            return Judgement::OutOfWindow;
        }
        let mut me = Side::opened(segment);
        // The SYN has told a window, of what comes after it.
        me.limit = me.end.wrapping_add(peer.window);
        self.sides[from] = me;
        self.marks[from] |= SYN;
        let asked = self.shifts[to] & ASKS != 0;
        match segment.shift.filter(|_| asked) {
            Some(shift) => {
                self.shifts[from] = shift.min(MOST_SHIFT);
                self.shifts[to] &= !ASKS;
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
        Judgement::Fits
    }

    fn reset(&mut self, from: usize, segment: &Segment) -> Judgement {
        let (me, peer) = (self.sides[from], self.sides[1 - from]);
        let exact = match [self.marks[from], self.marks[1 - from]].map(|marks| marks & SYN != 0) {
            // Refused: the acknowledgment says of what.
            [false, _] => {
                let acknowledged = segment.acknowledgment;
                let refuses =
                    segment.has(TcpFlags::ACK) && after(acknowledged, peer.acked) && !after(acknowledged, peer.end);
                if !refuses {
                    return Judgement::ResetOutOfWindow;
                }
                true
            }
            // Of the initiator, before there is an answer: it may reset what the other end has of old.
            [true, false] => segment.sequence == me.end,
            [true, true] => {
                let sequence = segment.sequence;
                let outside = after(sequence, me.limit) || after(me.end.wrapping_sub(peer.window), sequence);
                let ahead = segment.has(TcpFlags::ACK) && after(segment.acknowledgment, peer.end);
                if outside || ahead {
                    return Judgement::ResetOutOfWindow;
                }
                sequence == me.end || sequence == me.acked
            }
        };
        if !exact {
            return Judgement::Tolerated;
        }
        self.marks[from] |= RESET;
        Judgement::Fits
    }
}
