//! Adaptive sampling of a curve, with more points where it bends.

use super::Measured;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Stopping rule of the bisection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BisectionRule {
    /// Maximum distance of a point from the line between its neighbours, as a share of the measured value, before both
    /// sides are refined. A larger distance within the noise of the three points is *hidden*: it takes further runs of
    /// the noisiest of them.
    pub tolerance: f64,
    /// Maximum number of points, at least 3.
    pub most: usize,
    /// Maximum number of them that locate the start of a curve whose left end cannot be measured, and of those that
    /// locate the end of one whose right end cannot.
    pub most_edge: usize,
    /// Maximum number of times that further runs are required for a hidden bend.
    pub most_again: usize,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Position, steps.
    pub at: u32,
    /// Measured value.
    pub measured: Measured,
}

/// Interval between two measured points.
#[derive(Clone, Copy, Debug)]
struct Span {
    left: u32,
    right: u32,
    /// Distance of the point that split it from the line, as a share of the measured value.
    bend: f64,
}

/// A point at which noise hides whether the curve bends.
#[derive(Clone, Copy, Debug)]
struct Hidden {
    left: u32,
    at: u32,
    right: u32,
    /// Number of times that further runs were required.
    again: usize,
}

/// Chooses the points of a curve to measure: both ends, the middle, then the middles of the intervals at whose ends the
/// curve bends most.
///
/// Positions are whole steps. A point may turn out not to be measurable. If that is the left end, the curve starts
/// further to the right, and some points are used to locate its start. If it is the right end, the curve ends a few
/// steps further to the left, or there is none.
#[derive(Clone, Debug)]
pub struct Bisection {
    rule: BisectionRule,
    ends: RangeInclusive<u32>,
    points: BTreeMap<u32, Option<Measured>>,
    spans: Vec<Span>,
    hidden: Vec<Hidden>,
    edge_points: usize,
    /// Number of right ends that could not be measured.
    lost_ends: usize,
}

impl Bisection {
    /// Starts a curve; `ends` are both part of it.
    pub fn new(ends: RangeInclusive<u32>, rule: BisectionRule) -> Bisection {
        Bisection {
            rule,
            ends,
            points: BTreeMap::new(),
            spans: Vec::new(),
            hidden: Vec::new(),
            edge_points: 0,
            lost_ends: 0,
        }
    }

    /// Returns the point to measure next, never the same twice; `None` if the curve is complete.
    pub fn next(&self) -> Option<u32> {
        let (left, right) = (*self.ends.start(), *self.ends.end());
        if left > right || self.points.len() >= self.rule.most.max(3) {
            return None;
        }
        match (self.points.get(&right), self.points.get(&left)) {
            (None, _) => return Some(right),
            // Without its right end there is no curve.
            (Some(None), _) => return None,
            (Some(Some(_)), None) => return Some(left),
            (Some(Some(_)), Some(_)) => {}
        }
        self.edge().or_else(|| {
            let open = self.spans.iter().filter(|span| self.is_open(span));
            open.max_by(|a, b| a.bend.total_cmp(&b.bend))
                .map(|span| middle(span.left, span.right))
        })
    }

    /// Adds the value at a point; `None` if it could not be measured.
    pub fn tell(&mut self, at: u32, measured: Option<Measured>) {
        if !self.ends.contains(&at) || self.points.contains_key(&at) {
            return;
        }
        let beyond = self.leftmost().is_some_and(|left| at < left);
        self.points.insert(at, measured);
        if measured.is_none() {
            let (left, right) = (*self.ends.start(), *self.ends.end());
            if at == right && left < right && self.lost_ends < self.rule.most_edge {
                self.lost_ends += 1;
                self.ends = left..=right - 1;
            }
            return;
        }
        if beyond {
            // The bend here is unknown, so the middle is measured.
            self.edge_points += usize::from(at > *self.ends.start());
            let mut right = self.points.range(at + 1..);
            let right = right.find_map(|(right, there)| there.map(|_| *right));
            self.spans.extend(right.map(|right| Span {
                left: at,
                right,
                bend: f64::INFINITY,
            }));
            return;
        }
        let within = |span: &Span| span.left < at && at < span.right;
        let Some(number) = self.spans.iter().position(within) else {
            return;
        };
        let span = self.spans.swap_remove(number);
        self.decide(Hidden {
            left: span.left,
            at,
            right: span.right,
            again: 0,
        });
    }

    /// Returns a point that requires further runs, because noise hides a bend.
    pub fn again(&self) -> Option<u32> {
        let hidden = self.hidden.iter().find(|hidden| self.is_pending(hidden))?;
        let noise = |at: &u32| self.measured(*at).map_or(0.0, |measured| measured.relative_noise());
        let points = [hidden.left, hidden.at, hidden.right].into_iter();
        points.max_by(|a, b| noise(a).total_cmp(&noise(b)))
    }

