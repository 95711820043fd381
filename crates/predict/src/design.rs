//! Settings that fill a space of parameters evenly, however many of them are measured.

use crate::random::Random;

/// Maximum number of parameters of a space.
pub const MAX_PARAMETERS: usize = 16;

/// Number of competitors: the parameter that every space has.
pub const COMPETITORS: &str = "competitors";
/// Size of the synthetic competitor's structure, bytes.
pub const STRUCTURE_BYTES: &str = "structureBytes";
/// Its random reads per packet.
pub const READS: &str = "reads";
/// Its random writes per packet.
pub const WRITES: &str = "writes";
/// Its packets per second. A rate beyond its core's capacity saturates it.
pub const RATE: &str = "rate";
/// Length of its frames, bytes.
pub const FRAME_BYTES: &str = "frameBytes";
/// Its receive descriptors, each with a packet buffer.
pub const DESCRIPTORS: &str = "descriptors";
/// Active flows of the target.
pub const FLOWS: &str = "flows";

/// Scale on which values are spread evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences.
    Linear,
    /// Equal ratios: sizes and rates over orders of magnitude.
    Logarithmic,
}

/// Range of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name, such as [`STRUCTURE_BYTES`].
    pub name: String,
    /// Smallest value.
    pub low: f64,
    /// Largest value. Equal to `low`: a constant.
    pub high: f64,
    /// Scale of the values between.
    pub scale: Scale,
    /// Only whole numbers.
    pub is_whole: bool,
}

impl Parameter {
    /// Creates a parameter of any numbers.
    pub fn new(name: &str, low: f64, high: f64, scale: Scale) -> Parameter {
        Parameter {
            name: name.to_owned(),
            low,
            high,
            scale,
            is_whole: false,
        }
    }

    /// Creates a parameter of whole numbers.
    pub fn whole(name: &str, low: u64, high: u64, scale: Scale) -> Parameter {
        Parameter {
            is_whole: true,
            ..Parameter::new(name, low as f64, high as f64, scale)
        }
    }

    /// Returns the value at a share of the range, from 0 to below 1.
    fn at(&self, share: f64) -> f64 {
        // Each whole number has an equal part of the range, the last one, too.
        let high = if self.is_whole { self.high + 1.0 } else { self.high };
        let value = match self.scale {
            Scale::Linear => self.low + share * (high - self.low),
            Scale::Logarithmic => self.low * (high / self.low).powf(share),
        };
        let value = if self.is_whole { value.floor() } else { value };
        value.clamp(self.low, self.high)
    }

    fn is_valid(&self) -> bool {
        let is_ordered = self.low.is_finite() && self.high.is_finite() && self.low <= self.high;
        let has_scale = self.scale == Scale::Linear || self.low > 0.0;
        let is_whole = !self.is_whole || self.low.fract() == 0.0 && self.high.fract() == 0.0;
        is_ordered && has_scale && is_whole
    }
}

/// Mistake in a space.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DesignError {
    /// A range cannot be used.
    #[error(
        "parameter {name:?}: expected a low end up to the high end, above 0 on a logarithmic scale, whole if values are"
    )]
    Range {
        /// Name of the parameter.
        name: String,
    },
    /// There are too many parameters, or two of one name, or the number of competitors is absent or 0.
    #[error("expected 1 to {MAX_PARAMETERS} parameters of different names, with 1 or more competitors, found {found}")]
    Parameters {
        /// The mistake.
        found: String,
    },
}

/// Parameters of a campaign, and the order in which their settings are measured.
///
/// Settings are points of the additive recurrence with the generalized golden ratio (Roberts, 2018): each new point
/// falls into a gap of those before, so that any number of them covers the space evenly, in all parameters together
/// and in each one alone. A point depends on its number and the seed only.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    parameters: Vec<Parameter>,
    starts: Vec<f64>,
    steps: Vec<f64>,
}

/// Value of each parameter, in the order of the space.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting(Vec<(String, f64)>);

impl Setting {
    /// Returns the value of a parameter.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// Returns all values by name.
    pub fn values(&self) -> &[(String, f64)] {
        &self.0
    }
}

impl Space {
    /// Creates a space. The seed shifts all points.
    ///
    /// # Errors
    /// If a range is invalid, or the parameter [`COMPETITORS`] is absent.
    pub fn new(parameters: Vec<Parameter>, seed: u64) -> Result<Space, DesignError> {
        if let Some(of) = parameters.iter().find(|of| !of.is_valid()) {
            let name = of.name.clone();
            return Err(DesignError::Range { name });
        }
        let is_new = |(at, of): (usize, &Parameter)| parameters[..at].iter().all(|other| other.name != of.name);
        let competitors = parameters.iter().find(|of| of.name == COMPETITORS);
        let found = if parameters.len() > MAX_PARAMETERS {
            format!("{} parameters", parameters.len())
        } else if !parameters.iter().enumerate().all(is_new) {
            "a name twice".to_owned()
        } else if !competitors.is_some_and(|of| of.is_whole && of.low >= 1.0) {
            format!("no whole number of {COMPETITORS}")
        } else {
            let varied = parameters.iter().filter(|of| of.low < of.high).count();
            let ratio = golden_ratio(varied);
            let mut random = Random::new(seed);
            let mut power = 1.0;
            let mut step = |of: &Parameter| {
                if of.low < of.high {
                    power /= ratio;
                }
                power
            };
            return Ok(Space {
                starts: parameters.iter().map(|_| random.unit()).collect(),
                steps: parameters.iter().map(&mut step).collect(),
                parameters,
            });
        };
        Err(DesignError::Parameters { found })
    }

    /// Returns the parameters.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Returns the setting of all low ends, or of all high ends.
    pub fn end(&self, is_high: bool) -> Setting {
        let value = |of: &Parameter| if is_high { of.high } else { of.low };
        Setting(self.parameters.iter().map(|of| (of.name.clone(), value(of))).collect())
    }

    /// Returns the setting of this number.
    pub fn setting(&self, number: u32) -> Setting {
        let walks = self.starts.iter().zip(&self.steps);
        let shares = walks.map(|(start, step)| (start + f64::from(number) * step).fract());
        let values = self.parameters.iter().zip(shares);
        Setting(values.map(|(of, share)| (of.name.clone(), of.at(share))).collect())
    }
}

/// The positive number whose power of `dimensions + 1` is itself plus 1; 1.618 in one dimension.
fn golden_ratio(dimensions: usize) -> f64 {
    let exponent = 1.0 / (dimensions as f64 + 1.0);
    (0..64).fold(2.0_f64, |ratio, _| (1.0 + ratio).powf(exponent))
}
