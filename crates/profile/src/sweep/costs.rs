//! Costs per packet of the functions of a chain.

use super::runs::{Sweep, TRIES};
use super::{SweepError, SweepOptions};
use crate::curve::{Attempts, MOST_DISTURBED, Measured, RepeatRule};
use crate::interference::Conditions;
use crate::measurement_core::Setting;
use crate::profiles::{CostProfile, FunctionCost};
use crate::train::Step;
use std::sync::atomic::AtomicBool;
use tailwater_chain::chain::FunctionTime;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_traffic::Trace;

/// Costs of functions.
const COSTS: RepeatRule = RepeatRule {
    least: 3,
    most: 5,
    wanted: 0.02,
};

/// Measures the cost per packet of each function on a saturated core. Only the second half of each run counts, by which
/// time one pass over the traffic is complete if time permits.
///
/// # Errors
/// See [`SweepError`].
pub fn function_costs(
    spec: &ChainSpec,
    traffic: &Trace,
    options: &SweepOptions,
    stop: &AtomicBool,
    mut progress: impl FnMut(Step),
) -> Result<CostProfile, SweepError> {
    let step = |done| Step {
        name: "costs of functions",
        done,
        of: COSTS.most,
    };
    progress(step(0));
    let sweep = Sweep::new(spec, traffic, options, false, stop)?;
    let mut whole = Attempts::new(COSTS);
    let mut functions: Vec<(String, Attempts, f64)> = Vec::new();
    for done in 1..=COSTS.most + MOST_DISTURBED {
        let (rate, times, conditions) = sweep.timed()?;
        sweep.spend_if_disturbed(&conditions);
        let most = times.iter().map(|of| of.packets).max().unwrap_or(0);
        if functions.is_empty() {
            let names = times.iter().map(|of| of.function.clone());
            functions.extend(names.map(|name| (name, Attempts::new(COSTS), 0.0)));
        }
        whole.tell(1e9 / rate, conditions);
        for (of, (_, cost, share)) in times.iter().zip(&mut functions) {
            // A function without packets costs nothing.
            cost.tell(of.time.0 as f64 / of.timed.max(1) as f64, conditions);
            *share = of.packets as f64 / most.max(1) as f64;
        }
        progress(step(done.min(COSTS.most)));
        let enough = |attempts: &Attempts| attempts.enough(sweep.watch.best(), sweep.watch.may_repeat());
        if enough(&whole) && functions.iter().all(|(_, cost, _)| enough(cost)) {
            break;
        }
    }
    let functions = functions.iter().map(|(name, cost, share)| {
        Ok(FunctionCost {
            function: name.clone(),
            cost: to_hundredths(sweep.outcome(cost)?),
            share: (share * 1e4).round() / 1e4,
        })
    });
    Ok(CostProfile {
        functions: functions.collect::<Result<_, SweepError>>()?,
        whole: to_hundredths(sweep.outcome(&whole)?),
    })
}

impl Sweep<'_> {
    /// Returns the saturated throughput, packets per second, the time of each function in the second half of the run,
    /// and its conditions. If the core is preempted for a whole run, retries with longer ones.
    fn timed(&self) -> Result<(f64, Vec<FunctionTime>, Conditions), SweepError> {
        for longer in 0..TRIES {
            let length = Nanos(self.saturated.0 << longer);
            let setting = Setting {
                duration: Some(length),
                ..Setting::default()
            };
            let (traffic, half) = (self.traffic.clone(), Nanos(length.0 / 2));
            let run = || self.lab.timed(&self.spec, traffic, &setting, half);
            let ((report, times), conditions) = self.watch.run(run, |(report, _)| report)?;
            let rate = self.rate(&report);
            if rate > 0.0 && times.iter().any(|of| of.packets > 0) {
                return Ok((rate, times, conditions));
            }
        }
        Err(SweepError::Nothing(self.saturated))
    }
}

/// Rounds a time to two decimals; no clock is more precise.
fn to_hundredths(measured: Measured) -> Measured {
    let hundredths = |figure: f64| (figure * 100.0).round() / 100.0;
    Measured {
        value: hundredths(measured.value),
        noise: hundredths(measured.noise),
        ..measured
    }
}
