//! State machine of a connection to a switch: handshake, reading, bundles and keep-alive.

use super::openflow::{
    BundleStep, ErrorMessage, FlowMod, FlowStatistics, Message, OpenFlowError, PortDescription, length_of,
};
use super::switch::{SwitchCommand, SwitchEvent, SwitchState};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use tailwater_net::Nanos;

/// Unread bytes for the peer beyond which requests of the peer are not answered, but end the connection.
const MAX_UNREAD: usize = 1 << 20;

/// Limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Most rules that are read from a switch, other owners' included.
    pub max_rules: usize,
    /// Most ports of a switch.
    pub max_ports: usize,
    /// Time without a message after which the switch is asked for one.
    pub echo_interval: Nanos,
    /// Time after that until the connection counts as lost. A switch that applies changes may answer nothing else
    /// meanwhile: then `reply_timeout` counts.
    pub echo_timeout: Nanos,
    /// Time within which a bundle is applied, or the rules of the switch are read.
    pub reply_timeout: Nanos,
}

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig {
            max_rules: 1 << 18,
            max_ports: 4096,
            echo_interval: Nanos::from_millis(500),
            echo_timeout: Nanos::from_millis(1500),
            reply_timeout: Nanos::from_secs(20),
        }
    }
}

/// Write in progress.
#[derive(Debug)]
struct Write {
    id: u64,
    /// Lists that wait.
    waiting: VecDeque<Vec<FlowMod>>,
    /// List that the switch has.
    current: Vec<FlowMod>,
    /// Number of its bundle, the transaction numbers of its changes, and that of the last request.
    bundle: u32,
    transactions: Range<u32>,
    last: u32,
    stage: Stage,
    error: Option<ErrorMessage>,
}

/// Progress of a list of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its messages are sent, and the bundle is to be closed.
    Adding,
    /// The bundle is to be applied.
    Committing,
    /// The bundle is to be discarded.
    Discarding,
    /// There is no bundle: a barrier follows.
    Barrier,
}

/// Connection to a switch, without the connection: bytes in, bytes and events out.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    events: VecDeque<SwitchEvent>,
    next_transaction: u32,
    next_bundle: u32,
    has_hello: bool,
    is_connected: bool,
    datapath: Option<u64>,
    ports: BTreeMap<u32, PortDescription>,
    has_ports: bool,
    /// Room in the first table, and whether all tables have been read.
    max_rules: u32,
    has_tables: bool,
    /// Rules read so far, and since when they are read.
    rules: Vec<FlowStatistics>,
    reading: Option<Nanos>,
    has_bundles: bool,
    write: Option<Write>,
    write_since: Nanos,
    now: Nanos,
    heard: Nanos,
    echo_sent: bool,
}

impl Session {
    /// Begins a connection: a hello is to be sent.
    pub fn new(config: SessionConfig, now: Nanos) -> Session {
        let mut session = Session {
            config,
            inbox: Vec::new(),
            outbox: Vec::new(),
            events: VecDeque::new(),
            next_transaction: 1,
            next_bundle: 1,
            has_hello: false,
            is_connected: false,
            datapath: None,
            ports: BTreeMap::new(),
            has_ports: false,
            max_rules: u32::MAX,
            has_tables: false,
            rules: Vec::new(),
            reading: Some(now),
            has_bundles: true,
            write: None,
            write_since: now,
            now,
            heard: now,
            echo_sent: false,
        };
        session.send(&Message::Hello(true));
        session
    }

    /// Returns the bytes to send.
    pub fn output(&self) -> &[u8] {
        &self.outbox
    }

    /// Removes bytes that have been sent.
    pub fn sent(&mut self, bytes: usize) {
        self.outbox.drain(..bytes);
    }

    /// Returns the next event.
    pub fn event(&mut self) -> Option<SwitchEvent> {
        self.events.pop_front()
    }

    /// Returns `true` if a write is in progress.
    pub fn is_writing(&self) -> bool {
        self.write.is_some()
    }

    /// Returns `true` once the handshake is complete.
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Takes bytes of the switch.
    ///
    /// # Errors
    /// If they are no OpenFlow 1.3, or more than the limits allow. The connection is then of no use.
    pub fn receive(&mut self, bytes: &[u8], now: Nanos) -> Result<(), OpenFlowError> {
        (self.now, self.heard, self.echo_sent) = (now, now, false);
        let mut inbox = std::mem::take(&mut self.inbox);
        inbox.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(length) = length_of(&inbox[at..])? {
            let Some(message) = inbox.get(at..at + length) else {
                break;
            };
            let (transaction, message) = Message::decode(message)?;
            self.handle(transaction, message)?;
            at += length;
        }
        inbox.drain(..at);
        self.inbox = inbox;
        Ok(())
    }

