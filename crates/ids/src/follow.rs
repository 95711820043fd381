//! Protocol parsing of a stream: detection, messages, and evaluation of rules on them.

use crate::buffer::{Buffer, BufferKey};
use crate::connection::{CONNECT_REQUEST, Connection, HEAD_REQUEST};
use crate::dns::{self, DNS};
use crate::http::body::Inflater;
use crate::http::{DerivedBuffers, fill};
use crate::packet::Subject;
use crate::rule::{App, Direction};
use crate::rule_evaluator::{RuleEvaluator, counter, payload_unit};
use crate::settings::Settings;
use crate::signature::Hook;
use crate::stream::Side;
use crate::unit::Unit;
use crate::x509::Texts;
use tailwater_streams::http::chunks::unchunk;
use tailwater_streams::http::head::{Framing, Head};
use tailwater_streams::http::messages::{CHUNKED, HEAD, Step, is_phase};
use tailwater_streams::tls::{self, handshake};

/// Phase: the protocol is not yet known.
const UNKNOWN: u8 = 0;
/// Phase: inspection has ended.
pub(crate) const DEAD: u8 = 1;
/// Phase: bytes without a supported protocol's messages.
const RAW: u8 = 2;
/// Phase: unencrypted TLS.
const TLS: u8 = 32;

/// Flag of a message: the rules were evaluated on its body.
const INSPECTED: u8 = 2;

/// Inverse of the share of the window that stays after inspection.
const HISTORY: usize = 4;
/// Bytes at the start of a stream used for protocol detection.
const DETECT: usize = 32;

/// One direction of the current connection.
#[derive(Debug)]
pub(crate) struct Stream<'a> {
    pub(crate) side: &'a mut Side,
    pub(crate) window: &'a mut [u8],
    depth: u64,
}

impl<'a> Stream<'a> {
    pub(crate) fn new((side, window): &'a mut (&mut Side, &mut [u8]), depth: u64) -> Stream<'a> {
        Stream { side, window, depth }
    }

    /// Handles missing bytes: message parsing stops.
    pub(crate) fn gap(&mut self) {
        if self.side.message.phase != DEAD {
            self.side.message.phase = RAW;
        }
    }

    /// Returns the stream's bytes in a range of offsets.
    fn bytes(&self, from: u64, to: u64) -> &[u8] {
        let range = self.side.bytes.at(from)..self.side.bytes.at(to);
        self.window.get(range).unwrap_or_default()
    }

    /// Follows the HTTP messages up to the next step.
    fn advance(&mut self, direction: Direction) -> Step {
        let Side { bytes, message, .. } = self.side;
        message.advance(bytes.in_order(self.window), direction)
    }

    /// Returns the in-order bytes.
    fn filled(&self) -> &[u8] {
        &self.window[..self.side.bytes.filled()]
    }
}

/// Reusable memory for buffers; nothing is carried from one packet to the next.
#[derive(Debug)]
pub(crate) struct Buffers {
    head: Head,
    made: DerivedBuffers,
    body: Vec<u8>,
    inflater: Inflater,
    handshake: Vec<u8>,
    texts: Texts,
    name: Vec<u8>,
}

impl Buffers {
    pub(crate) fn new(settings: &Settings) -> Buffers {
        Buffers {
            head: Head::new(),
            made: DerivedBuffers::with_room(settings.window),
            body: Vec::with_capacity(settings.window),
            inflater: Inflater::new(settings.decoded),
            handshake: Vec::with_capacity(settings.window),
            texts: Texts::with_room(settings.window),
            name: Vec::with_capacity(dns::MAX_NAME + 1),
        }
    }

    /// Inspects the new bytes of a stream.
    pub(crate) fn follow(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        let fresh = stream.side.bytes.take_fresh();
        if fresh.is_empty() || stream.side.message.phase == DEAD {
            return;
        }
        if stream.side.message.phase == UNKNOWN {
            detect(stream, subject, connection);
        }
        let window = &*stream.window;
        let unit = payload_unit(&window[..stream.side.bytes.filled()]);
        evaluator.evaluate_stream((stream.side, fresh.start), &unit, subject, connection);
        match stream.side.message.phase {
            phase if is_phase(phase) => self.http(stream, evaluator, subject, connection),
            TLS => self.tls(stream, evaluator, subject, connection),
            DNS => self.dns(stream, evaluator, subject, connection),
            _ => {}
        }
        if stream.side.bytes.end() >= stream.depth {
            stream.side.message.phase = DEAD;
        }
    }

