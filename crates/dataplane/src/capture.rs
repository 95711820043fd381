//! Recording of sent packets into a pcap file, off the workers' cores.

use crate::chunks::{ChunkSender, Chunks};
use std::path::Path;
use std::thread::JoinHandle;
use tailwater_functions::out_file::{OutFile, Pulse};
use tailwater_net::Nanos;
use tailwater_traffic::{Packet, PcapWriter, TrafficError};

/// Size of a chunk in bytes. Packets travel to the writer in chunks.
const CHUNK: usize = 1 << 20;
/// Chunks per queue: the maximum that can wait for the disk.
const CHUNKS: usize = 16;
/// Bytes before each frame in a chunk: its time and length.
const RECORD: usize = 12;

/// One queue's end of the capture. Recording copies the packet. The worker waits for the disk only when all the queue's
/// chunks are full, which appears as a gap. A file that hangs is abandoned and receives no more packets.
#[derive(Debug)]
pub struct CaptureTap {
    chunks: ChunkSender<u8>,
    given_up: bool,
}

impl CaptureTap {
    /// Records a frame sent at `now`.
    #[inline]
    pub fn record(&mut self, now: Nanos, frame: &[u8]) {
        // Even if the file accepts data again and a shorter frame would fit: the part written must have no gap.
        if self.given_up || !self.chunks.wait_for_room(RECORD + frame.len()) {
            self.given_up = true;
            return;
        }
        self.chunks.extend(&now.0.to_le_bytes());
        self.chunks.extend(&(frame.len() as u32).to_le_bytes());
        self.chunks.extend(frame);
    }
}

/// Writer thread of the capture.
#[derive(Debug)]
pub struct CaptureFile {
    writer: Option<JoinHandle<Result<u64, TrafficError>>>,
    file: String,
    pulse: Pulse,
}

impl Drop for CaptureFile {
    /// Joins the thread, also after an error elsewhere, unless the file hangs. The taps must be dropped before.
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            let _ = self.pulse.join(writer);
        }
    }
}

impl CaptureFile {
    /// Creates the file, and a tap for each of `queues` queues. With one queue packets are in order of time. With more,
    /// each queue's packets are, and queues alternate by chunks.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(path: &Path, queues: usize) -> Result<(CaptureFile, Vec<CaptureTap>), TrafficError> {
        let name = path.display().to_string();
        let error = |source| TrafficError::Write {
            file: name.clone(),
            source,
        };
        let (chunks, receiver) = Chunks::new(queues, CHUNKS, CHUNK);
        let pulse = chunks.pulse().clone();
        let file = OutFile::create(path, &pulse).map_err(error)?;
        let mut file = PcapWriter::new(file, &*name)?;
        let taps = (0..queues)
            .map(|queue| CaptureTap {
                chunks: chunks.sender(queue),
                given_up: false,
            })
            .collect();
        let writer = std::thread::Builder::new()
            .name("capture".to_owned())
            .spawn(move || {
                let mut outcome = Ok(());
                receiver.for_each(|_, bytes| {
                    // After an error the workers' chunks are still drained.
                    if outcome.is_ok() {
                        outcome = write_chunk(&mut file, bytes);
                    }
                });
                let packets = file.packets();
                outcome.and_then(|()| file.finish()).map(|_| packets)
            })
            .map_err(error)?;
        let file = CaptureFile {
            writer: Some(writer),
            file: name,
            pulse,
        };
        Ok((file, taps))
    }

    /// Waits until everything is written, after all taps have been dropped. Returns the number of packets written.
    ///
    /// # Errors
    /// The first write error, or a timeout if the file hangs.
    pub fn finish(mut self) -> Result<u64, TrafficError> {
        let Some(writer) = self.writer.take() else {
            return Ok(0);
        };
        self.pulse.join(writer).unwrap_or_else(|source| {
            let file = std::mem::take(&mut self.file);
            Err(TrafficError::Write { file, source })
        })
    }
}

fn write_chunk(file: &mut PcapWriter<OutFile>, mut bytes: &[u8]) -> Result<(), TrafficError> {
    while let Some((time, rest)) = bytes.split_first_chunk::<8>()
        && let Some((length, rest)) = rest.split_first_chunk::<4>()
    {
        let length = u32::from_le_bytes(*length);
        let (data, rest) = rest.split_at(length as usize);
        if !data.is_empty() {
            let timestamp = Nanos(u64::from_le_bytes(*time));
            file.write(&Packet {
                timestamp,
                data,
                wire_length: length,
            })?;
        }
        bytes = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_traffic::{CaptureReader, PacketSource, ReadOptions};

    #[test]
    fn everything_recorded_is_in_the_file() {
        let path = std::env::temp_dir().join(format!("tailwater-capture-{}", std::process::id()));
        let (file, taps) = CaptureFile::create(&path, 2).unwrap();
        // More than one chunk per queue.
        std::thread::scope(|scope| {
            for (queue, mut tap) in taps.into_iter().enumerate() {
                scope.spawn(move || {
                    for i in 0..3000u64 {
                        tap.record(Nanos(i), &[queue as u8; 1000]);
                    }
                });
            }
        });
        assert_eq!(file.finish().unwrap(), 6000);
        let mut reader = CaptureReader::open(&path, &ReadOptions::default()).unwrap();
        let mut seen = [0u64; 2];
        while let Some(packet) = reader.next_packet().unwrap() {
            let queue = usize::from(packet.data[0]);
            assert_eq!((packet.timestamp, packet.data.len()), (Nanos(seen[queue]), 1000));
            seen[queue] += 1;
        }
        assert_eq!(seen, [3000, 3000]);
        std::fs::remove_file(&path).unwrap();
    }
}
