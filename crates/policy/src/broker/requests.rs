//! When dispatchers call a broker, and the chains' loads that it sees: the same for the data plane and the simulator.

use tailwater_net::Nanos;

/// Interval at which a dispatcher with an [urgent](is_urgent) backlog, for which no core was free, requests one again.
pub const REQUEST_INTERVAL: Nanos = Nanos::from_micros(5);
/// Interval at which the chains' loads are measured.
pub const MEASURE_INTERVAL: Nanos = Nanos::from_millis(1);

/// Time constants of both averages in nanoseconds.
const SHORT: f64 = 100e6;
const LONG: f64 = 1e9;

/// Returns `true` if a dispatcher requests a core although its mapper does not: less than half of the objective is left
/// for a packet that has waited for so long.
#[inline]
pub fn is_urgent(waited: Nanos, objective: Nanos) -> bool {
    waited.0 > objective.0 / 2
}

/// Averages of a chain's packet rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateAverages {
    counted: u64,
    /// Packets per second, over about 100 ms.
    pub short: f64,
    /// The same over about a second.
    pub long: f64,
}

impl RateAverages {
    /// Adds a measurement: `counted` packets were offered so far, `elapsed` since the last measurement and `running`
    /// since the first. Until then, the averages cover that time. A counter that begins again counts as no packets.
    pub fn add(&mut self, counted: u64, elapsed: Nanos, running: Nanos) {
        let elapsed = elapsed.0.max(1) as f64;
        let rate = counted.saturating_sub(self.counted) as f64 * 1e9 / elapsed;
        self.counted = counted;
        let weight = |time: f64| (elapsed / time.min(running.0.max(1) as f64)).min(1.0);
        self.short += (rate - self.short) * weight(SHORT);
        self.long += (rate - self.long) * weight(LONG);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_follow_the_rate_at_two_speeds() {
        let mut rates = RateAverages::default();
        let (mut counted, step) = (0, Nanos::from_millis(1));
        for ms in 1..=50 {
            counted += 1_000;
            rates.add(counted, step, Nanos::from_millis(ms));
        }
        // From the first on, they are means of what there was.
        assert!(
            (rates.short - 1e6).abs() < 1.0 && (rates.long - 1e6).abs() < 1.0,
            "{rates:?}"
        );
        for ms in 51..=250 {
            rates.add(counted, step, Nanos::from_millis(ms));
        }
        assert!(
            rates.short < 0.2e6 && rates.long > 0.15e6 && rates.long > rates.short,
            "{rates:?}"
        );
        let before = rates;
        rates.add(0, step, Nanos::from_millis(251));
        assert!(rates.short <= before.short, "a counter that begins again");
    }

    #[test]
    fn half_of_the_objective_is_urgent() {
        let objective = Nanos::from_micros(200);
        assert!(!is_urgent(Nanos::from_micros(100), objective));
        assert!(is_urgent(Nanos(100_001), objective));
    }
}
