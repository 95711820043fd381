//! Tests of the state machine against an oracle that stores every segment, with sequence numbers that do not wrap.

use crate::firewall::tcp::{Phase, Segment, SegmentVerdict, Tcp};
use proptest::prelude::*;
use tailwater_net::tcp::TcpFlags;

/// Segment with numbers relative to each end's first.
#[derive(Clone, Copy, Debug)]
struct Sent {
    from: usize,
    syn: bool,
    ack: bool,
    fin: bool,
    reset: bool,
    sequence: i64,
    acknowledgment: i64,
    window: i64,
    length: i64,
    shift: Option<u8>,
}

impl Sent {
    fn end(&self) -> i64 {
        self.sequence + self.length + i64::from(self.syn) + i64::from(self.fin)
    }
}

/// Oracle: all accepted segments.
#[derive(Default)]
struct Oracle {
    accepted: Vec<Sent>,
    reset: bool,
}

impl Oracle {
    fn of(&self, from: usize) -> impl Iterator<Item = &Sent> {
        self.accepted.iter().filter(move |sent| sent.from == from)
    }

    fn seen(&self, from: usize) -> bool {
        self.of(from).next().is_some()
    }

    /// Returns an end's window scale, which is 0 unless both ends sent the option.
    fn shift(&self, from: usize) -> u32 {
        let asked = |from| self.of(from).find(|s| s.syn).and_then(|s| s.shift);
        match (asked(from), asked(1 - from)) {
            (Some(shift), Some(_)) => u32::from(shift.min(14)),
            _ => 0,
        }
    }

    fn window(&self, sent: &Sent) -> i64 {
        let shift = if sent.syn { 0 } else { self.shift(sent.from) };
        sent.window << shift
    }

    fn end(&self, from: usize) -> i64 {
        self.of(from).map(Sent::end).max().unwrap_or(0)
    }

    fn widest(&self, from: usize) -> i64 {
        self.of(from).map(|s| self.window(s)).max().unwrap_or(0).max(1)
    }

    fn acked(&self, from: usize) -> i64 {
        let acks = self.of(1 - from).filter(|s| s.ack).map(|s| s.acknowledgment);
        acks.max().unwrap_or(0).max(0)
    }

    /// Returns the highest number that an end may send: the maximum of the peer's acknowledgment plus window.
    fn limit(&self, from: usize) -> i64 {
        let mut limit = self.of(from).find(|s| s.syn).map_or(0, Sent::end);
        for sent in self.of(1 - from) {
            limit = limit.max(match sent.ack {
                true => sent.acknowledgment + self.window(sent).max(1),
                // A SYN without an acknowledgment announces a window for the data after the SYN.
                false => self.of(from).find(|s| s.syn).map_or(0, Sent::end) + self.window(sent).max(1),
            });
        }
        limit
    }

    /// Returns the number of an end's FIN, unless data came after it.
    fn fin(&self, from: usize) -> Option<i64> {
        let end = self.end(from);
        self.of(from).any(|s| s.fin && s.end() == end).then_some(end)
    }

    fn fin_acked(&self, from: usize) -> bool {
        let Some(end) = self.fin(from) else {
            return false;
        };
        // An acknowledgment counts only after the FIN.
        let first = self
            .accepted
            .iter()
            .position(|s| s.from == from && s.fin && s.end() == end);
        self.accepted[first.unwrap()..]
            .iter()
            .any(|s| s.from != from && s.ack && s.acknowledgment == end)
    }

    fn phase(&self) -> Phase {
        let syn_acked = |from| self.acked(from) > 0;
        match () {
            () if self.reset => Phase::Closed,
            () if self.fin_acked(0) && self.fin_acked(1) => Phase::TimeWait,
            () if self.fin(0).is_some() || self.fin(1).is_some() => Phase::Closing,
            () if syn_acked(0) && syn_acked(1) => Phase::Established,
            () if self.seen(0) && self.seen(1) => Phase::SynReceived,
            () => Phase::SynSent,
        }
    }

