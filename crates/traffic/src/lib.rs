//! Captures in and out, traffic synthesis, trace statistics.

pub mod capture;
mod error;
mod notice;
mod packet;
pub mod stats;
pub mod trace;
pub mod writer;

pub use capture::{CaptureReader, ReadOptions};
pub use error::TrafficError;
pub use notice::Notice;
pub use packet::{MAX_FRAME, Packet, PacketSource};
pub use stats::Statistics;
pub use trace::{LoadOptions, Trace, TraceSource};
pub use writer::PcapWriter;
