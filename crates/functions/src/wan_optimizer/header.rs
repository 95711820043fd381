//! What is in the UDP datagrams between two ends, version 1. All numbers are big-endian.
//!
//! Content, from encoder to decoder:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version (high four bits), kind: 0 |
//! | 1 | regions |
//! | 2-3 | bytes of the content, once restored |
//! | 4-7 | epoch |
//! | 8-11 | the content's first line |
//! | 12-15 | checksum of the restored content |
//! | 8 for each region | 2: where it goes in the content; 2: its bytes; 4: how many bytes before the content's first one it begins |
//! | rest | the bytes that no region covers, in their order |
//!
//! A request, from decoder to encoder:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version, kind: 1 |
//! | 1 | ranges of missing lines |
//! | 2-3 | 1: begin a new epoch; else 0 |
//! | 4-7 | epoch |
//! | 8-11 | the first line of the epoch that the decoder may have |
//! | 12-15 | lines of the decoder's cache |
//! | 8 for each range | 4: first line; 4: lines |

use super::{MAX_CONTENT, lines_of};

/// The version of both.
pub const VERSION: u8 = 1;
/// Bytes in front of regions or ranges.
pub const HEADER: usize = 16;
/// Bytes of a region, or of a range.
pub const ENTRY: usize = 8;
/// The most ranges of a request.
pub const MAX_RANGES: usize = 255;
/// The most regions of content: one fewer, for a request is about the content's own lines, too.
pub const MAX_REGIONS: usize = MAX_RANGES - 1;
/// The most lines that a request can be about: what the longest content refers to, and its own.
pub const MAX_MISSING: u32 = 2 * (MAX_CONTENT as u32).div_ceil(super::LINE as u32) + 2 * MAX_RANGES as u32;

const CONTENT: u8 = VERSION << 4;
const REQUEST: u8 = VERSION << 4 | 1;

/// A datagram that was read.
#[derive(Debug)]
pub enum Message<'a> {
    /// From an encoder.
    Content(Content<'a>),
    /// From a decoder.
    Request(Request<'a>),
}

/// Content as it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// The encoder's epoch.
    pub epoch: u32,
    /// Its first line, from 1 on.
    pub line: u32,
    /// Its bytes, once restored.
    pub length: u16,
    /// Of the restored content.
    pub checksum: u32,
    regions: &'a [[u8; ENTRY]],
    /// What no region covers: as many bytes as are left.
    pub literals: &'a [u8],
}

/// A stretch of content that is in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where it goes in the content.
    pub at: u16,
    /// Its bytes, 1 at least.
    pub length: u16,
    /// How many bytes before the content's first one it begins in the cache.
    pub distance: u32,
}

/// What a decoder asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The epoch that it is about.
    pub epoch: u32,
    /// Whether the encoder is to begin a new one.
    pub reset: bool,
    /// The first line of the epoch that the decoder may have.
    pub since: u32,
    /// Lines of the decoder's cache.
    pub lines: u32,
    ranges: &'a [[u8; ENTRY]],
}

/// Why bytes are no datagram of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// They contradict themselves.
    Malformed,
    /// They are of another version or kind.
    Version,
}

impl<'a> Content<'a> {
    /// The regions, each behind the one before; their bytes and the literals' are the content's.
    pub fn regions(&self) -> impl ExactSizeIterator<Item = Region> + use<'a> {
        self.regions.iter().map(|entry| {
            let [a0, a1, l0, l1, d @ ..] = *entry;
            Region {
                at: u16::from_be_bytes([a0, a1]),
                length: u16::from_be_bytes([l0, l1]),
                distance: u32::from_be_bytes(d),
            }
        })
    }

    /// Whether regions are in order, and with the literals fill the content.
    fn is_whole(&self) -> bool {
        let (mut end, mut copied) = (0, 0);
        for region in self.regions() {
            let (at, length) = (usize::from(region.at), usize::from(region.length));
            if at < end || length == 0 {
                return false;
            }
            end = at + length;
            copied += length;
        }
        let length = usize::from(self.length);
        end <= length
            && copied + self.literals.len() == length
            && length > 0
            && self.line > 0
            && self.regions.len() <= MAX_REGIONS
    }
}

impl Request<'_> {
    /// The missing lines: the first ones and how many.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = [u32; 2]> {
        self.ranges.iter().map(|entry| {
            let [a, b, c, d, count @ ..] = *entry;
            [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(count)]
        })
    }
}

