//! Status of chains, with conditions as Kubernetes has them, and what the control API reads of a server.

use crate::admission::Promise;
use crate::chain::AppliedChain;
use crate::details::{CoreDetails, PortDetails};
use crate::events::EventRing;
use crate::machine::{ChainObservation, LatencyObservation};
use std::collections::BTreeMap;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Reason of an unknown objective: the chain's port lost packets that may be its own.
const PORT_LOSS: &str = "PortLoss";

/// Phase of a chain's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Checked; its step has not begun.
    Pending,
    /// Being built.
    Starting,
    /// Processes packets.
    Running,
    /// Processes its last packets.
    Draining,
    /// Drained on request; still in the configuration.
    Drained,
    /// Not running, against the configuration.
    Failed,
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// There is nothing to tell it by.
    Unknown,
}

/// Condition of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `Ready`, `ObjectiveMet` or `PromiseKept`.
    pub name: &'static str,
    /// Status.
    pub status: ConditionStatus,
    /// One word for programs.
    pub reason: &'static str,
    /// One line for people.
    pub message: String,
    /// Time of the last change of the status, since the Unix epoch.
    pub since: Nanos,
}

/// Promise that is not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenPromise {
    /// One word for programs: `Drifted`, `Reduced` or `Lost`.
    pub reason: &'static str,
    /// One line for people.
    pub message: String,
}

/// Status of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainStatus {
    /// The chain, as it was applied.
    pub chain: Arc<AppliedChain>,
    /// Phase of its life.
    pub phase: Phase,
    /// Reason of the phase: one line, possibly empty.
    pub reason: String,
    /// Time of the last change of the phase, since the Unix epoch.
    pub since: Nanos,
    /// Generation that last changed the chain.
    pub generation: u64,
    /// Conditions.
    pub conditions: [Condition; 3],
    /// Status of the condition `ObjectiveMet`, or the one before its port lost packets: losses hide it, and do not end
    /// it.
    pub known_objective: ConditionStatus,
    /// Reason for which its promise is not kept, if it is not.
    pub broken: Option<BrokenPromise>,
    /// Latest observation, if the machine has the chain.
    pub observation: Option<ChainObservation>,
    /// Number that rises with each change of phase, reason or conditions of any chain.
    pub revision: u64,
}

impl ChainStatus {
    /// Status of a chain in this phase.
    pub fn new(chain: Arc<AppliedChain>, phase: Phase, generation: u64, now: Nanos) -> ChainStatus {
        let mut status = ChainStatus {
            chain,
            phase,
            reason: String::new(),
            since: now,
            generation,
            conditions: [
                ready(phase, "", now),
                objective(&LatencyObservation::default(), 100.0, now),
                promise(None, false, now),
            ],
            known_objective: ConditionStatus::Unknown,
            broken: None,
            observation: None,
            revision: 0,
        };
        status.update_conditions(now);
        status
    }

    /// Enters a phase. Returns `true` if phase or reason change.
    pub fn enter(&mut self, phase: Phase, reason: &str, now: Nanos) -> bool {
        if self.phase == phase && self.reason == reason {
            return false;
        }
        if self.phase != phase {
            self.since = now;
        }
        self.phase = phase;
        reason.clone_into(&mut self.reason);
        self.update_conditions(now);
        true
    }

    /// Stores an observation. Returns `true` if a condition changes.
    pub fn store(&mut self, observation: ChainObservation, now: Nanos) -> bool {
        self.observation = Some(observation);
        self.update_conditions(now)
    }

    /// Condition `ObjectiveMet`.
    pub fn objective_met(&self) -> &Condition {
        &self.conditions[1]
    }

    /// Condition `PromiseKept`.
    pub fn promise_kept(&self) -> &Condition {
        &self.conditions[2]
    }

    /// Sets or removes the reason for which the promise is not kept. Returns `true` if the condition changes.
    pub fn set_broken(&mut self, broken: Option<BrokenPromise>, now: Nanos) -> bool {
        self.broken = broken;
        self.update_conditions(now)
    }

    /// Derives the conditions. Returns `true` if the status of one changes.
    fn update_conditions(&mut self, now: Nanos) -> bool {
        let latency = self.observation.as_ref().filter(|_| self.phase == Phase::Running);
        let latency = latency.map(|observation| observation.latency).unwrap_or_default();
        let mut is_changed = false;
        let broken = self.broken.as_ref().filter(|_| self.phase == Phase::Running);
        let is_promised = self.phase == Phase::Running && self.chain.placement.promise == Promise::Promised;
        let new = [
            ready(self.phase, &self.reason, now),
            objective(&latency, self.chain.settings.slo.percentile, now),
            promise(broken, is_promised, now),
        ];
        for (old, mut new) in self.conditions.iter_mut().zip(new) {
            match old.status == new.status && old.reason == new.reason {
                true => new.since = old.since,
                false => is_changed = true,
            }
            *old = new;
        }
        let objective = &self.conditions[1];
        if objective.reason != PORT_LOSS {
            self.known_objective = objective.status;
        }
        is_changed
    }
}

fn ready(phase: Phase, reason: &str, since: Nanos) -> Condition {
    let (status, word) = match phase {
        Phase::Running => (ConditionStatus::True, "Running"),
        Phase::Pending => (ConditionStatus::False, "Pending"),
        Phase::Starting => (ConditionStatus::False, "Starting"),
        Phase::Draining => (ConditionStatus::False, "Draining"),
        Phase::Drained => (ConditionStatus::False, "Drained"),
        Phase::Failed => (ConditionStatus::False, "Failed"),
    };
    Condition {
        name: "Ready",
        status,
        reason: word,
        message: reason.to_owned(),
        since,
    }
}

