//! Rules that a switch has: rows of an earlier ingress are taken over, and refused ones given up.

use super::chain::{self, Index, Stage};
use super::{Output, Row, Steering, SteeringProblem, SwitchView, WaitingPacket};
use crate::ingress::openflow::{ErrorMessage, FlowStatistics, PacketIn};
use crate::ingress::rows::{RuleSet, is_owned, row_of};
use crate::ingress::rule::{Action, MacAddress, PortNumber};
use crate::ingress::switch::SwitchState;
use std::collections::{BTreeMap, HashMap};
use tailwater_net::Nanos;

/// Time until a refused change is tried again.
const RETRY: Nanos = Nanos::from_secs(2);

impl Steering {
    /// Takes the state of a switch that is connected. Its rows are adopted the first time.
    pub(super) fn connected(&mut self, state: SwitchState) {
        let SwitchState {
            datapath,
            ports,
            rules,
            max_rules,
        } = state;
        let is_first = self.switch.is_none();
        self.write_lost();
        self.switch = Some(SwitchView {
            is_connected: true,
            has_new_ports: true,
            ports: ports.into_iter().map(|port| (port.number, port)).collect(),
            max_rules: usize::try_from(max_rules).unwrap_or(usize::MAX),
            learnt_room: None,
            present: RuleSet::new(),
            foreign: 0,
            foreign_rules: BTreeMap::new(),
        });
        self.take_rules(rules);
        self.next_audit = self.now + self.config.audit.unwrap_or_default();
        let adopted = if is_first { self.adopt() } else { 0 };
        let foreign = self.switch.as_ref().map_or(0, |switch| switch.foreign);
        self.writing.is_due = true;
        self.output(Output::Connected {
            datapath,
            adopted,
            foreign,
        });
    }

    /// Sorts the switch's rules by owner.
    pub(super) fn take_rules(&mut self, rules: Vec<FlowStatistics>) {
        let owner = self.config.owner;
        let Some(switch) = &mut self.switch else { return };
        switch.present.clear();
        switch.foreign_rules.clear();
        switch.foreign = 0;
        for statistics in rules {
            let rule = statistics.rule;
            let key = (rule.priority, rule.matching.clone());
            if is_owned(&rule, owner) {
                switch.present.insert(key, rule);
            } else {
                switch.foreign += 1;
                if rule.matching.other.is_empty() {
                    switch.foreign_rules.insert(key, rule.cookie);
                }
            }
        }
    }

    /// Takes over the rows of the switch. Returns their number.
    pub(super) fn adopt(&mut self) -> usize {
        // Servers are silent only if they are so from now on.
        for state in &mut self.servers {
            (state.heard, state.is_silent) = (self.now, false);
        }
        self.review_servers();
        let targets: HashMap<(MacAddress, PortNumber), Index> = self
            .servers
            .iter()
            .enumerate()
            .filter_map(|(index, state)| Some(((state.server.mac, state.port?), index)))
            .collect();
        let macs: HashMap<MacAddress, Index> = self
            .servers
            .iter()
            .enumerate()
            .map(|(index, state)| (state.server.mac, index))
            .collect();
        let mut found: HashMap<u32, BTreeMap<Row, Index>> = HashMap::new();
        let present = self.switch.iter().flat_map(|switch| switch.present.values());
        for rule in present {
            let Action::Server { mac, port } = &rule.action else {
                continue;
            };
            // The port of a server that is lost is not known, and may have changed.
            let server = targets.get(&(*mac, *port)).or_else(|| macs.get(mac));
            if let (Some((chain, row)), Some(server)) = (row_of(rule, self.config.owner), server) {
                found.entry(chain).or_default().insert(row, *server);
            }
        }
        let mut adopted = 0;
        let names: Vec<String> = self.chains.keys().cloned().collect();
        for name in names {
            let Some(mut chain) = self.chains.remove(&name) else {
                continue;
            };
            if let Some(rows) = found.get(&chain.identity) {
                chain.start(rows, self.now);
                adopted += chain.rows.len();
                self.join(&mut chain);
            }
            self.chains.insert(name.clone(), chain);
            self.decide(&name);
        }
        adopted
    }

    /// Handles the refusal of a write for want of room: rows that did not fit are given up.
    pub(super) fn table_is_full(&mut self) {
        let owner = self.config.owner;
        let Some(switch) = &mut self.switch else { return };
        let rules = switch.present.len();
        switch.learnt_room = Some(rules);
        let rows = switch.present.values().filter_map(|rule| row_of(rule, owner));
        let mut rows: Vec<(u32, Row)> = rows.collect();
        rows.sort_unstable();
        let names: Vec<String> = self.chains.keys().cloned().collect();
        for name in names {
            if let Some(chain) = self.chains.get_mut(&name) {
                let identity = chain.identity;
                chain.forget(|row| rows.binary_search(&(identity, row)).is_ok());
                // Moves that need new rows are off; they may be tried with others.
                for planned in &mut chain.moves {
                    let is_missing = rows.binary_search(&(identity, planned.row)).is_err();
                    if is_missing && matches!(planned.stage, Stage::Writing(_)) {
                        planned.stage = Stage::Waiting;
                        chain.rows.remove(&planned.row);
                    }
                }
            }
            let is_off = |planned: &chain::Move| planned.stage == Stage::Waiting;
            if self
                .chains
                .get(&name)
                .is_some_and(|chain| chain.moves.iter().any(is_off))
            {
                self.abort_moves(&name);
            }
        }
        self.output(Output::Problem(SteeringProblem::TableFull { rules }));
        // Packets whose rows did not fit go to the default server.
        self.waiting_bytes = 0;
        for WaitingPacket { cookie, frame, .. } in std::mem::take(&mut self.waiting) {
            self.packet_in(PacketIn {
                cookie,
                in_port: None,
                frame,
            });
        }
    }

    pub(super) fn write_failed(&mut self, id: u64, error: ErrorMessage) {
        if !self.write_ended(id) {
            return;
        }
        match error {
            ErrorMessage::TABLE_FULL => self.writing.is_table_full = true,
            ErrorMessage { kind, code } => {
                self.writing.retry_at = self.now + RETRY;
                self.output(Output::Problem(SteeringProblem::Refused { kind, code }));
            }
        }
        // Part of it may be in force.
        self.read_rules();
    }
}
