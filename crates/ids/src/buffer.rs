//! The buffers that rules test: what each is, and where it comes from.

use crate::app::App;
use crate::direction::Direction;

/// When what a rule tests is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Moment {
    /// With the packet.
    Packet,
    /// With new bytes of a stream.
    Stream,
    /// With a request's head, or a message of the client's as a whole.
    Head,
    /// With the body behind it.
    Body,
}

macro_rules! buffers {
    ($($(#[$doc:meta])* $variant:ident: $($name:literal)|+, $app:expr, $direction:expr, $moment:ident;)+) => {
        /// What of a packet, a stream or a message is tested.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Buffer {
            $($(#[$doc])* $variant,)+
        }

        impl Buffer {
            /// How many there are.
            pub const COUNT: usize = [$(Buffer::$variant),+].len();

            /// All of them, with their names in rules.
            pub const ALL: [(Buffer, &'static [&'static str]); Buffer::COUNT] =
                [$((Buffer::$variant, &[$($name),+])),+];

            /// The protocol that it is of.
            pub fn app(self) -> Option<App> {
                match self { $(Buffer::$variant => $app,)+ }
            }

            /// Which way it goes, if one way only.
            pub fn direction(self) -> Option<Direction> {
                match self { $(Buffer::$variant => $direction,)+ }
            }

            /// When it is there.
            pub fn moment(self) -> Moment {
                match self { $(Buffer::$variant => Moment::$moment,)+ }
            }
        }
    };
}

use App::{Dns, Http, Tls};
use Direction::{ToClient, ToServer};

buffers! {
    /// The payload of a packet, or the bytes of a stream.
    Payload: "pkt_data", None, None, Packet;
    /// A request's target, decoded once, with dot segments and repeated slashes taken out.
    Uri: "http.uri" | "http_uri", Some(Http), Some(ToServer), Head;
    /// The target as it came.
    RawUri: "http.uri.raw" | "http_raw_uri", Some(Http), Some(ToServer), Head;
    /// The method.
    Method: "http.method" | "http_method", Some(Http), Some(ToServer), Head;
    /// The host, in lower case and without port, by the target or the Host field.
    Host: "http.host" | "http_host", Some(Http), Some(ToServer), Head;
    /// The same as it came.
    RawHost: "http.host.raw" | "http_raw_host", Some(Http), Some(ToServer), Head;
    /// The field User-Agent.
    UserAgent: "http.user_agent" | "http_user_agent", Some(Http), Some(ToServer), Head;
    /// The field Referer.
    Referer: "http.referer" | "http_referer", Some(Http), Some(ToServer), Head;
    /// The field Accept.
    Accept: "http.accept" | "http_accept", Some(Http), Some(ToServer), Head;
    /// The field Accept-Encoding.
    AcceptEncoding: "http.accept_enc" | "http_accept_enc", Some(Http), Some(ToServer), Head;
    /// The field Accept-Language.
    AcceptLanguage: "http.accept_lang" | "http_accept_lang", Some(Http), Some(ToServer), Head;
    /// The request's first line.
    RequestLine: "http.request_line" | "http_request_line", Some(Http), Some(ToServer), Head;
    /// All fields but cookies, a line each.
    Header: "http.header" | "http_header", Some(Http), None, Head;
    /// All fields, as they came.
    RawHeader: "http.header.raw" | "http_raw_header", Some(Http), None, Head;
    /// The fields' names, each between line ends.
    HeaderNames: "http.header_names" | "http_header_names", Some(Http), None, Head;
    /// The fields Cookie and Set-Cookie.
    Cookie: "http.cookie" | "http_cookie", Some(Http), None, Head;
    /// The field Content-Type.
    ContentType: "http.content_type" | "http_content_type", Some(Http), None, Head;
    /// The field Content-Length.
    ContentLength: "http.content_len" | "http_content_len", Some(Http), None, Head;
    /// The field Connection.
    Connection: "http.connection" | "http_connection", Some(Http), None, Head;
    /// The first line and all fields.
    Start: "http.start" | "http_start", Some(Http), None, Head;
    /// The protocol of the first line.
    ProtocolLine: "http.protocol" | "http_protocol", Some(Http), None, Head;
    /// The status.
    StatusCode: "http.stat_code" | "http_stat_code", Some(Http), Some(ToClient), Head;
    /// The status in words.
    StatusMessage: "http.stat_msg" | "http_stat_msg", Some(Http), Some(ToClient), Head;
    /// The response's first line.
    ResponseLine: "http.response_line" | "http_response_line", Some(Http), Some(ToClient), Head;
    /// The field Server.
    Server: "http.server" | "http_server", Some(Http), Some(ToClient), Head;
    /// The field Location.
    Location: "http.location" | "http_location", Some(Http), Some(ToClient), Head;
    /// A request's body, without transfer coding.
    RequestBody: "http.request_body" | "http_client_body", Some(Http), Some(ToServer), Body;
    /// A response's body, without transfer coding.
    ResponseBody: "http.response_body" | "http_server_body", Some(Http), Some(ToClient), Body;
    /// A body of either direction, without transfer and content coding.
    FileData: "file.data" | "file_data", Some(Http), None, Body;
    /// The server's name in a ClientHello.
    ServerName: "tls.sni" | "tls_sni", Some(Tls), Some(ToServer), Head;
    /// A certificate, as it came.
    Certificate: "tls.certs", Some(Tls), Some(ToClient), Head;
    /// Whom the server's certificate is about.
    Subject: "tls.cert_subject" | "tls_cert_subject", Some(Tls), Some(ToClient), Head;
    /// Who issued it.
    Issuer: "tls.cert_issuer" | "tls_cert_issuer", Some(Tls), Some(ToClient), Head;
    /// Its serial number, in hexadecimal digits with colons.
    Serial: "tls.cert_serial" | "tls_cert_serial", Some(Tls), Some(ToClient), Head;
    /// The name that is asked for.
    DnsQuery: "dns.query" | "dns_query", Some(Dns), Some(ToServer), Head;
}

/// A buffer, or the same with a dot in front (`dotprefix`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferKey {
    /// Which.
    pub buffer: Buffer,
    /// With a dot in front.
    pub dotted: bool,
}

impl BufferKey {
    /// The payload of a packet, or the bytes of a stream.
    pub const PAYLOAD: BufferKey = BufferKey {
        buffer: Buffer::Payload,
        dotted: false,
    };

    /// How many there are.
    pub const COUNT: usize = 2 * Buffer::COUNT;

    /// Its place among all.
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