    /// Lets time pass.
    ///
    /// # Errors
    /// If the switch does not answer in time.
    pub fn tick(&mut self, now: Nanos) -> Result<(), OpenFlowError> {
        self.now = now;
        let silent = |request, time: Nanos| OpenFlowError::Silent {
            request,
            milliseconds: time.0 / 1_000_000,
        };
        let quiet = now.saturating_sub(self.heard);
        if self.write.is_none() && quiet > self.config.echo_interval + self.config.echo_timeout {
            return Err(silent("an echo request", self.config.echo_timeout));
        }
        let late = |since: Nanos| now.saturating_sub(since) > self.config.reply_timeout;
        if self.reading.is_some_and(late) {
            return Err(silent("a request for the switch's state", self.config.reply_timeout));
        }
        if self.write.is_some() && late(self.write_since) {
            return Err(silent("a change of rules", self.config.reply_timeout));
        }
        if quiet > self.config.echo_interval && !self.echo_sent && self.has_hello {
            self.echo_sent = true;
            self.send(&Message::EchoRequest(Vec::new()));
        }
        Ok(())
    }

    /// Takes a command. A write is only accepted if none is in progress, and the handshake is complete.
    ///
    /// # Panics
    /// If a write is in progress.
    pub fn command(&mut self, command: SwitchCommand) {
        if !self.is_connected {
            return;
        }
        match command {
            SwitchCommand::Write { id, bundles } => {
                assert!(self.write.is_none(), "one write at a time");
                self.write = Some(Write {
                    id,
                    waiting: bundles.into(),
                    current: Vec::new(),
                    bundle: 0,
                    transactions: 0..0,
                    last: 0,
                    stage: Stage::Committing,
                    error: None,
                });
                self.next_list();
            }
            SwitchCommand::PacketOut { action, frame } => {
                // One that does not fit would wait longer than the packet is worth.
                if self.outbox.len() < MAX_UNREAD {
                    self.send(&Message::PacketOut { action, frame });
                }
            }
            SwitchCommand::Read if self.reading.is_none() => {
                self.rules.clear();
                self.reading = Some(self.now);
                self.send(&Message::FlowsRequest);
            }
            SwitchCommand::Read => {}
        }
    }

    /// Sends a message and returns its transaction number.
    fn send(&mut self, message: &Message) -> u32 {
        let transaction = self.next_transaction;
        self.next_transaction = self.next_transaction.checked_add(1).unwrap_or(1);
        message.encode(transaction, &mut self.outbox);
        transaction
    }

    fn handle(&mut self, transaction: u32, message: Message) -> Result<(), OpenFlowError> {
        if !self.has_hello {
            return self.handle_hello(&message);
        }
        match message {
            Message::EchoRequest(bytes) => {
                if self.outbox.len() > MAX_UNREAD {
                    return Err(OpenFlowError::TooMany {
                        field: "unread echo replies",
                        limit: MAX_UNREAD,
                    });
                }
                Message::EchoReply(bytes).encode(transaction, &mut self.outbox);
            }
            Message::FeaturesReply(features) => self.datapath = Some(features.datapath),
            Message::Ports(ports) => {
                for port in ports.items {
                    self.set_port(port)?;
                }
                self.has_ports |= !ports.more;
            }
            Message::Tables(tables) => {
                for (_, rules) in tables.items.iter().filter(|(table, _)| *table == 0) {
                    self.max_rules = *rules;
                }
                self.has_tables |= !tables.more;
            }
            Message::Flows(flows) if self.reading.is_some() => {
                if self.rules.len() + flows.items.len() > self.config.max_rules {
                    return Err(OpenFlowError::TooMany {
                        field: "flow statistics",
                        limit: self.config.max_rules,
                    });
                }
                self.rules.extend(flows.items);
                if !flows.more {
                    self.reading = None;
                    if self.is_connected {
                        self.events
                            .push_back(SwitchEvent::Rules(std::mem::take(&mut self.rules)));
                    }
                }
            }
            Message::PortStatus { is_removed, port } => {
                let event = match is_removed {
                    true => {
                        self.ports.remove(&port.number);
                        SwitchEvent::PortRemoved(port.number)
                    }
                    false => {
                        self.set_port(port.clone())?;
                        SwitchEvent::Port(port)
                    }
                };
                if self.is_connected {
                    self.events.push_back(event);
                }
            }
            Message::PacketIn(packet) if self.is_connected => self.events.push_back(SwitchEvent::PacketIn(packet)),
            Message::Error(error) => return self.handle_error(transaction, error),
            Message::BundleControl { bundle, step } => self.handle_bundle(bundle, step),
            Message::BarrierReply => self.handle_barrier(transaction),
            _ => {}
        }
        self.connect();
        Ok(())
    }

    fn handle_hello(&mut self, message: &Message) -> Result<(), OpenFlowError> {
        match message {
            Message::Hello(true) => {}
            // A switch may refuse ours before it says hello.
            Message::Error(error) => {
                return Err(OpenFlowError::Refused {
                    request: "a hello of OpenFlow 1.3",
                    kind: error.kind,
                    code: error.code,
                });
            }
            _ => {
                return Err(OpenFlowError::Value {
                    field: "hello.versions",
                    expected: "a hello with OpenFlow 1.3 among its versions",
                    found: 0,
                });
            }
        }
        self.has_hello = true;
        for request in [
            Message::FeaturesRequest,
            Message::SetConfig,
            Message::PortsRequest,
            Message::TablesRequest,
            Message::FlowsRequest,
        ] {
            self.send(&request);
        }
        Ok(())
    }

