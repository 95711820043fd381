//! Collector: sums up the workers' windows into a report.

use super::reasons::{DAMAGED, FLOW_OVERLOAD, IN_PIECES, NOT_DRAINED, NOT_SENT, RING_FULL, TOO_LATE, WORKER_DIED};
use super::{
    ArrivalReport, DistributionPoint, LatencyReport, PacketReport, TimelineReport, WindowReport, WindowsReport,
};
use crate::arrivals::{ArrivalSeries, bin_width};
use crate::attribution::Cause;
use crate::run::progress::{LastWindow, RunWork};
use crate::telemetry::Window;
use crate::timeline::{Timeline, add_reasons};
use std::collections::BTreeMap;
use tailwater_chain::chain::{FunctionTotals, Outcome, Reason};
use tailwater_measure::verdict::{NoVerdict, is_within, verdict};
use tailwater_net::Nanos;

/// Maximum number of windows in a report.
const MAX_LISTED: usize = 10_000;

/// Share of a window beyond which gaps flag it.
const FLAGGED_SHARE: f64 = 0.001;

/// Sums up windows as they arrive.
#[derive(Debug)]
pub(crate) struct Collector {
    slo: (Nanos, f64),
    window: Nanos,
    /// Windows that some worker may still add to.
    open: BTreeMap<u64, OpenWindow>,
    /// Every window before this index is closed.
    closed: u64,
    /// Index of each worker's last window, or `None` before its first.
    last: Vec<Option<u64>>,
    /// Sum of all windows.
    pub(crate) total: Window,
    list: Vec<WindowReport>,
    omitted: u64,
    flagged: u64,
    unflagged_met: u64,
    unflagged_judged: u64,
    count: u64,
    /// Latest reason counts of each worker.
    reasons: Vec<Vec<u64>>,
    /// Latest totals of the functions of each worker.
    functions: Vec<Vec<FunctionTotals>>,
    /// Latest number of flows of each worker.
    flows: Vec<u64>,
    timeline: Timeline,
    arrivals: ArrivalSeries,
    last_window: Option<LastWindow>,
}

/// Window that is being summed up.
#[derive(Debug, Default)]
struct OpenWindow {
    sum: Window,
    /// Gap time of the worker that lost most.
    worst_gap_time: Nanos,
    /// Packets for each of the chain's reasons.
    reasons: Vec<u64>,
}

/// Maximum number of windows kept open for a worker that is behind.
const MAX_OPEN: usize = 64;

impl Collector {
    pub(crate) fn new(slo: (Nanos, f64), window: Nanos, workers: usize) -> Collector {
        Collector {
            slo,
            window,
            open: BTreeMap::new(),
            closed: 0,
            last: vec![None; workers],
            total: Window::default(),
            list: Vec::new(),
            omitted: 0,
            flagged: 0,
            unflagged_met: 0,
            unflagged_judged: 0,
            count: 0,
            reasons: vec![Vec::new(); workers],
            functions: vec![Vec::new(); workers],
            flows: vec![0; workers],
            timeline: Timeline::new(window),
            arrivals: ArrivalSeries::default(),
            last_window: None,
        }
    }

    /// Last window that has ended for all workers.
    pub(crate) fn last_window(&self) -> Option<LastWindow> {
        self.last_window
    }

    /// Adds a worker's window.
    pub(crate) fn add(&mut self, window: &Window) {
        self.total.merge(window);
        self.arrivals.add(&window.arrivals);
        let before = &mut self.reasons[window.worker];
        before.resize(window.reasons.len(), 0);
        let counts = window.reasons.iter().zip(&*before);
        let reasons: Vec<u64> = counts.map(|(now, before)| now.saturating_sub(*before)).collect();
        before.clone_from(&window.reasons);
        self.functions[window.worker].clone_from(&window.functions);
        self.flows[window.worker] = window.flows;
        self.last[window.worker] = Some(window.index);
        // A window that arrives too late is counted in the oldest that is still open.
        let open = self.open.entry(window.index.max(self.closed)).or_default();
        open.sum.merge(window);
        add_reasons(&mut open.reasons, &reasons);
        open.worst_gap_time = open.worst_gap_time.max(window.gap_time);
        let complete = self.last.iter().map(|last| last.map_or(0, |last| last + 1)).min();
        while let Some(first) = self.open.first_entry()
            && (Some(*first.key()) < complete || self.open.len() > MAX_OPEN)
        {
            self.close_first();
        }
    }

