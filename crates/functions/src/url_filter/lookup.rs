//! Look-up of the requests and server names in a packet.

use super::table::UrlTable;
use std::fmt;
use tailwater_net::Nanos;
use tailwater_streams::http::host::Host;
use tailwater_streams::state::MessageHandler;

/// Context for pattern look-ups.
pub(super) struct Lookup<'a> {
    pub(super) table: &'a UrlTable,
    /// Buffer to join host and path.
    pub(super) joined: &'a mut Vec<u8>,
    /// Destination port of the packets.
    pub(super) port: u16,
    /// `true` if HTTP requests are inspected.
    pub(super) http: bool,
    /// `true` if ClientHellos are inspected.
    pub(super) tls: bool,
    /// Set when a request or a ClientHello has started.
    pub(super) begun: bool,
    /// Name or path that a pattern matched.
    pub(super) matched: &'a mut Matched,
}

/// Beginning of the last host, server name or path that a pattern matched, for explanations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Matched {
    bytes: [u8; 32],
    length: u8,
    /// Packet that completed it: its arrival and RSS hash.
    pub(super) packet: Option<(Nanos, u32)>,
}

impl Matched {
    #[cold]
    fn set(&mut self, name: &[u8]) {
        let length = name.len().min(self.bytes.len());
        self.bytes[..length].copy_from_slice(&name[..length]);
        self.length = name.len().min(usize::from(u8::MAX)) as u8;
        self.packet = None;
    }

    /// The name, and whether it goes on.
    pub(super) fn name(&self) -> (impl fmt::Display, bool) {
        let known = usize::from(self.length).min(self.bytes.len());
        (self.bytes[..known].escape_ascii(), usize::from(self.length) > known)
    }
}

impl MessageHandler for Lookup<'_> {
    #[inline]
    fn inspects_http(&self) -> bool {
        self.http
    }

    #[inline]
    fn inspects_tls(&self) -> bool {
        self.tls
    }

    #[inline]
    fn on_begin(&mut self) {
        self.begun = true;
    }

    fn on_path(&mut self, path: &[u8]) -> bool {
        let blocks = self.table.blocks_path(path);
        if blocks {
            self.matched.set(path);
        }
        blocks
    }

    fn on_host(&mut self, host: &Host, path: Option<&[u8]>) -> bool {
        let ports = [host.port.unwrap_or(80), self.port];
        let blocks = self.table.blocks(host, ports, path, self.joined);
        if blocks {
            self.matched.set(host.name());
        }
        blocks
    }

    fn on_server_name(&mut self, name: &[u8]) -> bool {
        let blocks = Host::new(name).is_some_and(|host| self.table.blocks(&host, [self.port; 2], None, self.joined));
        if blocks {
            self.matched.set(name);
        }
        blocks
    }
}