    /// Handles the end of the stream: inspects an incomplete message.
    pub(crate) fn finish(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        self.body_so_far(stream, evaluator, subject, connection);
        stream.side.message.phase = DEAD;
    }

    /// Makes room in a full window; returns `false` if that is impossible.
    pub(crate) fn make_room(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) -> bool {
        let history = stream.window.len() / HISTORY;
        let by_history = stream.side.bytes.filled().saturating_sub(history);
        let mut by = by_history.min(self.buffered(stream.side));
        if by == 0 && by_history > 0 {
            // The message exceeds the window: the available part is inspected, and the rest skipped.
            match stream.side.message.phase {
                HEAD | TLS | DNS => {
                    evaluator.counters[counter::HTTP_LOST] += u64::from(stream.side.message.phase == HEAD);
                    stream.side.message.phase = RAW;
                }
                _ => self.body_so_far(stream, evaluator, subject, connection),
            }
            by = by_history.min(self.buffered(stream.side));
        }
        stream.side.bytes.slide(stream.window, by);
        by > 0
    }

    /// Returns the number of bytes at the window's start that no message needs.
    fn buffered(&self, side: &Side) -> usize {
        match side.message.phase {
            TLS | DNS | HEAD => side.bytes.at(side.message.start),
            phase if is_phase(phase) && side.message.flags & INSPECTED == 0 => side.bytes.at(side.message.start),
            phase if is_phase(phase) => side.bytes.at(side.message.parsed),
            _ => side.bytes.filled(),
        }
    }

    fn http(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        loop {
            match stream.advance(subject.direction) {
                Step::More => return,
                Step::Lost => {
                    let first = stream.side.message.start == 0;
                    stream.side.message.phase = RAW;
                    match first {
                        // The stream only resembled HTTP.
                        true => connection.set_app(None),
                        false => evaluator.counters[counter::HTTP_LOST] += 1,
                    }
                    return;
                }
                Step::Head => {
                    if !self.head(stream, evaluator, subject, connection) {
                        stream.side.message.phase = RAW;
                        return;
                    }
                }
                Step::End => {
                    self.body_so_far(stream, evaluator, subject, connection);
                    stream.side.message.next_message();
                }
            }
        }
    }

    /// Handles a complete message head; returns `false` if no message follows.
    fn head(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) -> bool {
        let direction = subject.direction;
        let text = stream.bytes(stream.side.message.start, stream.side.message.head_end);
        self.head.read(text, direction);
        let place = match direction {
            Direction::ToServer => Hook::Request,
            Direction::ToClient => Hook::Response,
        };
        let method = self.head.method(text);
        let (heads, tunnels) = (method == b"HEAD", method == b"CONNECT");
        let status = self.head.target(text);
        let switches = connection.has(CONNECT_REQUEST) && status.starts_with(b"2");
        let framing = self.head.framing(text, direction, connection.has(HEAD_REQUEST));
        if evaluator.rules.has_rules_at(place) {
            let mut unit = payload_unit(text);
            fill(&self.head, text, direction, &mut self.made, &mut unit);
            evaluator.evaluate(place, &unit, subject, connection);
        }
        match direction {
            Direction::ToServer => {
                connection.set(HEAD_REQUEST, heads);
                connection.set(CONNECT_REQUEST, tunnels);
            }
            Direction::ToClient if switches => return false,
            Direction::ToClient => {}
        }
        match framing {
            Some(_) if tunnels && direction == Direction::ToServer => {
                stream.side.message.begin_body(Framing::UntilClose);
                stream.side.message.flags |= INSPECTED;
                true
            }
            Some(framing) => {
                stream.side.message.begin_body(framing);
                true
            }
            None => {
                evaluator.unclear(counter::HTTP_LOST);
                false
            }
        }
    }

