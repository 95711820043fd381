//! Run over time, as a series of bounded length: windows summed up to steps.

use crate::attribution::Cause;
use crate::histogram::LatencyHistogram;
use crate::report::reasons::{
    DAMAGED, FLOW_OVERLOAD, IN_PIECES, NOT_DRAINED, NOT_SENT, RING_FULL, TOO_LATE, WORKER_DIED,
};
use crate::report::{LatencyReport, StepReport, TimelineReport};
use crate::telemetry::Window;
use std::collections::BTreeMap;
use tailwater_chain::chain::{Outcome, Reason};
use tailwater_net::Nanos;

/// Maximum number of steps: 12 MB, most of it histograms.
const MAX_STEPS: u64 = 400;

/// Windows summed up, one or more per step. When the series is full, pairs of steps are merged.
#[derive(Debug)]
pub(crate) struct Timeline {
    window: Nanos,
    windows_per_step: u64,
    steps: Vec<Step>,
}

/// Sum of some windows.
#[derive(Clone, Debug, Default)]
struct Step {
    windows: u64,
    flagged: u64,
    latency: LatencyHistogram,
    offered: u64,
    delivered: u64,
    dropped: u64,
    lost: u64,
    lost_ring_full: u64,
    lost_undrained: u64,
    lost_with_worker: u64,
    lost_unsent: u64,
    lost_in_pieces: u64,
    lost_flow_overload: u64,
    lost_too_late: u64,
    dropped_damaged: u64,
    late: [u64; Cause::ALL.len()],
    busy: Nanos,
    /// Counts for each of the chain's reasons.
    reasons: Vec<u64>,
}

impl Step {
    fn merge(&mut self, other: &Step) {
        self.windows += other.windows;
        self.flagged += other.flagged;
        self.latency.merge(&other.latency);
        self.offered += other.offered;
        self.delivered += other.delivered;
        self.dropped += other.dropped;
        self.lost += other.lost;
        self.lost_ring_full += other.lost_ring_full;
        self.lost_undrained += other.lost_undrained;
        self.lost_with_worker += other.lost_with_worker;
        self.lost_unsent += other.lost_unsent;
        self.lost_in_pieces += other.lost_in_pieces;
        self.lost_flow_overload += other.lost_flow_overload;
        self.lost_too_late += other.lost_too_late;
        self.dropped_damaged += other.dropped_damaged;
        self.busy += other.busy;
        self.late
            .iter_mut()
            .zip(other.late)
            .for_each(|(mine, theirs)| *mine += theirs);
        add_reasons(&mut self.reasons, &other.reasons);
    }
}

/// Adds counts of reasons to others.
pub(crate) fn add_reasons(mine: &mut Vec<u64>, theirs: &[u64]) {
    mine.resize(mine.len().max(theirs.len()), 0);
    mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
}

impl Timeline {
    /// Creates a timeline for windows of this length.
    pub(crate) fn new(window: Nanos) -> Timeline {
        Timeline {
            window,
            windows_per_step: 1,
            steps: Vec::new(),
        }
    }

    /// Adds the sum of all workers' windows with this number, and their counts for each reason.
    pub(crate) fn add(&mut self, index: u64, sum: &Window, reasons: &[u64], flagged: bool) {
        while index / self.windows_per_step >= MAX_STEPS {
            self.halve();
        }
        let place = (index / self.windows_per_step) as usize;
        if place >= self.steps.len() {
            self.steps.resize_with(place + 1, Step::default);
        }
        let step = &mut self.steps[place];
        step.windows += 1;
        step.flagged += u64::from(flagged);
        step.latency.merge(&sum.latency);
        step.offered += sum.offered;
        step.delivered += sum.delivered;
        step.dropped += sum.dropped;
        step.lost += sum.lost();
        step.lost_ring_full += sum.lost_ring_full;
        step.lost_undrained += sum.lost_undrained;
        step.lost_with_worker += sum.lost_with_worker;
        step.lost_unsent += sum.lost_unsent;
        step.lost_in_pieces += sum.lost_in_pieces;
        step.lost_flow_overload += sum.lost_flow_overload;
        step.lost_too_late += sum.lost_too_late;
        step.dropped_damaged += sum.dropped_damaged;
        step.busy += sum.busy;
        step.late
            .iter_mut()
            .zip(sum.late)
            .for_each(|(mine, late)| *mine += late);
        add_reasons(&mut step.reasons, reasons);
    }

    fn halve(&mut self) {
        let mut halved: Vec<Step> = Vec::with_capacity(self.steps.len().div_ceil(2));
        for (place, step) in self.steps.drain(..).enumerate() {
            match halved.last_mut() {
                Some(last) if place % 2 == 1 => last.merge(&step),
                _ => halved.push(step),
            }
        }
        self.steps = halved;
        self.windows_per_step *= 2;
    }

