//! Figures that are compared.

use super::document::{Counts, RunFigures};

/// Lowest latency that is told from zero, in microseconds.
pub(super) const LEAST_US: f64 = 1e-3;

/// A figure of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Percentile of the latencies of all delivered packets, in microseconds.
    Latency(u8),
    /// Packets late or lost, as a share of those that the chain did not drop.
    Late,
    /// Packets lost, as a share of those offered.
    Loss,
    /// Delivered packets per second.
    Throughput,
    /// Time average of the cores in use.
    Cores,
    /// Packets late or lost for a cause, as a share of those that the chain did not drop.
    Cause(String),
    /// Packets dropped or lost for a reason of a function (`function/reason`), as a share of those offered.
    Reason(String),
    /// 99th percentile of the time in an external function, in microseconds.
    External(String),
}

/// Packets that the chain owes: those it did not drop by decision.
pub(super) fn owed(counts: &Counts) -> f64 {
    counts.offered as f64 - (counts.dropped as f64).min(counts.offered as f64)
}

impl Figure {
    /// Name in JSON and tables.
    pub fn name(&self) -> String {
        match self {
            Figure::Latency(percentile) => format!("p{percentile}_us"),
            Figure::Late => "late".to_owned(),
            Figure::Loss => "lost".to_owned(),
            Figure::Throughput => "throughput_pps".to_owned(),
            Figure::Cores => "cores".to_owned(),
            Figure::Cause(name) => format!("late: {name}"),
            Figure::Reason(name) => name.clone(),
            Figure::External(name) => format!("{name} p99_us"),
        }
    }

    /// Returns `true` for a share of packets: its change is a difference. Other figures change by a ratio.
    pub fn is_share(&self) -> bool {
        matches!(self, Figure::Late | Figure::Loss | Figure::Cause(_) | Figure::Reason(_))
    }

    /// Numerator of a share.
    pub(super) fn part(&self, counts: &Counts) -> f64 {
        let of =
            |counts: &std::collections::BTreeMap<String, u64>, name: &str| counts.get(name).map_or(0.0, |n| *n as f64);
        match self {
            Figure::Late => counts.causes.values().map(|count| *count as f64).sum(),
            Figure::Loss => counts.lost as f64,
            Figure::Cause(name) => of(&counts.causes, name),
            Figure::Reason(name) => of(&counts.reasons, name),
            Figure::Latency(_) | Figure::Throughput | Figure::Cores | Figure::External(_) => 0.0,
        }
    }

    /// The figure of a whole run, as its report has it. `None` if it does not exist.
    pub(super) fn of(&self, run: &RunFigures) -> Option<f64> {
        let share = |of: f64| (of > 0.0).then(|| self.part(&run.counts) / of);
        let latency = |us: f64| (run.counts.delivered > 0).then_some(us.max(LEAST_US));
        let positive = |value: f64| (value > 0.0).then_some(value);
        match self {
            Figure::Latency(50) => latency(run.latency.p50),
            Figure::Latency(_) => latency(run.latency.p99),
            Figure::Late | Figure::Cause(_) => share(owed(&run.counts)),
            Figure::Loss | Figure::Reason(_) => share(run.counts.offered as f64),
            Figure::Throughput => positive(run.throughput_pps),
            Figure::Cores => positive(run.cores),
            Figure::External(name) => run.externals.get(name).copied().and_then(positive),
        }
    }

    /// Converts a figure to the scale on which changes are differences.
    pub(super) fn to_scale(&self, value: f64) -> f64 {
        match self.is_share() {
            true => value,
            false => value.ln(),
        }
    }

    /// Converts a difference on that scale to a change: a relative one, or a difference of shares.
    pub(super) fn change(&self, difference: f64) -> f64 {
        match self.is_share() {
            true => difference.clamp(-1.0, 1.0),
            false => difference.exp_m1(),
        }
    }
}
