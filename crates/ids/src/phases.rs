//! Phases of a stream's parser that are not HTTP's, which has 16 to 22.

/// The protocol is not yet known.
pub(crate) const UNKNOWN: u8 = 0;
/// Inspection has ended.
pub(crate) const DEAD: u8 = 1;
/// Bytes without a supported protocol's messages.
pub(crate) const RAW: u8 = 2;
/// Unencrypted TLS.
pub(crate) const TLS: u8 = 32;
/// DNS over TCP.
pub(crate) const DNS: u8 = 33;
/// Messages with a length in front (SMB, DCE/RPC).
pub(crate) const RECORDS: u8 = 34;
/// Lines (FTP, SMTP).
pub(crate) const LINES: u8 = 35;

/// HTTP/2.
pub(crate) const HTTP2: u8 = 36;

/// Flag of a message: the rules were evaluated on it, or on its body.
pub(crate) const INSPECTED: u8 = 2;
/// Flag of [`LINES`]: the text of a mail.
pub(crate) const MAIL: u8 = 4;
/// Flag of [`HTTP2`]: the direction is followed.
pub(crate) const OPENED: u8 = 8;
