//! Vector of several competitors from the vectors of each (SLOMO, section 5.3).

use crate::campaign::Campaign;
use crate::metric::{Combine, MetricError, OCCUPANCY, Schema, Scope, Vector};
use crate::response::Response;
use crate::sensitivity::PredictError;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Vectors of a competitor from which the vector of all is composed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Composition {
    /// Each one's mean beside as many synthetic co-runners as it will have: SLOMO.
    CoRun,
    /// Each one's vector beside the vectors of all others, in equilibrium. Functions whose campaign has too few co-runs
    /// for that stay at the mean of [`CoRun`](Self::CoRun).
    Equilibrium,
    /// Each one's vector alone: the alternative that it is compared with.
    Solo,
}

/// A function's pressure on shared resources, by the number of its co-runners.
#[derive(Clone, Debug, PartialEq)]
pub struct Contentiousness {
    schema: Arc<Schema>,
    by_co_runners: BTreeMap<u32, Vec<Option<f64>>>,
    pub(crate) response: Option<Response>,
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
            response: Response::fit(campaign),
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
            response: None,
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
/// target stay missing, and so does every metric without competitors. The target matters in an equilibrium.
///
/// # Errors
/// If the sources or metrics differ, or a metric was not measured beside so many co-runners.
pub fn compose(
    schema: &Arc<Schema>,
    target: &Contentiousness,
    competitors: &[&Contentiousness],
    how: Composition,
) -> Result<Vector, PredictError> {
    let co_runners = match how {
        Composition::CoRun => competitors.len() as u32,
        Composition::Solo => 0,
        Composition::Equilibrium => return equilibrium(schema, target, competitors),
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

/// Steps towards the equilibrium. Each one halves the distance or better; the last ones change values by a percent.
const STEPS: usize = 5;
/// Share of a step that is taken: full ones can swing between two functions that displace each other.
const DAMPING: f64 = 0.7;

fn equilibrium(
    schema: &Arc<Schema>,
    target: &Contentiousness,
    competitors: &[&Contentiousness],
) -> Result<Vector, PredictError> {
    let all: Vec<&Contentiousness> = std::iter::once(target).chain(competitors.iter().copied()).collect();
    let common = &target.schema;
    // Refuses what was not measured, such as too many co-runners.
    let means = compose(schema, target, competitors, Composition::CoRun)?;
    // Values are exchanged by position.
    if competitors.is_empty() || competitors.iter().any(|of| of.schema != *common) {
        return Ok(means);
    }
    let width = common.metrics().len();
    let count = competitors.len() as u32;
    let start = |of: &&Contentiousness| (0..width).map(|at| of.value(at, count).ok()).collect();
    let mut values: Vec<Vec<Option<f64>>> = all.iter().map(start).collect();
    // A response requires the values of all others.
    let is_required = |at: &usize| {
        all.iter()
            .any(|of| of.response.as_ref().is_some_and(|of| of.requires(*at)))
    };
    let required: Vec<usize> = (0..width).filter(is_required).collect();
    if values
        .iter()
        .any(|values| required.iter().any(|at| values[*at].is_none()))
    {
        return Ok(means);
    }
    // Sum or mean of all but one.
    let without = |values: &[Vec<Option<f64>>], one: usize, at: usize| {
        let others = values.iter().enumerate().filter(|(of, _)| *of != one);
        let sum: Option<f64> = others.map(|(_, values)| values[at]).sum();
        match common.metrics()[at].combine {
            Combine::Sum => sum,
            Combine::Mean => sum.map(|sum| sum / f64::from(count.max(1))),
        }
    };
    let responses = all.iter().filter_map(|of| of.response.as_ref());
    let capacity = responses.filter_map(|of| of.capacity).reduce(f64::max);
    let occupancy = common.position(OCCUPANCY).zip(capacity);
    for _ in 0..STEPS {
        let mut next = values.clone();
        for (at, of) in all.iter().enumerate() {
            if let Some(response) = &of.response {
                let with: Vec<Option<f64>> = (0..width).map(|metric| without(&values, at, metric)).collect();
                response.apply(&with, &mut next[at]);
            }
        }
        for (value, next) in values.iter_mut().flatten().zip(next.iter().flatten()) {
            if let (Some(value), Some(next)) = (value.as_mut(), next) {
                *value += DAMPING * (next - *value);
            } else {
                *value = *next;
            }
        }
        // Each division of a full cache fits itself, so nothing else brings a sum beyond it back.
        if let Some((at, capacity)) = occupancy {
            let total: f64 = values.iter().filter_map(|values| values[at]).sum();
            let occupied = values.iter_mut().filter_map(|values| values[at].as_mut());
            occupied.for_each(|value| *value *= (capacity / total).min(1.0));
        }
    }
    // Scaling may take more from the target than the heaviest competitors of its campaign did.
    let most = occupancy.and_then(|(at, _)| Some((at, target.response.as_ref()?.largest(at)?)));
    let positions = schema.positions_in(common)?;
    let metrics = schema.metrics().iter().zip(positions);
    let composed = metrics.map(|(metric, at)| match (metric.scope, at) {
        (Scope::Competitors, Some(at)) => {
            let value = without(&values, 0, at).or(means.get(&metric.name));
            let most = most.filter(|(of, _)| *of == at).map_or(f64::INFINITY, |(_, most)| most);
            value.map(|value| value.min(most))
        }
        _ => None,
    });
    Ok(Vector::new(schema.clone(), composed.collect())?)
}
