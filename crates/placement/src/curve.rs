//! Curves of a chain on one kind of machine: throughput by cache size, and latency by load (ResQ §5.2).

use tailwater_net::Nanos;

/// Maximum number of points of a curve.
pub const MAX_POINTS: usize = 1024;
/// Maximum rate of a curve, in packets per second.
pub const MAX_RATE: f64 = 1e12;

/// Reason why points are not a valid curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CurveError {
    /// There are no points, or more than [`MAX_POINTS`].
    #[error("expected 1 to {MAX_POINTS} points, found {0}")]
    Length(usize),
    /// A point (by its index, from 0) is not to the right of its predecessor.
    #[error("expected points in increasing order, found point {0} out of order")]
    Order(usize),
    /// A point (by its index, from 0) is below its predecessor.
    #[error("expected values that do not decrease, found a lower one in point {0}")]
    Falls(usize),
    /// A point (by its index, from 0) has an invalid number.
    #[error("expected numbers above 0, found another in point {0}")]
    Number(usize),
    /// A load is above 1, or the last one is below 1.
    #[error("expected loads up to 1, the last of them 1")]
    Load,
}

/// Throughput of an instance by the size of its own cache partition.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheCurve {
    points: Vec<(u64, f64)>,
}

impl CacheCurve {
    /// Creates a curve from points of (bytes of cache, packets per second), sorted by bytes. More cache never makes a
    /// chain slower: the caller removes measurements to the contrary as noise.
    ///
    /// # Errors
    /// The points are not a valid curve.
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

    /// Returns the points, sorted by bytes.
    pub fn points(&self) -> &[(u64, f64)] {
        &self.points
    }

    /// Returns the packets per second with `bytes` of cache. Values are interpolated linearly. They are constant beyond
    /// the last point, and 0 below the first, where nothing was measured.
    pub fn rate(&self, bytes: u64) -> f64 {
        let right = self.points.partition_point(|&(b, _)| b < bytes);
        match (right.checked_sub(1), self.points.get(right)) {
            (_, Some(&(b, rate))) if b == bytes => rate,
            (Some(left), Some(&point)) => between(self.points[left], point, bytes as f64),
            (Some(left), None) => self.points[left].1,
            (None, _) => 0.0,
        }
    }

    /// Like [`rate`](Self::rate), but extends the first segment below the first point, for the small share that
    /// competitors leave.
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

    /// Returns the highest rate.
    pub fn most(&self) -> f64 {
        self.points[self.points.len() - 1].1
    }

    /// Returns the fewest bytes with which the chain reaches its highest rate.
    pub fn working_set(&self) -> u64 {
        let most = self.most();
        let first = self.points.partition_point(|&(_, rate)| rate < most);
        self.points[first].0
    }
}

/// Returns the value at `x` of the line through two points.
fn between(left: (u64, f64), right: (u64, f64), x: f64) -> f64 {
    let part = (x - left.0 as f64) / (right.0 - left.0) as f64;
    left.1 + part * (right.1 - left.1)
}

/// Latency percentile by load, as a share of the highest rate.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadCurve {
    points: Vec<(f64, Nanos)>,
}

impl LoadCurve {
    /// Creates a curve from points of (load, latency), sorted by load. The last has load 1.
    ///
    /// # Errors
    /// The points are not a valid curve.
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

    /// Returns the points, sorted by load.
    pub fn points(&self) -> &[(f64, Nanos)] {
        &self.points
    }

    /// Returns the highest load at which the latency is within `latency`, interpolated linearly. Returns 0 if even the
    /// lowest measured load exceeds it.
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

    /// Returns the latency at the lowest measured load, which is the lowest objective that can be met.
    pub fn least(&self) -> Nanos {
        self.points[0].1
    }

    /// Returns the latency at a load.
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
