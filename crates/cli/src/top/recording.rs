//! Samples of a run that has ended: the timeline of its report.

use super::sample::{ChainSample, CoreSample, Counters, Sample};
use serde::Deserialize;
use std::collections::BTreeMap;
use tailwater_net::Nanos;

/// Parts of a report of `tailwater run --output json` that are shown.
#[derive(Debug, Deserialize)]
struct Report {
    chain: String,
    traffic: String,
    slo: Slo,
    cores: Cores,
    timeline: Timeline,
}

#[derive(Debug, Deserialize)]
struct Slo {
    latency_us: f64,
    percentile: f64,
}

#[derive(Debug, Deserialize)]
struct Cores {
    dedicated: u32,
    #[serde(default)]
    auxiliary_avg: f64,
}

#[derive(Debug, Deserialize)]
struct Timeline {
    step_ms: f64,
    list: Vec<Step>,
}

#[derive(Debug, Deserialize)]
struct Step {
    start_s: f64,
    offered: u64,
    delivered: u64,
    dropped_by_nf: u64,
    lost: u64,
    #[serde(default)]
    late_by_cause: BTreeMap<String, u64>,
    #[serde(default)]
    dropped_by_reason: BTreeMap<String, u64>,
    #[serde(default)]
    lost_by_reason: BTreeMap<String, u64>,
    latency_us: Latency,
    #[serde(default)]
    busy: f64,
}

#[derive(Debug, Deserialize)]
struct Latency {
    p50: f64,
    p99: f64,
}

/// Reads the samples of a report.
///
/// # Errors
/// One line: it is not a report of a run, with the place of the mistake.
pub fn samples(text: &[u8]) -> Result<Vec<Sample>, String> {
    if text.trim_ascii().is_empty() {
        return Err("expected a report of `tailwater run --output json`, found an empty file".to_owned());
    }
    let report: Report = serde_json::from_slice(text)
        .map_err(|error| format!("expected a report of `tailwater run --output json`: {error}"))?;
    let Report { timeline, .. } = &report;
    if timeline.list.is_empty() || !(timeline.step_ms.is_finite() && timeline.step_ms > 0.0) {
        return Err("expected a report with a timeline, found no step".to_owned());
    }
    let mut counters = Counters {
        flows: None,
        ..Counters::default()
    };
    let mut busy = 0.0;
    let step = |step: &Step| {
        let seconds = timeline.step_ms / 1e3;
        let at = micros((step.start_s + seconds) * 1e6);
        counters.at = at;
        add(&mut counters.late, &step.late_by_cause);
        add(&mut counters.reasons, &step.dropped_by_reason);
        add(&mut counters.reasons, &step.lost_by_reason);
        busy += step.busy * seconds;
        let late: u64 = step.late_by_cause.values().sum();
        let owed = step.delivered + step.lost;
        let rate = |count: u64| count as f64 / seconds;
        let is_known = step.delivered > 0;
        let chain = ChainSample {
            name: report.chain.clone(),
            phase: "Recorded".to_owned(),
            rates: Some([step.offered, step.delivered, step.dropped_by_nf, step.lost].map(rate)),
            latency: [step.latency_us.p50, step.latency_us.p99].map(|us| is_known.then(|| micros(us))),
            objective: micros(report.slo.latency_us),
            is_met: (owed > 0).then(|| late as f64 <= owed as f64 * (1.0 - report.slo.percentile / 100.0) + 1e-9),
            cores: (0..report.cores.dedicated.min(1024)).collect(),
            auxiliary: report.cores.auxiliary_avg,
            counters: Some(counters.clone()),
            ..ChainSample::default()
        };
        // The report has the share of all cores together.
        let core = |core: &u32| CoreSample {
            core: *core,
            busy: micros(busy * 1e6),
            chains: vec![report.chain.clone()],
            ..CoreSample::default()
        };
        Sample {
            title: format!("chain {} on {}", report.chain, report.traffic),
            at,
            cores: chain.cores.iter().map(core).collect(),
            chains: vec![chain],
            ..Sample::default()
        }
    };
    Ok(timeline.list.iter().map(step).collect())
}

fn micros(micros: f64) -> Nanos {
    Nanos((micros * 1e3) as u64)
}

fn add(sums: &mut BTreeMap<String, u64>, counts: &BTreeMap<String, u64>) {
    for (name, count) in counts {
        *sums.entry(name.clone()).or_default() += count;
    }
}
