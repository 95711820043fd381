//! Packets with comments in the pcapng format (draft-ietf-opsawg-pcapng), little-endian.

use std::io::{self, Write};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const ETHERNET: u16 = 1;

const COMMENT: u16 = 1;
/// Options of the interface: its name, and the resolution of times.
const NAME: u16 = 2;
const RESOLUTION: u16 = 9;
const NANOSECONDS: u8 = 9;

/// Writer of a file with one Ethernet interface.
#[derive(Debug)]
pub struct PcapngWriter<W> {
    file: W,
    bytes: u64,
}

impl<W: Write> PcapngWriter<W> {
    /// Writes the heads, with the interface's name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(file: W, name: &str) -> io::Result<PcapngWriter<W>> {
        let mut writer = PcapngWriter { file, bytes: 0 };
        let mut section = Vec::new();
        section.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        section.extend([1u16, 0].map(u16::to_le_bytes).concat());
        // The section's length is not known.
        section.extend((-1i64).to_le_bytes());
        writer.block(SECTION_HEADER, &section)?;
        let mut interface = Vec::new();
        interface.extend([ETHERNET, 0].map(u16::to_le_bytes).concat());
        // No limit of the captured length.
        interface.extend(0u32.to_le_bytes());
        option(&mut interface, NAME, name.as_bytes());
        option(&mut interface, RESOLUTION, &[NANOSECONDS]);
        option(&mut interface, 0, &[]);
        writer.block(INTERFACE_DESCRIPTION, &interface)?;
        Ok(writer)
    }

    /// Writes a packet of `length` bytes, of which some were captured, at a time in nanoseconds.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn packet(&mut self, time: u64, captured: &[u8], length: u32, comment: &str) -> io::Result<()> {
        let mut block = Vec::with_capacity(captured.len() + comment.len() + 40);
        for word in [0, (time >> 32) as u32, time as u32, captured.len() as u32, length] {
            block.extend(word.to_le_bytes());
        }
        block.extend(captured);
        pad(&mut block);
        option(&mut block, COMMENT, comment.as_bytes());
        option(&mut block, 0, &[]);
        self.block(ENHANCED_PACKET, &block)
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        self.bytes += body.len() as u64 + 12;
        let length = (body.len() as u32 + 12).to_le_bytes();
        self.file.write_all(&kind.to_le_bytes())?;
        self.file.write_all(&length)?;
        self.file.write_all(body)?;
        self.file.write_all(&length)
    }
}

/// Appends an option, without what is too long for one.
fn option(block: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    block.extend(code.to_le_bytes());
    block.extend((value.len() as u16).to_le_bytes());
    block.extend(value);
    pad(block);
}

fn pad(block: &mut Vec<u8>) {
    block.resize(block.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CaptureReader, PacketSource, ReadOptions};

    #[test]
    fn packets_are_read_as_they_were_written() {
        let folder = std::env::temp_dir().join(format!("tailwater-pcapng-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("x.pcapng");
        let mut bytes = Vec::new();
        let mut writer = PcapngWriter::new(&mut bytes, "edge").unwrap();
        writer.packet(1_000_000_007, &[7; 61], 61, "packet 1").unwrap();
        writer.packet(5_000_000_000_000, &[8; 60], 1500, "").unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let mut reader = CaptureReader::open(&path, &ReadOptions::default()).unwrap();
        let mut packets = Vec::new();
        while let Some(packet) = reader.next_packet().unwrap() {
            packets.push((packet.timestamp, packet.data.to_vec(), packet.wire_length));
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(packets.len(), 2);
        assert_eq!((&packets[0].1[..], packets[0].2), (&[7; 61][..], 61));
        // Readers fill up what was not captured.
        assert_eq!((&packets[1].1[..60], packets[1].2), (&[8; 60][..], 1500));
        assert_eq!(packets[1].0.0 - packets[0].0.0, 5_000_000_000_000 - 1_000_000_007);
    }
}
