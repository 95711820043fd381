//! Demand of chains over the last minutes.

use std::collections::{HashMap, VecDeque};
use tailwater_net::Nanos;
use tailwater_placement::rack::ChainDemand;

/// Time over which demand is smoothed.
const SMOOTHING: f64 = 10.0;
/// Time between entries of the peak's history.
const STEP: Nanos = Nanos::from_secs(1);

/// Demand of all chains.
#[derive(Debug)]
pub(super) struct Demands {
    /// Time whose highest demand counts as the peak.
    peak: Nanos,
    chains: HashMap<String, Demand>,
}

#[derive(Debug, Default)]
struct Demand {
    smoothed: f64,
    last: Option<Nanos>,
    /// Highest demand of each step, in order of time.
    peaks: VecDeque<(Nanos, f64)>,
}

impl Demands {
    pub(super) fn new(peak: Nanos) -> Demands {
        Demands {
            peak,
            chains: HashMap::new(),
        }
    }

    /// Notes what a chain is offered now, and returns its demand.
    pub(super) fn note(&mut self, chain: &str, offered: f64, now: Nanos) -> ChainDemand {
        if !self.chains.contains_key(chain) {
            self.chains.insert(chain.to_owned(), Demand::default());
        }
        let demand = self.chains.get_mut(chain).expect("inserted above");
        demand.note(offered, now, self.peak)
    }

    /// Forgets all other chains.
    pub(super) fn retain(&mut self, is_chain: impl Fn(&str) -> bool) {
        self.chains.retain(|chain, _| is_chain(chain));
    }
}

impl Demand {
    fn note(&mut self, offered: f64, now: Nanos, peak_time: Nanos) -> ChainDemand {
        let part = match self.last {
            None => 1.0,
            Some(last) => 1.0 - (-(now.saturating_sub(last).as_secs_f64()) / SMOOTHING).exp(),
        };
        self.last = Some(now);
        self.smoothed += part * (offered - self.smoothed);
        match self.peaks.back_mut() {
            Some((since, peak)) if now.saturating_sub(*since) < STEP => *peak = peak.max(offered),
            _ => self.peaks.push_back((now, offered)),
        }
        while self
            .peaks
            .front()
            .is_some_and(|(at, _)| now.saturating_sub(*at) > peak_time)
        {
            self.peaks.pop_front();
        }
        ChainDemand {
            offered,
            smoothed: self.smoothed,
            peak: self.peaks.iter().map(|(_, peak)| *peak).fold(0.0, f64::max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_the_last_minute_counts() {
        let at = Nanos::from_secs;
        let mut demands = Demands::new(at(60));
        demands.note("a/web", 100.0, at(0));
        assert_eq!(demands.note("a/web", 900.0, at(1)).peak, 900.0);
        let later = demands.note("a/web", 100.0, at(61));
        assert_eq!((later.offered, later.peak), (100.0, 900.0));
        assert_eq!(demands.note("a/web", 100.0, at(62)).peak, 100.0);
        assert_eq!(demands.note("b/web", 5.0, at(62)).peak, 5.0);
    }

    #[test]
    fn the_smoothed_demand_follows_in_the_time_of_smoothing_however_often_it_is_noted() {
        let smoothed = |step_millis: u64| {
            let mut demands = Demands::new(Nanos::from_secs(60));
            demands.note("web", 0.0, Nanos::ZERO);
            let steps = 10_000 / step_millis;
            let notes = (1..=steps).map(|step| demands.note("web", 1000.0, Nanos::from_millis(step * step_millis)));
            notes.last().unwrap().smoothed
        };
        for step in [10, 100, 1000, 10_000] {
            assert!((smoothed(step) - 632.12).abs() < 0.01, "{}", smoothed(step));
        }
    }
}
