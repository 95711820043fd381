//! Opening application data of clients: HTTP requests and TLS ClientHellos, to hosts that do not exist.

use std::io::Write;

/// Hosts that are not blocked. All names are in `example`, which RFC 2606 reserves.
const HOSTS: [&str; 16] = [
    "www.shop.example",
    "news.daily.example",
    "mail.post.example",
    "cdn1.images.example",
    "cdn2.images.example",
    "video.stream.example",
    "api.weather.example",
    "login.bank.example",
    "maps.travel.example",
    "static.social.example",
    "chat.social.example",
    "updates.system.example",
    "search.find.example",
    "music.stream.example",
    "files.drive.example",
    "telemetry.device.example",
];

/// Hosts of the domain that the examples block.
const BLOCKED: [&str; 4] = [
    "ads.blocked.example",
    "tracker.blocked.example",
    "malware.blocked.example",
    "www.blocked.example",
];

const PATHS: [&str; 8] = [
    "/",
    "/index.html",
    "/images/logo.png?v=3",
    "/api/v1/items?page=2&sort=price",
    "/search?q=tailwater",
    "/static/js/app.min.js",
    "/watch/48151623",
    "/account/settings",
];

const AGENTS: [&str; 3] = [
    "Mozilla/5.0 (X11; Linux x86_64) ExampleBrowser/128.0",
    "ExampleApp/7.2 (mobile)",
    "curl/8.5.0",
];

/// Opening application data of a flow, selected by a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    pub(super) choice: u32,
    pub(super) blocked: bool,
}

impl Opening {
    fn host(self) -> &'static str {
        let at = self.choice as usize;
        match self.blocked {
            true => BLOCKED[at % BLOCKED.len()],
            false => HOSTS[at % HOSTS.len()],
        }
    }

    /// Writes an HTTP/1.1 request (RFC 9112).
    pub(super) fn http(self, out: &mut Vec<u8>) {
        out.clear();
        let at = self.choice as usize;
        let method = if at % 8 == 7 { "HEAD" } else { "GET" };
        let path = PATHS[at / 16 % PATHS.len()];
        let agent = AGENTS[at / 128 % AGENTS.len()];
        let host = self.host();
        // Writing to memory does not fail.
        let _ = write!(
            out,
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\n\
             Accept: */*\r\nAccept-Language: en\r\nConnection: keep-alive\r\n\r\n"
        );
    }

    /// Writes a TLS 1.3 ClientHello in one record (RFC 8446 §4.1.2), with a server name (RFC 6066 §3).
    pub(super) fn tls(self, out: &mut Vec<u8>) {
        out.clear();
        // Record: handshake, legacy version 1.0; its length is set later.
        out.extend_from_slice(&[22, 3, 1, 0, 0]);
        // Handshake: ClientHello, a length of three bytes, set later; legacy version 1.2.
        out.extend_from_slice(&[1, 0, 0, 0, 3, 3]);
        let mut state = u64::from(self.choice) << 1 | u64::from(self.blocked);
        random_bytes(&mut state, 32, out);
        out.push(32);
        random_bytes(&mut state, 32, out);
        // TLS_AES_128_GCM_SHA256, TLS_AES_256_GCM_SHA384, TLS_CHACHA20_POLY1305_SHA256.
        out.extend_from_slice(&[0, 6, 0x13, 1, 0x13, 2, 0x13, 3]);
        // No compression.
        out.extend_from_slice(&[1, 0]);
        let extensions = out.len();
        out.extend_from_slice(&[0, 0]);
        let host = self.host().as_bytes();
        let name = host.len() as u16;
        // server_name: a list with one host_name.
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&(name + 5).to_be_bytes());
        out.extend_from_slice(&(name + 3).to_be_bytes());
        out.push(0);
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(host);
        // supported_groups: x25519.
        out.extend_from_slice(&[0, 10, 0, 4, 0, 2, 0, 29]);
        // signature_algorithms: ecdsa_secp256r1_sha256, rsa_pss_rsae_sha256.
        out.extend_from_slice(&[0, 13, 0, 6, 0, 4, 4, 3, 8, 4]);
        // application_layer_protocol_negotiation: h2 and http/1.1.
        out.extend_from_slice(&[0, 16, 0, 14, 0, 12, 2]);
        out.extend_from_slice(b"h2\x08http/1.1");
        // supported_versions: 1.3 and 1.2.
        out.extend_from_slice(&[0, 43, 0, 5, 4, 3, 4, 3, 3]);
        // key_share: one of x25519.
        out.extend_from_slice(&[0, 51, 0, 38, 0, 36, 0, 29, 0, 32]);
        random_bytes(&mut state, 32, out);
        let end = out.len();
        put_length(out, extensions, end - extensions - 2);
        put_length(out, 7, end - 9);
        put_length(out, 3, end - 5);
    }
}

/// Writes a length of two bytes; every message here is far shorter than 65,536 bytes.
fn put_length(out: &mut [u8], at: usize, length: usize) {
    if let Some(place) = out.get_mut(at..at + 2) {
        place.copy_from_slice(&(length as u16).to_be_bytes());
    }
}

/// Appends pseudo-random bytes of a linear congruential generator (Knuth's MMIX).
fn random_bytes(state: &mut u64, count: usize, out: &mut Vec<u8>) {
    for _ in 0..count {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        out.push((*state >> 56) as u8);
    }
}