    fn judge(&mut self, sent: &Sent) -> SegmentVerdict {
        let (from, to) = (sent.from, 1 - sent.from);
        let controls = [sent.syn, sent.fin, sent.reset].iter().filter(|c| **c).count();
        if controls > 1 || !(sent.syn || sent.reset || sent.ack) {
            return SegmentVerdict::Flags;
        }
        let below = sent.sequence < self.end(from) - self.widest(to);
        if sent.reset {
            let exact = match (self.seen(from), self.seen(to)) {
                (false, _) => {
                    let refuses = sent.ack && (1..=self.end(to)).contains(&sent.acknowledgment);
                    if !refuses {
                        return SegmentVerdict::ResetOutOfWindow;
                    }
                    true
                }
                (true, false) => sent.sequence == self.end(from),
                (true, true) => {
                    let ahead = sent.ack && sent.acknowledgment > self.end(to);
                    if sent.sequence > self.limit(from) || below || ahead {
                        return SegmentVerdict::ResetOutOfWindow;
                    }
                    [self.end(from), self.acked(from)].contains(&sent.sequence)
                }
            };
            self.reset |= exact;
            return if exact {
                SegmentVerdict::Fits
            } else {
                SegmentVerdict::Tolerated
            };
        }
        if sent.syn && !sent.ack && matches!(self.phase(), Phase::TimeWait | Phase::Closed) {
            return SegmentVerdict::Reopens;
        }
        if sent.syn && !self.seen(from) {
            let answers = (1..=self.end(to)).contains(&sent.acknowledgment);
            if sent.ack && !answers {
                return SegmentVerdict::OutOfWindow;
            }
            self.accepted.push(*sent);
            return SegmentVerdict::Fits;
        }
        if sent.syn && !sent.ack {
            let first = self.of(from).find(|s| s.syn).map(Sent::end);
            return match from {
                0 if !self.seen(1) => {
                    if Some(sent.end()) != first {
                        self.accepted = vec![*sent];
                    }
                    SegmentVerdict::Fits
                }
                0 => SegmentVerdict::Tolerated,
                _ if Some(sent.end()) == Some(self.end(1)) => SegmentVerdict::Tolerated,
                _ => SegmentVerdict::Flags,
            };
        }
        if !self.seen(from) {
            return match sent.length == 0 && !sent.fin {
                true => SegmentVerdict::Tolerated,
                false => SegmentVerdict::OutOfWindow,
            };
        }
        let fits = self.seen(to)
            && sent.end() <= self.limit(from)
            && !below
            && sent.acknowledgment <= self.end(to)
            && sent.acknowledgment >= self.end(to) - self.widest(from).max(66_000)
            && !(self.fin_acked(from) && sent.end() > self.end(from));
        if !fits {
            return SegmentVerdict::OutOfWindow;
        }
        self.accepted.push(*sent);
        SegmentVerdict::Fits
    }
}

fn segment(sent: &Sent, first: [u32; 2]) -> Segment {
    let mut flags = TcpFlags(0);
    for (set, flag) in [
        (sent.syn, TcpFlags::SYN),
        (sent.ack, TcpFlags::ACK),
        (sent.fin, TcpFlags::FIN),
        (sent.reset, TcpFlags::RST),
    ] {
        if set {
            flags = TcpFlags(flags.0 | flag.0);
        }
    }
    Segment {
        flags,
        sequence: first[sent.from].wrapping_add(sent.sequence as u32),
        acknowledgment: first[1 - sent.from].wrapping_add(sent.acknowledgment as u32),
        window: sent.window as u16,
        length: sent.length as u32,
        shift: sent.shift.filter(|_| sent.syn),
    }
}

/// Step of a random exchange: sender, kind of segment, offsets of sequence and acknowledgment number from the correct
/// ones, window, length and window scale.
type Step = (usize, u8, i64, i64, u16, i64, Option<u8>);

fn step() -> impl Strategy<Value = Step> {
    // Mostly correct. Otherwise off by a little, by about a window, or by any amount.
    let offset = || {
        prop_oneof![
            12 => Just(0i64),
            2 => -3i64..=3,
            1 => -70_000i64..70_000,
            1 => -2_000_000i64..2_000_000,
        ]
    };
    let length = prop_oneof![Just(0i64), 1i64..1460];
    let window = prop_oneof![Just(0u16), 1u16..200, Just(u16::MAX), any::<u16>()];
    let shift = prop_oneof![Just(None), (0u8..16).prop_map(Some)];
    (0usize..2, 0u8..32, offset(), offset(), window, length, shift)
}

