//! Max-min fair shares: no instance gets more than its demand. None could get more without taking from another that has
//! no more than itself.

/// Class that demands ways.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassDemand {
    /// Demand of each of its instances, in ways.
    pub demands: Vec<f64>,
    /// Ways that it has now. Of otherwise equal classes, the present owner of a way retains it.
    pub has: u16,
}

impl ClassDemand {
    /// Returns the total demand in ways, rounded up.
    pub fn most(&self) -> u16 {
        let all: f64 = self.demands.iter().sum();
        (all - ROUNDING).ceil().max(0.0) as u16
    }
}

/// Differences below this, in ways, count as rounding errors.
const ROUNDING: f64 = 1e-6;

/// Returns the level up to which demands are met: `sum(min(demand, level))` equals `available`, or all demands.
pub fn level(demands: impl IntoIterator<Item = f64>, available: f64) -> f64 {
    let mut demands: Vec<f64> = demands.into_iter().collect();
    demands.sort_by(f64::total_cmp);
    let (mut left, mut count) = (available.max(0.0), demands.len());
    for demand in demands {
        let part = left / count as f64;
        if demand > part {
            return part;
        }
        left -= demand;
        count -= 1;
    }
    f64::INFINITY
}

/// Returns whole numbers of ways for classes. Each gets at least `least`, for which `available` must suffice. Instances
/// are filled to one [`level`]. The ways lost by rounding down go, one at a time, to the class whose instances are
/// filled least, among those with unmet demand.
pub fn shares(claims: &[ClassDemand], available: u16, least: u16) -> Vec<u16> {
    let most = level(
        claims.iter().flat_map(|claim| claim.demands.iter().copied()),
        f64::from(available),
    );
    let filled = |claim: &ClassDemand| -> f64 { claim.demands.iter().map(|d| d.min(most)).sum() };
    let whole = |claim: &ClassDemand| ((filled(claim) + ROUNDING).floor() as u16).max(least);
    let mut ways: Vec<u16> = claims.iter().map(whole).collect();
    // Level up to which its instances are filled.
    let each = |ways: u16, claim: &ClassDemand| level(claim.demands.iter().copied(), f64::from(ways));
    let sum = |ways: &[u16]| ways.iter().map(|&w| u32::from(w)).sum::<u32>();
    while sum(&ways) > u32::from(available) {
        let rich = (0..claims.len()).filter(|&i| ways[i] > least);
        let rich = rich.max_by(|&i, &j| each(ways[i], &claims[i]).total_cmp(&each(ways[j], &claims[j])));
        match rich {
            Some(i) => ways[i] -= 1,
            None => return ways,
        }
    }
    while sum(&ways) < u32::from(available) {
        let poor = (0..claims.len()).filter(|&i| ways[i] < claims[i].most());
        let poor = poor.min_by(|&i, &j| {
            let by_share = each(ways[i], &claims[i]).total_cmp(&each(ways[j], &claims[j]));
            by_share.then((claims[i].has <= ways[i]).cmp(&(claims[j].has <= ways[j])))
        });
        match poor {
            Some(i) => ways[i] += 1,
            None => break,
        }
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(demands: &[f64], has: u16) -> ClassDemand {
        ClassDemand {
            demands: demands.to_vec(),
            has,
        }
    }

    #[test]
    fn small_demands_are_met_and_large_ones_share_the_rest() {
        let claims = [claim(&[2.0], 0), claim(&[9.0], 0), claim(&[20.0], 0)];
        assert_eq!(shares(&claims, 18, 1), [2, 8, 8]);
        assert_eq!(shares(&claims, 40, 1), [2, 9, 20]);
        // A class counts as often as it has instances.
        let claims = [claim(&[4.0, 4.0, 0.5], 0), claim(&[9.0], 0)];
        assert_eq!(shares(&claims, 10, 1), [7, 3]);
    }

    #[test]
    fn who_has_the_odd_way_keeps_it() {
        let claims = |has: [u16; 3]| has.map(|has| claim(&[9.0], has));
        assert_eq!(shares(&claims([3, 4, 3]), 10, 1), [3, 4, 3]);
        assert_eq!(shares(&claims([3, 3, 4]), 10, 1), [3, 3, 4]);
    }

    proptest! {
        #[test]
        fn nobody_can_get_more_from_one_that_has_no_more(
            demands in prop::collection::vec(1u16..20, 1..12),
            available in 12u16..32,
            has in prop::collection::vec(0u16..8, 12),
        ) {
            let claims: Vec<ClassDemand> = demands.iter().zip(&has)
                .map(|(&d, &has)| claim(&[f64::from(d)], has)).collect();
            let ways = shares(&claims, available, 1);
            let (sum, all): (u16, u16) = (ways.iter().sum(), demands.iter().sum());
            prop_assert_eq!(sum, all.min(available));
            for i in 0..ways.len() {
                prop_assert!(ways[i] >= 1 && ways[i] <= demands[i]);
                for j in 0..ways.len() {
                    prop_assert!(ways[i] == demands[i] || ways[j] <= ways[i] + 1, "{:?} of {:?}", ways, demands);
                }
            }
            // The result is stable: with it as the present shares, the same shares follow.
            let again: Vec<ClassDemand> = claims.iter().zip(&ways)
                .map(|(c, &has)| ClassDemand { has, ..c.clone() }).collect();
            prop_assert_eq!(shares(&again, available, 1), ways);
        }
    }
}
