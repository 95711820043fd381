//! Vector of several competitors from the vectors of each (SLOMO, section 5.3).

use crate::campaign::Campaign;
use crate::metric::{Combine, MetricError, Schema, Scope, Vector};
use crate::sensitivity::PredictError;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Vectors of a competitor from which the vector of all is composed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Composition {
    /// Each one's mean beside as many synthetic co-runners as it will have: SLOMO.
    CoRun,
    /// Each one's vector alone: the alternative that it is compared with.
    Solo,
}

/// A function's pressure on shared resources, by the number of its co-runners.
#[derive(Clone, Debug, PartialEq)]
pub struct Contentiousness {
    schema: Arc<Schema>,
    by_co_runners: BTreeMap<u32, Vec<Option<f64>>>,
}

impl Contentiousness {
    /// Returns the mean of the target's own vectors of a campaign, by number of competitors. A value that is missing in
    /// all of them stays missing.
    pub fn new(campaign: &Campaign) -> Contentiousness {
        let width = campaign.schema().metrics().len();
        let mut sums: BTreeMap<u32, Vec<(f64, u32)>> = BTreeMap::new();
        for observation in campaign.usable() {
            let Some(own) = &observation.own else {
                continue;
            };
            let sums = sums
                .entry(observation.competitors)
                .or_insert_with(|| vec![(0.0, 0); width]);
            for (sum, value) in sums.iter_mut().zip(own.values()) {
                if let Some(value) = value {
                    *sum = (sum.0 + value, sum.1 + 1);
                }
            }
        }
        let mean = |(sum, count): (f64, u32)| (count > 0).then(|| sum / f64::from(count));
        let means = sums
            .into_iter()
            .map(|(count, sums)| (count, sums.into_iter().map(mean).collect()));
        Contentiousness {
            schema: campaign.schema().clone(),
            by_co_runners: means.collect(),
        }
    }

    /// Creates one of values by number of co-runners; 0 is the function alone.
    ///
    /// # Errors
    /// If a vector does not fit the metrics.
    pub fn with(schema: Arc<Schema>, values: BTreeMap<u32, Vec<Option<f64>>>) -> Result<Contentiousness, MetricError> {
        for vector in values.values() {
            Vector::new(schema.clone(), vector.clone())?;
        }
        Ok(Contentiousness {
            schema,
            by_co_runners: values,
        })
    }

    /// Returns the metrics.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Returns the values by number of co-runners; 0 is the function alone.
    pub fn values(&self) -> &BTreeMap<u32, Vec<Option<f64>>> {
        &self.by_co_runners
    }

    /// Returns a metric beside `co_runners` others, by linear interpolation between numbers that were measured.
    ///
    /// # Errors
    /// If it was not measured, or the number is outside of those that were.
    pub fn value(&self, metric: usize, co_runners: u32) -> Result<f64, PredictError> {
        let at = |(count, values): (&u32, &Vec<Option<f64>>)| Some((*count, values.get(metric).copied().flatten()?));
        let below = self.by_co_runners.range(..=co_runners).rev().find_map(at);
        let above = self.by_co_runners.range(co_runners..).find_map(at);
        match (below, above) {
            (Some((low, below)), Some((high, _))) if low == high => Ok(below),
            (Some((low, below)), Some((high, above))) => {
                let share = f64::from(co_runners - low) / f64::from(high - low);
                Ok(below + share * (above - below))
            }
            (None, None) => {
                let name = self.schema.metrics()[metric].name.clone();
                Err(MetricError::Missing { name }.into())
            }
            _ => {
                let measured = self
                    .by_co_runners
                    .iter()
                    .filter_map(at)
                    .map(|(count, _)| f64::from(count));
                let range = (f64::INFINITY, f64::NEG_INFINITY);
                let (low, high) = measured.fold(range, |(low, high), of| (low.min(of), high.max(of)));
                Err(PredictError::OutsideRange {
                    what: "the number of co-runners".to_owned(),
                    value: f64::from(co_runners),
                    low,
                    high,
                })
            }
        }
    }
}

/// Composes the vector of competitors, of which each has all others and the target as co-runners. Properties of the
/// target stay missing, and so does every metric without competitors.
///
/// # Errors
/// If the sources or metrics differ, or a metric was not measured beside so many co-runners.
pub fn compose(
    schema: &Arc<Schema>,
    competitors: &[&Contentiousness],
    how: Composition,
) -> Result<Vector, PredictError> {
    let co_runners = match how {
        Composition::CoRun => competitors.len() as u32,
        Composition::Solo => 0,
    };
    let positions = competitors.iter().map(|of| schema.positions_in(&of.schema));
    let positions: Vec<Vec<Option<usize>>> = positions.collect::<Result<_, _>>()?;
    let mut values = Vec::new();
    for (at, metric) in schema.metrics().iter().enumerate() {
        if metric.scope == Scope::Target || competitors.is_empty() {
            values.push(None);
            continue;
        }
        let mut sum = 0.0;
        for (competitor, positions) in competitors.iter().zip(&positions) {
            sum += positions[at].map_or(Ok(0.0), |at| competitor.value(at, co_runners))?;
        }
        values.push(Some(match metric.combine {
            Combine::Sum => sum,
            Combine::Mean => sum / competitors.len() as f64,
        }));
    }
    Ok(Vector::new(schema.clone(), values)?)
}
