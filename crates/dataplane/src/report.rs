//! The report of a run: what `tailwater run --output json` prints. Field names are stable.

use crate::arrivals::{ArrivalSeries, bin_width};
use crate::attribution::Cause;
use crate::histogram::LatencyHistogram;
use crate::scaling::ScalingCounters;
use crate::telemetry::Window;
use crate::timeline::{Timeline, add_reasons};
use serde::Serialize;
use std::collections::BTreeMap;
use tailwater_net::Nanos;
use tailwater_nf::chain::{Outcome, Reason};

/// A run's results.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The chain's name.
    pub chain: String,
    /// The traffic's name: a file or a preset.
    pub traffic: String,
    /// The objective.
    pub slo: SloReport,
    /// Whether it was kept: at least `slo.percentile` percent of the packets that the chain did not
    /// drop by itself were delivered within `slo.latency_us`. Lost packets count as late.
    pub slo_met: bool,
    /// Latencies of all delivered packets, in microseconds. Nothing is left out.
    pub latency_us: LatencyReport,
    /// Their distribution: its last point holds all packets and the longest latency.
    pub latency_distribution: Vec<DistributionPoint>,
    /// Packets, exactly: `offered = delivered + dropped_by_nf + lost`.
    pub packets: PacketReport,
    /// Lost packets as a share of the offered ones.
    pub loss_rate: f64,
    /// Delivered packets a second, in millions.
    pub throughput_mpps: f64,
    /// Delivered bits a second, in billions (Ethernet frames without check sequence).
    pub throughput_gbps: f64,
    /// From the first arrival to the last departure, in seconds.
    pub duration_s: f64,
    /// Cores used.
    pub cores: CoreReport,
    /// Late and lost packets by cause.
    pub late_by_cause: BTreeMap<&'static str, u64>,
    /// What was handed to auxiliary cores, if there are any.
    pub scaling: Option<ScalingCounters>,
    /// The flow table, if the chain has one.
    pub flows: Option<FlowReport>,
    /// The run cut into windows, to tell the machine's hiccups from the chain's.
    pub windows: WindowsReport,
    /// The whole run over time, in at most 400 steps.
    pub timeline: TimelineReport,
    /// Arrivals over time, finer, in at most 1024 steps.
    pub arrivals: ArrivalReport,
    /// Whether the run ended early, by a signal.
    pub interrupted: bool,
}

/// The objective.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SloReport {
    /// Latency, in microseconds.
    pub latency_us: f64,
    /// The percentile of packets that must keep it.
    pub percentile: f64,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencyReport {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The longest.
    pub max: f64,
    /// Mean.
    pub mean: f64,
}

impl LatencyReport {
    pub(crate) fn of(histogram: &LatencyHistogram) -> LatencyReport {
        let percentile = |p| histogram.percentile(p).as_micros_f64();
        LatencyReport {
            p50: percentile(50.0),
            p90: percentile(90.0),
            p99: percentile(99.0),
            p999: percentile(99.9),
            max: histogram.max().as_micros_f64(),
            mean: histogram.sum().as_micros_f64() / histogram.total().max(1) as f64,
        }
    }
}

/// A point of the distribution of latencies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DistributionPoint {
    /// A latency, in microseconds.
    pub latency_us: f64,
    /// Delivered packets that did not take longer.
    pub packets: u64,
}

/// What became of the packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PacketReport {
    /// Packets that arrived for the chain.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets dropped because a function or the spec says so.
    pub dropped_by_nf: u64,
    /// Packets lost for want of room or time.
    pub lost: u64,
    /// Packets of the traffic that `spec.match` leaves to others; not offered.
    pub not_matched: u64,
    /// Why packets were dropped or lost, and malformed or non-IP ones passed; only what occurred.
    pub reasons: BTreeMap<String, u64>,
}

/// Cores used.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CoreReport {
    /// Cores that polled a queue all the time.
    pub dedicated: u64,
    /// Cores recruited when needed, averaged over time.
    pub auxiliary_avg: f64,
    /// Both.
    pub avg: f64,
}

/// What the flow table did.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FlowReport {
    /// Flows in the table at the end.
    pub active: u64,
    /// Flows entered.
    pub opened: u64,
    /// Flows forgotten because they were idle.
    pub expired: u64,
    /// Flows that made room for others.
    pub evicted: u64,
    /// New flows that found no place.
    pub refused: u64,
    /// Bytes of memory for entries and state.
    pub memory_bytes: u64,
}

