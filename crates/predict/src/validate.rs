//! Error of a method on groups that it never saw.

use crate::campaign::{Campaign, Observation};
use crate::dataset::Goal;
use crate::model::FitError;
use crate::select::mean;
use crate::sensitivity::{Sensitivity, TrainOptions};

/// Observation that was predicted without its group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeftOut {
    /// Its group.
    pub group: u32,
    /// Measured performance.
    pub measured: f64,
    /// Predicted performance.
    pub predicted: f64,
    /// The observation lies outside of the range of the others, where a model does not answer.
    pub outside: bool,
}

impl LeftOut {
    /// Returns the relative error.
    pub fn error(&self) -> f64 {
        (self.predicted / self.measured - 1.0).abs()
    }
}

/// Predicts each group of a campaign by a model of the others, tuned without it. Observations outside of the others'
/// range are predicted, too, and marked. An observation that lacks an input of the model is left out.
///
/// # Errors
/// If the others are too few for a model.
pub fn leave_groups_out(campaign: &Campaign, goal: Goal, options: &TrainOptions) -> Result<Vec<LeftOut>, FitError> {
    let observations = campaign.observations();
    let used = |at: &usize| !observations[*at].flagged && goal.of(&observations[*at]).is_some();
    let all: Vec<usize> = (0..observations.len()).filter(used).collect();
    let mut groups: Vec<u32> = all.iter().map(|at| observations[*at].group).collect();
    groups.sort_unstable();
    groups.dedup();
    let mut results = Vec::new();
    for group in groups {
        let others: Vec<usize> = all
            .iter()
            .copied()
            .filter(|at| observations[*at].group != group)
            .collect();
        let values: Vec<f64> = others.iter().filter_map(|at| goal.of(&observations[*at])).collect();
        if values.is_empty() {
            return Err(FitError::TooFew { found: 0 });
        }
        let model = Sensitivity::train(&campaign.subset(&others), goal, mean(&values), options)?;
        let left: Vec<&Observation> = all
            .iter()
            .map(|at| &observations[*at])
            .filter(|of| of.group == group)
            .collect();
        for observation in left {
            let (Ok(inputs), Some(measured)) = (model.inputs(&observation.competition), goal.of(observation)) else {
                continue;
            };
            results.push(LeftOut {
                group,
                measured,
                predicted: model.value_at(&inputs),
                outside: model.check_range(&inputs).is_err(),
            });
        }
    }
    Ok(results)
}
