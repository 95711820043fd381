//! Writing of the wanted rules: one bundle at a time, and the next from what is wanted then.

use super::super::diff::{apply, changes};
use super::super::openflow::FlowStatistics;
use super::super::rows::{RuleSet, add_from_server, add_rows, add_unmatched, parts_of};
use super::super::rule::Action;
use super::super::switch::SwitchCommand;
use super::chain::{Chain, Mapper, Stage};
use super::progress::InFlight;
use super::{FromServers, Mark, Output, Row, Steering, SteeringProblem, Step, SwitchLimits, Unmatched};
use std::collections::{BTreeMap, BTreeSet};
use tailwater_net::Nanos;

impl Steering {
    /// Returns the room that the ingress's rules have in the switch.
    fn table(&self) -> usize {
        let Some(switch) = &self.switch else { return 0 };
        let free = switch.max_rules.saturating_sub(switch.foreign);
        free.min(self.config.table)
            .min(switch.learnt_room.unwrap_or(usize::MAX))
    }

    /// Returns the number of rules that can still be added.
    pub(super) fn room(&self) -> usize {
        self.table()
            .saturating_sub(self.writing.wanted)
            .saturating_sub(self.writing.unwritten)
    }

    /// Sets the number of rows that each mapper can still add.
    pub(super) fn set_rooms(&mut self) {
        let room = self.room();
        for chain in self.chains.values_mut() {
            let parts = parts_of(&chain.route.matching);
            chain.set_room(room / parts);
        }
    }

    /// Returns the rules that are wanted.
    fn wanted(&self) -> RuleSet {
        let owner = self.config.owner;
        let mut rules = RuleSet::new();
        match self.config.unmatched {
            Unmatched::Drop => add_unmatched(&mut rules, owner, Action::Drop),
            Unmatched::Normal => add_unmatched(&mut rules, owner, Action::Normal),
            Unmatched::Leave => {}
        }
        for state in self.servers.iter().filter(|state| state.is_member) {
            if let Some((_, port)) = state.last_target {
                let action = match &self.config.from_servers {
                    FromServers::Ports(ports) => Action::Ports(ports.clone()),
                    FromServers::Normal => Action::Normal,
                };
                add_from_server(&mut rules, owner, port, action);
            }
        }
        for chain in self.chains.values() {
            let rows = self.actions(chain);
            let identity = (owner, chain.identity);
            add_rows(&mut rules, identity, &chain.route.matching, &self.ranks, &rows);
        }
        rules
    }

    /// Returns a chain's rows with their actions.
    fn actions(&self, chain: &Chain) -> Vec<(Row, Action)> {
        let action = |server: usize| {
            let (mac, port) = self.servers[server].last_target?;
            Some(Action::Server { mac, port })
        };
        let rows = chain
            .rows
            .iter()
            .filter_map(|(row, server)| Some((*row, action(*server)?)));
        let mut rows: Vec<(Row, Action)> = rows.collect();
        let is_fixed = matches!(chain.mapper, Mapper::Fixed(_));
        if is_fixed && chain.is_started && !chain.rows.contains_key(&Row::DEFAULT) {
            // New prefixes are assigned with their first packet.
            rows.push((Row::DEFAULT, Action::Controller));
        }
        rows
    }

