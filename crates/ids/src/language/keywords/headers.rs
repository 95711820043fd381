//! Tests of a packet's headers.

use super::values::value;
use crate::language::draft::Draft;
use crate::language::numbers::{range, within};
use crate::language::options::Opt;
use crate::language::problem::Problem;
use crate::rule::{Anomalies, Direction, Field, FlagsMode, FlagsTest, PacketTest};

pub(super) fn field(draft: &mut Draft, option: &Opt<'_>, field: Field, most: u64) -> Result<(), Problem> {
    let (range, negated) = range(value(option)?, most).map_err(Problem::wrong)?;
    draft.packet.push(PacketTest::Number { field, range, negated });
    Ok(())
}

pub(super) fn ip_protocol(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    const NAMES: [(&str, u64); 10] = [
        ("icmp", 1),
        ("igmp", 2),
        ("tcp", 6),
        ("udp", 17),
        ("ipv6", 41),
        ("gre", 47),
        ("esp", 50),
        ("ah", 51),
        ("icmpv6", 58),
        ("sctp", 132),
    ];
    let plain = value.trim_start_matches('!').trim();
    let named = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(plain));
    let (range, negated) = match named {
        Some((_, number)) => (*number..=*number, value.starts_with('!')),
        None => range(value, 255).map_err(Problem::wrong)?,
    };
    draft.packet.push(PacketTest::Number {
        field: Field::IpProtocol,
        range,
        negated,
    });
    Ok(())
}

pub(super) fn tcp_flags(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    let letters = |text: &str| {
        text.trim().chars().try_fold(0, |flags, letter| {
            let bit = match letter.to_ascii_uppercase() {
                'F' => 0x01,
                'S' => 0x02,
                'R' => 0x04,
                'P' => 0x08,
                'A' => 0x10,
                'U' => 0x20,
                '2' | 'E' => 0x40,
                '1' | 'C' => 0x80,
                '0' => 0,
                _ => {
                    return Err(Problem::wrong(format!(
                        "expected letters of TCP flags (FSRPAU12CE0), found \"{letter}\""
                    )));
                }
            };
            Ok(flags | bit)
        })
    };
    let (flags, ignored) = value.split_once(',').unwrap_or((value, ""));
    let (mode, flags) = match flags.trim().split_at_checked(1) {
        Some(("*", rest)) => (FlagsMode::AnyOf, rest),
        Some(("+", rest)) => (FlagsMode::AllOf, rest),
        Some(("!", rest)) => (FlagsMode::NoneOf, rest),
        _ => (FlagsMode::Exactly, flags),
    };
    draft.packet.push(PacketTest::Flags(FlagsTest {
        flags: letters(flags)?,
        ignored: letters(ignored)?,
        mode,
    }));
    Ok(())
}

pub(super) fn stream_size(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    let words: Vec<&str> = value.split(',').map(str::trim).collect();
    let [side, operator, number] = words[..] else {
        return Err(Problem::wrong("expected a side, an operator and a number"));
    };
    let direction = match side {
        "server" => Direction::ToClient,
        "client" => Direction::ToServer,
        "both" | "either" => {
            return Err(Problem::unsupported(format!("stream_size: {side}")));
        }
        _ => {
            return Err(Problem::wrong("expected client or server as the side of stream_size"));
        }
    };
    let number: u64 = within(number, u32::MAX.into()).map_err(Problem::wrong)?;
    let most = u64::from(u32::MAX) + 1;
    let (range, negated) = match operator {
        "=" => (number..=number, false),
        "!=" => (number..=number, true),
        "<" => (0..=number.wrapping_sub(1).min(most), false),
        ">" => (number + 1..=most, false),
        "<=" => (0..=number, false),
        ">=" => (number..=most, false),
        _ => return Err(Problem::wrong("expected one of = != < > <= >=")),
    };
    draft.packet.push(PacketTest::Number {
        field: Field::StreamSize(direction),
        range,
        negated,
    });
    Ok(())
}

/// Events of HTTP messages, without the direction some end with.
const HTTP_EVENTS: [(&str, Anomalies); 10] = [
    ("invalid_transfer_encoding_value", Anomalies::TRANSFER_CODING),
    ("response_abnormal_transfer_encoding", Anomalies::TRANSFER_CODING),
    ("response_chunked_old_proto", Anomalies::CHUNKED_OLD),
    ("invalid_content_length_field", Anomalies::LENGTH),
    ("invalid_request_chunk_len", Anomalies::CHUNK),
    ("invalid_response_chunk_len", Anomalies::CHUNK),
    ("abnormal_ce_header", Anomalies::CONTENT_CODING),
    ("gzip_decompression_failed", Anomalies::CODING_FAILED),
    ("response_invalid_protocol", Anomalies::FIRST_LINE),
    ("invalid_response_field_folding", Anomalies::FOLDED),
];

/// Parses an event of an HTTP message.
pub(super) fn http_event(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    let event = value.strip_prefix("http.").unwrap_or_default();
    let (event, direction) = match event.rsplit_once("_in_") {
        Some((event, "request")) => (event, Some(Direction::ToServer)),
        Some((event, "response")) => (event, Some(Direction::ToClient)),
        _ if event.contains("request") => (event, Some(Direction::ToServer)),
        _ => (event, Some(Direction::ToClient)),
    };
    let Some((_, anomalies)) = HTTP_EVENTS.iter().find(|(name, _)| *name == event) else {
        return Err(Problem::unsupported(format!("app-layer-event {value}")));
    };
    draft.flow.direction = draft.flow.direction.or(direction);
    draft.packet.push(PacketTest::HttpEvent(*anomalies));
    Ok(())
}
