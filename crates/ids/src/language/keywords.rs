//! Parsers of rule options, by keyword.

use super::draft::Draft;
use super::numbers::{is_name, range, signed, whole, within};
use super::options::{Opt, bytes, quotation, unescaped};
use super::problem::{Problem, nearest, quoted};
use crate::buffer::{Buffer, BufferKey};
use crate::pattern::{Expression, ExpressionError, Flags};
use crate::rule::{
    Bit, Comparison, Content, Direction, Field, FlagsMode, FlagsTest, FlowBit, NumberAt, PacketTest,
    PositionConstraint, Test, Threshold, ThresholdKind, Track,
};
use std::collections::HashMap;
use std::sync::Arc;

/// Largest position of contents and numbers, in bytes: beyond any packet or window.
const FAR: u64 = 1 << 24;

/// Cache of compiled expressions, which rules often share.
#[derive(Debug, Default)]
pub(super) struct Expressions(HashMap<(String, String), Result<Arc<Expression>, ExpressionError>>);

impl Expressions {
    fn get(&mut self, source: &str, letters: &str, flags: Flags) -> Result<Arc<Expression>, ExpressionError> {
        let key = (source.to_owned(), letters.to_owned());
        let known = self.0.entry(key);
        known
            .or_insert_with(|| Expression::new(source, flags).map(Arc::new))
            .clone()
    }
}

/// Parser of an option, which updates the draft.
type Read = fn(&mut Draft, &Opt<'_>) -> Result<(), Problem>;

/// Keywords with their parsers. Buffer names are in [`Buffer::ALL`].
const KEYWORDS: [(&str, Read); 51] = [
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
const KNOWN: [&str; 12] = [
    "ja3.hash",
    "ja3s.hash",
    "ja3_hash",
    "ja3.string",
    "xbits",
    "tag",
    "flowint",
    "asn1",
    "tls.version",
    "ssh_proto",
    "app-layer-event",
    "ssh.proto",
];

fn value<'a>(option: &Opt<'a>) -> Result<&'a str, Problem> {
    match option.value {
        Some(value) if !value.is_empty() => Ok(value),
        _ => Err(Problem::wrong(format!("expected a value for {}", option.name))),
    }
}

/// Returns a quoted value.
fn text<'a>(option: &Opt<'a>) -> Result<&'a str, Problem> {
    match quotation(value(option)?) {
        Some((false, text)) => Ok(text),
        _ => Err(Problem::wrong(format!(
            "expected a text in quotation marks for {}",
            option.name
        ))),
    }
}

/// Returns a value that is not a rule variable.
fn plain<'a>(option: &Opt<'a>) -> Result<&'a str, Problem> {
    let value = value(option)?;
    match is_name(value) {
        true => Err(Problem::unsupported(format!("{}: variable", option.name))),
        false => Ok(value),
    }
}

fn number<T: TryFrom<u64>>(option: &Opt<'_>, most: u64) -> Result<T, Problem> {
    within(value(option)?, most).map_err(Problem::wrong)
}

fn one_of<T: Copy>(text: &str, words: &[(&'static str, T)]) -> Result<T, Problem> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        Problem::Wrong {
            at: 0,
            message: format!("expected one of {}, found {}", names.join(", "), quoted(text)),
            suggestion: nearest(text, names.into_iter()),
        }
    })
}

fn modified(draft: &mut Draft) -> Result<&mut Content, Problem> {
    let content = draft.content();
    content.ok_or_else(|| Problem::wrong("expected a content in front of it, found none"))
}

fn moved(draft: &mut Draft, buffer: Buffer) -> Result<(), Problem> {
    draft.move_content(buffer).map_err(Problem::wrong)
}

fn content(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    let Some((negated, text)) = quotation(value) else {
        return Err(Problem::wrong("expected a content in quotation marks"));
    };
    let bytes = bytes(text).map_err(Problem::wrong)?;
    if bytes.is_empty() {
        return Err(Problem::wrong("expected a content of one byte at least"));
    }
    if bytes.len() > 1024 {
        return Err(Problem::wrong(format!(
            "expected a content of up to 1,024 bytes, found {}",
            bytes.len()
        )));
    }
    draft.test(Test::Content(Content {
        bytes,
        nocase: false,
        negated,
        position: PositionConstraint::default(),
        fast: false,
    }));
    Ok(())
}

