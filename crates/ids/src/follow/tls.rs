//! TLS up to its encryption: the client's server name and the server's certificates.

use super::{Buffers, Stream};
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::dns;
use crate::packet::Subject;
use crate::phases::{DEAD, INSPECTED};
use crate::rule::Direction;
use crate::rule_evaluator::RuleEvaluator;
use crate::signature::Hook;
use crate::unit::Unit;
use md5::{Digest, Md5};
use tailwater_streams::tls::handshake;

impl Buffers {
    pub(super) fn tls(
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

    fn hello(&mut self, evaluator: &mut RuleEvaluator, subject: &Subject<'_>, connection: &mut Connection) -> bool {
        let Some(name) = handshake::server_name(&self.handshake) else {
            return false;
        };
        let mut unit = Unit::new();
        let mut dotted = [b'.'; dns::MAX_NAME + 1];
        let length = name.len().min(dns::MAX_NAME);
        dotted[1..=length].copy_from_slice(&name[..length]);
        if !name.is_empty() {
            unit.set_dotted(Buffer::ServerName, &dotted[..=length]);
        }
        let mut digits = [0; 32];
        if evaluator.rules.has_ja3_rules() && handshake::ja3(&self.handshake, &mut self.ja3) {
            for (i, byte) in Md5::digest(&self.ja3).iter().enumerate() {
                let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
                (digits[2 * i], digits[2 * i + 1]) = (digit(byte >> 4), digit(byte & 15));
            }
            unit.set(Buffer::Ja3Hash, &digits);
            unit.set(Buffer::Ja3String, &self.ja3);
        } else if name.is_empty() {
            return true;
        }
        evaluator.evaluate(Hook::ClientHello, &unit, subject, connection);
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
}
