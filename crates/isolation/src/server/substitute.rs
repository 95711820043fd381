//! What a worker's chain has in the place of functions that are in processes of their own.

use super::group::Seat;
use super::round::{Opened, Round};
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_net::FlowKey;
use tailwater_nf::batch::{Batch, Packet, Verdict};
use tailwater_nf::function::{FlowStates, NetworkFunction, NewFlow};

/// Why packets are lost that a process had in its hands when it failed, and those for which there was none.
pub const FAILED: &str = "process-failed";

/// A function in a process of its own, as the chain sees it. The first of a chain has the batches go round; each
/// tells what its own process made of them.
pub(super) struct Substitute {
    /// Its place among the functions.
    k: usize,
    kind: &'static str,
    drop_reasons: &'static [&'static str],
    losses: Vec<bool>,
    notes: &'static [&'static str],
    counts: Box<[u64]>,
    /// Whether any function of the chain has state; of the first function only.
    has_state: bool,
    wants_flow_ends: bool,
    opens_companions: bool,
    /// One for all functions of a worker, which does one thing at a time. None in a likeness.
    round: Arc<Mutex<Option<Round>>>,
}

/// Substitutes for all functions of a chain.
pub(super) fn all(
    seats: &[Seat],
    round: &Arc<Mutex<Option<Round>>>,
) -> Vec<(String, Box<dyn NetworkFunction>)> {
    let any = |what: fn(&Seat) -> bool| seats.iter().any(what);
    let [has_state, wants_flow_ends, opens_companions] = [
        any(|seat| seat.description.state_bytes > 0),
        any(|seat| seat.description.wants_flow_ends),
        any(|seat| seat.description.opens_companions),
    ];
    let substitutes = seats.iter().enumerate().map(|(k, seat)| {
        let description = &seat.description;
        let reasons = description.drop_reasons.iter();
        let names = reasons.clone().map(|(name, _)| &**name).chain([FAILED]);
        let function: Box<dyn NetworkFunction> = Box::new(Substitute {
            k,
            kind: kept(&[&description.name])[0],
            drop_reasons: kept(&names.collect::<Vec<_>>()),
            losses: reasons.map(|(_, lost)| *lost).chain([true]).collect(),
            notes: kept(&description.notes.iter().map(|n| &**n).collect::<Vec<_>>()),
            counts: vec![0; description.notes.len()].into(),
            has_state: k == 0 && has_state,
            wants_flow_ends: k == 0 && wants_flow_ends,
            opens_companions: k == 0 && opens_companions,
            round: Arc::clone(round),
        });
        (seat.program.function.clone(), function)
    });
    substitutes.collect()
}

/// A list of names that is kept for ever, once: there are few.
fn kept(names: &[&str]) -> &'static [&'static str] {
    static KEPT: Mutex<Vec<&'static [&'static str]>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(same) = kept.iter().find(|list| ***list == *names) {
        return same;
    }
    let list = names.iter().map(|name| &*String::leak((*name).to_owned()));
    let list: &'static [&'static str] = Vec::leak(list.collect());
    kept.push(list);
    list
}

impl Substitute {
    /// Uses the worker's rounds, with what is this function's.
    fn with_round(&mut self, use_it: impl FnOnce(usize, &mut Round, &mut [u64])) {
        let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(round) = &mut *round {
            use_it(self.k, round, &mut self.counts);
        }
    }
}

impl NetworkFunction for Substitute {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        self.drop_reasons
    }

    fn loses(&self, reason: u8) -> bool {
        self.losses
            .get(usize::from(reason))
            .copied()
            .unwrap_or(false)
    }

    fn notes(&self) -> &'static [&'static str] {
        self.notes
    }

    fn note_counts(&self) -> &[u64] {
        &self.counts
    }

    fn state_bytes(&self) -> usize {
        match self.has_state {
            true => size_of::<Opened>(),
            false => 0,
        }
    }

    fn wanted_batch(&self) -> Option<usize> {
        let round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.as_ref().map(Round::wanted_batch)
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
            *flow.state::<Opened>() = [round.give_birth(), place.into()];
        });
        Verdict::Forward
    }

    fn flow_ended(&mut self, _key: &FlowKey, state: &[u8]) {
        let word = |at: usize| state[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
        let opened = [word(0), word(8)];
        self.with_round(|_, round, _| round.end_flow(opened));
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

    fn finish(&mut self) {
        self.with_round(|_, round, _| round.begin_to_finish());
    }

    fn finished(&mut self) {
        self.with_round(|k, round, counts| {
            round.finish();
            round.read_notes(k, counts);
        });
    }
}