/// The run cut into windows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WindowsReport {
    /// A window's length, in milliseconds.
    pub length_ms: f64,
    /// Windows in which packets arrived, or left.
    pub count: u64,
    /// Of those, windows in which some worker was off its core for longer than 20 µs at a time and,
    /// in all, for more than 0.1 % of the window.
    pub flagged: u64,
    /// The share of the windows that are not flagged in which the objective was kept; 1 if all
    /// are flagged.
    pub unflagged_slo_met: f64,
    /// The median of each figure over the windows in `list`, flagged ones too.
    pub median_latency_us: LatencyReport,
    /// Windows left out of `list`, and of the median, because the list was full; never of the
    /// counts.
    pub omitted: u64,
    /// The windows in order.
    pub list: Vec<WindowReport>,
}

/// One window.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WindowReport {
    /// When it starts, in seconds from the run's start.
    pub start_s: f64,
    /// Packets that arrived.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets later than the objective's latency.
    pub late: u64,
    /// Latencies, in microseconds.
    pub latency_us: LatencyReport,
    /// Times a worker was off its core.
    pub gaps: u64,
    /// How long in all, in microseconds.
    pub gap_us: f64,
    /// The longest, in microseconds.
    pub longest_gap_us: f64,
    /// Whether that spoils the window.
    pub flagged: bool,
    /// Whether the objective was kept.
    pub slo_met: bool,
}

/// The run over time. A step is one window, or in a long run 2, 4, 8 ... of them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TimelineReport {
    /// A step's length, in milliseconds.
    pub step_ms: f64,
    /// The steps in order, from the run's start, those without packets too.
    pub list: Vec<StepReport>,
}

/// One step.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// When it starts, in seconds from the run's start.
    pub start_s: f64,
    /// Windows with packets in it.
    pub windows: u64,
    /// Of those, flagged ones.
    pub flagged: u64,
    /// Packets that arrived.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets dropped because a function or the spec says so.
    pub dropped_by_nf: u64,
    /// Packets lost.
    pub lost: u64,
    /// Late and lost packets by cause.
    pub late_by_cause: BTreeMap<&'static str, u64>,
    /// Dropped packets by reason; only what occurred.
    pub dropped_by_reason: BTreeMap<String, u64>,
    /// Lost packets by reason; only what occurred.
    pub lost_by_reason: BTreeMap<String, u64>,
    /// Latencies of the packets sent, in microseconds.
    pub latency_us: LatencyReport,
    /// The share of the workers' time that packets took, 0 to 1.
    pub busy: f64,
}

/// Arrivals over time. They are counted in bins, of which one or more make a step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ArrivalReport {
    /// A bin's width, in milliseconds.
    pub bin_ms: f64,
    /// A step's length, in milliseconds.
    pub step_ms: f64,
    /// Packets that arrived, step by step from the run's start.
    pub packets: Vec<u64>,
    /// Packets in the busiest bin of each step.
    pub busiest_bin: Vec<u64>,
}

/// Reasons of packets that were lost outside the chain.
pub(crate) const RING_FULL: &str = "nic-ring-full";
pub(crate) const NOT_DRAINED: &str = "not-drained";

/// The most windows kept in a report.
const MAX_LISTED: usize = 10_000;

/// What share of a window gaps may take before it is flagged.
const FLAGGED_SHARE: f64 = 0.001;

/// Adds windows up as they come.
#[derive(Debug)]
pub(crate) struct Collector {
    slo: (Nanos, f64),
    window: Nanos,
    /// Windows that some worker may still add to.
    open: BTreeMap<u64, OpenWindow>,
    /// Every window before this index is closed.
    closed: u64,
    /// The index of the last window of each worker; `None` before its first.
    last: Vec<Option<u64>>,
    /// All windows' sum.
    pub(crate) total: Window,
    list: Vec<WindowReport>,
    omitted: u64,
    flagged: u64,
    unflagged_met: u64,
    count: u64,
    /// Latest reason counts of each worker.
    reasons: Vec<Vec<u64>>,
    timeline: Timeline,
    arrivals: ArrivalSeries,
}

/// A window that is being added up.
#[derive(Debug, Default)]
struct OpenWindow {
    sum: Window,
    /// The time that the worker who lost most lost to gaps.
    worst_gap_time: Nanos,
    /// Packets for each of the chain's reasons.
    reasons: Vec<u64>,
}

