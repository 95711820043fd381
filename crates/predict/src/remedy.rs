//! Changes that would help a target beside competitors, each with the performance predicted after it.

use crate::metric::{Resource, Scope};
use crate::predictor::{ContentionModel, PredictOptions, inputs_beside, performance};
use crate::sensitivity::{Estimate, PredictError, Sensitivity};
use std::fmt;

/// Smallest relative gain of throughput that makes a change worth mentioning.
const LEAST_GAIN: f64 = 0.001;

/// Change of a co-run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A resource is no longer shared. Cache ways for the target alone do this for the cache.
    Separate(Resource),
    /// A competitor, by the name of its function, runs on another socket.
    Move(String),
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::Separate(Resource::Cache) => f.write_str("reserve cache ways for the target"),
            Remedy::Separate(resource) => match resource.remedy() {
                Some(text) => f.write_str(text),
                None => write!(f, "relieve {resource}"),
            },
            Remedy::Move(name) => write!(f, "move one {name} to another socket"),
        }
    }
}

/// Performance predicted after a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Relief {
    /// The change.
    pub remedy: Remedy,
    /// Packets per second after it.
    pub throughput: Estimate,
    /// The 99th percentile of latency after it in microseconds, if the campaign measured it.
    pub p99_us: Option<Estimate>,
    /// Relative gain of throughput.
    pub gain: f64,
}

/// Returns the changes that make a target faster, by gain, largest first.
///
/// For a resource, all of its metrics get their values without competition. That is the most that a separation can
/// bring: with few cache ways of its own, a target may gain less. A competitor that moves is left out, and the others
/// are composed anew. A change after which there is no prediction, such as with a number of co-runners that was not
/// measured, is left out.
///
/// # Errors
/// Same as [`predict`](crate::predict).
pub fn remedies(
    target: &ContentionModel,
    competitors: &[&ContentionModel],
    options: &PredictOptions,
) -> Result<Vec<Relief>, PredictError> {
    let now = performance(target, competitors, options)?;
    if competitors.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    let mut add = |remedy: Remedy, throughput: Estimate, p99_us: Option<Estimate>| {
        let gain = throughput.value / now.throughput.value - 1.0;
        if gain >= LEAST_GAIN {
            found.push(Relief {
                remedy,
                throughput,
                p99_us,
                gain,
            });
        }
    };
    // Moving a competitor is what helps against memory bandwidth; other resources are separated on the same socket.
    for resource in [Resource::Cache, Resource::PacketBuffers, Resource::Translation] {
        let separate = |model: &Sensitivity| {
            let mut inputs = inputs_beside(target, model, competitors, options)?;
            let metrics = model.schema.metrics().iter().zip(&model.baseline);
            for (input, (metric, baseline)) in inputs.iter_mut().zip(metrics) {
                if metric.scope == Scope::Competitors && metric.resource == resource {
                    *input = *baseline;
                }
            }
            model.predict_at(&inputs, options.confidence)
        };
        let p99 = target.p99.as_ref().map(separate).transpose();
        if let (Ok(throughput), Ok(p99)) = (separate(&target.throughput), p99) {
            add(Remedy::Separate(resource), throughput, p99);
        }
    }
    let name = |of: &ContentionModel| of.key.function.clone();
    for (at, competitor) in competitors.iter().enumerate() {
        // Several instances of a function are alike.
        if competitors[..at].iter().any(|other| other.key == competitor.key) {
            continue;
        }
        let mut rest = competitors.to_vec();
        rest.remove(at);
        if let Ok(after) = performance(target, &rest, options) {
            add(Remedy::Move(name(competitor)), after.throughput, after.p99_us);
        }
    }
    found.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    Ok(found)
}