    fn close_first(&mut self) {
        if let Some((index, open)) = self.open.pop_first() {
            self.closed = index + 1;
            self.close(index, &open);
        }
    }

    fn close(&mut self, index: u64, open: &OpenWindow) {
        let Window {
            offered,
            delivered,
            dropped,
            ..
        } = open.sum;
        self.last_window = Some(self.figures(index, &open.sum));
        if offered + delivered + dropped + open.sum.lost() == 0 {
            return;
        }
        let report = self.window_report(index, open);
        self.timeline.add(index, &open.sum, &open.reasons, report.flagged);
        self.count += 1;
        self.flagged += u64::from(report.flagged);
        self.unflagged_met += u64::from(!report.flagged && report.slo_met == Some(true));
        self.unflagged_judged += u64::from(!report.flagged && report.slo_met.is_some());
        if self.list.len() < MAX_LISTED {
            self.list.push(report);
        } else {
            self.omitted += 1;
        }
    }

    /// Work in all windows so far.
    pub(crate) fn work(&self) -> RunWork {
        RunWork {
            until: Nanos(self.last_window.map_or(0, |window| (window.index + 1) * self.window.0)),
            offered: self.total.offered,
            processed: self.total.processed,
            busy: self.total.busy,
            late: self.total.late_for_want_of_cores(),
        }
    }

    fn figures(&self, index: u64, sum: &Window) -> LastWindow {
        LastWindow {
            index,
            length: self.window,
            offered: sum.offered,
            delivered: sum.delivered,
            dropped: sum.dropped + sum.dropped_damaged,
            lost: sum.lost(),
            late: sum.late_or_lost() - sum.lost(),
            busy: sum.busy,
            batches: sum.batches,
            processed: sum.processed,
            p50: sum.latency.percentile(50.0),
            p99: sum.latency.percentile(99.0),
            slo_met: window_met(sum, self.slo.1),
        }
    }

    fn window_report(
        &self,
        index: u64,
        OpenWindow {
            sum, worst_gap_time, ..
        }: &OpenWindow,
    ) -> WindowReport {
        let gap_share = worst_gap_time.as_secs_f64() / self.window.as_secs_f64().max(1e-9);
        WindowReport {
            start_s: Nanos(index * self.window.0).as_secs_f64(),
            offered: sum.offered,
            delivered: sum.delivered,
            lost: sum.lost(),
            late: sum.late_or_lost() - sum.lost(),
            latency_us: LatencyReport::of(&sum.latency),
            gaps: sum.gaps,
            gap_us: sum.gap_time.as_micros_f64(),
            longest_gap_us: sum.longest_gap.as_micros_f64(),
            flagged: gap_share > FLAGGED_SHARE,
            slo_met: window_met(sum, self.slo.1),
        }
    }

    /// Counts for each reason, summed over all workers.
    pub(crate) fn reason_totals(&self) -> Vec<u64> {
        let longest = self.reasons.iter().map(Vec::len).max().unwrap_or(0);
        (0..longest)
            .map(|i| self.reasons.iter().filter_map(|counts| counts.get(i)).sum())
            .collect()
    }

    /// Flows of all workers.
    pub(crate) fn flows(&self) -> u64 {
        self.flows.iter().sum()
    }

    /// Totals of each function, summed over all workers.
    pub(crate) fn function_totals(&self) -> Vec<FunctionTotals> {
        let longest = self.functions.iter().map(Vec::len).max().unwrap_or(0);
        let mut totals = vec![FunctionTotals::default(); longest];
        for worker in &self.functions {
            totals
                .iter_mut()
                .zip(worker)
                .for_each(|(sum, of_worker)| sum.add(of_worker));
        }
        totals
    }