fn sent(oracle: &Oracle, (from, kind, seq, ack, window, length, shift): Step) -> Sent {
    let mut sent = Sent {
        from,
        syn: false,
        ack: true,
        fin: false,
        reset: false,
        sequence: oracle.end(from) + seq,
        acknowledgment: oracle.end(1 - from) + ack,
        window: window.into(),
        length,
        shift,
    };
    match kind {
        0 => sent.reset = true,
        1 => (sent.reset, sent.ack, sent.length) = (true, false, 0),
        2 => (sent.reset, sent.sequence) = (true, oracle.acked(from) + seq),
        3 => (sent.syn, sent.ack, sent.sequence) = (true, false, seq),
        4 | 5 => sent.fin = true,
        6 => sent.ack = false,
        7 => (sent.syn, sent.fin) = (true, true),
        8 => sent.sequence = oracle.limit(from) - length + seq,
        9 => sent.sequence = oracle.end(from) - oracle.widest(1 - from) + seq,
        10 => sent.acknowledgment = oracle.acked(1 - from) + ack,
        11 => sent.sequence = oracle.acked(from) + seq,
        _ => {}
    }
    if !oracle.seen(from) && kind > 11 {
        // An end begins with a SYN at its number 0.
        (sent.syn, sent.sequence, sent.length) = (true, 0, 0);
    }
    sent
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn judges_as_whoever_keeps_every_segment(
        mut first in prop::array::uniform2(prop_oneof![any::<u32>(), (u32::MAX - 3000)..=u32::MAX]),
        shift in prop_oneof![Just(None), (0u8..16).prop_map(Some)],
        window in any::<u16>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let opening = Sent {
            from: 0, syn: true, ack: false, fin: false, reset: false,
            sequence: 0, acknowledgment: 0, window: window.into(), length: 0, shift,
        };
        let mut oracle = Oracle::default();
        oracle.accepted.push(opening);
        let mut tcp = Tcp::opened(&segment(&opening, first));
        for step in steps {
            let sent = sent(&oracle, step);
            // The oracle's numbers do not wrap. Keep the numbers that a step can reach far from a wrap.
            prop_assume!(oracle.end(0).max(oracle.end(1)) < 1 << 29);
            let before = tcp;
            let judgement = tcp.take(sent.from, &segment(&sent, first));
            prop_assert_eq!(judgement, oracle.judge(&sent), "{:?}", sent);
            if judgement == SegmentVerdict::Reopens {
                break;
            }
            for (from, first) in first.iter_mut().enumerate() {
                // If an end begins at another number, or anew, count from there.
                if let Some(own) = oracle.accepted.iter_mut().find(|sent| sent.from == from) {
                    *first = first.wrapping_add(own.sequence as u32);
                    own.sequence = 0;
                }
            }
            if judgement != SegmentVerdict::Fits {
                prop_assert_eq!(tcp, before, "only what fits changes anything");
            }
            prop_assert_eq!(tcp.phase(), oracle.phase(), "after {:?}", sent);
        }
    }
}

