//! Reader of captures: pcap and pcapng, plain, gzip or zstd, as a stream of Ethernet frames.
//!
//! Container and compression are detected by their first bytes, never by the file's name. Memory is bounded whatever
//! the file states: one packet, a few fixed buffers, and up to 128 MiB for the window of a zstd file.

mod bytes;
mod link;
mod pcap;
mod pcapng;
mod record;
#[cfg(test)]
mod tests;

use std::io::Read;
use std::ops::Range;
use std::path::Path;

use tailwater_files::{InputFile, STDIN, is_stdin};
use tailwater_net::Nanos;

pub(crate) use self::link::SUPPORTED_LINK_TYPES;
pub use self::link::{SYNTHETIC_DESTINATION, SYNTHETIC_ETHERTYPE, SYNTHETIC_SOURCE};

use self::bytes::{Bytes, Magic, Stop};
use self::link::{HEADROOM, LinkType};
use self::pcap::Pcap;
use self::pcapng::PcapNg;
use self::record::{Record, Step};
use crate::{MAX_FRAME, Notice, Packet, PacketSource, TrafficError};

/// Options for reading captures.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// Skips and counts packets that cannot be replayed, instead of rejecting the file. These are empty packets,
    /// packets longer than [`MAX_FRAME`], packets truncated within the link-layer header, and those of an unsupported
    /// link type among supported ones.
    pub skip_bad_packets: bool,
}

/// Capture file as a source of packets.
pub struct CaptureReader {
    file: String,
    options: ReadOptions,
    bytes: Bytes,
    container: Container,
    /// Current record, with [`HEADROOM`] bytes before it.
    buffer: Vec<u8>,
    /// Number of records read, good or bad.
    records: u64,
    finished: bool,
    counts: Counts,
    cut: Option<Notice>,
}

enum Container {
    Pcap(Pcap),
    PcapNg(PcapNg),
}

#[derive(Default)]
struct Counts {
    yielded: u64,
    empty: u64,
    too_long: u64,
    link_header_cut: u64,
    link_type: u64,
    padded: u64,
    left_short: u64,
}

