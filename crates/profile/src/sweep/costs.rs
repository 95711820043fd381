//! Costs per packet of the functions of a chain.

use super::runs::{Sweep, TRIES};
use super::{SweepError, SweepOptions};
use crate::curve::{Measured, RepeatRule, Repeats};
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
    let sweep = Sweep::new(spec, traffic, options, stop)?;
    let mut whole = Repeats::new(COSTS);
    let mut functions: Vec<(String, Repeats, f64)> = Vec::new();
    for done in 1..=COSTS.most {
        let (rate, times) = sweep.timed()?;
        let most = times.iter().map(|of| of.packets).max().unwrap_or(0);
        if functions.is_empty() {
            let names = times.iter().map(|of| of.function.clone());
            functions.extend(names.map(|name| (name, Repeats::new(COSTS), 0.0)));
        }
        whole.tell(1e9 / rate);
        for (of, (_, cost, share)) in times.iter().zip(&mut functions) {
            // A function without packets costs nothing.
            cost.tell(of.time.0 as f64 / of.timed.max(1) as f64);
            *share = of.packets as f64 / most.max(1) as f64;
        }
        progress(step(done));
        if whole.enough() && functions.iter().all(|(_, cost, _)| cost.enough()) {
            break;
        }
    }
    let outcome = |repeats: &Repeats| repeats.outcome().ok_or(SweepError::Nothing(options.run_time));
    let functions = functions.iter().map(|(name, cost, share)| {
        Ok(FunctionCost {
            function: name.clone(),
            cost: to_hundredths(outcome(cost)?),
            share: (share * 1e4).round() / 1e4,
        })
    });
    Ok(CostProfile {
        functions: functions.collect::<Result<_, SweepError>>()?,
        whole: to_hundredths(outcome(&whole)?),
    })
}

impl Sweep<'_> {
    /// Returns the saturated throughput, packets per second, and the time of each function in the second half of the
    /// run. If the core is preempted for a whole run, retries with longer ones.
    fn timed(&self) -> Result<(f64, Vec<FunctionTime>), SweepError> {
        for longer in 0..TRIES {
            let length = Nanos(self.saturated.0 << longer);
            let setting = Setting {
                duration: Some(length),
                ..Setting::default()
            };
            let (traffic, half) = (self.traffic.clone(), Nanos(length.0 / 2));
            let (report, times) = self.lab.timed(&self.spec, traffic, &setting, half)?;
            let rate = self.rate(&report);
            if rate > 0.0 && times.iter().any(|of| of.packets > 0) {
                return Ok((rate, times));
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
