//! Messages of protocols without buffers of their own: rules with positions are evaluated from each message's start.

use super::{Buffers, Stream};
use crate::connection::Connection;
use crate::packet::Subject;
use crate::phases::{INSPECTED, MAIL, RAW};
use crate::rule::App;
use crate::rule_evaluator::{RuleEvaluator, counter, payload_unit};
use crate::signature::Hook;
use memchr::memchr;

/// Bytes of an incomplete message at which rules are evaluated on it.
const ENOUGH: u64 = 1024;
/// Largest number of messages of a packet on which rules are evaluated.
const MAX_MESSAGES: usize = 64;
/// Header of a NetBIOS session message, and that of a DCE/RPC message, in bytes.
const NETBIOS_HEADER: u64 = 4;
const DCERPC_HEADER: u64 = 16;

impl Buffers {
    /// Inspects messages with a length in front.
    pub(super) fn records(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        let dcerpc = connection.is_app(App::Dcerpc);
        let end = stream.side.bytes.end();
        for _ in 0..=MAX_MESSAGES {
            let start = stream.side.message.start;
            let length = match record_length(stream.bytes(start, end), dcerpc) {
                Ok(Some(length)) => length,
                Ok(None) => return,
                Err(()) => {
                    stream.side.message.phase = RAW;
                    return;
                }
            };
            let there = end.saturating_sub(start).min(length);
            if there == length || there >= ENOUGH {
                self.message_so_far(stream, evaluator, subject, connection);
            }
            if there < length {
                return;
            }
            stream.side.message.start = start + length;
            stream.side.message.flags &= !INSPECTED;
        }
        // The rest is counted, and skipped at the next packet.
        evaluator.counters[counter::BUDGET] += 1;
        stream.side.message.phase = RAW;
    }

    /// Inspects lines.
    pub(super) fn lines(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        let end = stream.side.bytes.end();
        let mut messages = 0;
        loop {
            let (start, parsed) = (stream.side.message.start, stream.side.message.parsed);
            let text = stream.bytes(start, end);
            if let [0x16, 3, ..] = text {
                // TLS from here on (STARTTLS).
                stream.side.message.phase = RAW;
                return;
            }
            let rest = stream.bytes(parsed, end);
            let Some(at) = memchr(b'\n', rest) else {
                stream.side.message.parsed = end;
                if end - start >= ENOUGH {
                    self.message_so_far(stream, evaluator, subject, connection);
                }
                return;
            };
            let next = parsed + at as u64 + 1;
            let line = stream.bytes(start, next).trim_ascii();
            let mail = stream.side.message.flags & MAIL != 0;
            let (begins, ends) = (line.eq_ignore_ascii_case(b"DATA"), line == b".");
            stream.side.message.parsed = next;
            if !mail && messages < MAX_MESSAGES {
                self.message_so_far(stream, evaluator, subject, connection);
                messages += 1;
            }
            evaluator.counters[counter::BUDGET] += u64::from(!mail && messages == MAX_MESSAGES);
            let mail = match mail {
                true => !ends,
                false => begins && connection.is_app(App::Smtp),
            };
            stream.side.message.start = next;
            stream.side.message.flags = if mail { MAIL } else { 0 };
        }
    }

    /// Evaluates the rules on the available part of the message, unless that was done.
    pub(super) fn message_so_far(
        &mut self,
        stream: &mut Stream<'_>,
        evaluator: &mut RuleEvaluator,
        subject: &Subject<'_>,
        connection: &mut Connection,
    ) {
        let message = &stream.side.message;
        if message.flags & (INSPECTED | MAIL) == 0 {
            // A record ends at its length, a line where it was parsed to.
            let end = match connection.app() {
                Some(App::Ftp | App::Smtp) => message.parsed,
                app => {
                    let all = stream.bytes(message.start, stream.side.bytes.end());
                    let length = record_length(all, app == Some(App::Dcerpc)).ok().flatten().unwrap_or(0);
                    (message.start + length).min(stream.side.bytes.end())
                }
            };
            let unit = payload_unit(stream.bytes(message.start, end));
            evaluator.evaluate(Hook::message(subject.direction), &unit, subject, connection);
        }
        stream.side.message.flags |= INSPECTED;
    }
}

/// Returns the length of the first message with its header; `None` if more bytes are needed.
///
/// # Errors
/// The bytes are no message.
fn record_length(bytes: &[u8], dcerpc: bool) -> Result<Option<u64>, ()> {
    if !dcerpc {
        return match bytes {
            // Session message, request, answers and keep-alive (RFC 1002 §4.3.1).
            [0 | 0x81..=0x85, high, middle, low, ..] => {
                let length = u64::from(u32::from_be_bytes([0, *high, *middle, *low]));
                Ok(Some(NETBIOS_HEADER + length))
            }
            [_, _, _, _, ..] => Err(()),
            _ => Ok(None),
        };
    }
    match bytes {
        [5, _, _, _, order, _, _, _, one, other, ..] => {
            let pair = [*one, *other];
            let length = match order & 0x10 {
                0 => u16::from_be_bytes(pair),
                _ => u16::from_le_bytes(pair),
            };
            match u64::from(length) {
                length @ DCERPC_HEADER.. => Ok(Some(length)),
                _ => Err(()),
            }
        }
        [5, ..] | [] => Ok(None),
        _ => Err(()),
    }
}
