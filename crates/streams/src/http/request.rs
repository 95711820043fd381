//! HTTP/1.x requests in pieces of any size, parsed as a lenient server does. The handler receives the request line's
//! target and every Host field; bodies are skipped by their framing.

use super::host::{Host, MAX_HOST};
use super::target::{authority, hex, normalize};
use super::{Reading, is_blank, is_token};
use crate::state::{Event, MessageHandler, Parser, START, Text};

/// State: method and target, up to the line's end.
pub(crate) const FIRST_STATE: u8 = REQUEST_LINE;
const REQUEST_LINE: u8 = 1;
/// State: start of a line in the header section.
const LINE: u8 = 2;
/// State: a carriage return at the start of a line.
const LINE_CR: u8 = 3;
const NAME: u8 = 4;
/// State: a field's value; one state per field name.
const HOST: u8 = 5;
const CONTENT_LENGTH: u8 = 6;
const TRANSFER_ENCODING: u8 = 7;
const OTHER: u8 = 8;
const CHUNK_SIZE: u8 = 9;
const CHUNK_EXTENSION: u8 = 10;
/// State: line end after a chunk.
const CHUNK_END: u8 = 11;
const TRAILER: u8 = 12;
const TRAILER_LINE: u8 = 13;

/// Field names of interest. A name's index is its bit in [`Parser::names`], and its state's offset from [`HOST`].
const NAMES: [&[u8]; 3] = [b"host", b"content-length", b"transfer-encoding"];
const ALL_NAMES: u8 = 0b111;

/// Flag: the body is chunked.
const CHUNKED: u8 = 1;
/// Flag: the framing is contradictory or not a number.
const BAD_FRAMING: u8 = 2;
/// Flag: a complete Content-Length was read.
const HAS_LENGTH: u8 = 4;
/// Flag: the method is CONNECT, so there is no path.
const CONNECT: u8 = 8;
/// Flag: a digit was read since the value's start.
const DIGIT: u8 = 16;
/// Flag: white space followed a digit; a further digit would start another number.
const GAP: u8 = 32;

/// Longest method, in bytes.
const MAX_METHOD: usize = 32;
const CHUNKED_CODING: &[u8] = b"chunked";

/// Parses a piece of the stream, at most to the end of the message; see [`Parser::feed`].
pub(crate) fn feed(
    parser: &mut Parser,
    bytes: &[u8],
    text: &mut Text<'_>,
    handler: &mut impl MessageHandler,
) -> (usize, Event) {
    let mut used = 0;
    while used < bytes.len() && parser.state != START {
        let (count, event) = step(parser, &bytes[used..], text, handler);
        used += count;
        if event != Event::More {
            return (used, event);
        }
    }
    (used, Event::More)
}

/// Returns the bytes up to the line's end, their number including the line end, and whether the line end is present.
fn rest_of_line(bytes: &[u8]) -> (&[u8], usize, bool) {
    match memchr::memchr(b'\n', bytes) {
        Some(end) => (&bytes[..end], end + 1, true),
        None => (bytes, bytes.len(), false),
    }
}

/// Parses at least one byte of the non-empty input.
fn step(parser: &mut Parser, bytes: &[u8], text: &mut Text<'_>, handler: &mut impl MessageHandler) -> (usize, Event) {
    let first = bytes[0];
    match parser.state {
        REQUEST_LINE => {
            let (piece, used, ended) = rest_of_line(bytes);
            let start = usize::from(parser.target);
            let Some(room) = text.target.get_mut(start..start + piece.len()) else {
                return (used, Event::Unclear);
            };
            room.copy_from_slice(piece);
            parser.target += piece.len() as u16;
            let line = &text.target[..usize::from(parser.target)];
            if !may_be_request(line) {
                return (used, Event::Finished);
            }
            let event = if ended {
                request_line(parser, text, handler)
            } else {
                Event::More
            };
            (used, event)
        }
        LINE if first == b'\r' => {
            parser.state = LINE_CR;
            (1, Event::More)
        }
        LINE | LINE_CR if first == b'\n' => (1, end_of_head(parser)),
        LINE if is_blank(first) => {
            // A folded line continues the previous value (RFC 9112 §5.2).
            parser.state = parser.names;
            (1, Event::More)
        }
        LINE | LINE_CR => {
            (parser.state, parser.names, parser.position) = (NAME, ALL_NAMES, 0);
            (0, Event::More)
        }
        NAME => (field_name(parser, bytes), Event::More),
        HOST => {
            let (piece, used, ended) = rest_of_line(bytes);
            for part in piece.split(|b| is_blank(*b) || *b == b'\r') {
                if !parser.push_host(part, text) {
                    return (used, Event::Unclear);
                }
            }
            let stops = ended && {
                end_of_line(parser);
                let path = &text.target[..usize::from(parser.target)];
                let path = (parser.flags & CONNECT == 0).then_some(path);
                Host::new(&text.host[..usize::from(parser.host)]).is_some_and(|host| handler.on_host(&host, path))
            };
            (used, if stops { Event::Url } else { Event::More })
        }
        CONTENT_LENGTH => (content_length(parser, bytes), Event::More),
        TRANSFER_ENCODING => (transfer_encoding(parser, bytes), Event::More),
        CHUNK_SIZE => chunk_size(parser, first),
        CHUNK_EXTENSION => {
            let (_, used, ended) = rest_of_line(bytes);
            let event = if ended { end_of_chunk_size(parser) } else { Event::More };
            (used, event)
        }
        CHUNK_END => match first {
            b'\r' => (1, Event::More),
            b'\n' => {
                parser.state = CHUNK_SIZE;
                (1, Event::More)
            }
            _ => (1, Event::Unclear),
        },
        TRAILER => {
            match first {
                b'\r' => {}
                b'\n' => parser.state = START,
                _ => parser.state = TRAILER_LINE,
            }
            (1, Event::More)
        }
        TRAILER_LINE => {
            let (_, used, ended) = rest_of_line(bytes);
            if ended {
                parser.state = TRAILER;
            }
            (used, Event::More)
        }
        // Only `OTHER` remains.
        _ => {
            let (_, used, ended) = rest_of_line(bytes);
            if ended {
                end_of_line(parser);
            }
            (used, Event::More)
        }
    }
}

