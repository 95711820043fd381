//! Fitted models in files.

use super::values::{list, number, numbers};
use crate::model::{Axis, Curve, Fitted, Kernel, Linear, MAX_CENTRES, Scaled, Tree, Trees};
use std::fmt::{self, Write as _};
use tailwater_api::SpecError;
use tailwater_api::document::Located;

/// Maximum number of trees of a model.
const MAX_TREES: usize = 2000;
/// Maximum number of nodes of all trees of a model.
const MAX_ALL_NODES: usize = 1 << 20;
/// Maximum number of points of a curve.
const MAX_POINTS: usize = 1024;
/// Maximum nesting of models.
const MAX_DEPTH: u32 = 4;

/// Reads a fitted model over `inputs` inputs.
pub(super) fn read(node: &Located<'_>, inputs: usize) -> Result<Fitted, SpecError> {
    nested(node, inputs, MAX_DEPTH)
}

fn nested(node: &Located<'_>, inputs: usize, depth: u32) -> Result<Fitted, SpecError> {
    if depth == 0 {
        return Err(node.error(format!("expected models nested at most {MAX_DEPTH} deep")));
    }
    let fields = node.fields(&["linear", "curve", "kernel", "trees", "sum", "scaled"])?;
    let entries = node.entries("one of linear, curve, kernel, trees, sum, scaled")?;
    let [(name, _)] = entries[..] else {
        return Err(node.error("expected one of linear, curve, kernel, trees, sum, scaled"));
    };
    let node = fields.required(name, "a model")?;
    match name {
        "linear" => linear(&node, inputs),
        "curve" => curve(&node),
        "kernel" => kernel(&node, inputs),
        "trees" => trees(&node, inputs),
        "sum" => {
            let both = node.list("models", 2)?;
            let [first, second] = &both[..] else {
                return Err(node.error("expected 2 models"));
            };
            let both = [nested(first, inputs, depth - 1)?, nested(second, inputs, depth - 1)?];
            Ok(Fitted::Sum(Box::new(both)))
        }
        _ => {
            let fields = node.fields(&["factor", "offset", "model"])?;
            let model = fields.required("model", "a model")?;
            Ok(Fitted::Scaled(Box::new(Scaled {
                factor: number(&fields.required("factor", "a number")?)?,
                offset: number(&fields.required("offset", "a number")?)?,
                model: nested(&model, inputs, depth - 1)?,
            })))
        }
    }
}

fn linear(node: &Located<'_>, inputs: usize) -> Result<Fitted, SpecError> {
    let fields = node.fields(&["intercept", "weights"])?;
    let weights = fields.required("weights", "a list of [weight, 1 for logarithms or 0]")?;
    let list = weights.list("weights", inputs)?;
    if list.len() != inputs {
        return Err(weights.error(format!("expected {inputs} weights, found {}", list.len())));
    }
    let weight = |node: &Located<'_>| match numbers(node, 2)?[..] {
        [Some(weight), Some(log)] if log == 0.0 || log == 1.0 => Ok((weight, log == 1.0)),
        _ => Err(node.error("expected [weight, 1 for logarithms or 0]")),
    };
    Ok(Fitted::Linear(Linear {
        intercept: number(&fields.required("intercept", "a number")?)?,
        weights: list.iter().map(weight).collect::<Result<_, _>>()?,
    }))
}

fn curve(node: &Located<'_>) -> Result<Fitted, SpecError> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for node in node.list("points", MAX_POINTS)? {
        let point = match numbers(&node, 2)?[..] {
            [Some(input), Some(value)] => (input, value),
            _ => return Err(node.error("expected [input, value]")),
        };
        if points.last().is_some_and(|last| last.0 >= point.0) {
            return Err(node.error("expected points in increasing order"));
        }
        points.push(point);
    }
    Ok(Fitted::Curve(Curve(points)))
}

