//! What all workers' instances of a filter share.

use super::pattern::Pattern;
use super::reassembly::{buffer_memory, stock};
use super::table::{TableError, UrlTable};
use crate::stock::Stock;
use std::ops::RangeInclusive;
use std::sync::Arc;
use tailwater_api::Fate;
use tailwater_chain::live::Live;

/// What a match leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The packet that completes the match is dropped.
    Drop,
    /// It is counted.
    Alert,
}

/// What becomes of a blocked flow's later packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// They are dropped.
    Drop,
    /// They pass, but those that hold the byte that completed the match.
    Pass,
}

/// Destination ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports(pub Vec<RangeInclusive<u16>>);

impl Ports {
    /// Every port.
    pub fn any() -> Ports {
        Ports(vec![0..=u16::MAX])
    }

    /// Whether a port is among them.
    pub fn contain(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(&port))
    }
}

/// How a filter works, but for its patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterConfig {
    /// What a match leads to.
    pub action: Action,
    /// What becomes of a blocked flow's later packets.
    pub rest: Rest,
    /// Where HTTP is looked for.
    pub http_ports: Ports,
    /// Where TLS is looked for.
    pub tls_ports: Ports,
    /// Streams that something can be kept of at once, of all workers together; at most 1,048,575.
    pub streams: usize,
    /// Bytes kept of a stream: of a request line, and as many out of order. A power of two, from 64 on.
    pub buffer_bytes: usize,
    /// What becomes of packets that cannot be looked into for want of room.
    pub on_overflow: Fate,
    /// What becomes of fragments of TCP segments.
    pub fragments: Fate,
}

impl FilterConfig {
    /// Bytes of all buffers.
    pub fn buffer_memory(&self) -> u64 {
        self.streams as u64 * buffer_memory(self.buffer_bytes) as u64
    }
}

/// A filter's patterns and configuration, and the memory for streams that something is kept of.
#[derive(Debug)]
pub struct FilterTable {
    patterns: Live<UrlTable>,
    config: FilterConfig,
    stock: Arc<Stock>,
}

impl FilterTable {
    /// A filter for these patterns.
    ///
    /// # Errors
    /// The patterns, or the buffers, take too much memory.
    ///
    /// # Panics
    /// If [`buffer_bytes`](FilterConfig::buffer_bytes) is no power of two, or below 64.
    pub fn new(patterns: &[Pattern], config: FilterConfig) -> Result<FilterTable, TableError> {
        let patterns = UrlTable::new(patterns)?;
        let stock = stock(config.streams, config.buffer_bytes).map_err(|error| {
            let (streams, error) = (config.streams, error.to_string());
            TableError::Buffers { streams, error }
        })?;
        Ok(FilterTable {
            patterns: Live::new(patterns),
            config,
            stock: Arc::new(stock),
        })
    }

    /// The patterns, to be replaced: what is blocked then stays so, and what is looked up from then on is looked up in
    /// the new ones.
    pub fn live(&self) -> &Live<UrlTable> {
        &self.patterns
    }

    /// The configuration.
    pub fn config(&self) -> &FilterConfig {
        &self.config
    }

    /// The buffers of all instances.
    pub(super) fn stock(&self) -> &Arc<Stock> {
        &self.stock
    }
}
