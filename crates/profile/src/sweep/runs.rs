//! Runs of a chain at a given load, and the windows of them that count.

use super::watch::Watch;
use super::{SweepError, SweepOptions};
use crate::curve::Measured;
use crate::interference::{Conditions, Interference};
use crate::measurement_core::{MeasurementCore, Setting, core_rate, evaluated_windows, span_rates, whole};
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
pub(crate) struct Sweep<'a> {
    pub(crate) lab: MeasurementCore<'a>,
    pub(crate) spec: ChainSpec,
    /// Evenly spaced at a million packets per second.
    pub(crate) traffic: Trace,
    pub(super) run_time: Nanos,
    /// Length of a saturated run.
    pub(super) saturated: Nanos,
    pub(super) watch: Watch,
}

/// A saturated run.
pub(super) struct Saturated {
    /// Packets per second.
    pub(super) rate: f64,
    pub(super) conditions: Conditions,
}

impl<'a> Sweep<'a> {
    /// Prepares a sweep; `beside` if another core is kept busy meanwhile.
    pub(crate) fn new(
        spec: &ChainSpec,
        traffic: &Trace,
        options: &SweepOptions,
        beside: bool,
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
            watch: Watch::new(options.core, beside, options.run_time),
        };
        let rate = sweep.saturated()?.rate;
        sweep.saturated = sweep.length(rate);
        Ok(sweep)
    }

    /// Returns the length of a run at `rate` packets per second.
    pub(super) fn length(&self, rate: f64) -> Nanos {
        let wanted = ROUNDS * self.traffic.len() as f64 / rate.max(1.0);
        let wanted = Nanos::from_secs_f64(wanted.min(LONGEST_RUN));
        self.run_time.max(wanted)
    }

    /// Returns the saturated throughput, packets per second, with the run's conditions.
    pub(crate) fn throughput(&self) -> Result<(f64, Conditions), SweepError> {
        self.saturated().map(|run| (run.rate, run.conditions))
    }

    /// Returns the interference of a run, by the core's best speed so far.
    pub(crate) fn interference(&self, conditions: &Conditions) -> Option<Interference> {
        conditions.interference(self.watch.best())
    }

    /// Measures the saturated throughput. If the core is preempted for a whole run, retries with longer ones.
    pub(super) fn saturated(&self) -> Result<Saturated, SweepError> {
        for longer in 0..TRIES {
            let run = self.saturated_for(Nanos(self.saturated.0 << longer))?;
            if run.rate > 0.0 {
                return Ok(run);
            }
        }
        Err(SweepError::Nothing(self.saturated))
    }

    fn saturated_for(&self, length: Nanos) -> Result<Saturated, SweepError> {
        let setting = Setting {
            duration: Some(length),
            ..Setting::default()
        };
        let traffic = self.traffic.clone();
        let run = || self.lab.measured(&self.spec, traffic, &setting);
        let (report, conditions) = self.watch.run(run, |report| report)?;
        Ok(Saturated {
            rate: self.rate(&report),
            // Gaps are taken out of the rate.
            conditions: Conditions {
                has_few_windows: false,
                ..conditions
            },
        })
    }

    /// Returns the packets per second of a saturated run: the mean of the middle half of its windows, or of longer
    /// spans where windows have few batches. Their median would come in steps of a batch.
    pub(super) fn rate(&self, report: &RunReport) -> f64 {
        let (warm, all) = (self.warm_from(report), whole(report));
        let settled = &all[all.partition_point(|window| window.start_s <= warm)..];
        let spans = span_rates(settled, self.spec.packets.batch);
        if let Some(rate) = spans.and_then(|rates| middle_mean(rates.into_iter())) {
            return rate;
        }
        let windows = self.settled(report);
        let rates = windows.iter().filter_map(|of| core_rate(of.offered, of.gap_us));
        match middle_mean(rates) {
            Some(rate) if windows.len() >= ENOUGH => rate,
            _ => report.packets.offered as f64 / report.duration_s.max(1e-9),
        }
    }

    /// Returns the start of the last window that does not count yet, seconds: the one in which the first pass over the
    /// traffic ends, or the middle of the run if that is incomplete.
    fn warm_from(&self, report: &RunReport) -> f64 {
        let mut came = 0;
        let warm = report.windows.list.iter().find(|window| {
            came += window.offered;
            came >= self.traffic.len() as u64
        });
        let half = report.duration_s / 2.0;
        warm.map_or(half, |window| window.start_s.min(half))
    }

    /// Returns the windows to evaluate: after the first pass over the traffic, or in the second half if that is
    /// incomplete.
    pub(crate) fn settled<'r>(&self, report: &'r RunReport) -> Vec<&'r WindowReport> {
        let warm = self.warm_from(report);
        let all = evaluated_windows(report);
        let settled: Vec<_> = all.iter().copied().filter(|window| window.start_s > warm).collect();
        match settled.len() {
            ENOUGH.. => settled,
            _ => all,
        }
    }
}

/// Returns the mean of the middle half of the figures above 0, if there are any.
pub(super) fn middle_mean(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.filter(|figure| *figure > 0.0).collect();
    figures.sort_by(f64::total_cmp);
    let outside = figures.len() / 4;
    let middle = &figures[outside..figures.len() - outside];
    (!middle.is_empty()).then(|| middle.iter().sum::<f64>() / middle.len() as f64)
}

/// Returns the median of the figures above 0, if there are any.
pub(crate) fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_half_has_a_mean() {
        let mean = |figures: &[f64]| middle_mean(figures.iter().copied());
        assert_eq!(mean(&[]), None);
        assert_eq!(mean(&[0.0, 7.0]), Some(7.0));
        assert_eq!(mean(&[1.0, 2.0, 3.0]), Some(2.0));
        // A quarter at either end does not count, whatever it is.
        assert_eq!(mean(&[1e9, 32.0, 64.0, 1.0]), Some(48.0));
    }
}
