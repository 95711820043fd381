//! Files of models.

use super::values::{
    KEY, MAX_TEXT, Quoted, check, checksum, fields, key, list, number, numbers, positive, schema, text, with_head,
    write_scope,
};
use super::{campaign, fitted, response};
use crate::campaign::{MAX_COMPETITORS, Solo};
use crate::compose::Contentiousness;
use crate::metric::{MAX_METRICS, Metric, Schema, Words};
use crate::model::Kind;
use crate::predictor::ContentionModel;
use crate::sensitivity::{MAX_SCORES, Sensitivity, TrainOptions};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use tailwater_api::SpecError;
use tailwater_api::document::{Document, Fields, Located, line};

const KIND: &str = "ContentionModel";
/// Name of the file type, in errors.
const WHAT: &str = "a contention model";
/// Maximum number of notes.
const MAX_NOTES: usize = 256;

impl ContentionModel {
    /// Reads a file.
    ///
    /// # Errors
    /// The first error, with its position.
    pub fn read(path: &Path) -> Result<ContentionModel, SpecError> {
        model(&Document::read(path, WHAT)?)
    }

    /// Reads a file of a model, or of a campaign, on which a model is then trained.
    ///
    /// # Errors
    /// The first error, with its position, or the reason why the campaign gives no model.
    pub fn read_or_train(path: &Path, options: &TrainOptions) -> Result<ContentionModel, SpecError> {
        let document = Document::read(path, "a contention model or a campaign of co-runs")?;
        if document
            .object(campaign::KIND, "a map with version and checksum")
            .is_err()
        {
            return model(&document);
        }
        let campaign = campaign::campaign(&document)?;
        let model = ContentionModel::train(&campaign, options);
        model.map_err(|error| SpecError::whole_file(&path.display().to_string(), error.to_string()))
    }

    /// Parses the text of a file. `name` is the file's name in errors.
    ///
    /// # Errors
    /// The first error, with its position.
    pub fn parse(text: &str, name: &str) -> Result<ContentionModel, SpecError> {
        model(&Document::parse(text, name, WHAT)?)
    }
}

/// The text of a file.
impl fmt::Display for ContentionModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_head(KIND, &self.key.function, &to_text(self)))
    }
}

fn model(document: &Document) -> Result<ContentionModel, SpecError> {
    let known = [
        "version",
        "checksum",
        "campaign",
        "source",
        "metrics",
        "soloThroughput",
        "soloP99Microseconds",
        "soloMeasured",
        "contentiousness",
        "response",
        "throughput",
        "p99",
    ];
    let (_, fields) = fields(document, KIND, &[&known[..], &KEY[..]].concat())?;
    let schema = schema(&fields)?;
    let solo = fields.required("soloThroughput", "packets per second")?;
    let delay = fields.optional("soloP99Microseconds");
    let measured = fields.required("soloMeasured", "true or false")?;
    let model = ContentionModel {
        key: key(&fields)?,
        campaign: text(&fields, "campaign")?,
        solo: Solo {
            throughput: positive(&solo)?,
            p99_us: delay.map(|node| positive(&node)).transpose()?,
            measured: measured.word(&[("true", true), ("false", false)])?,
        },
        contentiousness: contentiousness(&fields, &schema)?,
        throughput: sensitivity(&fields.required("throughput", "a model")?, &schema)?,
        p99: fields
            .optional("p99")
            .map(|node| sensitivity(&node, &schema))
            .transpose()?,
    };
    check(&fields, &checksum(&to_text(&model)))?;
    Ok(model)
}

fn contentiousness(fields: &Fields<'_>, schema: &Arc<Schema>) -> Result<Contentiousness, SpecError> {
    let mut values = BTreeMap::new();
    if let Some(node) = fields.optional("contentiousness") {
        for node in node.list("vectors", MAX_COMPETITORS as usize + 1)? {
            let fields = node.fields(&["coRunners", "vector"])?;
            let count = fields.required("coRunners", "a whole number")?;
            let vector = fields.required("vector", "the function's vector")?;
            let vector = numbers(&vector, schema.metrics().len())?;
            let co_runners = count.whole(0..=u64::from(MAX_COMPETITORS))? as u32;
            if values.insert(co_runners, vector).is_some() {
                return Err(count.error("expected each number of co-runners once"));
            }
        }
    }
    let mut contentiousness =
        Contentiousness::with(schema.clone(), values).map_err(|error| fields.error(error.to_string()))?;
    if let Some(node) = fields.optional("response") {
        contentiousness.response = Some(response::read(&node, schema)?);
    }
    Ok(contentiousness)
}

