//! Inputs and outputs of the steering loop, and its settings: plain data.

use super::super::rows::Row;
use super::super::rule::{MacAddress, PortNumber};
use std::collections::BTreeMap;
use tailwater_api::chain::Match;
use tailwater_net::Nanos;
use tailwater_policy::server::{ClassLoad, IngressConfig, ServerCounters, ServerNumber};

/// Settings of an ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteeringConfig {
    /// Number of the ingress, in the cookies of its rules: several ingresses can share a switch if their numbers
    /// differ.
    pub owner: u8,
    /// Way of packets that come from servers.
    pub from_servers: FromServers,
    /// Way of packets that no chain matches.
    pub unmatched: Unmatched,
    /// Most rules that the ingress writes. What the switch's table has room for is respected anyway.
    pub table: usize,
    /// Most changes in a bundle, at least 1.
    pub per_bundle: usize,
    /// Interval at which the mappers decide by the servers' reports.
    pub interval: Nanos,
    /// Share of its cores, in percent, to which the balancer fills a server at most. It may learn to fill it less.
    pub most_fill: u8,
    /// Time without a report after which a server is lost; `None` if only its port and its state count.
    pub lost_after: Option<Nanos>,
    /// Time that the servers have to prepare for a row's move before it is written; `None` if they need none, and
    /// [`Input::Prepared`] is not awaited.
    pub prepare: Option<Nanos>,
    /// Time after which a move counts as complete though [`Input::Moved`] did not come; zero if it is not awaited.
    pub transfer: Nanos,
    /// Interval at which the switch's rules are compared with what was written; `None` for never.
    pub audit: Option<Nanos>,
}

impl Default for SteeringConfig {
    fn default() -> Self {
        SteeringConfig {
            owner: 0,
            from_servers: FromServers::Normal,
            unmatched: Unmatched::Normal,
            table: 1 << 16,
            per_bundle: 4096,
            interval: Nanos::from_millis(20),
            most_fill: 97,
            lost_after: Some(Nanos::from_millis(150)),
            prepare: None,
            transfer: Nanos::from_secs(2),
            audit: Some(Nanos::from_secs(30)),
        }
    }
}

/// Way of packets that come from servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromServers {
    /// To each of these ports: the uplinks.
    Ports(Vec<PortNumber>),
    /// By the switch's normal processing.
    Normal,
}

/// Way of packets that no chain matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// They are dropped.
    Drop,
    /// The switch processes them as if it had no rules.
    Normal,
    /// The rules of others decide: the ingress writes none.
    Leave,
}

/// Server of the rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its number in the rack.
    pub number: ServerNumber,
    /// Address that packets for it get as destination.
    pub mac: MacAddress,
    /// Its switch port.
    pub port: PortReference,
    /// Whether it can have rows.
    pub readiness: Readiness,
}

/// Switch port, by number or name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortReference {
    /// OpenFlow number.
    Number(PortNumber),
    /// Name, as the switch has it. It keeps its meaning where the switch numbers its ports anew.
    Name(String),
}

/// Whether a server can have rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It can.
    Ready,
    /// It gets no more, and those that it has move one after another, with their flows' state.
    Draining,
    /// It cannot: those that it has move at once, without state.
    NotReady,
}

/// Chain whose traffic is steered.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainRoute {
    /// Name, unique in the rack.
    pub name: String,
    /// Its traffic. If several chains match a packet, the more specific match decides, as on the servers.
    pub matching: Match,
    /// Servers that it runs on, with the number of cores that it can have there.
    pub servers: Vec<(ServerNumber, u16)>,
    /// Mapper and its parameters. [`IngressConfig::rebalance`] selects the balancer, otherwise it is NetBlaze's. For
    /// the live ingress [`IngressConfig::flow_hash`] stands for the lowest bits of the source address, and
    /// [`IngressConfig::table`] is set by the ingress.
    pub mapping: IngressConfig,
}

/// Counters of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerReport {
    /// The server.
    pub server: ServerNumber,
    /// Counters of the chains that it runs. A report without chains still shows that the server lives.
    pub chains: Vec<ChainReport>,
}

/// Counters of a chain on a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainReport {
    /// Name of the chain.
    pub chain: String,
    /// Counters since any time; they may begin anew.
    pub counters: ServerCounters,
    /// Time of their measurement by any clock of the server; `None` if they are those of now.
    pub measured: Option<Nanos>,
    /// Dedicated cores that the chain has there now.
    pub dedicated: u16,
    /// Packets not long ago by class of flows (see [`class_of`](super::super::rows::class_of)). Only the balancer needs
    /// them.
    pub classes: Vec<ClassLoad>,
}

/// Input of the steering loop.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A chain is new, or has changed.
    Chain(ChainRoute),
    /// A chain is to be steered no more.
    ChainRemoved(String),
    /// A server is new, or has changed.
    Server(Server),
    /// A server has left the rack.
    ServerRemoved(ServerNumber),
    /// A server has reported.
    Report(ServerReport),
    /// The new server of a planned move can take its packets.
    Prepared {
        /// Chain of the move.
        chain: String,
        /// Row of the move.
        row: Row,
    },
    /// The flows of a written move are with the new server, with their state.
    Moved {
        /// Chain of the move.
        chain: String,
        /// Row of the move.
        row: Row,
    },
}

