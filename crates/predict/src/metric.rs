//! Named metrics with units, and vectors of them from one source.

use std::fmt;
use std::sync::Arc;

/// Cache access rate of the competitors: their L2 misses (Dobrescu's only metric).
pub const ACCESS_RATE: &str = "cacheAccessRate";
/// Last-level cache that the competitors occupy.
pub const OCCUPANCY: &str = "cacheOccupancy";
/// Memory that the competitors touch again and again (BubbleUp's only metric).
pub const WORKING_SET: &str = "workingSet";

/// Maximum number of metrics of a schema.
pub const MAX_METRICS: usize = 64;

/// Words with which files name the values of an enumeration.
pub(crate) trait Words: Copy + PartialEq + Sized + 'static {
    /// Values by word.
    const WORDS: &'static [(&'static str, Self)];

    /// Returns the word of this value.
    fn to_word(self) -> &'static str {
        let found = Self::WORDS.iter().find(|(_, value)| *value == self);
        found.map_or("", |(word, _)| word)
    }
}

/// Origin of a metric's values. Values of different sources are never mixed: their scales differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Counters of the processor.
    Hardware,
    /// Calibrated loops whose slowdown beside a function is its vector.
    Probes,
    /// A model of the memory hierarchy.
    Modelled,
}

impl Words for Source {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("hardware", Source::Hardware),
        ("probes", Source::Probes),
        ("modelled", Source::Modelled),
    ];
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_word())
    }
}

/// Subject of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The competitors together.
    Competitors,
    /// The target: a property of its traffic or configuration, such as its flows.
    Target,
}

impl Words for Scope {
    const WORDS: &'static [(&'static str, Self)] = &[("competitors", Scope::Competitors), ("target", Scope::Target)];
}

/// Operator that turns the competitors' values into the value of all (SLOMO, section 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Rates, bandwidths, occupancies.
    Sum,
    /// Ratios and latencies.
    Mean,
}

impl Words for Combine {
    const WORDS: &'static [(&'static str, Self)] = &[("sum", Combine::Sum), ("mean", Combine::Mean)];
}

/// Shared resource that a metric describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Last-level cache: occupancy and access rate.
    Cache,
    /// Ways of the cache that network cards write to (DDIO).
    PacketBuffers,
    /// Bandwidth of main memory.
    MemoryBandwidth,
    /// Translation of addresses.
    Translation,
    /// Anything else, such as instructions.
    Other,
}

impl Words for Resource {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("cache", Resource::Cache),
        ("packetBuffers", Resource::PacketBuffers),
        ("memoryBandwidth", Resource::MemoryBandwidth),
        ("translation", Resource::Translation),
        ("other", Resource::Other),
    ];
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Cache => "last-level cache",
            Resource::PacketBuffers => "packet buffers in the cache (DDIO)",
            Resource::MemoryBandwidth => "memory bandwidth",
            Resource::Translation => "address translation",
            Resource::Other => "other",
        })
    }
}

impl Resource {
    /// Returns the change that relieves this resource; `None` if there is no general one.
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Resource::Cache => Some("reserve cache ways for the target, or move a competitor to another socket"),
            Resource::PacketBuffers => Some("use fewer or smaller packet buffers, so that they stay in the DDIO ways"),
            Resource::MemoryBandwidth => Some("move a competitor to another socket"),
            Resource::Translation => Some("use huge pages"),
            Resource::Other => None,
        }
    }
}

/// Knowledge about the direction of a metric's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// More of it never makes the target faster.
    Slows,
    /// The effect can have any direction.
    Any,
}

impl Words for Effect {
    const WORDS: &'static [(&'static str, Self)] = &[("slows", Effect::Slows), ("any", Effect::Any)];
}

/// Description of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name: letters, digits, `.`, `-` and `_`, at most 64.
    pub name: String,
    /// Unit, such as `accesses/s`.
    pub unit: String,
    /// Its subject.
    pub scope: Scope,
    /// Composition of several competitors.
    pub combine: Combine,
    /// Resource that it describes.
    pub resource: Resource,
    /// Direction of its effect.
    pub effect: Effect,
}

impl Metric {
    /// Creates a metric of the competitors that adds up and slows the target.
    pub fn new(name: &str, unit: &str, resource: Resource) -> Metric {
        Metric {
            name: name.to_owned(),
            unit: unit.to_owned(),
            scope: Scope::Competitors,
            combine: Combine::Sum,
            resource,
            effect: Effect::Slows,
        }
    }

    /// Same, of which a mean is taken, with an effect of any direction: ratios.
    pub fn ratio(name: &str, unit: &str, resource: Resource) -> Metric {
        Metric {
            combine: Combine::Mean,
            effect: Effect::Any,
            ..Metric::new(name, unit, resource)
        }
    }