/// Ends a field's line; the next line may continue it.
fn end_of_line(parser: &mut Parser) {
    parser.names = parser.state;
    parser.state = LINE;
}

/// Returns `true` if a partial line may be a request's: a method, blanks, and a visible character.
fn may_be_request(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let head = &line[..line.len().min(MAX_METHOD + 1)];
    let method = head.iter().position(|&b| is_blank(b)).unwrap_or(head.len());
    if method > MAX_METHOD || !head[..method].iter().copied().all(is_token) {
        return false;
    }
    let target = line[method..].iter().find(|&&b| !is_blank(b));
    target.is_none_or(|&b| b > b' ' && b != 0x7f)
}

/// Returns the target's start and end in a request line that ends at `line.len()`, and its version.
fn split_line(line: &[u8]) -> Option<(usize, usize, &[u8])> {
    let method_end = line.iter().position(|&b| is_blank(b))?;
    let start = method_end + line[method_end..].iter().position(|&b| !is_blank(b))?;
    let target = &line[start..];
    let last = target.iter().rposition(|&b| is_blank(b));
    let version = last.map(|at| &target[at + 1..]).filter(|version| {
        let name = version.get(..5).unwrap_or_default();
        name.eq_ignore_ascii_case(b"HTTP/")
    });
    let end = match (version, last) {
        (Some(_), Some(at)) => start + target[..at].trim_ascii_end().len(),
        _ => line.len(),
    };
    Some((start, end, version.unwrap_or_default()))
}

/// Handles a complete request line, and replaces it by the normalised path.
fn request_line(parser: &mut Parser, text: &mut Text<'_>, handler: &mut impl MessageHandler) -> Event {
    let line = text.target[..usize::from(parser.target)].trim_ascii_end();
    if line.starts_with(b"PROXY ") {
        // A load balancer's line at the start of the stream (PROXY protocol version 1).
        *parser = parser.anew();
        return Event::More;
    }
    let Some((start, end, version)) = split_line(line) else {
        return Event::Finished;
    };
    let is_get = line.starts_with(b"GET ") || line.starts_with(b"GET\t");
    let is_connect = line
        .get(..8)
        .is_some_and(|head| head.trim_ascii_end().eq_ignore_ascii_case(b"CONNECT"));
    let simple = version.is_empty();
    if (simple && !is_get) || version.get(5) == Some(&b'2') {
        return Event::Finished;
    }
    handler.on_begin();
    parser.state = LINE;
    parser.names = OTHER;
    let target = &line[start..end];
    let (authority, path_start) = if is_connect {
        parser.flags |= CONNECT;
        (Some(target), end)
    } else {
        match authority(target, Reading::Lenient) {
            Some(range) => (Some(&target[range.clone()]), start + range.end),
            None => (None, start),
        }
    };
    let too_long = authority.is_some_and(|authority| authority.len() > MAX_HOST);
    let (has_authority, host) = (authority.is_some(), authority.and_then(Host::new));
    // A method and a blank stood before, so there is room for the slash a path may lack.
    text.target.copy_within(path_start..end, 1);
    text.target[0] = b'/';
    let rooted = has_authority && !matches!(text.target[1..1 + end - path_start], [b'/' | b'\\', ..]);
    let from = usize::from(!rooted);
    let normal = normalize(&mut text.target[from..1 + end - path_start]);
    text.target.copy_within(from..from + normal, 0);
    // An empty path becomes the root, so that the target is never empty within a header section.
    if normal == 0 {
        text.target[0] = b'/';
    }
    parser.target = normal.max(1) as u16;
    if too_long {
        return Event::Unclear;
    }
    let path = &text.target[..usize::from(parser.target)];
    let visible_path = (!is_connect).then_some(path);
    let stops = visible_path.is_some_and(|path| handler.on_path(path))
        || host.is_some_and(|host| handler.on_host(&host, visible_path));
    match (stops, simple) {
        (true, _) => Event::Url,
        (false, true) => Event::Finished,
        (false, false) => Event::More,
    }
}

