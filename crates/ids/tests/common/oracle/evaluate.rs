//! Evaluation of a rule's tests on buffers, at every position.

use std::collections::HashMap;
use tailwater_ids::buffer::{Buffer, BufferKey};
use tailwater_ids::rule::*;
use tailwater_net::parse::Headers;

/// Bytes of the buffers that exist.
pub(super) type Buffers = HashMap<Buffer, Vec<u8>>;

pub(super) fn has_messages(rule: &Rule) -> bool {
    rule.parts.iter().any(|part| part.buffer.buffer != Buffer::Payload)
}

/// Returns `true` if a rule has positions relative to the start or end of the bytes.
pub(super) fn anchored(rule: &Rule) -> bool {
    rule.parts.iter().flat_map(|part| &part.tests).any(|test| match test {
        Test::Content(content) => {
            let place = &content.position;
            let relative = place.distance.is_some() || place.within.is_some();
            !relative && (place.offset > 0 || place.depth.is_some() || place.at_end)
        }
        Test::Size(_) => true,
        Test::DataAt { relative, .. } => !relative,
        Test::Compare { number, .. } | Test::Jump { number, .. } => !number.relative,
        Test::Pattern { .. } => false,
    })
}

pub(super) fn packet_tests(rule: &Rule, frame: &[u8], headers: &Headers) -> bool {
    rule.packet.iter().all(|test| match test {
        PacketTest::Number {
            field: Field::PayloadSize,
            range,
            negated,
        } => range.contains(&(headers.payload(frame).len() as u64)) != *negated,
        PacketTest::Number {
            field: Field::TimeToLive,
            range,
            negated,
        } => range.contains(&u64::from(headers.datagram(frame)[8])) != *negated,
        // Other fields are not implemented here.
        _ => false,
    })
}

pub(super) fn holds(rule: &Rule, buffers: &Buffers) -> bool {
    rule.parts.iter().all(|part| {
        let BufferKey { buffer, dotted } = part.buffer;
        buffers.get(&buffer).is_some_and(|bytes| match dotted {
            true => tests(&part.tests, &[b".", &bytes[..]].concat(), 0),
            false => tests(&part.tests, bytes, 0),
        })
    })
}

/// Tries every position of a test, one by one.
pub fn tests(all: &[Test], bytes: &[u8], at: i64) -> bool {
    let Some((test, rest)) = all.split_first() else {
        return true;
    };
    let length = bytes.len() as i64;
    match test {
        Test::Content(content) => {
            let place = &content.position;
            let size = content.bytes.len() as i64;
            let fits = |start: i64| {
                let end = start + size;
                let relative = place.distance.is_some() || place.within.is_some();
                let distance = i64::from(place.distance.unwrap_or(0));
                let from = if relative { at } else { i64::from(place.offset) };
                let there = &bytes[start as usize..end as usize];
                start >= i64::from(place.offset)
                    && (!relative || start >= at + distance)
                    && place
                        .within
                        .is_none_or(|within| end <= at + distance + i64::from(within))
                    && place.depth.is_none_or(|depth| end <= from + i64::from(depth))
                    && (!place.at_end || end == length)
                    && if content.nocase {
                        there.eq_ignore_ascii_case(&content.bytes)
                    } else {
                        there == content.bytes
                    }
            };
            let mut starts = (0..=length - size).filter(|start| fits(*start));
            match content.negated {
                true => starts.next().is_none() && tests(rest, bytes, at),
                false => starts.any(|start| tests(rest, bytes, start + size)),
            }
        }
        Test::Pattern {
            expression,
            relative,
            negated,
        } => {
            let start = if *relative { at } else { 0 };
            let Some(text) = bytes.get(start as usize..) else {
                return *negated && tests(rest, bytes, at);
            };
            if *negated {
                return expression.find(text, 0).is_none() && tests(rest, bytes, at);
            }
            (0..=text.len())
                .filter_map(|from| expression.find(text, from))
                .any(|(_, end)| tests(rest, bytes, start + end as i64))
        }
        Test::DataAt {
            bytes: wanted,
            relative,
            negated,
        } => {
            let wanted = i64::from(*wanted);
            let there = if *relative {
                at + wanted <= length
            } else {
                wanted < length
            };
            there != *negated && tests(rest, bytes, at)
        }
        Test::Size(range) => range.contains(&(bytes.len() as u64)) && tests(rest, bytes, at),
        Test::Compare {
            number,
            comparison,
            value,
            negated,
        } if number.text.is_none() => {
            let Some(found) = number_at(number, bytes, at) else {
                return false;
            };
            let compares = match comparison {
                Comparison::Less => found < *value,
                Comparison::AtMost => found <= *value,
                Comparison::Equal => found == *value,
                Comparison::Greater => found > *value,
                Comparison::AtLeast => found >= *value,
                Comparison::And => found & value != 0,
                Comparison::Or => found != *value,
            };
            compares != *negated && tests(rest, bytes, at)
        }
        // Not implemented here.
        _ => false,
    }
}

fn number_at(number: &NumberAt, bytes: &[u8], at: i64) -> Option<u64> {
    let start = number.offset + if number.relative { at } else { 0 };
    let end = start + i64::from(number.bytes);
    let mut digits = bytes
        .get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)?
        .to_vec();
    if number.little {
        digits.reverse();
    }
    Some(digits.iter().fold(0, |number, byte| number * 256 + u64::from(*byte)))
}