impl CaptureReader {
    /// Opens a capture file, or standard input if the path is `-`.
    ///
    /// # Errors
    /// [`TrafficError::Read`] if it cannot be read, [`TrafficError::NotACapture`] if it has another format,
    /// [`TrafficError::LinkType`] if its link type is not supported, and [`TrafficError::NoPackets`] if it is truncated
    /// within its header.
    pub fn open(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Self, TrafficError> {
        let path = path.as_ref();
        let name = match is_stdin(path) {
            true => STDIN.to_owned(),
            false => path.display().to_string(),
        };
        match InputFile::named(path) {
            Ok(file) => Self::from_reader(file, name, options),
            Err(source) => Err(TrafficError::Read { file: name, source }),
        }
    }

    /// Reads a capture from a stream; `name` identifies it in messages.
    ///
    /// # Errors
    /// As [`CaptureReader::open`].
    pub fn from_reader(
        reader: impl Read + Send + 'static,
        name: impl Into<String>,
        options: &ReadOptions,
    ) -> Result<Self, TrafficError> {
        let file = name.into();
        let mut buffer = Vec::with_capacity(4096);
        let (bytes, container) = open_container(reader, &mut buffer, &file)?;
        Ok(CaptureReader {
            file,
            options: options.clone(),
            bytes,
            container,
            buffer,
            records: 0,
            finished: false,
            counts: Counts::default(),
            cut: None,
        })
    }

    /// Reads up to the next usable packet, and returns the range of its frame in the buffer.
    fn advance(&mut self) -> Result<Option<(Nanos, Range<usize>, u32)>, TrafficError> {
        loop {
            let position = self.bytes.position();
            self.buffer.clear();
            self.buffer.resize(HEADROOM, 0);
            let step = match &mut self.container {
                Container::Pcap(pcap) => pcap.next(&mut self.bytes, &mut self.buffer),
                Container::PcapNg(ng) => ng.next(&mut self.bytes, &mut self.buffer),
            };
            let damage = match step {
                Ok(Step::Record(record)) => {
                    self.records += 1;
                    match self.normalise(record)? {
                        Some(packet) => {
                            self.counts.yielded += 1;
                            return Ok(Some(packet));
                        }
                        None => continue,
                    }
                }
                Ok(Step::End) => None,
                Ok(Step::Damage(reason)) => Some(reason),
                Err(Stop::End(_)) => Some("the file ends within a record".to_owned()),
                Err(Stop::Damaged(error)) => Some(format!("the compressed data is damaged: {error}")),
                Err(Stop::Failed(source)) => {
                    self.finished = true;
                    return Err(TrafficError::Read {
                        file: self.file.clone(),
                        source,
                    });
                }
            };
            self.finished = true;
            if self.counts.yielded == 0 {
                let reason = match damage {
                    Some(reason) => format!("{reason} (at byte {position})"),
                    None if self.records > 0 => {
                        format!("all its {} packet records were skipped", self.records)
                    }
                    None => "found no records after its header".to_owned(),
                };
                return Err(TrafficError::NoPackets {
                    file: self.file.clone(),
                    reason,
                });
            }
            self.cut = damage.map(|reason| Notice::Cut {
                file: self.file.clone(),
                packets: self.records,
                byte: position,
                reason,
            });
            return Ok(None);
        }
    }

    /// Converts a record to an Ethernet frame, and returns its range and wire length. `None` if it must be skipped.
    fn normalise(&mut self, record: Record) -> Result<Option<(Nanos, Range<usize>, u32)>, TrafficError> {
        let captured = record.data.len() as u64;
        if captured == 0 {
            return self.bad(
                |counts| &mut counts.empty,
                |file, number| TrafficError::EmptyPacket { file, number },
            );
        }
        if let LinkType::Unsupported(number) = record.link {
            return self.bad(
                |counts| &mut counts.link_type,
                |file, _| TrafficError::LinkType {
                    file,
                    number,
                    name: link::unsupported_name(number),
                },
            );
        }
        let link = record.link;
        let Some(frame) = link.frame(&mut self.buffer, record.data.clone(), u64::from(record.wire_length)) else {
            return self.bad(
                |counts| &mut counts.link_header_cut,
                |file, number| TrafficError::LinkHeaderCut {
                    file,
                    number,
                    length: captured,
                    needed: link.header() as u64,
                },
            );
        };
        if frame.len() > MAX_FRAME {
            return self.bad(
                |counts| &mut counts.too_long,
                |file, number| TrafficError::PacketTooLong {
                    file,
                    number,
                    length: frame.len() as u64,
                    limit: MAX_FRAME as u64,
                },
            );
        }
        // Some tools write a wire length of zero, or below the captured length.
        let wire = i64::from(record.wire_length) + link.growth();
        let wire = wire.max(frame.len() as i64) as u64;
        let mut end = frame.end;
        if wire > frame.len() as u64 {
            if wire <= MAX_FRAME as u64 {
                end = frame.start + wire as usize;
                // Padding and options after the data are not part of the packet.
                self.buffer.truncate(frame.end);
                self.buffer.resize(end, 0);
                self.counts.padded += 1;
            } else {
                self.counts.left_short += 1;
            }
        }
        let wire = u32::try_from(wire).unwrap_or(u32::MAX);
        Ok(Some((record.timestamp, frame.start..end, wire)))
    }

    /// Rejects a record, or counts it as skipped.
    fn bad<T>(
        &mut self,
        count: impl FnOnce(&mut Counts) -> &mut u64,
        error: impl FnOnce(String, u64) -> TrafficError,
    ) -> Result<Option<T>, TrafficError> {
        if self.options.skip_bad_packets {
            *count(&mut self.counts) += 1;
            return Ok(None);
        }
        self.finished = true;
        Err(error(self.file.clone(), self.records))
    }
}

/// Detects and opens the container.
fn open_container(
    reader: impl Read + Send + 'static,
    buffer: &mut Vec<u8>,
    file: &str,
) -> Result<(Bytes, Container), TrafficError> {
    let stopped = |stop| {
        let file = file.to_owned();
        let reason = match stop {
            Stop::Failed(source) => return TrafficError::Read { file, source },
            Stop::End(_) => "the file ends within its header".to_owned(),
            Stop::Damaged(error) => format!("the compressed data is damaged: {error}"),
        };
        TrafficError::NoPackets { file, reason }
    };
    let (mut bytes, head) = Bytes::new(reader).map_err(stopped)?;
    let not_a_capture = || TrafficError::NotACapture {
        file: file.to_owned(),
        found: bytes::describe(&head),
    };
    match bytes::magic(&head) {
        Magic::Pcap => {}
        Magic::PcapNg => return Ok((bytes, Container::PcapNg(PcapNg::default()))),
        _ => return Err(not_a_capture()),
    }
    let pcap = Pcap::open(&mut bytes, buffer).map_err(|open| match open {
        pcap::Open::Stopped(stop) => stopped(stop),
        pcap::Open::NotPcap => not_a_capture(),
    })?;
    if let LinkType::Unsupported(number) = LinkType::from_number(pcap.link_type) {
        return Err(TrafficError::LinkType {
            file: file.to_owned(),
            number,
            name: link::unsupported_name(number),
        });
    }
    Ok((bytes, Container::Pcap(pcap)))
}

impl PacketSource for CaptureReader {
    /// Returns the next usable packet.
    ///
    /// # Errors
    /// [`TrafficError::NoPackets`] if the file ends before the first usable packet; unless
    /// [`ReadOptions::skip_bad_packets`] is set, the error of a packet that cannot be replayed; [`TrafficError::Read`]
    /// if the file cannot be read further.
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        if self.finished {
            return Ok(None);
        }
        let Some((timestamp, frame, wire_length)) = self.advance()? else {
            return Ok(None);
        };
        Ok(Some(Packet {
            timestamp,
            data: &self.buffer[frame],
            wire_length,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        let counts = &self.counts;
        let mut notices = Vec::new();
        notices.extend(self.cut.clone());
        if counts.empty + counts.too_long + counts.link_header_cut + counts.link_type > 0 {
            notices.push(Notice::Skipped {
                file: self.file.clone(),
                empty: counts.empty,
                too_long: counts.too_long,
                link_header_cut: counts.link_header_cut,
                link_type: counts.link_type,
            });
        }
        if counts.padded > 0 {
            notices.push(Notice::Padded {
                file: self.file.clone(),
                packets: counts.padded,
            });
        }
        if counts.left_short > 0 {
            notices.push(Notice::LeftShort {
                file: self.file.clone(),
                packets: counts.left_short,
            });
        }
        notices
    }

    fn name(&self) -> &str {
        &self.file
    }
}
