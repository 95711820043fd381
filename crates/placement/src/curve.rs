//! What was measured of a chain on one kind of machine: how fast it is with how much cache, and how late
//! packets are at which load (ResQ §5.2).

use tailwater_net::Nanos;

/// The most points of a curve.
pub const MAX_POINTS: usize = 1024;
/// The highest rate of a curve, in packets per second.
pub const MAX_RATE: f64 = 1e12;

/// Why points are no curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CurveError {
    /// There are no points, or more than [`MAX_POINTS`].
    #[error("expected 1 to {MAX_POINTS} points, found {0}")]
    Length(usize),
    /// A point (by its number, from 0) does not lie to the right of the one before it.
    #[error("expected each point to the right of the one before, found point {0} elsewhere")]
    Order(usize),
    /// A point (by its number, from 0) lies below the one before it.
    #[error("expected no point below the one before, found point {0} lower")]
    Falls(usize),
    /// A point (by its number, from 0) has a number that cannot be.
    #[error("expected numbers above 0, found another in point {0}")]
    Number(usize),
    /// A load is above 1, or the last one is below.
    #[error("expected loads up to 1, the last of them 1")]
    Load,
}

/// The throughput of an instance over the cache that it has for itself.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheCurve {
    points: Vec<(u64, f64)>,
}

impl CacheCurve {
    /// Points of (bytes of cache, packets per second), by bytes. More cache never makes a chain slower: what
    /// measurement says otherwise is noise, to be taken out before.
    ///
    /// # Errors
    /// The points are no such curve.
    pub fn new(points: Vec<(u64, f64)>) -> Result<Self, CurveError> {
        length(points.len())?;
        for (i, &(bytes, rate)) in points.iter().enumerate() {
            if bytes == 0 || !(rate > 0.0 && rate <= MAX_RATE) {
                return Err(CurveError::Number(i));
            }
            if i > 0 && bytes <= points[i - 1].0 {
                return Err(CurveError::Order(i));
            }
            if i > 0 && rate < points[i - 1].1 {
                return Err(CurveError::Falls(i));
            }
        }
        Ok(CacheCurve { points })
    }

    /// The points, by bytes.
    pub fn points(&self) -> &[(u64, f64)] {
        &self.points
    }

    /// Packets per second with so many bytes: by straight lines between points, as at the last point beyond
    /// it, and 0 below the first, where nothing was measured.
    pub fn rate(&self, bytes: u64) -> f64 {
        let right = self.points.partition_point(|&(b, _)| b < bytes);
        match (right.checked_sub(1), self.points.get(right)) {
            (_, Some(&(b, rate))) if b == bytes => rate,
            (Some(left), Some(&point)) => between(self.points[left], point, bytes as f64),
            (Some(left), None) => self.points[left].1,
            (None, _) => 0.0,
        }
    }

    /// As [`rate`](Self::rate), and on the first line's extension below the first point: what a chain does
    /// with the little that competitors leave it.
    pub fn extended(&self, bytes: f64) -> f64 {
        let (first, last) = (self.points[0], self.points[self.points.len() - 1]);
        if bytes >= last.0 as f64 {
            return last.1;
        }
        let Some(&second) = self.points.get(1) else {
            return first.1;
        };
        if bytes <= first.0 as f64 {
            return between(first, second, bytes).max(0.0);
        }
        let right = self.points.partition_point(|&(b, _)| (b as f64) < bytes);
        between(self.points[right - 1], self.points[right], bytes)
    }

    /// The highest rate.
    pub fn most(&self) -> f64 {
        self.points[self.points.len() - 1].1
    }

    /// The fewest bytes with which it is as fast as can be.
    pub fn working_set(&self) -> u64 {
        let most = self.most();
        let first = self.points.partition_point(|&(_, rate)| rate < most);
        self.points[first].0
    }
}

/// The line through two points, at `x`.
fn between(left: (u64, f64), right: (u64, f64), x: f64) -> f64 {
    let part = (x - left.0 as f64) / (right.0 - left.0) as f64;
    left.1 + part * (right.1 - left.1)
}

/// A latency percentile over the load, as a part of the highest rate.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadCurve {
    points: Vec<(f64, Nanos)>,
}

impl LoadCurve {
    /// Points of (load, latency), by load; the last is of load 1.
    ///
    /// # Errors
    /// The points are no such curve.
    pub fn new(points: Vec<(f64, Nanos)>) -> Result<Self, CurveError> {
        length(points.len())?;
        for (i, &(load, latency)) in points.iter().enumerate() {
            if load.is_nan() || load <= 0.0 || latency.0 == 0 {
                return Err(CurveError::Number(i));
            }
            if i > 0 && load <= points[i - 1].0 {
                return Err(CurveError::Order(i));
            }
            if i > 0 && latency < points[i - 1].1 {
                return Err(CurveError::Falls(i));
            }
        }
        match points.last() {
            Some(&(1.0, _)) => Ok(LoadCurve { points }),
            _ => Err(CurveError::Load),
        }
    }

