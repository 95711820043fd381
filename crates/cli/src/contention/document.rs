//! Document of `tailwater profile contention`.

use crate::text::{one_line, short, tenths_percent};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use tailwater_predict::{Campaign, End, Evaluation};

/// Result as JSON. Field names are stable.
#[derive(Debug, Serialize)]
pub struct Document {
    pub chain: String,
    configuration: String,
    traffic: String,
    pub machine: String,
    source: String,
    /// Reason for the end: `error`, `noGain` or `most`.
    end: &'static str,
    /// Points with an undisturbed measurement.
    points: usize,
    /// Points without one.
    pub unusable_points: usize,
    solo_pps: Option<f64>,
    solo_p99_us: Option<f64>,
    /// Share of the throughput alone that the competitors cost.
    mean_loss: Option<f64>,
    largest_loss: Option<f64>,
    /// Mean relative error on co-runs outside of each fit; `None` if there are too few points for a model.
    model_error: Option<f64>,
    pub metrics: Vec<Metric>,
    file: String,
}

#[derive(Debug, Serialize)]
pub struct Metric {
    pub name: String,
    pub unit: String,
    /// Largest value of the competitors.
    pub largest: Option<f64>,
    /// Mean value of the chain's own vector.
    pub own: Option<f64>,
}

impl Document {
    /// Describes a complete campaign, with the model of its throughput if there is one.
    pub fn new(campaign: &Campaign, evaluation: Option<&Evaluation>, end: End, file: &Path) -> Document {
        let key = campaign.key();
        let solo = campaign.solo().filter(|solo| solo.measured);
        let mut usable: BTreeMap<u32, bool> = BTreeMap::new();
        for of in campaign.observations() {
            *usable.entry(of.group).or_default() |= !of.flagged;
        }
        let points = usable.values().filter(|usable| **usable).count();
        let beside = || campaign.usable().filter(|of| of.competitors > 0);
        let losses: Vec<f64> = solo
            .iter()
            .flat_map(|solo| beside().map(|of| 1.0 - of.throughput / solo.throughput))
            .collect();
        let metrics = campaign.schema().metrics().iter().enumerate();
        let metrics = metrics.map(|(at, metric)| Metric {
            name: metric.name.clone(),
            unit: metric.unit.clone(),
            largest: beside().filter_map(|of| of.competition.values()[at]).reduce(f64::max),
            own: {
                let own = campaign.usable().filter(|of| of.competitors == 0);
                mean(own.filter_map(|of| of.own.as_ref()?.values()[at]).collect())
            },
        });
        Document {
            chain: key.function.clone(),
            configuration: key.configuration.clone(),
            traffic: key.traffic.clone(),
            machine: key.machine.clone(),
            source: campaign.schema().source().to_string(),
            end: match end {
                End::Error => "error",
                End::NoGain => "noGain",
                End::Most => "most",
            },
            points,
            unusable_points: usable.len() - points,
            solo_pps: solo.map(|solo| solo.throughput),
            solo_p99_us: solo.and_then(|solo| solo.p99_us),
            largest_loss: losses.iter().copied().reduce(f64::max),
            mean_loss: mean(losses),
            model_error: evaluation.map(|of| of.model.error()),
            metrics: metrics.collect(),
            file: file.display().to_string(),
        }
    }

    /// Returns names with values, for people.
    pub fn lines(&self) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        let mut line = |name: &str, value: String| lines.push((name.to_owned(), value));
        let share = |share: Option<f64>| share.map_or("-".to_owned(), tenths_percent);
        line("chain", one_line(&self.chain));
        line("traffic", one_line(&self.traffic));
        line("machine", one_line(&self.machine));
        let points = match self.unusable_points {
            0 => self.points.to_string(),
            flagged => format!("{}, and {flagged} DISTURBED, which are not used", self.points),
        };
        line("points", points);
        let pps = |pps: f64| format!("{}pps", short(pps));
        line(
            "alone",
            self.solo_pps.map_or("NOT MEASURED undisturbed".to_owned(), pps),
        );
        if let Some(p99) = self.solo_p99_us {
            line("p99 alone", format!("{p99:.1} µs"));
        }
        let (mean, largest) = (share(self.mean_loss), share(self.largest_loss));
        line(
            "loss beside competitors",
            format!("{mean} on average, at most {largest}"),
        );
        let end = match self.end {
            "error" => "small enough",
            "noGain" => "more points did not lower it",
            _ => "maximum of points reached",
        };
        let error = match self.model_error {
            Some(error) => format!("{} of the throughput ({end})", tenths_percent(error)),
            None => "NO MODEL: too few undisturbed points".to_owned(),
        };
        line("error of a model", error);
        line("campaign", one_line(&self.file));
        lines
    }

    /// Formats the campaign as text.
    pub fn table(&self) -> String {
        let mut text = String::new();
        // Writing into a string cannot fail.
        for (name, value) in self.lines() {
            let _ = writeln!(text, "{name:<24}{value}");
        }
        let source = &self.source;
        let _ = writeln!(
            text,
            "\n{:<24}{:>12}{:>12}  metric ({source})",
            "", "competitors", "chain"
        );
        for metric in &self.metrics {
            let share = |share: Option<f64>| share.map_or("-".to_owned(), tenths_percent);
            let (largest, own) = (share(metric.largest), share(metric.own));
            let _ = writeln!(text, "{:<24}{largest:>12}{own:>12}  {}", metric.name, metric.unit);
        }
        text
    }
}

fn mean(values: Vec<f64>) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
