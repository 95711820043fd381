//! Highest packet rate that meets a latency objective, by flow count.

/// Highest rates in packets per second at which one core met the latency objective, by number of active flows
/// (NetBlaze, section 3.3).
///
/// A rate that was met with some flows counts as met with fewer, so the rate never rises with the flows, whatever was
/// inserted. Between two observations it is interpolated linearly. Below the fewest flows observed it is the rate
/// observed there. Above the most flows it falls inversely with the flows, as if each flow's share of the core stayed
/// constant: twice the flows, half the rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateFrontier {
    /// Observations that no other one covers, with rising flows and falling rates.
    corners: Vec<(u32, f64)>,
    /// Rate for any flow count. It is below that of all corners.
    any: f64,
}

impl RateFrontier {
    /// Creates a frontier without observations, whose rate is zero.
    pub const fn new() -> Self {
        RateFrontier::constant(0.0)
    }

    /// Creates a frontier with `rate` for any number of flows.
    pub const fn constant(rate: f64) -> Self {
        RateFrontier {
            corners: Vec::new(),
            any: rate,
        }
    }

    /// Records that a core met the objective with `flows` flows at `rate` packets per second. Returns `true` if the
    /// frontier grew. Zero flows and rates that are not finite are ignored.
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

    /// Returns the highest rate with `flows` active flows, in packets per second.
    pub fn rate(&self, flows: f64) -> f64 {
        let after = self.corners.partition_point(|corner| f64::from(corner.0) < flows);
        let rate = match (after.checked_sub(1).map(|i| self.corners[i]), self.corners.get(after)) {
            (None, None) => self.any,
            (None, Some(first)) => first.1,
            (Some((below, rate)), None) => rate * (f64::from(below) / flows),
            (Some((below, high)), Some(&(above, low))) => {
                let along = (flows - f64::from(below)) / f64::from(above - below);
                // Clamped between the two rates: rounding could otherwise make the curve rise.
                (high + (low - high) * along).clamp(low, high)
            }
        };
        rate.max(self.any)
    }

    /// Returns `true` if one core meets the objective with `flows` active flows at `rate` packets per second.
    pub fn admits(&self, flows: f64, rate: f64) -> bool {
        rate <= self.rate(flows)
    }

    /// Returns the highest rate at any flow count.
    pub fn largest(&self) -> f64 {
        self.corners.first().map_or(self.any, |corner| corner.1)
    }

    /// Returns the lowest rate over the observed flow counts.
    pub fn smallest(&self) -> f64 {
        match self.corners.last() {
            Some(corner) if self.any == 0.0 => corner.1,
            _ => self.any,
        }
    }

    /// Returns `true` if nothing is admitted.
    pub fn is_empty(&self) -> bool {
        self.largest() == 0.0
    }

    /// Returns NetBlaze's ablation *static-safe* (section 4.5): the lowest rate at all flow counts.
    pub fn static_safe(&self) -> Self {
        RateFrontier::constant(self.smallest())
    }

    /// Returns NetBlaze's ablation *static-unsafe* (section 4.5): the highest rate at all flow counts.
    pub fn static_unsafe(&self) -> Self {
        RateFrontier::constant(self.largest())
    }

    /// Returns the observations that define the frontier, as flows and packets per second, with rising flows and
    /// falling rates.
    pub fn corners(&self) -> &[(u32, f64)] {
        &self.corners
    }

    /// Returns the rate that is met at any flow count. It is below that of all corners.
    pub fn any(&self) -> f64 {
        self.any
    }
}