    fn set_port(&mut self, port: PortDescription) -> Result<(), OpenFlowError> {
        self.ports.insert(port.number, port);
        match self.ports.len() > self.config.max_ports {
            true => Err(OpenFlowError::TooMany {
                field: "ports",
                limit: self.config.max_ports,
            }),
            false => Ok(()),
        }
    }

    /// Completes the handshake once all is read.
    fn connect(&mut self) {
        let Some(datapath) = self.datapath else { return };
        if self.is_connected || !self.has_ports || !self.has_tables || self.reading.is_some() {
            return;
        }
        self.is_connected = true;
        self.events.push_back(SwitchEvent::Connected(SwitchState {
            datapath,
            ports: self.ports.values().cloned().collect(),
            rules: std::mem::take(&mut self.rules),
            max_rules: self.max_rules,
        }));
    }

    fn handle_error(&mut self, transaction: u32, error: ErrorMessage) -> Result<(), OpenFlowError> {
        if !self.is_connected {
            // A switch need not report the size of its tables.
            let is_tables = error.kind == 1 && error.code == 2 && !self.has_tables;
            if is_tables {
                self.has_tables = true;
                self.connect();
                return Ok(());
            }
            return Err(OpenFlowError::Refused {
                request: "a request of the handshake",
                kind: error.kind,
                code: error.code,
            });
        }
        let Some(write) = &mut self.write else {
            return Ok(());
        };
        let is_last = transaction == write.last;
        if !is_last && !write.transactions.contains(&transaction) {
            return Ok(());
        }
        if write.stage == Stage::Adding && error.is_unknown_extension() {
            self.has_bundles = false;
            let again = std::mem::take(&mut write.current);
            write.waiting.push_front(again);
            self.next_list();
            return Ok(());
        }
        write.error.get_or_insert(error);
        if is_last && write.stage != Stage::Barrier {
            // The request to close, apply or discard failed itself.
            self.finish();
        }
        Ok(())
    }

    fn handle_bundle(&mut self, bundle: u32, step: BundleStep) {
        let Some(write) = &mut self.write else { return };
        if write.bundle != bundle {
            return;
        }
        match (write.stage, step) {
            (Stage::Adding, BundleStep::Closed) => {
                let step = match write.error {
                    None => BundleStep::Commit,
                    Some(_) => BundleStep::Discard,
                };
                let stage = match write.error {
                    None => Stage::Committing,
                    Some(_) => Stage::Discarding,
                };
                let transaction = self.send(&Message::BundleControl { bundle, step });
                if let Some(write) = &mut self.write {
                    (write.stage, write.last) = (stage, transaction);
                }
            }
            (Stage::Committing, BundleStep::Committed) if write.error.is_none() => self.next_list(),
            (Stage::Committing, BundleStep::Committed) | (Stage::Discarding, BundleStep::Discarded) => self.finish(),
            _ => {}
        }
    }

    fn handle_barrier(&mut self, transaction: u32) {
        let Some(write) = &self.write else { return };
        if write.stage != Stage::Barrier || transaction != write.last {
            return;
        }
        match write.error {
            None => self.next_list(),
            Some(_) => self.finish(),
        }
    }

    /// Sends the next list of changes, or completes the write.
    fn next_list(&mut self) {
        let Some(mut write) = self.write.take() else { return };
        let Some(list) = write.waiting.pop_front() else {
            self.write = Some(write);
            return self.finish();
        };
        self.write_since = self.now;
        // Transaction numbers of a list are in a row.
        if self.next_transaction > u32::MAX - 8 - list.len() as u32 {
            self.next_transaction = 1;
        }
        let begin = self.next_transaction;
        if self.has_bundles {
            let bundle = self.next_bundle;
            self.next_bundle = self.next_bundle.wrapping_add(1);
            self.send(&Message::BundleControl {
                bundle,
                step: BundleStep::Open,
            });
            for change in &list {
                let change = change.clone();
                self.send(&Message::BundleAdd { bundle, change });
            }
            self.send(&Message::BundleControl {
                bundle,
                step: BundleStep::Close,
            });
            (write.stage, write.bundle) = (Stage::Adding, bundle);
        } else {
            for change in &list {
                self.send(&Message::FlowMod(change.clone()));
            }
            self.send(&Message::BarrierRequest);
            write.stage = Stage::Barrier;
        }
        write.transactions = begin..self.next_transaction;
        write.last = self.next_transaction - 1;
        write.current = list;
        self.write = Some(write);
    }

    /// Ends the write.
    fn finish(&mut self) {
        let Some(write) = self.write.take() else { return };
        let id = write.id;
        self.events.push_back(match write.error {
            None => SwitchEvent::Written { id },
            Some(error) => SwitchEvent::WriteFailed { id, error },
        });
    }
}

#[cfg(test)]
mod tests;
