//! Search for the hardest value that holds, with few trials.

use crate::values::OBJECTIVES;
use std::collections::BTreeMap;
use tailwater_baselines::catalog::epoch;
use tailwater_net::Nanos;

/// Steps per octave: neighbours are 1.1 % apart.
const OCTAVE: i32 = 64;

/// Range of rates in octaves, faster and slower.
const OCTAVES: i32 = 10;

/// Goal of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The fewest servers.
    Servers,
    /// The highest scale of the traffic's rate.
    Rate,
    /// The tightest objective.
    Slo,
}

/// Values that may be tried, by number: greater numbers are easier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    pub goal: Goal,
    /// Numbers of the hardest and the easiest value, and of the first one to try.
    pub hardest: i32,
    pub easiest: i32,
    pub start: i32,
}

/// Rounds a figure to three significant digits, for readability.
fn rounded(value: f64) -> f64 {
    let text = format!("{value:.2e}");
    text.parse().unwrap_or(value)
}

impl Axis {
    /// Numbers of servers, from one to `most`.
    pub fn servers(start: usize, most: usize) -> Axis {
        Axis {
            goal: Goal::Servers,
            hardest: 1,
            easiest: most as i32,
            start: start as i32,
        }
    }

    /// Factors of the rate, from a thousand to a thousandth.
    pub fn rates() -> Axis {
        Axis {
            goal: Goal::Rate,
            hardest: -OCTAVES * OCTAVE,
            easiest: OCTAVES * OCTAVE,
            start: 0,
        }
    }

    /// Objectives, from the tightest possible one; the first one tried is near `start`.
    pub fn objectives(start: Nanos) -> Axis {
        let number = |time: Nanos| (time.as_micros_f64().max(1.0).log2() * f64::from(OCTAVE)) as i32;
        let axis = Axis {
            goal: Goal::Slo,
            hardest: 0,
            easiest: number(*OBJECTIVES.end()),
            start: number(start),
        };
        let possible = |number: &i32| epoch(axis.objective(*number)).is_ok();
        let hardest = (0..axis.easiest).find(possible).unwrap_or(axis.easiest);
        Axis {
            hardest,
            start: axis.start.clamp(hardest, axis.easiest),
            ..axis
        }
    }

    fn octaves(number: i32) -> f64 {
        (f64::from(number) / f64::from(OCTAVE)).exp2()
    }

    /// Returns the objective of a number.
    pub fn objective(&self, number: i32) -> Nanos {
        Nanos((rounded(Axis::octaves(number)) * 1e3).round() as u64)
    }

    /// Returns the value of a number: servers, factor, or microseconds.
    pub fn value(&self, number: i32) -> f64 {
        match self.goal {
            Goal::Servers => f64::from(number),
            Goal::Rate => rounded(Axis::octaves(-number)),
            Goal::Slo => self.objective(number).as_micros_f64(),
        }
    }

    /// Returns the number of a value half as hard, within the bounds.
    fn easier(&self, number: i32) -> i32 {
        let easier = match self.goal {
            Goal::Servers => number.saturating_mul(2),
            Goal::Rate | Goal::Slo => number + OCTAVE,
        };
        easier.min(self.easiest)
    }

    /// Returns the number of a value twice as hard, within the bounds.
    fn harder(&self, number: i32) -> i32 {
        let harder = match self.goal {
            Goal::Servers => number / 2,
            Goal::Rate | Goal::Slo => number - OCTAVE,
        };
        harder.max(self.hardest)
    }
}

/// Result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Hardest value that holds; `None` if not even the easiest does, or if unknown.
    pub best: Option<i32>,
    /// `true` if the search is complete.
    pub complete: bool,
    /// Tried values, with `true` for those that held.
    pub tried: BTreeMap<i32, bool>,
}

impl Found {
    /// Returns the hardest value that held, and the easiest that did not.
    pub fn known(&self) -> (Option<i32>, Option<i32>) {
        let mut held = self.tried.iter().filter(|(_, holds)| **holds);
        let mut failed = self.tried.iter().rev().filter(|(_, holds)| !**holds);
        (held.next().map(|h| *h.0), failed.next().map(|f| *f.0))
    }

    /// Returns `true` if all tried values that are easier than a holding one hold.
    pub fn is_monotone(&self) -> bool {
        let (held, failed) = self.known();
        held.zip(failed).is_none_or(|(held, failed)| failed < held)
    }
}

