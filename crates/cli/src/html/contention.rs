//! Page of `tailwater profile contention --report`.

use super::charts::{Figure, nothing};
use super::scale::{Scale, percent_tick};
use super::svg::{ACROSS, Chart, UP};
use super::tables;
use super::{assemble, json};
use crate::contention::document::Document;
use crate::dates::utc;
use crate::error::CliError;
use crate::text::{short, tenths_percent};
use maud::{Markup, html};
use std::time::SystemTime;
use tailwater_predict::{Campaign, Evaluation};

/// Maximum number of sensitivity curves: the metrics to which the chain reacts most.
const MOST_CURVES: usize = 6;
/// Points of a curve.
const STEPS: usize = 24;

/// Returns the page of a campaign that ended at `ended`. `evaluation` is the model of its throughput; there may be too
/// few points for one.
///
/// # Errors
/// The document cannot be written as JSON.
pub fn page(
    document: &Document,
    campaign: &Campaign,
    evaluation: Option<&Evaluation>,
    ended: SystemTime,
) -> Result<String, CliError> {
    let rows: tables::Rows = document
        .lines()
        .into_iter()
        .map(|(name, text)| (name, vec![text]))
        .collect();
    let vectors = document.metrics.iter().map(|metric| {
        let value = |of: Option<f64>| of.map_or("-".to_owned(), tenths_percent);
        let cells = vec![value(metric.largest), value(metric.own), metric.unit.clone()];
        (metric.name.clone(), cells)
    });
    let main = html! {
        div.grid {
            @match evaluation {
                Some(evaluation) => {
                    @for curve in curves(campaign, evaluation) { (curve) }
                    (residuals(evaluation))
                }
                None => { (too_few()) }
            }
        }
        div.tables {
            (tables::table("figures", "Figures", &[], &rows))
            (tables::table("vectors", "Vectors", &["competitors, at most", "chain", "unit"], &vectors.collect()))
        }
    };
    let about = format!("contention on {}", document.machine);
    Ok(assemble(
        &format!("{}: contention", document.chain),
        &tables::header(
            "Tailwater contention campaign",
            &document.chain,
            &about,
            &Markup::default(),
        ),
        &main,
        &format!(" on {}", utc(ended)),
        "reference/commands/profile-contention.md",
        &(json(document)?, true),
    ))
}

fn too_few() -> Figure {
    Figure {
        id: "model".to_owned(),
        heading: "Sensitivity".to_owned(),
        caption: String::new(),
        legend: Vec::new(),
        tall: false,
        body: nothing("There are too few undisturbed points for a model."),
    }
}

/// Charts of the throughput over each metric, those with the largest loss first.
fn curves(campaign: &Campaign, evaluation: &Evaluation) -> Vec<Figure> {
    let model = &evaluation.model;
    let reference = model.reference();
    let all = model.schema().metrics().iter().zip(model.ranges()).enumerate();
    let mut responses: Vec<(usize, Vec<f64>, Vec<f64>)> = all
        .filter(|(_, (_, (low, high)))| low < high)
        .map(|(at, (_, (low, high)))| {
            let step = (high - low) / (STEPS - 1) as f64;
            let values: Vec<f64> = (0..STEPS).map(|i| low + step * i as f64).collect();
            let response = evaluation.response(at, &values);
            (at, values, response)
        })
        .collect();
    let loss = |(_, _, response): &(usize, Vec<f64>, Vec<f64>)| response[0] - response[STEPS - 1];
    responses.sort_by(|a, b| loss(b).total_cmp(&loss(a)));
    let curve = |(at, values, response): (usize, Vec<f64>, Vec<f64>)| {
        let metric = &model.schema().metrics()[at];
        let measured = campaign.usable().filter(|of| of.competitors > 0);
        let measured: Vec<(f64, f64, u32)> = measured
            .filter_map(|of| {
                Some((
                    of.competition.get(&metric.name)?,
                    of.throughput / reference,
                    of.competitors,
                ))
            })
            .collect();
        let most = values[STEPS - 1];
        let top = measured.iter().fold(1.0, |most: f64, of| most.max(of.1));
        let mut chart = Chart::new(Scale::from_zero(most, ACROSS), Scale::from_zero(top, UP));
        chart.x_axis(5, percent_tick, &format!("{} ({})", metric.name, metric.unit));
        chart.y_axis(5, percent_tick);
        for (value, share, competitors) in &measured {
            chart.dot("s2", (*value, *share));
            let text = format!(
                "{competitors} competitors, {}\n{} of the throughput alone",
                tenths_percent(*value),
                tenths_percent(*share)
            );
            chart.hover_dot((*value, *share), &text);
        }
        let line = values.iter().zip(&response);
        let line: Vec<_> = line.map(|(value, of)| Some((*value, of / reference))).collect();
        chart.line("s0", &line);
        Figure {
            id: format!("curve-{at}"),
            heading: format!("Sensitivity to {}", metric.name),
            caption: "Throughput as a share of that alone, over the competitors' pressure. Dots: measured. Line: the \
                      model's mean over all co-runs, with this metric changed."
                .to_owned(),
            legend: vec![("s0", "model".to_owned()), ("s2", "co-run".to_owned())],
            tall: false,
            body: chart.finish(&format!("Throughput over {}", metric.name)),
        }
    };
    responses.into_iter().take(MOST_CURVES).map(curve).collect()
}

