//! Protocol parsing of a stream: detection, messages, and evaluation of rules on them.

mod dns;
mod http;
mod http2;
mod messages;
mod tls;

use crate::connection::Connection;
use crate::detect::{Detected, detect};
use crate::dns::MAX_NAME;
use crate::http::DerivedBuffers;
use crate::http::body::Inflater;
use crate::http2::{HeadFields, Http2Connections, MAX_BLOCK};
use crate::packet::Subject;
use crate::phases::{DEAD, DNS, HTTP2, INSPECTED, LINES, RAW, RECORDS, TLS, UNKNOWN};
use crate::rule::{App, Direction};
use crate::rule_evaluator::{RuleEvaluator, counter, payload_unit};
use crate::settings::Settings;
use crate::stream::Side;
use crate::x509::Texts;
use tailwater_streams::http::head::Head;
use tailwater_streams::http::messages::{HEAD, Step, is_phase};
use tailwater_streams::http2::hpack::scratch_for;

/// Inverse of the share of the window that stays after inspection.
const HISTORY: usize = 4;

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
    ja3: Vec<u8>,
    texts: Texts,
    name: Vec<u8>,
    http2: Http2Connections,
    /// Names and values of a header block.
    block_text: Vec<u8>,
    fields: HeadFields,
}

impl Buffers {
    pub(crate) fn new(settings: &Settings) -> Buffers {
        Buffers {
            head: Head::new(),
            made: DerivedBuffers::with_room(settings.window),
            body: Vec::with_capacity(settings.window),
            inflater: Inflater::new(settings.decoded),
            handshake: Vec::with_capacity(settings.window),
            // Two bytes become at most five digits and a hyphen.
            ja3: Vec::with_capacity(3 * settings.window + 16),
            texts: Texts::with_room(settings.window),
            name: Vec::with_capacity(MAX_NAME + 1),
            http2: Http2Connections::new(settings.window),
            block_text: Vec::with_capacity(scratch_for(MAX_BLOCK)),
            fields: HeadFields::new(settings.window),
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
            begin(stream, evaluator, subject, connection);
        }
        let window = &*stream.window;
        let unit = payload_unit(&window[..stream.side.bytes.filled()]);
        evaluator.evaluate_stream((stream.side, fresh.start), &unit, subject, connection);
        match stream.side.message.phase {
            phase if is_phase(phase) => self.http(stream, evaluator, subject, connection),
            HTTP2 => self.http2(stream, evaluator, subject, connection),
            TLS => self.tls(stream, evaluator, subject, connection),
            DNS => self.dns(stream, evaluator, subject, connection),
            RECORDS => self.records(stream, evaluator, subject, connection),
            LINES => self.lines(stream, evaluator, subject, connection),
            _ => {}
        }
        if stream.side.bytes.end() >= stream.depth {
            if stream.side.message.phase == HTTP2 {
                self.end_of_http2(evaluator, subject, connection);
            }
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
        match stream.side.message.phase {
            phase if is_phase(phase) => self.end_of_http(stream, evaluator, subject, connection),
            HTTP2 => self.end_of_http2(evaluator, subject, connection),
            RECORDS | LINES => self.message_so_far(stream, evaluator, subject, connection),
            _ => {}
        }
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
                HEAD | TLS | DNS | HTTP2 => {
                    evaluator.counters[counter::HTTP_LOST] += u64::from(stream.side.message.phase == HEAD);
                    stream.side.message.phase = RAW;
                }
                RECORDS | LINES => self.message_so_far(stream, evaluator, subject, connection),
                _ => self.body_so_far(stream, evaluator, subject, connection),
            }
            by = by_history.min(self.buffered(stream.side));
        }
        stream.side.bytes.slide(stream.window, by);
        by > 0
    }

    /// Returns the number of bytes at the window's start that no message needs.
    fn buffered(&self, side: &Side) -> usize {
        let message = &side.message;
        let needed = match message.phase {
            TLS | DNS | HEAD => message.start,
            RECORDS | LINES if message.flags & INSPECTED == 0 => message.start,
            LINES | HTTP2 => message.parsed,
            phase if is_phase(phase) && message.flags & INSPECTED == 0 => message.start,
            phase if is_phase(phase) => message.parsed,
            _ => side.bytes.end(),
        };
        side.bytes.at(needed).min(side.bytes.filled())
    }
}

/// Detects the protocol from a stream's first bytes, and begins its messages.
fn begin(stream: &mut Stream<'_>, evaluator: &mut RuleEvaluator, subject: &Subject<'_>, connection: &mut Connection) {
    let server_port = match subject.direction {
        Direction::ToServer => subject.key.destination_port(),
        Direction::ToClient => subject.key.source_port(),
    };
    let app = match connection.app() {
        Some(app) => Some(app),
        None => match detect(stream.filled(), subject.direction, server_port) {
            Detected::Is(found) => found,
            Detected::More | Detected::ByOther => return,
        },
    };
    connection.set_app(app);
    let phase = match app {
        Some(App::Http) => HEAD,
        // The bytes in front are needed, too.
        Some(App::Http2) if stream.side.bytes.base() == 0 => HTTP2,
        Some(App::Tls) => TLS,
        Some(App::Dns) => DNS,
        Some(App::Smb | App::Dcerpc) => RECORDS,
        Some(App::Ftp | App::Smtp) => LINES,
        _ => RAW,
    };
    stream.side.message.begin(stream.side.bytes.base(), phase);
    evaluator.detected(subject, connection);
}
