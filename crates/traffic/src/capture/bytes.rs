//! Bytes of a capture file: decompressed on the fly, counted, never read out of bounds.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Size of the buffers before and after decompression, in bytes.
const BUFFER: usize = 64 << 10;

/// Maximum window of a zstd frame in bytes: 128 MiB, as used by `zstd --long`.
const ZSTD_WINDOW: u64 = 128 << 20;

/// File format by its first four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Magic {
    Pcap,
    PcapNg,
    Gzip,
    Zstd,
    Other,
}

pub(super) fn magic(bytes: &[u8]) -> Magic {
    match *bytes {
        [0xd4, 0xc3, 0xb2, 0xa1, ..]
        | [0xa1, 0xb2, 0xc3, 0xd4, ..]
        | [0x4d, 0x3c, 0xb2, 0xa1, ..]
        | [0xa1, 0xb2, 0x3c, 0x4d, ..]
        | [0x34, 0xcd, 0xb2, 0xa1, ..] => Magic::Pcap,
        [0x0a, 0x0d, 0x0d, 0x0a, ..] => Magic::PcapNg,
        [0x1f, 0x8b, ..] => Magic::Gzip,
        // A frame, or one of the sixteen kinds of skippable frames (RFC 8878 §3.1).
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Magic::Zstd,
        _ => Magic::Other,
    }
}

/// Describes the first bytes of a file that is not a capture, for the error message.
pub(super) fn describe(bytes: &[u8]) -> String {
    let text = match *bytes {
        [] => "empty file",
        [0xfd, b'7', b'z', b'X', ..] => "found xz data, decompress it first",
        [b'B', b'Z', b'h', ..] => "found bzip2 data, decompress it first",
        [b'P', b'K', 3, 4, ..] => "found a zip archive, extract it first",
        [b's', b'n', b'o', b'o', ..] => "found a snoop capture, convert it first",
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => "compressed twice, decompress it once first",
        _ => {
            let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
            return format!("found the first bytes {}", hex.join(" "));
        }
    };
    text.to_owned()
}

/// Reason for which fewer bytes were read than requested.
#[derive(Debug)]
pub(super) enum Stop {
    /// The file ended after this many of the requested bytes.
    End(usize),
    /// The compressed data is damaged.
    Damaged(io::Error),
    /// The file cannot be read.
    Failed(io::Error),
}

/// Stream of decompressed bytes.
pub(super) struct Bytes {
    reader: BufReader<Box<dyn Read + Send>>,
    compressed: bool,
    position: u64,
}

impl Bytes {
    /// Detects compression from the first bytes of `reader`. Returns the stream and its first four bytes (fewer if it
    /// is shorter), which are still to be read.
    pub(super) fn new<R: Read + Send + 'static>(mut reader: R) -> Result<(Self, Vec<u8>), Stop> {
        let head = first_bytes(&mut reader).map_err(Stop::Failed)?;
        let kind = magic(&head);
        let input = BufReader::with_capacity(BUFFER, Cursor::new(head).chain(reader));
        let (mut plain, compressed): (Box<dyn Read + Send>, _) = match kind {
            Magic::Gzip => (Box::new(MultiGzDecoder::new(input)), true),
            Magic::Zstd => (Box::new(Zstd::new(input)), true),
            _ => (Box::new(input), false),
        };
        let head = first_bytes(&mut plain).map_err(|error| stop(error, compressed))?;
        let whole = Box::new(Cursor::new(head.clone()).chain(plain));
        let bytes = Bytes {
            reader: BufReader::with_capacity(BUFFER, whole),
            compressed,
            position: 0,
        };
        Ok((bytes, head))
    }

    /// Returns the number of bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Appends exactly `count` bytes to `buffer`, or those available before the stop.
    pub(super) fn read_onto(&mut self, buffer: &mut Vec<u8>, count: usize) -> Result<(), Stop> {
        let mut missing = count;
        while missing > 0 {
            let available = self.fill(count - missing)?;
            let take = available.len().min(missing);
            buffer.extend_from_slice(&available[..take]);
            missing -= take;
            self.consume(take);
        }
        Ok(())
    }

    /// Skips `count` bytes.
    pub(super) fn skip(&mut self, count: u64) -> Result<(), Stop> {
        let mut missing = count;
        while missing > 0 {
            let available = self.fill((count - missing).min(usize::MAX as u64) as usize)?;
            let take = (available.len() as u64).min(missing);
            missing -= take;
            self.consume(take as usize);
        }
        Ok(())
    }

    fn consume(&mut self, count: usize) {
        self.reader.consume(count);
        self.position += count as u64;
    }

    /// Returns at least one byte, or the reason for stopping after `got` bytes.
    fn fill(&mut self, got: usize) -> Result<&[u8], Stop> {
        // The buffer is borrowed twice, because the borrow checker does not allow a conditional return out of the loop.
        loop {
            match self.reader.fill_buf() {
                Ok([]) => return Err(Stop::End(got)),
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(stop(error, self.compressed)),
            }
        }
        Ok(self.reader.buffer())
    }
}