/// One of two ends that communicate through the state machine over links with loss, duplication and reordering. No
/// segment that a TCP would send is rejected.
#[derive(Clone, Copy)]
struct End {
    next: u32,
    expects: u32,
    unacked: u32,
    window: u32,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn refuses_nothing_that_two_ends_send(
        first in prop::array::uniform2(any::<u32>()),
        shifts in prop::array::uniform2(0u8..=14),
        windows in prop::array::uniform2(1u16..=u16::MAX),
        steps in prop::collection::vec((0usize..2, 0u8..6, 1u32..9000), 1..200),
    ) {
        let flags = |flags: &[TcpFlags]| TcpFlags(flags.iter().fold(0, |all, flag| all | flag.0));
        let of = |flags, sequence, acknowledgment, window, length, shift| Segment {
            flags, sequence, acknowledgment, window, length, shift,
        };
        let syn = of(TcpFlags::SYN, first[0], 0, windows[0], 0, Some(shifts[0]));
        let mut tcp = Tcp::opened(&syn);
        let answer = of(flags(&[TcpFlags::SYN, TcpFlags::ACK]), first[1], first[0].wrapping_add(1),
            windows[1], 0, Some(shifts[1]));
        prop_assert_eq!(tcp.take(1, &answer), SegmentVerdict::Fits);
        let ack = |from: usize, end: &End, sequence, length, shift: [u8; 2]| {
            of(TcpFlags::ACK, sequence, end.expects, (end.window >> shift[from]) as u16, length, None)
        };
        let mut ends = [0, 1].map(|i: usize| End {
            next: first[i].wrapping_add(1),
            expects: first[1 - i].wrapping_add(1),
            unacked: first[i].wrapping_add(1),
            window: u32::from(windows[i]) << shifts[i],
        });
        prop_assert_eq!(tcp.take(0, &ack(0, &ends[0], ends[0].next, 0, shifts)), SegmentVerdict::Fits);
        // The window of a SYN is not scaled: the responder announces its room with its first ACK.
        let told = ack(1, &ends[1], ends[1].next, 0, shifts);
        prop_assert_eq!(tcp.take(1, &told), SegmentVerdict::Fits);
        prop_assert_eq!(tcp.phase(), Phase::Established);
        for (from, kind, length) in steps {
            let (me, peer) = (ends[from], ends[1 - from]);
            // Room as last announced by the peer: its window, from the number it expects.
            let room = peer.window.saturating_sub(me.next.wrapping_sub(me.unacked));
            let room = room & !((1 << shifts[1 - from]) - 1);
            let length = length.min(room);
            let data = ack(from, &me, me.next, length, shifts);
            match kind {
                // Data that arrives.
                0..=2 if length > 0 => {
                    prop_assert_eq!(tcp.take(from, &data), SegmentVerdict::Fits);
                    ends[from].next = me.next.wrapping_add(length);
                    ends[1 - from].expects = ends[from].next;
                }
                // A retransmission or a duplicate.
                3 => {
                    let again = me.next.wrapping_sub(me.unacked);
                    let data = ack(from, &me, me.unacked, again.min(length.max(1)), shifts);
                    prop_assert_eq!(tcp.take(from, &data), SegmentVerdict::Fits);
                }
                // An acknowledgment.
                _ => {
                    prop_assert_eq!(tcp.take(from, &ack(from, &me, me.next, 0, shifts)), SegmentVerdict::Fits);
                    ends[1 - from].unacked = me.expects;
                }
            }
        }
        for from in [0, 1] {
            // A FIN takes one number of the window.
            let (me, peer) = (ends[from], ends[1 - from]);
            let all = ack(1 - from, &peer, peer.next, 0, shifts);
            prop_assert_eq!(tcp.take(1 - from, &all), SegmentVerdict::Fits);
            let mut fin = ack(from, &me, me.next, 0, shifts);
            fin.flags = flags(&[TcpFlags::FIN, TcpFlags::ACK]);
            prop_assert_eq!(tcp.take(from, &fin), SegmentVerdict::Fits);
            ends[from].next = me.next.wrapping_add(1);
            ends[1 - from].expects = ends[from].next;
            let peer = ends[1 - from];
            prop_assert_eq!(tcp.take(1 - from, &ack(1 - from, &peer, peer.next, 0, shifts)), SegmentVerdict::Fits);
        }
        prop_assert_eq!(tcp.phase(), Phase::TimeWait);
    }
}

/// A connection picked up in midstream accepts all later segments of both ends, with any window scale.
#[test]
fn a_picked_up_connection_goes_on() {
    let of = |flags, sequence: u32, acknowledgment: u32, length| Segment {
        flags,
        sequence,
        acknowledgment,
        window: 500,
        length,
        shift: None,
    };
    let first = of(TcpFlags::ACK, 70_000, 5_000, 1000);
    assert!(first.continues() && !first.opens());
    let mut tcp = Tcp::picked_up(&first);
    assert_eq!(tcp.phase(), Phase::Established);
    // The responder acknowledges earlier data and sends data in flight.
    assert_eq!(
        tcp.take(1, &of(TcpFlags::ACK, 5_000, 60_000, 1400)),
        SegmentVerdict::Fits
    );
    assert_eq!(
        tcp.take(1, &of(TcpFlags::ACK, 4_000_000, 71_000, 1400)),
        SegmentVerdict::Fits
    );
    assert_eq!(
        tcp.take(0, &of(TcpFlags::ACK, 71_000, 4_001_400, 0)),
        SegmentVerdict::Fits
    );
    let fin = TcpFlags(0x11);
    assert_eq!(tcp.take(0, &of(fin, 71_000, 4_001_400, 0)), SegmentVerdict::Fits);
    assert_eq!(tcp.take(1, &of(fin, 4_001_400, 71_001, 0)), SegmentVerdict::Fits);
    assert_eq!(tcp.phase(), Phase::Closing);
    assert_eq!(
        tcp.take(0, &of(TcpFlags::ACK, 71_001, 4_001_401, 0)),
        SegmentVerdict::Fits
    );
    assert_eq!(tcp.phase(), Phase::TimeWait);
}
