//! Measures for an instance that misses its objective with its share of the cache: more instances, another server, or
//! policed input.

use super::demand::{DemandEstimator, Enough};
use super::situation::{Config, Observed};
use crate::slo::ISOLATED;
use std::collections::BTreeMap;
use tailwater_net::Nanos;

/// Kind of a request to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AskKind {
    /// Another instance of the same SLO, which is below its maximum. One instance is overloaded, or the cache is not
    /// the bottleneck, or no more cache is available here.
    ScaleOut,
    /// Another server, with more cache. The SLO is at its maximum number of instances, and would meet its objective
    /// with the demanded ways.
    Move {
        /// Number of ways demanded.
        ways: u16,
    },
    /// No measure is left: the SLO has all of its instances, and no amount of cache suffices for this load. Its input
    /// is policed.
    Unmet,
}

/// Request to the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Name of the instance.
    pub name: String,
    /// Kind of the request.
    pub kind: AskKind,
}

/// Policing of an instance's input: parameters of the `policer` function, for all of its packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Policing {
    /// Name of the instance.
    pub name: String,
    /// `rate`: packets per second, at least 1.
    pub rate: u64,
    /// `burst`: maximum number of packets at once. They can be processed in half of the objective.
    pub burst: u64,
}

/// Factor on a limit while packets are late despite it. [`UP`] applies while they are not.
const DOWN: f64 = 0.9;
const UP: f64 = 1.02;

/// Limit of an instance's input.
#[derive(Clone, Copy, Debug)]
struct Limit {
    rate: f64,
    /// Ticks since its last change.
    since: u32,
}

/// Pending requests, and limits of policed instances.
#[derive(Clone, Debug, Default)]
pub(super) struct Relief {
    asked: BTreeMap<String, (AskKind, Nanos)>,
    limits: BTreeMap<String, Limit>,
}

impl Relief {
    /// Removes the state of instances that are not present.
    pub(super) fn keep(&mut self, present: impl Fn(&str) -> bool) {
        self.asked.retain(|name, _| present(name));
        self.limits.retain(|name, _| present(name));
    }

    /// Returns the request for an instance with a share of `share` ways, if one is due.
    pub(super) fn ask(
        &mut self,
        now: Nanos,
        seen: &Observed,
        want: &DemandEstimator,
        share: f64,
        config: &Config,
    ) -> Option<Ask> {
        let limited = self.limits.contains_key(&seen.name);
        if want.late < config.patience.max(1) && !limited {
            // The instance is on time again: its request is obsolete.
            if want.on_time >= config.give_up {
                self.asked.remove(&seen.name);
            }
            return None;
        }
        let hopeless = want.enough == Enough::Nowhere && want.late >= config.patience.max(1);
        if !limited && !hopeless && want.late < config.ask_after {
            return None;
        }
        let starved = share + 1e-6 < want.ways();
        let kind = if seen.instances < seen.most {
            AskKind::ScaleOut
        } else if starved && want.enough != Enough::Nowhere {
            AskKind::Move {
                ways: want.ways().ceil() as u16,
            }
        } else {
            AskKind::Unmet
        };
        let again = match self.asked.get(&seen.name) {
            Some((before, at)) => *before != kind || now.saturating_sub(*at) >= config.ask_again,
            None => true,
        };
        if !again {
            return None;
        }
        self.asked.insert(seen.name.clone(), (kind, now));
        Some(Ask {
            name: seen.name.clone(),
            kind,
        })
    }

    /// Returns the policing of an instance's input. Only SLOs with all of their instances are policed.
    pub(super) fn police(
        &mut self,
        seen: &Observed,
        want: &DemandEstimator,
        share: f64,
        config: &Config,
    ) -> Option<Policing> {
        if seen.instances < seen.most {
            self.limits.remove(&seen.name);
            return None;
        }
        let known = seen.curves.as_ref().map(|curves| {
            let bytes = share * config.cache.way_bytes as f64;
            curves.cache.extended(bytes) * curves.load.load_within(seen.objective) * ISOLATED
        });
        let limit = match self.limits.get(&seen.name).copied() {
            None if want.late < config.ask_after.max(1) => return None,
            None => Limit {
                rate: known.map_or(f64::INFINITY, |rate| rate).min(seen.offered * DOWN),
                since: 0,
            },
            Some(limit) => {
                let since = limit.since + 1;
                if want.late >= config.patience.max(1) && since >= config.patience {
                    Limit {
                        rate: limit.rate * DOWN,
                        since: 0,
                    }
                } else if want.on_time >= config.give_up && since >= config.patience {
                    let rate = (limit.rate * UP).min(known.unwrap_or(f64::INFINITY));
                    Limit { rate, since: 0 }
                } else {
                    Limit { since, ..limit }
                }
            }
        };
        let lifted = want.late == 0 && limit.rate >= seen.offered * (1.0 + config.headroom);
        if lifted {
            self.limits.remove(&seen.name);
            return None;
        }
        self.limits.insert(seen.name.clone(), limit);
        let rate = limit.rate.max(1.0);
        let burst = rate * seen.objective.as_secs_f64() / 2.0;
        Some(Policing {
            name: seen.name.clone(),
            rate: rate as u64,
            burst: (burst as u64).max(1),
        })
    }
}

#[cfg(test)]
mod tests;
