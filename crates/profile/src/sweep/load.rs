//! Curve of latency over load, and the highest rates that meet objectives.

use super::runs::{BASE_RATE, Sweep, median, rounded};
use super::sampling::Purpose;
use super::{CURVE, SweepError, SweepOptions, THROUGHPUT};
use crate::curve::{Attempts, Bisection, Goal, Measured, RateSearch, RepeatRule, Trial};
use crate::interference::Conditions;
use crate::measurement_core::Setting;
use crate::profiles::LatencyProfile;
use crate::train::Step;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::report::{LatencyReport, NoVerdict, RunReport, WindowReport, packets_required};
use tailwater_dataplane::trace_nic::Pacing;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_traffic::Trace;

/// Latency varies more between runs.
const LATENCY: RepeatRule = RepeatRule {
    least: 3,
    most: 5,
    wanted: 0.05,
};
/// Range of the curve's loads, percent.
pub(super) const LEAST_LOAD: u32 = 10;
pub(super) const WHOLE_LOAD: u32 = 100;
/// Lowest rate of the search, and its precision, as shares of the chain's throughput.
const LOWEST_RATE: f64 = 0.05;
const PRECISION: f64 = 0.01;
/// Loss ratio of the partial drop rate (PDR).
const PARTIAL: f64 = 0.005;
/// Window in which latency and loss are measured.
const WINDOW: Nanos = Nanos::from_millis(5);
/// Upper bound of a longer window where few packets arrive, seconds, and the least number of such windows in a run.
const LONGEST_WINDOW: f64 = 10.0;
const SEVERAL_WINDOWS: u64 = 12;

/// Measures latency over load, and the highest rates that meet objectives, with evenly spaced packets. Windows with CPU
/// interference, and those after them, are excluded if others remain; runs with [interference](crate::interference) are
/// replaced as far as time permits.
///
/// # Errors
/// See [`SweepError`].
pub fn load_curve(
    spec: &ChainSpec,
    traffic: &Trace,
    options: &SweepOptions,
    stop: &AtomicBool,
    mut progress: impl FnMut(Step),
) -> Result<LatencyProfile, SweepError> {
    let step = |name, done, of| Step { name, done, of };
    progress(step("throughput", 0, 1));
    let sweep = Sweep::new(spec, traffic, options, false, stop)?;
    let mut saturated = Attempts::new(THROUGHPUT);
    sweep.go_on(&mut saturated, || sweep.throughput())?;
    let throughput = sweep.outcome(&saturated)?;
    let percentile = reported(spec.slo.percentile);
    let mut curve = Bisection::new(LEAST_LOAD..=WHOLE_LOAD, CURVE);
    let mut points: BTreeMap<u32, Attempts> = BTreeMap::new();
    sweep.sample(&mut curve, |load, purpose| {
        if purpose == Purpose::First {
            progress(step("latency over load", points.len(), CURVE.most));
        }
        let attempts = points.entry(load).or_insert_with(|| Attempts::new(LATENCY));
        if purpose == Purpose::HiddenBend {
            attempts.extend(sweep.watch.best());
        }
        let rate = throughput.value * f64::from(load) / f64::from(WHOLE_LOAD);
        sweep.go_on(attempts, || {
            let (report, conditions) = sweep.paced(rate)?;
            has_delivered(&report)?;
            if purpose == Purpose::HiddenBend {
                sweep.watch.spend(conditions.length);
            }
            let windows = sweep.settled(&report);
            let latencies = windows.iter().map(|window| at(&window.latency_us, percentile));
            Ok((median(latencies).unwrap_or(f64::NAN), conditions))
        })?;
        sweep.outcome(attempts).map(Some)
    })?;
    let goals = [Goal::Loss(0.0), Goal::Loss(PARTIAL), Goal::Objective];
    let lowest = LOWEST_RATE * throughput.value;
    let mut search = RateSearch::new(lowest, throughput.value, PRECISION, &goals);
    sweep.watch.renew();
    let (mut done, mut disturbed_trials) = (0, 0);
    while let Some(rate) = search.next() {
        progress(step("rates that meet the objective", done, done + 1));
        done += 1;
        let (report, conditions) = sweep.paced(rate)?;
        if sweep.spend_if_disturbed(&conditions) {
            // Another trial replaces it.
            if sweep.watch.may_repeat() {
                continue;
            }
            disturbed_trials += 1;
        }
        search.tell(sweep.trial(&report));
    }
    let rates = search.rates();
    let rate = |goal: usize| rates.get(goal).copied().flatten().map(f64::round);
    Ok(LatencyProfile {
        throughput: rounded(Measured {
            // By the best speed that is known now. All loads are shares of the value, so that stays.
            disturbed: sweep.outcome(&saturated)?.disturbed.min(throughput.runs),
            ..throughput
        }),
        percentile,
        points: curve.points(),
        objective_us: spec.slo.budget().as_micros_f64(),
        objective_percentile: spec.slo.percentile,
        ndr: rate(0),
        pdr: rate(1),
        objective_rate: rate(2),
        hidden_bends: curve.hidden(),
        disturbed_trials,
    })
}

