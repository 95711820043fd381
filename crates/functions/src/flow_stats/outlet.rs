//! Options of the function: destinations of records, timeouts and sampling.

use std::net::SocketAddr;
use std::path::PathBuf;
use tailwater_net::Nanos;

/// Transport to a collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams. Templates are repeated.
    #[default]
    Udp,
    /// Connection, reopened when it is lost.
    Tcp,
}

/// Destination of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlet {
    /// IPFIX collector.
    Collector {
        /// Address and port.
        address: SocketAddr,
        /// Transport to the collector.
        transport: Transport,
        /// Maximum bytes of a message, within [`MESSAGE_BYTES`](super::MESSAGE_BYTES).
        message_bytes: usize,
        /// Interval at which loss counters are sent and, over UDP, templates are repeated.
        refresh: Nanos,
        /// Maximum rate of messages, in bits per second.
        bits_per_second: u64,
    },
    /// File of messages (RFC 5655), which is overwritten. The path is relative to the program's working directory.
    File(PathBuf),
}

impl Outlet {
    /// Returns the name used in errors.
    pub fn name(&self) -> PathBuf {
        match self {
            Outlet::Collector { address, transport, .. } => {
                let transport = match transport {
                    Transport::Udp => "udp",
                    Transport::Tcp => "tcp",
                };
                PathBuf::from(format!("{transport}:{address}"))
            }
            Outlet::File(file) => file.clone(),
        }
    }
}

/// Options of the function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Active timeout: a flow that continues is reported after this time.
    pub active: Nanos,
    /// Idle timeout: a flow without packets for this time is reported.
    pub idle: Nanos,
    /// Sampling interval: one packet in `sampling` is counted; at least 1.
    pub sampling: u32,
    /// Observation domain. It distinguishes this exporter's flows from those of others at the same address.
    pub domain: u32,
    /// Destinations of records. May be empty.
    pub outlets: Vec<Outlet>,
}
