//! Program that joins a server by a socket, instead of being started by it: the main process of a pod.
//!
//! The main process starts children, each of which connects and serves. Once the server has configured one, the next
//! is started, so that another one always waits. A child that ends is replaced. So a function that crashes, or whose
//! server is restarted, is there again in milliseconds; the container runtime sees neither.

use crate::protocol::socket::Socket;
use crate::sys::end_with_parent;
use crate::sys::joining::{connect, end_with_peer, fork, reap};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Variable with the path of the socket.
pub const SOCKET_VARIABLE: &str = "TAILWATER_FUNCTION_SOCKET";
/// Time between attempts to connect, and between looks at children.
const AGAIN: Duration = Duration::from_millis(20);
/// Most children: those of both versions of a chain on a few cores, each with a standby process.
const MOST: usize = 64;
/// Uptime of a child below which the next start is delayed.
const QUICK: Duration = Duration::from_millis(500);
/// Shortest and longest delay.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(5)];

/// Returns the socket by which this program joins a server, if it does.
pub(super) fn socket_to_join() -> Option<PathBuf> {
    std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from)
}

/// Child of the main process.
struct Child {
    id: i32,
    began: Instant,
    /// Ends once the server has configured it, or it has ended.
    waits: Option<UnixStream>,
}

impl Child {
    /// Waits a moment for its configuration.
    fn look(&mut self) {
        if let Some(waits) = &mut self.waits
            && matches!(waits.read(&mut [0]), Ok(0))
        {
            self.waits = None;
        }
    }
}

/// Runs `serve` in children, each with a connection to the socket. Returns in these children only, or if no child can
/// be started.
///
/// # Errors
/// A child cannot be started, or `serve` fails.
pub(super) fn serve_by_children<E: From<io::Error>>(
    path: &Path,
    serve: impl FnOnce(Joined) -> Result<(), E>,
) -> Result<(), E> {
    let main = std::process::id();
    let mut children: Vec<Child> = Vec::new();
    let mut pause = PAUSES[0];
    loop {
        match children.iter().position(|child| child.waits.is_some()) {
            Some(waiting) => children[waiting].look(),
            None if children.len() >= MOST => std::thread::sleep(AGAIN),
            None => {
                let (ours, theirs) = UnixStream::pair()?;
                ours.set_read_timeout(Some(AGAIN))?;
                let Some(id) = fork()? else {
                    drop((ours, children));
                    // Before it waits for a server. The main process may have ended already.
                    end_with_parent()?;
                    if parent_id() != main {
                        return Err(io::Error::other("the main process has ended").into());
                    }
                    return serve(Joined {
                        socket: connection(path),
                        unconfigured: Some(theirs),
                    });
                };
                children.push(Child {
                    id,
                    began: Instant::now(),
                    waits: Some(ours),
                });
            }
        }
        while let Some(ended) = reap() {
            let Some(index) = children.iter().position(|child| child.id == ended) else {
                continue;
            };
            let child = children.swap_remove(index);
            if child.began.elapsed() < QUICK {
                std::thread::sleep(pause);
                pause = (2 * pause).min(PAUSES[1]);
            } else {
                pause = PAUSES[0];
            }
        }
    }
}

/// Connects, once there is a server.
fn connection(path: &Path) -> Socket {
    loop {
        match connect(path) {
            Ok(socket) => return Socket(socket),
            Err(_) => std::thread::sleep(AGAIN),
        }
    }
}

/// Connection of a child.
pub(super) struct Joined {
    pub(super) socket: Socket,
    /// The main process waits for its end.
    unconfigured: Option<UnixStream>,
}

impl Joined {
    /// Lets the main process start another child.
    pub(super) fn on_configured(&mut self) {
        self.unconfigured = None;
    }

    /// Lets this process end with the server. No message is expected from now on.
    pub(super) fn end_with_server(&self) -> io::Result<()> {
        end_with_peer(self.socket.0.as_fd())
    }
}
