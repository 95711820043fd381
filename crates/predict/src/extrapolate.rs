//! Predictions for a target whose flows or rules changed a little, by SLOMO's three shifts (section 6).

use crate::metric::{ACCESS_RATE, OCCUPANCY};
use crate::sensitivity::{Estimate, PredictError, Sensitivity};

/// Change of occupancy up to which the paper extrapolates.
pub const PUBLISHED_LIMIT: f64 = 0.2;
/// Mean error that extrapolating adds up to that change (section 6 of the paper).
pub const PUBLISHED_ADDED_ERROR: f64 = 0.03;

/// Change of a target since its campaign.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Cache that the target occupied alone in the campaign, in the unit of the metric [`OCCUPANCY`].
    pub occupancy_old: f64,
    /// Cache that it occupies now.
    pub occupancy_new: f64,
    /// Performance alone in the campaign.
    pub solo_old: f64,
    /// Performance alone now.
    pub solo_new: f64,
    /// Largest relative change of occupancy that is answered, such as [`PUBLISHED_LIMIT`].
    pub limit: f64,
}

impl Change {
    /// Returns the relative change of occupancy.
    pub fn relative(&self) -> f64 {
        self.occupancy_new / self.occupancy_old - 1.0
    }
}

/// Predicts for inputs in the order of the model's schema, after a change of the target:
///
/// 1. The slope over the access rate is multiplied by the ratio of the occupancies: the model is evaluated at the
///    access rate times that ratio.
/// 2. The model is evaluated at the competitors' occupancy plus the change of the target's own, because the inflection
///    is where both fill the cache.
/// 3. The result is shifted by the change of the performance alone.
///
/// The interval widens by [`PUBLISHED_ADDED_ERROR`] at [`PUBLISHED_LIMIT`], and in proportion at other changes. Shifted
/// inputs are clamped to the model's range, where trees are constant anyway.
///
/// # Errors
/// If the inputs are outside of the model's range, or the change is beyond its limit.
pub fn extrapolate(
    model: &Sensitivity,
    inputs: &[f64],
    change: &Change,
    confidence: f64,
) -> Result<Estimate, PredictError> {
    model.check_range(inputs)?;
    let relative = change.relative();
    // NaN lies in no range.
    if !(-change.limit..=change.limit).contains(&relative) {
        return Err(PredictError::OutsideRange {
            what: "the relative change of the target's cache occupancy".to_owned(),
            value: relative,
            low: -change.limit,
            high: change.limit,
        });
    }
    let mut shifted = inputs.to_vec();
    let metrics = model.schema().metrics().iter().zip(model.ranges());
    for (value, (metric, (low, high))) in shifted.iter_mut().zip(metrics) {
        match metric.name.as_str() {
            ACCESS_RATE => *value *= 1.0 + relative,
            OCCUPANCY => *value += change.occupancy_new - change.occupancy_old,
            _ => continue,
        }
        *value = value.clamp(*low, *high);
    }
    let value = model.value_at(&shifted) + change.solo_new - change.solo_old;
    // A shift below zero has no meaning.
    let value = value.max(1e-3 * change.solo_new.max(f64::MIN_POSITIVE));
    let added = PUBLISHED_ADDED_ERROR * relative.abs() / PUBLISHED_LIMIT;
    let width = model.quantile(confidence)?.exp() * (1.0 + added);
    Ok(Estimate {
        value,
        low: value / width,
        high: value * width,
        confidence,
    })
}
