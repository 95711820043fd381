//! HTTP/1.x messages (RFC 9112).

pub mod anomalies;
pub mod chunks;
pub mod head;
pub mod host;
mod lines;
pub mod messages;
pub mod request;
pub mod target;

/// Reading of bytes that receivers interpret differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// As the most lenient server reads them. A target of any scheme has an authority, which a backslash ends; the port
    /// follows the last colon; dot segments are resolved in any path.
    Lenient,
    /// As Suricata reads them. Only `http` and `https` targets have an authority; the port follows the first colon; dot
    /// segments are resolved behind the first slash, in paths that start with a slash, a backslash or a percent sign.
    Suricata,
}

/// Returns `true` if a byte may occur in a method or field name (RFC 9110 §5.6.2).
pub const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        )
}

/// Returns `true` for a space or a tab.
#[inline]
pub(crate) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}
