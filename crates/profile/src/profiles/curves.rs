//! Profiles in the form that `tailwater place` reads.

use super::values::Quoted;
use super::{ChainProfile, LatencyProfile, Machine, Profiles};
use crate::curve::Point;
use std::fmt::Write as _;

/// Reasons for which profiles cannot be turned into curves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CurvesError {
    /// A profile was measured on another machine.
    #[error("chain {chain} was measured on another machine ({there}) than this one ({here})")]
    OtherMachine {
        /// The chain.
        chain: String,
        /// The machine of the measurement.
        there: Box<Machine>,
        /// This machine.
        here: Box<Machine>,
    },
    /// A curve is missing or has no points.
    #[error("chain {chain} with traffic \"{traffic}\" has no curve of {curve}: run `tailwater profile {command}`")]
    Missing {
        /// The chain.
        chain: String,
        /// The traffic.
        traffic: String,
        /// The missing curve.
        curve: &'static str,
        /// The subcommand that measures it.
        command: &'static str,
    },
    /// A value is not repeatable.
    #[error(
        "chain {chain} with traffic \"{traffic}\" has a measurement that is not repeatable: {first}{}; measure it again \
         on a quiet machine (`tailwater profile all`)",
        and_more(.more)
    )]
    NotRepeatable {
        /// The chain.
        chain: String,
        /// The traffic.
        traffic: String,
        /// The first such value.
        first: String,
        /// Number of further ones.
        more: usize,
    },
    /// All values of a curve were measured with interference.
    #[error(
        "chain {chain} with traffic \"{traffic}\": CPU interference disturbed all runs of {curve}, so the profile is \
         all noise; measure it again on a quiet machine (`tailwater profile all`)"
    )]
    Disturbed {
        /// The chain.
        chain: String,
        /// The traffic.
        traffic: String,
        /// The curve.
        curve: &'static str,
    },
    /// One chain was measured with several configurations or kinds of traffic.
    #[error("there are several profiles of chain {chain} on this machine: expected one, choose with --traffic")]
    Several {
        /// The chain.
        chain: String,
    },
}

fn and_more(more: &usize) -> String {
    match *more {
        0 => String::new(),
        more => format!(" and {more} more"),
    }
}

/// Returns the `chains` of a set of SLOs (docs/reference/placement-files.md) as YAML: each chain's curves of throughput
/// over cache and of latency over load. `here` is the machine on which all must have been measured, `label` its name in
/// the file.
///
/// Curves are made monotonic as in [`Rising`].
///
/// # Errors
/// The first profile that cannot be used.
pub fn placement(profiles: &Profiles, here: Option<&Machine>, label: &str) -> Result<String, CurvesError> {
    let mut text = String::from("chains:\n");
    for (number, profile) in profiles.list.iter().enumerate() {
        let key = &profile.key;
        if let Some(here) = here
            && !key.machine.is(here)
        {
            return Err(CurvesError::OtherMachine {
                chain: key.chain.clone(),
                there: Box::new(key.machine.clone()),
                here: Box::new(here.clone()),
            });
        }
        let earlier = &profiles.list[..number];
        if earlier.iter().any(|other| other.key.chain == key.chain) {
            return Err(CurvesError::Several {
                chain: key.chain.clone(),
            });
        }
        let curves = Rising::of(profile)?;
        let rates = curves.throughput.iter();
        let cache = list(rates.map(|(kibibytes, rate)| format!("[{kibibytes}, {rate}]")));
        let latencies = curves.latency.iter();
        let latency = list(latencies.map(|(load, micros)| format!("[{load}, {micros:.3}]")));
        // Writing into a string cannot fail.
        let _ = writeln!(text, "  # traffic: {}", Quoted(&key.traffic));
        let _ = writeln!(text, "  - name: {}", Quoted(&key.chain));
        let _ = writeln!(text, "    curves:\n      - machine: {}", Quoted(label));
        let _ = writeln!(
            text,
            "        # KiB of cache, packets per second\n        throughput: {cache}"
        );
        let _ = writeln!(text, "        # load, microseconds\n        latency: {latency}");
    }
    Ok(text)
}

fn list(points: impl Iterator<Item = String>) -> String {
    format!("[{}]", points.collect::<Vec<_>>().join(", "))
}

/// Monotonic curves for placement: throughput does not fall with more cache, and latency does not fall with more load.
/// They are derated by the values' intervals: throughput is the lower end, latency the upper end.
#[derive(Clone, Debug, PartialEq)]
pub struct Rising {
    /// Throughput: cache in KiB, packets per second.
    pub throughput: Vec<(u64, f64)>,
    /// Latency: load from 0 to 1, microseconds.
    pub latency: Vec<(f64, f64)>,
    /// Percentile of the latencies.
    pub percentile: f64,
}

impl Rising {
    /// Derates the curves of a profile and makes them monotonic. Deviations are noise and are removed conservatively:
    /// throughput is lowered, latency is raised.
    ///
    /// # Errors
    /// A curve is missing, a value of it is not [repeatable](super::Unrepeatable), or all of its values were measured
    /// with interference.
    pub fn of(profile: &ChainProfile) -> Result<Rising, CurvesError> {
        let missing = |curve, command| CurvesError::Missing {
            chain: profile.key.chain.clone(),
            traffic: profile.key.traffic.clone(),
            curve,
            command,
        };
        let cache = profile.cache.as_ref();
        let cache = cache.filter(|cache| !cache.points.is_empty());
        let cache = cache.ok_or_else(|| missing("throughput over cache", "cache"))?;
        let whole = |latency: &&LatencyProfile| latency.points.last().is_some_and(|p| p.at == 100);
        let latency = profile.latency.as_ref().filter(whole);
        let latency = latency.ok_or_else(|| missing("latency over load", "latency"))?;
        if let [first, more @ ..] = &profile.unrepeatable()[..] {
            return Err(CurvesError::NotRepeatable {
                chain: profile.key.chain.clone(),
                traffic: profile.key.traffic.clone(),
                first: first.to_string(),
                more: more.len(),
            });
        }
        let is_disturbed = |points: &[Point]| points.iter().all(|point| point.measured.is_all_disturbed());
        for (curve, points) in [
            ("throughput over cache", &cache.points),
            ("latency over load", &latency.points),
        ] {
            if is_disturbed(points) {
                return Err(CurvesError::Disturbed {
                    chain: profile.key.chain.clone(),
                    traffic: profile.key.traffic.clone(),
                    curve,
                });
            }
        }
        let mut least = f64::INFINITY;
        let mut throughput: Vec<(u64, f64)> = Vec::new();
        for point in cache.points.iter().rev() {
            least = least.min(point.measured.lower());
            let kibibytes = u64::from(point.at) * u64::from(cache.unit_kibibytes);
            throughput.push((kibibytes, least.round().max(1.0)));
        }
        throughput.reverse();
        let mut most: f64 = 0.001;
        let points = latency.points.iter().map(|point| {
            most = most.max(point.measured.upper());
            (f64::from(point.at) / 100.0, most)
        });
        Ok(Rising {
            throughput,
            latency: points.collect(),
            percentile: latency.percentile,
        })
    }
}