/// Move of a row from one server to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteeredMove {
    /// Chain.
    pub chain: String,
    /// Row whose flows move.
    pub row: Row,
    /// Server that they leave.
    pub from: ServerNumber,
    /// Their next server.
    pub to: ServerNumber,
    /// Cause of the move.
    pub cause: MoveCause,
}

/// Cause of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveCause {
    /// The mapper balances the load, or empties a server that is not needed.
    Balance,
    /// The old server is drained.
    Drained,
    /// The old server is lost, and the flows' state with it.
    Lost,
}

/// Cause of a server's loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// Its switch port is down, or the switch has no such port.
    PortDown,
    /// It has not reported in time.
    Silent,
    /// It is not ready, or has left the rack.
    NotReady,
}

/// Output of the steering loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The switch is connected, and its rules have been read.
    Connected {
        /// Identity of the switch.
        datapath: u64,
        /// Rows that were found in the switch and are kept as they are. Zero but for the first connection.
        adopted: usize,
        /// Rules of other owners in the first table.
        foreign: usize,
    },
    /// The connection to the switch was lost. Its rules stay in force.
    Disconnected {
        /// Cause, for people.
        reason: String,
    },
    /// A row is about to move: its new server should hold what comes before the state. Not sent for lost servers.
    MovePlanned(SteeredMove),
    /// A row's new rule is in force, and its packets go to the new server.
    MoveWritten(SteeredMove),
    /// A planned move is off: it was not written.
    MoveCancelled(SteeredMove),
    /// A move is complete.
    MoveEnded {
        /// The move.
        moved: SteeredMove,
        /// `false` if nothing reported that its state arrived in time.
        in_time: bool,
    },
    /// A server is lost: its rows move, if there is another server.
    ServerLost {
        /// The server.
        server: ServerNumber,
        /// Cause.
        cause: LossCause,
    },
    /// A server can have rows again, or for the first time.
    ServerUsable(ServerNumber),
    /// A draining server has no rows left.
    ServerDrained(ServerNumber),
    /// The switch has applied changes.
    RulesWritten {
        /// Rules that were added, replaced or deleted.
        changes: usize,
        /// Rules of the ingress in the switch after that.
        rules: usize,
        /// Time from the request to the switch's answer.
        took: Nanos,
    },
    /// A chain's route cannot be taken as it is. It is tried again when others change.
    ChainRefused {
        /// Name of the chain.
        chain: String,
        /// Cause.
        why: String,
        /// Its match of before stays in force; otherwise it has no packets.
        is_steered: bool,
    },
    /// A chain's route that was refused has been taken.
    ChainAccepted(String),
    /// Limits of the switch have changed.
    Limits(SwitchLimits),
    /// Something that an operator should see.
    Problem(SteeringProblem),
}

/// Limits of the switch that change which packets the ingress can steer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchLimits {
    /// There is no room for more rules: new prefixes share the default servers of their chains.
    pub is_full: bool,
    /// Not even the rules that are wanted fit: packets go by shorter rows, or by none.
    pub is_too_small: bool,
    /// Chains one of whose rules has its place taken by another owner's rule: that rule, as text. Under an empty name:
    /// a rule that is no chain's.
    pub foreign: BTreeMap<String, String>,
}

/// Problem that does not stop the ingress.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SteeringProblem {
    /// The switch has no room for more rules.
    #[error("the switch's table is full at {rules} rules of the ingress: new prefixes share a default server")]
    TableFull {
        /// Rules of the ingress in it.
        rules: usize,
    },
    /// Not even the fixed rules fit.
    #[error("the switch's table has room for {room} rules of the ingress, but {wanted} are needed")]
    TableTooSmall {
        /// Rules needed.
        wanted: usize,
        /// Room for them.
        room: usize,
    },
    /// A rule of another owner has the place of one of the ingress.
    #[error(
        "priority {priority}, {matching}: the switch has a rule of another owner (cookie {cookie:#x}), which stays"
    )]
    Foreign {
        /// Priority of both.
        priority: u16,
        /// Match of both, as text.
        matching: String,
        /// Cookie of the other rule.
        cookie: u64,
    },
    /// The switch refused a change for another reason.
    #[error("the switch refused a change of rules (OpenFlow error type {kind}, code {code}): it is tried again")]
    Refused {
        /// Type of the error.
        kind: u16,
        /// Code of the error.
        code: u16,
    },
    /// Rules of the ingress were changed by somebody else, and are restored.
    #[error("{rules} rules of the ingress were changed by somebody else: they are restored")]
    Tampered {
        /// Number of rules.
        rules: usize,
    },
    /// A server cannot be taken.
    #[error("{what}: {why}")]
    Rejected {
        /// Number of the server.
        what: String,
        /// Cause.
        why: String,
    },
}