    /// Evaluates the rules on the available part of a message's body, unless that was done.
    fn body_so_far(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        let side = &*stream.side;
        let has_body = is_phase(side.message.phase) && side.message.phase != HEAD;
        if !has_body || side.message.flags & INSPECTED != 0 {
            return;
        }
        let (message, head_end) = (side.message.start, side.message.head_end);
        // Bytes from `parsed` on belong to the next message.
        let text = stream.bytes(message, head_end);
        let body = stream.bytes(head_end, side.message.parsed);
        let direction = subject.direction;
        let place = match direction {
            Direction::ToServer => Hook::RequestBody,
            Direction::ToClient => Hook::ResponseBody,
        };
        let body = match side.message.flags & CHUNKED {
            0 => body,
            _ => {
                self.body.clear();
                unchunk(body, &mut self.body);
                &self.body
            }
        };
        if !body.is_empty() && evaluator.rules.has_rules_at(place) {
            self.head.read(text, direction);
            let mut unit = payload_unit(stream.bytes(message, side.message.parsed));
            fill(&self.head, text, direction, &mut self.made, &mut unit);
            let buffer = match direction {
                Direction::ToServer => Buffer::RequestBody,
                Direction::ToClient => Buffer::ResponseBody,
            };
            unit.set(buffer, body);
            let coding = self.head.field(text, "content-encoding");
            let file = coding.and_then(|coding| self.inflater.decode(coding, body));
            unit.set(Buffer::FileData, file.unwrap_or(body));
            evaluator.evaluate(place, &unit, subject, connection);
        }
        stream.side.message.flags |= INSPECTED;
    }

    fn tls(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        if stream.side.bytes.end() < stream.side.message.left {
            return;
        }
        self.handshake.clear();
        let side = &*stream.side;
        let progress = handshake::handshake(stream.bytes(side.message.start, side.bytes.end()), &mut self.handshake);
        let needed = side.message.start + progress.needed as u64;
        stream.side.message.left = needed;
        // Rules are evaluated once on the name or the certificates.
        if stream.side.message.flags & INSPECTED == 0 {
            let done = match subject.direction {
                Direction::ToServer => self.hello(evaluator, subject, connection),
                Direction::ToClient => self.certificates(evaluator, subject, connection),
            };
            if done {
                stream.side.message.flags |= INSPECTED;
            }
        }
        if progress.ended {
            // The rest of the stream is encrypted.
            stream.side.message.phase = DEAD;
        }
    }

    fn hello(&self, evaluator: &mut RuleEvaluator, subject: &Subject<'_>, connection: &mut Connection) -> bool {
        let Some(name) = handshake::server_name(&self.handshake) else {
            return false;
        };
        if !name.is_empty() {
            let mut dotted = [b'.'; dns::MAX_NAME + 1];
            let length = name.len().min(dns::MAX_NAME);
            dotted[1..=length].copy_from_slice(&name[..length]);
            let mut unit = Unit::new();
            unit.set_dotted(Buffer::ServerName, &dotted[..=length]);
            evaluator.evaluate(Hook::ClientHello, &unit, subject, connection);
        }
        true
    }

    fn certificates(
        &mut self,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) -> bool {
        let Some(certificates) = handshake::certificates(&self.handshake) else {
            return false;
        };
        for (i, certificate) in certificates.enumerate() {
            let mut unit = Unit::new();
            unit.set(Buffer::Certificate, certificate);
            // Rules on the subject refer to the server's own certificate.
            if i == 0 && self.texts.read(certificate) {
                unit.set(Buffer::Subject, &self.texts.subject);
                unit.set(Buffer::Issuer, &self.texts.issuer);
                unit.set(Buffer::Serial, &self.texts.serial);
            }
            evaluator.evaluate(Hook::Certificate, &unit, subject, connection);
        }
        true
    }

