//! DNS messages over TCP, and the questions of all DNS messages.

use super::{Buffers, Stream};
use crate::buffer::{Buffer, BufferKey};
use crate::connection::Connection;
use crate::dns;
use crate::packet::Subject;
use crate::rule::Direction;
use crate::rule_evaluator::RuleEvaluator;
use crate::signature::Hook;
use crate::unit::Unit;

impl Buffers {
    pub(super) fn dns(
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