/// Chart of predicted over measured throughput, of models that did not see the co-run.
fn residuals(evaluation: &Evaluation) -> Figure {
    let reference = evaluation.model.reference();
    let pairs = evaluation.held_out.iter();
    let pairs: Vec<(f64, f64)> = pairs
        .map(|of| (of.measured / reference, of.predicted / reference))
        .collect();
    let most = pairs.iter().fold(1.0, |most: f64, (x, y)| most.max(*x).max(*y));
    let mut chart = Chart::new(Scale::from_zero(most, ACROSS), Scale::from_zero(most, UP));
    chart.x_axis(5, percent_tick, "measured throughput, share of that alone");
    chart.y_axis(5, percent_tick);
    chart.line("s2 thin", &[Some((0.0, 0.0)), Some((most, most))]);
    for (measured, predicted) in &pairs {
        chart.dot("s0", (*measured, *predicted));
        let text = format!(
            "measured {}pps\npredicted {}pps ({:+.1} %)",
            short(measured * reference),
            short(predicted * reference),
            100.0 * (predicted / measured - 1.0)
        );
        chart.hover_dot((*measured, *predicted), &text);
    }
    Figure {
        id: "residuals".to_owned(),
        heading: "Predicted and measured".to_owned(),
        caption: "Each co-run predicted by a model that did not see it. On the thin line, the prediction is exact."
            .to_owned(),
        legend: vec![("s0", "co-run".to_owned()), ("s2", "exact".to_owned())],
        tall: false,
        body: chart.finish("Predicted over measured throughput"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::elements;
    use super::*;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::UNIX_EPOCH;
    use tailwater_predict::metric::Resource;
    use tailwater_predict::{
        End, Goal, Key, Kind, Metric, Observation, Schema, Sensitivity, Source, TrainOptions, Vector,
    };

    /// A campaign of a chain that memory slows down, and nothing else.
    fn campaign(points: u32) -> Campaign {
        let metric = |name| Metric::new(name, "added time", Resource::MemoryBandwidth);
        let metrics = vec![metric("probe.core"), metric("probe.memory")];
        let schema = Arc::new(Schema::new(Source::Probes, metrics).unwrap());
        let key = Key {
            function: "<b>nat".to_owned(),
            configuration: "0".to_owned(),
            traffic: "made up".to_owned(),
            machine: "made up".to_owned(),
        };
        let mut campaign = Campaign::new(key, schema.clone());
        for at in 0..points {
            let memory = f64::from(at) / 10.0;
            let vector = vec![Some(f64::from(at * 7 % 5)), Some(memory)];
            let observation = Observation {
                group: at,
                competitors: at.min(1),
                competition: Vector::new(schema.clone(), vector).unwrap(),
                throughput: 1e6 / (1.0 + memory / 8.0),
                p99_us: None,
                own: None,
                flagged: at == 7,
            };
            campaign.push(observation).unwrap();
        }
        campaign
    }

    fn page_of(campaign: &Campaign) -> (String, Option<Evaluation>) {
        let options = TrainOptions {
            kind: Kind::Ridge,
            ..TrainOptions::default()
        };
        let evaluation = Sensitivity::evaluated(campaign, Goal::Throughput, 1e6, &options).ok();
        let document = Document::new(campaign, evaluation.as_ref(), End::NoGain, Path::new("nat.yaml"));
        let page = page(&document, campaign, evaluation.as_ref(), UNIX_EPOCH).unwrap();
        (page, evaluation)
    }

    #[test]
    fn a_page_has_the_chains_sensitivity_and_its_residuals() {
        let (page, evaluation) = page_of(&campaign(40));
        elements(&page).unwrap();
        // The metric to which it reacts comes first.
        let memory = page.find("Sensitivity to probe.memory").unwrap();
        assert!(memory < page.find("Sensitivity to probe.core").unwrap_or(usize::MAX));
        assert!(page.contains("Predicted and measured") && page.contains("more points did not lower it"));
        assert!(page.contains("DISTURBED") && !page.contains("<b>nat"));
        let evaluation = evaluation.unwrap();
        // All but the disturbed one.
        assert_eq!(evaluation.held_out.len(), 39);
        let response = evaluation.response(1, &[0.0, 2.0, 3.9]);
        assert!(response[0] > response[1] && response[1] > response[2], "{response:?}");
    }

    #[test]
    fn a_page_of_too_few_points_says_so() {
        let (page, evaluation) = page_of(&campaign(4));
        assert!(evaluation.is_none());
        elements(&page).unwrap();
        assert!(page.contains("too few undisturbed points"), "{page}");
    }
}