/// The most windows kept open for a worker that is behind.
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
            count: 0,
            reasons: vec![Vec::new(); workers],
            timeline: Timeline::new(window),
            arrivals: ArrivalSeries::default(),
        }
    }

    /// Takes in a worker's window.
    pub(crate) fn add(&mut self, window: &Window) {
        self.total.merge(window);
        self.arrivals.add(&window.arrivals);
        let before = &mut self.reasons[window.worker];
        before.resize(window.reasons.len(), 0);
        let counts = window.reasons.iter().zip(&*before);
        let reasons: Vec<u64> = counts
            .map(|(now, before)| now.saturating_sub(*before))
            .collect();
        before.clone_from(&window.reasons);
        self.last[window.worker] = Some(window.index);
        // What comes too late for its own window is counted in the oldest that is still open.
        let open = self.open.entry(window.index.max(self.closed)).or_default();
        open.sum.merge(window);
        add_reasons(&mut open.reasons, &reasons);
        open.worst_gap_time = open.worst_gap_time.max(window.gap_time);
        let complete = self
            .last
            .iter()
            .map(|last| last.map_or(0, |last| last + 1))
            .min();
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
        if offered + delivered + dropped + open.sum.lost() == 0 {
            return;
        }
        let report = self.window_report(index, open);
        self.timeline
            .add(index, &open.sum, &open.reasons, report.flagged);
        self.count += 1;
        self.flagged += u64::from(report.flagged);
        self.unflagged_met += u64::from(!report.flagged && report.slo_met);
        if self.list.len() < MAX_LISTED {
            self.list.push(report);
        } else {
            self.omitted += 1;
        }
    }

    fn window_report(
        &self,
        index: u64,
        OpenWindow {
            sum,
            worst_gap_time,
            ..
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
            slo_met: slo_met(sum, self.slo.1),
        }
    }

    /// Counts for each reason, over all workers.
    pub(crate) fn reason_totals(&self) -> Vec<u64> {
        let longest = self.reasons.iter().map(Vec::len).max().unwrap_or(0);
        (0..longest)
            .map(|i| self.reasons.iter().filter_map(|counts| counts.get(i)).sum())
            .collect()
    }

    /// Packets by fate, in all.
    pub(crate) fn packets(&self, reasons: &[Reason], not_matched: u64) -> PacketReport {
        let totals = self.reason_totals();
        let mut report = PacketReport {
            offered: self.total.offered,
            delivered: self.total.delivered,
            not_matched,
            ..PacketReport::default()
        };
        let ring = (
            RING_FULL.to_owned(),
            Outcome::Lost,
            self.total.lost_ring_full,
        );
        let end = (
            NOT_DRAINED.to_owned(),
            Outcome::Lost,
            self.total.lost_undrained,
        );
        let chain = reasons.iter().zip(totals);
        let chain = chain.map(|(reason, count)| (reason.name.clone(), reason.outcome, count));
        for (name, outcome, count) in chain.chain([ring, end]).filter(|(.., count)| *count > 0) {
            match outcome {
                Outcome::Dropped => report.dropped_by_nf += count,
                Outcome::Lost => report.lost += count,
                Outcome::Passed => {}
            }
            report.reasons.insert(name, count);
        }
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

    /// The distribution of latencies, in steps of less than 3.2 %.
    pub(crate) fn distribution(&self) -> Vec<DistributionPoint> {
        let latency = &self.total.latency;
        let points = latency.coarse_cumulative();
        points
            .map(|(value, packets)| DistributionPoint {
                latency_us: value.min(latency.max()).as_micros_f64(),
                packets,
            })
            .collect()
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

    /// Closes what is open and gives the run over time, which lasted so long.
    pub(crate) fn timeline(&mut self, reasons: &[Reason], lasted: Nanos) -> TimelineReport {
        self.close_all();
        self.timeline.report(reasons, lasted, self.last.len())
    }

    fn close_all(&mut self) {
        while !self.open.is_empty() {
            self.close_first();
        }
    }

    /// Whether all packets together kept the objective.
    pub(crate) fn slo_met(&self) -> bool {
        slo_met(&self.total, self.slo.1)
    }

    /// Closes what is open and gives the windows.
    pub(crate) fn windows(&mut self) -> WindowsReport {
        self.close_all();
        let unflagged = self.count - self.flagged;
        WindowsReport {
            length_ms: self.window.as_secs_f64() * 1e3,
            count: self.count,
            flagged: self.flagged,
            unflagged_slo_met: match unflagged {
                0 => 1.0,
                _ => self.unflagged_met as f64 / unflagged as f64,
            },
            median_latency_us: median(&self.list),
            omitted: self.omitted,
            list: std::mem::take(&mut self.list),
        }
    }
}

/// Whether so many percent of the packets, lost ones counting as late, kept the latency.
fn slo_met(window: &Window, percentile: f64) -> bool {
    let all = (window.delivered + window.lost()) as f64;
    let in_time = all - window.late_or_lost() as f64;
    // A billionth of slack for percentiles that no binary fraction hits.
    in_time * 100.0 >= all * (percentile - 1e-9)
}

/// The median of each figure over the windows.
fn median(list: &[WindowReport]) -> LatencyReport {
    let of = |figure: fn(&LatencyReport) -> f64| {
        let mut values: Vec<f64> = list
            .iter()
            .map(|window| figure(&window.latency_us))
            .collect();
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
mod tests {
    use super::*;

    const SLO: (Nanos, f64) = (Nanos::from_micros(200), 99.0);

    fn window(worker: usize, index: u64, latencies_us: &[u64]) -> Window {
        let mut window = Window {
            worker,
            index,
            ..Window::default()
        };
        for &us in latencies_us {
            window.latency.record(Nanos::from_micros(us));
            window.late[0] += u64::from(Nanos::from_micros(us) > SLO.0);
            window.offered += 1;
            window.delivered += 1;
        }
        window
    }

    #[test]
    fn windows_of_all_workers_are_added_up() {
        let mut collector = Collector::new(SLO, Nanos::from_millis(300), 2);
        collector.add(&window(0, 0, &[10, 20]));
        collector.add(&window(0, 1, &[30]));
        collector.add(&window(1, 0, &[40]));
        collector.add(&window(1, 1, &[1000]));
        let report = collector.windows();
        assert_eq!(report.count, 2);
        assert_eq!(
            report.list.iter().map(|w| w.offered).collect::<Vec<_>>(),
            [3, 2]
        );
        assert_eq!(
            report.list.iter().map(|w| w.late).collect::<Vec<_>>(),
            [0, 1]
        );
        assert_eq!(report.unflagged_slo_met, 0.5);
        assert_eq!(collector.total.offered, 5);
    }

    #[test]
    fn a_window_with_gaps_is_flagged_and_still_counted() {
        let mut collector = Collector::new(SLO, Nanos::from_millis(300), 1);
        let mut bad = window(0, 0, &[10, 5000]);
        (bad.gaps, bad.gap_time) = (1, Nanos::from_millis(5));
        collector.add(&bad);
        collector.add(&window(0, 1, &[10]));
        let report = collector.windows();
        assert_eq!(
            (report.count, report.flagged, report.unflagged_slo_met),
            (2, 1, 1.0)
        );
        assert!(
            !collector.slo_met(),
            "flagged windows still count for the whole"
        );
    }

    #[test]
    fn lost_packets_count_as_late() {
        for (lost, met) in [(1, true), (2, false)] {
            let mut collector = Collector::new(SLO, Nanos::from_millis(300), 1);
            let mut all = window(0, 0, &[10; 99]);
            all.lost_in_chain = lost;
            all.late[Cause::NoPlace as usize] = lost;
            collector.add(&all);
            assert_eq!(collector.slo_met(), met);
            let report = collector.windows();
            assert_eq!((report.list[0].lost, report.list[0].late), (lost, 0));
            assert_eq!(report.list[0].slo_met, met);
        }
    }

    /// `1 - 99.9 / 100` is a little less than a thousandth, and once that refused a run in which
    /// exactly one packet of a thousand was late.
    #[test]
    fn exactly_the_promised_share_is_enough() {
        for (percentile, packets) in [(99.9, 1000), (90.0, 10), (99.0, 100), (99.99, 10_000)] {
            let mut latencies = vec![10; packets - 1];
            latencies.push(1000);
            assert!(
                slo_met(&window(0, 0, &latencies), percentile),
                "{percentile}"
            );
            latencies.push(1000);
            assert!(
                !slo_met(&window(0, 0, &latencies), percentile),
                "{percentile}"
            );
        }
    }

    /// A worker more than two windows behind the others once made windows appear twice.
    #[test]
    fn a_worker_that_is_behind_does_not_repeat_windows() {
        let mut collector = Collector::new(SLO, Nanos::from_millis(300), 2);
        for index in 0..5 {
            collector.add(&window(0, index, &[10]));
        }
        for index in 0..5 {
            collector.add(&window(1, index, &[10]));
        }
        let report = collector.windows();
        let starts: Vec<u64> = report
            .list
            .iter()
            .map(|w| (w.start_s * 10.0) as u64)
            .collect();
        assert_eq!(starts, [0, 3, 6, 9, 12]);
        assert!(report.list.iter().all(|window| window.offered == 2));
        // One that never comes does not make the list of open windows grow for ever.
        let mut collector = Collector::new(SLO, Nanos::from_millis(300), 2);
        (0..1000).for_each(|index| collector.add(&window(0, index, &[10])));
        assert!(collector.open.len() <= MAX_OPEN);
        collector.add(&window(1, 3, &[10]));
        assert_eq!(collector.windows().count, 1000);
    }

    #[test]
    fn an_endless_run_keeps_a_bounded_list() {
        let mut collector = Collector::new(SLO, Nanos::from_millis(1), 1);
        for index in 0..MAX_LISTED as u64 + 5 {
            collector.add(&window(0, index, &[10]));
        }
        let report = collector.windows();
        assert_eq!((report.list.len(), report.omitted), (MAX_LISTED, 5));
        assert_eq!(report.count, MAX_LISTED as u64 + 5);
    }
}
