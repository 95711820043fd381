//! Moves of rows: they begin in turn, wait for the servers, and end.

use super::chain::{self, Chain, Index, Stage};
use super::{MoveCause, Output, Row, ServerState, SteeredMove, Steering, Step};
use std::collections::HashMap;
use tailwater_net::Nanos;
use tailwater_policy::server::Membership;

impl Steering {
    /// Ends the moves of a chain, so that its mapper can decide at once.
    pub(super) fn abort_moves(&mut self, name: &str) {
        let Some(chain) = self.chains.get_mut(name) else { return };
        let (begun, off) = chain.abort();
        self.writing.is_due = true;
        for planned in begun.iter().filter(|planned| planned.stage != Stage::Done) {
            let moved = self.shown(name, planned);
            self.output(Output::MoveEnded { moved, in_time: false });
        }
        for planned in &off {
            let moved = self.shown(name, planned);
            self.output(Output::MoveCancelled(moved));
        }
    }

    /// Lets a chain's mapper decide.
    pub(super) fn decide(&mut self, name: &str) {
        let now = self.now;
        if self.switch.is_none() {
            return;
        }
        let Some(chain) = self.chains.get_mut(name) else { return };
        if !chain.decide(now) {
            return;
        }
        let planned: Vec<chain::Move> = chain.moves.clone();
        for planned in planned.iter().filter(|planned| planned.cause != MoveCause::Lost) {
            let moved = self.shown(name, planned);
            self.output(Output::MovePlanned(moved));
        }
    }

    pub(super) fn shown(&self, chain: &str, planned: &chain::Move) -> SteeredMove {
        SteeredMove {
            chain: chain.to_owned(),
            row: planned.row,
            from: self.servers[planned.from].server.number,
            to: self.servers[planned.to].server.number,
            cause: planned.cause,
        }
    }

    /// Lets moves begin whose turn it is.
    pub(super) fn begin_moves(&mut self) {
        let (now, prepares) = (self.now, self.config.prepare.is_some());
        for chain in self.chains.values_mut() {
            // One row of a drained server at a time.
            let is_active = |planned: &chain::Move| !matches!(planned.stage, Stage::Waiting | Stage::Done);
            let is_drain = |planned: &chain::Move| planned.cause == MoveCause::Drained;
            let mut is_draining = chain
                .moves
                .iter()
                .any(|planned| is_drain(planned) && is_active(planned));
            for planned in &mut chain.moves {
                if planned.stage != Stage::Waiting || is_drain(planned) && is_draining {
                    continue;
                }
                is_draining |= is_drain(planned);
                planned.stage = match prepares && planned.cause != MoveCause::Lost {
                    true => Stage::Preparing(now),
                    false => Stage::Writing(0),
                };
            }
            for planned in &chain.moves {
                if planned.stage == Stage::Writing(0) && chain.rows.get(&planned.row) != Some(&planned.to) {
                    chain.rows.insert(planned.row, planned.to);
                    self.writing.is_due = true;
                }
            }
        }
    }

    /// Moves on the moves of a row, or of all, that are at a stage.
    pub(super) fn advance_moves(&mut self, row: Option<(&str, Row)>, is_at: impl Fn(Stage) -> bool, to: Stage) {
        for (name, chain) in &mut self.chains {
            for planned in &mut chain.moves {
                let is_meant = row.is_none_or(|(chain, row)| chain == name && row == planned.row);
                if is_meant && is_at(planned.stage) {
                    planned.stage = to;
                    if to == Stage::Done {
                        let moved = SteeredMove {
                            chain: name.clone(),
                            row: planned.row,
                            from: self.servers[planned.from].server.number,
                            to: self.servers[planned.to].server.number,
                            cause: planned.cause,
                        };
                        let in_time = row.is_some() || planned.cause == MoveCause::Lost;
                        self.steps.push_back(Step::Output(Output::MoveEnded { moved, in_time }));
                    }
                }
            }
            self.writing.is_due |= chain.complete();
        }
    }

    /// Moves on what has waited for long enough.
    pub(super) fn expire_moves(&mut self) {
        let now = self.now;
        let (prepare, transfer) = (self.config.prepare.unwrap_or_default(), self.config.transfer);
        let late = move |since: Nanos, bound: Nanos| now.saturating_sub(since) >= bound;
        self.advance_moves(
            None,
            |stage| matches!(stage, Stage::Preparing(since) if late(since, prepare)),
            Stage::Writing(0),
        );
        self.advance_moves(
            None,
            |stage| matches!(stage, Stage::Transferring(since) if late(since, transfer)),
            Stage::Done,
        );
    }

    /// Reports draining servers that have no row left.
    pub(super) fn report_drained(&mut self) {
        if self.writing.is_due || self.writing.in_flight.is_some() {
            return;
        }
        let is_waiting = |state: &&ServerState| state.membership == Membership::Draining && !state.is_drained;
        if !self.servers.iter().any(|state| is_waiting(&state)) {
            return;
        }
        let with_rows: Vec<HashMap<Index, usize>> = self.chains.values().map(Chain::rows_by_server).collect();
        for index in 0..self.servers.len() {
            let moves = self.chains.values().flat_map(|chain| &chain.moves);
            let has_moves = moves.into_iter().any(|planned| planned.from == index);
            let has_rows = with_rows.iter().any(|rows| rows.contains_key(&index));
            if is_waiting(&&self.servers[index]) && !has_rows && !has_moves {
                self.servers[index].is_drained = true;
                let server = self.servers[index].server.number;
                self.output(Output::ServerDrained(server));
            }
        }
    }
}