    fn dns(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        loop {
            let (message, end) = (stream.side.message.start, stream.side.bytes.end());
            let [high, low, rest @ ..] = stream.bytes(message, end) else {
                return;
            };
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let Some(text) = rest.get(..length) else {
                return;
            };
            if subject.direction == Direction::ToServer && !dns::is_answer(text) {
                self.questions(text, evaluator, subject, connection);
            }
            stream.side.message.start = message + 2 + length as u64;
        }
    }

    /// Evaluates the rules on each question of a DNS message.
    pub(crate) fn questions(
        &mut self,
        message: &[u8],
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        if !evaluator.rules.has_rules_at(Hook::DnsQuery) {
            return;
        }
        dns::questions(message, &mut self.name, |name| {
            let mut unit = Unit::new();
            unit.set(BufferKey::PAYLOAD, message);
            unit.set_dotted(Buffer::DnsQuery, name);
            evaluator.evaluate(Hook::DnsQuery, &unit, subject, connection);
        });
    }
}

/// Detects the protocol from a stream's first bytes.
fn detect(stream: &mut Stream<'_>, subject: &Subject<'_>, connection: &mut Connection) {
    let bytes = &stream.filled()[..stream.side.bytes.filled().min(DETECT)];
    let app = match connection.app() {
        Some(app) => Some(app),
        None => match spoken(bytes, subject) {
            Some(found) => found,
            // More bytes may still decide.
            None if bytes.len() < DETECT => return,
            None => None,
        },
    };
    connection.set_app(app);
    let phase = match app {
        Some(App::Http) => HEAD,
        Some(App::Tls) => TLS,
        Some(App::Dns) => DNS,
        _ => RAW,
    };
    stream.side.message.begin(stream.side.bytes.base(), phase);
}

/// Returns the protocol, if known; the outer `None` means that more bytes are needed.
fn spoken(bytes: &[u8], subject: &Subject<'_>) -> Option<Option<App>> {
    let server_port = match subject.direction {
        Direction::ToServer => subject.key.destination_port(),
        Direction::ToClient => subject.key.source_port(),
    };
    let begins = |text: &[u8]| {
        let same = |(one, other): (&u8, &u8)| one.eq_ignore_ascii_case(other);
        bytes.len() >= text.len() && bytes.iter().zip(text).all(same)
    };
    if server_port == 53 {
        return Some(Some(App::Dns));
    }
    match bytes {
        [] | [tls::HANDSHAKE] => return None,
        [tls::HANDSHAKE, tls::MAJOR_VERSION, ..] => return Some(Some(App::Tls)),
        [5, 0 | 1, 0..=19, ..] => return Some(Some(App::Dcerpc)),
        [5] | [5, 0 | 1] => return None,
        [0, _, _, _, 0xff | 0xfe, b'S', b'M', b'B', ..] => return Some(Some(App::Smb)),
        [0, rest @ ..] => return if rest.len() < 7 { None } else { Some(None) },
        _ => {}
    }
    if bytes.len() < 4 {
        return None;
    }
    if begins(b"SSH-") {
        return Some(Some(App::Ssh));
    }
    match subject.direction {
        Direction::ToServer => {
            if [&b"EHLO"[..], b"HELO"].iter().any(|verb| begins(verb)) {
                return Some(Some(App::Smtp));
            }
            if server_port == 21 && [&b"USER"[..], b"AUTH"].iter().any(|verb| begins(verb)) {
                return Some(Some(App::Ftp));
            }
            let token = bytes
                .iter()
                .take_while(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_'));
            let token = token.count();
            match bytes.get(token) {
                None if token < 24 => None,
                Some(b' ') if token > 0 => Some(Some(App::Http)),
                // Empty lines before a request.
                Some(b'\r' | b'\n') if token == 0 => Some(Some(App::Http)),
                _ => Some(None),
            }
        }
        Direction::ToClient => {
            if begins(b"HTTP/") {
                return Some(Some(App::Http));
            }
            match (begins(b"220"), server_port) {
                (true, 21) => Some(Some(App::Ftp)),
                (true, 25 | 465 | 587 | 2525) => Some(Some(App::Smtp)),
                (true, _) => Some(None),
                (false, _) if bytes.len() < 5 => None,
                _ => Some(None),
            }
        }
    }
}
