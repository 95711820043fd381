//! HTTP/1.x messages of a stream.

use super::http2::begin_http2;
use super::{Buffers, Stream};
use crate::buffer::Buffer;
use crate::connection::{CONNECT_REQUEST, Connection, HEAD_REQUEST};
use crate::http::body::codings;
use crate::http::fill;
use crate::packet::Subject;
use crate::phases::{HTTP2, INSPECTED, RAW};
use crate::rule::Direction;
use crate::rule_evaluator::{RuleEvaluator, counter, payload_unit};
use crate::signature::Hook;
use tailwater_streams::http::anomalies::Anomalies;
use tailwater_streams::http::chunks::unchunk;
use tailwater_streams::http::head::{Framing, Head};
use tailwater_streams::http::messages::{CHUNKED, HEAD, Step, is_phase};

/// Readings of an anomalous body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// As the head says.
    AsFramed,
    /// As it is.
    Plain,
    /// Without a second head, chunks, and the content coding that its bytes show.
    Guessed,
}

impl Buffers {
    pub(super) fn http(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        loop {
            let step = stream.advance(subject.direction);
            if !stream.side.message.anomalies.is_empty() {
                evaluator.count_anomalies(&mut stream.side.message);
            }
            match step {
                // A body without a head needs no step of its own: all that follows is its body.
                Step::Headless => {}
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
                    if stream.side.message.phase == HTTP2 {
                        return self.http2(stream, evaluator, subject, connection);
                    }
                }
                Step::End => {
                    self.body_so_far(stream, evaluator, subject, connection);
                    stream.side.message.next_message();
                }
            }
        }
    }

    /// Handles the end of a stream of HTTP messages.
    pub(super) fn end_of_http(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        if stream.side.message.is_within_body() {
            stream.side.message.anomalies |= Anomalies::TRUNCATED;
            evaluator.count_anomalies(&mut stream.side.message);
        }
        self.body_so_far(stream, evaluator, subject, connection);
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
        if direction == Direction::ToServer && self.head.line(text) == b"PRI * HTTP/2.0" {
            // HTTP/2 behind an upgrade.
            let start = stream.side.message.start;
            begin_http2(stream, start, connection);
            return true;
        }
        let method = self.head.method(text);
        let (heads, tunnels) = (method == b"HEAD", method == b"CONNECT");
        let status = self.head.target(text);
        let upgrade = self.head.field(text, "upgrade");
        let upgrades = status == b"101" && upgrade.is_some_and(|name| name.eq_ignore_ascii_case(b"h2c"));
        let switches = connection.has(CONNECT_REQUEST) && status.starts_with(b"2");
        let framing = self.head.framing(text, direction, connection.has(HEAD_REQUEST));
        let (_, odd) = codings(&self.head, text);
        let mut anomalies = self.head.anomalies();
        anomalies.add_if(odd, Anomalies::CONTENT_CODING);
        if evaluator.rules.has_rules_at(place) {
            let mut unit = payload_unit(text);
            fill(&self.head, text, direction, &mut self.made, &mut unit);
            evaluator.anomalies = anomalies;
            evaluator.evaluate(place, &unit, subject, connection);
            evaluator.anomalies = Anomalies::NONE;
        }
        if !anomalies.is_empty() {
            stream.side.message.anomalies |= anomalies;
            evaluator.count_anomalies(&mut stream.side.message);
        }
        match direction {
            Direction::ToServer => {
                connection.set(HEAD_REQUEST, heads);
                connection.set(CONNECT_REQUEST, tunnels);
            }
            Direction::ToClient if switches => return false,
            Direction::ToClient if upgrades => {
                let end = stream.side.message.head_end;
                begin_http2(stream, end, connection);
                return true;
            }
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
    pub(super) fn body_so_far(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        let message = &stream.side.message;
        let has_body = is_phase(message.phase) && message.phase != HEAD;
        if !has_body || message.flags & INSPECTED != 0 {
            return;
        }
        let place = match subject.direction {
            Direction::ToServer => Hook::RequestBody,
            Direction::ToClient => Hook::ResponseBody,
        };
        if message.parsed > message.head_end && evaluator.rules.has_rules_at(place) {
            let text = stream.bytes(message.start, message.head_end);
            self.head.read(text, subject.direction);
            let failed = self.body(Reading::AsFramed, stream, evaluator, subject, connection);
            stream.side.message.anomalies.add_if(failed, Anomalies::CODING_FAILED);
            if !stream.side.message.anomalies.is_empty() {
                evaluator.count_anomalies(&mut stream.side.message);
                // Receivers differ in what they show: rules are evaluated on what any of them may show.
                self.body(Reading::Plain, stream, evaluator, subject, connection);
                self.body(Reading::Guessed, stream, evaluator, subject, connection);
            }
        }
        stream.side.message.flags |= INSPECTED;
    }

    /// Evaluates the rules on a reading of the available part of a body. Returns `true` if the body is not in its
    /// content coding.
    fn body(
        &mut self,
        reading: Reading,
        stream: &Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) -> bool {
        let message = &stream.side.message;
        let direction = subject.direction;
        let text = stream.bytes(message.start, message.head_end);
        // Bytes from `parsed` on belong to the next message.
        let raw = stream.bytes(message.head_end, message.parsed);
        let mut body = raw;
        if reading == Reading::Guessed || reading == Reading::AsFramed && message.flags & CHUNKED != 0 {
            let odd = reading == Reading::Guessed && message.anomalies.intersects(Anomalies::LINE_END);
            let second = if odd { Head::behind_second(raw) } else { None };
            self.body.clear();
            unchunk(&raw[second.unwrap_or(0)..], &mut self.body);
            body = &self.body;
        }
        let (decoded, failed) = match reading {
            Reading::AsFramed => self.inflater.decode(&codings(&self.head, text).0, body),
            Reading::Plain => (None, false),
            Reading::Guessed => (self.inflater.guess(body), false),
        };
        let known = match reading {
            Reading::AsFramed => false,
            // It equals the framed reading.
            Reading::Plain => message.flags & CHUNKED == 0 && codings(&self.head, text).0.is_empty(),
            Reading::Guessed => decoded.is_none() && (body == raw || message.flags & CHUNKED != 0),
        };
        if known || body.is_empty() {
            return failed;
        }
        let (place, buffer) = match direction {
            Direction::ToServer => (Hook::RequestBody, Buffer::RequestBody),
            Direction::ToClient => (Hook::ResponseBody, Buffer::ResponseBody),
        };
        let mut unit = payload_unit(stream.bytes(message.start, message.parsed));
        fill(&self.head, text, direction, &mut self.made, &mut unit);
        let shown = decoded.unwrap_or(body);
        unit.set(buffer, if direction == Direction::ToClient { shown } else { body });
        unit.set(Buffer::FileData, shown);
        evaluator.anomalies = message.anomalies;
        evaluator.evaluate(place, &unit, subject, connection);
        evaluator.anomalies = Anomalies::NONE;
        failed
    }
}
