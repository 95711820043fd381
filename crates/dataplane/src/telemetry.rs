//! Measurements of a worker by window, and their path off the data path.

use crate::arrivals::ArrivalBins;
use crate::attribution::Cause;
use crate::histogram::LatencyHistogram;
use crate::scaling::counters::{BucketCounters, ScalingCounters};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tailwater_chain::chain::FunctionTotals;
use tailwater_net::Nanos;

/// All measurements of one worker in one window. Sums of windows are the run's totals: nothing is counted anywhere
/// else. A new counter also needs a line in [`merge`](Window::merge).
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Index of the worker.
    pub worker: usize,
    /// Windows since the run's start.
    pub index: u64,
    /// Latency of every packet sent: from the scheduled arrival to the end of transmission.
    pub latency: LatencyHistogram,
    /// Packets that arrived.
    pub offered: u64,
    /// Their arrivals over time.
    pub arrivals: ArrivalBins,
    /// Packets sent.
    pub delivered: u64,
    /// Bytes of the packets sent.
    pub delivered_bytes: u64,
    /// Packets dropped by the chain's input or a function.
    pub dropped: u64,
    /// Packets lost in the chain, for lack of resources.
    pub lost_in_chain: u64,
    /// Packets lost because the descriptor ring was full.
    pub lost_ring_full: u64,
    /// Packets still in the ring when the run's time was over.
    pub lost_undrained: u64,
    /// Packets held by a worker when it panicked.
    pub lost_with_worker: u64,
    /// Packets that the port did not accept for sending.
    pub lost_unsent: u64,
    /// Packets received in several buffers and too long for one.
    pub lost_in_pieces: u64,
    /// Packets of flows with more than their share of the packet buffers, of which few were left.
    pub lost_flow_overload: u64,
    /// Packets that could not be in time any more, discarded under overload since the chain's spec allows it.
    pub lost_too_late: u64,
    /// Dropped packets whose checksums a device found wrong.
    pub dropped_damaged: u64,
    /// Packets beyond the SLO, and lost ones, by [`Cause`].
    pub late: [u64; Cause::ALL.len()],
    /// Those of them that more cores can remedy, other than packets that found the NIC's ring full.
    pub late_remediable: u64,
    /// Number of preemptions of the worker.
    pub gaps: u64,
    /// Their total duration.
    pub gap_time: Nanos,
    /// Longest one.
    pub longest_gap: Nanos,
    /// Time spent on packets.
    pub busy: Nanos,
    /// Batches on which this time was spent.
    pub batches: u64,
    /// Packets of these batches.
    pub processed: u64,
    /// Time for which the worker, without an RSS bucket, yielded its core.
    pub rested: Nanos,
    /// Time for which auxiliary cores were activated, summed over all.
    pub auxiliary: Nanos,
    /// Wake-up times of the worker, if it is on an auxiliary core.
    pub wakes: LatencyHistogram,
    /// Counters of the worker as a dispatcher.
    pub scaling: ScalingCounters,
    /// Counters of RSS buckets that migrated to this worker.
    pub buckets: BucketCounters,
    /// Time at which the last packet had been sent, on the run's clock.
    pub last_sent: Nanos,
    /// The chain's [reason counts](tailwater_chain::chain::Chain::reason_counts) at the window's end, since the start.
    pub reasons: Vec<u64>,
    /// The chain's [totals of functions](tailwater_chain::chain::Chain::function_totals) at the window's end, since the
    /// start.
    pub functions: Vec<FunctionTotals>,
    /// Flows of the worker at the window's end.
    pub flows: u64,
}

impl Window {
    fn clear(&mut self) {
        self.latency.clear();
        self.wakes.clear();
        let latency = std::mem::take(&mut self.latency);
        let wakes = std::mem::take(&mut self.wakes);
        let reasons = std::mem::take(&mut self.reasons);
        let functions = std::mem::take(&mut self.functions);
        *self = Window {
            latency,
            wakes,
            reasons,
            functions,
            ..Window::default()
        };
    }

    /// Packets lost, for any reason.
    pub fn lost(&self) -> u64 {
        self.lost_ring_full
            + self.lost_undrained
            + self.lost_with_worker
            + self.lost_unsent
            + self.lost_in_pieces
            + self.lost_flow_overload
            + self.lost_too_late
            + self.lost_in_chain
    }

    /// Packets beyond the SLO, lost ones included, for causes that more cores can remedy.
    pub fn late_for_want_of_cores(&self) -> u64 {
        self.late_remediable + self.late[Cause::RingFull as usize]
    }

    /// Packets beyond the SLO, lost ones included.
    pub fn late_or_lost(&self) -> u64 {
        self.late.iter().sum()
    }