fn kernel(node: &Located<'_>, inputs: usize) -> Result<Fitted, SpecError> {
    let fields = node.fields(&["offset", "separate", "axes", "centres"])?;
    let axes = fields.required(
        "axes",
        "a list of [mean, scale, 1 for logarithms or 0, 1 for the target's or 0]",
    )?;
    let list = axes.list("axes", inputs)?;
    if list.len() != inputs {
        return Err(axes.error(format!("expected {inputs} axes, found {}", list.len())));
    }
    let is_flag = |flag: f64| flag == 0.0 || flag == 1.0;
    let axis = |node: &Located<'_>| match numbers(node, 4)?[..] {
        [Some(mean), Some(scale), Some(log), Some(target)] if scale > 0.0 && is_flag(log) && is_flag(target) => {
            Ok(Axis {
                mean,
                scale,
                log: log == 1.0,
                is_target: target == 1.0,
            })
        }
        _ => Err(node.error("expected [mean, scale above 0, 1 for logarithms or 0, 1 for the target's or 0]")),
    };
    let mut centres = Vec::new();
    for node in fields
        .required("centres", "a list of centres")?
        .list("centres", MAX_CENTRES)?
    {
        let values = numbers(&node, inputs + 1)?.into_iter().collect::<Option<Vec<f64>>>();
        let mut values = values.ok_or_else(|| node.error("expected numbers, found null"))?;
        // The list has at least two numbers.
        let weight = values.pop().unwrap_or(0.0);
        centres.push((values, weight));
    }
    Ok(Fitted::Kernel(Kernel {
        offset: number(&fields.required("offset", "a number")?)?,
        separate: number(&fields.required("separate", "a number")?)?,
        axes: list.iter().map(axis).collect::<Result<_, _>>()?,
        centres,
    }))
}

fn trees(node: &Located<'_>, inputs: usize) -> Result<Fitted, SpecError> {
    let fields = node.fields(&["base", "list"])?;
    let mut list = Vec::new();
    let mut nodes = 0;
    for node in fields.required("list", "a list of trees")?.list("trees", MAX_TREES)? {
        let text = node.text("a tree")?;
        let tree = Tree::parse(text, inputs);
        let tree = tree.ok_or_else(|| {
            node.error(format!(
                "expected a whole tree over inputs 0 to {}, such as \"0:1.5 =1 =2\": a split at 1.5, and its leaves",
                inputs - 1
            ))
        })?;
        nodes += tree.nodes();
        if nodes > MAX_ALL_NODES {
            return Err(node.error(format!("expected at most {MAX_ALL_NODES} nodes of all trees")));
        }
        list.push(tree);
    }
    let base = number(&fields.required("base", "a number")?)?;
    Ok(Fitted::Trees(Trees { base, list }))
}

/// Writes a fitted model as a value in one line, but for trees, which have a line each.
pub(super) fn write(text: &mut String, fitted: &Fitted) -> fmt::Result {
    match fitted {
        Fitted::Linear(linear) => {
            let weight = |(weight, log): &(f64, bool)| format!("[{weight:e}, {}]", u8::from(*log));
            let weights: Vec<String> = linear.weights.iter().map(weight).collect();
            let intercept = linear.intercept;
            write!(
                text,
                "{{linear: {{intercept: {intercept:e}, weights: [{}]}}}}",
                weights.join(", ")
            )
        }
        Fitted::Curve(curve) => {
            let points: Vec<String> = curve.0.iter().map(|(x, y)| format!("[{x:e}, {y:e}]")).collect();
            write!(text, "{{curve: [{}]}}", points.join(", "))
        }
        Fitted::Kernel(kernel) => {
            let flags = |axis: &Axis| (u8::from(axis.log), u8::from(axis.is_target));
            let axis = |axis: &Axis| {
                let (log, target) = flags(axis);
                format!("[{:e}, {:e}, {log}, {target}]", axis.mean, axis.scale)
            };
            let axes: Vec<String> = kernel.axes.iter().map(axis).collect();
            let (offset, separate) = (kernel.offset, kernel.separate);
            let axes = axes.join(", ");
            write!(
                text,
                "{{kernel: {{offset: {offset:e}, separate: {separate:e}, axes: [{axes}], centres: ["
            )?;
            for (at, (centre, weight)) in kernel.centres.iter().enumerate() {
                let separator = if at == 0 { "" } else { "," };
                let row = list(centre.iter().chain([weight]).map(|value| Some(*value)));
                write!(text, "{separator}\n        {row}")?;
            }
            write!(text, "]}}}}")
        }
        Fitted::Trees(trees) => {
            write!(text, "{{trees: {{base: {:e}, list: [", trees.base)?;
            for (at, tree) in trees.list.iter().enumerate() {
                let separator = if at == 0 { "" } else { "," };
                write!(text, "{separator}\n        \"{}\"", tree.to_text())?;
            }
            write!(text, "]}}}}")
        }
        Fitted::Sum(both) => {
            write!(text, "{{sum: [")?;
            write(text, &both[0])?;
            write!(text, ", ")?;
            write(text, &both[1])?;
            write!(text, "]}}")
        }
        Fitted::Scaled(scaled) => {
            let (factor, offset) = (scaled.factor, scaled.offset);
            write!(text, "{{scaled: {{factor: {factor:e}, offset: {offset:e}, model: ")?;
            write(text, &scaled.model)?;
            write!(text, "}}}}")
        }
    }
}