/// Converts case-insensitive contents to lower case.
fn lower_nocase(draft: &mut Draft) {
    for test in draft.parts.iter_mut().flat_map(|part| &mut part.tests) {
        if let Test::Content(content) = test
            && content.nocase
        {
            content.bytes.make_ascii_lowercase();
        }
    }
}

fn pcre(draft: &mut Draft, option: &Opt<'_>, expressions: &mut Expressions) -> Result<(), Problem> {
    let Some((negated, text)) = quotation(value(option)?) else {
        return Err(Problem::wrong("expected an expression in quotation marks"));
    };
    let inside = text.strip_prefix('/').and_then(|text| text.rsplit_once('/'));
    let Some((source, letters)) = inside else {
        return Err(Problem::wrong("expected an expression between slashes"));
    };
    let (mut flags, mut relative, mut buffer) = (Flags::default(), false, None);
    for letter in letters.chars() {
        match letter {
            'i' => flags.nocase = true,
            's' => flags.dot_all = true,
            'm' => flags.multi_line = true,
            'x' => flags.extended = true,
            'A' => flags.anchored = true,
            'E' => flags.dollar_end = true,
            'G' => flags.ungreedy = true,
            'R' => relative = true,
            // There are no limits to ignore, and payloads are never decoded.
            'O' | 'B' => {}
            'U' => buffer = Some(Buffer::Uri),
            'I' => buffer = Some(Buffer::RawUri),
            'P' => buffer = Some(Buffer::RequestBody),
            'Q' => buffer = Some(Buffer::ResponseBody),
            'H' => buffer = Some(Buffer::Header),
            'D' => buffer = Some(Buffer::RawHeader),
            'M' => buffer = Some(Buffer::Method),
            'C' => buffer = Some(Buffer::Cookie),
            'S' => buffer = Some(Buffer::StatusCode),
            'Y' => buffer = Some(Buffer::StatusMessage),
            'V' => buffer = Some(Buffer::UserAgent),
            'W' => buffer = Some(Buffer::Host),
            'Z' => buffer = Some(Buffer::RawHost),
            _ => {
                return Err(Problem::wrong(format!(
                    "expected flags of an expression, found \"{letter}\""
                )));
            }
        }
    }
    let expression = expressions.get(source, letters, flags).map_err(|no| match no {
        ExpressionError::Unsupported(what) => Problem::unsupported(what),
        ExpressionError::Wrong(what) => Problem::wrong(format!("pcre {}: {what}", quoted(source))),
    })?;
    let test = Test::Pattern {
        expression,
        relative,
        negated,
    };
    match buffer {
        Some(buffer) => draft.test_of(buffer.into(), test),
        None => draft.test(test),
    }
    Ok(())
}

fn flow(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    type Set = fn(&mut crate::rule::Flow);
    const WORDS: [(&str, Set); 9] = [
        ("to_server", |flow| flow.direction = Some(Direction::ToServer)),
        ("from_client", |flow| flow.direction = Some(Direction::ToServer)),
        ("to_client", |flow| flow.direction = Some(Direction::ToClient)),
        ("from_server", |flow| flow.direction = Some(Direction::ToClient)),
        ("established", |flow| flow.established = Some(true)),
        ("not_established", |flow| flow.established = Some(false)),
        ("stateless", |flow| flow.established = None),
        ("only_stream", |flow| flow.stream = Some(true)),
        ("no_stream", |flow| flow.stream = Some(false)),
    ];
    for word in value.split(',').map(str::trim) {
        if matches!(word, "only_frag" | "no_frag") {
            return Err(Problem::unsupported(format!("flow: {word}")));
        }
        one_of(word, &WORDS)?(&mut draft.flow);
    }
    Ok(())
}