    /// The points, by load.
    pub fn points(&self) -> &[(f64, Nanos)] {
        &self.points
    }

    /// The highest load with which packets are no later than this: by straight lines between points; 0 where
    /// even the least load that was measured is too much.
    pub fn load_within(&self, latency: Nanos) -> f64 {
        let right = self.points.partition_point(|&(_, l)| l <= latency);
        match (right.checked_sub(1), self.points.get(right)) {
            (None, _) => 0.0,
            (Some(left), None) => self.points[left].0,
            (Some(left), Some(&(load, late))) => {
                let (from, early) = self.points[left];
                let part = (latency.0 - early.0) as f64 / (late.0 - early.0) as f64;
                from + part * (load - from)
            }
        }
    }

    /// How late packets are at the least load that was measured: no objective below it can be kept.
    pub fn least(&self) -> Nanos {
        self.points[0].1
    }

    /// How late packets are at a load.
    pub fn latency(&self, load: f64) -> Nanos {
        let right = self.points.partition_point(|&(l, _)| l < load);
        match (right.checked_sub(1), self.points.get(right)) {
            (Some(left), Some(&(to, late))) => {
                let (from, early) = self.points[left];
                let part = (load - from) / (to - from);
                Nanos(early.0 + (part * (late.0 - early.0) as f64).ceil() as u64)
            }
            (Some(left), None) => self.points[left].1,
            (None, _) => self.points[0].1,
        }
    }
}

fn length(points: usize) -> Result<(), CurveError> {
    match points {
        1..=MAX_POINTS => Ok(()),
        _ => Err(CurveError::Length(points)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_by_straight_lines() -> Result<(), CurveError> {
        let curve = CacheCurve::new(vec![(10, 50.0), (20, 90.0), (40, 100.0), (50, 100.0)])?;
        let rates = [(9, 0.0), (10, 50.0), (15, 70.0), (20, 90.0), (30, 95.0)];
        for (bytes, rate) in rates.into_iter().chain([(40, 100.0), (99, 100.0)]) {
            assert_eq!(curve.rate(bytes), rate, "{bytes}");
        }
        assert_eq!((curve.most(), curve.working_set()), (100.0, 40));
        assert_eq!((curve.extended(5.0), curve.extended(0.0)), (30.0, 10.0));
        assert_eq!((curve.extended(30.0), curve.extended(60.0)), (95.0, 100.0));
        Ok(())
    }

    #[test]
    fn loads_by_straight_lines() -> Result<(), CurveError> {
        let curve = LoadCurve::new(vec![(0.2, Nanos(10)), (0.6, Nanos(30)), (1.0, Nanos(130))])?;
        for (latency, load) in [(9, 0.0), (10, 0.2), (20, 0.4), (30, 0.6), (130, 1.0)] {
            let within = curve.load_within(Nanos(latency));
            assert!((within - load).abs() < 1e-12, "{latency}: {within}");
        }
        assert!((curve.load_within(Nanos(80)) - 0.8).abs() < 1e-12);
        assert_eq!(curve.load_within(Nanos(1000)), 1.0);
        for (load, latency) in [(0.1, 10), (0.2, 10), (0.25, 13), (0.6, 30), (1.0, 130)] {
            assert_eq!(curve.latency(load), Nanos(latency), "{load}");
        }
        Ok(())
    }

    #[test]
    fn what_is_no_curve() {
        let cache = CacheCurve::new;
        assert_eq!(cache(vec![]), Err(CurveError::Length(0)));
        assert_eq!(cache(vec![(1, 1.0), (1, 2.0)]), Err(CurveError::Order(1)));
        assert_eq!(cache(vec![(1, 2.0), (2, 1.0)]), Err(CurveError::Falls(1)));
        assert_eq!(cache(vec![(1, f64::NAN)]), Err(CurveError::Number(0)));
        assert_eq!(cache(vec![(0, 1.0)]), Err(CurveError::Number(0)));
        let load = LoadCurve::new;
        assert_eq!(load(vec![(0.5, Nanos(1))]), Err(CurveError::Load));
        assert_eq!(load(vec![(f64::NAN, Nanos(1))]), Err(CurveError::Number(0)));
        let late = vec![(0.5, Nanos(2)), (1.0, Nanos(1))];
        assert_eq!(load(late), Err(CurveError::Falls(1)));
    }
}
