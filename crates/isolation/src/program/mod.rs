//! A program that is one function of a chain.
//!
//! The program connects, is configured, describes its function and waits until it is attached; from then on it
//! processes a batch in each of its turns and yields its core. See [`run`].

mod chain;
pub(crate) mod turns;

pub(crate) use chain::fingerprint;
pub use chain::run_function;

use crate::layout::{BOARD_BYTES, Board, SLATE_BYTES, Slate, VERSION};
use crate::memory::Memory;
use crate::message::{Description, FromProgram, FromServer, NoMessage};
use crate::socket::Socket;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use tailwater_nf::batch::MAX_BATCH;
use tailwater_nf::buffer::{BufferMemory, HEADROOM};
use tailwater_nf::chain::Alone;
use tailwater_nf::flow_table::{Mirror, MirrorConfig};
use tailwater_nf::function::NetworkFunction;
use turns::{Asking, Turns};

/// How a program is to run.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The configuration in the chain's spec, as JSON.
    pub config: String,
    /// Of how many processes of this function, which share nothing, this is which: the first number is below the
    /// second.
    pub part: [u16; 2],
}

/// A function, configured.
pub struct Configured {
    /// The function.
    pub function: Box<dyn NetworkFunction>,
    /// What is left to do after it has been dropped, at the end of the run.
    pub at_end: Box<dyn FnOnce() -> Result<(), String>>,
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The field; empty for all of it.
    pub field: String,
    /// What is wrong.
    pub message: String,
}

/// Why a program ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Nobody is there to run for.
    #[error("standard input is not the socket of a server: this program is started by one ({0})")]
    NoServer(io::Error),
    /// The server has gone, or the system refuses something.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The server speaks otherwise.
    #[error("from the server: {0}")]
    Message(#[from] NoMessage),
    /// The server sent something else than was due.
    #[error("from the server: expected {0}")]
    Expected(&'static str),
    /// The configuration is wrong; the server has been told.
    #[error("{}", .0.message)]
    Refused(Refusal),
}

/// Runs a function for the server at the other end of standard input, until the chain ends. `configure` makes the
/// function.
///
/// # Errors
/// There is no server, or it goes away, or the configuration is refused.
pub fn run(
    configure: impl FnOnce(&Configuration) -> Result<Configured, Refusal>,
) -> Result<(), ProgramError> {
    // No server, no program: should it be killed, nothing of it stays.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    let socket = Socket(io::stdin().as_fd().try_clone_to_owned()?);
    let hello = FromProgram::Hello { version: VERSION };
    socket
        .send(&hello.encode(), &[])
        .map_err(ProgramError::NoServer)?;
    let FromServer::Configure {
        version: VERSION,
        part,
        of,
        config,
    } = FromServer::decode(&socket.receive()?.0)?
    else {
        return Err(ProgramError::Expected("the configuration"));
    };
    let configuration = Configuration {
        config,
        part: [part, of],
    };
    let configured = configure(&configuration).and_then(|configured| {
        let function = &*configured.function;
        match function.tracks_connections() || function.lifetimes().is_some() {
            true => Err(Refusal {
                field: String::new(),
                message: format!(
                    "{} decides about connections for the whole chain, which it cannot do from a process of its own",
                    function.kind()
                ),
            }),
            false => Ok(configured),
        }
    });
    let Configured { function, at_end } = match configured {
        Ok(configured) => configured,
        Err(refusal) => {
            let Refusal { field, message } = refusal.clone();
            socket.send(&FromProgram::Refuse { field, message }.encode(), &[])?;
            return Err(ProgramError::Refused(refusal));
        }
    };
    let functions = [(function.kind().to_owned(), function)];
    let state_bytes = Alone::state_bytes(&functions);
    let [(name, function)] = functions;
    let description = describe(&*function, state_bytes);
    socket.send(&FromProgram::Describe(description).encode(), &[])?;
    let turns = attach(&socket, (name, function), state_bytes)?;
    socket.send(&FromProgram::Ready.encode(), &[])?;
    let last = turns.run();
    if let Err(message) = at_end() {
        socket.send(&FromProgram::Failed { message }.encode(), &[])?;
    }
    // Only now: the server goes on, and may end before this process does.
    last.done();
    Ok(())
}

/// What a function says of itself.
fn describe(function: &dyn NetworkFunction, state_bytes: usize) -> Description {
    let reasons = function.drop_reasons().iter().enumerate();
    Description {
        name: function.kind().to_owned(),
        state_bytes: state_bytes as u32,
        wants_flow_ends: function.wants_flow_ends(),
        opens_companions: function.opens_companions(),
        drop_reasons: reasons
            .map(|(i, name)| ((*name).to_owned(), function.loses(i as u8)))
            .collect(),
        notes: function
            .notes()
            .iter()
            .map(|&name| name.to_owned())
            .collect(),
    }
}

/// Waits until the chain needs the program, and maps what it is given.
///
/// One of the few functions with `unsafe` code.
fn attach(
    socket: &Socket,
    function: (String, Box<dyn NetworkFunction>),
    state_bytes: usize,
) -> Result<Turns, ProgramError> {
    let (message, files) = socket.receive()?;
    let FromServer::Attach {
        buffer_bytes,
        flows,
        round,
        files: count,
    } = FromServer::decode(&message)?
    else {
        return Err(ProgramError::Expected("where to run"));
    };
    let (buffer_bytes, capacity) = (buffer_bytes as usize, flows as usize);
    if files.len() != usize::from(count) || buffer_bytes <= HEADROOM {
        return Err(ProgramError::Expected(
            "as many files as it says, and room for frames",
        ));
    }
    let mut files = files.into_iter();
    let mut next = || files.next().ok_or(ProgramError::Expected("another file"));
    let board = Board(Memory::map(&next()?, BOARD_BYTES, false)?);
    let packets = Memory::map(&next()?, MAX_BATCH * buffer_bytes, true)?;
    let slate = Arc::new(Slate(Memory::map(&next()?, SLATE_BYTES, true)?));
    let has_state = state_bytes > 0;
    let in_front = match count - u8::from(has_state) {
        3 => None,
        _ => Some(Slate(Memory::map(&next()?, SLATE_BYTES, false)?)),
    };
    let flows = match has_state {
        false => None,
        true => {
            let config = MirrorConfig {
                capacity,
                state_bytes,
            };
            // SAFETY: the server gives these flows to the processes of this function only, and each flow's packets
            // to one at a time; in this one they are touched in its turn only, of which there is one thread.
            let mirror = unsafe { Mirror::open(&next()?, config)? };
            let asking: Box<dyn tailwater_nf::flow_table::Companions> =
                Box::new(Asking::new(Arc::clone(&slate)));
            Some((mirror, asking))
        }
    };
    let base = packets.base();
    let size = [buffer_bytes, buffer_bytes];
    // SAFETY: so many bytes were mapped, to read and write, and are kept by `packets`, the owner. Any bytes are
    // initialised. In this process they are reached through this memory's handles alone; other processes write
    // them in their turns. One that does so in another's can make that one misread a frame, which is bytes: what is
    // read of it is checked when it is read.
    let memory = unsafe { BufferMemory::lent(base, MAX_BATCH as u32, size, Arc::new(packets))? };
    // SAFETY: the batches are run in this process's turns only.
    let alone = unsafe { Alone::new(function, memory, flows) };
    Ok(Turns::new(
        board,
        slate,
        in_front,
        alone,
        buffer_bytes,
        round,
    ))
}
