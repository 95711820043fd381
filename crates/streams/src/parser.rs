//! Protocol detection, and parsing of streams in pieces.

use crate::http::{is_token, request};
use crate::state::{Event, MessageHandler, Parser, START, Text};
use crate::tls::{self, hello};

impl Parser {
    /// Parses a piece of the stream and returns the number of bytes used. Events other than [`Event::More`] may leave
    /// bytes unused.
    pub fn feed(&mut self, bytes: &[u8], text: &mut Text<'_>, handler: &mut impl MessageHandler) -> (usize, Event) {
        let mut used = 0;
        while used < bytes.len() {
            if self.state == START {
                // Empty lines may precede a request (RFC 9112 §2.2).
                let blank = |b: &&u8| matches!(b, b'\r' | b'\n');
                used += bytes[used..].iter().take_while(blank).count();
                let Some(&first) = bytes.get(used) else {
                    break;
                };
                let state = match first {
                    tls::HANDSHAKE if handler.inspects_tls() => hello::FIRST_STATE,
                    first if handler.inspects_http() && is_token(first) => request::FIRST_STATE,
                    _ => return (used, Event::Finished),
                };
                *self = Parser { state, ..self.anew() };
            }
            let (count, event) = if self.state >= hello::FIRST_STATE {
                hello::feed(self, &bytes[used..], text, handler)
            } else {
                request::feed(self, &bytes[used..], text, handler)
            };
            used += count;
            if event != Event::More {
                return (used, event);
            }
        }
        (used, Event::More)
    }
}
