//! The steering loop's core, without I/O: chains and their mappers, servers, and the rules that follow from them.
//!
//! Inputs, events of the switch and the time go in; commands for the switch and outputs come out. The mappers are the
//! simulator's ([`IngressBalancer`](tailwater_policy::server::IngressBalancer) and
//! [`IngressMapper`](tailwater_policy::server::IngressMapper)).
//!
//! A move of a row runs so: it is announced; where the servers prepare for moves, they do; the row is written; the old
//! server sends the flows' state; the move is complete. A balancer's moves run together, those of a drained server one
//! after another, and those of a lost server at once, in one bundle, with nothing to wait for.

mod adoption;
mod chain;
mod moving;
mod packets;
mod playback;
mod progress;
mod refused;
mod types;
mod writing;

pub use types::{
    ChainReport, ChainRoute, FromServers, Input, LossCause, MoveCause, Output, PortReference, Readiness, Server,
    ServerReport, SteeredMove, SteeringConfig, SteeringProblem, SwitchLimits, Unmatched,
};

use super::openflow::PortDescription;
use super::rows::{Mark, Ranks, Row, RuleSet};
use super::rule::{FlowMatch, MacAddress, PortNumber};
use super::switch::{SwitchCommand, SwitchEvent};
use chain::{Chain, Index, Stage};
use progress::{Refused, Writing};
use std::collections::{BTreeMap, HashMap, VecDeque};
use tailwater_net::Nanos;
use tailwater_policy::server::{Membership, ServerNumber};

/// Most servers of a rack, those that have left included.
const MAX_SERVERS: usize = 4096;

/// Something to do for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Command for the switch.
    Switch(SwitchCommand),
    /// Output for the ingress's owner.
    Output(Output),
}

/// State of a server.
#[derive(Debug)]
struct ServerState {
    server: Server,
    is_member: bool,
    /// Time of the last report, or since when one is awaited.
    heard: Nanos,
    is_silent: bool,
    /// Number of its switch port while that is up; kept while the switch is not connected.
    port: Option<PortNumber>,
    /// Last reported state, and whether its last row's departure was.
    membership: Membership,
    is_drained: bool,
    /// Rules have been written for these, which stay until rows have left.
    last_target: Option<(MacAddress, PortNumber)>,
}

/// A switch that is, or was, connected.
#[derive(Debug)]
struct SwitchView {
    is_connected: bool,
    /// Ports, or servers, have changed since the servers' ports were last looked up.
    has_new_ports: bool,
    ports: HashMap<PortNumber, PortDescription>,
    max_rules: usize,
    /// Room that was found where the switch refused rules.
    learnt_room: Option<usize>,
    /// Rules of the ingress in the switch.
    present: RuleSet,
    /// Number of other owners' rules, and those with priorities and matches that the ingress could want.
    foreign: usize,
    foreign_rules: BTreeMap<(u16, FlowMatch), u64>,
}

/// Packet that waits for its row.
#[derive(Debug)]
struct WaitingPacket {
    server: Index,
    /// Cookie of the rule that sent it.
    cookie: u64,
    frame: Vec<u8>,
    /// Number of the write that has its row.
    write: u64,
}

/// Core of the ingress.
#[derive(Debug)]
pub struct Steering {
    config: SteeringConfig,
    servers: Vec<ServerState>,
    numbers: HashMap<ServerNumber, Index>,
    chains: BTreeMap<String, Chain>,
    refused: BTreeMap<String, Refused>,
    ranks: Ranks,
    switch: Option<SwitchView>,
    writing: Writing,
    waiting: VecDeque<WaitingPacket>,
    waiting_bytes: usize,
    dropped: u64,
    steps: VecDeque<Step>,
    now: Nanos,
    next_decision: Nanos,
    next_audit: Nanos,
}

