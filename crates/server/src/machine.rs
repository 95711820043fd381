//! Interface between the server and the data plane of its machine.

use crate::admission::placement::Capacity;
use crate::cache::ways::CacheWays;
use crate::chain::AppliedChain;
use crate::details::{ChainDetails, CoreDetails, PortDetails, TracedChain};
use crate::events::Severity;
use crate::take_over::fields::{FinalCounts, HandedOver, MachineOffer, TakenOver};
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::slo::Curves;
use tailwater_policy::server::{ClassLoad, ServerCounters};

/// Data plane of one machine, which runs chains.
///
/// The server calls it from one thread, and calls [`observe`](Machine::observe) several times a second. A call may take
/// as long as it needs to build a chain: the control API answers from what was observed before.
///
/// After an `Err`, the machine runs the same chains as before the call.
pub trait Machine {
    /// Returns the cores and the cache that chains share. Without cores, the machine chooses them itself and no chain
    /// is admitted by its profile.
    fn capacity(&self) -> Capacity {
        Capacity::default()
    }

    /// Returns the curves of a chain on this machine, from its profile, or `None` without a profile of it.
    ///
    /// # Errors
    /// A profile cannot be read or used.
    fn curves(&self, _: &AppliedChain) -> Result<Option<Arc<Curves>>, Refusal> {
        Ok(None)
    }

    /// Returns the core on which the next profile would be measured.
    ///
    /// # Errors
    /// There is no core that no chain needs, or this machine measures no profiles.
    fn profiling_core(&self) -> Result<u32, Refusal> {
        Err(Refusal::new("this machine measures no profiles"))
    }

    /// Begins to measure a chain's profile, on the returned core. Chains continue meanwhile. At most one measurement
    /// runs at a time.
    ///
    /// # Errors
    /// As of [`profiling_core`](Self::profiling_core), or it cannot begin.
    fn begin_profile(&mut self, _: &AppliedChain) -> Result<u32, Refusal> {
        self.profiling_core()
    }

    /// Returns the result of the measurement that was begun, once, when it has ended. After `Ok`,
    /// [`curves`](Self::curves) finds the profile.
    fn poll_profile(&mut self) -> Option<Result<(), Refusal>> {
        None
    }

    /// Ends the measurement that runs, if one does. Nothing is left of it.
    fn cancel_profile(&mut self) {}

    /// Returns whether a chain could be started or replaced while `beside`, the other chains of the next generation,
    /// run. Changes nothing.
    ///
    /// # Errors
    /// The chain is wrong, or does not fit: what binds, and what would fit.
    fn check(&self, chain: &AppliedChain, beside: &[&AppliedChain]) -> Result<(), Refusal>;

    /// Begins a change by several steps. Until it is [completed](Self::complete_change), no packet may go to a chain
    /// that would have it neither before nor after the change. Those of chains that have not started are dropped. With
    /// `is_first`, no chain has run before.
    fn begin_change(&mut self, is_first: bool) {
        let _ = is_first;
    }

    /// Completes a change, after its steps or after these were undone: all its chains get their packets from now on.
    fn complete_change(&mut self) {}

    /// Starts a chain. One of this name that failed or ended is forgotten; one that is still draining continues with
    /// this specification, or is a reason to refuse.
    ///
    /// # Errors
    /// It cannot be started.
    fn start(&mut self, chain: &AppliedChain) -> Result<(), Refusal>;

    /// Replaces the running chain `old` by another one, possibly of another name, at one time for each packet.
    ///
    /// # Errors
    /// The new one cannot be started; the old one continues.
    fn replace(&mut self, old: &str, chain: &AppliedChain) -> Result<(), Refusal>;

    /// Changes the running chain of this name. Its functions have the same names and kinds in the same order, and its
    /// port and match are the same, so that the functions' state can be kept.
    ///
    /// # Errors
    /// The change is not possible; the chain continues without it.
    fn change(&mut self, chain: &AppliedChain) -> Result<(), Refusal> {
        self.replace(&chain.name, chain)
    }

    /// Begins to end a chain: it gets no more packets, and ends when the last one has left.
    ///
    /// # Errors
    /// It cannot be ended, or there is none of this name.
    fn drain(&mut self, name: &str) -> Result<(), Refusal>;

    /// Returns all chains that have been started and not been reported as [ended](ChainState::Ended), in any order. A
    /// failed chain is reported until it is started again or drained.
    fn observe(&mut self) -> Vec<ChainObservation>;

    /// Work of its cores.
    fn cores(&self) -> Vec<CoreDetails>;

    /// Packets of its ports, in the order of their names.
    fn ports(&self) -> Vec<PortDetails> {
        Vec::new()
    }

