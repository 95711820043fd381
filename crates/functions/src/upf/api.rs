//! Session control over a Unix socket: one request per line, one response per line.
//!
//! ```text
//! set 7 ue 10.60.0.7 teid 0x1007 peer 192.0.2.10 peerTeid 0x2007 profile internet
//! ok added
//! remove 7
//! ok removed up_bytes 0 down_bytes 0 up_packets 0 down_packets 0
//! ```

use super::language::{self, Names, parse_session};
use super::records::Usage;
use super::session::Session;
use super::table::{Owner, SessionChange, UpfTable};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Largest number of concurrent clients.
const MAX_CLIENTS: usize = 16;
/// Longest line, in bytes.
const MAX_LINE: usize = 4096;
/// Interval at which threads check for shutdown.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time after which a client that reads no responses is disconnected.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Executes a client's request line and returns the response. `names` must be the table's.
pub fn respond(table: &UpfTable, names: &Names, line: &str) -> String {
    match execute(table, names, line.trim()) {
        Ok(done) => format!("ok {done}"),
        Err(why) => format!("error: {why}"),
    }
}

fn execute(table: &UpfTable, names: &Names, line: &str) -> Result<String, String> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let id = || {
        let number = language::number(rest.trim());
        number.ok_or_else(|| format!("expected the number of a session after {word}"))
    };
    let nobody = |id| format!("unknown session {id}");
    match word {
        "set" => {
            let session = parse_session(rest, names).map_err(|mistake| match mistake.suggestion {
                None => mistake.message,
                Some(suggestion) => {
                    format!("{}; did you mean \"{suggestion}\"?", mistake.message)
                }
            })?;
            let changed = table.set(&session, Owner::Api).map_err(|refused| refused.to_string())?;
            Ok(match changed {
                SessionChange::Added => "added",
                SessionChange::Changed => "changed",
                SessionChange::Nothing => "unchanged",
            }
            .to_owned())
        }
        "remove" => {
            let id = id()?;
            let usage = table.remove(id).ok_or_else(|| nobody(id))?;
            Ok(format!("removed{}", used(&usage)))
        }
        "show" => {
            let id = id()?;
            let (session, usage) = table.session(id).ok_or_else(|| nobody(id))?;
            Ok(described(table, &session) + &used(&usage))
        }
        "count" if rest.trim().is_empty() => Ok(table.sessions().to_string()),
        _ => Err("expected set SESSION, remove NUMBER, show NUMBER or count".to_owned()),
    }
}

fn used(usage: &Usage) -> String {
    let Usage {
        bytes: [up, down],
        packets,
    } = usage;
    let [up_packets, down_packets] = packets;
    format!(" up_bytes {up} down_bytes {down} up_packets {up_packets} down_packets {down_packets}")
}

/// Describes a session in the syntax of requests.
fn described(table: &UpfTable, session: &Session) -> String {
    let mut text = session.id.to_string();
    // Writing to a string cannot fail.
    if let Some(address) = session.address {
        let _ = write!(text, " ue {address}");
    }
    if let Some(prefix) = session.prefix {
        let prefix = std::net::Ipv6Addr::from_bits(u128::from(prefix) << 64);
        let _ = write!(text, " ue6 {prefix}/64");
    }
    let _ = write!(text, " teid {:#x}", session.teid);
    if let Some(tunnel) = session.tunnel {
        let _ = write!(text, " peer {} peerTeid {:#x}", tunnel.peer, tunnel.teid);
    }
    if let Some(profile) = table.profile(session.profile) {
        let _ = write!(text, " profile {}", profile.name);
    }
    text
}

/// Threads that serve a socket.
#[derive(Debug)]
pub(super) struct Api {
    path: PathBuf,
    shutting_down: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Api {
    /// Serves a socket accessible to the current user only.
    ///
    /// # Errors
    /// The socket or its threads cannot be created, or another process already serves it.
    pub(super) fn start(table: Arc<UpfTable>, path: &Path) -> io::Result<Api> {
        if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
            // A stale socket of a killed process is replaced; one that accepts connections is not.
            match UnixStream::connect(path) {
                Ok(_) => return Err(io::Error::from(ErrorKind::AddrInUse)),
                Err(_) => fs::remove_file(path)?,
            }
        }
        let listener = bind(path)?;
        listener.set_nonblocking(true)?;
        let over = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&over);
        let thread = std::thread::Builder::new()
            .name("upf-api".to_owned())
            .spawn(move || serve(&table, &listener, &asked))?;
        Ok(Api {
            path: path.to_owned(),
            shutting_down: over,
            thread: Some(thread),
        })
    }
}

/// Creates a socket that only the current user can ever access: it is made in a private folder, and moved once its mode
/// is set.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(io::Error::from(ErrorKind::AddrInUse));
    }
    let mut folder = path.as_os_str().to_owned();
    folder.push(format!(".{}", std::process::id()));
    let folder = PathBuf::from(folder);
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let hidden = folder.join("s");
    let listener = UnixListener::bind(&hidden).and_then(|listener| {
        fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600))?;
        fs::rename(&hidden, path)?;
        Ok(listener)
    });
    if listener.is_err() {
        let _ = fs::remove_file(&hidden);
    }
    let _ = fs::remove_dir(&folder);
    listener
}

impl Drop for Api {
    fn drop(&mut self) {
        self.shutting_down.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn serve(table: &UpfTable, listener: &UnixListener, over: &AtomicBool) {
    let (names, clients) = (table.names(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        while !over.load(Ordering::Relaxed) {
            let Ok((mut client, _)) = listener.accept() else {
                std::thread::park_timeout(POLL_INTERVAL);
                continue;
            };
            if clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
                clients.fetch_sub(1, Ordering::Relaxed);
                let _ = writeln!(client, "error: expected at most {MAX_CLIENTS} clients, found more");
                continue;
            }
            let (names, clients) = (&names, &clients);
            scope.spawn(move || {
                // Errors of a disconnected client need no handling.
                let _ = converse(table, names, &client, over);
                clients.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
}

/// Serves a client's lines until it disconnects or shutdown.
fn converse(table: &UpfTable, names: &Names, client: &UnixStream, over: &AtomicBool) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(POLL_INTERVAL))?;
    client.set_write_timeout(Some(TIMEOUT))?;
    let (mut reader, mut writer) = (BufReader::new(client), client);
    let mut line = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let room = (MAX_LINE + 1).saturating_sub(line.len()) as u64;
        // Bytes read before a timeout remain in the line.
        let read = reader.by_ref().take(room).read_until(b'\n', &mut line);
        match read {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(error) => return Err(error),
            Ok(_) if line.len() > MAX_LINE => {
                return writeln!(writer, "error: expected lines of at most {MAX_LINE} bytes");
            }
            // Without a final newline the line is incomplete: the client has disconnected.
            Ok(_) if line.last() != Some(&b'\n') => return Ok(()),
            Ok(_) => {}
        }
        let response = match std::str::from_utf8(&line) {
            Ok(text) => respond(table, names, text),
            Err(_) => "error: expected UTF-8 text".to_owned(),
        };
        writer.write_all((response + "\n").as_bytes())?;
        line.clear();
    }
    Ok(())
}
