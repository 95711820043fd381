//! Runs of a chain at a given load, and the windows of them that count.

use super::{SweepError, SweepOptions};
use crate::curve::{Measured, RepeatRule, Repeats};
use crate::measurement_core::{MeasurementCore, SATURATED_WINDOW, Setting, evaluated_windows};
use crate::traffic::evenly;
use crate::train::without_files;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::report::{RunReport, WindowReport};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_traffic::Trace;

/// Minimum number of windows for a result.
const ENOUGH: usize = 3;
/// Upper bound of a run's length, seconds, where the traffic has so many flows that one pass exceeds the requested
/// time.
const LONGEST_RUN: f64 = 0.5;
/// Maximum attempts until a packet is processed; each run is twice as long as the one before.
pub(super) const TRIES: u32 = 6;
/// Passes over the traffic in a run, if time permits.
const ROUNDS: f64 = 2.0;
/// Rate of the evenly spaced traffic, packets per second.
pub(super) const BASE_RATE: f64 = 1e6;

/// A chain and its traffic.
pub(super) struct Sweep<'a> {
    pub(super) lab: MeasurementCore<'a>,
    pub(super) spec: ChainSpec,
    /// Evenly spaced at a million packets per second.
    pub(super) traffic: Trace,
    pub(super) run_time: Nanos,
    /// Length of a saturated run.
    pub(super) saturated: Nanos,
}

impl<'a> Sweep<'a> {
    pub(super) fn new(
        spec: &ChainSpec,
        traffic: &Trace,
        options: &SweepOptions,
        stop: &'a AtomicBool,
    ) -> Result<Sweep<'a>, SweepError> {
        let lab = MeasurementCore {
            core: options.core,
            seed: options.seed,
            stop,
        };
        let mut sweep = Sweep {
            lab,
            spec: without_files(spec),
            traffic: evenly(&mut traffic.source(), BASE_RATE)?,
            run_time: options.run_time,
            saturated: options.run_time,
        };
        let rate = sweep.throughput()?;
        sweep.saturated = sweep.length(rate);
        Ok(sweep)
    }

    /// Returns the length of a run at `rate` packets per second.
    pub(super) fn length(&self, rate: f64) -> Nanos {
        let wanted = ROUNDS * self.traffic.len() as f64 / rate.max(1.0);
        let wanted = Nanos::from_secs_f64(wanted.min(LONGEST_RUN));
        self.run_time.max(wanted)
    }

    /// Repeats a measurement until its noise is low enough.
    pub(super) fn repeated(
        &self,
        rule: RepeatRule,
        run: impl Fn() -> Result<f64, SweepError>,
    ) -> Result<Measured, SweepError> {
        let mut repeats = Repeats::new(rule);
        // Runs without a figure do not count; the loop bounds their number.
        for _ in 0..2 * rule.most {
            repeats.tell(run()?);
            if repeats.enough() {
                break;
            }
        }
        repeats.outcome().ok_or(SweepError::Nothing(self.run_time))
    }

    /// Returns the saturated throughput, packets per second.
    pub(super) fn throughput(&self) -> Result<f64, SweepError> {
        self.saturated().map(|(rate, _)| rate)
    }

    /// Returns the saturated throughput, and the length of the run. If the core is preempted for a whole run, retries
    /// with longer ones.
    pub(super) fn saturated(&self) -> Result<(f64, Nanos), SweepError> {
        for longer in 0..TRIES {
            let (rate, length) = self.saturated_for(Nanos(self.saturated.0 << longer))?;
            if rate > 0.0 {
                return Ok((rate, length));
            }
        }
        Err(SweepError::Nothing(self.saturated))
    }

    fn saturated_for(&self, length: Nanos) -> Result<(f64, Nanos), SweepError> {
        let setting = Setting {
            duration: Some(length),
            ..Setting::default()
        };
        let report = self.lab.measured(&self.spec, self.traffic.clone(), &setting)?;
        Ok((self.rate(&report), Nanos::from_secs_f64(report.duration_s)))
    }

    /// Returns the packets per second of a saturated run.
    pub(super) fn rate(&self, report: &RunReport) -> f64 {
        let windows = self.settled(report);
        let packets = median(windows.iter().map(|window| window.offered as f64));
        match packets {
            Some(packets) if windows.len() >= ENOUGH => packets / SATURATED_WINDOW.as_secs_f64(),
            _ => report.packets.offered as f64 / report.duration_s.max(1e-9),
        }
    }

    /// Returns the windows to evaluate: after the first pass over the traffic, or in the second half if that is
    /// incomplete.
    pub(super) fn settled<'r>(&self, report: &'r RunReport) -> Vec<&'r WindowReport> {
        let mut came = 0;
        let warm = report.windows.list.iter().find(|window| {
            came += window.offered;
            came >= self.traffic.len() as u64
        });
        let half = report.duration_s / 2.0;
        let warm = warm.map_or(half, |window| window.start_s.min(half));
        let all = evaluated_windows(report);
        let settled: Vec<_> = all.iter().copied().filter(|window| window.start_s > warm).collect();
        match settled.len() {
            ENOUGH.. => settled,
            _ => all,
        }
    }
}

/// Returns the median of the figures above 0, if there are any.
pub(super) fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.filter(|figure| *figure > 0.0).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

/// Rounds a throughput to whole packets per second.
pub(super) fn rounded(measured: Measured) -> Measured {
    Measured {
        value: measured.value.round().max(1.0),
        noise: measured.noise.round(),
        ..measured
    }
}
