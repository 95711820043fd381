//! Ends of flows, which reach the functions with the next round, and the end of the run.

use super::Round;
use crate::layout::{CHAIN_ENDED, CompanionRefusal, DRAINING, ENDED, FlowSlot};
use std::thread;
use std::time::{Duration, Instant};

/// Total time for rounds without packets at the end of a run, with waits for processes that are down, and the poll
/// interval.
const REPLACED: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(1);
/// Time to wait for them when flows move to another worker, if this one's thread may sleep. Meanwhile all packets would
/// be lost.
const REPLACED_SOON: Duration = Duration::from_millis(10);

impl Round {
    /// Queues the end of a flow, for a connection of both directions. The functions that require it are notified in the
    /// next round.
    pub(in crate::server) fn end_flow(&mut self, generation: u64, place: u32) {
        let end = |flow| FlowSlot { flow, generation };
        if self.area.connections {
            self.add_ended(end(place << 1));
            self.add_ended(end(place << 1 | 1));
        } else {
            self.add_ended(end(place));
        }
    }

    fn add_ended(&mut self, ended: FlowSlot) {
        if self.waiting() >= ENDED {
            // A round without packets makes room. If it fails, the oldest ends are overwritten.
            self.run_empty_patiently();
            if self.flags & DRAINING != 0 {
                for k in 0..self.peers.len() {
                    if self.waiting_for(k) >= ENDED {
                        self.status.miss(k);
                    }
                }
            }
        }
        self.area.request_area.add_ended(ended);
    }

    /// Returns the largest number of flow ends that a function has not taken yet.
    fn waiting(&self) -> u64 {
        let waiting = (0..self.peers.len()).map(|k| self.waiting_for(k));
        waiting.max().unwrap_or(0)
    }

    /// Returns the number of flow ends that function `k` has not taken yet; 0 if it requires none.
    fn waiting_for(&self, k: usize) -> u64 {
        let taken = self.area.response_areas[k].handled_ended();
        match self.peers[k].wants_flow_ends {
            true => self.area.request_area.ended().saturating_sub(taken),
            false => 0,
        }
    }

    /// Runs a round without packets. Waits up to `bound` for processes that are down, and repeats the round if one
    /// fails, as long.
    fn run_empty(&mut self, bound: Duration) {
        let began = Instant::now();
        loop {
            while self.meet().is_some() {
                if began.elapsed() >= bound {
                    return;
                }
                thread::sleep(LOOK);
            }
            self.order.restore();
            let failed = self.go(0, 0, |_, _, _| Err(CompanionRefusal::TableFull));
            self.status.end();
            if failed.is_none() || began.elapsed() >= bound {
                return;
            }
        }
    }

    /// Like [`run_empty`](Round::run_empty). At the end of the run it waits for processes, since no later round
    /// delivers the flow ends.
    fn run_empty_patiently(&mut self) {
        let bound = match self.flags & DRAINING {
            0 => Duration::ZERO,
            _ => REPLACED.saturating_sub(self.waited),
        };
        let began = Instant::now();
        self.run_empty(bound);
        self.waited += began.elapsed();
    }

    /// Delivers pending flow ends before flows move to another worker, since their slots may soon hold other flows.
    /// Ends that cannot be delivered are discarded.
    pub(in crate::server) fn deliver_flow_ends(&mut self) {
        let ended = self.area.request_area.ended();
        let is_told = |round: &Round| {
            let mut response_areas = round.area.response_areas.iter();
            response_areas.all(|slate| slate.handled_ended() == ended)
        };
        if self.told == ended {
            return;
        }
        self.told = ended;
        if is_told(self) {
            return;
        }
        // A thread that gives other chains turns does not wait.
        self.run_empty(if self.may_sleep { REPLACED_SOON } else { Duration::ZERO });
        if !is_told(self) {
            for n in ended.saturating_sub(ENDED)..ended {
                self.area.request_area.forget_ended(n);
            }
        }
    }

    /// Marks the start of the run's end: only flow ends follow.
    pub(in crate::server) fn begin_to_finish(&mut self) {
        self.flags |= DRAINING;
    }

    /// Ends all processes with a last round.
    pub(in crate::server) fn finish(&mut self) {
        if self.flags & CHAIN_ENDED == 0 {
            // After this, all processes that can be replaced are attached.
            self.run_empty_patiently();
            self.flags |= CHAIN_ENDED;
            self.status.set_last_round();
            self.order.restore();
            self.go(0, 0, |_, _, _| Err(CompanionRefusal::TableFull));
            self.status.end();
        }
    }
}