/// Searches for the hardest value that holds. From the start it doubles or halves the difficulty until the answer is
/// between two values, then bisects. It does not assume monotonicity: it also tries the answer's neighbour on the easy
/// side, and two on the hard side, and fewer servers than the start if none that are as many or more hold.
///
/// `probe` returns `true` if a value holds, or `None` to end the search.
///
/// # Errors
/// The first error of `probe`.
pub fn search<E>(axis: &Axis, mut probe: impl FnMut(i32) -> Result<Option<bool>, E>) -> Result<Found, E> {
    let mut found = Found::default();
    let mut ask = |found: &mut Found, number: i32| {
        if let Some(known) = found.tried.get(&number) {
            return Ok(Some(*known));
        }
        let holds = probe(number)?;
        found.tried.extend(holds.map(|holds| (number, holds)));
        Ok(holds)
    };
    let Some(holds) = ask(&mut found, axis.start)? else {
        return Ok(found);
    };
    // The `good` one holds, the `bad` one does not.
    let (mut good, mut bad) = (axis.start, axis.start);
    let mut is_above = holds;
    if !holds {
        loop {
            if bad == axis.easiest {
                break;
            }
            good = axis.easier(bad);
            match ask(&mut found, good)? {
                None => return Ok(found),
                Some(true) => break,
                Some(false) => bad = good,
            }
        }
        if bad == axis.easiest {
            // Nothing easier than the start holds, and fewer servers may nevertheless.
            good = axis.start;
            while axis.goal == Goal::Servers && !is_above && good != axis.hardest {
                good = axis.harder(good);
                match ask(&mut found, good)? {
                    None => return Ok(found),
                    Some(holds) => is_above = holds,
                }
            }
            if !is_above {
                found.complete = true;
                return Ok(found);
            }
        }
    }
    if is_above {
        loop {
            if good == axis.hardest {
                bad = good - 1;
                break;
            }
            bad = axis.harder(good);
            match ask(&mut found, bad)? {
                None => return Ok(found),
                Some(false) => break,
                Some(true) => good = bad,
            }
        }
    }
    while good - bad > 1 {
        let middle = bad + (good - bad) / 2;
        match ask(&mut found, middle)? {
            None => return Ok(found),
            Some(true) => good = middle,
            Some(false) => bad = middle,
        }
    }
    for neighbour in [good + 1, good - 2] {
        if (axis.hardest..=axis.easiest).contains(&neighbour) && ask(&mut found, neighbour)?.is_none() {
            return Ok(found);
        }
    }
    (found.best, found.complete) = (Some(good), true);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn look(axis: &Axis, mut holds: impl FnMut(i32) -> bool) -> Found {
        let Ok(found) = search(axis, |number| Ok::<_, Infallible>(Some(holds(number))));
        found
    }

    #[test]
    fn every_boundary_is_found() {
        for start in [1, 4, 30, 64] {
            let axis = Axis::servers(start, 64);
            for boundary in 1..=64 {
                let found = look(&axis, |servers| servers >= boundary);
                assert_eq!(found.best, Some(boundary), "from {start}");
                assert!(found.complete && found.is_monotone());
                assert!(found.tried.len() <= 16, "{:?}", found.tried);
                // The next harder value was tried and does not hold.
                assert!(boundary == 1 || found.tried.get(&(boundary - 1)) == Some(&false));
            }
            let none = look(&axis, |_| false);
            assert_eq!((none.best, none.complete), (None, true));
            assert_eq!(none.tried.get(&64), Some(&false));
        }
        let axis = Axis::rates();
        for boundary in (axis.hardest..=axis.easiest).step_by(37) {
            assert_eq!(look(&axis, |rate| rate >= boundary).best, Some(boundary));
        }
    }

    #[test]
    fn what_is_not_monotone_is_seen_beside_the_answer() {
        let axis = Axis::servers(4, 64);
        let found = look(&axis, |servers| servers >= 4 && servers != 5);
        assert_eq!((found.best, found.is_monotone()), (Some(4), false));
        let found = look(&axis, |servers| servers >= 4 || servers == 2);
        assert!(!found.is_monotone() || found.best == Some(2));
        // More servers than hold may not.
        let found = look(&Axis::servers(8, 64), |servers| servers == 2);
        assert_eq!((found.best, found.is_monotone()), (Some(2), false));
        let found = look(&Axis::servers(8, 64), |servers| servers >= 7 || servers == 5);
        assert_eq!((found.best, found.is_monotone()), (Some(7), false));
    }

    #[test]
    fn an_interrupted_search_knows_what_it_has_seen() {
        let axis = Axis::servers(4, 64);
        let mut left = 3;
        let found = search(&axis, |servers| {
            left -= 1;
            Ok::<_, Infallible>((left >= 0).then_some(servers >= 13))
        });
        let Ok(found) = found;
        assert_eq!((found.best, found.complete), (None, false));
        assert_eq!(found.known(), (Some(16), Some(8)));
    }

    #[test]
    fn values_are_different_and_in_order() {
        let axis = Axis::objectives(Nanos::from_micros(200));
        let near = axis.value(axis.start);
        assert!((196.0..=200.0).contains(&near), "{near}");
        for axis in [axis, Axis::rates(), Axis::servers(4, 64)] {
            let values: Vec<f64> = (axis.hardest..=axis.easiest).map(|n| axis.value(n)).collect();
            for pair in values.windows(2) {
                match axis.goal {
                    Goal::Rate => assert!(pair[0] > pair[1], "{pair:?}"),
                    _ => assert!(pair[0] < pair[1], "{pair:?}"),
                }
            }
        }
        assert_eq!(Axis::rates().value(0), 1.0);
        assert_eq!(Axis::rates().value(-64), 2.0);
    }
}
