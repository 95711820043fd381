//! Model of instances that share a cache.
//!
//! An instance occupies cache in proportion to its references, and at most its working set, beyond which it is no
//! faster. The others share the rest. This approximates an LRU cache. An instance's rate with that cache follows from
//! its curve, extended along its first segment below the measured range. The model was fixed before it was used for any
//! placement.

use crate::curve::CacheCurve;

/// Instance that shares a cache.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// Throughput by cache size.
    pub cache: &'a CacheCurve,
    /// References per packet.
    pub references: f64,
    /// Offered packets per second.
    pub offered: f64,
}

/// Returns the bytes that each instance occupies of a cache.
pub fn shares(instances: &[Shared<'_>], bytes: u64) -> Vec<f64> {
    let weight = |i: &Shared<'_>| i.references * i.offered.min(i.cache.most());
    let mut held = vec![None; instances.len()];
    let mut left = bytes as f64;
    // Instances with small working sets are satisfied first, and the others share the rest.
    loop {
        let open = || (0..instances.len()).filter(|&i| held[i].is_none());
        let all: f64 = open().map(|i| weight(&instances[i])).sum();
        let part = |i: usize| left * weight(&instances[i]) / all.max(f64::MIN_POSITIVE);
        let full = |&i: &usize| part(i) >= instances[i].cache.working_set() as f64;
        let Some(satisfied) = open().find(full) else {
            let rest: Vec<(usize, f64)> = open().map(|i| (i, part(i))).collect();
            rest.into_iter().for_each(|(i, part)| held[i] = Some(part));
            return held.into_iter().map(|held| held.unwrap_or(0.0)).collect();
        };
        let set = instances[satisfied].cache.working_set() as f64;
        held[satisfied] = Some(set);
        left -= set;
    }
}

/// Returns each instance's packets per second, at most its offered load.
pub fn rates(instances: &[Shared<'_>], bytes: u64) -> Vec<f64> {
    let shares = shares(instances, bytes);
    let rates = instances.iter().zip(shares);
    rates
        .map(|(instance, held)| instance.cache.extended(held).min(instance.offered))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::CurveError;

    #[test]
    fn shares_are_by_references_and_no_more_than_working_sets() -> Result<(), CurveError> {
        let small = CacheCurve::new(vec![(10, 100.0)])?;
        let large = CacheCurve::new(vec![(10, 50.0), (100, 100.0)])?;
        let shared = |cache, references| Shared {
            cache,
            references,
            offered: 100.0,
        };
        let instances = [shared(&small, 8.0), shared(&large, 1.0), shared(&large, 3.0)];
        let held = shares(&instances, 90);
        assert_eq!(held, [10.0, 20.0, 60.0]);
        assert!(held.iter().sum::<f64>() <= 90.0);
        assert_eq!(shares(&instances, 1000), [10.0, 100.0, 100.0]);
        let rate = |held: f64| 50.0 + (held - 10.0) / 90.0 * 50.0;
        assert_eq!(rates(&instances, 90), [100.0, rate(20.0), rate(60.0)]);
        Ok(())
    }
}
