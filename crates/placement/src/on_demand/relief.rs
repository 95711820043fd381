//! What becomes of an instance that cannot keep its objective with the cache that it gets: more instances, another
//! server, or less input.

use super::situation::{Config, Observed};
use super::want::{Enough, Want};
use crate::slo::ISOLATED;
use std::collections::BTreeMap;
use tailwater_net::Nanos;

/// What an instance needs that its server cannot give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AskKind {
    /// Another instance of the same SLO, which may have more: its load is too much for one, or cache is not what
    /// it lacks, or there is no more of it here.
    ScaleOut,
    /// Another server, with more cache for it: it may have no more instances, and with the ways that it has a use
    /// for it would keep its objective.
    Move {
        /// The ways that it has a use for.
        ways: u16,
    },
    /// Nothing can be done: the SLO has all of its instances, and no cache is enough for this load. Input is policed.
    Unmet,
}

/// Something that the controller is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The instance.
    pub name: String,
    /// What for.
    pub kind: AskKind,
}

/// How an instance's input is to be policed: a limit of `policer`, for all of its packets, in packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Policing {
    /// The instance.
    pub name: String,
    /// `rate`: packets per second, at least 1.
    pub rate: u64,
    /// `burst`: packets that may come at once. Half of the objective is enough to process them.
    pub burst: u64,
}

/// What a limit is multiplied with while packets are late in spite of it, and while they are not.
const DOWN: f64 = 0.9;
const UP: f64 = 1.02;

/// A limit on an instance's input.
#[derive(Clone, Copy, Debug)]
struct Limit {
    rate: f64,
    /// Ticks since it changed.
    since: u32,
}

/// What was asked for, and who is policed.
#[derive(Clone, Debug, Default)]
pub(super) struct Relief {
    asked: BTreeMap<String, (AskKind, Nanos)>,
    limits: BTreeMap<String, Limit>,
}

impl Relief {
    /// Forgets those that are gone.
    pub(super) fn keep(&mut self, present: impl Fn(&str) -> bool) {
        self.asked.retain(|name, _| present(name));
        self.limits.retain(|name, _| present(name));
    }

    /// What to ask for an instance, that has a share of some ways now.
    pub(super) fn ask(&mut self, now: Nanos, seen: &Observed, want: &Want, share: f64, config: &Config) -> Option<Ask> {
        let limited = self.limits.contains_key(&seen.name);
        if want.late < config.patience.max(1) && !limited {
            // Short and on time again: whatever was asked for is no longer needed.
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

    /// How to police an instance's input, if at all: only of an SLO that has all of its instances.
    pub(super) fn police(&mut self, seen: &Observed, want: &Want, share: f64, config: &Config) -> Option<Policing> {
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
