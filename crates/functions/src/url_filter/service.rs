//! State shared by all instances of a filter.

use super::pattern::Pattern;
use super::reassembly::{buffer_memory, pool};
use super::table::{TableError, UrlTable};
use crate::stream_pool::StreamPool;
use std::ops::RangeInclusive;
use std::sync::Arc;
use tailwater_api::PacketAction;
use tailwater_chain::live::Live;

/// Action on a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Drop the packet that completes the match.
    Drop,
    /// Count the match.
    Alert,
}

/// Action on later packets of a blocked flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Drop.
    Drop,
    /// Forward, except packets with the byte that completed the match.
    Pass,
}

/// Set of destination ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports(pub Vec<RangeInclusive<u16>>);

impl Ports {
    /// Returns the set of all ports.
    pub fn any() -> Ports {
        Ports(vec![0..=u16::MAX])
    }

    /// Returns `true` if the set contains a port.
    pub fn contain(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(&port))
    }
}

/// Configuration of a filter, without its patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterConfig {
    /// Action on a match.
    pub action: Action,
    /// Action on later packets of a blocked flow.
    pub rest: Rest,
    /// Ports inspected for HTTP.
    pub http_ports: Ports,
    /// Ports inspected for TLS.
    pub tls_ports: Ports,
    /// Streams with a buffer at a time, all workers together; at most 1,048,575.
    pub streams: usize,
    /// Bytes buffered per stream of a request line, and as many out of order. A power of two, at least 64.
    pub buffer_bytes: usize,
    /// Action on packets that cannot be inspected for lack of room.
    pub on_overflow: PacketAction,
    /// Action on fragments of TCP segments.
    pub fragments: PacketAction,
}

impl FilterConfig {
    /// Returns the bytes of all buffers.
    pub fn buffer_memory(&self) -> u64 {
        self.streams as u64 * buffer_memory(self.buffer_bytes) as u64
    }
}

/// Patterns, configuration and stream buffers of a filter.
#[derive(Debug)]
pub struct FilterTable {
    patterns: Live<UrlTable>,
    config: FilterConfig,
    stream_pool: Arc<StreamPool>,
}

impl FilterTable {
    /// Builds a filter for these patterns.
    ///
    /// # Errors
    /// The patterns or the buffers need too much memory.
    ///
    /// # Panics
    /// If [`buffer_bytes`](FilterConfig::buffer_bytes) is not a power of two, or below 64.
    pub fn new(patterns: &[Pattern], config: FilterConfig) -> Result<FilterTable, TableError> {
        let patterns = UrlTable::new(patterns)?;
        let stock = pool(config.streams, config.buffer_bytes).map_err(|error| {
            let (streams, error) = (config.streams, error.to_string());
            TableError::Buffers { streams, error }
        })?;
        Ok(FilterTable {
            patterns: Live::new(patterns),
            config,
            stream_pool: Arc::new(stock),
        })
    }

    /// Returns the replaceable patterns. A replacement affects later lookups; flows already blocked remain blocked.
    pub fn live(&self) -> &Live<UrlTable> {
        &self.patterns
    }

    /// Returns the configuration.
    pub fn config(&self) -> &FilterConfig {
        &self.config
    }

    /// Returns the buffer pool of all instances.
    pub(super) fn stream_pool(&self) -> &Arc<StreamPool> {
        &self.stream_pool
    }
}
