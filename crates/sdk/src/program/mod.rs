//! Program that runs one function of a chain in a process of its own.
//!
//! A server starts it with a socket as its standard input. It reads its configuration, describes its function, and
//! waits until it is attached. From then on it processes one batch in each of its [turns](Turns) and yields its core.
//! See [`serve`].

mod flows;
mod instance;
mod joining;
mod stored;
mod turns;
mod unattached;

pub use instance::{Instance, UnattachedInstance};
pub use joining::SOCKET_VARIABLE;
pub use stored::StoredFlows;
pub use turns::{LastTurn, TurnFunction, TurnPacket, TurnVerdict, Turns, YIELDS};
pub use unattached::{AttachedMemory, Refusal, UnattachedFunction};

use crate::abi;
use crate::host::FunctionDescription;
use crate::protocol::layout::{
    LEAST_RESPONSE_AREA_BYTES, MAX_BATCH, REQUEST_AREA_BYTES, RESPONSE_AREA_BYTES, RequestArea, ResponseArea, VERSION,
};
use crate::protocol::memory::Memory;
use crate::protocol::message::{DecodeError, FromProgram, FromServer};
use crate::protocol::socket::Socket;
use crate::sys;
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tailwater_net::Nanos;

/// Time a replacement process spends mapping pages of flow memory, while its packets are lost: enough for gigabytes in
/// huge pages. Remaining pages are mapped on the first packet of a flow in them.
const POPULATE_TIME_OF_REPLACEMENT: Duration = Duration::from_micros(300);

/// Share of a function's work that one of its processes has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessPart {
    /// Index of the process, from 0.
    pub index: u16,
    /// Number of processes of the function.
    pub of: u16,
}

/// Configuration of a program.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Configuration from the chain's spec, as JSON.
    pub config: String,
    /// Part of this process. The function's processes share nothing but `shared_counters`.
    pub part: ProcessPart,
    /// Memory file with the counters these processes share, zero at first, if the server provides one.
    pub shared_counters: Option<Arc<File>>,
}

/// Reasons for which a program ends early.
#[derive(Debug)]
pub enum ProgramError {
    /// Standard input is not connected to a server.
    NoServer(io::Error),
    /// The server has disconnected, or a system call failed.
    System(io::Error),
    /// A message could not be decoded.
    Message(DecodeError),
    /// The server sent an unexpected message.
    Expected(&'static str),
    /// The function cannot be run; the server has been notified.
    Refused(Refusal),
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgramError::NoServer(error) => write!(
                f,
                "expected the socket of a server as standard input ({error}): this program is started by `tailwater \
                 run`"
            ),
            ProgramError::System(error) => error.fmt(f),
            ProgramError::Message(error) => write!(f, "from the server: {error}"),
            ProgramError::Expected(what) => write!(f, "from the server: expected {what}"),
            ProgramError::Refused(Refusal::Config { message, .. } | Refusal::Unfit { message }) => f.write_str(message),
        }
    }
}

impl Error for ProgramError {}

impl From<io::Error> for ProgramError {
    fn from(error: io::Error) -> ProgramError {
        ProgramError::System(error)
    }
}

impl From<DecodeError> for ProgramError {
    fn from(error: DecodeError) -> ProgramError {
        ProgramError::Message(error)
    }
}

/// Runs a function for the server at the other end of standard input, until the chain ends; or, if [`SOCKET_VARIABLE`]
/// names a socket, for servers there, for any number of chains. `configure` returns the
/// function, and a closure to call after the function has been dropped; the server reports the closure's error.
///
/// # Errors
/// There is no server, it disconnects, or the configuration is rejected.
pub fn serve<R, E, F>(configure: impl FnOnce(&Configuration) -> Result<(R, F), Refusal>) -> Result<(), ProgramError>
where
    R: UnattachedFunction,
    E: Error,
    F: FnOnce() -> Result<(), E>,
{
    if let Some(path) = joining::socket_to_join() {
        return joining::serve_by_children(&path, |mut joined| {
            let socket = Socket(joined.socket.0.try_clone()?);
            let on_step = |step| match step {
                Step::Configured => {
                    joined.on_configured();
                    Ok(())
                }
                Step::Attached => joined.end_with_server(),
            };
            serve_on(&socket, configure, on_step)
        });
    }
    // The program must not outlive the server, even if the server is killed.
    sys::end_with_parent()?;
    let socket = Socket(io::stdin().as_fd().try_clone_to_owned()?);
    serve_on(&socket, configure, |_| Ok(()))
}

/// Steps of a program's start.
#[derive(Clone, Copy)]
enum Step {
    /// It has its configuration.
    Configured,
    /// It has its memory, and is about to say so.
    Attached,
}

