//! Promises compared with what is measured, and chains placed anew that have drifted.

use super::Manager;
use super::watched::Watched;
use crate::admission::{self, Anew, rate};
use crate::chain::AppliedChain;
use crate::events::Severity;
use crate::generation::Store;
use crate::machine::{ChainObservation, ChainState, Machine};
use crate::status::BrokenPromise;
use crate::steps::Step;
use std::sync::Arc;
use tailwater_api::server::{AdmissionSpec, Unprofiled};
use tailwater_net::Nanos;
use tailwater_placement::core_shares::{DriftCause, DriftChange, DriftPromise, DriftWindow};

/// Time between two measurements of a running chain's profile, so that a chain whose cost varies does not occupy the
/// measuring core all the time.
const AGAIN: Nanos = Nanos::from_secs(600);

impl<M: Machine, S: Store> Manager<M, S> {
    /// Compares a chain's last window with its promise.
    pub(super) fn watch_promise(&mut self, observation: &ChainObservation, now: Nanos) {
        let Some(chain) = self.current.chains.get(&observation.name).cloned() else {
            return;
        };
        let (Some(claim), Some(predicted)) = (&chain.placement.claim, chain.placement.predicted) else {
            return;
        };
        let (Some(work), Some(rates)) = (observation.work, observation.rates) else {
            return;
        };
        if chain.drained || observation.state != ChainState::Running {
            return;
        }
        let watched = self.watched.entry(chain.name.clone());
        let watched = watched.or_insert_with(|| Watched::new(claim));
        if !Arc::ptr_eq(&watched.claim, claim) {
            let again_at = watched.again_at;
            *watched = Watched {
                again_at,
                ..Watched::new(claim)
            };
        }
        if watched.window.replace(work.index) == Some(work.index) {
            return;
        }
        let window = DriftWindow {
            busy: work.busy,
            batches: work.batches,
            packets: work.packets,
            offered: rates.offered,
            met: observation.latency.met,
        };
        let promise = DriftPromise {
            throughput: claim.throughput,
            cost: predicted.cost,
        };
        match watched.monitor.observe(&window, &promise) {
            Some(DriftChange::Drifted(cause)) => self.begin_drift(&chain, observation, cause, now),
            Some(DriftChange::Kept) => self.end_drift(&chain.name, now),
            None => {}
        }
    }

    /// Forgets chains that have no promise any more.
    pub(super) fn forget_promises(&mut self) {
        let chains = &self.current.chains;
        let has_claim = |name: &String| chains.get(name).is_some_and(|chain| chain.placement.claim.is_some());
        self.watched.retain(|name, _| has_claim(name));
    }

    fn begin_drift(&mut self, chain: &AppliedChain, observation: &ChainObservation, cause: DriftCause, now: Nanos) {
        let placement = &chain.placement;
        let promised = rate(placement.claim.as_ref().map_or(0.0, |claim| claim.throughput));
        let message = match cause {
            DriftCause::Cost { measured } => format!(
                "a packet costs {measured:.0} ns, its profile predicts {:.0} ns",
                placement.predicted.map_or(0.0, |predicted| predicted.cost)
            ),
            DriftCause::Objective { offered } => {
                let latency = &observation.latency;
                let p99 = latency.p99.map_or("unknown".to_owned(), |p99| p99.to_string());
                format!(
                    "its objective of {} is missed (p99 {p99}) at {}, within the promised {promised}",
                    latency.objective,
                    rate(offered)
                )
            }
        };
        self.break_promise(&chain.name, ("Drifted", "Drifted"), message, now);
        self.profile_again(chain);
    }

    fn end_drift(&mut self, name: &str, now: Nanos) {
        self.table.event(now, Severity::Normal, Some(name), "PromiseKept", "");
        self.table.set_broken(name, None, now);
    }

    /// Sets a condition, and adds an event about it.
    fn break_promise(
        &mut self,
        name: &str,
        (condition, event): (&'static str, &'static str),
        message: String,
        now: Nanos,
    ) {
        self.table.event(now, Severity::Warning, Some(name), event, &message);
        let broken = BrokenPromise {
            reason: condition,
            message,
        };
        self.table.set_broken(name, Some(broken), now);
    }

    /// Requests that the profile of a running chain is measured anew, if the server measures profiles.
    pub(super) fn profile_again(&mut self, chain: &AppliedChain) {
        if self.measures() && !chain.forced {
            self.drifted.insert(chain.name.clone());
        }
    }

    /// Returns `true` if the server measures profiles.
    pub fn measures(&self) -> bool {
        let is_auto = |spec: &AdmissionSpec| spec.profile == Unprofiled::Auto;
        self.server.admission.as_ref().is_some_and(is_auto)
    }

    /// Takes the chains whose profiles are to be measured anew now, in the order of their names. Those that were
    /// measured a short time ago stay for later.
    pub fn take_drifted(&mut self, now: Nanos) -> Vec<String> {
        let watched = &mut self.watched;
        let is_due = |name: &String| watched.get(name).is_none_or(|watched| now >= watched.again_at);
        let due: Vec<String> = self.drifted.iter().filter(|name| is_due(name)).cloned().collect();
        for name in &due {
            self.drifted.remove(name);
            if let Some(watched) = watched.get_mut(name) {
                watched.again_at = now + AGAIN;
            }
        }
        due
    }

    /// Places a running chain by its new profile: as before, on another core, with less throughput, or without a
    /// promise. Its functions keep their state.
    pub fn place_anew(&mut self, name: &str, now: Nanos) {
        let spec = self.server.admission.as_ref();
        let placed = admission::place_anew(&self.machine, spec, &self.current, name);
        let placed = placed.and_then(|(next, anew)| self.enter_anew(next, &anew, name, now).map(|()| anew));
        match placed {
            Err(reason) => self.not_placed(name, &reason, now),
            Ok(Anew::Same) => {
                let message = "its profile holds: the cause is not the cost of its packets";
                self.table
                    .event(now, Severity::Normal, Some(name), "ProfileHolds", message);
            }
            Ok(Anew::Promised) => self.end_drift(name, now),
            Ok(Anew::Reduced(reason)) => self.break_promise(name, ("Reduced", "PromiseReduced"), reason, now),
            Ok(Anew::Lost(reason)) => self.break_promise(name, ("Lost", "PromiseLost"), reason, now),
        }
        self.table.publish(self.current.generation);
    }

    /// Records that a chain that has drifted could not be measured or placed. It stays as it is.
    pub fn not_placed(&mut self, name: &str, reason: &str, now: Nanos) {
        let message = format!("not placed anew: {reason}");
        self.table
            .event(now, Severity::Warning, Some(name), "ProfileFailed", &message);
    }

    fn enter_anew(&mut self, next: crate::Configuration, anew: &Anew, name: &str, now: Nanos) -> Result<(), String> {
        if *anew == Anew::Same {
            return Ok(());
        }
        if self.table.is_failed(name) {
            return Err("it has failed".to_owned());
        }
        let (Some(old), Some(new)) = (self.current.chains.get(name), next.chains.get(name)) else {
            return Err("it does not run any more".to_owned());
        };
        let steps = [Step::Replace {
            old: Arc::clone(old),
            new: Arc::clone(new),
        }];
        self.check(&next, &steps)
            .and_then(|()| self.enter_by(next, &steps, now))
            .map_err(|error| error.to_string())
    }
}
