//! Writer of captures: nanosecond pcap files of Ethernet frames.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use tailwater_net::pcap;

use crate::{MAX_FRAME, Packet, TrafficError};

/// Writer of a pcap file: nanosecond timestamps, little-endian, Ethernet.
///
/// Packets are written through a buffer of 64 KiB. Call [`finish`](PcapWriter::finish) at the end: dropping the writer
/// loses the error of the last write.
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    file: String,
    output: BufWriter<W>,
    packets: u64,
}

impl PcapWriter<File> {
    /// Creates (or overwrites) a file.
    ///
    /// # Errors
    /// [`TrafficError::Write`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self, TrafficError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match tailwater_files::create(path) {
            Ok(file) => Self::new(file, name),
            Err(source) => Err(TrafficError::Write { file: name, source }),
        }
    }
}

impl<W: Write> PcapWriter<W> {
    /// Starts a capture on `output`; `name` identifies it in messages.
    ///
    /// # Errors
    /// [`TrafficError::Write`].
    pub fn new(output: W, name: impl Into<String>) -> Result<Self, TrafficError> {
        let mut writer = PcapWriter {
            file: name.into(),
            output: BufWriter::with_capacity(64 << 10, output),
            packets: 0,
        };
        writer.put(&pcap::file_header())?;
        Ok(writer)
    }

    /// Appends a packet.
    ///
    /// # Errors
    /// [`TrafficError::PacketTooLong`] and [`TrafficError::EmptyPacket`] for frames that readers reject,
    /// [`TrafficError::TimestampOutOfRange`] for a time after 2106, and [`TrafficError::Write`].
    pub fn write(&mut self, packet: &Packet<'_>) -> Result<(), TrafficError> {
        let number = self.packets + 1;
        if packet.data.is_empty() {
            return Err(TrafficError::EmptyPacket {
                file: self.file.clone(),
                number,
            });
        }
        if packet.data.len() > MAX_FRAME {
            return Err(TrafficError::PacketTooLong {
                file: self.file.clone(),
                number,
                length: packet.data.len() as u64,
                limit: MAX_FRAME as u64,
            });
        }
        let captured = packet.data.len() as u32;
        let header = pcap::record_header(packet.timestamp, captured, packet.wire_length);
        let Some(header) = header else {
            return Err(TrafficError::TimestampOutOfRange {
                file: self.file.clone(),
                number,
            });
        };
        self.put(&header)?;
        self.put(packet.data)?;
        self.packets = number;
        Ok(())
    }

    /// Returns the number of packets written so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Flushes the buffer, and returns the output.
    ///
    /// # Errors
    /// [`TrafficError::Write`].
    pub fn finish(mut self) -> Result<W, TrafficError> {
        let flushed = self.output.flush();
        flushed.map_err(|source| self.error(source))?;
        let file = self.file;
        self.output.into_inner().map_err(|error| TrafficError::Write {
            file,
            source: error.into_error(),
        })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), TrafficError> {
        let written = self.output.write_all(bytes);
        written.map_err(|source| self.error(source))
    }

    fn error(&self, source: std::io::Error) -> TrafficError {
        TrafficError::Write {
            file: self.file.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tailwater_net::Nanos;

    use super::*;
    use crate::{CaptureReader, PacketSource, ReadOptions};

    fn packet(nanos: u64, data: &[u8]) -> Packet<'_> {
        Packet {
            timestamp: Nanos(nanos),
            data,
            wire_length: data.len() as u32,
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let frames: Vec<(u64, Vec<u8>)> = (0..200u64)
            .map(|i| (i * 7_777_777_777, vec![i as u8; 14 + (i as usize * 331) % 65_000]))
            .chain([(u64::from(u32::MAX) * 1_000_000_000 + 999_999_999, vec![9; 65_535])])
            .collect();
        let mut writer = PcapWriter::new(Vec::new(), "memory").unwrap();
        for (time, data) in &frames {
            writer.write(&packet(*time, data)).unwrap();
        }
        assert_eq!(writer.packets(), frames.len() as u64);
        let file = writer.finish().unwrap();
        let mut reader = CaptureReader::from_reader(io::Cursor::new(file), "memory", &ReadOptions::default()).unwrap();
        for (time, data) in &frames {
            let read = reader.next_packet().unwrap().unwrap();
            assert_eq!(read, packet(*time, data));
        }
        assert!(reader.next_packet().unwrap().is_none());
        assert!(reader.notices().is_empty());
    }

    #[test]
    fn refuses_what_no_reader_takes() {
        let mut writer = PcapWriter::new(Vec::new(), "memory").unwrap();
        assert!(matches!(
            writer.write(&packet(0, &[])),
            Err(TrafficError::EmptyPacket { number: 1, .. })
        ));
        assert!(matches!(
            writer.write(&packet(0, &vec![0; 65_536])),
            Err(TrafficError::PacketTooLong { length: 65_536, .. })
        ));
        assert!(matches!(
            writer.write(&packet((u64::from(u32::MAX) + 1) * 1_000_000_000, &[1])),
            Err(TrafficError::TimestampOutOfRange { .. })
        ));
        assert_eq!(writer.packets(), 0);
        assert_eq!(writer.finish().unwrap().len(), 24, "nothing was half written");
    }

    /// Output that accepts a number of bytes, then fails.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Output that accepts everything, and fails on flush.
    #[derive(Debug)]
    struct Lossy;

    impl Write for Lossy {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn the_output_is_flushed_at_the_end() {
        let writer = PcapWriter::new(Lossy, "lossy").unwrap();
        assert!(matches!(writer.finish(), Err(TrafficError::Write { .. })));
    }

    #[test]
    fn a_full_disk_is_an_error_at_the_end() {
        let mut writer = PcapWriter::new(Full(30), "full").unwrap();
        writer.write(&packet(0, &[0; 60])).unwrap();
        let error = writer.finish().err().expect("the disk is full");
        assert!(error.to_string().starts_with("full: cannot write"), "{error}");
    }
}
