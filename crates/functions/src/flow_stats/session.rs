//! Transport session: ordered messages to one collector or file, with the templates they need.

use super::ipfix::{Message, NotSent};
use super::losses::Losses;
use super::outlet::{Options, Outlet, Transport};
use super::record::FlowRecord;
use super::retry::Backoff;
use crate::origin::Origin;
use crate::out_file::{OutFile, Pulse};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of a message in a file.
const FILE_MESSAGE: usize = 16 << 10;
/// Timeouts for establishing a connection and for sending a message. Both are shorter than the time after which a
/// thread counts as [hung](crate::out_file::Pulse).
const CONNECT: Duration = Duration::from_secs(3);
const WRITE: Duration = Duration::from_secs(4);
/// Maximum length of one sleep.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// Maximum time for which the last records wait for the next connection attempt.
const LAST_TRY: Duration = Duration::from_millis(500);
/// Maximum number of records that wait for a full message or for a connection.
const BACKLOG: usize = 4096;

/// Output of messages.
#[derive(Debug)]
enum Stream {
    /// Not connected.
    None,
    Udp(UdpSocket),
    Tcp(TcpStream),
    /// Messages are as large as a buffer would be.
    File(OutFile),
}

/// Time at which templates and options are sent next.
#[derive(Clone, Copy, Debug)]
enum Refresh {
    First,
    At(Instant),
    Never,
}

/// Address of the collector, for connecting.
#[derive(Clone, Copy, Debug)]
struct CollectorAddress {
    address: SocketAddr,
    transport: Transport,
}

/// Session with one collector or file.
#[derive(Debug)]
pub(super) struct Session {
    stream: Stream,
    /// `None` for a file.
    far: Option<CollectorAddress>,
    /// Records not sent yet.
    backlog: VecDeque<FlowRecord>,
    message: Message,
    /// Data records sent in this session, modulo 2^32.
    sequence: u32,
    /// Time at which loss counters and, over UDP, templates are sent again. In a new session they are sent at once.
    refresh_at: Refresh,
    /// Interval of repetition; `None` to repeat only at the end.
    refresh: Option<Duration>,
    retry: Backoff,
    /// Rate limit, and the time at which the next message may be sent.
    bits_per_second: Option<u64>,
    next_at: Instant,
    /// Records of the last datagram. The error for a rejected datagram comes with the next send.
    last: NotSent,
    origin: Arc<Origin>,
    losses: Arc<Losses>,
    pulse: Pulse,
    /// Records sent and not known to be lost.
    sent: u64,
    /// Another process has begun the file.
    is_begun: bool,
    /// First error of writing a file.
    error: Option<io::Error>,
}

/// Need to send templates on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Templates {
    Current,
    Due,
}

