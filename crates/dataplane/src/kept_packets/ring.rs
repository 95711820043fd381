//! Poller's side: packets lost since a chain's ring on a shared port is full.

use super::keeper::PER_SECOND;
use super::{KeptPacket, SNAPLEN, Why};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use tailwater_net::Nanos;

const SECOND: Nanos = Nanos::from_secs(1);

/// Way to the writing thread, until the chain's run ends: pollers may have the chain's rings for longer.
pub(crate) type SharedSender = Arc<Mutex<Option<SyncSender<KeptPacket>>>>;

/// Keeps packets that find a chain's ring full. It allocates nothing, and never waits.
#[derive(Debug)]
pub struct RingKeeper {
    /// Core of the worker at the ring's other end.
    core: u32,
    /// Packets that were lost and kept, and those that were not kept since the last one.
    events: u64,
    skipped: u64,
    /// Second in which packets are counted, and packets kept in it.
    second: Nanos,
    in_second: u64,
    packets: SharedSender,
}

impl RingKeeper {
    pub(crate) fn new(core: u32, packets: &SharedSender) -> RingKeeper {
        RingKeeper {
            core,
            events: 0,
            skipped: 0,
            second: Nanos::ZERO,
            in_second: 0,
            packets: Arc::clone(packets),
        }
    }

    /// Keeps a packet that is lost, unless too many were in this second.
    #[cold]
    pub(crate) fn lost(&mut self, arrival: Nanos, frame: &[u8]) {
        if arrival.saturating_sub(self.second) >= SECOND {
            (self.second, self.in_second) = (arrival, 0);
        }
        if self.in_second >= PER_SECOND || !self.send(arrival, frame) {
            self.skipped += 1;
            return;
        }
        self.in_second += 1;
        self.skipped = 0;
    }

    /// Returns `false` if the writer is behind or has ended, or another poller sends.
    fn send(&mut self, arrival: Nanos, frame: &[u8]) -> bool {
        let Ok(packets) = self.packets.try_lock() else {
            return false;
        };
        let Some(packets) = &*packets else {
            return false;
        };
        let mut packet = KeptPacket {
            core: self.core,
            why: Why::RingFull,
            event: self.events + 1,
            skipped: self.skipped,
            arrival,
            times: [arrival; 2],
            length: frame.len() as u16,
            frame: [0; SNAPLEN],
        };
        let captured = frame.len().min(SNAPLEN);
        packet.frame[..captured].copy_from_slice(&frame[..captured]);
        let is_sent = packets.try_send(packet).is_ok();
        self.events += u64::from(is_sent);
        is_sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn lost_packets_are_kept_up_to_the_rate_and_until_the_run_ends() {
        let (sender, receiver) = sync_channel(300);
        let packets: SharedSender = Arc::new(Mutex::new(Some(sender)));
        let mut keeper = RingKeeper::new(3, &packets);
        let mut lost = |arrival: u64| keeper.lost(Nanos(arrival), &[arrival as u8; 100]);
        (0..PER_SECOND + 5).for_each(&mut lost);
        assert_eq!(receiver.try_iter().count() as u64, PER_SECOND);
        lost(1_000_000_000);
        let last = receiver.try_iter().last().unwrap();
        assert_eq!((last.core, last.why, last.event), (3, Why::RingFull, PER_SECOND + 1));
        assert_eq!((last.skipped, last.length, last.captured().len()), (5, 100, SNAPLEN));
        packets.lock().unwrap().take();
        lost(1_000_000_001);
        assert!(receiver.recv().is_err(), "the writing thread ends");
    }
}
