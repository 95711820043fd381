//! Parsers of rule options, by keyword.

mod contents;
mod flows;
mod headers;
mod payload_numbers;
mod values;

use super::draft::Draft;
use super::expressions::Expressions;
use super::numbers::{range, signed, within};
use super::options::{Opt, unescaped};
use super::problem::{Problem, nearest};
use crate::buffer::{Buffer, BufferKey};
use crate::rule::{Field, PacketTest, Test};
use contents::{content, lower_nocase, modified, moved, pcre};
use flows::{flow, flowbits, threshold, xbits};
use headers::{field, http_event, ip_protocol, stream_size, tcp_flags};
use payload_numbers::{byte_jump, byte_test, data_at};
use values::{FAR, number, one_of, plain, text, value};

/// Parser of an option, which updates the draft.
type Read = fn(&mut Draft, &Opt<'_>) -> Result<(), Problem>;

/// Keywords with their parsers. Buffer names are in [`Buffer::ALL`].
const KEYWORDS: [(&str, Read); 53] = [
    ("msg", |draft, option| {
        let text = text(option)?;
        draft.about.message = unescaped(text);
        Ok(())
    }),
    ("sid", |draft, option| {
        draft.about.sid = number(option, u32::MAX.into())?;
        draft.has_sid = true;
        match draft.about.sid {
            0 => Err(Problem::wrong("expected a sid above 0")),
            _ => Ok(()),
        }
    }),
    ("gid", |draft, option| {
        draft.about.generator = number(option, u32::MAX.into())?;
        Ok(())
    }),
    ("rev", |draft, option| {
        draft.about.revision = number(option, u32::MAX.into())?;
        Ok(())
    }),
    ("classtype", |draft, option| {
        draft.about.class = value(option)?.to_owned();
        Ok(())
    }),
    ("priority", |draft, option| {
        draft.about.priority = Some(number(option, 255)?);
        Ok(())
    }),
    ("metadata", |draft, option| {
        for pair in value(option)?.split(',') {
            let pair = pair.trim();
            let (key, value) = pair.split_once(' ').unwrap_or((pair, ""));
            let pair = (key.to_owned(), value.trim().to_owned());
            draft.about.metadata.push(pair);
        }
        Ok(())
    }),
    // Informative only.
    ("reference", |_, option| value(option).map(drop)),
    ("target", |_, option| {
        one_of(value(option)?, &[("src_ip", ()), ("dest_ip", ())])
    }),
    ("noalert", |draft, _| {
        draft.silent = true;
        Ok(())
    }),
    ("flow", |draft, option| flow(draft, value(option)?)),
    ("flowbits", |draft, option| flowbits(draft, value(option)?)),
    ("threshold", |draft, option| {
        draft.thresholds.push(threshold(value(option)?, false)?);
        Ok(())
    }),
    ("detection_filter", |draft, option| {
        draft.thresholds.push(threshold(value(option)?, true)?);
        Ok(())
    }),
    ("content", |draft, option| content(draft, value(option)?)),
    ("nocase", |draft, _| {
        modified(draft)?.nocase = true;
        Ok(())
    }),
    ("offset", |draft, option| {
        let text = plain(option)?;
        modified(draft)?.position.offset = within(text, FAR).map_err(Problem::wrong)?;
        Ok(())
    }),
    ("depth", |draft, option| {
        let text = plain(option)?;
        modified(draft)?.position.depth = Some(within(text, FAR).map_err(Problem::wrong)?);
        Ok(())
    }),
    ("distance", |draft, option| {
        let text = plain(option)?;
        let number = signed(text, FAR as i64).map_err(Problem::wrong)?;
        modified(draft)?.position.distance = Some(number as i32);
        Ok(())
    }),
    ("within", |draft, option| {
        let text = plain(option)?;
        let number = signed(text, FAR as i64).map_err(Problem::wrong)?;
        modified(draft)?.position.within = Some(number as i32);
        Ok(())
    }),
    ("startswith", |draft, _| {
        let content = modified(draft)?;
        if content.position.is_relative() || content.position.is_anchored() {
            return Err(Problem::wrong(
                "expected startswith without offset, depth, distance and within, and before endswith",
            ));
        }
        content.position.depth = Some(content.bytes.len() as u32);
        Ok(())
    }),
    ("endswith", |draft, _| {
        modified(draft)?.position.at_end = true;
        Ok(())
    }),
    ("fast_pattern", |draft, option| {
        if let Some(value) = option.value
            && value != "only"
        {
            // The engine selects the part of the content to search for, so the numbers are only checked.
            for number in value.split(',') {
                within::<u32>(number, FAR).map_err(Problem::wrong)?;
            }
        }
        modified(draft)?.fast = true;
        Ok(())
    }),
    // Payloads are never decoded.
    ("rawbytes", |draft, _| modified(draft).map(drop)),
    ("dotprefix", |draft, _| match draft.current {
        Some(key) if key.buffer != Buffer::Payload => {
            draft.current = Some(BufferKey { dotted: true, ..key });
            Ok(())
        }
        _ => Err(Problem::wrong("expected a buffer in front of dotprefix")),
    }),
    ("isdataat", |draft, option| data_at(draft, value(option)?)),
    ("byte_test", |draft, option| byte_test(draft, value(option)?)),
    ("byte_jump", |draft, option| byte_jump(draft, value(option)?)),
    ("bsize", |draft, option| {
        let (range, negated) = range(value(option)?, u32::MAX.into()).map_err(Problem::wrong)?;
        if negated {
            return Err(Problem::unsupported("bsize: negated"));
        }
        draft.test(Test::Size(range));
        Ok(())
    }),
    ("urilen", |draft, option| {
        let text = value(option)?;
        let (text, buffer) = match text.split_once(',') {
            None => (text, Buffer::Uri),
            Some((text, which)) => {
                let kinds = [("norm", Buffer::Uri), ("raw", Buffer::RawUri)];
                (text, one_of(which.trim(), &kinds)?)
            }
        };
        let (range, negated) = range(text, u16::MAX.into()).map_err(Problem::wrong)?;
        if negated {
            return Err(Problem::unsupported("urilen: negated"));
        }
        draft.test_of(buffer.into(), Test::Size(range));
        Ok(())
    }),
    ("dsize", |draft, option| {
        field(draft, option, Field::PayloadSize, u16::MAX.into())
    }),
    ("itype", |draft, option| field(draft, option, Field::IcmpType, 255)),
    ("icode", |draft, option| field(draft, option, Field::IcmpCode, 255)),
    ("icmp_id", |draft, option| {
        field(draft, option, Field::IcmpId, u16::MAX.into())
    }),
    ("icmp_seq", |draft, option| {
        field(draft, option, Field::IcmpSequence, u16::MAX.into())
    }),
    ("ttl", |draft, option| field(draft, option, Field::TimeToLive, 255)),
    ("id", |draft, option| {
        field(draft, option, Field::Identification, u16::MAX.into())
    }),
    ("seq", |draft, option| {
        field(draft, option, Field::Sequence, u32::MAX.into())
    }),
    ("ack", |draft, option| {
        field(draft, option, Field::Acknowledgement, u32::MAX.into())
    }),
    ("window", |draft, option| {
        field(draft, option, Field::Window, u16::MAX.into())
    }),
    ("tcp.seq", |draft, option| {
        field(draft, option, Field::Sequence, u32::MAX.into())
    }),
    ("tcp.ack", |draft, option| {
        field(draft, option, Field::Acknowledgement, u32::MAX.into())
    }),
    ("ip_proto", |draft, option| ip_protocol(draft, value(option)?)),
    ("flags", |draft, option| tcp_flags(draft, value(option)?)),
    ("tcp.flags", |draft, option| tcp_flags(draft, value(option)?)),
    ("sameip", |draft, _| {
        draft.packet.push(PacketTest::SameAddress);
        Ok(())
    }),
    ("app-layer-event", |draft, option| http_event(draft, value(option)?)),
    ("xbits", |_, option| xbits(value(option)?)),
    ("stream_size", |draft, option| stream_size(draft, value(option)?)),
    // Old syntax: moves the preceding content to a buffer.
    ("http_uri", |draft, _| moved(draft, Buffer::Uri)),
    ("http_header", |draft, _| moved(draft, Buffer::Header)),
    ("http_user_agent", |draft, _| moved(draft, Buffer::UserAgent)),
    ("http_client_body", |draft, _| moved(draft, Buffer::RequestBody)),
];

/// Further buffer names that move the preceding content.
const MOVING: [&str; 12] = [
    "http_raw_uri",
    "http_method",
    "http_host",
    "http_raw_host",
    "http_cookie",
    "http_raw_header",
    "http_stat_code",
    "http_stat_msg",
    "http_server_body",
    "http_content_type",
    "http_content_len",
    "http_protocol",
];

/// Parses the options.
pub(super) fn read(options: &[Opt<'_>], expressions: &mut Expressions) -> Result<Draft, Problem> {
    let mut draft = Draft::default();
    draft.about.generator = 1;
    let mut unsupported = None;
    for option in options {
        let outcome = match option.name {
            "pcre" => pcre(&mut draft, option, expressions),
            name => keyword(&mut draft, name, option),
        };
        match outcome {
            Ok(()) => {}
            // Errors take precedence over unsupported options.
            Err(problem @ Problem::Unsupported(_)) => {
                unsupported.get_or_insert(problem);
            }
            Err(problem) => return Err(problem.shifted(option.at)),
        }
    }
    match unsupported {
        Some(problem) => Err(problem),
        None => {
            lower_nocase(&mut draft);
            Ok(draft)
        }
    }
}

fn keyword(draft: &mut Draft, name: &str, option: &Opt<'_>) -> Result<(), Problem> {
    if let Some((_, read)) = KEYWORDS.iter().find(|(known, _)| *known == name) {
        return read(draft, option);
    }
    let buffer = Buffer::ALL.iter().find(|(_, names)| names.contains(&name));
    if let Some(&(buffer, _)) = buffer {
        if MOVING.contains(&name) {
            return moved(draft, buffer);
        }
        draft.current = Some(buffer.into());
        draft.last = None;
        return Ok(());
    }
    let buffers = Buffer::ALL.iter().flat_map(|(_, names)| names.iter());
    let names = KEYWORDS.iter().map(|(name, _)| *name);
    let near = nearest(name, names.chain(buffers.copied()).chain(["pcre"]));
    let near = near.filter(|near| near != name).filter(|_| !KNOWN.contains(&name));
    let near = near.map_or(String::new(), |near| format!(" (did you mean \"{near}\"?)"));
    Err(Problem::unsupported(format!("option {name}{near}")))
}

/// Keywords supported by Suricata but not here.
const KNOWN: [&str; 7] = [
    "ja3s.hash",
    "tag",
    "flowint",
    "asn1",
    "tls.version",
    "ssh_proto",
    "ssh.proto",
];