/// Reads a field's name up to the colon, or until it matches no name of interest.
fn field_name(parser: &mut Parser, bytes: &[u8]) -> usize {
    for (i, &byte) in bytes.iter().enumerate() {
        match byte {
            b':' => {
                let length = usize::from(parser.position);
                let found = NAMES
                    .iter()
                    .enumerate()
                    .position(|(k, name)| parser.names & 1 << k != 0 && name.len() == length);
                begin_value(parser, found);
                return i + 1;
            }
            // Some servers ignore white space before the colon.
            byte if is_blank(byte) => continue,
            _ => {}
        }
        let lower = byte.to_ascii_lowercase();
        for (k, name) in NAMES.iter().enumerate() {
            if name.get(usize::from(parser.position)) != Some(&lower) {
                parser.names &= !(1 << k);
            }
        }
        if parser.names == 0 {
            // This byte is not consumed: it may be the line's end.
            parser.state = OTHER;
            return i;
        }
        parser.position += 1;
    }
    bytes.len()
}

fn begin_value(parser: &mut Parser, name: Option<usize>) {
    parser.state = name.map_or(OTHER, |name| HOST + name as u8);
    match parser.state {
        HOST => parser.host = 0,
        CONTENT_LENGTH => {
            if parser.flags & HAS_LENGTH != 0 {
                parser.flags |= BAD_FRAMING;
            }
            parser.flags &= !(DIGIT | GAP);
            parser.number = 0;
        }
        _ => parser.position = 0,
    }
}

fn content_length(parser: &mut Parser, bytes: &[u8]) -> usize {
    for (i, &byte) in bytes.iter().enumerate() {
        match byte {
            b'0'..=b'9' if parser.flags & GAP == 0 => {
                parser.flags |= DIGIT;
                let number = parser.number.checked_mul(10);
                match number.and_then(|number| number.checked_add(u64::from(byte - b'0'))) {
                    Some(number) => parser.number = number,
                    None => parser.flags |= BAD_FRAMING,
                }
            }
            b' ' | b'\t' | b'\r' if parser.flags & DIGIT == 0 => {}
            b' ' | b'\t' | b'\r' => parser.flags |= GAP,
            b'\n' => {
                parser.flags |= HAS_LENGTH | GAP;
                if parser.flags & DIGIT == 0 {
                    parser.flags |= BAD_FRAMING;
                }
                end_of_line(parser);
                return i + 1;
            }
            _ => parser.flags |= BAD_FRAMING,
        }
    }
    bytes.len()
}

fn transfer_encoding(parser: &mut Parser, bytes: &[u8]) -> usize {
    for (i, &byte) in bytes.iter().enumerate() {
        if byte == b'\n' {
            end_of_line(parser);
            return i + 1;
        }
        let place = usize::from(parser.position);
        let lower = byte.to_ascii_lowercase();
        // "chunked" contains no second "c", so a failed match restarts with this byte or the next.
        parser.position = match CHUNKED_CODING.get(place) {
            Some(&wanted) if wanted == lower => parser.position + 1,
            _ => u8::from(lower == b'c'),
        };
        if usize::from(parser.position) == CHUNKED_CODING.len() {
            parser.flags |= CHUNKED;
            parser.position = 0;
        }
    }
    bytes.len()
}

/// Handles the end of the header section: a body or the next request follows.
fn end_of_head(parser: &mut Parser) -> Event {
    let (flags, length) = (parser.flags, parser.number);
    *parser = parser.anew();
    // With both, servers differ in which they use (RFC 9112 §6.3), and a request can hide in the difference.
    const BOTH: u8 = CHUNKED | HAS_LENGTH;
    if flags & BAD_FRAMING != 0 || flags & BOTH == BOTH {
        return Event::Unclear;
    }
    if flags & CONNECT != 0 {
        return Event::More;
    }
    if flags & CHUNKED != 0 {
        parser.state = CHUNK_SIZE;
        return Event::More;
    }
    if flags & HAS_LENGTH != 0 && length > 0 {
        return Event::Skip(length);
    }
    Event::More
}

fn chunk_size(parser: &mut Parser, byte: u8) -> (usize, Event) {
    let event = match (byte, hex(byte)) {
        (_, Some(digit)) if parser.number >> 56 == 0 => {
            parser.number = parser.number << 4 | u64::from(digit);
            parser.flags |= DIGIT;
            Event::More
        }
        (b'\n', _) => end_of_chunk_size(parser),
        (b';' | b' ' | b'\t' | b'\r', _) => {
            parser.state = CHUNK_EXTENSION;
            Event::More
        }
        _ => Event::Unclear,
    };
    (1, event)
}

fn end_of_chunk_size(parser: &mut Parser) -> Event {
    let (size, any) = (parser.number, parser.flags & DIGIT != 0);
    *parser = parser.anew();
    match size {
        _ if !any => Event::Unclear,
        0 => {
            parser.state = TRAILER;
            Event::More
        }
        size => {
            parser.state = CHUNK_END;
            Event::Skip(size)
        }
    }
}