    /// Creates a property of the target.
    pub fn of_target(name: &str, unit: &str) -> Metric {
        Metric {
            scope: Scope::Target,
            ..Metric::ratio(name, unit, Resource::Other)
        }
    }
}

/// Mistake in metrics.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MetricError {
    /// Values of two sources meet.
    #[error(
        "expected metrics of the source {expected}, found {found}: sources have different scales and are not mixed"
    )]
    Mixed {
        /// Source of the first.
        expected: Source,
        /// Source of the other.
        found: Source,
    },
    /// A metric that one side has is absent on the other.
    #[error("expected the metric {name:?}, which is missing")]
    Missing {
        /// Name of the metric.
        name: String,
    },
    /// A metric has another unit or meaning on the other side.
    #[error("expected the metric {name:?} with the same unit and meaning on both sides, found {here} and {there}")]
    Different {
        /// Name of the metric.
        name: String,
        /// Unit on one side.
        here: String,
        /// Unit on the other.
        there: String,
    },
    /// A name is invalid or not unique, or there are none or too many.
    #[error(
        "expected 1 to {MAX_METRICS} metrics with unique names of letters, digits, '.', '-' and '_', found {found}"
    )]
    Names {
        /// The mistake.
        found: String,
    },
    /// A value is neither a number nor missing, or their number differs from that of the metrics.
    #[error("expected a number up to 1e18 for each metric, found {found}")]
    Value {
        /// The mistake.
        found: String,
    },
}

/// Metrics of a source, in the order of the values of its vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    source: Source,
    metrics: Vec<Metric>,
}

impl Schema {
    /// Creates a schema.
    ///
    /// # Errors
    /// If there are no or too many metrics, or a name is invalid or not unique.
    pub fn new(source: Source, metrics: Vec<Metric>) -> Result<Schema, MetricError> {
        if metrics.is_empty() || metrics.len() > MAX_METRICS {
            let found = format!("{} metrics", metrics.len());
            return Err(MetricError::Names { found });
        }
        for (at, Metric { name, .. }) in metrics.iter().enumerate() {
            let valid = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
            let is_new = metrics[..at].iter().all(|other| other.name != *name);
            if name.is_empty() || name.len() > 64 || !name.chars().all(valid) || !is_new {
                let found = format!("{name:?}");
                return Err(MetricError::Names { found });
            }
        }
        Ok(Schema { source, metrics })
    }

    /// Returns the source of all values.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// Returns a metric's position.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.metrics.iter().position(|metric| metric.name == name)
    }

    /// Returns the position of each of this schema's competitor metrics in another.
    ///
    /// # Errors
    /// If the sources differ, or a metric is missing or different there.
    pub fn positions_in(&self, other: &Schema) -> Result<Vec<Option<usize>>, MetricError> {
        if self.source != other.source {
            return Err(MetricError::Mixed {
                expected: self.source,
                found: other.source,
            });
        }
        let position = |metric: &Metric| {
            if metric.scope == Scope::Target {
                return Ok(None);
            }
            let name = &metric.name;
            let at = other
                .position(name)
                .ok_or_else(|| MetricError::Missing { name: name.clone() })?;
            let there = &other.metrics[at];
            match there == metric {
                true => Ok(Some(at)),
                false => Err(MetricError::Different {
                    name: name.clone(),
                    here: metric.unit.clone(),
                    there: there.unit.clone(),
                }),
            }
        };
        self.metrics.iter().map(position).collect()
    }
}

/// Returns `true` of numbers whose squares can still be added up.
fn is_usable(value: f64) -> bool {
    value.abs() <= 1e18
}

/// Values of a schema's metrics. A value can be missing, such as that of a counter that was taken by another program.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    schema: Arc<Schema>,
    values: Vec<Option<f64>>,
}

impl Vector {
    /// Creates a vector.
    ///
    /// # Errors
    /// If there is not one value for each metric, or a value is not a number up to 1e18.
    pub fn new(schema: Arc<Schema>, values: Vec<Option<f64>>) -> Result<Vector, MetricError> {
        if values.len() != schema.metrics.len() {
            let found = format!("{} values for {} metrics", values.len(), schema.metrics.len());
            return Err(MetricError::Value { found });
        }
        for (value, metric) in values.iter().zip(&schema.metrics) {
            if let Some(value) = value
                && !is_usable(*value)
            {
                let found = format!("{value} for {}", metric.name);
                return Err(MetricError::Value { found });
            }
        }
        Ok(Vector { schema, values })
    }

    /// Returns the schema.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Returns the values.
    pub fn values(&self) -> &[Option<f64>] {
        &self.values
    }

    /// Returns a value by its metric's name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.values[self.schema.position(name)?]
    }

    /// Replaces a value; does nothing if there is no such metric, or the value is not a number up to 1e18.
    pub fn set(&mut self, name: &str, value: f64) {
        if let Some(at) = self.schema.position(name)
            && is_usable(value)
        {
            self.values[at] = Some(value);
        }
    }
}
