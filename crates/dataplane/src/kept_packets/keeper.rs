//! Worker's side: a ring of the last packets, and the choice of those that are kept.

use super::{KeptPacket, SNAPLEN, Why};
use crate::attribution::Cause;
use std::sync::mpsc::SyncSender;
use tailwater_chain::batch::{Batch, DroppedBy};
use tailwater_net::Nanos;

/// Packets that a worker remembers.
const REMEMBERED: usize = 256;
/// Packets kept before one that matters: so many of its flow, and so many of its core.
pub(super) const BEFORE: usize = 8;
/// Packets that matter and are kept in a second on a core; more are counted.
pub(super) const PER_SECOND: u64 = 200;
const SECOND: Nanos = Nanos::from_secs(1);

/// Packet that was sent or dropped.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    arrival: Nanos,
    times: [Nanos; 2],
    rss_hash: u32,
    length: u16,
    is_kept: bool,
    is_late: bool,
    frame: [u8; SNAPLEN],
}

const NONE: Remembered = Remembered {
    arrival: Nanos::ZERO,
    times: [Nanos::ZERO; 2],
    rss_hash: 0,
    length: 0,
    is_kept: true,
    is_late: false,
    frame: [0; SNAPLEN],
};

/// Last packets of a worker. It allocates nothing after the start, and never waits.
#[derive(Debug)]
pub(crate) struct PacketKeeper {
    core: u32,
    ring: Box<[Remembered; REMEMBERED]>,
    /// Number of the next packet, and of the first one of the batch that is being sent.
    next: u64,
    batch: u64,
    /// Packets that mattered, of those that were kept, and of those that were not since the last one.
    events: u64,
    skipped: u64,
    /// Second in which packets are counted, and packets kept in it.
    second: Nanos,
    in_second: u64,
    /// Nobody waits at its other end, so that sending is no system call.
    packets: SyncSender<KeptPacket>,
}

impl PacketKeeper {
    pub(super) fn new(core: u32, packets: SyncSender<KeptPacket>) -> PacketKeeper {
        PacketKeeper {
            core,
            ring: Box::new([NONE; REMEMBERED]),
            next: 0,
            batch: 0,
            events: 0,
            skipped: 0,
            second: Nanos::ZERO,
            in_second: 0,
            packets,
        }
    }

    pub(crate) fn core(&self) -> u32 {
        self.core
    }

    /// Remembers the packets of a batch that the chain began with at `began`, before they are sent at about `now`, and
    /// keeps those that were dropped.
    pub(crate) fn note_batch(&mut self, batch: &Batch, [began, now]: [Nanos; 2]) {
        for dropped in batch.dropped() {
            let at = self.next;
            self.push((dropped.arrival, dropped.rss_hash), dropped.frame, [began, now]);
            if dropped.by != DroppedBy::Port {
                self.keep(at, Why::Dropped(dropped.by, dropped.reason));
            }
        }
        self.batch = self.next;
        for at in 0..batch.len() {
            let packet = batch.packet(at);
            self.push((packet.arrival, packet.rss_hash), batch.frame(at), [began, now]);
        }
    }

    /// Keeps a packet of the batch that was remembered last, which was sent late, at `sent`.
    #[cold]
    pub(crate) fn late(&mut self, (arrival, rss_hash): (Nanos, u32), cause: Cause, sent: Nanos) {
        // In order: of several alike, each is found once.
        for at in self.batch..self.next {
            let found = &mut self.ring[at as usize % REMEMBERED];
            if (found.arrival, found.rss_hash, found.is_late) == (arrival, rss_hash, false) {
                (found.times[1], found.is_late) = (sent, true);
                return self.keep(at, Why::Late(cause));
            }
        }
    }

    /// Keeps a packet of a batch that is lost since it could not be in time any more.
    #[cold]
    pub(crate) fn too_late(&mut self, batch: &Batch, at: usize, cause: Cause, now: Nanos) {
        let (packet, number) = (batch.packet(at), self.next);
        self.push((packet.arrival, packet.rss_hash), batch.frame(at), [now; 2]);
        self.keep(number, Why::TooLate(cause));
    }

    fn push(&mut self, (arrival, rss_hash): (Nanos, u32), frame: &[u8], times: [Nanos; 2]) {
        let slot = &mut self.ring[self.next as usize % REMEMBERED];
        self.next += 1;
        (slot.arrival, slot.rss_hash, slot.times) = (arrival, rss_hash, times);
        (slot.is_kept, slot.is_late) = (false, false);
        slot.length = frame.len() as u16;
        let captured = frame.len().min(SNAPLEN);
        slot.frame[..captured].copy_from_slice(&frame[..captured]);
    }