impl Session {
    /// Creates a session that connects with its first record. A file is created immediately. `pulse` beats with every
    /// progress.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub(super) fn new(
        outlet: &Outlet,
        options: &Options,
        origin: Arc<Origin>,
        losses: Arc<Losses>,
        pulse: Pulse,
    ) -> io::Result<Session> {
        let now = Instant::now();
        let mut is_begun = false;
        let (stream, far, limit, refresh, bits_per_second) = match outlet {
            Outlet::File(path) => {
                let file = OutFile::create(path, &pulse)?;
                is_begun = file.is_begun();
                (Stream::File(file), None, FILE_MESSAGE, None, None)
            }
            Outlet::Collector {
                address,
                transport,
                message_bytes,
                refresh,
                bits_per_second,
            } => {
                let far = CollectorAddress {
                    address: *address,
                    transport: *transport,
                };
                let refresh = Some(Duration::from_nanos(refresh.0));
                let rate = Some(*bits_per_second);
                (Stream::None, Some(far), *message_bytes, refresh, rate)
            }
        };
        Ok(Session {
            stream,
            far,
            backlog: VecDeque::with_capacity(BACKLOG),
            message: Message::new(limit, options.domain, options.sampling),
            sequence: 0,
            refresh_at: Refresh::First,
            refresh,
            retry: Backoff::new(),
            bits_per_second,
            next_at: now,
            last: NotSent::default(),
            origin,
            losses,
            pulse,
            sent: 0,
            is_begun,
            error: None,
        })
    }

    /// Returns `true` if the backlog has room for another record, after sending full messages if necessary.
    pub(super) fn is_ready(&mut self) -> bool {
        self.backlog.len() < BACKLOG || self.pump(false)
    }

    /// Adds a record, which is sent together with others.
    pub(super) fn add_record(&mut self, record: &FlowRecord) {
        self.backlog.push_back(*record);
        if self.backlog.len() == BACKLOG {
            self.pump(false);
        }
    }

    /// Counts a record as lost, together with the backlog.
    pub(super) fn discard(&mut self, record: &FlowRecord) {
        self.lose_backlog();
        self.lose(record);
    }

    /// Sends the records that wait for a full message.
    pub(super) fn flush(&mut self) {
        self.pump(true);
    }

    /// Ends the session and returns the number of records sent. Records that can no longer be sent are lost.
    ///
    /// # Errors
    /// The first error of writing a file.
    pub(super) fn end(mut self, abandoned: bool) -> io::Result<u64> {
        if !abandoned {
            if !self.pump(true) {
                let wait = self.retry.wait(Instant::now());
                if wait <= LAST_TRY {
                    std::thread::sleep(wait);
                    self.pump(true);
                }
            }
            self.lose_backlog();
            // The loss counters are final now. Of a process that has written nothing, and left the file to another one,
            // there are none.
            let is_unused = self.is_begun && self.sequence == 0;
            if !matches!(self.stream, Stream::None) && !is_unused {
                self.send_options(Templates::Current);
            }
        }
        self.error.map_or(Ok(self.sent), Err)
    }

    fn note(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.error.get_or_insert(error);
        }
    }

    fn lose(&mut self, record: &FlowRecord) {
        self.losses.add_unsent(NotSent::from(record));
    }

    fn lose_backlog(&mut self) {
        let mut backlog = std::mem::take(&mut self.backlog);
        backlog.drain(..).for_each(|record| self.lose(&record));
        self.backlog = backlog;
    }

    /// Sends full messages and, with `all`, the remaining records. Returns `false` if sending is not possible now.
    fn pump(&mut self, all: bool) -> bool {
        let origin = self.origin.get();
        while !self.backlog.is_empty() {
            if !self.open() {
                return false;
            }
            self.message.clear();
            let message = &mut self.message;
            let fits = |record: &&FlowRecord| message.add(record, origin);
            let count = self.backlog.iter().take_while(fits).count();
            if count == self.backlog.len() && !all {
                return true;
            }
            let of = |sum: NotSent, record: &FlowRecord| NotSent {
                records: sum.records + 1,
                packets: sum.packets + record.packets,
                bytes: sum.bytes + record.bytes,
            };
            let told = self.backlog.iter().take(count);
            let told = told.fold(NotSent::default(), of);
            match self.send(told) {
                Ok(()) => {
                    self.backlog.drain(..count);
                    self.sent += told.records;
                }
                // The records are sent again on the next stream.
                Err(_) if matches!(self.stream, Stream::None) => return false,
                Err(error) => {
                    if matches!(self.stream, Stream::File(_)) {
                        self.note(Err(error));
                    }
                    self.losses.add_unsent(told);
                    self.backlog.drain(..count);
                }
            }
        }
        true
    }

    /// Ensures a connected stream with current templates. Returns `false` if there is none now.
    fn open(&mut self) -> bool {
        if let (Stream::None, Some(far)) = (&self.stream, self.far) {
            if !self.retry.wait(Instant::now()).is_zero() {
                return false;
            }
            let connected = connect(far);
            self.pulse.beat();
            match connected {
                Ok(stream) => {
                    self.stream = stream;
                    self.retry.connected(Instant::now());
                    (self.sequence, self.refresh_at) = (0, Refresh::First);
                    self.last = NotSent::default();
                }
                Err(_) => {
                    self.retry.failed(Instant::now());
                    return false;
                }
            }
        }
        let repeated = matches!(self.stream, Stream::Udp(_));
        match self.refresh_at {
            Refresh::First => self.send_options(Templates::Due),
            Refresh::At(at) if Instant::now() >= at => match repeated {
                true => self.send_options(Templates::Due),
                false => self.send_options(Templates::Current),
            },
            Refresh::At(_) | Refresh::Never => true,
        }
    }

    /// Sends the options data, after their templates if these are due. Returns `false` if the connection was lost.
    fn send_options(&mut self, templates: Templates) -> bool {
        self.message.clear();
        if templates == Templates::Due {
            self.message.add_templates();
        }
        let not_sent = self.losses.not_sent();
        self.message.add_options(std::process::id(), not_sent);
        let sent = self.send(NotSent::default());
        let next = self.refresh.and_then(|after| Instant::now().checked_add(after));
        self.refresh_at = next.map_or(Refresh::Never, Refresh::At);
        match sent {
            Ok(()) => true,
            Err(_) if matches!(self.stream, Stream::None) => false,
            Err(error) => {
                if matches!(self.stream, Stream::File(_)) {
                    self.note(Err(error));
                }
                true
            }
        }
    }

    /// Sends the message, which contains the records counted in `told`. A TCP connection is closed on an error.
    fn send(&mut self, told: NotSent) -> io::Result<()> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = since.map_or(0, |since| since.as_secs() as u32);
        let records = self.message.records();
        let bytes = self.message.finish(self.sequence, time);
        let length = bytes.len();
        // Lost records count as well, so that the collector detects them.
        self.sequence = self.sequence.wrapping_add(records);
        let sent = match &mut self.stream {
            Stream::None => Err(io::ErrorKind::NotConnected.into()),
            // Behind a part of a message, nothing can be read.
            Stream::File(_) if self.error.is_some() => Err(io::ErrorKind::WriteZero.into()),
            Stream::File(file) => file.write_all(bytes),
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Udp(socket) => match socket.send(bytes) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    // The previous datagram was rejected.
                    let refused = std::mem::take(&mut self.last);
                    self.losses.add_unsent(refused);
                    self.sent -= refused.records;
                    socket.send(bytes).map(drop)
                }
                sent => sent.map(drop),
            },
        };
        self.pulse.beat();
        self.last = match (&self.stream, &sent) {
            (Stream::Udp(_), Ok(())) => told,
            _ => NotSent::default(),
        };
        if sent.is_err() && matches!(self.stream, Stream::Tcp(_)) {
            self.stream = Stream::None;
            self.retry.failed(Instant::now());
        }
        self.pace(length);
        sent
    }

    /// Waits for the transmission time of `bytes` bytes at the rate limit.
    fn pace(&mut self, bytes: usize) {
        let Some(rate) = self.bits_per_second else {
            return;
        };
        let nanos = bytes as u64 * 8 * 1_000_000_000 / rate.max(1);
        let now = Instant::now();
        self.next_at = self.next_at.max(now) + Duration::from_nanos(nanos);
        let mut left = self.next_at - now;
        while !left.is_zero() {
            let nap = left.min(MAX_SLEEP);
            std::thread::sleep(nap);
            self.pulse.beat();
            left -= nap;
        }
    }
}

fn connect(far: CollectorAddress) -> io::Result<Stream> {
    match far.transport {
        Transport::Udp => {
            let any: SocketAddr = match far.address {
                SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
                SocketAddr::V6(_) => ([0; 16], 0).into(),
            };
            let socket = UdpSocket::bind(any)?;
            socket.connect(far.address)?;
            Ok(Stream::Udp(socket))
        }
        Transport::Tcp => {
            let stream = TcpStream::connect_timeout(&far.address, CONNECT)?;
            stream.set_write_timeout(Some(WRITE))?;
            stream.set_nodelay(true)?;
            Ok(Stream::Tcp(stream))
        }
    }
}
