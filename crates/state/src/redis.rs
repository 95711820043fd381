//! Redis backend: connections, users, commands.
//!
//! Each function of a chain has its own Redis user, `tw:{chain}:{function}@{instance}#{run}`. The user may access only
//! keys of its own space, and only with `MGET`, `SET` and `UNLINK`, also from scripts. Tailwater creates the users
//! with the credential in
//! the spec and a random password of this run. It creates them again if Redis has lost them. A later run of the same
//! instance deletes them, which closes the connections of an earlier run that is still alive.

mod access;
mod script;

pub use access::{Access, AccessError, Fenced, NoUsers};

use crate::keys::{self, Version};
use crate::link::{Failure, Store};
use crate::request::{Operation, Request};
use ::redis::{Cmd, Connection, ErrorKind, RedisError, ServerErrorKind, Value};
use script::{Changes, Reply};
use std::sync::Arc;

/// Connections of one thread, one per function.
pub struct RedisStore {
    access: Arc<Access>,
    connections: Vec<Connection>,
    /// Changes when Redis restarts.
    incarnation: u32,
    /// Create the users again even if they are usable.
    renew: bool,
    commands: Vec<u8>,
    replies: Vec<Vec<Reply>>,
    /// Request and entry index of each key, by function.
    places: Vec<Vec<(u32, u32)>>,
    changes: Changes,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl RedisStore {
    /// A store that connects on first use.
    pub fn new(access: Arc<Access>) -> RedisStore {
        let functions = access.functions().len();
        RedisStore {
            access,
            connections: Vec::new(),
            incarnation: 1,
            renew: false,
            commands: Vec::new(),
            replies: vec![Vec::new(); functions],
            places: vec![Vec::new(); functions],
            changes: Changes::default(),
            key: Vec::new(),
            value: Vec::new(),
        }
    }

    fn connect(&mut self) -> Result<(), NoUsers> {
        if !self.connections.is_empty() {
            return Ok(());
        }
        let incarnation = self.access.incarnation()?;
        if std::mem::take(&mut self.renew) {
            self.access.make_users()?;
        }
        self.connections = match self.access.connect() {
            Err(NoUsers::Redis(error)) if error.kind() == ErrorKind::AuthenticationFailed => {
                self.access.make_users()?;
                self.access.connect()?
            }
            connections => connections?,
        };
        self.incarnation = incarnation;
        Ok(())
    }

    /// Sends one function's commands.
    fn write(&mut self, function: usize, requests: &[Request]) {
        self.commands.clear();
        self.replies[function].clear();
        self.places[function].clear();
        let own = &self.access.functions()[function];
        let bit = 1u16 << function;
        let mut get: Option<(Cmd, usize)> = None;
        let writer = self.access.writer();
        self.changes.clear();
        for (r, request) in requests.iter().enumerate() {
            for (e, entry) in request.entries.iter().enumerate() {
                if entry.pieces & bit == 0 {
                    continue;
                }
                self.key.clear();
                self.key.extend_from_slice(own.prefix.as_bytes());
                keys::write_flow(&entry.key, &mut self.key);
                if matches!(entry.operation, Operation::Read | Operation::Probe) {
                    // In order: a key written before must not be read before that.
                    self.changes.flush(&mut self.commands, &mut self.replies[function]);
                    let (cmd, keys) = get.get_or_insert_with(|| (::redis::cmd("MGET"), 0));
                    cmd.arg(&self.key);
                    *keys += 1;
                    self.places[function].push((r as u32, e as u32));
                    continue;
                }
                // In order: a key read before must not be read after this write.
                if let Some((cmd, keys)) = get.take() {
                    cmd.write_packed_command(&mut self.commands);
                    self.replies[function].push(Reply::Values(keys));
                }
                self.places[function].push((r as u32, e as u32));
                if entry.operation == Operation::Update {
                    let version = Version {
                        stamp: entry.stamp,
                        writer,
                        companion: (entry.paired & bit != 0).then_some(entry.companion),
                    };
                    self.value.clear();
                    keys::write_value(&request.row(e)[own.piece.clone()], &version, &mut self.value);
                    self.changes.update(&self.key, &self.value, entry);
                } else {
                    self.changes.forget(&self.key, writer);
                }
                if self.changes.is_full() {
                    self.changes.flush(&mut self.commands, &mut self.replies[function]);
                }
            }
        }
        self.changes.flush(&mut self.commands, &mut self.replies[function]);
        if let Some((cmd, keys)) = get {
            cmd.write_packed_command(&mut self.commands);
            self.replies[function].push(Reply::Values(keys));
        }
    }

    /// Reads one function's replies. Returns a command's error only after all replies have been read.
    fn read(&mut self, function: usize, requests: &mut [Request]) -> Result<Option<RedisError>, RedisError> {
        let own = &self.access.functions()[function];
        let mut places = self.places[function].iter();
        let mut refused = None;
        for reply in &self.replies[function] {
            let value = match self.connections[function].recv_response() {
                Ok(Value::ServerError(error)) => Err(error.into()),
                other => other,
            };
            let value = match value {
                Err(error) if error.is_io_error() || error.kind() == ErrorKind::Parse => {
                    return Err(error);
                }
                other => other,
            };
            let keys = match reply {
                Reply::Changes(keys) | Reply::Values(keys) => *keys,
            };
            let asked: Vec<(u32, u32)> = places.by_ref().take(keys).copied().collect();
            match value {
                Err(error) => refused = refused.or(Some(error)),
                Ok(Value::Array(numbers)) if matches!(reply, Reply::Changes(_)) => {
                    for number in numbers {
                        let Value::Int(number) = number else { continue };
                        if let Some(&(r, e)) = usize::try_from(number).ok().and_then(|n| asked.get(n.wrapping_sub(1))) {
                            requests[r as usize].entries[e as usize].refused |= 1 << function;
                        }
                    }
                }
                Ok(Value::Array(values)) => {
                    for ((r, e), value) in asked.into_iter().zip(values) {
                        let Value::BulkString(value) = value else {
                            continue;
                        };
                        let request = &mut requests[r as usize];
                        let e = e as usize;
                        let found = match request.entries[e].operation {
                            Operation::Probe => true,
                            _ => {
                                let piece = &mut request.row_mut(e)[own.piece.clone()];
                                let stamp = keys::read_value(&value, piece);
                                let entry = &mut request.entries[e];
                                entry.stamp = entry.stamp.max(stamp.unwrap_or(0));
                                stamp.is_some()
                            }
                        };
                        request.entries[e].found |= u16::from(found) << function;
                    }
                }
                Ok(_) => {}
            }
        }
        Ok(refused)
    }

    fn exchange(&mut self, requests: &mut [Request]) -> Result<Option<RedisError>, NoUsers> {
        self.connect()?;
        for entry in requests.iter_mut().flat_map(|request| &mut request.entries) {
            (entry.found, entry.refused) = (0, 0);
            if entry.operation == Operation::Read {
                entry.stamp = 0;
            }
        }
        // Pipelining: all functions' commands are sent before the first reply is read.
        for function in 0..self.connections.len() {
            self.write(function, requests);
            if !self.commands.is_empty() {
                self.connections[function].send_packed_command(&self.commands)?;
            }
        }
        let mut refused = None;
        for function in 0..self.connections.len() {
            refused = refused.or(self.read(function, requests)?);
        }
        Ok(refused)
    }
}

impl Store for RedisStore {
    fn serve(&mut self, requests: &mut [Request]) -> Result<u32, Failure> {
        let connected = !self.connections.is_empty();
        match self.exchange(requests) {
            Ok(None) => Ok(self.incarnation),
            Ok(Some(error)) => {
                // The users were changed by another client.
                let not_allowed = ErrorKind::Server(ServerErrorKind::NoPerm);
                let in_script = error.to_string().contains("user executing the script");
                if error.kind() == not_allowed || in_script || error.code() == Some("NOAUTH") {
                    self.connections.clear();
                    self.renew = true;
                }
                Err(Failure {
                    message: error.to_string(),
                    ..Failure::default()
                })
            }
            Err(NoUsers::Fenced(fenced)) => {
                self.connections.clear();
                Err(Failure {
                    message: fenced.to_string(),
                    fenced: true,
                    ..Failure::default()
                })
            }
            Err(NoUsers::Redis(error)) => {
                self.connections.clear();
                Err(Failure {
                    message: error.to_string(),
                    connection_lost: connected && !error.is_timeout(),
                    ..Failure::default()
                })
            }
        }
    }
}
