//! `tailwater predict`: performance of a chain beside others.

mod args;
pub mod document;

pub use args::{PREDICT_EXAMPLES, PredictArgs};

use crate::error::CliError;
use crate::files::{ReportFile, check_writable, write_result};
use crate::html;
use crate::output::{ReportOutput, complain, json, print};
use crate::text::one_line;
use document::Document;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;
use tailwater_predict::{ContentionModel, PredictOptions, TrainOptions, predict as predicted, remedies};

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
    for (flag, path) in [("--save", &args.save), ("--report", &args.report)] {
        if let Some(path) = path {
            let inputs = args.competitors.iter().chain([&args.target]);
            check_writable(flag, path, inputs.map(|input| input.as_path()))?;
        }
    }
    let report = args.report.as_ref().map(|path| ReportFile::open("--report", path));
    let report = report.transpose()?;
    let target = read(&args.target)?;
    if let Some(machine) = &args.machine
        && *machine != target.key().machine
    {
        return Err(CliError::Input(format!(
            "--machine: expected models of {}, found {} in {}",
            one_line(machine),
            one_line(&target.key().machine),
            args.target.display()
        )));
    }
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
    // Training takes a second: once a file, however often it is repeated.
    let mut models: BTreeMap<&Path, ContentionModel> = BTreeMap::new();
    for path in &args.competitors {
        if !models.contains_key(path.as_path()) {
            models.insert(path, read(path)?);
        }
    }
    let options = PredictOptions {
        confidence: args.confidence,
        properties: args.properties.clone(),
        ..PredictOptions::default()
    };
    let others: Vec<&ContentionModel> = args.competitors.iter().map(|path| &models[path.as_path()]).collect();
    let refused = |error: tailwater_predict::PredictError| CliError::Input(error.to_string());
    let prediction = predicted(&target, &others, &options).map_err(refused)?;
    let helps = remedies(&target, &others, &options).map_err(refused)?;
    if let Some(path) = &args.save {
        write_result(path, &target.to_string())?;
    }
    for note in target.throughput().notes() {
        complain("notice", note);
    }
    let document = Document::new(&target, &others, &options, &prediction, helps);
    if let Some(report) = report {
        report.write(&html::prediction(&document, SystemTime::now())?)?;
    }
    match args.output {
        ReportOutput::Table => print(&document.table())?,
        ReportOutput::Json => print(&json(&document)?)?,
    }
    Ok(ExitCode::SUCCESS)
}