    /// Report of a run of duration `lasted` on `workers` cores.
    pub(crate) fn report(&self, reasons: &[Reason], lasted: Nanos, workers: usize) -> TimelineReport {
        let length = Nanos(self.window.0.saturating_mul(self.windows_per_step));
        let steps = self.steps.iter().zip(0u64..).map(|(step, place)| {
            let start = Nanos(length.0.saturating_mul(place));
            // The last step ends with the run.
            let covered = length.min(lasted.saturating_sub(start)).0.max(1) * workers.max(1) as u64;
            let by_reason = |outcome: Outcome| by_reason(step, reasons, outcome);
            StepReport {
                start_s: start.as_secs_f64(),
                windows: step.windows,
                flagged: step.flagged,
                offered: step.offered,
                delivered: step.delivered,
                dropped_by_nf: step.dropped,
                lost: step.lost,
                late_by_cause: Cause::ALL
                    .iter()
                    .map(|&cause| (cause.name(), step.late[cause as usize]))
                    .collect(),
                dropped_by_reason: by_reason(Outcome::Dropped),
                lost_by_reason: by_reason(Outcome::Lost),
                latency_us: LatencyReport::of(&step.latency),
                busy: (step.busy.0 as f64 / covered as f64).min(1.0),
            }
        });
        TimelineReport {
            step_ms: length.as_secs_f64() * 1e3,
            list: steps.collect(),
        }
    }
}

/// Counts of the reasons with this outcome. Only those that occurred.
fn by_reason(step: &Step, reasons: &[Reason], outcome: Outcome) -> BTreeMap<String, u64> {
    let chain = reasons.iter().zip(&step.reasons);
    let chain = chain
        .filter(|(reason, _)| reason.outcome == outcome)
        .map(|(reason, &count)| (reason.name.as_str(), count));
    let lost = Outcome::Lost;
    let nic = [
        (RING_FULL, lost, step.lost_ring_full),
        (NOT_DRAINED, lost, step.lost_undrained),
        (WORKER_DIED, lost, step.lost_with_worker),
        (NOT_SENT, lost, step.lost_unsent),
        (IN_PIECES, lost, step.lost_in_pieces),
        (FLOW_OVERLOAD, lost, step.lost_flow_overload),
        (TOO_LATE, lost, step.lost_too_late),
        (DAMAGED, Outcome::Dropped, step.dropped_damaged),
    ];
    let nic = nic.into_iter().filter(|(_, of, _)| *of == outcome);
    let nic = nic.map(|(name, _, count)| (name, count));
    chain
        .chain(nic)
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(us: u64) -> Window {
        let mut window = Window {
            offered: 3,
            delivered: 1,
            dropped: 1,
            lost_ring_full: 1,
            busy: Nanos::from_millis(30),
            ..Window::default()
        };
        window.latency.record(Nanos::from_micros(us));
        window.late[Cause::RingFull as usize] = 1;
        window
    }

    #[test]
    fn a_long_run_has_a_bounded_timeline_with_everything_in_it() {
        let reasons = [Outcome::Passed, Outcome::Dropped].map(|outcome| Reason {
            function: None,
            name: format!("{outcome:?}"),
            outcome,
        });
        let mut timeline = Timeline::new(Nanos::from_millis(300));
        let count = 1000;
        for index in 0..count {
            timeline.add(index, &window(index + 1), &[5, 1], index % 2 == 0);
        }
        let lasted = Nanos::from_millis(300 * count);
        let report = timeline.report(&reasons, lasted, 2);
        assert_eq!((report.step_ms, report.list.len()), (1200.0, 250));
        for (place, step) in report.list.iter().enumerate() {
            assert_eq!((step.windows, step.flagged, step.offered), (4, 2, 12));
            assert!((step.start_s - place as f64 * 1.2).abs() < 1e-9);
            assert_eq!(step.dropped_by_reason, [("Dropped".to_owned(), 4)].into());
            let ring_full = ("nic-ring-full".to_owned(), 4);
            assert_eq!(step.lost_by_reason, [ring_full].into());
            assert_eq!(step.late_by_cause["nic-ring-full"], 4);
            assert_eq!(step.latency_us.max, (place * 4 + 4) as f64);
            assert!((step.busy - 0.05).abs() < 1e-9);
        }
    }

    #[test]
    fn windows_without_packets_leave_empty_steps() {
        let mut timeline = Timeline::new(Nanos::from_millis(1));
        timeline.add(3, &window(10), &[], false);
        timeline.add(1 << 40, &window(10), &[], false);
        let report = timeline.report(&[], Nanos::from_secs(1), 1);
        assert!(report.list.len() as u64 <= MAX_STEPS);
        assert_eq!(report.list.iter().map(|step| step.offered).sum::<u64>(), 6);
        assert_eq!(report.list[1].windows, 0);
        assert_eq!(report.list[1].latency_us, LatencyReport::default());
    }
}
