//! A transport session: messages in order to one collector or file, with the templates that they need.

use super::export::{Options, Outlet, Shared, Transport};
use super::ipfix::{Message, NotSent};
use super::record::FlowRecord;
use super::retry::Retry;
use crate::origin::Origin;
use crate::out_file::OutFile;
use std::collections::VecDeque;
use std::io::{self, BufWriter, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of a message in a file.
const FILE_MESSAGE: usize = 16 << 10;
/// How long a connection may take to be made, and a message to be taken: less than a thread may take to be known to
/// [get on](crate::out_file::Pulse).
const CONNECT: Duration = Duration::from_secs(3);
const WRITE: Duration = Duration::from_secs(4);
/// How long is slept at a time.
const NAP: Duration = Duration::from_secs(1);
/// How long the last records may wait for the next try to connect.
const LAST_TRY: Duration = Duration::from_millis(500);
/// As many records may wait for a message to be full, or a connection to come back.
const BACKLOG: usize = 4096;

/// What an outlet came to.
#[derive(Debug)]
pub(super) struct Sent {
    /// Records told, as far as is known.
    pub(super) records: u64,
    /// What a file could not be written for.
    pub(super) error: Option<io::Error>,
}

/// What messages are written to.
#[derive(Debug)]
enum Stream {
    /// Not there yet, or not any more.
    None,
    Udp(UdpSocket),
    Tcp(TcpStream),
    File(BufWriter<OutFile>),
}

/// When templates and options are told.
#[derive(Clone, Copy, Debug)]
enum Refresh {
    First,
    At(Instant),
    Never,
}

/// Where messages go, if there is no stream.
#[derive(Clone, Copy, Debug)]
struct Far {
    address: SocketAddr,
    transport: Transport,
}

/// Messages to one collector or file.
#[derive(Debug)]
pub(super) struct Session {
    stream: Stream,
    /// `None` for a file.
    far: Option<Far>,
    /// Records that are not told yet.
    backlog: VecDeque<FlowRecord>,
    message: Message,
    /// Data records told in this session, modulo 2^32.
    sequence: u32,
    /// When templates, where they are repeated, and what was lost are told again: at once in a new session.
    refresh_at: Refresh,
    /// `None`: only at the end.
    refresh: Option<Duration>,
    retry: Retry,
    /// What a bit takes, and when the next message may go.
    bits_per_second: Option<u64>,
    next_at: Instant,
    /// The last datagram's records: that it was refused is told with the next one.
    last: NotSent,
    origin: Arc<Origin>,
    shared: Arc<Shared>,
    unsent: Arc<AtomicU64>,
    sent: Sent,
}

/// Whether a stream has its templates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Templates {
    Told,
    Due,
}

impl Session {
    /// A session that begins with its first record; a file is created now.
    ///
    /// # Errors
    /// The file cannot be.
    pub(super) fn new(
        outlet: &Outlet,
        (options, origin): (&Options, Arc<Origin>),
        (shared, unsent): (Arc<Shared>, Arc<AtomicU64>),
    ) -> io::Result<Session> {
        let now = Instant::now();
        let (stream, far, limit, refresh, bits_per_second) = match outlet {
            Outlet::File(path) => {
                let file = BufWriter::new(OutFile::create(path, &shared.pulse)?);
                (Stream::File(file), None, FILE_MESSAGE, None, None)
            }
            Outlet::Collector {
                address,
                transport,
                message_bytes,
                refresh,
                bits_per_second,
            } => {
                let far = Far {
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
            retry: Retry::new(),
            bits_per_second,
            next_at: now,
            last: NotSent::default(),
            origin,
            shared,
            unsent,
            sent: Sent {
                records: 0,
                error: None,
            },
        })
    }

    /// Whether more records can be told: those before are, but for the last ones.
    pub(super) fn is_ready(&mut self) -> bool {
        self.backlog.len() < BACKLOG || self.pump(false)
    }

    /// Tells a record, with others.
    pub(super) fn tell(&mut self, record: &FlowRecord) {
        self.backlog.push_back(*record);
        if self.backlog.len() == BACKLOG {
            self.pump(false);
        }
    }

    /// Gives up a record, and those before it that were not told.
    pub(super) fn give_up(&mut self, record: &FlowRecord) {
        self.lose_backlog();
        self.lose(record);
    }

    /// Tells what waits for a message to be full.
    pub(super) fn flush(&mut self) {
        self.pump(true);
        if let Stream::File(file) = &mut self.stream {
            // Whoever follows the file sees what there is.
            let flushed = file.flush();
            self.note(flushed);
        }
    }

    /// Ends the session. What cannot be told any more is lost.
    pub(super) fn end(mut self, abandoned: bool) -> Sent {
        if !abandoned {
            if !self.pump(true) {
                let wait = self.retry.wait(Instant::now());
                if wait <= LAST_TRY {
                    std::thread::sleep(wait);
                    self.pump(true);
                }
            }
            self.lose_backlog();
            // What was lost is known by now.
            if !matches!(self.stream, Stream::None) {
                self.tell_options(Templates::Told);
            }
        }
        if let Stream::File(file) = &mut self.stream {
            let flushed = file.flush();
            self.note(flushed);
        }
        self.sent
    }

    fn note(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.sent.error.get_or_insert(error);
        }
    }