/// Returns the first four bytes, or all if there are fewer.
fn first_bytes(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(4);
    reader.take(4).read_to_end(&mut head)?;
    Ok(head)
}

/// Classifies an error. An error of the decompressor cannot be distinguished from one of its file.
fn stop(error: io::Error, compressed: bool) -> Stop {
    if compressed {
        Stop::Damaged(error)
    } else {
        Stop::Failed(error)
    }
}

/// An empty last block (RFC 8878 §3.1.1.2), and room for a checksum. It ends a frame whose end is missing.
const LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

/// Decoder of all frames of a zstd stream, one after the other. Of a frame that is cut or damaged, the blocks before
/// the damage are returned, then the error.
struct Zstd<R: BufRead> {
    input: R,
    decoder: FrameDecoder,
    state: ZstdState,
    /// Damage of the current frame, reported after the blocks before it.
    damage: Option<io::Error>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ZstdState {
    BetweenFrames,
    InFrame,
    /// After an error or the end: no valid data can follow.
    Done,
}

impl<R: BufRead> Zstd<R> {
    fn new(input: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_WINDOW);
        Zstd {
            input,
            decoder,
            state: ZstdState::BetweenFrames,
            damage: None,
        }
    }

    /// Starts the next frame, or skips a skippable frame.
    fn next_frame(&mut self) -> io::Result<ZstdState> {
        if self.input.fill_buf()?.is_empty() {
            return Ok(ZstdState::Done);
        }
        match self.decoder.init(&mut self.input) {
            Ok(()) => Ok(ZstdState::InFrame),
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                let length = u64::from(length);
                let skipped = io::copy(&mut (&mut self.input).take(length), &mut io::sink())?;
                if skipped < length {
                    return Err(zstd_ends());
                }
                Ok(ZstdState::BetweenFrames)
            }
            Err(error) => Err(zstd_damage(error)),
        }
    }

    /// Decodes blocks until there are bytes to read, or the frame ends.
    ///
    /// The decoder holds the last window of an unfinished frame back, up to 128 MiB, since further blocks may refer to
    /// it. After damage no block follows, so an empty last block releases it. A damaged block may have been decoded in
    /// part, as in gzip.
    fn decode_blocks(&mut self) -> io::Result<()> {
        let one = || BlockDecodingStrategy::UptoBlocks(1);
        while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
            if let Err(error) = self.decoder.decode_blocks(&mut self.input, one()) {
                self.damage = Some(zstd_damage(error));
                self.decoder
                    .decode_blocks(&LAST_BLOCK[..], one())
                    .map_err(zstd_damage)?;
            }
        }
        Ok(())
    }

    fn decode(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.state {
                ZstdState::Done => return Ok(0),
                ZstdState::BetweenFrames => self.state = self.next_frame()?,
                ZstdState::InFrame => {
                    self.decode_blocks()?;
                    let count = self.decoder.read(buffer)?;
                    if count > 0 {
                        return Ok(count);
                    }
                    if let Some(damage) = self.damage.take() {
                        return Err(damage);
                    }
                    let stored = self.decoder.get_checksum_from_data();
                    if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
                        return Err(io::Error::other("the zstd frame's checksum is wrong"));
                    }
                    self.state = ZstdState::BetweenFrames;
                }
            }
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.decode(buffer).inspect_err(|_| self.state = ZstdState::Done)
    }
}

/// Returns the error of a zstd stream that ends within a frame.
fn zstd_ends() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends within a zstd frame")
}

/// Converts an error of the decoder. A missing rest, the most frequent one, gets plain words.
fn zstd_damage(error: FrameDecoderError) -> io::Error {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::UnexpectedEof) => return zstd_ends(),
            _ => cause = error.source(),
        }
    }
    io::Error::other(error)
}
