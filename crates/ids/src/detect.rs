//! Detection of a stream's protocol from its first bytes.

use crate::app::App;
use tailwater_streams::direction::Direction;
use tailwater_streams::http2::PREFACE;
use tailwater_streams::tls;

/// Bytes at the start of a stream used for protocol detection.
pub(crate) const DETECT: usize = 64;

/// Port of DNS servers.
pub(crate) const DNS_PORT: u16 = 53;
/// Port of servers of SMB over NetBIOS sessions.
const NETBIOS_PORT: u16 = 139;

/// Result of protocol detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detected {
    /// More bytes are needed.
    More,
    /// The other direction decides: greetings of several protocols begin like this.
    ByOther,
    /// A known protocol, or `None` for any other.
    Is(Option<App>),
}

/// First words of clients, in any case.
const CLIENTS: [(&[u8], App); 12] = [
    (b"SSH-", App::Ssh),
    (b"EHLO", App::Smtp),
    (b"HELO", App::Smtp),
    (b"USER ", App::Ftp),
    (b"PASS ", App::Ftp),
    (b"PORT ", App::Ftp),
    (b"EPRT ", App::Ftp),
    (b"FEAT\r", App::Ftp),
    (b"FEAT\n", App::Ftp),
    (b"AUTH TLS", App::Ftp),
    (b"AUTH SSL", App::Ftp),
    (b"SYST\r", App::Ftp),
];

/// First words of servers, in any case.
const SERVERS: [(&[u8], App); 5] = [
    (b"SSH-", App::Ssh),
    (b"HTTP/", App::Http),
    (b"+OK ", App::Pop3),
    (b"* OK ", App::Imap),
    (b"220 (", App::Ftp),
];

/// Detects the protocol from the first bytes of a direction.
pub(crate) fn detect(bytes: &[u8], direction: Direction, server_port: u16) -> Detected {
    let bytes = &bytes[..bytes.len().min(DETECT)];
    if server_port == DNS_PORT {
        return Detected::Is(Some(App::Dns));
    }
    if direction == Direction::ToServer && bytes.len() > 3 {
        let there = bytes.len().min(PREFACE.len());
        if bytes[..there] == PREFACE[..there] {
            return match there == PREFACE.len() {
                true => Detected::Is(Some(App::Http2)),
                false => Detected::More,
            };
        }
    }
    match bytes {
        // Settings of an HTTP/2 server, whose client decides.
        [0, _, _, 4, 0, 0, 0, 0, 0, ..] if direction == Direction::ToClient => return Detected::ByOther,
        [] | [tls::HANDSHAKE] => return Detected::More,
        [tls::HANDSHAKE, tls::MAJOR_VERSION, ..] => return Detected::Is(Some(App::Tls)),
        [5, 0 | 1, 0..=19, ..] => return Detected::Is(Some(App::Dcerpc)),
        [5] | [5, 0 | 1] => return Detected::More,
        [0, _, _, _, 0xfd..=0xff, b'S', b'M', b'B', ..] => return Detected::Is(Some(App::Smb)),
        // A session request in front of SMB.
        [0x81, 0, 0, ..] if server_port == NETBIOS_PORT => return Detected::Is(Some(App::Smb)),
        [0, _, _, 4, ..] if direction == Direction::ToClient && bytes.len() < 9 => return Detected::More,
        [0, rest @ ..] if rest.len() < 7 => return Detected::More,
        [0, ..] => return Detected::Is(None),
        _ => {}
    }
    match direction {
        Direction::ToServer => of_client(bytes),
        Direction::ToClient => of_server(bytes, server_port),
    }
}

fn begins(bytes: &[u8], text: &[u8]) -> bool {
    bytes
        .get(..text.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(text))
}

fn of_client(bytes: &[u8]) -> Detected {
    if let Some((_, app)) = CLIENTS.iter().find(|(word, _)| begins(bytes, word)) {
        return Detected::Is(Some(*app));
    }
    let may = |word: &[u8]| bytes.len() < word.len() && word[..bytes.len()].eq_ignore_ascii_case(bytes);
    if CLIENTS.iter().any(|(word, _)| may(word)) {
        return Detected::More;
    }
    let token = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_'));
    let token = token.count();
    match bytes.get(token) {
        None if token < 24 => Detected::More,
        Some(b' ' | b'\t') if token > 0 => Detected::Is(Some(App::Http)),
        // Empty lines before a request.
        Some(b'\r' | b'\n') if token == 0 => Detected::Is(Some(App::Http)),
        _ => Detected::Is(None),
    }
}

fn of_server(bytes: &[u8], server_port: u16) -> Detected {
    if let Some((_, app)) = SERVERS.iter().find(|(word, _)| begins(bytes, word)) {
        return Detected::Is(Some(*app));
    }
    if !begins(bytes, b"220") {
        return match bytes.len() < 5 {
            true => Detected::More,
            false => Detected::Is(None),
        };
    }
    let has = |word: &[u8]| bytes.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word));
    match server_port {
        21 => Detected::Is(Some(App::Ftp)),
        25 | 465 | 587 | 2525 => Detected::Is(Some(App::Smtp)),
        _ if has(b"FTP") => Detected::Is(Some(App::Ftp)),
        _ if has(b"SMTP") => Detected::Is(Some(App::Smtp)),
        _ => Detected::ByOther,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Detected::{ByOther, Is, More};

    #[test]
    fn protocols_are_recognised_by_content_on_any_port() {
        let client = |bytes: &[u8]| detect(bytes, Direction::ToServer, 4711);
        let server = |bytes: &[u8]| detect(bytes, Direction::ToClient, 4711);
        assert_eq!(client(b"USER anonymous\r\n"), Is(Some(App::Ftp)));
        assert_eq!(client(b"pass x"), Is(Some(App::Ftp)));
        assert_eq!(client(b"US"), More);
        assert_eq!(client(b"EHLO x"), Is(Some(App::Smtp)));
        assert_eq!(client(b"GET / HTTP/1.1"), Is(Some(App::Http)));
        assert_eq!(client(PREFACE), Is(Some(App::Http2)));
        assert_eq!(client(&PREFACE[..20]), More);
        assert_eq!(server(b"\0\0\x06\x04\0\0\0\0\0\0"), ByOther);
        assert_eq!(client(b"SSH-2.0-x"), Is(Some(App::Ssh)));
        assert_eq!(client(b"\x16\x03\x01"), Is(Some(App::Tls)));
        assert_eq!(client(b"\x05\0\x0b"), Is(Some(App::Dcerpc)));
        assert_eq!(client(b"\0\0\0\x85\xffSMB"), Is(Some(App::Smb)));
        assert_eq!(client(b"\x01\x02\x03\x04\x05"), Is(None));
        assert_eq!(server(b"220 Welcome to our FTP service\r\n"), Is(Some(App::Ftp)));
        assert_eq!(server(b"220 (vsFTPd 3)\r\n"), Is(Some(App::Ftp)));
        assert_eq!(server(b"220 mx.example ESMTP\r\n"), Is(Some(App::Smtp)));
        assert_eq!(server(b"220 hello\r\n"), ByOther);
        assert_eq!(server(b"+OK ready"), Is(Some(App::Pop3)));
        assert_eq!(server(b"* OK ready"), Is(Some(App::Imap)));
        assert_eq!(detect(b"\0\x1d", Direction::ToServer, 53), Is(Some(App::Dns)));
    }
}
