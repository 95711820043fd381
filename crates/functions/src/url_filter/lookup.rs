//! Look-up of the requests and server names in a packet.

use super::table::UrlTable;
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
        self.table.blocks_path(path)
    }

    fn on_host(&mut self, host: &Host, path: Option<&[u8]>) -> bool {
        let ports = [host.port.unwrap_or(80), self.port];
        self.table.blocks(host, ports, path, self.joined)
    }

    fn on_server_name(&mut self, name: &[u8]) -> bool {
        Host::new(name).is_some_and(|host| self.table.blocks(&host, [self.port; 2], None, self.joined))
    }
}