fn serve_on<R, E, F>(
    socket: &Socket,
    configure: impl FnOnce(&Configuration) -> Result<(R, F), Refusal>,
    mut on_step: impl FnMut(Step) -> io::Result<()>,
) -> Result<(), ProgramError>
where
    R: UnattachedFunction,
    E: Error,
    F: FnOnce() -> Result<(), E>,
{
    let hello = FromProgram::Hello { version: VERSION };
    socket.send(&hello.encode(), &[]).map_err(ProgramError::NoServer)?;
    let (message, files) = socket.receive()?;
    let FromServer::Configure {
        version: VERSION,
        part,
        of,
        config,
    } = FromServer::decode(&message)?
    else {
        return Err(ProgramError::Expected("the configuration"));
    };
    let configuration = Configuration {
        config,
        part: ProcessPart { index: part, of },
        shared_counters: files.into_iter().next().map(Arc::new),
    };
    on_step(Step::Configured)?;
    let (function, at_end) = match configure(&configuration) {
        Ok(configured) => configured,
        Err(refusal) => {
            let told = match refusal.clone() {
                Refusal::Config { field, message } => FromProgram::Refuse { field, message },
                Refusal::Unfit { message } => FromProgram::Unfit { message },
            };
            socket.send(&told.encode(), &[])?;
            return Err(ProgramError::Refused(refusal));
        }
    };
    let description = function.describe();
    let has_state = description.state_bytes > 0;
    let is_durable = description.durable.is_some() && description.piece_bytes > 0;
    socket.send(&FromProgram::Describe(description).encode(), &[])?;
    let turns = attach(socket, function, has_state, has_state && is_durable)?;
    on_step(Step::Attached)?;
    socket.send(&FromProgram::Ready.encode(), &[])?;
    let last = turns.run();
    if let Err(error) = at_end() {
        let message = error.to_string();
        socket.send(&FromProgram::Failed { message }.encode(), &[])?;
    }
    // Last step: the server continues at once, and may end before this process does.
    last.done();
    Ok(())
}

/// As [`serve`], for a function by the C interface. `find` locates it before it is configured.
///
/// # Errors
/// As [`serve`].
pub fn serve_function(
    find: impl FnOnce() -> Result<&'static FunctionDescription, Refusal>,
) -> Result<(), ProgramError> {
    serve(|configuration| {
        let waiting = UnattachedInstance::new(find()?, &configuration.config)?;
        Ok((waiting, || Ok::<(), Infallible>(())))
    })
}

/// Serves this function, and prints an error to standard error on failure: the `main` of a program. `arguments` is the
/// number of the program's arguments, which takes none. Returns the program's exit code.
///
/// # Safety
/// `function` meets the requirements of [`FunctionDescription::read`].
pub unsafe fn main(function: *const abi::Function, arguments: usize) -> u8 {
    const DONE: u8 = 0;
    const FAILED: u8 = 1;
    const WRONG: u8 = 2;
    if arguments > 0 && joining::socket_to_join().is_none() {
        eprintln!(
            "this program is a Tailwater function and takes no arguments: name it as a `program` in a chain spec, \
             and run that with `tailwater run --isolation process`"
        );
        return WRONG;
    }
    let find = || {
        // SAFETY: guaranteed by the caller.
        let described = unsafe { FunctionDescription::read(function) }?;
        // Leaked once: `find` is called once, and the process ends after it.
        Ok(&*Box::leak(Box::new(described)))
    };
    // The panic hook has printed the message of a panic.
    match catch_unwind(AssertUnwindSafe(|| serve_function(find))) {
        Ok(Ok(())) => DONE,
        // The server has been notified, and reports the error.
        Ok(Err(ProgramError::Refused(_))) => WRONG,
        Ok(Err(error)) => {
            eprintln!("{error}");
            match error {
                ProgramError::NoServer(_) => WRONG,
                _ => FAILED,
            }
        }
        Err(_) => FAILED,
    }
}

/// Waits until the chain needs the program, and maps the memory it receives.
fn attach<R: UnattachedFunction>(
    socket: &Socket,
    function: R,
    has_state: bool,
    is_durable: bool,
) -> Result<Turns<R::Attached>, ProgramError> {
    let (message, files) = socket.receive()?;
    let FromServer::Attach {
        buffer_bytes,
        flows: capacity,
        round,
        origin,
        files: count,
    } = FromServer::decode(&message)?
    else {
        return Err(ProgramError::Expected("the attach message"));
    };
    let buffer_bytes = buffer_bytes as usize;
    if files.len() != usize::from(count) {
        return Err(ProgramError::Expected("the announced number of files"));
    }
    let mut files = files.into_iter();
    let mut next = || files.next().ok_or(ProgramError::Expected("another file"));
    let requests = RequestArea(Memory::map(&next()?, REQUEST_AREA_BYTES, false)?);
    // A function that changes no frame may get memory that cannot be mapped for writing. A write ends the program.
    let (file, bytes) = (next()?, MAX_BATCH * buffer_bytes);
    let packets = match Memory::map(&file, bytes, true) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Memory::map(&file, bytes, false)?,
        other => other?,
    };
    let response_file = next()?;
    // Servers before explanations have a smaller file.
    let response_bytes = match response_file.metadata()?.len() < RESPONSE_AREA_BYTES as u64 {
        true => LEAST_RESPONSE_AREA_BYTES,
        false => RESPONSE_AREA_BYTES,
    };
    let responses = Arc::new(ResponseArea(Memory::map(&response_file, response_bytes, true)?));
    let origin = origin.filter(|_| is_durable);
    let last = u8::from(has_state) + u8::from(origin.is_some());
    let in_front = match count.saturating_sub(last) {
        3 => None,
        _ => Some(ResponseArea(Memory::map(&next()?, LEAST_RESPONSE_AREA_BYTES, false)?)),
    };
    // Before the first round there is time to map everything.
    let bound = match round {
        0 => Duration::MAX,
        _ => POPULATE_TIME_OF_REPLACEMENT,
    };
    let flows = match has_state {
        false => None,
        true => Some((capacity as usize, Memory::whole(&next()?, bound)?)),
    };
    let images = match origin {
        None => None,
        Some(origin) => Some((Nanos(origin), Memory::whole(&next()?, bound)?)),
    };
    let work = function.attach(AttachedMemory {
        packets,
        buffer_bytes,
        flows,
        snapshots: images,
        responses: Arc::clone(&responses),
    })?;
    Ok(Turns::new(requests, responses, in_front, work, buffer_bytes, round))
}
