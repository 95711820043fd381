//! The highest packet rate that meets a latency objective, by flow count.

/// For a number of active flows, the highest rate in packets per second at which one core met the
/// latency objective (NetBlaze, section 3.3).
///
/// A rate that was met with some flows counts as met with fewer, so the rate never rises with the
/// flows, whatever was inserted. Between two observations it is interpolated linearly. Below the
/// fewest flows seen it is the rate seen there. Above the most flows it falls as if every flow's
/// share of the core stayed what it was there, inversely with the flows: twice the flows, half the
/// rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateFrontier {
    /// Observations that none other covers: flows rise, rates fall.
    corners: Vec<(u32, f64)>,
    /// Rate for any flow count, below all corners.
    any: f64,
}

impl RateFrontier {
    /// No observation: the rate is zero.
    pub const fn new() -> Self {
        RateFrontier::constant(0.0)
    }

    /// `rate`, whatever the number of flows.
    pub const fn constant(rate: f64) -> Self {
        RateFrontier {
            corners: Vec::new(),
            any: rate,
        }
    }

    /// Notes that a core met the objective with `flows` flows at `rate` packets per second. Returns
    /// whether the frontier grew. No flows, and a rate that is not finite, say nothing.
    pub fn insert(&mut self, flows: u32, rate: f64) -> bool {
        if flows == 0 || !rate.is_finite() || rate <= self.any {
            return false;
        }
        let after = self.corners.partition_point(|corner| corner.0 < flows);
        if self.corners[after..].iter().any(|corner| corner.1 >= rate) {
            return false;
        }
        self.corners.retain(|corner| corner.0 > flows || corner.1 > rate);
        let after = self.corners.partition_point(|corner| corner.0 < flows);
        self.corners.insert(after, (flows, rate));
        true
    }

    /// The highest rate with `flows` active flows, in packets per second.
    pub fn rate(&self, flows: f64) -> f64 {
        let after = self.corners.partition_point(|corner| f64::from(corner.0) < flows);
        let rate = match (after.checked_sub(1).map(|i| self.corners[i]), self.corners.get(after)) {
            (None, None) => self.any,
            (None, Some(first)) => first.1,
            (Some((below, rate)), None) => rate * (f64::from(below) / flows),
            (Some((below, high)), Some(&(above, low))) => {
                let along = (flows - f64::from(below)) / f64::from(above - below);
                // Rounding must not leave the two rates, or the curve could rise.
                (high + (low - high) * along).clamp(low, high)
            }
        };
        rate.max(self.any)
    }

    /// Whether one core meets the objective with `flows` active flows at `rate` packets per second.
    pub fn admits(&self, flows: f64, rate: f64) -> bool {
        rate <= self.rate(flows)
    }

    /// The highest rate at any flow count.
    pub fn largest(&self) -> f64 {
        self.corners.first().map_or(self.any, |corner| corner.1)
    }

    /// The lowest rate at any flow count that was seen.
    pub fn smallest(&self) -> f64 {
        match self.corners.last() {
            Some(corner) if self.any == 0.0 => corner.1,
            _ => self.any,
        }
    }

    /// Whether nothing is admitted.
    pub fn is_empty(&self) -> bool {
        self.largest() == 0.0
    }

    /// NetBlaze's ablation *static-safe* (section 4.5): the lowest rate at all flow counts.
    pub fn static_safe(&self) -> Self {
        RateFrontier::constant(self.smallest())
    }

    /// NetBlaze's ablation *static-unsafe* (section 4.5): the highest rate at all flow counts.
    pub fn static_unsafe(&self) -> Self {
        RateFrontier::constant(self.largest())
    }

    /// The observations that define the frontier, as flows and packets per second: flows rise,
    /// rates fall.
    pub fn corners(&self) -> &[(u32, f64)] {
        &self.corners
    }

    /// The rate that is met at any flow count; below those of all corners.
    pub fn any(&self) -> f64 {
        self.any
    }
}
