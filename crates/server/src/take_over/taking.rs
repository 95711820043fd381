//! The new server's side of a take-over.

use super::error::TakeOverError;
use super::fields::{FinalCounts, MachineOffer, TakenOver};
use super::wire::{MOST_MESSAGE, Message, PROTOCOL, read_flows, receive, receive_file, send};
use super::{differences, socket_of};
use crate::generation::{Store, StoredGeneration};
use crate::machine::Machine;
use crate::manager::Manager;
use crate::state::Paths;
use crate::status::Phase;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longest wait for an answer. The running server answers between two ticks, or once its chains are empty.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Running server that is to be taken over.
#[derive(Debug)]
pub struct Predecessor {
    stream: UnixStream,
    process: u32,
    generation: StoredGeneration,
    machine: MachineOffer,
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
        let stream = UnixStream::connect(&path).map_err(|source| TakeOverError::NoServer { path, source })?;
        let hello = Message::Hello {
            protocol: PROTOCOL,
            server: server.to_owned(),
        };
        send(&stream, &hello, ANSWER_TIMEOUT)?;
        match receive(&stream, MOST_MESSAGE, ANSWER_TIMEOUT)? {
            Message::Offer {
                process,
                generation,
                machine,
                ..
            } => Ok(Predecessor {
                stream,
                process,
                generation: *generation,
                machine: *machine,
                lose_state,
            }),
            other => Err(unexpected(other)),
        }
    }

    /// Machine of the running server.
    pub fn machine(&self) -> &MachineOffer {
        &self.machine
    }

    /// Its configuration.
    pub(crate) fn generation(&self) -> StoredGeneration {
        self.generation.clone()
    }

    /// Takes over. The manager has started all chains, on a machine whose ports are paused.
    pub(crate) fn take<M: Machine, S: Store>(self, manager: &mut Manager<M, S>) -> Result<Completed, TakeOverError> {
        let refused = |refusal: crate::Refusal| TakeOverError::Refused(refusal.to_string());
        let own = manager.machine().offer().map_err(refused)?;
        let mut lines = differences(&self.machine, &own, self.lose_state);
        if !lines.is_empty() {
            let snapshot = manager.snapshot();
            let failed = snapshot.chains.values().filter(|chain| chain.phase == Phase::Failed);
            lines.extend(failed.map(|chain| format!("chain {}: {}", chain.chain.name, chain.reason)));
            return Err(TakeOverError::Refused(lines.join("; ")));
        }
        let generation = self.generation.number;
        send(&self.stream, &Message::Commit { generation }, ANSWER_TIMEOUT)?;
        let handed = match receive(&self.stream, MOST_MESSAGE, ANSWER_TIMEOUT)? {
            Message::Handed { machine } => machine,
            other => return Err(unexpected(other)),
        };
        let flows = read_flows(receive_file(&self.stream, ANSWER_TIMEOUT)?, &handed)?;
        let imported = manager.machine().import(&handed, flows);
        let mut taken = imported.map_err(|refusal| TakeOverError::Failed(refusal.to_string()))?;
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
        Message::Refused { reason } => TakeOverError::Refused(reason),
        _ => TakeOverError::Failed("the running server sent an unexpected message".to_owned()),
    }
}