    /// Adds another window's counts, except its arrivals over time, which a series sums up, and its reasons,
    /// functions and flows, which are another worker's at the end.
    pub fn merge(&mut self, other: &Window) {
        self.latency.merge(&other.latency);
        self.offered += other.offered;
        self.delivered += other.delivered;
        self.delivered_bytes += other.delivered_bytes;
        self.dropped += other.dropped;
        self.lost_in_chain += other.lost_in_chain;
        self.lost_ring_full += other.lost_ring_full;
        self.lost_undrained += other.lost_undrained;
        self.lost_with_worker += other.lost_with_worker;
        self.lost_unsent += other.lost_unsent;
        self.lost_in_pieces += other.lost_in_pieces;
        self.lost_flow_overload += other.lost_flow_overload;
        self.lost_too_late += other.lost_too_late;
        self.dropped_damaged += other.dropped_damaged;
        self.late_remediable += other.late_remediable;
        self.late
            .iter_mut()
            .zip(other.late)
            .for_each(|(mine, theirs)| *mine += theirs);
        self.gaps += other.gaps;
        self.gap_time += other.gap_time;
        self.longest_gap = self.longest_gap.max(other.longest_gap);
        self.busy += other.busy;
        self.batches += other.batches;
        self.processed += other.processed;
        self.rested += other.rested;
        self.auxiliary += other.auxiliary;
        self.wakes.merge(&other.wakes);
        self.scaling.merge(&other.scaling);
        self.buckets.merge(&other.buckets);
        self.last_sent = self.last_sent.max(other.last_sent);
    }
}

/// Windows per worker: one being filled, the others in transit.
const WINDOWS: usize = 4;

/// Worker's end of the telemetry channel. It fills a window, sends it and gets an empty one back, so nothing is
/// allocated while packets flow.
#[derive(Debug)]
pub struct WindowSender {
    worker: usize,
    /// Window being filled.
    pub window: Box<Window>,
    full: SyncSender<Box<Window>>,
    empty: Receiver<Box<Window>>,
}

/// Collector's end.
#[derive(Debug)]
pub struct WindowReceiver {
    full: Receiver<Box<Window>>,
    empty: Vec<SyncSender<Box<Window>>>,
}

/// Channel from `workers` workers to one collector, for chains with `reasons` [reasons](Window::reasons) and
/// `functions` functions.
pub fn windows(workers: usize, [reasons, functions]: [usize; 2]) -> (Vec<WindowSender>, WindowReceiver) {
    let (full, filled) = sync_channel(workers * (WINDOWS + 1));
    let (mut senders, mut empties) = (Vec::new(), Vec::new());
    for worker in 0..workers {
        let (back, empty) = sync_channel(WINDOWS);
        let window = || {
            Box::new(Window {
                worker,
                reasons: Vec::with_capacity(reasons),
                functions: Vec::with_capacity(functions),
                ..Window::default()
            })
        };
        (1..WINDOWS).for_each(|_| drop(back.send(window())));
        empties.push(back);
        senders.push(WindowSender {
            worker,
            window: window(),
            full: full.clone(),
            empty,
        });
    }
    (
        senders,
        WindowReceiver {
            full: filled,
            empty: empties,
        },
    )
}

impl WindowSender {
    /// Sends the window and starts one numbered `next`. If the collector is behind, the old window stays open and
    /// includes the next one's time: no count is lost.
    pub fn roll(&mut self, next: u64) {
        if let Ok(mut fresh) = self.empty.try_recv() {
            fresh.worker = self.worker;
            fresh.index = next;
            let full = std::mem::replace(&mut self.window, fresh);
            // The channel has room for every window. Without a collector none is needed.
            let _ = self.full.try_send(full);
        }
    }

    /// Sends the last window.
    pub fn finish(self) {
        let _ = self.full.send(self.window);
    }
}

impl WindowReceiver {
    /// Passes the next window to `take`, if one arrives within `timeout`. Returns `Ok(None)` otherwise.
    ///
    /// # Errors
    /// If all workers have finished and every window has been received.
    pub fn receive(&self, timeout: std::time::Duration, take: impl FnOnce(&Window)) -> Result<Option<()>, Finished> {
        use std::sync::mpsc::RecvTimeoutError;
        match self.full.recv_timeout(timeout) {
            Ok(mut window) => {
                take(&window);
                let worker = window.worker;
                window.clear();
                // A worker that has finished needs no more windows.
                let _ = self.empty[worker].try_send(window);
                Ok(Some(()))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Finished),
        }
    }
}

/// All workers have finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_slow_collector_loses_nothing() {
        let (mut senders, receiver) = windows(1, [0, 0]);
        let mut sender = senders.pop().unwrap();
        // Far more windows than boxes, and no collector.
        for index in 0..100 {
            sender.window.offered += 1;
            sender.window.latency.record(Nanos(index));
            sender.roll(index + 1);
        }
        sender.finish();
        let mut all = Window::default();
        while receiver.receive(Duration::ZERO, |window| all.merge(window)).is_ok() {}
        assert_eq!((all.offered, all.latency.total()), (100, 100));
    }
}
