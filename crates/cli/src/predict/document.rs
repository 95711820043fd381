//! Document of `tailwater predict`.

use crate::text::{one_line, percent, short};
use serde::Serialize;
use std::fmt::Write as _;
use tailwater_predict::{ContentionModel, Estimate, Performance, PredictOptions, Prediction, Relief, performance};

/// Maximum number of changes in the table.
const MOST_REMEDIES: usize = 3;

/// Result as JSON. Field names are stable.
#[derive(Debug, Serialize)]
pub struct Document {
    pub target: String,
    pub machine: String,
    source: String,
    pub method: String,
    /// Mean relative error on co-runs outside of each fit.
    model_error: f64,
    pub competitors: Vec<String>,
    solo_pps: f64,
    pub throughput_pps: Interval,
    /// `None` if the campaign did not measure it.
    pub p99_us: Option<Interval>,
    /// Throughput relative to that without competitors.
    pub relative: f64,
    /// Resources by their part of the loss, largest first.
    pub attributions: Vec<Part>,
    /// Changes that would help, largest gain first.
    pub remedies: Vec<Remedy>,
    /// Performance beside the first none, one, two ... competitors.
    pub as_competitors_join: Vec<Step>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Interval {
    pub value: f64,
    pub low: f64,
    pub high: f64,
    pub confidence: f64,
}

impl From<Estimate> for Interval {
    fn from(of: Estimate) -> Self {
        Interval {
            value: of.value,
            low: of.low,
            high: of.high,
            confidence: of.confidence,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Part {
    pub resource: String,
    pub metric: String,
    /// Part of the throughput without competitors that is lost.
    pub loss: f64,
    remedy: Option<&'static str>,
}

/// A change, and the performance after it.
#[derive(Debug, Serialize)]
pub struct Remedy {
    pub change: String,
    pub throughput_pps: Interval,
    p99_us: Option<Interval>,
    /// Relative gain of throughput.
    pub gain: f64,
}

/// Performance beside the first competitors.
#[derive(Debug, Serialize)]
pub struct Step {
    /// Number of competitors.
    pub competitors: usize,
    /// `None` if it cannot be predicted.
    pub throughput_pps: Option<Interval>,
    pub p99_us: Option<Interval>,
    /// Reason why there is no prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Document {
    pub fn new(
        target: &ContentionModel,
        competitors: &[&ContentionModel],
        options: &PredictOptions,
        prediction: &Prediction,
        remedies: Vec<Relief>,
    ) -> Document {
        let parts = prediction.attributions.iter().map(|part| Part {
            resource: part.resource.to_string(),
            metric: part.metric.clone(),
            loss: part.loss,
            remedy: part.remedy,
        });
        let remedies = remedies.into_iter().map(|relief| Remedy {
            change: relief.remedy.to_string(),
            throughput_pps: relief.throughput.into(),
            p99_us: relief.p99_us.map(Interval::from),
            gain: relief.gain,
        });
        let steps = (0..=competitors.len()).map(|count| {
            let found = performance(target, &competitors[..count], options);
            let parts = |of: Performance| (of.throughput.into(), of.p99_us.map(Interval::from));
            let (found, reason) = match found.map(parts) {
                Ok(found) => (Some(found), None),
                Err(error) => (None, Some(error.to_string())),
            };
            Step {
                competitors: count,
                throughput_pps: found.map(|(throughput, _)| throughput),
                p99_us: found.and_then(|(_, p99)| p99),
                reason,
            }
        });
        Document {
            target: target.key().function.clone(),
            machine: target.key().machine.clone(),
            source: target.schema().source().to_string(),
            method: target.throughput().kind().to_string(),
            model_error: target.throughput().error(),
            competitors: competitors.iter().map(|of| of.key().function.clone()).collect(),
            solo_pps: target.solo().throughput,
            throughput_pps: prediction.throughput.into(),
            p99_us: prediction.p99_us.map(Interval::from),
            relative: prediction.relative,
            attributions: parts.collect(),
            remedies: remedies.collect(),
            as_competitors_join: steps.collect(),
        }
    }

    /// Formats the prediction for people: names of lines, and their text.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let beside = match self.competitors.is_empty() {
            true => "none".to_owned(),
            false => self.competitors.join(", "),
        };
        let tenths = |share: f64| format!("{:.1} %", 100.0 * share);
        let throughput = &self.throughput_pps;
        let mut lines = vec![
            ("target", one_line(&self.target)),
            ("beside", one_line(&beside)),
            ("machine", one_line(&self.machine)),
            (
                "model",
                format!(
                    "{}, metrics {}, mean error {}",
                    self.method,
                    self.source,
                    tenths(self.model_error)
                ),
            ),
            (
                "throughput",
                format!(
                    "{}pps  {} to {} with {}, {} of alone",
                    short(throughput.value),
                    short(throughput.low),
                    short(throughput.high),
                    percent(throughput.confidence),
                    tenths(self.relative)
                ),
            ),
        ];
        if let Some(p99) = &self.p99_us {
            lines.push(("p99", format!("{:.1} µs  {:.1} to {:.1}", p99.value, p99.low, p99.high)));
        }
        for (at, part) in self.attributions.iter().enumerate() {
            let name = if at == 0 { "binds" } else { "" };
            let text = format!("{} ({}): {} lost", part.resource, part.metric, tenths(part.loss));
            lines.push((name, text));
        }
        for (at, remedy) in self.remedies.iter().take(MOST_REMEDIES).enumerate() {
            let name = if at == 0 { "would help" } else { "" };
            let (change, after, gain) = (&remedy.change, short(remedy.throughput_pps.value), tenths(remedy.gain));
            lines.push((name, format!("{}: {after}pps, {gain} more", one_line(change))));
        }
        lines
    }

    /// Formats the prediction as text.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.lines() {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "{name:<20}{value}");
        }
        text
    }
}
