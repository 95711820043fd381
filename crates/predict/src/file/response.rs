//! Responses in files of models: a function's own vector beside competitors.

use super::values::{MAX_TEXT, Quoted, list, numbers, positive};
use crate::metric::{MAX_METRICS, Schema, Scope};
use crate::response::{Entry, Response, Surface, terms};
use std::fmt::{self, Write as _};
use tailwater_api::SpecError;
use tailwater_api::document::{Located, line};

/// Reads a response over metrics of a schema.
pub(super) fn read(node: &Located<'_>, schema: &Schema) -> Result<Response, SpecError> {
    let fields = node.fields(&["capacity", "entries", "surfaces"])?;
    let metric = |node: &Located<'_>| {
        let at = schema.position(line(node, MAX_TEXT)?);
        at.filter(|at| schema.metrics()[*at].scope == Scope::Competitors)
            .ok_or_else(|| node.expected("the name of one of the competitors' metrics"))
    };
    let range = |node: &Located<'_>| match numbers(node, 2)?[..] {
        [Some(low), Some(high)] if low <= high => Ok((low, high)),
        _ => Err(node.expected("[smallest, largest]")),
    };
    let mut entries = Vec::new();
    for node in fields
        .required("entries", "a list of metrics")?
        .list("metrics", MAX_METRICS)?
    {
        let fields = node.fields(&["metric", "range", "scale"])?;
        let scale = fields.required("scale", "[mean, standard deviation above 0] of the square roots")?;
        let [Some(mean), Some(deviation)] = numbers(&scale, 2)?[..] else {
            return Err(scale.expected("[mean, standard deviation above 0] of the square roots"));
        };
        if deviation <= 0.0 {
            return Err(scale.expected("[mean, standard deviation above 0] of the square roots"));
        }
        entries.push(Entry {
            metric: metric(&fields.required("metric", "the name of a metric")?)?,
            range: range(&fields.required("range", "[smallest, largest]")?)?,
            mean,
            deviation,
        });
    }
    let mut surfaces = Vec::new();
    for node in fields
        .required("surfaces", "a list of metrics")?
        .list("metrics", MAX_METRICS)?
    {
        let fields = node.fields(&["metric", "range", "weights"])?;
        let node = fields.required("weights", "a list of numbers")?;
        let weights: Option<Vec<f64>> = numbers(&node, terms(entries.len()))?.into_iter().collect();
        surfaces.push(Surface {
            metric: metric(&fields.required("metric", "the name of a metric")?)?,
            range: range(&fields.required("range", "[smallest, largest]")?)?,
            weights: weights.ok_or_else(|| node.expected("a list of numbers"))?,
        });
    }
    let capacity = fields.optional("capacity");
    Ok(Response {
        capacity: capacity.map(|node| positive(&node)).transpose()?,
        entries,
        surfaces,
    })
}

pub(super) fn write(text: &mut String, of: &Response, schema: &Schema) -> fmt::Result {
    let name = |metric: usize| Quoted(&schema.metrics()[metric].name);
    writeln!(
        text,
        "  # own vector beside competitors: surfaces of second order over the square roots of their metrics"
    )?;
    writeln!(text, "  response:")?;
    if let Some(capacity) = of.capacity {
        writeln!(text, "    capacity: {capacity:e}")?;
    }
    writeln!(text, "    entries:")?;
    for entry in &of.entries {
        let ((low, high), name) = (entry.range, name(entry.metric));
        let (mean, deviation) = (entry.mean, entry.deviation);
        writeln!(
            text,
            "      - {{metric: {name}, range: [{low:e}, {high:e}], scale: [{mean:e}, {deviation:e}]}}"
        )?;
    }
    writeln!(text, "    surfaces:")?;
    for surface in &of.surfaces {
        let ((low, high), name) = (surface.range, name(surface.metric));
        let weights = list(surface.weights.iter().map(|weight| Some(*weight)));
        writeln!(
            text,
            "      - {{metric: {name}, range: [{low:e}, {high:e}], weights: {weights}}}"
        )?;
    }
    Ok(())
}
