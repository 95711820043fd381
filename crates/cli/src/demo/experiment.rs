//! The experiment: chain, traffic and duration, which all policies share.

use crate::error::CliError;
use crate::input::Traffic;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;

/// Policies in the order in which they run, with their titles in the table.
pub const POLICIES: [(&str, &str); 3] = [
    ("static", "one static core"),
    ("netblaze", "NetBlaze + 1 auxiliary"),
    ("tailwater", "Tailwater + 1 auxiliary"),
];

/// Mean load of the dedicated core, as a share of its saturated rate.
const LOAD: f64 = 0.6;

/// Saturated rate of one core that fixes a preset's number of flows: their mean rate is [`LOAD`] of it. On a core with
/// another rate the same flows are replayed faster or slower, so a burst lasts as many packet service times everywhere.
const REFERENCE_PPS: f64 = 1.55e6;

/// Latency objective of the built-in chain, in packet service times of one core: a slower machine gets the same
/// experiment.
const OBJECTIVE_PACKETS: f64 = 200.0;

/// Lower bound of that objective: waking an auxiliary core takes tens of microseconds in a virtual machine.
const LEAST_OBJECTIVE: Nanos = Nanos::from_micros(150);

/// Upper bound of a run's windows: more would be unreadable in a chart.
pub const MOST_WINDOWS: u64 = 400;

/// Length of a window in a run of up to 8 s.
pub const WINDOW: Nanos = Nanos::from_millis(20);

/// Share of a window for which cores are preempted at most in a window without CPU interference. Less delays fewer
/// packets than the one in 100 that may be late.
pub const MOST_PREEMPTED: f64 = 0.01;

/// Chain, traffic and duration, the same for all policies.
pub struct Experiment {
    /// Chain, with its objective.
    pub spec: ChainSpec,
    /// The objective is [`OBJECTIVE_PACKETS`] packet service times.
    pub relative_objective: bool,
    /// The chain is the one within this program, with its profile.
    pub is_built_in: bool,
    /// Name of the traffic: a file or a preset.
    pub traffic: OsString,
    /// Duration of each run.
    pub seconds: Nanos,
    /// Length of a measurement window.
    pub window: Nanos,
    /// Ends the demonstration.
    pub stop: Arc<AtomicBool>,
}

/// Rate of the traffic.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Saturated rate of one core, in packets a second.
    pub one_core: f64,
    /// Factor on the number of a preset's flows.
    pub flows_scale: f64,
    /// Factor on the speed of replay.
    pub rate_scale: f64,
}

impl Experiment {
    /// Returns the traffic.
    ///
    /// # Errors
    /// There is no such traffic.
    pub fn traffic(&self) -> Result<Traffic, CliError> {
        Traffic::named(&self.traffic)
    }

    /// Factor that gives a preset a mean rate of [`LOAD`] of [`REFERENCE_PPS`].
    ///
    /// # Errors
    /// There is no such traffic.
    pub fn flows_scale(&self) -> Result<f64, CliError> {
        Ok(match self.traffic()? {
            Traffic::Preset(preset) => LOAD * REFERENCE_PPS / preset.mean_rate_pps(),
            Traffic::File(_) => 1.0,
        })
    }

    /// Scales the traffic to a core's saturated rate. `own` returns a capture's original rate.
    ///
    /// # Errors
    /// There is no such traffic, or `own` fails.
    pub fn rates(&self, one_core: f64, own: impl FnOnce() -> Result<f64, CliError>) -> Result<Rates, CliError> {
        let rate_scale = match self.traffic()? {
            Traffic::Preset(_) => one_core / REFERENCE_PPS,
            Traffic::File(_) => LOAD * one_core / own()?,
        };
        Ok(Rates {
            one_core,
            flows_scale: self.flows_scale()?,
            rate_scale,
        })
    }

    /// Sets the objective from a core's saturated rate, unless the user or the chain sets it.
    pub fn set_relative_objective(&mut self, one_core: f64) {
        if self.relative_objective {
            let tens = (OBJECTIVE_PACKETS / one_core * 1e5).round().max(1.0);
            self.spec.slo.latency = Nanos::from_micros(10 * tens as u64).max(LEAST_OBJECTIVE);
        }
    }
}
