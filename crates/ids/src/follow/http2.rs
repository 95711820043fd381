//! HTTP/2 messages of a stream, in cleartext.

use super::{Buffers, Stream};
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::http::body::{Inflater, codings};
use crate::http::{DerivedBuffers, fill_with_pseudo};
use crate::http2::{HeadFields, Http2Side, MAX_BLOCK, Message};
use crate::packet::Subject;
use crate::phases::{HTTP2, OPENED, RAW};
use crate::rule::{Anomalies, App, Direction};
use crate::rule_evaluator::{RuleEvaluator, counter, payload_unit};
use crate::signature::Hook;
use tailwater_streams::http::head::Head;
use tailwater_streams::http2::{Event, Unreadable};

/// Buffers for the evaluation of messages.
struct Scratch<'b> {
    head: &'b mut Head,
    made: &'b mut DerivedBuffers,
    inflater: &'b mut Inflater,
}

/// Starts HTTP/2 at an offset of a stream.
pub(super) fn begin_http2(stream: &mut Stream<'_>, offset: u64, connection: &mut Connection) {
    connection.set_app(Some(App::Http2));
    stream.side.message.begin(offset, HTTP2);
    stream.side.message.flags = 0;
}

impl Buffers {
    pub(super) fn http2(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        let read = self.http2_frames(stream, evaluator, subject, connection);
        if let Err(unreadable) = read {
            stream.side.message.phase = RAW;
            evaluator.unclear(match unreadable {
                Unreadable::Malformed => counter::HTTP2_MALFORMED,
                Unreadable::TooMuch => counter::HTTP2_OVERFLOW,
            });
        }
    }

    fn http2_frames(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) -> Result<(), Unreadable> {
        let direction = subject.direction;
        let lease = connection.lease().ok_or(Unreadable::TooMuch)?;
        let begins = stream.side.message.flags & OPENED == 0;
        if begins {
            self.http2.open(lease, subject.arrival());
        }
        let sides = self.http2.find(lease, subject.arrival()).ok_or(Unreadable::TooMuch)?;
        let [to_server, to_client] = sides;
        let (side, other) = match direction {
            Direction::ToServer => (to_server, to_client),
            Direction::ToClient => (to_client, to_server),
        };
        if begins {
            side.begin(direction);
            stream.side.message.flags |= OPENED;
        } else if !side.begun {
            // Another connection took its memory in between.
            return Err(Unreadable::TooMuch);
        }
        let mut scratch = Scratch {
            head: &mut self.head,
            made: &mut self.made,
            inflater: &mut self.inflater,
        };
        let payload = stream.filled();
        let end = stream.side.bytes.end();
        let mut parsed = stream.side.message.parsed;
        loop {
            let (used, event) = side.frames.next(stream.bytes(parsed, end))?;
            parsed += used as u64;
            match event {
                Event::More => break,
                Event::Skipped => {}
                Event::Block(bytes) => {
                    if side.block.len() + bytes.len() > MAX_BLOCK {
                        return Err(Unreadable::TooMuch);
                    }
                    side.block.extend_from_slice(bytes);
                }
                Event::BlockEnd {
                    stream: id,
                    ends_message,
                    is_promise,
                } => {
                    let fields = &mut self.fields;
                    fields.clear();
                    let (block, text) = (&side.block, &mut self.block_text);
                    side.decoder
                        .decode(block, text, |name, value| fields.add(name, value, direction))?;
                    side.block.clear();
                    if fields.truncated {
                        evaluator.unclear(counter::HTTP2_OVERFLOW);
                    }
                    if fields.is_head() && !is_promise {
                        scratch.begin_message(side, id, fields, payload, (evaluator, subject, connection));
                    }
                    if ends_message {
                        scratch.end_message(side, id, (evaluator, subject, connection));
                    }
                }
                Event::Data { stream: id, bytes } => {
                    let Some(message) = side.find(id).map(|index| &mut side.messages[index]) else {
                        continue;
                    };
                    let room = message.body.capacity() - message.body.len();
                    message.body.extend_from_slice(&bytes[..bytes.len().min(room)]);
                    if bytes.len() >= room {
                        scratch.body(message, (evaluator, subject, connection));
                    }
                }
                Event::End(id) => scratch.end_message(side, id, (evaluator, subject, connection)),
                Event::Reset(id) => {
                    scratch.end_message(side, id, (evaluator, subject, connection));
                    scratch.end_message(other, id, (evaluator, &subject.opposite(), connection));
                }
            }
        }
        stream.side.message.parsed = parsed;
        Ok(())
    }

