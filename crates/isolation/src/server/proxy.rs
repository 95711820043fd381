//! Proxy functions: stand in a worker's chain for functions in processes of their own.

use super::group::FunctionSlot;
use super::round::{Opened, Round};
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{CompanionCandidates, FlowStates, Lifetimes, NetworkFunction, NewFlow, RemoteState};
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
    has_state: bool,
    /// `true` if this function has state.
    keeps_state: bool,
    /// `true` for the first proxy if flows are connections, since a function of the chain tracks them.
    tracks_connections: bool,
    /// `true` if this function mixes flows.
    mixes_flows: bool,
    wants_flow_ends: bool,
    opens_companions: bool,
    /// `true` if this function opens companions.
    wishes: bool,
    durable: Option<u32>,
    piece_bytes: usize,
    /// Shared by all proxies of a worker, which run one at a time. `None` in a prototype.
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
    let substitutes = seats.iter().enumerate().map(|(k, seat)| {
        let description = &seat.description;
        let reasons = description.drop_reasons.iter();
        let names = reasons.clone().map(|(name, _)| &**name).chain([FAILED]);
        let function: Box<dyn NetworkFunction> = Box::new(ProxyFunction {
            k,
            kind: interned(&[&description.name])[0],
            drop_reasons: interned(&names.collect::<Vec<_>>()),
            losses: reasons.map(|(_, lost)| *lost).chain([true]).collect(),
            notes: interned(&description.counters.iter().map(|n| &**n).collect::<Vec<_>>()),
            counts: vec![0; description.counters.len()].into(),
            has_state: k == 0 && has_state,
            keeps_state: description.state_bytes > 0,
            tracks_connections: k == 0 && tracks_connections,
            mixes_flows: seat.program.demands.mixes_flows,
            wants_flow_ends: k == 0 && wants_flow_ends,
            opens_companions: k == 0 && opens_companions,
            wishes: description.opens_companions,
            durable: description.durable.filter(|_| description.state_bytes > 0),
            piece_bytes: description.piece_bytes as usize,
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
        match self.has_state {
            true => size_of::<Opened>(),
            false => 0,
        }
    }

    fn has_own_state(&self) -> bool {
        self.keeps_state
    }

    fn tracks_connections(&self) -> bool {
        self.tracks_connections
    }

    fn mixes_flows(&self) -> bool {
        self.mixes_flows
    }

    fn lifetimes(&self) -> Option<Arc<dyn Lifetimes>> {
        if !self.tracks_connections {
            return None;
        }
        let round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.as_ref()?.lifetimes()
    }

    fn wanted_batch(&self) -> Option<usize> {
        // The first proxy runs one round for all functions.
        if self.k > 0 {
            return None;
        }
        let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.as_mut().and_then(Round::wanted_batch)
    }

    fn opens_companions(&self) -> bool {
        self.opens_companions
    }

    fn wants_flow_ends(&self) -> bool {
        self.wants_flow_ends
    }

    fn new_flow(&mut self, packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        let place = packet.flow().unwrap_or(u32::MAX);
        self.with_round(|_, round, _| {
            let opened = flow.state::<Opened>();
            // A store of external state may have assigned a generation before.
            if opened[0] == 0 {
                *opened = [round.next_generation_of_new_flow(), place.into()];
            }
        });
        Verdict::Forward
    }

    fn flow_ended(&mut self, _key: &FlowKey, state: &[u8]) {
        let word = |at: usize| state[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
        let (generation, place) = (word(0), word(8) as u32);
        self.with_round(|_, round, _| round.end_flow(generation, place));
    }

    fn durable(&self) -> Option<u32> {
        self.durable
    }

    fn companion_candidates(&self, packet: &Packet, turn: u8, wish: &mut CompanionCandidates<'_>) -> u8 {
        if !self.wishes {
            return turn;
        }
        let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        let wished = round
            .as_mut()
            .and_then(|round| round.companion_candidates(self.k, packet, turn, wish));
        wished.unwrap_or_else(|| {
            wish.fail();
            turn
        })
    }

    fn remote_state(&mut self) -> Option<&mut dyn RemoteState> {
        Some(self)
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        let has_state = self.has_state;
        self.with_round(|k, round, counts| {
            if k == 0 {
                round.run(batch, flows, has_state);
            }
            round.tell(k, batch);
            round.read_notes(k, counts);
        });
    }

    fn before_flows_move(&mut self) {
        self.with_round(|_, round, _| round.deliver_flow_ends());
    }

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

impl RemoteState for ProxyFunction {
    fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    fn snapshots(&self) -> Option<Arc<FlowSnapshots>> {
        let round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.as_ref()?.images(self.k).cloned()
    }

    fn generation(&mut self, state: &mut [u8], place: u32) -> u64 {
        let mut given = 0;
        self.with_round(|_, round, _| given = round.next_generation());
        state[..8].copy_from_slice(&given.to_ne_bytes());
        state[8..16].copy_from_slice(&u64::from(place).to_ne_bytes());
        given
    }
}
