//! What a packet costs, function by function.

use super::values::{MAX_TEXT, Quoted, numbers};
use crate::curve::Measured;
use std::fmt;
use tailwater_api::SpecError;
use tailwater_api::document::{Located, line};

/// The most functions of a chain.
const MAX_FUNCTIONS: usize = 1024;

/// What a packet takes on a core that always has more, with all the cache that there is, and what each function takes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct CostProfile {
    /// Nanoseconds for each packet, with receiving, looking flows up and sending.
    pub whole: Measured,
    /// In the order of the functions, of which there is one at least.
    pub functions: Vec<FunctionCost>,
}

/// What a function takes.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionCost {
    /// Its name in the chain.
    pub function: String,
    /// Nanoseconds for each packet that comes to it.
    pub cost: Measured,
    /// How many packets come to it, as a share of those that come to the function to which most do.
    pub share: f64,
}

impl CostProfile {
    /// What a packet takes besides the functions, in nanoseconds: receiving, looking its flow up, sending.
    pub fn rest(&self) -> f64 {
        let functions = self.functions.iter();
        let spent: f64 = functions.map(|of| of.cost.value * of.share).sum();
        (self.whole.value - spent).max(0.0)
    }
}

/// As files have it.
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
    let [value, noise, runs] = numbers(node)?;
    match (1.0..=1e6).contains(&runs) && runs.fract() == 0.0 {
        true => Ok(Measured {
            value,
            noise,
            runs: runs as u32,
        }),
        false => Err(node.error("expected nanoseconds, their noise, and of how many runs")),
    }
}

pub(super) fn write(f: &mut fmt::Formatter<'_>, costs: &CostProfile) -> fmt::Result {
    let Measured { value, noise, runs } = costs.whole;
    writeln!(f, "      costs:\n        # nanoseconds a packet, noise, runs")?;
    writeln!(f, "        whole: [{value}, {noise}, {runs}]")?;
    writeln!(f, "        functions:")?;
    for FunctionCost {
        function,
        cost: Measured { value, noise, runs },
        share,
    } in &costs.functions
    {
        let name = Quoted(function);
        writeln!(
            f,
            "          - {{function: {name}, nanoseconds: [{value}, {noise}, {runs}], share: {share}}}"
        )?;
    }
    Ok(())
}
