//! The running server's side of a take-over.

use super::fields::FinalCounts;
use super::wire::{Message, PROTOCOL, memory_file, receive, send, send_descriptors, send_file};
use super::{socket_of, without_links};
use crate::control::SocketFile;
use crate::error::ServeError;
use crate::events::Severity;
use crate::generation::Store;
use crate::machine::{Machine, Refusal};
use crate::manager::Manager;
use crate::state::Paths;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tailwater_net::Nanos;

/// Longest wait for a short message that has begun to arrive. The server does nothing else meanwhile.
const MESSAGE_TIMEOUT: Duration = Duration::from_millis(200);
/// Longest wait for the beginning of the first message.
const FIRST_MESSAGE: Duration = Duration::from_secs(1);
/// Connections that are refused at a time.
const MOST_REFUSED: usize = 16;
/// Longest preparation of a new server.
const PREPARATION: Duration = Duration::from_secs(300);
/// Longest wait for the new server to import everything. No packet is processed meanwhile.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest message of a new server, in bytes.
const MOST_REQUEST: usize = 4096;

/// Socket on which a server offers its take-over.
pub(crate) struct TakeOverSocket {
    listener: UnixListener,
    /// Dropped before the listener.
    _file: SocketFile,
    /// State folder of this server, without links.
    state: PathBuf,
    /// Connection whose first message has not come.
    connected: Option<(UnixStream, Instant)>,
    /// New server that prepares itself, and the time of its connection.
    preparing: Option<(UnixStream, Instant)>,
    /// The cores are shared with it.
    shares_cores: bool,
}

/// New server, which has taken over.
#[derive(Debug)]
pub struct Successor {
    stream: UnixStream,
    process: u32,
}

impl Successor {
    /// Number of its process.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Sends the final counts.
    ///
    /// # Errors
    /// The process does not take them.
    pub fn send_counts(&self, counts: FinalCounts) -> io::Result<()> {
        let counts = Box::new(counts);
        send(&self.stream, &Message::Counts { counts }, IMPORT_TIMEOUT)
    }
}

impl TakeOverSocket {
    /// Listens on the socket of a server with these paths.
    ///
    /// # Errors
    /// Another server uses it, or the system refuses.
    pub(crate) fn bind(paths: &Paths) -> Result<TakeOverSocket, ServeError> {
        let (file, listener) = SocketFile::bind(&socket_of(&paths.socket), None)?;
        Ok(TakeOverSocket {
            listener,
            _file: file,
            state: without_links(&paths.state),
            connected: None,
            preparing: None,
            shares_cores: false,
        })
    }

    /// Answers new servers. Returns the one that has taken over, if one has: the machine has left everything to it.
    pub(crate) fn poll<M: Machine, S: Store>(&mut self, manager: &mut Manager<M, S>, now: Nanos) -> Option<Successor> {
        if let Some((stream, since)) = self.preparing.take() {
            match is_readable(&stream) {
                true => {
                    if let Some(successor) = commit(manager, stream, now) {
                        return Some(successor);
                    }
                }
                false => self.preparing = (since.elapsed() < PREPARATION).then_some((stream, since)),
            }
        }
        if let Some((stream, since)) = self.connected.take() {
            match is_readable(&stream) {
                true => {
                    let prepares = greet(manager, stream, &self.state).ok().flatten();
                    self.preparing = prepares.map(|new| (new, Instant::now()));
                }
                false => self.connected = (since.elapsed() < FIRST_MESSAGE).then_some((stream, since)),
            }
        }
        for _ in 0..MOST_REFUSED {
            let Ok((stream, _)) = self.listener.accept() else {
                break;
            };
            match self.preparing.as_ref().or(self.connected.as_ref()) {
                None => self.connected = Some((stream, Instant::now())),
                Some((other, _)) => {
                    let process = socket_peercred(other).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
                    refuse(&stream, &format!("process {process} is taking over"), true);
                }
            }
        }
        // A server that has taken over needs them to the end of this one.
        let shares = self.preparing.is_some();
        if std::mem::replace(&mut self.shares_cores, shares) != shares {
            manager.machine().share_cores(shares);
        }
        None
    }
}

fn is_readable(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::IN)];
    // An error is one of the next read, too.
    poll(&mut polled, Some(&Timespec::default())).map_or(true, |ready| ready > 0)
}

/// Refuses a take-over: `again` if repeating the same may help.
fn refuse(stream: &UnixStream, reason: &str, again: bool) {
    let reason = reason.to_owned();
    // It may be gone.
    let _ = send(stream, &Message::Refused { reason, again }, MESSAGE_TIMEOUT);
}

