//! Captures in and out, traffic synthesis, trace statistics.
//!
//! A source of packets is a [`PacketSource`]: a capture file ([`CaptureReader`]), synthetic traffic ([`generate`]), or
//! a trace in memory ([`Trace`]). Packets are Ethernet frames without frame check sequence, at most [`MAX_FRAME`]
//! bytes, each with its time. Sources stream: they hold one packet at a time, however long the file.
//!
//! ```
//! use std::io::Cursor;
//!
//! use tailwater_net::Nanos;
//! use tailwater_traffic::generate::{Bursty, BurstyConfig};
//! use tailwater_traffic::{
//!     CaptureReader, LoadOptions, PacketSource, PcapWriter, ReadOptions, Statistics, Trace,
//! };
//!
//! // Make a millisecond of bursty traffic and write it as a capture.
//! let mut config = BurstyConfig::preset();
//! config.duration = Nanos::from_millis(1);
//! config.warm_up = Nanos::from_millis(10);
//! let mut traffic = Bursty::new(config)?;
//! let mut writer = PcapWriter::new(Vec::new(), "bursty.pcap")?;
//! while let Some(packet) = traffic.next_packet()? {
//!     writer.write(&packet)?;
//! }
//! let capture = writer.finish()?;
//!
//! // Read it back into memory, to be replayed at twice the rate.
//! let options = ReadOptions::default();
//! let mut reader = CaptureReader::from_reader(Cursor::new(capture), "bursty.pcap", &options)?;
//! let mut trace = Trace::load(&mut reader, &LoadOptions::default())?;
//! trace.scale_rate(2.0)?;
//! assert!(trace.duration() < Nanos::from_micros(500));
//! assert_eq!(trace.arrival(0), Nanos::ZERO);
//! assert!(trace.packet(0).len() >= 60);
//!
//! // What is in it?
//! let statistics = Statistics::measure(&mut trace.source(), 1 << 30)?;
//! assert_eq!(statistics.packets, trace.len() as u64);
//! println!("{statistics}");
//! # Ok::<(), tailwater_traffic::TrafficError>(())
//! ```
//!
//! Data in files is validated: lengths are checked, memory is bounded, and damage ends the packets with a [`Notice`]
//! instead of a panic.

pub mod bursts;
pub mod capture;
pub mod convert;
mod error;
pub mod generate;
pub mod impair;
mod notice;
mod packet;
mod pcapng;
pub mod renumber;
pub mod stats;
pub mod trace;
pub mod writer;

pub use capture::{CaptureReader, ReadOptions};
pub use error::TrafficError;
pub use notice::Notice;
pub use packet::{MAX_FRAME, Packet, PacketSource};
pub use pcapng::PcapngWriter;
pub use stats::Statistics;
pub use trace::{LoadOptions, Trace, TraceSource};
pub use writer::PcapWriter;
