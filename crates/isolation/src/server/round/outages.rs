//! Batches while a function has no process: they wait for its successor, bypass the function, or are lost.
//!
//! The batch that a function holds when it fails is lost in any case, since its frames may be half changed. This is
//! about the batches that follow.
//!
//! A worker with a thread of its own sleeps while a batch waits. One whose thread gives other chains turns, too, takes
//! no packets meanwhile.

use super::Round;
use crate::layout::{PacketMasks, all_of, slots};
use std::thread;
use std::time::{Duration, Instant};
use tailwater_functions::spec::OnFailure;

/// Longest time that batches wait for a successor. Afterwards they are lost until it is attached. Packets that arrive
/// meanwhile wait in the receive queue, which bounds them.
const PATIENCE: Duration = Duration::from_millis(250);
/// Interval at which the worker looks for the successor. It sleeps meanwhile, so a start can have its core.
const LOOK: Duration = Duration::from_micros(50);

/// Outcome of a look at the functions without processes.
enum Look {
    /// The round can begin.
    Go,
    /// A process is about to be attached.
    Wait(usize),
    /// The batch is lost at this function.
    Lost(usize),
}

impl Round {
    /// Updates the numbers of the attached processes, as [`meet`](Round::meet), before a batch of `count` packets, and
    /// waits for those that are about to be attached. Returns the function at which the batch is lost.
    pub(super) fn get_past_outages(&mut self, count: usize) -> Option<usize> {
        if self.meet().is_none() {
            if let Some((since, k)) = self.waiting.take()
                && !self.may_sleep
                && since.elapsed() < PATIENCE
            {
                self.note_held(k, count);
            }
            return None;
        }
        self.wait_for_successors(count)
    }

    /// Returns `true` while packets wait for a successor in front of a worker that must not sleep, for [`PATIENCE`] at
    /// most.
    pub(in crate::server) fn awaits_process(&mut self) -> bool {
        if self.may_sleep || self.meet().is_none() {
            return false;
        }
        match self.look() {
            Look::Wait(k) => {
                let (since, _) = *self.waiting.get_or_insert_with(|| (Instant::now(), k));
                since.elapsed() < PATIENCE
            }
            Look::Go | Look::Lost(_) => false,
        }
    }

    /// Counts a batch that waited for a successor of function `k`.
    fn note_held(&mut self, k: usize, count: usize) {
        if self.peers[k].outage.on_failure == OnFailure::Hold {
            self.peers[k].outage.packets += count as u64;
        }
    }

    #[cold]
    fn wait_for_successors(&mut self, count: usize) -> Option<usize> {
        let mut waited_for = None;
        let lost = loop {
            match self.look() {
                Look::Go => {
                    self.waiting = None;
                    break None;
                }
                Look::Lost(k) => break Some(k),
                Look::Wait(k) => {
                    waited_for = Some(k);
                    let (since, _) = *self.waiting.get_or_insert_with(|| (Instant::now(), k));
                    if !self.may_sleep || since.elapsed() >= PATIENCE {
                        break Some(k);
                    }
                    thread::sleep(LOOK);
                }
            }
        };
        if let (None, Some(k)) = (lost, waited_for) {
            self.note_held(k, count);
        }
        lost
    }

    fn look(&mut self) -> Look {
        self.meet();
        let mut wait = None;
        for (k, peer) in self.peers.iter_mut().enumerate() {
            if self.status.up(k) == peer.number && peer.number != 0 && self.status.violation(k).is_none() {
                continue;
            }
            match peer.outage.on_failure {
                OnFailure::Drop => return Look::Lost(k),
                OnFailure::Bypass if self.status.is_vacant(k) => (peer.number, peer.outage.is_bypassed) = (0, true),
                OnFailure::Bypass | OnFailure::Hold => wait = wait.or(Some(k)),
            }
        }
        wait.map_or(Look::Go, Look::Wait)
    }

    /// Ends the bypasses of the last round.
    pub(super) fn clear_bypasses(&mut self) {
        for peer in &mut self.peers {
            peer.outage.is_bypassed = false;
        }
    }

    /// Returns `true` if the round bypasses function `k`.
    #[inline]
    pub(super) fn is_bypassed(&self, k: usize) -> bool {
        self.peers[k].outage.is_bypassed
    }

    /// Responds for function `k`, which has no process: all packets that the function in front left are left as they
    /// are. The next function reads this.
    #[cold]
    pub(super) fn respond_for(&self, k: usize, round: u64, count: usize) {
        let areas = &self.area.response_areas;
        let (response, in_front) = (&areas[k], k.checked_sub(1).map(|front| &areas[front]));
        for word in 0..count.div_ceil(64) {
            let all = all_of(count, word);
            let masks = in_front.map_or(PacketMasks { left: all, moved: 0 }, |in_front| in_front.masks(word));
            let left = masks.left & all;
            let moved = masks.moved & left;
            if let Some(in_front) = in_front {
                for i in slots(word, moved) {
                    response.set_response_word(i, in_front.response_word(i));
                }
            }
            response.set_masks(word, PacketMasks { left, moved });
        }
        response.set_masks_round(round);
        response.set_done(round);
    }

    /// Counts the packets that bypassed functions, from the verdicts of the others.
    pub(super) fn count_bypasses(&mut self) {
        for (peer, through) in self.peers.iter_mut().zip(&self.through) {
            if peer.outage.is_bypassed {
                peer.outage.packets += through.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
            }
        }
    }

    /// Returns the number of packets that function `k`'s outages affected without losing them.
    pub(super) fn outage_packets(&self, k: usize) -> u64 {
        self.peers[k].outage.packets
    }
}
