//! Cost per packet by function.

use super::values::{MAX_TEXT, Quoted, Value, numbers_and_count};
use crate::curve::Measured;
use std::fmt;
use tailwater_api::SpecError;
use tailwater_api::document::{Located, line};

/// Maximum functions of a chain.
const MAX_FUNCTIONS: usize = 1024;

/// Cost per packet of a chain and of its functions, on a saturated core with the whole cache.
#[derive(Clone, Debug, PartialEq)]
pub struct CostProfile {
    /// Cost per packet with receiving, flow look-up and sending, nanoseconds.
    pub whole: Measured,
    /// Costs of the functions in chain order; at least one.
    pub functions: Vec<FunctionCost>,
}

/// Cost of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionCost {
    /// The function's name in the chain.
    pub function: String,
    /// Cost per packet that reaches it, nanoseconds.
    pub cost: Measured,
    /// Packets that reach it, relative to those of the function with the most.
    pub share: f64,
}

impl CostProfile {
    /// Returns the framework overhead per packet, nanoseconds: receiving, flow look-up, sending.
    pub fn rest(&self) -> f64 {
        let functions = self.functions.iter();
        let spent: f64 = functions.map(|of| of.cost.value * of.share).sum();
        (self.whole.value - spent).max(0.0)
    }
}

/// Reads costs from a file's node.
pub(super) fn read(node: &Located<'_>) -> Result<CostProfile, SpecError> {
    let fields = node.fields(&["whole", "functions"])?;
    let what = "[nanoseconds, noise, runs]";
    let whole = cost(&fields.required("whole", what)?)?;
    let list = fields.required("functions", "a list of functions")?;
    let mut functions: Vec<FunctionCost> = Vec::new();
    for node in list.list("functions", MAX_FUNCTIONS)? {
        let fields = node.fields(&["function", "nanoseconds", "share"])?;
        let name = fields.required("function", "the function's name")?;
        let share = fields.required("share", "a number from 0 to 1")?;
        let number = share.number("a number from 0 to 1")?;
        if !(0.0..=1.0).contains(&number) {
            return Err(share.expected("a number from 0 to 1"));
        }
        let function = FunctionCost {
            function: line(&name, MAX_TEXT)?.to_owned(),
            cost: cost(&fields.required("nanoseconds", what)?)?,
            share: number,
        };
        if functions.iter().any(|of| of.function == function.function) {
            return Err(name.error("expected each function once"));
        }
        functions.push(function);
    }
    Ok(CostProfile { whole, functions })
}

fn cost(node: &Located<'_>) -> Result<Measured, SpecError> {
    let ([value, noise, runs], disturbed) = numbers_and_count(node)?;
    match (1.0..=1e6).contains(&runs) && runs.fract() == 0.0 && f64::from(disturbed) <= runs {
        true => Ok(Measured {
            value,
            noise,
            runs: runs as u32,
            disturbed,
        }),
        false => Err(node.error("expected nanoseconds, their noise, and of how many runs")),
    }
}

pub(super) fn write(f: &mut fmt::Formatter<'_>, costs: &CostProfile) -> fmt::Result {
    writeln!(
        f,
        "      costs:\n        # nanoseconds a packet, noise, runs, disturbed runs"
    )?;
    writeln!(f, "        whole: [{}]", Value(&costs.whole))?;
    writeln!(f, "        functions:")?;
    for FunctionCost { function, cost, share } in &costs.functions {
        let (name, cost) = (Quoted(function), Value(cost));
        writeln!(
            f,
            "          - {{function: {name}, nanoseconds: [{cost}], share: {share}}}"
        )?;
    }
    Ok(())
}
