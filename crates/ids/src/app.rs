//! Application protocols.

/// Application protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum App {
    /// HTTP: of a rule, in any version; of a connection, HTTP/1.x.
    Http = 1,
    /// TLS.
    Tls = 2,
    /// DNS.
    Dns = 3,
    /// SMTP.
    Smtp = 4,
    /// Control connection of FTP.
    Ftp = 5,
    /// SMB 1 to 3.
    Smb = 6,
    /// SSH.
    Ssh = 7,
    /// DCE/RPC over TCP.
    Dcerpc = 8,
    /// POP3.
    Pop3 = 9,
    /// IMAP.
    Imap = 10,
    /// HTTP/2.
    Http2 = 11,
    /// HTTP/1.x, in rules only.
    Http1 = 12,
}

impl App {
    /// Names in rules and alerts.
    pub const NAMES: [(&'static str, App); 12] = [
        ("http", App::Http),
        ("tls", App::Tls),
        ("dns", App::Dns),
        ("smtp", App::Smtp),
        ("ftp", App::Ftp),
        ("smb", App::Smb),
        ("ssh", App::Ssh),
        ("dcerpc", App::Dcerpc),
        ("pop3", App::Pop3),
        ("imap", App::Imap),
        ("http2", App::Http2),
        ("http1", App::Http1),
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        let known = App::NAMES.iter().find(|(_, app)| *app == self);
        known.map_or("", |(name, _)| name)
    }
}
