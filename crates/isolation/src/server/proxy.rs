//! Proxy functions: stand in a worker's chain for functions in processes of their own.

use super::outage::counter_name;
use super::round::{Opened, Round};
use super::slot::FunctionSlot;
use super::transfer::FlowTransfer;
use crate::message::Description;
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{
    CompanionCandidates, DurableState, Explanation, FlowEnds, FlowStates, FunctionProperties, Lifetimes,
    NetworkFunction, NewFlow, RemoteFunction, RemoteTransfer, RunEnd, TracedPacket,
};
use tailwater_net::FlowKey;
use tailwater_sdk::protocol::snapshots::FlowSnapshots;

/// Drop reason of packets that a process held when it failed, and of those that arrived while it had no process.
pub const FAILED: &str = "process-failed";

/// Proxy of an isolated function in the worker's chain. The first proxy of a chain runs the round for all of them; each
/// one reports its own function's verdicts.
pub(super) struct ProxyFunction {
    /// Index of the function in the chain.
    k: usize,
    kind: &'static str,
    drop_reasons: &'static [&'static str],
    losses: Vec<bool>,
    notes: &'static [&'static str],
    counts: Box<[u64]>,
    /// `true` for the first proxy if any function of the chain has state.
    declares_state: bool,
    /// `true` if this function has state.
    has_state: bool,
    /// The first proxy tracks connections and opens companions if any function of the chain does.
    properties: FunctionProperties,
    /// `true` for the first proxy if any function of the chain requires the ends of flows.
    wants_flow_ends: bool,
    /// `true` if this function inspects frames that are not IP.
    inspects_non_ip: bool,
    /// `None` if this function's state cannot be stored externally.
    durable: Option<ProxyState>,
    piece_bytes: usize,
    can_restart: bool,
    /// Flow state that can pass to another process of the server; `None` in a prototype.
    transfer: Option<Arc<FlowTransfer>>,
    /// Shared by all proxies of a worker, which run one at a time. `None` in a prototype.
    round: Arc<Mutex<Option<Round>>>,
}

/// State of an isolated function that can be stored externally. Its process converts and resumes it.
struct ProxyState {
    /// Index of the function in the chain.
    k: usize,
    format_version: u32,
    /// `true` if this function opens companions.
    opens_companions: bool,
    round: Arc<Mutex<Option<Round>>>,
}

/// Returns proxies for all functions of a chain. `connections`: its flows are connections.
pub(super) fn all(
    seats: &[FunctionSlot],
    connections: bool,
    round: &Arc<Mutex<Option<Round>>>,
) -> Vec<(String, Box<dyn NetworkFunction>)> {
    let any = |what: fn(&FunctionSlot) -> bool| seats.iter().any(what);
    let [has_state, tracks_connections, wants_flow_ends, opens_companions] = [
        any(|seat| seat.description.state_bytes > 0),
        any(|seat| seat.program.demands.tracks_connections),
        any(|seat| seat.description.wants_flow_ends),
        any(|seat| seat.description.opens_companions),
    ];
    let tracks_connections = tracks_connections || connections && has_state;
    let transfer = |k| {
        let round = round.lock().unwrap_or_else(PoisonError::into_inner);
        round.as_ref().and_then(|round| round.transfer(k)).cloned()
    };
    let substitutes = seats.iter().enumerate().map(|(k, seat)| {
        let description = &seat.description;
        let reasons = description.drop_reasons.iter();
        let counters = description.counters.iter().map(|name| &**name);
        let counters: Vec<&str> = counters.chain(counter_name(seat.program.on_failure)).collect();
        let names = reasons.clone().map(|(name, _)| &**name).chain([FAILED]);
        let function: Box<dyn NetworkFunction> = Box::new(ProxyFunction {
            k,
            kind: interned(&[&description.name])[0],
            drop_reasons: interned(&names.collect::<Vec<_>>()),
            losses: reasons.map(|(_, lost)| *lost).chain([true]).collect(),
            notes: interned(&counters),
            counts: vec![0; counters.len()].into(),
            declares_state: k == 0 && has_state,
            has_state: description.state_bytes > 0,
            properties: FunctionProperties {
                tracks_connections: k == 0 && tracks_connections,
                opens_companions: k == 0 && opens_companions,
                mixes_flows: seat.program.demands.mixes_flows,
                ..FunctionProperties::default()
            },
            wants_flow_ends: k == 0 && wants_flow_ends,
            inspects_non_ip: seat.program.demands.inspects_non_ip,
            durable: ProxyState::of(k, description, round),
            piece_bytes: description.piece_bytes as usize,
            can_restart: description.can_restart,
            transfer: transfer(k),
            round: Arc::clone(round),
        });
        (seat.program.function.clone(), function)
    });
    substitutes.collect()
}

/// Interns a list of names, which lives as long as the program: [`NetworkFunction`] returns names as static.
///
/// The leak is bounded by the different lists: the names of one function's program, which every process of it must
/// describe in the same way. New lists come only with new programs, at a start or a reload of the configuration.
fn interned(names: &[&str]) -> &'static [&'static str] {
    static INTERNED: Mutex<Vec<&'static [&'static str]>> = Mutex::new(Vec::new());
    let mut interned = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(same) = interned.iter().find(|list| ***list == *names) {
        return same;
    }
    let list = names.iter().map(|name| &*String::leak((*name).to_owned()));
    let list: &'static [&'static str] = Vec::leak(list.collect());
    interned.push(list);
    list
}

impl ProxyFunction {
    /// Calls `use_it` with this function's index, the worker's rounds and this function's counters.
    fn with_round(&mut self, use_it: impl FnOnce(usize, &mut Round, &mut [u64])) {
        let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(round) = &mut *round {
            use_it(self.k, round, &mut self.counts);
        }
    }
}