    /// Returns what has happened since the last call and is not part of a chain's state, for the server's events.
    fn notes(&mut self) -> Vec<MachineNote> {
        Vec::new()
    }

    /// Returns what another process needs to continue this machine. Changes nothing.
    ///
    /// # Errors
    /// It cannot be continued.
    fn offer(&mut self) -> Result<MachineOffer, Refusal> {
        Err(Refusal::new("the data plane cannot be taken over"))
    }

    /// Returns copies of the descriptors that the last [`offer`](Machine::offer) has described, by the ports' names.
    ///
    /// # Errors
    /// This process has too many descriptors.
    fn descriptors(&mut self) -> Result<BTreeMap<String, Vec<OwnedFd>>, Refusal> {
        Ok(BTreeMap::new())
    }

    /// Pauses all ports, waits until no packet is in a chain, and exports the chains' flows, in the order of the
    /// chains' names, and the ports' positions. Everything stays, until [`resume`](Machine::resume) or
    /// [`leave`](Machine::leave).
    ///
    /// # Errors
    /// The machine goes on.
    fn hand_over(&mut self) -> Result<(HandedOver, Vec<Vec<u8>>), Refusal> {
        Err(Refusal::new("the data plane cannot be taken over"))
    }

    /// Goes on after [`hand_over`](Machine::hand_over).
    fn resume(&mut self) {}

    /// Leaves everything to another process after [`hand_over`](Machine::hand_over): flows do not end here.
    fn leave(&mut self) {}

    /// Imports the flows of another process's chains, and the positions of its ports, which are paused here. Returns
    /// the result, apart from the gap.
    ///
    /// # Errors
    /// They are wrong. The machine cannot be used then.
    fn import(&mut self, handed: &HandedOver, flows: Vec<(String, Vec<u8>)>) -> Result<TakenOver, Refusal> {
        let (_, _) = (handed, flows);
        Err(Refusal::new("the data plane cannot take over"))
    }

    /// Polls the ports, which were paused at `paused_at`. Returns the time since, in nanoseconds.
    fn begin(&mut self, paused_at: u64) -> u64 {
        let _ = paused_at;
        0
    }

    /// Adds the final counts of the process that was taken over to those of the chains and ports.
    fn add_counts(&mut self, counts: &FinalCounts) {
        let _ = counts;
    }

    /// Leaves the cores to another process now and then while a take-over is prepared, or no more.
    fn share_cores(&mut self, shares: bool) {
        let _ = shares;
    }

    /// Packets that waited while ports were paused.
    fn waited(&self) -> u64 {
        0
    }
}

/// Something that happened on the machine, for the server's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineNote {
    /// Importance.
    pub severity: Severity,
    /// Chain, if it is about one.
    pub chain: Option<String>,
    /// One word for programs.
    pub reason: &'static str,
    /// One line for people.
    pub message: String,
}

/// Reason for which the machine refuses a chain or a step, on one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    reason: String,
    kind: RefusalKind,
}

/// Kind of a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RefusalKind {
    /// The machine does not suffice, or the system refuses.
    #[default]
    Machine,
    /// Repeating the same may help.
    Temporary,
    /// The chain is wrong.
    Wrong,
}

impl Refusal {
    /// Refusal with this reason. Line breaks become spaces.
    pub fn new(reason: impl Into<String>) -> Refusal {
        let reason: String = reason.into();
        let parts: Vec<&str> = reason
            .split(['\n', '\r'])
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .collect();
        Refusal {
            reason: parts.join(" "),
            kind: RefusalKind::default(),
        }
    }

    /// Same, of something that may succeed if it is repeated.
    pub fn temporary(reason: impl Into<String>) -> Refusal {
        Refusal {
            kind: RefusalKind::Temporary,
            ..Refusal::new(reason)
        }
    }

    /// Same, of a chain that is wrong on any machine.
    pub fn wrong(reason: impl Into<String>) -> Refusal {
        Refusal {
            kind: RefusalKind::Wrong,
            ..Refusal::new(reason)
        }
    }

    /// Returns `true` if the chain is wrong.
    pub fn is_wrong(&self) -> bool {
        self.kind == RefusalKind::Wrong
    }

    /// Returns `true` if repeating the same may help.
    pub fn is_temporary(&self) -> bool {
        self.kind == RefusalKind::Temporary
    }
}

/// State of a chain in the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainState {
    /// Being built; it gets no packets yet.
    Starting,
    /// Processes packets.
    Running,
    /// Gets no more packets, and processes those that it has.
    Draining,
    /// Has processed its last packet after [`Machine::drain`]. Reported once.
    Ended,
    /// Ended without [`Machine::drain`], for this reason of one line.
    Failed(String),
}