impl Sweep<'_> {
    /// Runs the traffic at `rate` packets per second.
    pub(crate) fn paced(&self, rate: f64) -> Result<(RunReport, Conditions), SweepError> {
        let mut traffic = self.traffic.clone();
        traffic.scale_rate(rate / BASE_RATE)?;
        let length = self.length(rate);
        let setting = Setting {
            pacing: Pacing::Arrivals,
            duration: Some(length),
            window: self.window(rate, length),
            ..Setting::default()
        };
        let run = || self.lab.measured(&self.spec, traffic, &setting);
        Ok(self.watch.run(run, |report| report)?)
    }

    /// Returns the length of a window with enough packets for the objective's percentile, as far as a run of this
    /// length has several of them.
    fn window(&self, rate: f64, length: Nanos) -> Nanos {
        let required = packets_required(self.spec.slo.percentile) as f64 / rate.max(1.0);
        let most = Nanos(length.0 / SEVERAL_WINDOWS);
        WINDOW.max(Nanos::from_secs_f64(required.min(LONGEST_WINDOW)).min(most))
    }

    fn trial(&self, report: &RunReport) -> Trial {
        let windows = self.settled(report);
        let sum = |of: fn(&WindowReport) -> u64| windows.iter().map(|window| of(window)).sum::<u64>();
        // Windows without packets prove nothing.
        let verdicts: Vec<bool> = windows.iter().filter_map(|window| window.slo_met).collect();
        let kept = verdicts.iter().filter(|met| **met).count();
        Trial {
            loss: sum(|window| window.lost) as f64 / sum(|window| window.offered).max(1) as f64,
            met: 2 * kept > verdicts.len(),
        }
    }
}

/// Checks that a run has latencies: the chain did not drop all of its packets.
fn has_delivered(report: &RunReport) -> Result<(), SweepError> {
    if report.no_verdict != Some(NoVerdict::AllDropped) {
        return Ok(());
    }
    let drops = report.packets.drops.iter();
    let reasons = drops.map(|drop| format!("{} {}", drop.name(), drop.packets));
    Err(SweepError::AllDropped {
        packets: report.packets.offered,
        reasons: reasons.collect::<Vec<_>>().join(", "),
    })
}

/// Returns the lowest reported percentile that is at least `percentile`, or the highest.
pub(super) fn reported(percentile: f64) -> f64 {
    let all = [50.0, 90.0, 99.0];
    let found = all.into_iter().find(|reported| percentile <= *reported);
    found.unwrap_or(99.9)
}

/// Returns the latency at a percentile that reports have, µs.
pub(crate) fn at(latency: &LatencyReport, percentile: f64) -> f64 {
    match percentile {
        50.0 => latency.p50,
        90.0 => latency.p90,
        99.0 => latency.p99,
        _ => latency.p999,
    }
}