fn sensitivity(node: &Located<'_>, all: &Arc<Schema>) -> Result<Sensitivity, SpecError> {
    let fields = node.fields(&["kind", "reference", "inputs", "scores", "notes", "model"])?;
    let kind = fields.required("kind", "a method")?.word(Kind::WORDS)?;
    let inputs = fields.required("inputs", "a list of inputs")?;
    let (mut metrics, mut ranges, mut baseline): (Vec<Metric>, Vec<(f64, f64)>, Vec<f64>) = Default::default();
    for node in inputs.list("inputs", MAX_METRICS)? {
        let fields = node.fields(&["metric", "range", "baseline"])?;
        let metric = fields.required("metric", "the name of a metric")?;
        let name = line(&metric, MAX_TEXT)?;
        let at = all
            .position(name)
            .ok_or_else(|| metric.expected("the name of one of the metrics"))?;
        metrics.push(all.metrics()[at].clone());
        let range = fields.required("range", "[smallest, largest]")?;
        match numbers(&range, 2)?[..] {
            [Some(low), Some(high)] if low <= high => ranges.push((low, high)),
            _ => return Err(range.expected("[smallest, largest]")),
        }
        baseline.push(number(&fields.required("baseline", "a number")?)?);
    }
    let schema = Schema::new(all.source(), metrics).map_err(|error| inputs.error(error.to_string()))?;
    let model = fields.required("model", "a model")?;
    Ok(Sensitivity {
        kind,
        ranges,
        baseline,
        reference: positive(&fields.required("reference", "a number above 0")?)?,
        fitted: fitted::read(&model, schema.metrics().len())?,
        schema: Arc::new(schema),
        scores: scores(&fields.required("scores", "a list of numbers")?)?,
        notes: notes(&fields)?,
    })
}

fn scores(node: &Located<'_>) -> Result<Vec<f64>, SpecError> {
    let mut scores: Vec<f64> = Vec::new();
    for node in node.list("scores", MAX_SCORES)? {
        let score = number(&node)?;
        if !(0.0..=50.0).contains(&score) || scores.last().is_some_and(|last| *last > score) {
            return Err(node.expected("numbers from 0 to 50 in increasing order"));
        }
        scores.push(score);
    }
    Ok(scores)
}

fn notes(fields: &Fields<'_>) -> Result<Vec<String>, SpecError> {
    let Some(node) = fields.optional("notes") else {
        return Ok(Vec::new());
    };
    let nodes = node.list("notes", MAX_NOTES)?;
    nodes.iter().map(|node| Ok(line(node, MAX_TEXT)?.to_owned())).collect()
}

/// Returns the values of a file, without its head.
fn to_text(model: &ContentionModel) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = write(&mut text, model);
    text
}

fn write(text: &mut String, model: &ContentionModel) -> fmt::Result {
    write_scope(text, &model.key, model.schema())?;
    writeln!(text, "  # checksum of the campaign")?;
    writeln!(text, "  campaign: {}", Quoted(&model.campaign))?;
    writeln!(text, "  soloThroughput: {:e}", model.solo.throughput)?;
    if let Some(p99) = model.solo.p99_us {
        writeln!(text, "  soloP99Microseconds: {p99:e}")?;
    }
    writeln!(text, "  soloMeasured: {}", model.solo.measured)?;
    if !model.contentiousness.values().is_empty() {
        writeln!(text, "  contentiousness:")?;
    }
    for (co_runners, values) in model.contentiousness.values() {
        let vector = list(values.iter().copied());
        writeln!(text, "    - {{coRunners: {co_runners}, vector: {vector}}}")?;
    }
    if let Some(response) = &model.contentiousness.response {
        response::write(text, response, model.schema())?;
    }
    write_sensitivity(text, "throughput", &model.throughput)?;
    if let Some(p99) = &model.p99 {
        write_sensitivity(text, "p99", p99)?;
    }
    Ok(())
}

fn write_sensitivity(text: &mut String, field: &str, of: &Sensitivity) -> fmt::Result {
    writeln!(
        text,
        "  {field}:\n    kind: {}\n    reference: {:e}\n    inputs:",
        of.kind, of.reference
    )?;
    let inputs = of.schema.metrics().iter().zip(&of.ranges).zip(&of.baseline);
    for ((metric, (low, high)), baseline) in inputs {
        let name = Quoted(&metric.name);
        writeln!(
            text,
            "      - {{metric: {name}, range: [{low:e}, {high:e}], baseline: {baseline:e}}}"
        )?;
    }
    writeln!(
        text,
        "    # absolute logarithms of measured over predicted, of observations outside of the fit"
    )?;
    writeln!(text, "    scores: {}", list(of.scores.iter().map(|score| Some(*score))))?;
    if !of.notes.is_empty() {
        writeln!(text, "    notes:")?;
        for note in &of.notes {
            writeln!(text, "      - {}", Quoted(note))?;
        }
    }
    write!(text, "    model: ")?;
    fitted::write(text, &of.fitted)?;
    writeln!(text)
}
