//! Curve of latency over load, and the highest rates that meet objectives.

use super::runs::{BASE_RATE, Sweep, median, rounded};
use super::sampling::Purpose;
use super::{CURVE, SweepError, SweepOptions, THROUGHPUT};
use crate::curve::{Attempts, Bisection, Goal, Measured, RateSearch, RepeatRule, Trial};
use crate::interference::Conditions;
use crate::measurement_core::Setting;
use crate::profiles::{LatencyProfile, RATE_WIDTH};
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
/// Lowest rate of the search, as a share of the chain's throughput.
const LOWEST_RATE: f64 = 0.05;
/// Maximum growth of the latency per time in a trial, and of the waiting packets in all of it, at which the chain keeps
/// up.
const MOST_GROWTH: f64 = 0.01;
const FEW_PACKETS: f64 = 8.0;
/// Maximum number of windows that the growth is computed from.
const MOST_WAITS: usize = 64;
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
    // Whole packets per second, so that a rate in the result equals the throughput only if it was the highest tried.
    let highest = throughput.value.round().max(1.0);
    let mut search = RateSearch::new(LOWEST_RATE * highest, highest, RATE_WIDTH, &goals);
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
        search.tell(trial(&sweep.settled(&report), rate));
    }
    let rates = search.rates();
    let rate = |goal: usize| rates.get(goal).copied().flatten().map(f64::floor);
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
}

/// Returns the result of a trial at `rate` packets per second from its windows.
pub(super) fn trial(windows: &[&WindowReport], rate: f64) -> Trial {
    let sum = |of: fn(&WindowReport) -> u64| windows.iter().map(|window| of(window)).sum::<u64>();
    // Windows without packets prove nothing.
    let verdicts: Vec<bool> = windows.iter().filter_map(|window| window.slo_met).collect();
    let kept = verdicts.iter().filter(|met| **met).count();
    let delivered = windows.iter().filter(|window| window.delivered > 0);
    let waits: Vec<[f64; 2]> = delivered
        .map(|window| [window.start_s, window.latency_us.p50 / 1e6])
        .collect();
    Trial {
        loss: sum(|window| window.lost) as f64 / sum(|window| window.offered).max(1) as f64,
        met: 2 * kept > verdicts.len(),
        keeps_up: keeps_up(&waits, rate),
    }
}

/// Returns `true` if the latency did not grow with time, given as pairs of both in seconds. At a rate above the
/// chain's, packets wait longer by the excess, as a share of the time that passes, as long as the receive ring has
/// room. Some packets more or less are noise.
fn keeps_up(waits: &[[f64; 2]], rate: f64) -> bool {
    let (Some([begin, _]), Some([end, _])) = (waits.first(), waits.last()) else {
        return true;
    };
    // The median slope between two windows (Theil and Sen): single slow windows do not count.
    let few: Vec<[f64; 2]> = waits
        .iter()
        .copied()
        .step_by(waits.len().div_ceil(MOST_WAITS))
        .collect();
    let pairs = few.iter().enumerate().flat_map(|(at, [time, wait])| {
        let later = few[at + 1..].iter();
        later.map(move |[later, then]| (then - wait) / (later - time))
    });
    let mut slopes: Vec<f64> = pairs.filter(|slope| slope.is_finite()).collect();
    slopes.sort_by(f64::total_cmp);
    let Some(slope) = slopes.get(slopes.len() / 2) else {
        return true;
    };
    *slope <= MOST_GROWTH || slope * (end - begin) * rate <= FEW_PACKETS
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