    fn lose(&mut self, record: &FlowRecord) {
        self.shared.lose(record);
        self.unsent.fetch_add(1, Ordering::Relaxed);
    }

    fn lose_backlog(&mut self) {
        let mut backlog = std::mem::take(&mut self.backlog);
        backlog.drain(..).for_each(|record| self.lose(&record));
        self.backlog = backlog;
    }

    /// Sends full messages, and with `all` what is left, too. `false` if it cannot now.
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
                    self.sent.records += told.records;
                }
                // It is told again when there is another stream.
                Err(_) if matches!(self.stream, Stream::None) => return false,
                Err(error) => {
                    if matches!(self.stream, Stream::File(_)) {
                        self.note(Err(error));
                    }
                    self.shared.add_lost(told);
                    self.unsent.fetch_add(told.records, Ordering::Relaxed);
                    self.backlog.drain(..count);
                }
            }
        }
        true
    }

    /// Has a stream, with templates that are not too old. `false` if there is none now.
    fn open(&mut self) -> bool {
        if let (Stream::None, Some(far)) = (&self.stream, self.far) {
            if !self.retry.wait(Instant::now()).is_zero() {
                return false;
            }
            let connected = connect(far);
            self.shared.pulse.beat();
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
            Refresh::First => self.tell_options(Templates::Due),
            Refresh::At(at) if Instant::now() >= at => match repeated {
                true => self.tell_options(Templates::Due),
                false => self.tell_options(Templates::Told),
            },
            Refresh::At(_) | Refresh::Never => true,
        }
    }

    /// Tells what holds for all records, behind their templates if these are due. `false` if the stream is gone.
    fn tell_options(&mut self, templates: Templates) -> bool {
        self.message.clear();
        if templates == Templates::Due {
            self.message.add_templates();
        }
        let not_sent = self.shared.not_sent();
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

    /// Sends the message, which tells this much. A connection that does not take it is gone.
    fn send(&mut self, told: NotSent) -> io::Result<()> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = since.map_or(0, |since| since.as_secs() as u32);
        let records = self.message.records();
        let bytes = self.message.finish(self.sequence, time);
        let length = bytes.len();
        // Records that were told in vain count: their collector is to see that they are missing.
        self.sequence = self.sequence.wrapping_add(records);
        let sent = match &mut self.stream {
            Stream::None => Err(io::ErrorKind::NotConnected.into()),
            Stream::File(file) => file.write_all(bytes),
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Udp(socket) => match socket.send(bytes) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    // Nobody was there for the one before.
                    let refused = std::mem::take(&mut self.last);
                    self.shared.add_lost(refused);
                    self.unsent.fetch_add(refused.records, Ordering::Relaxed);
                    self.sent.records -= refused.records;
                    socket.send(bytes).map(drop)
                }
                sent => sent.map(drop),
            },
        };
        self.shared.pulse.beat();
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

    /// Waits as long as a message of so many bytes takes.
    fn pace(&mut self, bytes: usize) {
        let Some(rate) = self.bits_per_second else {
            return;
        };
        let nanos = bytes as u64 * 8 * 1_000_000_000 / rate.max(1);
        let now = Instant::now();
        self.next_at = self.next_at.max(now) + Duration::from_nanos(nanos);
        let mut left = self.next_at - now;
        while !left.is_zero() {
            let nap = left.min(NAP);
            std::thread::sleep(nap);
            self.shared.pulse.beat();
            left -= nap;
        }
    }
}

fn connect(far: Far) -> io::Result<Stream> {
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
