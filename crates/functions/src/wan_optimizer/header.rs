//! Format of the UDP datagrams between two ends, version 1. All numbers are big-endian.
//!
//! Content, from encoder to decoder:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | version (high four bits), kind: 0 |
//! | 1 | number of regions |
//! | 2-3 | length of the restored content, in bytes |
//! | 4-7 | epoch |
//! | 8-11 | first line of the content |
//! | 12-15 | checksum of the restored content |
//! | 8 per region | 2: offset in the content; 2: length in bytes; 4: distance in bytes from its start in the cache to the content's first byte |
//! | rest | bytes covered by no region, in order |
//!
//! Request, from decoder to encoder:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | version, kind: 1 |
//! | 1 | number of ranges of missing lines |
//! | 2-3 | 1 to start a new epoch; otherwise 0 |
//! | 4-7 | epoch |
//! | 8-11 | first line of the epoch the decoder may have |
//! | 12-15 | lines of the decoder's cache |
//! | 8 per range | 4: first line; 4: number of lines |

use super::{MAX_CONTENT, lines_of};

/// Version of both message kinds.
pub const VERSION: u8 = 1;
/// Bytes before regions or ranges.
pub const HEADER: usize = 16;
/// Bytes of a region, or of a range.
pub const ENTRY: usize = 8;
/// Largest number of ranges in a request.
pub const MAX_RANGES: usize = 255;
/// Largest number of regions in content: one fewer, since a request also lists the content's own lines.
pub const MAX_REGIONS: usize = MAX_RANGES - 1;
/// Largest number of lines a request can list: those the longest content refers to, and its own.
pub const MAX_MISSING: u32 = 2 * (MAX_CONTENT as u32).div_ceil(super::LINE as u32) + 2 * MAX_RANGES as u32;

const CONTENT: u8 = VERSION << 4;
const REQUEST: u8 = VERSION << 4 | 1;

/// Parsed datagram.
#[derive(Debug)]
pub enum Message<'a> {
    /// Content from an encoder.
    Content(Content<'a>),
    /// Request from a decoder.
    Request(Request<'a>),
}

/// Encoded content.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// The encoder's epoch.
    pub epoch: u32,
    /// First line, at least 1.
    pub line: u32,
    /// Length of the restored content, in bytes.
    pub length: u16,
    /// Checksum of the restored content.
    pub checksum: u32,
    regions: &'a [[u8; ENTRY]],
    /// Bytes covered by no region, in order.
    pub literals: &'a [u8],
}

/// Range of content found in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Offset in the content.
    pub at: u16,
    /// Length in bytes, at least 1.
    pub length: u16,
    /// Distance in bytes from its start in the cache to the content's first byte.
    pub distance: u32,
}

/// Request of a decoder.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Epoch the request applies to.
    pub epoch: u32,
    /// `true` requests a new epoch.
    pub reset: bool,
    /// First line of the epoch the decoder may have.
    pub since: u32,
    /// Lines of the decoder's cache.
    pub lines: u32,
    ranges: &'a [[u8; ENTRY]],
}

/// Reasons a datagram is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The datagram is inconsistent.
    Malformed,
    /// Unknown version or kind.
    Version,
}

impl<'a> Content<'a> {
    /// Iterates over the regions in order; their bytes and the literals make up the content.
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

    /// Returns `true` if regions are in order, and fill the content together with the literals.
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
    /// Iterates over the missing ranges: first line and number of lines.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = [u32; 2]> {
        self.ranges.iter().map(|entry| {
            let [a, b, c, d, count @ ..] = *entry;
            [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(count)]
        })
    }
}

/// Parses a datagram's payload.
///
/// # Errors
/// The payload is inconsistent, or of unknown version or kind.
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

/// Returns the encoded length of content, in bytes.
pub(super) fn coded_length(content: usize, regions: &[Region]) -> usize {
    let saved: usize = regions.iter().map(|r| usize::from(r.length)).sum();
    HEADER + regions.len() * ENTRY + content - saved
}

/// Writes content with these regions, at most [`MAX_REGIONS`], to the front of `out`, and returns the length. Returns
/// `None` if there is no room; `out` may then be partly written.
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

/// Writes a request to the front of `out`, and returns the length. Returns `None` if there is no room; `out` may then
/// be partly written.
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