fn flowbits(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    let (what, names) = value.split_once(',').unwrap_or((value, ""));
    if what.trim() == "noalert" {
        draft.silent = true;
        return Ok(());
    }
    let what = one_of(
        what.trim(),
        &[
            ("set", Bit::Set),
            ("unset", Bit::Unset),
            ("toggle", Bit::Toggle),
            ("isset", Bit::IsSet),
            ("isnotset", Bit::IsNotSet),
        ],
    )?;
    let names: Vec<String> = names.split('|').map(|name| name.trim().to_owned()).collect();
    let wrong = names.iter().any(|name| name.is_empty() || name.contains([',', ' ']));
    if wrong || (names.len() > 1 && !matches!(what, Bit::IsSet | Bit::IsNotSet)) {
        let found = quoted(value);
        return Err(Problem::wrong(format!("expected the name of a flowbit, found {found}")));
    }
    draft.bits.push(FlowBit { operation: what, names });
    Ok(())
}

fn threshold(value: &str, filter: bool) -> Result<Threshold, Problem> {
    let (mut kind, mut track, mut count, mut seconds) = (None, None, None, None);
    for pair in value.split(',') {
        let mut words = pair.split_whitespace();
        let (Some(key), Some(word), None) = (words.next(), words.next(), words.next()) else {
            let found = quoted(pair);
            return Err(Problem::wrong(format!("expected a word and its value, found {found}")));
        };
        match key {
            "type" if !filter => {
                let kinds = [
                    ("limit", ThresholdKind::Limit),
                    ("threshold", ThresholdKind::Threshold),
                    ("both", ThresholdKind::Both),
                ];
                kind = Some(one_of(word, &kinds)?);
            }
            "track" => {
                let tracks = [
                    ("by_src", Track::Source),
                    ("by_dst", Track::Destination),
                    ("by_both", Track::Both),
                    ("by_rule", Track::Rule),
                ];
                track = Some(one_of(word, &tracks)?);
            }
            "count" => count = Some(within(word, u64::from(u16::MAX)).map_err(Problem::wrong)?),
            "seconds" => seconds = Some(within(word, 1 << 20).map_err(Problem::wrong)?),
            _ => {
                let found = quoted(key);
                return Err(Problem::wrong(format!(
                    "expected type, track, count or seconds, found {found}"
                )));
            }
        }
    }
    let kind = if filter { Some(ThresholdKind::Filter) } else { kind };
    match (kind, track, count, seconds) {
        (Some(kind), Some(track), Some(count @ 1..), Some(seconds @ 1..)) => Ok(Threshold {
            kind,
            track,
            count,
            seconds,
        }),
        _ => Err(Problem::wrong(
            "expected type, track, count and seconds, the last two above 0",
        )),
    }
}

fn data_at(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    let (negated, rest) = match value.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let mut words = rest.split(',').map(str::trim);
    let number = words.next().unwrap_or_default();
    if is_name(number) {
        return Err(Problem::unsupported("isdataat: variable"));
    }
    let mut relative = false;
    for word in words {
        relative |= one_of(word, &[("relative", true), ("rawbytes", false)])?;
    }
    draft.test(Test::DataAt {
        bytes: within(number, FAR).map_err(Problem::wrong)?,
        relative,
        negated,
    });
    Ok(())
}

