//! The new server's side of a take-over.

use super::error::TakeOverError;
use super::fields::{FinalCounts, MachineOffer, TakenOver};
use super::wire::{MOST_MESSAGE, Message, PROTOCOL, read_flows, receive, receive_descriptors, receive_file, send};
use super::{differences, socket_of, without_links};
use crate::generation::{Store, StoredGeneration};
use crate::machine::Machine;
use crate::manager::Manager;
use crate::state::Paths;
use crate::status::Phase;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest wait for an answer. The running server answers between two ticks, or once its chains are empty.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Running server that is to be taken over.
#[derive(Debug)]
pub struct Predecessor {
    stream: UnixStream,
    /// Its socket.
    socket: PathBuf,
    process: u32,
    generation: StoredGeneration,
    machine: MachineOffer,
    /// Descriptors of ports' sockets.
    descriptors: BTreeMap<String, Vec<OwnedFd>>,
    lose_state: bool,
}

/// Take-over that has taken place.
pub(crate) struct Completed {
    pub(crate) process: u32,
    pub(crate) taken: TakenOver,
    /// The old server's counts, unless it ended without sending them.
    pub(crate) counts: Option<FinalCounts>,
}

impl Predecessor {
    /// Connects to the running server of this name, and reads its offer. With `lose_state`, functions may lose their
    /// state.
    ///
    /// # Errors
    /// No such server runs, or it refuses.
    pub fn connect(paths: &Paths, server: &str, lose_state: bool) -> Result<Predecessor, TakeOverError> {
        let path = socket_of(&paths.socket);
        let stream = UnixStream::connect(&path).map_err(|source| match source.kind() {
            ErrorKind::PermissionDenied => TakeOverError::Refused(format!(
                "{}: {source}: expected root or the user of the running server",
                path.display()
            )),
            _ => TakeOverError::NoServer {
                path: path.clone(),
                source,
            },
        })?;
        let hello = Message::Hello {
            protocol: PROTOCOL,
            server: server.to_owned(),
        };
        send(&stream, &hello, ANSWER_TIMEOUT)?;
        match receive(&stream, MOST_MESSAGE, ANSWER_TIMEOUT)? {
            Message::Offer { state, .. } if state != without_links(&paths.state) => {
                Err(TakeOverError::Refused(format!(
                    "spec.stateDirectory: expected that of the running server, {}, found {}",
                    state.display(),
                    paths.state.display()
                )))
            }
            Message::Offer {
                process,
                generation,
                machine,
                ..
            } => {
                let mut descriptors = BTreeMap::new();
                for (name, port) in &machine.ports {
                    if let Some(sockets) = &port.sockets {
                        let count = sockets.descriptors as usize;
                        let received = receive_descriptors(&stream, count, ANSWER_TIMEOUT)?;
                        descriptors.insert(name.clone(), received);
                    }
                }
                Ok(Predecessor {
                    stream,
                    socket: path,
                    process,
                    generation: *generation,
                    machine: *machine,
                    descriptors,
                    lose_state,
                })
            }
            other => Err(unexpected(other)),
        }
    }

    /// Machine of the running server.
    pub fn machine(&self) -> &MachineOffer {
        &self.machine
    }

    /// Takes the descriptors of a port's sockets out; `None` if the port has none.
    pub fn take_descriptors(&mut self, port: &str) -> Option<Vec<OwnedFd>> {
        self.descriptors.remove(port)
    }

    /// Its configuration.
    pub(crate) fn generation(&self) -> StoredGeneration {
        self.generation.clone()
    }

    /// Takes over. The manager has started all chains, on a machine whose ports are paused. Until it has everything,
    /// `stop` leaves the running server as it is.
    pub(crate) fn take<M: Machine, S: Store>(
        self,
        manager: &mut Manager<M, S>,
        stop: &AtomicBool,
    ) -> Result<Completed, TakeOverError> {
        let socket = self.socket.clone();
        let taken = self.take_unless(manager, stop);
        // The other server's threads have ended, or go on alone.
        manager.machine().share_cores(false);
        if taken.is_err() {
            // The running server has the flows: they do not end here.
            manager.machine().leave();
        }
        taken.map_err(|error| match error {
            // It listens as long as it runs.
            TakeOverError::Failed(reason) if UnixStream::connect(&socket).is_err() => TakeOverError::Ended(reason),
            error => error,
        })
    }

    fn take_unless<M: Machine, S: Store>(
        self,
        manager: &mut Manager<M, S>,
        stop: &AtomicBool,
    ) -> Result<Completed, TakeOverError> {
        let go_on = || match stop.load(Ordering::Relaxed) {
            true => Err(TakeOverError::RefusedForNow("this process was interrupted".to_owned())),
            false => Ok(()),
        };
        let refused = |refusal: crate::Refusal| match refusal.is_temporary() {
            true => TakeOverError::RefusedForNow(refusal.to_string()),
            false => TakeOverError::Refused(refusal.to_string()),
        };
        let own = manager.machine().offer().map_err(refused)?;
        let mut lines = differences(&self.machine, &own, self.lose_state);
        if !lines.is_empty() {
            let snapshot = manager.snapshot();
            let failed = snapshot.chains.values().filter(|chain| chain.phase == Phase::Failed);
            lines.extend(failed.map(|chain| format!("chain {}: {}", chain.chain.name, chain.reason)));
            return Err(TakeOverError::Refused(lines.join("; ")));
        }
        go_on()?;
        let generation = self.generation.number;
        send(&self.stream, &Message::Commit { generation }, ANSWER_TIMEOUT)?;
        let handed = match receive(&self.stream, MOST_MESSAGE, ANSWER_TIMEOUT)? {
            Message::Handed { machine } => machine,
            other => return Err(unexpected(other)),
        };
        let flows = read_flows(receive_file(&self.stream, ANSWER_TIMEOUT)?, &handed)?;
        let imported = manager.machine().import(&handed, flows);
        let mut taken = imported.map_err(|refusal| TakeOverError::Failed(refusal.to_string()))?;
        go_on()?;
        let process = std::process::id();
        send(&self.stream, &Message::Taken { process }, ANSWER_TIMEOUT)?;
        // From here on the other server does not go on.
        taken.gap = manager.machine().begin(handed.paused_at);
        let counts = match receive(&self.stream, MOST_MESSAGE, ANSWER_TIMEOUT) {
            Ok(Message::Counts { counts }) => Some(*counts),
            _ => None,
        };
        if let Some(counts) = &counts {
            manager.machine().add_counts(counts);
        }
        Ok(Completed {
            process: self.process,
            taken,
            counts,
        })
    }
}

fn unexpected(message: Message) -> TakeOverError {
    match message {
        Message::Refused { reason, again: false } => TakeOverError::Refused(reason),
        Message::Refused { reason, again: true } => TakeOverError::RefusedForNow(reason),
        _ => TakeOverError::Failed("the running server sent an unexpected message".to_owned()),
    }
}
