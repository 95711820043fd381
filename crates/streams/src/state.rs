//! State of a parser in pieces, common to its protocols.
//!
//! Bytes come in order, in pieces of any size. The registers ([`Parser`]) are small and live in the flow state. Text to
//! keep (a request's target, a host) is in [`Text`], and only while [`Parser::holds_text`].

use crate::http::host::{Host, MAX_HOST};
use bytemuck::{Pod, Zeroable};

/// Buffers for a stream's text, which must persist only while [`Parser::holds_text`].
pub struct Text<'a> {
    /// Request line, replaced at its end by the normalised path.
    pub target: &'a mut [u8],
    /// Host field or server name, [`MAX_HOST`] bytes.
    pub host: &'a mut [u8],
}

/// Receiver of requests and ClientHellos, which decides where the parser stops. The parser is compiled for each
/// implementation.
pub trait MessageHandler {
    /// Returns `true` if HTTP requests are parsed.
    fn inspects_http(&self) -> bool;

    /// Returns `true` if ClientHellos are parsed.
    fn inspects_tls(&self) -> bool;

    /// Handles the start of a request or a ClientHello.
    fn on_begin(&mut self);

    /// Handles a request's normalised path with its query; returns `true` to stop.
    fn on_path(&mut self, path: &[u8]) -> bool;

    /// Handles a request's host, from the target or a Host field, with the path if one is visible; returns `true` to
    /// stop.
    fn on_host(&mut self, host: &Host, path: Option<&[u8]>) -> bool;

    /// Handles the server name of a ClientHello; returns `true` to stop.
    fn on_server_name(&mut self, name: &[u8]) -> bool;
}

/// Result of parsing a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All bytes were used; more may follow.
    More,
    /// Skip this many of the following bytes.
    Skip(u64),
    /// The handler stops at a URL.
    Url,
    /// The handler stops at a server name.
    ServerName,
    /// Nothing of interest follows.
    Finished,
    /// Too long, or framed such that the next request's start is ambiguous: the rest cannot be interpreted.
    Unclear,
}

/// Registers of a stream's parser, small enough for the flow state. All zeros is a stream's start.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Parser {
    /// Number being read.
    pub(crate) number: u64,
    /// TLS: bytes to skip within the handshake message.
    pub(crate) pass: u32,
    /// Bytes of [`Text::target`] used.
    pub target: u16,
    /// Bytes of [`Text::host`] used.
    pub host: u16,
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
    /// Value of the owner, 0 at each message's start.
    pub reported: u8,
    /// Value of the owner, which the parser preserves.
    pub tag: u32,
}

/// State between messages. HTTP uses the states above it, TLS those from
/// [`hello::FIRST_STATE`](crate::tls::hello::FIRST_STATE) on.
pub(crate) const START: u8 = 0;

impl Parser {
    /// Returns initial registers with the owner's tag.
    pub(crate) fn anew(&self) -> Parser {
        Parser {
            tag: self.tag,
            ..Parser::default()
        }
    }

    /// Returns `true` if [`Text`] holds bytes.
    pub fn holds_text(&self) -> bool {
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