/// Reads a datagram's payload.
///
/// # Errors
/// If it is none.
pub fn parse(bytes: &[u8]) -> Result<Message<'_>, Unreadable> {
    match bytes.first() {
        Some(&(CONTENT | REQUEST)) => {}
        Some(_) => return Err(Unreadable::Version),
        None => return Err(Unreadable::Malformed),
    }
    let (head, rest) = bytes.split_first_chunk::<HEADER>().ok_or(Unreadable::Malformed)?;
    let entries = usize::from(head[1]) * ENTRY;
    let (entries, rest) = rest.split_at_checked(entries).ok_or(Unreadable::Malformed)?;
    let (entries, _) = entries.as_chunks();
    let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let short = u16::from_be_bytes([head[2], head[3]]);
    let (epoch, line, last) = (number(4), number(8), number(12));
    if head[0] == CONTENT {
        let content = Content {
            epoch,
            line,
            length: short,
            checksum: last,
            regions: entries,
            literals: rest,
        };
        let whole = content.is_whole() && line.checked_add(lines_of(short.into())).is_some();
        return whole.then_some(Message::Content(content)).ok_or(Unreadable::Malformed);
    }
    let request = Request {
        epoch,
        reset: short == 1,
        since: line,
        lines: last,
        ranges: entries,
    };
    let all = request
        .ranges()
        .try_fold(0u32, |all, [first, count]| {
            first.checked_add(count)?;
            all.checked_add(count)
        })
        .is_some_and(|all| all <= MAX_MISSING);
    let sound = all && rest.is_empty() && short <= 1;
    sound.then_some(Message::Request(request)).ok_or(Unreadable::Malformed)
}

/// The bytes that content takes as it is sent.
pub(super) fn coded_length(content: usize, regions: &[Region]) -> usize {
    let saved: usize = regions.iter().map(|r| usize::from(r.length)).sum();
    HEADER + regions.len() * ENTRY + content - saved
}

/// Writes content with these regions, of which there are at most [`MAX_REGIONS`], over the front of `out`. Gives its bytes;
/// `None`, with anything written, if there is no room.
pub(super) fn write_content(
    out: &mut [u8],
    content: &[u8],
    regions: &[Region],
    [epoch, line, checksum]: [u32; 3],
) -> Option<usize> {
    let length = coded_length(content.len(), regions);
    let out = out.get_mut(..length)?;
    let (head, rest) = out.split_first_chunk_mut::<HEADER>()?;
    (head[0], head[1]) = (CONTENT, u8::try_from(regions.len()).ok()?);
    head[2..4].copy_from_slice(&u16::try_from(content.len()).ok()?.to_be_bytes());
    head[4..8].copy_from_slice(&epoch.to_be_bytes());
    head[8..12].copy_from_slice(&line.to_be_bytes());
    head[12..16].copy_from_slice(&checksum.to_be_bytes());
    let (entries, mut literals) = rest.split_at_mut_checked(regions.len() * ENTRY)?;
    let mut from = 0;
    for (region, entry) in regions.iter().zip(entries.as_chunks_mut::<ENTRY>().0) {
        entry[0..2].copy_from_slice(&region.at.to_be_bytes());
        entry[2..4].copy_from_slice(&region.length.to_be_bytes());
        entry[4..8].copy_from_slice(&region.distance.to_be_bytes());
        let between = content.get(from..region.at.into())?;
        let (here, rest) = literals.split_at_mut_checked(between.len())?;
        here.copy_from_slice(between);
        literals = rest;
        from = usize::from(region.at) + usize::from(region.length);
    }
    let behind = content.get(from..)?;
    (literals.len() == behind.len()).then(|| literals.copy_from_slice(behind))?;
    Some(length)
}

/// Writes a request over the front of `out`. Gives its bytes; `None`, with anything written, if there is no room.
pub(super) fn write_request(
    out: &mut [u8],
    [epoch, since, lines]: [u32; 3],
    reset: bool,
    ranges: &[[u32; 2]],
) -> Option<usize> {
    let length = HEADER + ranges.len() * ENTRY;
    let (head, rest) = out.get_mut(..length)?.split_first_chunk_mut::<HEADER>()?;
    (head[0], head[1]) = (REQUEST, u8::try_from(ranges.len()).ok()?);
    head[2..4].copy_from_slice(&u16::from(reset).to_be_bytes());
    head[4..8].copy_from_slice(&epoch.to_be_bytes());
    head[8..12].copy_from_slice(&since.to_be_bytes());
    head[12..16].copy_from_slice(&lines.to_be_bytes());
    for ([first, count], entry) in ranges.iter().zip(rest.as_chunks_mut::<ENTRY>().0) {
        entry[..4].copy_from_slice(&first.to_be_bytes());
        entry[4..].copy_from_slice(&count.to_be_bytes());
    }
    Some(length)
}