    /// Writes the next changes, if there are any and the switch has answered the last ones.
    pub(super) fn flush(&mut self) {
        let writing = &self.writing;
        let is_blocked = writing.in_flight.is_some() || writing.is_reading || self.now < writing.retry_at;
        if !writing.is_due || is_blocked || !self.is_connected() {
            return;
        }
        let mut wanted = self.wanted();
        (self.writing.wanted, self.writing.unwritten) = (wanted.len(), 0);
        let foreign = self.leave_foreign(&mut wanted);
        let table = self.table();
        self.report_limits(SwitchLimits {
            is_full: wanted.len() >= table,
            is_too_small: wanted.len() > table,
            foreign,
        });
        self.fit(&mut wanted, table);
        let Some(switch) = &self.switch else { return };
        let room = table.saturating_sub(switch.present.len());
        let next = changes(&switch.present, &wanted, room, self.config.per_bundle);
        self.writing.last_id += 1;
        let id = self.writing.last_id;
        for planned in self.chains.values_mut().flat_map(|chain| &mut chain.moves) {
            if planned.stage == Stage::Writing(0) {
                planned.stage = Stage::Writing(id);
            }
        }
        self.writing.is_due = false;
        if next.changes.is_empty() {
            return self.all_written(id);
        }
        self.writing.in_flight = Some(InFlight {
            id,
            changes: next.changes.clone(),
            is_last: next.left == 0,
            since: self.now,
        });
        let bundles = vec![next.changes];
        self.steps.push_back(Step::Switch(SwitchCommand::Write { id, bundles }));
    }

    /// Reports limits of the switch that have changed.
    fn report_limits(&mut self, limits: SwitchLimits) {
        if self.writing.limits != limits {
            self.writing.limits = limits.clone();
            self.output(Output::Limits(limits));
        }
    }

    /// Removes wanted rules whose place another owner's rule has. Returns one of those rules for each chain.
    fn leave_foreign(&mut self, wanted: &mut RuleSet) -> BTreeMap<String, String> {
        let mut of_chains = BTreeMap::new();
        let Some(switch) = &self.switch else {
            return of_chains;
        };
        let owner_of = |cookie| match Mark::of(cookie, self.config.owner) {
            Some(Mark::Row { chain, .. }) => {
                let found = self.chains.iter().find(|(_, known)| known.identity == chain);
                found.map(|(name, _)| name.clone()).unwrap_or_default()
            }
            _ => String::new(),
        };
        let mut found = BTreeSet::new();
        let mut problems = Vec::new();
        for (key, cookie) in &switch.foreign_rules {
            if let Some(rule) = wanted.remove(key) {
                let text = format!("priority {}, {}, cookie {cookie:#x}", key.0, key.1);
                of_chains.entry(owner_of(rule.cookie)).or_insert(text);
                found.insert((key.0, *cookie));
                problems.push(SteeringProblem::Foreign {
                    priority: key.0,
                    matching: key.1.to_string(),
                    cookie: *cookie,
                });
            }
        }
        if found != self.writing.foreign {
            self.writing.foreign = found;
            problems
                .into_iter()
                .for_each(|problem| self.output(Output::Problem(problem)));
        }
        of_chains
    }

    /// Removes the rules of the longest rows if a table has not enough room: their packets go by shorter rows.
    fn fit(&mut self, wanted: &mut RuleSet, room: usize) {
        let size = wanted.len();
        if size <= room {
            self.writing.too_large = None;
            return;
        }
        if self.writing.too_large != Some(size) {
            self.writing.too_large = Some(size);
            self.output(Output::Problem(SteeringProblem::TableTooSmall { wanted: size, room }));
        }
        let length = |rule: &super::super::rule::FlowRule| match Mark::of(rule.cookie, self.config.owner) {
            Some(Mark::Row { length, source, .. }) => u16::from(length) + u16::from(source.1),
            _ => 0,
        };
        let mut rules: Vec<_> = wanted.iter().map(|(key, rule)| (length(rule), key.clone())).collect();
        rules.sort_unstable();
        for (_, key) in &rules[room.min(rules.len())..] {
            wanted.remove(key);
        }
    }

    /// Takes the switch's answer to a write.
    pub(super) fn written(&mut self, id: u64) {
        let Some(in_flight) = self.writing.in_flight.take_if(|in_flight| in_flight.id == id) else {
            return;
        };
        let Some(switch) = &mut self.switch else { return };
        apply(&mut switch.present, &in_flight.changes);
        let rules = switch.present.len();
        let took = self.now.saturating_sub(in_flight.since);
        self.output(Output::RulesWritten {
            changes: in_flight.changes.len(),
            rules,
            took,
        });
        match in_flight.is_last {
            true => self.all_written(id),
            false => self.writing.is_due = true,
        }
    }

