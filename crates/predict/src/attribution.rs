//! Resources to which a predicted loss is attributed.

use crate::metric::{Resource, Scope};
use crate::sensitivity::Sensitivity;

/// Part of a loss that a resource causes.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribution {
    /// The resource.
    pub resource: Resource,
    /// Its metric whose return to the value without competition changes the prediction most.
    pub metric: String,
    /// Part of the performance without competition that is lost; negative for a gain.
    pub loss: f64,
    /// Change that relieves the resource, if there is a general one.
    pub remedy: Option<&'static str>,
}

/// Divides the difference between the prediction and that without competition among resources, by Shapley values: the
/// mean, over all orders in which resources become contended, of what each one adds. Exact, in at most 2^5 evaluations.
pub(crate) fn attribute(model: &Sensitivity, inputs: &[f64]) -> Vec<Attribution> {
    let metrics = model.schema().metrics();
    let competes = |at: &usize| metrics[*at].scope == Scope::Competitors;
    let mut resources: Vec<Resource> = (0..metrics.len())
        .filter(competes)
        .map(|at| metrics[at].resource)
        .collect();
    resources.sort_unstable();
    resources.dedup();
    let count = resources.len();
    let of_resource = |at: usize| {
        resources
            .iter()
            .position(|of| competes(&at) && metrics[at].resource == *of)
    };
    // Value when the resources of the set are contended.
    let value = |set: usize| {
        let mixed = inputs
            .iter()
            .zip(&model.baseline)
            .enumerate()
            .map(|(at, (input, baseline))| {
                let is_contended = of_resource(at).is_none_or(|of| set & (1 << of) != 0);
                if is_contended { *input } else { *baseline }
            });
        model.value_at(&mixed.collect::<Vec<f64>>())
    };
    let values: Vec<f64> = (0..1 << count).map(value).collect();
    let all = values.len() - 1;
    if values[0] <= 0.0 || (values[all] / values[0] - 1.0).abs() < 1e-9 {
        return Vec::new();
    }
    let factorial = |n: usize| (1..=n).map(|n| n as f64).product::<f64>();
    let shapley = |of: usize| {
        let without = (0..values.len()).filter(|set| set & (1 << of) == 0);
        let part = without.map(|set| {
            let size = set.count_ones() as usize;
            let weight = factorial(size) * factorial(count - size - 1) / factorial(count);
            weight * (values[set] - values[set | (1 << of)])
        });
        part.sum::<f64>()
    };
    let top = |of: usize| {
        let relief = |at: usize| {
            let mut relieved = inputs.to_vec();
            relieved[at] = model.baseline[at];
            (model.value_at(&relieved) - values[all]).abs()
        };
        let metrics = (0..inputs.len()).filter(|at| of_resource(*at) == Some(of));
        metrics.map(|at| (at, relief(at))).max_by(|a, b| a.1.total_cmp(&b.1))
    };
    let mut attributions: Vec<Attribution> = resources
        .iter()
        .enumerate()
        .map(|(of, resource)| Attribution {
            resource: *resource,
            metric: top(of).map_or_else(String::new, |(at, _)| metrics[at].name.clone()),
            loss: shapley(of) / values[0],
            remedy: resource.remedy(),
        })
        .collect();
    attributions.sort_by(|a, b| b.loss.total_cmp(&a.loss));
    attributions
}
