//! Connection to an OpenFlow switch: sockets around the [`Session`], with back-off.

use super::openflow::OpenFlowError;
use super::session::{Session, SessionConfig};
use super::switch::{Busy, Switch, SwitchCommand, SwitchEvent};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tailwater_net::Nanos;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

/// Commands that wait at most: writes, of which the steering loop has one at a time, and packets.
const COMMANDS: usize = 64;
/// Events that wait at most.
const EVENTS: usize = 256;
/// Bytes read at a time.
const READ: usize = 64 << 10;
/// Interval of the session's clock.
const TICK: Duration = Duration::from_millis(50);
/// Time for a connection to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// First and longest time between two attempts to connect. It doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Place of the switch's OpenFlow channel, written as Open vSwitch writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `tcp:ADDRESS:PORT`: the ingress connects, and the switch listens (`ptcp` in Open vSwitch).
    Tcp(SocketAddr),
    /// `ptcp:ADDRESS:PORT`: the switch connects (`tcp` in Open vSwitch), and the ingress listens.
    Listen(SocketAddr),
    /// `unix:PATH`: the ingress connects, such as to `/run/openvswitch/br0.mgmt`.
    Unix(PathBuf),
}

/// Text that is no [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected tcp:ADDRESS:PORT, ptcp:ADDRESS:PORT or unix:PATH, found {0:?}")]
pub struct NoEndpoint(String);

impl FromStr for Endpoint {
    type Err = NoEndpoint;

    fn from_str(text: &str) -> Result<Endpoint, NoEndpoint> {
        let error = || NoEndpoint(text.chars().take(100).collect());
        match text.split_once(':').ok_or_else(error)? {
            ("tcp", address) => address.parse().map(Endpoint::Tcp).map_err(|_| error()),
            ("ptcp", address) => address.parse().map(Endpoint::Listen).map_err(|_| error()),
            ("unix", path) if !path.is_empty() => Ok(Endpoint::Unix(path.into())),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => write!(f, "tcp:{address}"),
            Endpoint::Listen(address) => write!(f, "ptcp:{address}"),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// OpenFlow 1.3 switch. The connection has a task of its own, which ends when this is dropped.
#[derive(Debug)]
pub struct OpenFlowSwitch {
    commands: mpsc::Sender<SwitchCommand>,
    events: mpsc::Receiver<SwitchEvent>,
    task: tokio::task::JoinHandle<()>,
}

impl OpenFlowSwitch {
    /// Begins to connect, or to listen, in the runtime that this is called in.
    pub fn start(endpoint: Endpoint, config: SessionConfig) -> OpenFlowSwitch {
        let (commands, mut from_steering) = mpsc::channel(COMMANDS);
        let (to_steering, events) = mpsc::channel(EVENTS);
        let task = tokio::spawn(async move {
            run(endpoint, config, &mut from_steering, &to_steering).await;
        });
        OpenFlowSwitch { commands, events, task }
    }
}

impl Drop for OpenFlowSwitch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Switch for OpenFlowSwitch {
    fn command(&mut self, command: SwitchCommand) -> Result<(), Busy> {
        self.commands.try_send(command).map_err(|_| Busy)
    }

    async fn event(&mut self) -> Option<SwitchEvent> {
        self.events.recv().await
    }
}

/// Either kind of stream.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// End of a connection.
enum End {
    /// The steering loop has ended.
    Stopped,
    /// The connection was lost, and whether its handshake had been complete.
    Lost(String, bool),
}

/// Connects again and again.
async fn run(
    endpoint: Endpoint,
    config: SessionConfig,
    commands: &mut mpsc::Receiver<SwitchCommand>,
    events: &mpsc::Sender<SwitchEvent>,
) {
    let mut pause = FIRST_PAUSE;
    let mut listener = None;
    let start = Instant::now();
    loop {
        let stream = connect(&endpoint, &mut listener);
        let stream = tokio::select! {
            stream = stream => stream,
            () = discard(commands) => return,
        };
        let reason = match stream {
            Err(error) => format!("{endpoint}: {error}"),
            Ok(stream) => match converse(stream, config, start, commands, events).await {
                End::Stopped => return,
                End::Lost(reason, was_connected) => {
                    if was_connected {
                        pause = FIRST_PAUSE;
                    }
                    format!("{endpoint}: {reason}")
                }
            },
        };
        if events.send(SwitchEvent::Disconnected { reason }).await.is_err() {
            return;
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = discard(commands) => return,
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Takes commands that have no effect without a connection. Returns when there will be none.
async fn discard(commands: &mut mpsc::Receiver<SwitchCommand>) {
    while commands.recv().await.is_some() {}
}

async fn connect(endpoint: &Endpoint, listener: &mut Option<TcpListener>) -> io::Result<Box<dyn Stream>> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
    match endpoint {
        Endpoint::Unix(path) => {
            let stream = timeout(CONNECT, UnixStream::connect(path)).await.map_err(late)??;
            Ok(Box::new(stream))
        }
        Endpoint::Tcp(address) => {
            let stream = timeout(CONNECT, TcpStream::connect(address)).await.map_err(late)??;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
        Endpoint::Listen(address) => {
            let listener = match listener {
                Some(listener) => listener,
                None => listener.insert(TcpListener::bind(address).await?),
            };
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
    }
}

/// Speaks with a switch until the connection is lost.
async fn converse(
    stream: Box<dyn Stream>,
    config: SessionConfig,
    start: Instant,
    commands: &mut mpsc::Receiver<SwitchCommand>,
    events: &mpsc::Sender<SwitchEvent>,
) -> End {
    let now = || Nanos(start.elapsed().as_nanos() as u64);
    let mut session = Session::new(config, now());
    let (mut read, mut write) = tokio::io::split(stream);
    let mut bytes = vec![0; READ];
    let mut clock = interval(TICK);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_connected = session.is_connected();
        let lost = |reason: String| End::Lost(reason, is_connected);
        let done: Result<(), OpenFlowError> = tokio::select! {
            count = read.read(&mut bytes) => match count {
                Ok(0) => return lost("the switch closed the connection".to_owned()),
                Ok(count) => session.receive(&bytes[..count], now()),
                Err(error) => return lost(error.to_string()),
            },
            count = write.write(session.output()), if !session.output().is_empty() => match count {
                Ok(count) => {
                    session.sent(count);
                    Ok(())
                }
                Err(error) => return lost(error.to_string()),
            },
            command = commands.recv(), if !session.is_writing() => match command {
                Some(command) => {
                    session.command(command);
                    Ok(())
                }
                None => return End::Stopped,
            },
            _ = clock.tick() => session.tick(now()),
        };
        while let Some(event) = session.event() {
            let sent = match event {
                // Packets are dropped where they come too fast; changes are not.
                SwitchEvent::PacketIn(_) => match events.try_send(event) {
                    Err(mpsc::error::TrySendError::Closed(_)) => Err(()),
                    _ => Ok(()),
                },
                event => events.send(event).await.map_err(|_| ()),
            };
            if sent.is_err() {
                return End::Stopped;
            }
        }
        if let Err(error) = done {
            return lost(error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_written_as_open_vswitch_writes_them() {
        for text in [
            "tcp:192.0.2.1:6653",
            "ptcp:[::1]:6653",
            "unix:/run/openvswitch/br0.mgmt",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in ["", "tcp", "tcp:6653", "unix:", "ssl:192.0.2.1:6653", "ptcp:host:1"] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!("expected tcp:ADDRESS:PORT, ptcp:ADDRESS:PORT or unix:PATH, found {text:?}")
            );
        }
    }
}