    /// Records that everything that was wanted as of a write is in force.
    fn all_written(&mut self, id: u64) {
        let now = self.now;
        let mut written = Vec::new();
        for (name, chain) in &mut self.chains {
            for planned in &mut chain.moves {
                let is_written = matches!(planned.stage, Stage::Writing(write) if write != 0 && write <= id);
                if is_written {
                    planned.stage = Stage::Transferring(now);
                    written.push((name.clone(), planned.clone()));
                }
            }
        }
        let has_moves = !written.is_empty();
        for (name, planned) in written {
            let moved = self.shown(&name, &planned);
            self.output(Output::MoveWritten(moved));
        }
        if has_moves {
            let transfer = self.config.transfer;
            self.end_transfers(transfer == Nanos::ZERO);
        }
        while self.waiting.front().is_some_and(|packet| packet.write <= id) {
            if let Some(packet) = self.waiting.pop_front() {
                self.waiting_bytes -= packet.frame.len();
                self.send_packet(packet.server, packet.frame);
            }
        }
    }

    /// Completes moves without anything to wait for: those of lost servers, or all.
    fn end_transfers(&mut self, all: bool) {
        let mut ended = Vec::new();
        for (name, chain) in &mut self.chains {
            for planned in &mut chain.moves {
                let has_no_state = planned.cause == super::MoveCause::Lost;
                if matches!(planned.stage, Stage::Transferring(_)) && (all || has_no_state) {
                    planned.stage = Stage::Done;
                    ended.push((name.clone(), planned.clone()));
                }
            }
            self.writing.is_due |= chain.complete();
        }
        for (name, planned) in ended {
            let moved = self.shown(&name, &planned);
            self.output(Output::MoveEnded { moved, in_time: true });
        }
        self.begin_moves();
    }

    /// Ends a write that failed. Returns `false` if it is not the one in progress.
    pub(super) fn write_ended(&mut self, id: u64) -> bool {
        let ended = self.writing.in_flight.take_if(|in_flight| in_flight.id == id);
        self.writing.is_due = true;
        self.rewrite_moves();
        ended.is_some()
    }

    /// Gives up a write whose answer will not come.
    pub(super) fn write_lost(&mut self) {
        self.writing.in_flight = None;
        self.writing.is_reading = false;
        self.writing.is_due = true;
        self.rewrite_moves();
    }

    /// Lets the next write have the moves of one that failed.
    fn rewrite_moves(&mut self) {
        for planned in self.chains.values_mut().flat_map(|chain| &mut chain.moves) {
            if matches!(planned.stage, Stage::Writing(_)) {
                planned.stage = Stage::Writing(0);
            }
        }
    }

    /// Requests the rules of the switch, unless a write is in progress, which would make them uncertain.
    pub(super) fn read_rules(&mut self) {
        if self.is_connected() && !self.writing.is_reading && self.writing.in_flight.is_none() {
            self.writing.is_reading = true;
            self.steps.push_back(Step::Switch(SwitchCommand::Read));
        }
    }

    /// Takes the rules of the switch.
    pub(super) fn read(&mut self, rules: Vec<FlowStatistics>) {
        if !std::mem::take(&mut self.writing.is_reading) {
            return;
        }
        let before = self.switch.as_mut().map(|switch| std::mem::take(&mut switch.present));
        self.take_rules(rules);
        let (Some(before), Some(switch)) = (before, &self.switch) else {
            return;
        };
        let present = &switch.present;
        if std::mem::take(&mut self.writing.is_table_full) {
            return self.table_is_full();
        }
        let differs = |key| before.get(key).map(|rule| &rule.action) != present.get(key).map(|rule| &rule.action);
        let keys: BTreeSet<_> = before.keys().chain(present.keys()).collect();
        let changed = keys.into_iter().filter(|key| differs(*key)).count();
        if changed > 0 {
            self.writing.is_due = true;
            if self.now >= self.writing.retry_at {
                self.output(Output::Problem(SteeringProblem::Tampered { rules: changed }));
            }
        }
    }
}
