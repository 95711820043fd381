//! Protocol detection, and parser state common to both protocols.
//!
//! Bytes come in order, in pieces of any size. The registers ([`Parser`]) are small and live in the flow state. Text to
//! keep (a request's target, a host) is in [`Text`], and only while [`Parser::holds_text`].

use super::normalize::{Host, MAX_HOST};
use super::table::UrlTable;
use super::{http, tls};
use bytemuck::{Pod, Zeroable};

/// Buffers for a stream's text.
pub(crate) struct Text<'a> {
    /// Request line, replaced at its end by the normalised path.
    pub(crate) target: &'a mut [u8],
    /// Host field or server name, [`MAX_HOST`] bytes.
    pub(crate) host: &'a mut [u8],
}

/// Context for pattern lookups.
pub(crate) struct Lookup<'a> {
    pub(crate) table: &'a UrlTable,
    /// Buffer to join host and path.
    pub(crate) joined: &'a mut Vec<u8>,
    /// Destination port of the packets.
    pub(crate) port: u16,
    /// `true` if HTTP requests are inspected.
    pub(crate) http: bool,
    /// `true` if ClientHellos are inspected.
    pub(crate) tls: bool,
    /// Set when a request or a ClientHello has started.
    pub(crate) begun: bool,
}

impl Lookup<'_> {
    /// Returns `true` if a request's host is blocked, together with its path if there is one.
    pub(crate) fn url(&mut self, host: &Host, path: Option<&[u8]>) -> bool {
        let ports = [host.port.unwrap_or(80), self.port];
        self.table.blocks(host, ports, path, self.joined)
    }

    /// Returns `true` if the server name of a ClientHello is blocked.
    pub(crate) fn server_name(&mut self, name: &[u8]) -> bool {
        Host::new(name).is_some_and(|host| self.table.blocks(&host, [self.port; 2], None, self.joined))
    }
}

/// Result of parsing a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// All bytes were used; more may follow.
    More,
    /// Skip this many of the following bytes.
    Skip(u64),
    /// The URL is blocked.
    Url,
    /// The server name is blocked.
    ServerName,
    /// Nothing of interest follows.
    Finished,
    /// Too long, or framed such that the next request's start is ambiguous: the rest cannot be interpreted.
    Unclear,
}

/// Parser registers.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Parser {
    /// Number being read.
    pub(crate) number: u64,
    /// TLS: bytes to skip within the handshake message.
    pub(crate) pass: u32,
    /// Bytes of [`Text::target`] used.
    pub(crate) target: u16,
    /// Bytes of [`Text::host`] used.
    pub(crate) host: u16,
    /// TLS: bytes left of the record.
    pub(crate) record: u16,
    /// TLS: bytes left of the list of extensions.
    pub(crate) extensions: u16,
    /// TLS: bytes left of the extension.
    pub(crate) extension: u16,
    /// State of the protocol's parser.
    pub(crate) state: u8,
    /// HTTP: bytes of a name read. TLS: bytes of a record's header read.
    pub(crate) position: u8,
    /// HTTP: bitmap of names the current one may still be. TLS: bytes of the number read.
    pub(crate) names: u8,
    /// HTTP: properties of the message. TLS: the state that follows a record's header.
    pub(crate) flags: u8,
    /// TLS: field being read.
    pub(crate) step: u8,
    /// Nonzero if a match in this message was reported.
    pub(crate) reported: u8,
    /// Number of the buffer pool of the stream's buffer, if it has one. Not used by the parser.
    pub(crate) pool: u32,
}

/// State between messages. HTTP uses the states above it, TLS those from [`tls::FIRST_STATE`] on.
pub(crate) const START: u8 = 0;

impl Parser {
    /// Returns initial registers that preserve the buffer pool's number.
    pub(crate) fn anew(&self) -> Parser {
        Parser {
            pool: self.pool,
            ..Parser::default()
        }
    }

    /// Parses a piece of the stream and returns the number of bytes used. Events other than [`Event::More`] may leave
    /// bytes unused.
    pub(crate) fn feed(&mut self, bytes: &[u8], text: &mut Text<'_>, lookup: &mut Lookup<'_>) -> (usize, Event) {
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
                    tls::HANDSHAKE if lookup.tls => tls::FIRST_STATE,
                    first if lookup.http && http::is_token(first) => http::FIRST_STATE,
                    _ => return (used, Event::Finished),
                };
                *self = Parser { state, ..self.anew() };
            }
            let (count, event) = if self.state >= tls::FIRST_STATE {
                tls::feed(self, &bytes[used..], text, lookup)
            } else {
                http::feed(self, &bytes[used..], text, lookup)
            };
            used += count;
            if event != Event::More {
                return (used, event);
            }
        }
        (used, Event::More)
    }

    /// Returns `true` if [`Text`] holds bytes.
    pub(crate) fn holds_text(&self) -> bool {
        self.target > 0 || self.host > 0
    }

    /// Appends to the host; returns `false` if it is too long.
    pub(crate) fn push_host(&mut self, bytes: &[u8], text: &mut Text<'_>) -> bool {
        let start = usize::from(self.host);
        let Some(room) = text.host.get_mut(start..start + bytes.len()) else {
            return false;
        };
        room.copy_from_slice(bytes);
        self.host += bytes.len() as u16;
        true
    }
}

const _: () = assert!(MAX_HOST <= u16::MAX as usize);