/// Parses an option common to `byte_test` and `byte_jump`; returns `false` if the word is another one.
fn number_option(number: &mut NumberAt, word: &str) -> Result<bool, Problem> {
    match word {
        "relative" => number.relative = true,
        "little" => number.little = true,
        "big" => number.little = false,
        "string" => number.text = number.text.or(Some(10)),
        "hex" => number.text = Some(16),
        "dec" => number.text = Some(10),
        "oct" => number.text = Some(8),
        "dce" => return Err(Problem::unsupported("byte order dce")),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Checks that a number of this many bytes can be read.
fn check_number(number: &NumberAt) -> Result<(), Problem> {
    match (number.text, number.bytes) {
        (None, 1..=8) | (Some(_), 0..=23) => Ok(()),
        _ => Err(Problem::wrong(
            "expected a number of 1 to 8 bytes, or one of up to 23 digits",
        )),
    }
}

fn number_at(bytes: &str, offset: &str, option: &str) -> Result<NumberAt, Problem> {
    if is_name(bytes) || is_name(offset) {
        return Err(Problem::unsupported(format!("{option}: variable")));
    }
    Ok(NumberAt {
        bytes: within(bytes, 23).map_err(Problem::wrong)?,
        offset: signed(offset, FAR as i64).map_err(Problem::wrong)?,
        relative: false,
        little: false,
        text: None,
    })
}

fn byte_test(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    let words: Vec<&str> = value.split(',').map(str::trim).collect();
    let [bytes, operator, operand, offset, options @ ..] = &words[..] else {
        return Err(Problem::wrong("expected bytes, an operator, a value and an offset"));
    };
    let (negated, operator) = match operator.strip_prefix('!') {
        Some("") => (true, "="),
        Some(rest) => (true, rest.trim()),
        None => (false, *operator),
    };
    let comparison = one_of(
        operator,
        &[
            ("<", Comparison::Less),
            ("<=", Comparison::AtMost),
            ("=", Comparison::Equal),
            (">", Comparison::Greater),
            (">=", Comparison::AtLeast),
            ("&", Comparison::And),
            ("^", Comparison::Or),
        ],
    )?;
    let mut number = number_at(bytes, offset, "byte_test")?;
    if is_name(operand) {
        return Err(Problem::unsupported("byte_test: variable"));
    }
    for word in options {
        if word.starts_with("bitmask") {
            return Err(Problem::unsupported("byte_test: bitmask"));
        }
        if !number_option(&mut number, word)? {
            let found = quoted(word);
            return Err(Problem::wrong(format!(
                "expected an option of byte_test, found {found}"
            )));
        }
    }
    check_number(&number)?;
    let operand = whole(operand);
    draft.test(Test::Compare {
        number,
        comparison,
        value: operand.ok_or_else(|| Problem::wrong("expected a number to compare with"))?,
        negated,
    });
    Ok(())
}

fn byte_jump(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    let words: Vec<&str> = value.split(',').map(str::trim).collect();
    let [bytes, offset, options @ ..] = &words[..] else {
        return Err(Problem::wrong("expected bytes and an offset"));
    };
    let mut number = number_at(bytes, offset, "byte_jump")?;
    let (mut multiplier, mut align, mut from_start, mut more) = (1, false, false, 0);
    for word in options {
        let (key, argument) = word.split_once(' ').unwrap_or((word, ""));
        match key {
            "align" => align = true,
            "from_beginning" => from_start = true,
            "multiplier" => multiplier = within(argument, 65_535).map_err(Problem::wrong)?,
            "post_offset" if is_name(argument) => {
                return Err(Problem::unsupported("byte_jump: variable"));
            }
            "post_offset" => more = signed(argument, FAR as i64).map_err(Problem::wrong)?,
            "from_end" | "bitmask" => {
                return Err(Problem::unsupported(format!("byte_jump: {key}")));
            }
            _ if number_option(&mut number, word)? => {}
            _ => {
                let found = quoted(word);
                return Err(Problem::wrong(format!(
                    "expected an option of byte_jump, found {found}"
                )));
            }
        }
    }
    check_number(&number)?;
    draft.test(Test::Jump {
        number,
        multiplier,
        align,
        from_start,
        more,
    });
    Ok(())
}

fn field(draft: &mut Draft, option: &Opt<'_>, field: Field, most: u64) -> Result<(), Problem> {
    let (range, negated) = range(value(option)?, most).map_err(Problem::wrong)?;
    draft.packet.push(PacketTest::Number { field, range, negated });
    Ok(())
}

fn ip_protocol(draft: &mut Draft, value: &str) -> Result<(), Problem> {
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

fn tcp_flags(draft: &mut Draft, value: &str) -> Result<(), Problem> {
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

fn stream_size(draft: &mut Draft, value: &str) -> Result<(), Problem> {
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
