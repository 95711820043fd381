//! Curve of throughput over cache.

use super::runs::{Sweep, rounded};
use super::{CURVE, SweepError, SweepOptions, THROUGHPUT};
use crate::cache::CacheControl;
use crate::curve::{Bisection, Measured, Repeats};
use crate::profiles::{CacheProfile, NotHeld, Occupied};
use crate::train::Step;
use std::sync::atomic::AtomicBool;
use tailwater_functions::spec::ChainSpec;
use tailwater_traffic::Trace;

/// Number of runs without the full share after which a point counts as not held.
const NOT_HELD: u32 = 2;

/// Measures throughput over cache: a saturated chain on one core, with `control` setting its share of the cache. The
/// traffic is repeated with the same flows; the first pass does not count. Points at which the share was not held are
/// [not part](CacheProfile::not_held) of the curve.
///
/// # Errors
/// See [`SweepError`].
pub fn cache_curve(
    spec: &ChainSpec,
    traffic: &Trace,
    options: &SweepOptions,
    control: &mut dyn CacheControl,
    stop: &AtomicBool,
    mut progress: impl FnMut(Step),
) -> Result<CacheProfile, SweepError> {
    let unit = control.unit().max(1);
    let most_units = (control.most() / unit).clamp(1, 1 << 16) as u32;
    let least_units = (control.least() / unit).clamp(1, u64::from(most_units)) as u32;
    let step = |done| Step {
        name: "throughput over cache",
        done,
        of: CURVE.most,
    };
    progress(step(0));
    let sweep = Sweep::new(spec, traffic, options, stop)?;
    let mut curve = Bisection::new(least_units..=most_units, CURVE);
    let (mut not_held, mut occupied) = (Vec::new(), Vec::new());
    let mut done = 0;
    while let Some(units) = curve.next() {
        progress(step(done));
        done += 1;
        match sweep.with_cache(control, u64::from(units) * unit)? {
            Share::Held(measured, bytes) => {
                curve.tell(units, Some(measured));
                occupied.extend(bytes.map(|bytes| Occupied {
                    at: units,
                    kibibytes: u32::try_from(bytes / 1024).unwrap_or(u32::MAX),
                }));
            }
            Share::Lost { misses, measured } => {
                curve.tell(units, None);
                not_held.push(NotHeld {
                    at: units,
                    misses,
                    measured,
                });
            }
        }
    }
    not_held.sort_by_key(|point| point.at);
    occupied.sort_by_key(|point| point.at);
    Ok(CacheProfile {
        method: control.method(),
        unit_kibibytes: (unit / 1024).max(1) as u32,
        most_units,
        points: curve.points(),
        not_held,
        occupied,
    })
}

/// Result for one share of the cache.
enum Share {
    /// Throughput, and the most bytes that the chain occupied, if they were counted.
    Held(Measured, Option<u64>),
    Lost {
        misses: f64,
        measured: Measured,
    },
}

impl Sweep<'_> {
    /// Measures throughput with a share of the cache. After each run, checks that the chain had it.
    fn with_cache(&self, control: &mut dyn CacheControl, bytes: u64) -> Result<Share, SweepError> {
        control.set(bytes)?;
        let mut held = Repeats::new(THROUGHPUT);
        let (mut lost, mut misses) = (Repeats::new(THROUGHPUT), f64::INFINITY);
        let mut occupied = None;
        while !held.enough() {
            let (rate, length) = self.saturated()?;
            let share = control.held(length)?;
            if share.held {
                held.tell(rate);
                occupied = occupied.max(share.occupied);
                continue;
            }
            lost.tell(rate);
            misses = misses.min(share.misses);
            if let Some(measured) = lost.outcome()
                && measured.runs >= NOT_HELD
            {
                let measured = rounded(measured);
                return Ok(Share::Lost { misses, measured });
            }
        }
        let measured = held.outcome().ok_or(SweepError::Nothing(self.saturated))?;
        Ok(Share::Held(rounded(measured), occupied))
    }
}
