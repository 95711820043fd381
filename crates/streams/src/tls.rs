//! TLS handshakes before encryption (RFC 8446, RFC 5246).

pub mod handshake;
pub mod hello;

/// Content type of records that change the cipher. One may precede a second ClientHello.
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
/// Content type of handshake records, the first byte of a TLS stream.
pub const HANDSHAKE: u8 = 22;
/// Major version of all versions since SSL 3.0.
pub const MAJOR_VERSION: u8 = 3;
/// Bytes of a record's header: content type, version, length.
const RECORD_HEADER: usize = 5;
/// Longest record in bytes (RFC 8446 §5.1 with its allowance for encryption).
const MAX_RECORD: u16 = 16_384 + 256;

const CLIENT_HELLO: u8 = 1;
const CERTIFICATE: u8 = 11;
/// Bytes of a ClientHello's version and random.
const FIXED: usize = 34;
/// Bytes of the lengths of a ClientHello's session identifier, cipher suites and compression methods, which follow.
const VECTORS: [u8; 3] = [1, 2, 1];
/// Extension with the server's names.
const SERVER_NAME: u16 = 0;