    /// Sends the packet with number `at`, and those before it, unless too many were kept in this second.
    fn keep(&mut self, at: u64, why: Why) {
        let now = self.ring[at as usize % REMEMBERED].times[1];
        if now.saturating_sub(self.second) >= SECOND {
            (self.second, self.in_second) = (now, 0);
        }
        if self.in_second >= PER_SECOND {
            self.skipped += 1;
            return;
        }
        self.in_second += 1;
        self.events += 1;
        let flow = self.ring[at as usize % REMEMBERED].rss_hash;
        let oldest = self.next.saturating_sub(REMEMBERED as u64);
        let (mut of_flow, mut first) = (0, at);
        while first > oldest && of_flow < BEFORE {
            first -= 1;
            of_flow += usize::from(self.ring[first as usize % REMEMBERED].rss_hash == flow);
        }
        for before in first..at {
            let same_flow = self.ring[before as usize % REMEMBERED].rss_hash == flow;
            let is_near = before + BEFORE as u64 >= at;
            if (same_flow || is_near) && !self.ring[before as usize % REMEMBERED].is_kept {
                self.send(before, Why::Before { same_flow });
            }
        }
        self.send(at, why);
    }

    fn send(&mut self, at: u64, why: Why) {
        let found = &mut self.ring[at as usize % REMEMBERED];
        found.is_kept = true;
        let is_before = matches!(why, Why::Before { .. });
        let packet = KeptPacket {
            core: self.core,
            why,
            event: self.events,
            // Once for an event: sums over comments are right.
            skipped: if is_before { 0 } else { self.skipped },
            arrival: found.arrival,
            times: found.times,
            length: found.length,
            frame: found.frame,
        };
        match self.packets.try_send(packet) {
            _ if is_before => {}
            Ok(()) => self.skipped = 0,
            // The writer is behind.
            Err(_) => self.skipped += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;
    use tailwater_chain::buffer::BufferPool;

    fn batch_of(pool: &mut BufferPool, hashes: &[u32], arrival: u64) -> Batch {
        let mut batch = Batch::new(pool, 64);
        for hash in hashes {
            assert!(batch.push(pool, &[*hash as u8; 100], Nanos(arrival), *hash));
        }
        batch
    }

    #[test]
    fn a_late_packet_is_kept_once_with_those_before_it() {
        let (sender, receiver) = sync_channel(64);
        let mut keeper = PacketKeeper::new(3, sender);
        let mut pool = BufferPool::new(128, 128).unwrap();
        // One packet of flow 7, and twenty of others behind it.
        let hashes: Vec<u32> = [7].into_iter().chain(100..120).collect();
        let mut batch = batch_of(&mut pool, &hashes, 10);
        keeper.note_batch(&batch, [Nanos(20), Nanos(30)]);
        batch.release(&mut pool);
        let mut batch = batch_of(&mut pool, &[7, 7], 40);
        keeper.note_batch(&batch, [Nanos(50), Nanos(60)]);
        keeper.late((Nanos(40), 7), Cause::Service, Nanos(70));
        let kept: Vec<KeptPacket> = receiver.try_iter().collect();
        let of_flow: Vec<_> = kept.iter().map(|packet| (packet.frame[0], packet.why)).collect();
        // The flow's earlier packet, eight of the core, and the late one.
        assert_eq!(of_flow.len(), 10);
        assert_eq!(of_flow[0], (7, Why::Before { same_flow: true }));
        assert_eq!(of_flow[1], (112, Why::Before { same_flow: false }));
        assert_eq!(of_flow[9], (7, Why::Late(Cause::Service)));
        assert_eq!(kept[9].times, [Nanos(50), Nanos(70)]);
        assert_eq!((kept[9].core, kept[9].event, kept[9].captured().len()), (3, 1, SNAPLEN));
        // The second of the two alike, and nothing again.
        keeper.late((Nanos(40), 7), Cause::Service, Nanos(70));
        let kept: Vec<Why> = receiver.try_iter().map(|packet| packet.why).collect();
        assert_eq!(kept, [Why::Late(Cause::Service)]);
        batch.release(&mut pool);
    }

    #[test]
    fn beyond_the_rate_and_the_room_packets_are_counted() {
        let (sender, receiver) = sync_channel(300);
        let mut keeper = PacketKeeper::new(0, sender);
        let mut pool = BufferPool::new(8, 128).unwrap();
        let mut event = |now: u64| {
            let mut batch = batch_of(&mut pool, &[7], now);
            keeper.note_batch(&batch, [Nanos(now), Nanos(now)]);
            keeper.late((Nanos(now), 7), Cause::Service, Nanos(now + 1));
            batch.release(&mut pool);
        };
        (0..PER_SECOND + 5).for_each(&mut event);
        assert_eq!(receiver.try_iter().count() as u64, PER_SECOND);
        event(2_000_000_000);
        let kept: Vec<KeptPacket> = receiver.try_iter().collect();
        let [before @ .., last] = &kept[..] else {
            panic!("nothing was kept");
        };
        assert_eq!((last.why, last.skipped), (Why::Late(Cause::Service), 5));
        // Those before it are of the same event: the count is not theirs.
        assert!(!before.is_empty() && before.iter().all(|packet| packet.skipped == 0));
    }
}