impl Steering {
    /// Creates an ingress without chains and servers. Nothing is written before the switch is connected for the first
    /// time, and what is known then decides which of its rows are kept.
    pub fn new(config: SteeringConfig, now: Nanos) -> Steering {
        let config = SteeringConfig {
            per_bundle: config.per_bundle.max(1),
            ..config
        };
        Steering {
            next_decision: now,
            next_audit: now,
            config,
            servers: Vec::new(),
            numbers: HashMap::new(),
            chains: BTreeMap::new(),
            refused: BTreeMap::new(),
            ranks: Ranks::default(),
            switch: None,
            writing: Writing::default(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            dropped: 0,
            steps: VecDeque::new(),
            now,
        }
    }

    /// Returns the next thing to do.
    pub fn step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Returns the number of packets for new prefixes that were dropped because too many waited.
    pub fn dropped_packets(&self) -> u64 {
        self.dropped
    }

    /// Returns the rows of a chain with their servers, as they are wanted in the switch.
    pub fn rows(&self, chain: &str) -> Vec<(Row, ServerNumber)> {
        let rows = self.chains.get(chain).into_iter().flat_map(|chain| &chain.rows);
        rows.map(|(row, server)| (*row, self.servers[*server].server.number))
            .collect()
    }

    /// Takes an input.
    pub fn input(&mut self, now: Nanos, input: Input) {
        self.advance(now);
        match input {
            Input::Chain(route) => self.set_chain(route),
            Input::ChainRemoved(name) => self.remove_chain(&name),
            Input::Server(server) => self.set_server(server),
            Input::ServerRemoved(number) => {
                if let Some(&index) = self.numbers.get(&number) {
                    self.servers[index].is_member = false;
                }
            }
            Input::Report(report) => self.report(report),
            Input::Prepared { chain, row } => {
                self.advance_moves(
                    Some((&chain, row)),
                    |stage| matches!(stage, Stage::Preparing(_)),
                    Stage::Writing(0),
                );
            }
            Input::Moved { chain, row } => {
                self.advance_moves(
                    Some((&chain, row)),
                    |stage| matches!(stage, Stage::Transferring(_)),
                    Stage::Done,
                );
            }
        }
        self.review();
    }

    /// Takes an event of the switch.
    pub fn switch_event(&mut self, now: Nanos, event: SwitchEvent) {
        self.advance(now);
        match event {
            SwitchEvent::Connected(state) => self.connected(state),
            SwitchEvent::Disconnected { reason } => {
                if let Some(switch) = &mut self.switch {
                    switch.is_connected = false;
                }
                self.write_lost();
                self.output(Output::Disconnected { reason });
            }
            SwitchEvent::Rules(rules) => self.read(rules),
            SwitchEvent::Written { id } => self.written(id),
            SwitchEvent::WriteFailed { id, error } => self.write_failed(id, error),
            SwitchEvent::PacketIn(packet) => self.packet_in(packet),
            SwitchEvent::Port(port) => {
                if let Some(switch) = &mut self.switch {
                    switch.has_new_ports = true;
                    switch.ports.insert(port.number, port);
                }
            }
            SwitchEvent::PortRemoved(number) => {
                if let Some(switch) = &mut self.switch {
                    switch.has_new_ports = true;
                    switch.ports.remove(&number);
                }
            }
        }
        self.review();
    }

    /// Lets time pass. Due at least once per [`SteeringConfig::interval`].
    pub fn tick(&mut self, now: Nanos) {
        self.advance(now);
        self.tell_refused();
        self.expire_moves();
        if now >= self.next_decision {
            self.next_decision = now + self.config.interval;
            self.set_rooms();
            // Moves that cannot be written are not planned. Lost servers are seen to elsewhere.
            if self.is_connected() {
                let names: Vec<String> = self.chains.keys().cloned().collect();
                names.iter().for_each(|name| self.decide(name));
            }
        }
        if let Some(audit) = self.config.audit
            && now >= self.next_audit
        {
            self.next_audit = now + audit;
            self.read_rules();
        }
        self.review();
    }

    /// Sets the time. If the ingress itself was stopped, reports wait in front of it: that time is nobody's silence.
    fn advance(&mut self, now: Nanos) {
        let stopped = now.saturating_sub(self.now);
        if self.config.lost_after.is_some_and(|bound| stopped.0 > bound.0 / 2) {
            for state in &mut self.servers {
                state.heard += stopped;
            }
        }
        self.now = now;
    }

    fn is_connected(&self) -> bool {
        self.switch.as_ref().is_some_and(|switch| switch.is_connected)
    }

    fn output(&mut self, output: Output) {
        self.steps.push_back(Step::Output(output));
    }

    fn reject(&mut self, what: String, why: String) {
        self.output(Output::Problem(SteeringProblem::Rejected { what, why }));
    }

    /// Sets the servers' parts in a chain.
    fn join(&self, chain: &mut Chain) -> bool {
        let mut has_changed = false;
        for index in 0..self.servers.len() {
            let number = self.servers[index].server.number;
            let cores = chain.route.servers.iter().find(|(server, _)| *server == number);
            if let (Some((_, cores)), chain::Mapper::Balanced(mapper)) = (cores, &mut chain.mapper) {
                mapper.set_cores(index as ServerNumber, *cores);
            }
            let membership = match (self.servers[index].membership, cores) {
                (membership, Some(_)) => membership,
                // The chain leaves a server that works: its flows' state can follow.
                (Membership::Open | Membership::Draining, None) if chain.uses(index) => Membership::Draining,
                (_, None) => Membership::Lost,
            };
            has_changed |= chain.set_membership(index, membership);
        }
        has_changed
    }

    /// Takes a new or changed server.
    fn set_server(&mut self, server: Server) {
        let heard = self.now;
        if let Some(switch) = &mut self.switch {
            switch.has_new_ports = true;
        }
        if let Some(&index) = self.numbers.get(&server.number) {
            let state = &mut self.servers[index];
            if !state.is_member {
                (state.is_member, state.heard, state.is_silent) = (true, heard, false);
            }
            if server.readiness != Readiness::Draining {
                state.is_drained = false;
            }
            state.server = server;
            self.writing.is_due = true;
            return;
        }
        if self.servers.len() >= MAX_SERVERS {
            return self.reject(
                format!("server {}", server.number),
                format!("expected at most {MAX_SERVERS} servers"),
            );
        }
        self.numbers.insert(server.number, self.servers.len());
        self.servers.push(ServerState {
            server,
            is_member: true,
            heard,
            is_silent: false,
            port: None,
            membership: Membership::Lost,
            is_drained: false,
            last_target: None,
        });
        let count = self.servers.len();
        self.chains.values_mut().for_each(|chain| chain.grow(count));
    }

    fn report(&mut self, report: ServerReport) {
        let Some(&index) = self.numbers.get(&report.server) else {
            return;
        };
        (self.servers[index].heard, self.servers[index].is_silent) = (self.now, false);
        for of_chain in report.chains {
            if let Some(chain) = self.chains.get_mut(&of_chain.chain) {
                chain.report(index, of_chain, self.now);
            }
        }
    }

    /// Finds what changed: servers that are lost or usable again, chains that can begin. Then writes.
    fn review(&mut self) {
        self.review_servers();
        self.start_chains();
        self.begin_moves();
        self.flush();
        self.report_drained();
    }

    fn review_servers(&mut self) {
        let Some(switch) = &mut self.switch else { return };
        let looks_up = switch.is_connected && std::mem::take(&mut switch.has_new_ports);
        let mut changed = Vec::new();
        for (index, state) in self.servers.iter_mut().enumerate() {
            if looks_up {
                let port = match &state.server.port {
                    PortReference::Number(number) => switch.ports.get(number),
                    PortReference::Name(name) => switch.ports.values().find(|port| port.name == *name),
                };
                state.port = port.filter(|port| port.is_up).map(|port| port.number);
            }
            if let Some(port) = state.port {
                let target = Some((state.server.mac, port));
                self.writing.is_due |= state.last_target != target;
                state.last_target = target;
            }
            let is_late = |bound: Nanos| self.now.saturating_sub(state.heard) > bound;
            state.is_silent |= self.config.lost_after.is_some_and(is_late);
            let cause = if !state.is_member || state.server.readiness == Readiness::NotReady {
                Some(LossCause::NotReady)
            } else if state.port.is_none() {
                Some(LossCause::PortDown)
            } else if state.is_silent {
                Some(LossCause::Silent)
            } else {
                None
            };
            let membership = match (cause, state.server.readiness) {
                (Some(_), _) => Membership::Lost,
                (None, Readiness::Draining) => Membership::Draining,
                (None, _) => Membership::Open,
            };
            let before = std::mem::replace(&mut state.membership, membership);
            if before != membership {
                changed.push((index, before, cause));
            }
        }
        if changed.is_empty() {
            // A chain's list of servers may have changed.
            return;
        }
        for (index, before, cause) in &changed {
            let server = self.servers[*index].server.number;
            match cause {
                Some(cause) => self.output(Output::ServerLost { server, cause: *cause }),
                None if *before == Membership::Lost => self.output(Output::ServerUsable(server)),
                None => {}
            }
        }
        let names: Vec<String> = self.chains.keys().cloned().collect();
        for name in names {
            let Some(mut chain) = self.chains.remove(&name) else {
                continue;
            };
            let has_changed = self.join(&mut chain);
            let is_lost = |index: &Index| chain.memberships[*index] == Membership::Lost;
            let loses = chain.rows.values().any(is_lost) || chain.moves.iter().any(|planned| is_lost(&planned.to));
            self.chains.insert(name.clone(), chain);
            if has_changed && loses {
                self.abort_moves(&name);
                self.decide(&name);
            }
        }
    }

    /// Starts chains that have a server now.
    fn start_chains(&mut self) {
        if self.switch.is_none() {
            return;
        }
        let now = self.now;
        for chain in self.chains.values_mut().filter(|chain| !chain.is_started) {
            if chain.memberships.contains(&Membership::Open) && chain.start(&BTreeMap::new(), now) {
                self.writing.is_due = true;
            }
        }
    }
}

#[cfg(test)]
mod tests;