    /// Adds the value of a point after further runs.
    pub fn tell_again(&mut self, at: u32, measured: Measured) {
        let pending = self.hidden.iter().position(|hidden| self.is_pending(hidden));
        if let Some(number) = pending {
            self.hidden[number].again += 1;
        }
        self.replace(at, measured);
        for hidden in std::mem::take(&mut self.hidden) {
            self.decide(hidden);
        }
    }

    /// Records that the required further runs gave no value.
    pub fn give_up(&mut self, at: u32) {
        if let Some(measured) = self.measured(at) {
            self.tell_again(at, measured);
        }
    }

    /// Replaces the value of a measured point, without another decision.
    pub fn replace(&mut self, at: u32, measured: Measured) {
        if let Some(there) = self.points.get_mut(&at) {
            *there = Some(measured);
        }
    }

    /// Returns the points at which noise hides whether the curve bends, from left to right.
    pub fn hidden(&self) -> Vec<u32> {
        let mut hidden: Vec<u32> = self.hidden.iter().map(|hidden| hidden.at).collect();
        hidden.sort_unstable();
        hidden
    }

    fn is_pending(&self, hidden: &Hidden) -> bool {
        hidden.again < self.rule.most_again
    }

    /// Refines both sides of a point if the curve bends there beyond the noise.
    fn decide(&mut self, hidden: Hidden) {
        let Hidden { left, at, right, .. } = hidden;
        let measured = [left, at, right].map(|at| self.measured(at));
        let [Some(first), Some(middle), Some(last)] = measured else {
            return;
        };
        let part = f64::from(at - left) / f64::from(right - left);
        let line = |left: f64, right: f64| left + part * (right - left);
        let off = (middle.value - line(first.value, last.value)).abs();
        // Noises of independent values.
        let noise = middle.noise.hypot((1.0 - part) * first.noise).hypot(part * last.noise);
        let scale = middle.value.abs().max(f64::MIN_POSITIVE);
        if off <= self.rule.tolerance * scale {
            return;
        }
        if off <= noise {
            self.hidden.push(hidden);
            return;
        }
        let bend = off / scale;
        for (left, right) in [(left, at), (at, right)] {
            self.spans.push(Span { left, right, bend });
        }
    }

    /// Returns the measured points from left to right.
    pub fn points(&self) -> Vec<Point> {
        let points = self.points.iter();
        points
            .filter_map(|(at, measured)| measured.map(|measured| Point { at: *at, measured }))
            .collect()
    }

    fn measured(&self, at: u32) -> Option<Measured> {
        self.points.get(&at).copied().flatten()
    }

    fn leftmost(&self) -> Option<u32> {
        let mut points = self.points.iter();
        points.find_map(|(at, measured)| measured.map(|_| *at))
    }

    /// Returns `true` if the interval contains a point that has not been tried.
    fn is_open(&self, span: &Span) -> bool {
        span.right - span.left >= 2 && !self.points.contains_key(&middle(span.left, span.right))
    }

    /// Returns the middle between the leftmost measured point and those to its left that cannot be measured.
    fn edge(&self) -> Option<u32> {
        let right = self.leftmost()?;
        let (left, _) = self.points.range(..right).next_back()?;
        let at = middle(*left, right);
        let tried = self.points.range(..right).count() - 1 + self.edge_points;
        (right - left >= 2 && tried < self.rule.most_edge).then_some(at)
    }
}

