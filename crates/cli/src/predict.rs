//! `tailwater predict`: performance of a chain beside others.

mod args;

pub use args::{PREDICT_EXAMPLES, PredictArgs};

use crate::error::CliError;
use crate::files::{check_writable, write_result};
use crate::output::{ReportOutput, complain, json, print};
use crate::text::{one_line, short};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use tailwater_predict::{ContentionModel, Estimate, PredictOptions, Prediction, TrainOptions, predict as predicted};

/// Result as JSON.
#[derive(Debug, Serialize)]
struct Document {
    target: String,
    machine: String,
    source: String,
    method: String,
    /// Mean relative error on co-runs outside of each fit.
    model_error: f64,
    competitors: Vec<String>,
    solo_pps: f64,
    throughput_pps: Interval,
    /// `None` if the campaign did not measure it.
    p99_us: Option<Interval>,
    /// Throughput relative to that without competitors.
    relative: f64,
    /// Resources by their part of the loss, largest first.
    attributions: Vec<Part>,
}

#[derive(Debug, Serialize)]
struct Interval {
    value: f64,
    low: f64,
    high: f64,
    confidence: f64,
}

#[derive(Debug, Serialize)]
struct Part {
    resource: String,
    metric: String,
    /// Part of the throughput without competitors that is lost.
    loss: f64,
    remedy: Option<&'static str>,
}

/// Predicts, prints the prediction, and saves the target's model if that is requested.
///
/// # Errors
/// A file is invalid, the models do not fit together, or the competitors are outside of what the campaign covers.
pub fn predict(args: &PredictArgs) -> Result<ExitCode, CliError> {
    let train = TrainOptions {
        kind: args.method,
        ..TrainOptions::default()
    };
    let read = |path: &Path| ContentionModel::read_or_train(path, &train).map_err(CliError::from);
    if let Some(path) = &args.save {
        let inputs = args.competitors.iter().chain([&args.target]);
        check_writable("--save", path, inputs.map(|input| input.as_path()))?;
    }
    let target = read(&args.target)?;
    for (name, _) in &args.properties {
        let inputs = target.schema().metrics();
        if !inputs.iter().any(|metric| metric.name == *name) {
            let names: Vec<&str> = inputs.iter().map(|metric| metric.name.as_str()).collect();
            let names = names.join(", ");
            let name = one_line(name);
            return Err(CliError::Input(format!(
                "--property: expected one of {names}, found {name}"
            )));
        }
    }
    let competitors = args.competitors.iter().map(|path| read(path));
    let competitors = competitors.collect::<Result<Vec<ContentionModel>, CliError>>()?;
    let options = PredictOptions {
        confidence: args.confidence,
        properties: args.properties.clone(),
        ..PredictOptions::default()
    };
    let others: Vec<&ContentionModel> = competitors.iter().collect();
    let prediction = predicted(&target, &others, &options).map_err(|error| CliError::Input(error.to_string()))?;
    if let Some(path) = &args.save {
        write_result(path, &target.to_string())?;
    }
    for note in target.throughput().notes() {
        complain("notice", note);
    }
    let document = document(&target, &others, &prediction);
    match args.output {
        ReportOutput::Table => print(&table(&document))?,
        ReportOutput::Json => print(&json(&document)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn document(target: &ContentionModel, competitors: &[&ContentionModel], prediction: &Prediction) -> Document {
    let interval = |estimate: Estimate| Interval {
        value: estimate.value,
        low: estimate.low,
        high: estimate.high,
        confidence: estimate.confidence,
    };
    let parts = prediction.attributions.iter().map(|part| Part {
        resource: part.resource.to_string(),
        metric: part.metric.clone(),
        loss: part.loss,
        remedy: part.remedy,
    });
    Document {
        target: target.key().function.clone(),
        machine: target.key().machine.clone(),
        source: target.schema().source().to_string(),
        method: target.throughput().kind().to_string(),
        model_error: target.throughput().error(),
        competitors: competitors.iter().map(|of| of.key().function.clone()).collect(),
        solo_pps: target.solo().throughput,
        throughput_pps: interval(prediction.throughput),
        p99_us: prediction.p99_us.map(interval),
        relative: prediction.relative,
        attributions: parts.collect(),
    }
}

/// Formats the prediction as text.
fn table(document: &Document) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{name:<20}{value}");
    };
    let beside = match document.competitors.is_empty() {
        true => "none".to_owned(),
        false => document.competitors.join(", "),
    };
    line("target", one_line(&document.target));
    line("beside", one_line(&beside));
    line("machine", one_line(&document.machine));
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    line(
        "model",
        format!(
            "{}, metrics {}, mean error {}",
            document.method,
            document.source,
            percent(document.model_error)
        ),
    );
    let throughput = &document.throughput_pps;
    let (value, low, high) = (short(throughput.value), short(throughput.low), short(throughput.high));
    let confidence = format!("{:.0} %", 100.0 * throughput.confidence);
    line(
        "throughput",
        format!(
            "{value}pps  {low} to {high} with {confidence}, {} of alone",
            percent(document.relative)
        ),
    );
    if let Some(p99) = &document.p99_us {
        line("p99", format!("{:.1} µs  {:.1} to {:.1}", p99.value, p99.low, p99.high));
    }
    for (at, part) in document.attributions.iter().enumerate() {
        let name = if at == 0 { "binds" } else { "" };
        line(
            name,
            format!("{} ({}): {} lost", part.resource, part.metric, percent(part.loss)),
        );
    }
    if let Some(remedy) = document.attributions.first().and_then(|part| part.remedy) {
        line("would help", remedy.to_owned());
    }
    text
}