    /// Handles the end of a stream of HTTP/2: inspects incomplete messages.
    pub(super) fn end_of_http2(
        &mut self,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        let lease = connection.lease();
        let sides = lease.and_then(|lease| self.http2.find(lease, subject.arrival()));
        let Some(side) = sides.map(|sides| &mut sides[subject.direction.index()]) else {
            return;
        };
        let mut scratch = Scratch {
            head: &mut self.head,
            made: &mut self.made,
            inflater: &mut self.inflater,
        };
        for message in side.messages.iter_mut().filter(|message| message.stream != 0) {
            scratch.body(message, (evaluator, subject, connection));
            message.stream = 0;
        }
    }
}

/// Evaluator with the subject and its connection.
type Evaluation<'e, 's> = (&'e mut RuleEvaluator, &'e Subject<'s>, &'e mut Connection);

impl Scratch<'_> {
    /// Starts a stream's message, and evaluates the rules on its head.
    fn begin_message(
        &mut self,
        side: &mut Http2Side,
        id: u32,
        fields: &HeadFields,
        payload: &[u8],
        (evaluator, subject, connection): Evaluation<'_, '_>,
    ) {
        let index = side.claim(id);
        let message = &mut side.messages[index];
        if message.stream != 0 && message.stream != id {
            // Too many messages at a time: the oldest one is inspected as far as it is there.
            evaluator.unclear(counter::HTTP2_OVERFLOW);
            self.body(message, (evaluator, subject, connection));
        }
        (message.stream, message.inspected) = (id, false);
        message.body.clear();
        fields.write(subject.direction, message);
        let place = match subject.direction {
            Direction::ToServer => Hook::Request,
            Direction::ToClient => Hook::Response,
        };
        if evaluator.rules.has_rules_at(place) {
            self.head.read(&message.head, subject.direction);
            let mut unit = payload_unit(payload);
            let texts = [&message.head[..], &message.pseudo];
            fill_with_pseudo(self.head, texts, subject.direction, self.made, &mut unit);
            evaluator.evaluate(place, &unit, subject, connection);
        }
    }

    /// Ends a stream's message.
    fn end_message(&mut self, side: &mut Http2Side, id: u32, evaluation: Evaluation<'_, '_>) {
        if let Some(message) = side.find(id).map(|index| &mut side.messages[index]) {
            self.body(message, evaluation);
            message.stream = 0;
        }
    }

    /// Evaluates the rules on the available part of a message's body, unless that was done.
    fn body(&mut self, message: &mut Message, (evaluator, subject, connection): Evaluation<'_, '_>) {
        let direction = subject.direction;
        let (place, buffer) = match direction {
            Direction::ToServer => (Hook::RequestBody, Buffer::RequestBody),
            Direction::ToClient => (Hook::ResponseBody, Buffer::ResponseBody),
        };
        if message.inspected || message.body.is_empty() || !evaluator.rules.has_rules_at(place) {
            return;
        }
        message.inspected = true;
        let (text, body) = (&message.head[..], &message.body[..]);
        self.head.read(text, direction);
        let (decoded, failed) = self.inflater.decode(&codings(self.head, text).0, body);
        // Receivers differ in what they show of a body that is not in its coding.
        for shown in [decoded, (failed || decoded.is_none()).then_some(body)]
            .into_iter()
            .flatten()
        {
            let mut unit = payload_unit(body);
            fill_with_pseudo(self.head, [text, &message.pseudo], direction, self.made, &mut unit);
            unit.set(buffer, if direction == Direction::ToClient { shown } else { body });
            unit.set(Buffer::FileData, shown);
            evaluator.evaluate(place, &unit, subject, connection);
        }
        if failed {
            for position in Anomalies::CODING_FAILED.positions() {
                evaluator.counters[counter::HTTP_ANOMALIES + position] += 1;
            }
        }
    }
}
