//! Differences between two files of profiles, beyond their noise.

use super::{ChainProfile, CostProfile, FunctionCost, Profiles};
use crate::cache::Method;
use crate::curve::{Measured, Point};

/// Relative difference up to which values count as equal, whatever their noise: it occurs between successive identical
/// runs.
const LEAST: f64 = 0.01;

/// One of a profile's curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// Packets per second over units of cache.
    Cache,
    /// Microseconds over load in percent.
    Latency,
    /// Packets per second at load 1.
    Throughput,
}

/// The same for costs, which vary between runs as latencies do.
const LEAST_COST: f64 = 0.05;

/// A kind of difference.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    /// A profile that only one of the files has.
    Only {
        /// `true` if the first file has it.
        first: bool,
    },
    /// Different configuration of the chain, or version of this program.
    Configuration,
    /// Different unit of cache, or percentile: points cannot be compared.
    Units,
    /// Different method of dividing the cache: points cannot be compared.
    Method {
        /// Method of the first file.
        was: Method,
        /// Method of the second file.
        is: Method,
    },
    /// A curve that only one of the files has.
    Missing {
        /// The curve.
        curve: Curve,
        /// `true` if the first file has it.
        first: bool,
    },
    /// Different values at a point.
    Point {
        /// The curve.
        curve: Curve,
        /// Position: units of cache, or load in percent.
        at: u32,
        /// Value of the first file there, or interpolated between two of its points.
        was: Measured,
        /// The same of the second file.
        is: Measured,
    },
    /// Different cost of a function, nanoseconds per packet.
    Cost {
        /// The function's name; `None` for the whole chain.
        function: Option<String>,
        /// Cost in the first file.
        was: Measured,
        /// Cost in the second file.
        is: Measured,
    },
}

/// A difference, with its chain and traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The chain.
    pub chain: String,
    /// The traffic.
    pub traffic: String,
    /// The difference.
    pub difference: Difference,
}

/// Compares profiles of the same chains and traffic on the same machine.
///
/// # Errors
/// The two machines, if the same chain and traffic were measured only on different kinds of machine.
pub fn compare(first: &Profiles, second: &Profiles) -> Result<Vec<Change>, Box<[super::Machine; 2]>> {
    let mut changes = Vec::new();
    let named = |a: &ChainProfile, b: &ChainProfile| a.key.chain == b.key.chain && a.key.traffic == b.key.traffic;
    let same = |a: &ChainProfile, b: &ChainProfile| named(a, b) && a.key.machine.is(&b.key.machine);
    for profile in &first.list {
        let mut tell = |difference| {
            changes.push(Change {
                chain: profile.key.chain.clone(),
                traffic: profile.key.traffic.clone(),
                difference,
            });
        };
        let mut others = second.list.iter().filter(|other| same(profile, other));
        // Prefers the same configuration.
        let configuration = |other: &&ChainProfile| other.key.configuration == profile.key.configuration;
        let other = others.clone().find(configuration).or_else(|| others.next());
        match other {
            Some(other) => of_two(profile, other, &mut tell),
            None => {
                if let Some(other) = second.list.iter().find(|other| named(profile, other)) {
                    let machines = [&profile.key.machine, &other.key.machine].map(Clone::clone);
                    return Err(Box::new(machines));
                }
                tell(Difference::Only { first: true });
            }
        }
    }
    for profile in &second.list {
        if !first.list.iter().any(|other| named(profile, other)) {
            changes.push(Change {
                chain: profile.key.chain.clone(),
                traffic: profile.key.traffic.clone(),
                difference: Difference::Only { first: false },
            });
        }
    }
    Ok(changes)
}

fn of_two(a: &ChainProfile, b: &ChainProfile, tell: &mut impl FnMut(Difference)) {
    if a.key.configuration != b.key.configuration {
        tell(Difference::Configuration);
    }
    match (&a.cache, &b.cache) {
        (Some(a), Some(b)) if a.method != b.method => tell(Difference::Method {
            was: a.method,
            is: b.method,
        }),
        (Some(a), Some(b)) => match a.unit_kibibytes == b.unit_kibibytes {
            true => of_curves(Curve::Cache, &a.points, &b.points, tell),
            false => tell(Difference::Units),
        },
        (None, None) => {}
        (a, _) => tell(Difference::Missing {
            curve: Curve::Cache,
            first: a.is_some(),
        }),
    }
    match (&a.latency, &b.latency) {
        (Some(a), Some(b)) => {
            let whole = |measured| [Point { at: 100, measured }];
            let (was, is) = (whole(a.throughput), whole(b.throughput));
            of_curves(Curve::Throughput, &was, &is, tell);
            match a.percentile == b.percentile {
                true => of_curves(Curve::Latency, &a.points, &b.points, tell),
                false => tell(Difference::Units),
            }
        }
        (None, None) => {}
        (a, _) => tell(Difference::Missing {
            curve: Curve::Latency,
            first: a.is_some(),
        }),
    }
    if let (Some(a), Some(b)) = (&a.costs, &b.costs) {
        of_costs(a, b, tell);
    }
}

/// Compares the chain's cost, and that of each function that both files have.
fn of_costs(a: &CostProfile, b: &CostProfile, tell: &mut impl FnMut(Difference)) {
    let mut of = |function: Option<&str>, was: Measured, is: Measured| {
        if differ(was, is, LEAST_COST) {
            let function = function.map(str::to_owned);
            tell(Difference::Cost { function, was, is });
        }
    };
    of(None, a.whole, b.whole);
    for was in &a.functions {
        let same = |is: &&FunctionCost| is.function == was.function;
        if let Some(is) = b.functions.iter().find(same) {
            of(Some(&was.function), was.cost, is.cost);
        }
    }
}

/// Returns `true` if two values differ by more than their noise, and by more than this share of the larger one.
fn differ(was: Measured, is: Measured, least: f64) -> bool {
    let apart = (was.value - is.value).abs();
    apart > (was.noise + is.noise).max(least * was.value.max(is.value))
}

/// Compares each point of either curve with the other's point or interpolation.
fn of_curves(curve: Curve, a: &[Point], b: &[Point], tell: &mut impl FnMut(Difference)) {
    let mut places: Vec<u32> = a.iter().chain(b).map(|point| point.at).collect();
    places.sort_unstable();
    places.dedup();
    for at in places {
        let (Some(was), Some(is)) = (interpolated(a, at), interpolated(b, at)) else {
            continue;
        };
        if differ(was, is, LEAST) {
            tell(Difference::Point { curve, at, was, is });
        }
    }
}

/// Returns a curve's value at a position, interpolated between two points if necessary; `None` beyond its ends.
fn interpolated(points: &[Point], at: u32) -> Option<Measured> {
    let right = points.partition_point(|point| point.at < at);
    let point = points.get(right)?;
    if point.at == at {
        return Some(point.measured);
    }
    let left = points.get(right.checked_sub(1)?)?;
    let part = f64::from(at - left.at) / f64::from(point.at - left.at);
    let line = |a: f64, b: f64| a + part * (b - a);
    Some(Measured {
        value: line(left.measured.value, point.measured.value),
        noise: line(left.measured.noise, point.measured.noise),
        runs: left.measured.runs.min(point.measured.runs),
        disturbed: left.measured.disturbed.max(point.measured.disturbed),
    })
}