/// Condition `ObjectiveMet` of a chain with this latency, `since` this time since the Unix epoch. `percentile` percent
/// of the packets have to meet the objective.
pub fn objective(latency: &LatencyObservation, percentile: f64, since: Nanos) -> Condition {
    let (status, reason) = match latency.met {
        Some(true) => (ConditionStatus::True, "Met"),
        Some(false) => (ConditionStatus::False, "Missed"),
        None if latency.port_lost > 0 => (ConditionStatus::Unknown, PORT_LOSS),
        None => (ConditionStatus::Unknown, "NoVerdict"),
    };
    let message = match (latency.met, latency.p99) {
        (Some(met), p99) => {
            let p99 = p99.map_or("no packet delivered".to_owned(), |p99| format!("p99 {p99}"));
            let missed = if met {
                String::new()
            } else {
                missed(latency, percentile)
            };
            format!("{p99}, objective {}{missed}", latency.objective)
        }
        (None, _) if latency.port_lost > 0 => format!(
            "its port lost {} packets, each of which may be the chain's: permitted {} %",
            latency.port_lost,
            permitted(percentile)
        ),
        _ => String::new(),
    };
    Condition {
        name: "ObjectiveMet",
        status,
        reason,
        message,
        since,
    }
}

/// Packets that missed an objective: the 99th percentile shows neither lost packets nor other percentiles.
fn missed(latency: &LatencyObservation, percentile: f64) -> String {
    let shares = [(latency.missed.lost, "lost"), (latency.missed.late, "late")];
    let shares = shares.into_iter().filter(|(share, _)| *share > 0.0);
    let parts: Vec<String> = shares
        .map(|(share, word)| format!("{:.2} % {word}", 100.0 * share))
        .collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!(": {}, permitted {} %", parts.join(" and "), permitted(percentile)),
    }
}

/// Percentage of packets that may miss an objective. Rounded: 100 - 99.9 is not 0.1.
fn permitted(percentile: f64) -> f64 {
    (1e6 * (100.0 - percentile)).round() / 1e6
}

fn promise(broken: Option<&BrokenPromise>, is_promised: bool, since: Nanos) -> Condition {
    let (status, reason) = match broken {
        Some(broken) => (ConditionStatus::False, broken.reason),
        None if is_promised => (ConditionStatus::True, "Kept"),
        None => (ConditionStatus::Unknown, "NoPromise"),
    };
    Condition {
        name: "PromiseKept",
        status,
        reason,
        message: broken.map_or_else(String::new, |broken| broken.message.clone()),
        since,
    }
}

/// Applies that were requested, without those that only check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applies {
    /// Those that took effect or changed nothing.
    pub accepted: u64,
    /// Those that were wrong, refused or undone.
    pub refused: u64,
}

/// State of a server at one time, as the control API reads it.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Name of the server.
    pub server: String,
    /// Time of its start, since the Unix epoch.
    pub started: Nanos,
    /// Number of the current generation.
    pub generation: u64,
    /// Chains by name: those of the configuration, and those that are draining.
    pub chains: BTreeMap<String, Arc<ChainStatus>>,
    /// Its cores.
    pub cores: Arc<[CoreDetails]>,
    /// Time at which their work was read, since the Unix epoch.
    pub cores_read: Nanos,
    /// Its ports, in the order of their names.
    pub ports: Arc<[PortDetails]>,
    /// Applies so far.
    pub applies: Applies,
    /// Latest events.
    pub events: EventRing,
}

impl Snapshot {
    /// Number of chains in this phase.
    pub fn count(&self, phase: Phase) -> usize {
        self.chains.values().filter(|chain| chain.phase == phase).count()
    }

    /// Returns `true` if every chain of the configuration runs, or is drained on request.
    pub fn is_ready(&self) -> bool {
        let waits = |phase| matches!(phase, Phase::Pending | Phase::Starting | Phase::Failed);
        // Without a name, nothing has been published yet.
        !self.server.is_empty() && !self.chains.values().any(|chain| waits(chain.phase))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::MissedShares;

    /// It read `p99 4.62ms, objective 5ms`.
    #[test]
    fn a_missed_objective_names_the_packets_that_missed_it() {
        let message = |p99: Option<u64>, lost: f64, late: f64, percentile: f64| {
            let latency = LatencyObservation {
                p99: p99.map(Nanos),
                objective: Nanos(5_000_000),
                met: Some(false),
                missed: MissedShares { lost, late },
                ..LatencyObservation::default()
            };
            objective(&latency, percentile, Nanos::ZERO).message
        };
        assert_eq!(
            message(Some(4_620_000), 0.0125, 0.0, 99.0),
            "p99 4.62ms, objective 5ms: 1.25 % lost, permitted 1 %"
        );
        assert_eq!(
            message(Some(4_620_000), 0.0, 0.005, 99.9),
            "p99 4.62ms, objective 5ms: 0.50 % late, permitted 0.1 %"
        );
        assert_eq!(
            message(Some(7_000_000), 0.5, 0.25, 99.0),
            "p99 7ms, objective 5ms: 50.00 % lost and 25.00 % late, permitted 1 %"
        );
        assert_eq!(
            message(None, 1.0, 0.0, 99.0),
            "no packet delivered, objective 5ms: 100.00 % lost, permitted 1 %"
        );
    }
}
