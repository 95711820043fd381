//! What a stream is found to be, and the part of a parser's state that both protocols share.
//!
//! Bytes come in order, in pieces of any size. The registers ([`Parser`]) are small and live in the
//! flow's slot; what has to be kept of the text (a request's target, a host) is in [`Text`], and only
//! while [`Parser::holds_text`].

use super::normalize::{Host, MAX_HOST};
use super::table::UrlTable;
use super::{http, tls};
use bytemuck::{Pod, Zeroable};

/// Room for the text of a stream.
pub(crate) struct Text<'a> {
    /// The request line; after its end the normalised path.
    pub(crate) target: &'a mut [u8],
    /// A Host field or server name, [`MAX_HOST`] bytes.
    pub(crate) host: &'a mut [u8],
}

/// What parsing looks patterns up in.
pub(crate) struct Lookup<'a> {
    pub(crate) table: &'a UrlTable,
    /// Room for host and path together.
    pub(crate) joined: &'a mut Vec<u8>,
    /// The port that the packets go to.
    pub(crate) port: u16,
    /// Whether requests are looked at.
    pub(crate) http: bool,
    /// Whether ClientHellos are looked at.
    pub(crate) tls: bool,
    /// Set when a request or a ClientHello has begun.
    pub(crate) begun: bool,
}

impl Lookup<'_> {
    /// Whether the host of a request is blocked, with its path if there is one.
    pub(crate) fn url(&mut self, host: &Host, path: Option<&[u8]>) -> bool {
        let ports = [host.port.unwrap_or(80), self.port];
        self.table.blocks(host, ports, path, self.joined)
    }

    /// Whether the name in a ClientHello is blocked.
    pub(crate) fn server_name(&mut self, name: &[u8]) -> bool {
        Host::new(name).is_some_and(|host| self.table.blocks(&host, [self.port; 2], None, self.joined))
    }
}

/// Where parsing stands after a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// All bytes are used; more may come.
    More,
    /// So many of the bytes that follow are of no interest.
    Skip(u64),
    /// A URL is blocked.
    Url,
    /// A server name is blocked.
    ServerName,
    /// Nothing that follows is of interest.
    Finished,
    /// Longer than there is room for, or framed in a way that leaves open where the next request
    /// starts: what follows cannot be told.
    Unclear,
}

/// A parser's registers.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Parser {
    /// A number that is being read.
    pub(crate) number: u64,
    /// TLS: bytes to pass over within the handshake message.
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
    /// One of a protocol's states.
    pub(crate) state: u8,
    /// HTTP: bytes of a name read. TLS: bytes of a record's header read.
    pub(crate) position: u8,
    /// HTTP: which names the present one can still be. TLS: bytes of the number read.
    pub(crate) names: u8,
    /// HTTP: what is known of the message. TLS: the state that follows a record's header.
    pub(crate) flags: u8,
    /// TLS: what the number being read is.
    pub(crate) step: u8,
    /// Whether a match in this message was reported.
    pub(crate) reported: u8,
    /// Not the parser's: which stock the stream's buffer is of, if it has one.
    pub(crate) stock: u32,
}

/// Between messages. HTTP has the states above, TLS those from [`tls::FIRST_STATE`] on.
pub(crate) const START: u8 = 0;

impl Parser {
    /// Registers of one that begins, with what is not its own as it was.
    pub(crate) fn anew(&self) -> Parser {
        Parser {
            stock: self.stock,
            ..Parser::default()
        }
    }

    /// Reads a piece of the stream. Returns how many of its bytes it used, fewer than there are only
    /// with another event than [`Event::More`].
    pub(crate) fn feed(&mut self, bytes: &[u8], text: &mut Text<'_>, lookup: &mut Lookup<'_>) -> (usize, Event) {
        let mut used = 0;
        while used < bytes.len() {
            if self.state == START {
                // Empty lines may stand before a request (RFC 9112 §2.2).
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

    /// Whether something is kept in [`Text`].
    pub(crate) fn holds_text(&self) -> bool {
        self.target > 0 || self.host > 0
    }

    /// Appends to the host. `false` if it is too long.
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