fn middle(left: u32, right: u32) -> u32 {
    left + (right - left) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULE: BisectionRule = BisectionRule {
        tolerance: 0.01,
        most: 12,
        most_edge: 3,
        most_again: 1,
    };

    fn exact(value: f64) -> Measured {
        Measured {
            value,
            noise: 0.0,
            runs: 3,
            disturbed: 0,
        }
    }

    /// Measures a whole curve, and checks that points are new and within the ends.
    fn all(ends: RangeInclusive<u32>, rule: BisectionRule, curve: impl Fn(u32) -> Option<Measured>) -> Bisection {
        let mut bisection = Bisection::new(ends.clone(), rule);
        let mut seen = Vec::new();
        while let Some(at) = bisection.next() {
            assert!(ends.contains(&at) && !seen.contains(&at), "{at} {seen:?}");
            seen.push(at);
            bisection.tell(at, curve(at));
        }
        assert!(seen.len() <= rule.most, "{seen:?}");
        bisection
    }

    fn interpolated(points: &[Point], at: u32) -> f64 {
        let right = points.partition_point(|point| point.at < at);
        let point = points[right];
        if point.at == at {
            return point.measured.value;
        }
        let left = points[right - 1];
        let part = f64::from(at - left.at) / f64::from(point.at - left.at);
        left.measured.value + part * (point.measured.value - left.measured.value)
    }

    #[test]
    fn a_straight_line_takes_three_points() {
        let bisection = all(1..=16, RULE, |at| Some(exact(f64::from(at))));
        let at: Vec<u32> = bisection.points().iter().map(|point| point.at).collect();
        assert_eq!(at, [1, 8, 16]);
        // A curve of one point, and of two.
        assert_eq!(all(5..=5, RULE, |_| Some(exact(1.0))).points().len(), 1);
        assert_eq!(all(5..=6, RULE, |_| Some(exact(1.0))).points().len(), 2);
    }

    fn noisy(at: u32, noise: f64) -> Measured {
        let value = if at == 8 { 104.0 } else { 100.0 };
        Measured { noise, ..exact(value) }
    }

    #[test]
    fn noise_is_no_bend() {
        assert_eq!(all(1..=16, RULE, |at| Some(noisy(at, 3.5))).points().len(), 3);
        assert!(all(1..=16, RULE, |at| Some(noisy(at, 0.5))).points().len() > 3);
    }

    /// A noise of 234 % at the right end let a curve pass as straight, without a word.
    #[test]
    fn a_bend_within_the_noise_takes_further_runs_or_is_told() {
        let mut bisection = all(1..=16, RULE, |at| Some(noisy(at, if at == 16 { 9.0 } else { 1.0 })));
        assert_eq!((bisection.again(), bisection.hidden()), (Some(16), vec![8]));
        // Further runs show the bend.
        let mut shown = bisection.clone();
        shown.tell_again(16, noisy(16, 1.0));
        assert_eq!((shown.again(), shown.hidden()), (None, vec![]));
        assert!(shown.next().is_some());
        // Or that there is none.
        let mut straight = bisection.clone();
        straight.tell_again(
            16,
            Measured {
                noise: 1.0,
                ..exact(107.0)
            },
        );
        assert_eq!(
            (straight.again(), straight.hidden(), straight.next()),
            (None, vec![], None)
        );
        // Or nothing: it stays hidden.
        bisection.tell_again(16, noisy(16, 8.9));
        assert_eq!(
            (bisection.again(), bisection.hidden(), bisection.next()),
            (None, vec![8], None)
        );
    }

    #[test]
    fn a_curve_without_its_right_end_is_none() {
        let bisection = all(1..=16, RULE, |at| (at < 13).then_some(exact(1.0)));
        assert!(bisection.points().is_empty());
        // Close to the end, another one will do.
        let bisection = all(1..=16, RULE, |at| (at < 15).then_some(exact(1.0)));
        let at: Vec<u32> = bisection.points().iter().map(|point| point.at).collect();
        assert_eq!(at, [1, 7, 14]);
    }

    #[test]
    fn a_curve_begins_where_it_can_be_measured() {
        let bisection = all(1..=64, RULE, |at| (at > 20).then_some(exact(f64::from(at))));
        let points = bisection.points();
        // 1 fails, 32 is measured, 16 fails, 24 is measured: this exhausts the edge points.
        assert_eq!(points[0].at, 24, "{points:?}");
        assert!(points.iter().all(|point| point.at > 20));
    }

    proptest! {
        /// A concave rising curve, like throughput over cache, and a convex one, like latency over load. Unless the
        /// points run out, the lines are within twice the tolerance. A concave curve's distance from a chord is at most
        /// twice the distance at the chord's middle.
        #[test]
        fn lines_between_points_are_close(
            width in 2u32..2000,
            bend in 0.01f64..3.0,
            scale in 1.0f64..1e9,
            convex in any::<bool>(),
        ) {
            let whole = f64::from(width);
            let curve = |at: u32| {
                let x = f64::from(at) / whole;
                scale * match convex {
                    false => 1.0 - 0.7 * (-x / bend).exp(),
                    true => 1.0 / (1.0 + bend / 10.0 - x),
                }
            };
            let rule = BisectionRule { most: 4096, ..RULE };
            let bisection = all(0..=width, rule, |at| Some(exact(curve(at))));
            let points = bisection.points();
            prop_assert_eq!((points[0].at, points[points.len() - 1].at), (0, width));
            for pair in points.windows(2) {
                let right = pair[0].measured.value.max(pair[1].measured.value);
                for at in pair[0].at..=pair[1].at {
                    let off = (interpolated(&points, at) - curve(at)).abs();
                    prop_assert!(off <= 2.0 * RULE.tolerance * right, "{} of {} at {}", off, right, at);
                }
            }
        }

        /// The bisection terminates for all inputs, and the curve contains only measured values.
        #[test]
        fn it_ends_whatever_is_told(
            left in 0u32..100,
            width in 0u32..5000,
            most in 3usize..40,
            told in proptest::collection::vec(proptest::option::weighted(0.8, -1e6f64..1e6), 64),
        ) {
            let rule = BisectionRule { most, ..RULE };
            let curve = |at: u32| told[at as usize % 64].map(exact);
            let bisection = all(left..=left + width, rule, curve);
            for point in bisection.points() {
                prop_assert_eq!(Some(point.measured), curve(point.at));
            }
        }
    }
}
