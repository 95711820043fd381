//! Buffers that rules test, with their protocols and directions.

use crate::app::App;
use tailwater_streams::direction::Direction;

/// Moment at which a buffer becomes available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Moment {
    /// With each packet.
    Packet,
    /// With new bytes of a stream.
    Stream,
    /// With a message's head, or with a complete message of other protocols.
    Head,
    /// With the message's body.
    Body,
}

macro_rules! buffers {
    ($($(#[$doc:meta])* $variant:ident: $($name:literal)|+, $app:expr, $direction:expr, $moment:ident;)+) => {
        /// Part of a packet, stream or message that is tested.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Buffer {
            $($(#[$doc])* $variant,)+
        }

        impl Buffer {
            /// Number of buffers.
            pub const COUNT: usize = [$(Buffer::$variant),+].len();

            /// All buffers, with their names in rules.
            pub const ALL: [(Buffer, &'static [&'static str]); Buffer::COUNT] =
                [$((Buffer::$variant, &[$($name),+])),+];

            /// Returns the application protocol of the buffer.
            pub fn app(self) -> Option<App> {
                match self { $(Buffer::$variant => $app,)+ }
            }

            /// Returns the direction of the buffer, if it exists in one direction only.
            pub fn direction(self) -> Option<Direction> {
                match self { $(Buffer::$variant => $direction,)+ }
            }

            /// Returns the moment the buffer becomes available.
            pub fn moment(self) -> Moment {
                match self { $(Buffer::$variant => Moment::$moment,)+ }
            }
        }
    };
}

use App::{Dns, Http, Tls};
use Direction::{ToClient, ToServer};

buffers! {
    /// Payload of a packet, or bytes of a stream.
    Payload: "pkt_data", None, None, Packet;
    /// Target of a request: decoded once, without dot segments and repeated slashes.
    Uri: "http.uri" | "http_uri", Some(Http), Some(ToServer), Head;
    /// Target of a request, unmodified.
    RawUri: "http.uri.raw" | "http_raw_uri", Some(Http), Some(ToServer), Head;
    /// Request method.
    Method: "http.method" | "http_method", Some(Http), Some(ToServer), Head;
    /// Host from the target or the Host field, in lower case and without port.
    Host: "http.host" | "http_host", Some(Http), Some(ToServer), Head;
    /// Host, unmodified.
    RawHost: "http.host.raw" | "http_raw_host", Some(Http), Some(ToServer), Head;
    /// User-Agent field.
    UserAgent: "http.user_agent" | "http_user_agent", Some(Http), Some(ToServer), Head;
    /// Referer field.
    Referer: "http.referer" | "http_referer", Some(Http), Some(ToServer), Head;
    /// Accept field.
    Accept: "http.accept" | "http_accept", Some(Http), Some(ToServer), Head;
    /// Accept-Encoding field.
    AcceptEncoding: "http.accept_enc" | "http_accept_enc", Some(Http), Some(ToServer), Head;
    /// Accept-Language field.
    AcceptLanguage: "http.accept_lang" | "http_accept_lang", Some(Http), Some(ToServer), Head;
    /// First line of a request.
    RequestLine: "http.request_line" | "http_request_line", Some(Http), Some(ToServer), Head;
    /// All fields except cookies, one per line.
    Header: "http.header" | "http_header", Some(Http), None, Head;
    /// All fields, unmodified.
    RawHeader: "http.header.raw" | "http_raw_header", Some(Http), None, Head;
    /// Names of the fields, separated and surrounded by line ends.
    HeaderNames: "http.header_names" | "http_header_names", Some(Http), None, Head;
    /// Cookie and Set-Cookie fields.
    Cookie: "http.cookie" | "http_cookie", Some(Http), None, Head;
    /// Content-Type field.
    ContentType: "http.content_type" | "http_content_type", Some(Http), None, Head;
    /// Content-Length field.
    ContentLength: "http.content_len" | "http_content_len", Some(Http), None, Head;
    /// Connection field.
    Connection: "http.connection" | "http_connection", Some(Http), None, Head;
    /// First line and all fields.
    Start: "http.start" | "http_start", Some(Http), None, Head;
    /// Protocol of the first line.
    ProtocolLine: "http.protocol" | "http_protocol", Some(Http), None, Head;
    /// Status code.
    StatusCode: "http.stat_code" | "http_stat_code", Some(Http), Some(ToClient), Head;
    /// Reason phrase of the status.
    StatusMessage: "http.stat_msg" | "http_stat_msg", Some(Http), Some(ToClient), Head;
    /// First line of a response.
    ResponseLine: "http.response_line" | "http_response_line", Some(Http), Some(ToClient), Head;
    /// Server field.
    Server: "http.server" | "http_server", Some(Http), Some(ToClient), Head;
    /// Location field.
    Location: "http.location" | "http_location", Some(Http), Some(ToClient), Head;
    /// Body of a request, without transfer coding.
    RequestBody: "http.request_body" | "http_client_body", Some(Http), Some(ToServer), Body;
    /// Body of a response, without transfer coding.
    ResponseBody: "http.response_body" | "http_server_body", Some(Http), Some(ToClient), Body;
    /// Body in either direction, without transfer and content coding.
    FileData: "file.data" | "file_data", Some(Http), None, Body;
    /// Server name in a ClientHello.
    ServerName: "tls.sni" | "tls_sni", Some(Tls), Some(ToServer), Head;
    /// Fingerprint of a ClientHello (JA3): MD5 of its string, in hexadecimal digits.
    Ja3Hash: "ja3.hash" | "ja3_hash", Some(Tls), Some(ToServer), Head;
    /// String of a ClientHello's fingerprint (JA3).
    Ja3String: "ja3.string" | "ja3_string", Some(Tls), Some(ToServer), Head;
    /// Certificate, unmodified.
    Certificate: "tls.certs", Some(Tls), Some(ToClient), Head;
    /// Subject of the server's certificate.
    Subject: "tls.cert_subject" | "tls_cert_subject", Some(Tls), Some(ToClient), Head;
    /// Issuer of the server's certificate.
    Issuer: "tls.cert_issuer" | "tls_cert_issuer", Some(Tls), Some(ToClient), Head;
    /// Serial number of the server's certificate, as hexadecimal digits with colons.
    Serial: "tls.cert_serial" | "tls_cert_serial", Some(Tls), Some(ToClient), Head;
    /// Name queried.
    DnsQuery: "dns.query" | "dns_query", Some(Dns), Some(ToServer), Head;
}

/// Buffer, or its variant with a leading dot (`dotprefix`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferKey {
    /// Buffer.
    pub buffer: Buffer,
    /// `true` for the variant with a leading dot.
    pub dotted: bool,
}

impl BufferKey {
    /// Payload of a packet, or bytes of a stream.
    pub const PAYLOAD: BufferKey = BufferKey {
        buffer: Buffer::Payload,
        dotted: false,
    };

    /// Number of keys.
    pub const COUNT: usize = 2 * Buffer::COUNT;

    /// Returns the index among all keys.
    #[inline]
    pub fn index(self) -> usize {
        2 * self.buffer as usize + usize::from(self.dotted)
    }
}

impl From<Buffer> for BufferKey {
    fn from(buffer: Buffer) -> BufferKey {
        BufferKey { buffer, dotted: false }
    }
}