/// Answers the first message. Returns the stream if it was an offer.
fn greet<M: Machine, S: Store>(
    manager: &mut Manager<M, S>,
    stream: UnixStream,
    state: &Path,
) -> io::Result<Option<UnixStream>> {
    stream.set_nonblocking(false)?;
    let user = socket_peercred(&stream)?.uid;
    if !user.is_root() && user != geteuid() {
        refuse(
            &stream,
            "permission denied: expected root or the user of the running server",
            false,
        );
        return Ok(None);
    }
    let Message::Hello { protocol, server } = receive(&stream, MOST_REQUEST, MESSAGE_TIMEOUT)? else {
        return Err(ErrorKind::InvalidData.into());
    };
    let name = &manager.server().metadata.name;
    let reason = match (protocol == PROTOCOL, server == *name) {
        (false, _) => Some(format!(
            "the running server takes over by version {PROTOCOL} of the messages, this program by version {protocol}"
        )),
        (true, false) => Some(format!("the running server is \"{name}\", not \"{server}\"")),
        (true, true) => None,
    };
    let offered = match reason {
        Some(reason) => Err(Refusal::new(reason)),
        None => {
            let machine = manager.machine();
            machine.offer().and_then(|offer| Ok((offer, machine.descriptors()?)))
        }
    };
    match offered {
        Err(refusal) => {
            refuse(&stream, &refusal.to_string(), refusal.is_temporary());
            Ok(None)
        }
        Ok((machine, descriptors)) => {
            let offer = Message::Offer {
                protocol: PROTOCOL,
                process: std::process::id(),
                state: state.to_owned(),
                generation: Box::new(manager.stored_generation()),
                machine: Box::new(machine),
            };
            send(&stream, &offer, IMPORT_TIMEOUT)?;
            for descriptors in descriptors.values() {
                send_descriptors(&stream, descriptors)?;
            }
            Ok(Some(stream))
        }
    }
}

/// Hands everything over to a new server that is prepared. If it does not take it, this server goes on.
fn commit<M: Machine, S: Store>(manager: &mut Manager<M, S>, stream: UnixStream, now: Nanos) -> Option<Successor> {
    let generation = match receive(&stream, MOST_REQUEST, MESSAGE_TIMEOUT) {
        Ok(Message::Commit { generation }) => generation,
        // It has given up its preparation.
        _ => return None,
    };
    if generation != manager.generation() {
        refuse(
            &stream,
            "the configuration has changed meanwhile: start the take-over again",
            true,
        );
        return None;
    }
    let handed = manager.machine().hand_over();
    let (handed, flows) = match handed {
        Ok(handed) => handed,
        Err(refusal) => {
            refuse(&stream, &refusal.to_string(), refusal.is_temporary());
            failed(manager, &refusal.to_string(), now);
            return None;
        }
    };
    let sent = memory_file(&flows).and_then(|file| {
        let machine = Box::new(handed);
        send(&stream, &Message::Handed { machine }, IMPORT_TIMEOUT)?;
        send_file(&stream, &file)
    });
    drop(flows);
    match sent.and_then(|()| await_taken(&stream)) {
        Ok(process) => {
            manager.machine().leave();
            let message = format!("process {process} has taken over");
            manager.report(Severity::Normal, "TakenOver", &message, now);
            Some(Successor { stream, process })
        }
        Err(error) => {
            manager.machine().resume();
            failed(manager, &error.to_string(), now);
            None
        }
    }
}

fn failed<M: Machine, S: Store>(manager: &mut Manager<M, S>, reason: &str, now: Nanos) {
    let message = format!("a take-over failed, and this server goes on: {reason}");
    manager.report(Severity::Warning, "TakeOverFailed", &message, now);
}

/// Waits until the new server has taken everything.
fn await_taken(stream: &UnixStream) -> io::Result<u32> {
    let mut message = receive(stream, MOST_REQUEST, IMPORT_TIMEOUT);
    if message.is_err() {
        // From now on its message cannot be sent. One that was sent before is read.
        stream.shutdown(Shutdown::Read)?;
        message = receive(stream, MOST_REQUEST, MESSAGE_TIMEOUT);
    }
    match message {
        Ok(Message::Taken { process }) => Ok(process),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Err(io::Error::other("the new process has ended, or taken too long"))
        }
        Err(error) => Err(error),
        Ok(_) => Err(ErrorKind::InvalidData.into()),
    }
}