impl NetworkFunction for ProxyFunction {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        self.drop_reasons
    }

    fn is_loss(&self, reason: u8) -> bool {
        self.losses.get(usize::from(reason)).copied().unwrap_or(false)
    }

    fn counters(&self) -> &'static [&'static str] {
        self.notes
    }

    fn counter_values(&self) -> &[u64] {
        &self.counts
    }

    fn state_bytes(&self) -> usize {
        match self.declares_state {
            true => size_of::<Opened>(),
            false => 0,
        }
    }

    fn properties(&self) -> FunctionProperties {
        self.properties
    }

    fn explain(&self, traced: &TracedPacket<'_>, _: &mut FlowStates<'_>, text: &mut Explanation) {
        // Packets that a failed process held were not decided about.
        if traced.packet().verdict == Verdict::Drop((self.drop_reasons.len() - 1) as u8) {
            return;
        }
        let round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(round) = &*round {
            round.explain(self.k, traced.at, text);
        }
    }

    fn can_restart(&self) -> bool {
        self.can_restart
    }

    fn new_flow(&mut self, packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        let place = packet.flow().unwrap_or(u32::MAX);
        self.with_round(|_, round, _| {
            round.expect_companion_requests();
            let opened = flow.state::<Opened>();
            // A store of external state may have assigned a generation before.
            if opened[0] == 0 {
                *opened = [round.next_generation(), place.into()];
            }
        });
        Verdict::Forward
    }

    fn inspect_non_ip(&mut self, packet: &Packet, frame: &[u8]) -> Verdict {
        let mut verdict = Verdict::Forward;
        if self.inspects_non_ip {
            self.with_round(|k, round, counts| {
                verdict = round.inspect_non_ip(k, packet, frame);
                round.read_notes(k, counts);
            });
        }
        verdict
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        let has_state = self.declares_state;
        self.with_round(|k, round, counts| {
            if k == 0 {
                round.run(batch, flows, has_state);
            }
            round.tell(k, batch);
            round.read_notes(k, counts);
        });
    }

    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        match self.wants_flow_ends {
            true => Some(self),
            false => None,
        }
    }

    fn run_end(&mut self) -> Option<&mut dyn RunEnd> {
        Some(self)
    }

    fn lifetimes(&self) -> Option<Arc<dyn Lifetimes>> {
        if !self.properties.tracks_connections {
            return None;
        }
        let round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.as_ref()?.lifetimes()
    }

    fn durable(&mut self) -> Option<&mut dyn DurableState> {
        match &mut self.durable {
            Some(durable) => Some(durable),
            None => None,
        }
    }

    fn remote(&self) -> Option<&dyn RemoteFunction> {
        Some(self)
    }
}

impl FlowEnds for ProxyFunction {
    fn flow_ended(&mut self, _key: &FlowKey, state: &[u8]) {
        let word = |at: usize| state[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
        let (generation, place) = (word(0), word(8) as u32);
        self.with_round(|_, round, _| round.end_flow(generation, place));
    }

    fn before_flows_move(&mut self) {
        self.with_round(|_, round, _| round.deliver_flow_ends());
    }
}

impl RunEnd for ProxyFunction {
    fn drain(&mut self) {
        self.with_round(|_, round, _| round.begin_to_finish());
    }

    fn after_flow_ends(&mut self) {
        self.with_round(|k, round, counts| {
            round.finish();
            round.read_notes(k, counts);
        });
    }
}

impl ProxyState {
    fn of(k: usize, description: &Description, round: &Arc<Mutex<Option<Round>>>) -> Option<ProxyState> {
        let format_version = description.durable.filter(|_| description.state_bytes > 0)?;
        Some(ProxyState {
            k,
            format_version,
            opens_companions: description.opens_companions,
            round: Arc::clone(round),
        })
    }
}

impl DurableState for ProxyState {
    fn format_version(&self) -> u32 {
        self.format_version
    }

    fn companion_candidates(&self, packet: &Packet, turn: u8, candidates: &mut CompanionCandidates<'_>) -> u8 {
        if !self.opens_companions {
            return turn;
        }
        let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = round
            .as_mut()
            .and_then(|round| round.companion_candidates(self.k, packet, turn, candidates));
        answer.unwrap_or_else(|| {
            candidates.fail();
            turn
        })
    }
}

impl RemoteFunction for ProxyFunction {
    fn has_state(&self) -> bool {
        self.has_state
    }

    fn opens_companions(&self) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.opens_companions)
    }

    fn wanted_batch(&self) -> Option<usize> {
        // The first proxy runs one round for all functions.
        if self.k > 0 {
            return None;
        }
        let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.as_mut().and_then(Round::wanted_batch)
    }

    fn awaits_process(&self) -> bool {
        if self.k > 0 {
            return false;
        }
        let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.as_mut().is_some_and(Round::awaits_process)
    }

    fn before_sleep(&self) {
        if self.k == 0 {
            let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(round) = round.as_mut() {
                round.before_sleep();
            }
        }
    }

    fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    fn snapshots(&self) -> Option<Arc<FlowSnapshots>> {
        let round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.as_ref()?.images(self.k).cloned()
    }

    fn transfer(&self) -> Option<&dyn RemoteTransfer> {
        let transfer = self.transfer.as_deref()?;
        Some(transfer)
    }

    fn generation(&self, state: &mut [u8], slot: u32) -> u64 {
        let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = round.as_mut().map_or(0, Round::next_generation);
        state[..8].copy_from_slice(&generation.to_ne_bytes());
        state[8..16].copy_from_slice(&u64::from(slot).to_ne_bytes());
        generation
    }
}
