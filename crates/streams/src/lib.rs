//! TCP streams in order within bounded memory, and the HTTP and TLS messages in them. `urlFilter` and `ids` are
//! built on this crate. It looks up no flows, allocates no memory and decides nothing: the caller keeps the state and
//! supplies the buffers.
//!
//! # Order
//!
//! [`ranges`] tracks the bytes that wait for a gap before them to be filled. Of duplicate bytes the first copy counts,
//! as receivers keep it. Two stores use it:
//!
//! - [`ring`] holds only the bytes behind a gap, at their sequence number. In-order bytes are parsed where they are, in
//!   the packet, so most streams need no buffer at all (`urlFilter`).
//! - [`window`] holds the last bytes of the stream contiguously, in order and out of order, since a rule may match
//!   bytes of several segments (`ids`).
//!
//! # Messages
//!
//! Each protocol has a parser for either store, on common definitions:
//!
//! | | in pieces of any size, without a copy | complete heads in a window |
//! |---|---|---|
//! | HTTP/1.x | [`http::request`] | [`http::messages`], [`http::head`] |
//! | HTTP/2 | [`http2`] | |
//! | TLS | [`tls::hello`] | [`tls::handshake`] |
//!
//! The parsers in pieces stop at a blocked request before its last byte is forwarded. They read ambiguous bytes as the
//! most lenient receiver does ([`http::Reading::Lenient`]), or stop: a request that a server might see must not be
//! missed. The parsers of complete heads read them as Suricata does ([`http::Reading::Suricata`]), which its rules are
//! written for. On a well-formed message both agree, which this crate's tests check.

pub mod direction;
pub mod http;
pub mod http2;
pub mod parser;
pub mod ranges;
pub mod ring;
pub mod sequence;
pub mod state;
pub mod tls;
pub mod window;

#[cfg(test)]
mod tests;