/// State and measurements of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainObservation {
    /// Name of the chain.
    pub name: String,
    /// State.
    pub state: ChainState,
    /// Packets since the chain's start.
    pub packets: PacketCounts,
    /// Latency in the last window, if one has ended.
    pub latency: LatencyObservation,
    /// Latency since the chain's start.
    pub total: LatencyObservation,
    /// Rates in the last window, if one has ended.
    pub rates: Option<PacketRates>,
    /// Cores in the last window.
    pub cores: CoreUse,
    /// Work of its cores in the last window, if one has ended.
    pub work: Option<WindowWork>,
    /// Load since the chain's start, if a window has ended.
    pub load: Option<ChainLoad>,
    /// Figures in detail, if a window has ended.
    pub details: Option<Arc<ChainDetails>>,
    /// Switch of its traces, while it runs.
    pub traces: Option<TracedChain>,
    /// Part of the last-level cache that its core has, if the cache is divided.
    pub cache: Option<CacheWays>,
    /// Why flows cannot leave this server with all of their state, if they cannot: one line.
    pub bound_state: Option<String>,
}

/// Load of a chain in all windows that have ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainLoad {
    /// End of these windows, since the chain's start.
    pub measured: Nanos,
    /// Packets, and the time that its dedicated cores spent on them.
    pub counters: ServerCounters,
    /// Recent packets by class of flows, as [`FlowClass::by_source`](tailwater_policy::server::FlowClass::by_source)
    /// has them.
    pub classes: Arc<[ClassLoad]>,
}

/// Work of a chain's cores in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowWork {
    /// Windows before it since the chain's start.
    pub index: u64,
    /// Time spent on packets.
    pub busy: Nanos,
    /// Batches on which it was spent.
    pub batches: u64,
    /// Packets of these.
    pub packets: u64,
}

impl ChainObservation {
    /// Observation of a chain without packets or cores.
    pub fn new(name: &str, state: ChainState) -> ChainObservation {
        ChainObservation {
            name: name.to_owned(),
            state,
            packets: PacketCounts::default(),
            latency: LatencyObservation::default(),
            total: LatencyObservation::default(),
            rates: None,
            cores: CoreUse::default(),
            work: None,
            load: None,
            details: None,
            traces: None,
            cache: None,
            bound_state: None,
        }
    }
}

/// Packets of a chain: those that are neither delivered, dropped nor lost are in the chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Packets that arrived for the chain.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets that a function dropped.
    pub dropped: u64,
    /// Packets lost for lack of resources.
    pub lost: u64,
}

impl AddAssign for PacketCounts {
    fn add_assign(&mut self, other: PacketCounts) {
        self.offered += other.offered;
        self.delivered += other.delivered;
        self.dropped += other.dropped;
        self.lost += other.lost;
    }
}

/// Packets of a chain per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PacketRates {
    /// Packets that arrived for the chain.
    pub offered: f64,
    /// Packets sent.
    pub delivered: f64,
    /// Packets that a function dropped.
    pub dropped: f64,
    /// Packets lost for lack of resources.
    pub lost: f64,
    /// Dedicated cores in use: seconds of their time per second.
    pub cores: f64,
}

/// Latency of a chain in its last window, or since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencyObservation {
    /// Median, if packets were delivered.
    pub p50: Option<Nanos>,
    /// 99th percentile, if packets were delivered.
    pub p99: Option<Nanos>,
    /// Objective at its percentile: 0 if the chain has not been measured.
    pub objective: Nanos,
    /// Whether the objective was met at its percentile; `None` without a verdict.
    pub met: Option<bool>,
    /// Packets that the chain's port lost meanwhile and that are in no chain's books. There is no verdict of `true` if
    /// the objective would be missed with all of them.
    pub port_lost: u64,
    /// Packets that missed it, of those that no function dropped.
    pub missed: MissedShares,
}

/// Packets that missed an objective, as shares of those that no function dropped: 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MissedShares {
    /// Lost packets.
    pub lost: f64,
    /// Packets delivered too late.
    pub late: f64,
}

/// Cores of a chain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoreUse {
    /// Numbers of its dedicated cores; light chains may share one.
    pub dedicated: Vec<u32>,
    /// Auxiliary cores in use, on average over the last window.
    pub auxiliary: f64,
}

#[cfg(test)]
mod tests {
    use super::Refusal;

    #[test]
    fn a_refusal_is_one_line() {
        assert_eq!(
            Refusal::new("no core is left\r\n  fits: 1 core\n").to_string(),
            "no core is left fits: 1 core"
        );
    }
}
