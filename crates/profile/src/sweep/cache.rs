//! Curve of throughput over cache.

use super::runs::{Saturated, Sweep, rounded};
use super::sampling::Purpose;
use super::{CURVE, SweepError, SweepOptions, THROUGHPUT};
use crate::cache::CacheControl;
use crate::curve::{Attempts, Bisection, Measured};
use crate::profiles::{CacheProfile, NotHeld, Occupied, Verified};
use crate::train::Step;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use tailwater_functions::spec::ChainSpec;
use tailwater_traffic::Trace;

/// Number of runs without the full share after which a point counts as not held.
const NOT_HELD: usize = 2;

/// Measures throughput over cache: a saturated chain on one core, with `control` setting its share of the cache. The
/// traffic is repeated with the same flows; the first pass does not count. Points at which the share was not held are
/// [not part](CacheProfile::not_held) of the curve. Runs with [interference](crate::interference) are replaced as far
/// as time permits.
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
    let sweep = Sweep::new(spec, traffic, options, control.is_busy(), stop)?;
    let mut curve = Bisection::new(least_units..=most_units, CURVE);
    let mut shares: BTreeMap<u32, Share> = BTreeMap::new();
    sweep.sample(&mut curve, |units, purpose| {
        if purpose == Purpose::First {
            progress(step(shares.len()));
        }
        let share = shares.entry(units).or_insert_with(Share::new);
        if purpose == Purpose::HiddenBend {
            share.attempts.extend(sweep.watch.best());
        }
        sweep.with_cache(&mut *control, u64::from(units) * unit, share, purpose)
    })?;
    let points = curve.points();
    let held: Vec<(u32, &Share)> = points.iter().map(|point| (point.at, &shares[&point.at])).collect();
    let not_held = shares.iter().filter_map(|(at, share)| {
        let is_point = points.iter().any(|point| point.at == *at);
        Some(NotHeld {
            at: *at,
            misses: share.lost_misses,
            measured: rounded(share.lost.outcome(sweep.watch.best()).filter(|_| !is_point)?),
        })
    });
    Ok(CacheProfile {
        method: control.method(),
        unit_kibibytes: (unit / 1024).max(1) as u32,
        most_units,
        not_held: not_held.collect(),
        occupied: held
            .iter()
            .filter_map(|(at, share)| {
                share.occupied.map(|bytes| Occupied {
                    at: *at,
                    kibibytes: u32::try_from(bytes / 1024).unwrap_or(u32::MAX),
                })
            })
            .collect(),
        verified: held
            .iter()
            .map(|(at, share)| Verified {
                at: *at,
                misses: (share.misses * 1e4).round() / 1e4,
            })
            .collect(),
        hidden_bends: curve.hidden(),
        points,
    })
}

/// Measurements with one share of the cache.
struct Share {
    attempts: Attempts,
    /// Highest degree to which the share was exceeded, of the runs in which it was held.
    misses: f64,
    /// Most bytes that the chain occupied, if they were counted.
    occupied: Option<u64>,
    /// Runs in which the share was not held, and their lowest degree.
    lost: Attempts,
    lost_misses: f64,
}

impl Share {
    fn new() -> Share {
        Share {
            attempts: Attempts::new(THROUGHPUT),
            misses: 0.0,
            occupied: None,
            lost: Attempts::new(THROUGHPUT),
            lost_misses: 1.0,
        }
    }
}

impl Sweep<'_> {
    /// Measures throughput with a share of the cache. After each run, checks that the chain had it. Returns `None` if
    /// it had not.
    fn with_cache(
        &self,
        control: &mut dyn CacheControl,
        bytes: u64,
        share: &mut Share,
        purpose: Purpose,
    ) -> Result<Option<Measured>, SweepError> {
        let enough = |share: &Share| share.attempts.enough(self.watch.best(), self.watch.may_repeat());
        if !enough(share) {
            control.set(bytes)?;
        }
        let mut lost = 0;
        while !enough(share) {
            let Saturated { rate, conditions } = self.saturated()?;
            let result = control.held(conditions.length)?;
            let is_disturbed = self.spend_if_disturbed(&conditions);
            if purpose == Purpose::HiddenBend {
                self.watch.spend(conditions.length);
            }
            if result.held {
                share.attempts.tell(rate, conditions);
                share.misses = share.misses.max(result.misses);
                share.occupied = share.occupied.max(result.occupied);
                continue;
            }
            share.lost.tell(rate, conditions);
            share.lost_misses = share.lost_misses.min(result.misses);
            // Others on the pirate's core, too, may take the share.
            if is_disturbed && self.watch.may_repeat() {
                continue;
            }
            lost += 1;
            if lost >= NOT_HELD {
                return Ok(None);
            }
        }
        self.outcome(&share.attempts).map(|measured| Some(rounded(measured)))
    }
}