    /// Packet counts of the run.
    pub(crate) fn packets(&self, reasons: &[Reason], not_matched: u64) -> PacketReport {
        let totals = self.reason_totals();
        let mut report = PacketReport {
            offered: self.total.offered,
            delivered: self.total.delivered,
            not_matched,
            ..PacketReport::default()
        };
        let outside = [
            (RING_FULL, Outcome::Lost, self.total.lost_ring_full),
            (NOT_DRAINED, Outcome::Lost, self.total.lost_undrained),
            (WORKER_DIED, Outcome::Lost, self.total.lost_with_worker),
            (NOT_SENT, Outcome::Lost, self.total.lost_unsent),
            (IN_PIECES, Outcome::Lost, self.total.lost_in_pieces),
            (FLOW_OVERLOAD, Outcome::Lost, self.total.lost_flow_overload),
            (TOO_LATE, Outcome::Lost, self.total.lost_too_late),
            (DAMAGED, Outcome::Dropped, self.total.dropped_damaged),
        ];
        let outside = outside.map(|(name, outcome, count)| {
            let reason = Reason {
                function: None,
                name: name.to_owned(),
                outcome,
            };
            (reason, count)
        });
        let outside = outside.iter().map(|(reason, count)| (reason, *count));
        for (reason, count) in reasons.iter().zip(totals).chain(outside) {
            match reason.outcome {
                Outcome::Dropped => report.dropped_by_nf += count,
                Outcome::Lost => report.lost += count,
                Outcome::Passed => {}
            }
            report.add(reason, count);
        }
        report.sort();
        report
    }

    pub(crate) fn late_by_cause(&self) -> BTreeMap<&'static str, u64> {
        Cause::ALL
            .iter()
            .map(|&cause| (cause.name(), self.total.late[cause as usize]))
            .collect()
    }

    pub(crate) fn latency(&self) -> LatencyReport {
        LatencyReport::of(&self.total.latency)
    }

    /// Cumulative latency distribution, in steps of less than 3.2 %.
    pub(crate) fn distribution(&self) -> Vec<DistributionPoint> {
        DistributionPoint::all(&self.total.latency)
    }

    /// Arrivals over time.
    pub(crate) fn arrivals(&mut self) -> ArrivalReport {
        let bin_ms = bin_width(self.window).as_secs_f64() * 1e3;
        let (bins_per_step, steps) = self.arrivals.finish();
        ArrivalReport {
            bin_ms,
            step_ms: bin_ms * bins_per_step as f64,
            packets: steps.iter().map(|step| step.packets).collect(),
            busiest_bin: steps.iter().map(|step| step.busiest_bin).collect(),
        }
    }

    /// Closes open windows and returns the timeline of a run of duration `lasted`.
    pub(crate) fn timeline(&mut self, reasons: &[Reason], lasted: Nanos) -> TimelineReport {
        self.close_all();
        self.timeline.report(reasons, lasted, self.last.len())
    }

    fn close_all(&mut self) {
        while !self.open.is_empty() {
            self.close_first();
        }
    }

    /// Returns `true` if all packets together met the objective.
    ///
    /// # Errors
    /// The reason for which there is no verdict.
    pub(crate) fn slo_met(&self) -> Result<bool, NoVerdict> {
        let total = &self.total;
        let owed = total.delivered + total.lost();
        verdict(total.offered, owed, total.late_or_lost(), self.slo.1)
    }

    /// Closes open windows and returns the list of windows.
    pub(crate) fn windows(&mut self) -> WindowsReport {
        self.close_all();
        WindowsReport {
            length_ms: self.window.as_secs_f64() * 1e3,
            count: self.count,
            flagged: self.flagged,
            unflagged_judged: self.unflagged_judged,
            unflagged_slo_met: (self.unflagged_judged > 0)
                .then(|| self.unflagged_met as f64 / self.unflagged_judged as f64),
            median_latency_us: median(&self.list),
            omitted: self.omitted,
            list: std::mem::take(&mut self.list),
        }
    }
}

/// Returns `true` if `percentile` percent of a window's packets met the latency, or `None` without packets. Lost ones
/// count as late.
fn window_met(window: &Window, percentile: f64) -> Option<bool> {
    let all = window.delivered + window.lost();
    (all > 0).then(|| is_within(window.late_or_lost(), all, percentile))
}

/// Median of each figure over the windows.
fn median(list: &[WindowReport]) -> LatencyReport {
    let of = |figure: fn(&LatencyReport) -> f64| {
        let mut values: Vec<f64> = list.iter().map(|window| figure(&window.latency_us)).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    LatencyReport {
        p50: of(|l| l.p50),
        p90: of(|l| l.p90),
        p99: of(|l| l.p99),
        p999: of(|l| l.p999),
        max: of(|l| l.max),
        mean: of(|l| l.mean),
    }
}

#[cfg(test)]
mod tests;
