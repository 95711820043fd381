//! Server name of a TLS ClientHello in pieces of any size (RFC 8446 §4.1.2, RFC 6066 §3), across any record boundaries,
//! and of the second one after a HelloRetryRequest.

use super::{CHANGE_CIPHER_SPEC, CLIENT_HELLO, FIXED, HANDSHAKE, MAJOR_VERSION, MAX_RECORD, SERVER_NAME, VECTORS};
use crate::state::{Event, MessageHandler, Parser, Text};

/// State: record header; [`Parser::position`] is the byte read next.
pub(crate) const FIRST_STATE: u8 = 64;
const RECORD_HEADER: u8 = FIRST_STATE;
/// State: content of a handshake record.
const CONTENT: u8 = 65;
/// State: content of a record to skip.
const OTHER_CONTENT: u8 = 66;

/// Steps through a ClientHello ([`Parser::step`]), in order of its fields.
const MESSAGE_TYPE: u8 = 0;
const MESSAGE_LENGTH: u8 = 1;
const SESSION_ID: u8 = 2;
const CIPHER_SUITES: u8 = 3;
const COMPRESSION: u8 = 4;
const EXTENSIONS: u8 = 5;
const EXTENSION_TYPE: u8 = 6;
const EXTENSION_LENGTH: u8 = 7;
const NAME_LIST: u8 = 8;
const NAME_TYPE: u8 = 9;
const NAME_LENGTH: u8 = 10;
const NAME: u8 = 11;
/// Bytes of each step's number.
const WIDTHS: [u8; 11] = [1, 3, VECTORS[0], VECTORS[1], VECTORS[2], 2, 2, 2, 2, 1, 2];

/// Parses a piece of the stream; see [`Parser::feed`].
pub(crate) fn feed(
    parser: &mut Parser,
    bytes: &[u8],
    text: &mut Text<'_>,
    handler: &mut impl MessageHandler,
) -> (usize, Event) {
    let mut used = 0;
    while used < bytes.len() {
        let (count, event) = if parser.state == RECORD_HEADER {
            (1, record_header(parser, bytes[used]))
        } else {
            let end = bytes.len().min(used + usize::from(parser.record));
            let (count, event) = match parser.state {
                CONTENT => message(parser, &bytes[used..end], text, handler),
                _ => (end - used, Event::More),
            };
            parser.record -= count as u16;
            if parser.record == 0 {
                (parser.state, parser.position) = (RECORD_HEADER, 0);
            }
            (count, event)
        };
        used += count;
        if event != Event::More {
            return (used, event);
        }
    }
    (used, Event::More)
}

impl Parser {
    /// Returns `true` if no ClientHello is in progress.
    fn between_hellos(&self) -> bool {
        self.step == MESSAGE_TYPE && self.pass == 0
    }
}

fn record_header(parser: &mut Parser, byte: u8) -> Event {
    let place = parser.position;
    parser.position += 1;
    match place {
        0 if byte == CHANGE_CIPHER_SPEC && parser.between_hellos() => parser.flags = OTHER_CONTENT,
        0 if byte == HANDSHAKE => parser.flags = CONTENT,
        0 => return Event::Finished,
        1 if byte != MAJOR_VERSION => return Event::Finished,
        3 => parser.record = u16::from(byte) << 8,
        4 => {
            parser.record |= u16::from(byte);
            if parser.record > MAX_RECORD {
                return Event::Finished;
            }
            parser.position = 0;
            // An empty record has no content to parse.
            if parser.record > 0 {
                parser.state = parser.flags;
            }
        }
        _ => {}
    }
    Event::More
}

/// Parses some of the handshake message: at least one byte of the non-empty input.
fn message(
    parser: &mut Parser,
    bytes: &[u8],
    text: &mut Text<'_>,
    handler: &mut impl MessageHandler,
) -> (usize, Event) {
    if parser.pass > 0 {
        let count = bytes.len().min(parser.pass as usize);
        let piece = &bytes[..count];
        if parser.step == NAME && !parser.push_host(piece, text) {
            return (count, Event::Unclear);
        }
        parser.pass -= count as u32;
        let event = match parser.pass {
            0 if parser.step == NAME => end_of_name(parser, text, handler),
            _ => Event::More,
        };
        return (count, event);
    }
    parser.number = parser.number << 8 | u64::from(bytes[0]);
    // Counts the bytes of the number read so far.
    parser.names += 1;
    if parser.names < WIDTHS[usize::from(parser.step)] {
        return (1, Event::More);
    }
    let number = parser.number;
    (parser.number, parser.names) = (0, 0);
    if parser.step == MESSAGE_TYPE && number == u64::from(CLIENT_HELLO) {
        handler.on_begin();
    }
    (1, end_of_number(parser, number))
}

fn end_of_number(parser: &mut Parser, number: u64) -> Event {
    // Numbers have at most three bytes; those stored in 16 bits have two.
    let (pass, short) = (number as u32, number as u16);
    match parser.step {
        MESSAGE_TYPE if number != u64::from(CLIENT_HELLO) => return Event::Finished,
        MESSAGE_TYPE => parser.reported = 0,
        MESSAGE_LENGTH => parser.pass = FIXED as u32,
        SESSION_ID | CIPHER_SUITES | COMPRESSION => parser.pass = pass,
        EXTENSIONS => {
            parser.extensions = short;
            return next_extension(parser);
        }
        // Holds the type until the length is known.
        EXTENSION_TYPE => parser.extension = short,
        EXTENSION_LENGTH => {
            let whole = pass + 4;
            if u32::from(parser.extensions) < whole {
                return Event::Finished;
            }
            parser.extensions -= whole as u16;
            if parser.extension != SERVER_NAME || short < 2 {
                parser.pass = pass;
                return next_extension(parser);
            }
            parser.extension = short;
        }
        NAME_LIST => {
            parser.extension -= 2;
            return next_name(parser);
        }
        NAME_LENGTH => {
            if parser.extension < short {
                return Event::Finished;
            }
            parser.extension -= short;
            parser.pass = pass;
            parser.host = 0;
            if pass == 0 {
                return next_name(parser);
            }
        }
        // Name type: only one is defined.
        _ => {}
    }
    parser.step += 1;
    Event::More
}

fn next_extension(parser: &mut Parser) -> Event {
    parser.step = EXTENSION_TYPE;
    if parser.extensions < 4 {
        // After a HelloRetryRequest a second ClientHello follows; otherwise the next message ends parsing.
        parser.pass += u32::from(parser.extensions);
        parser.step = MESSAGE_TYPE;
    }
    Event::More
}

fn next_name(parser: &mut Parser) -> Event {
    match parser.extension.checked_sub(3) {
        Some(rest) => {
            parser.extension = rest;
            parser.step = NAME_TYPE;
            Event::More
        }
        None => {
            parser.pass = u32::from(parser.extension);
            next_extension(parser)
        }
    }
}

fn end_of_name(parser: &mut Parser, text: &mut Text<'_>, handler: &mut impl MessageHandler) -> Event {
    let stops = handler.on_server_name(&text.host[..usize::from(parser.host)]);
    parser.host = 0;
    let event = next_name(parser);
    if stops { Event::ServerName } else { event }
}
