//! Removal of content codings from message bodies, as leniently as receivers do.

use flate2::{Decompress, FlushDecompress, Status};
use tailwater_streams::http::head::Head;

/// Largest number of codings that are removed from one body.
const MAX_LAYERS: usize = 3;
/// Largest number of concatenated compressed streams in one body.
const MAX_MEMBERS: usize = 16;
/// Trailer of a gzip member: checksum and length.
const GZIP_TRAILER: usize = 8;

/// Content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Gzip,
    /// With zlib's header (RFC 1950), or without, as some servers send it.
    Deflate,
}

/// Content codings of a body, in the order they were applied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Codings {
    layers: [Option<Coding>; MAX_LAYERS],
    count: usize,
}

impl Codings {
    fn push(&mut self, coding: Coding) -> bool {
        let Some(layer) = self.layers.get_mut(self.count) else {
            return false;
        };
        *layer = Some(coding);
        self.count += 1;
        true
    }

    /// Returns `true` if there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Returns the codings that the fields of a head name, and `true` if any is unknown or malformed. A name that only
/// contains `gzip` or `deflate` counts as that, as with Suricata.
pub(crate) fn codings(head: &Head, text: &[u8]) -> (Codings, bool) {
    let (mut codings, mut odd) = (Codings::default(), false);
    let fields = [("transfer-encoding", true), ("content-encoding", false)];
    for (name, transfer) in fields {
        for value in head.values(text, name) {
            for word in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                let has = |part: &[u8]| word.windows(part.len()).any(|found| found.eq_ignore_ascii_case(part));
                let is = |names: [&[u8]; 2]| names.iter().any(|name| word.eq_ignore_ascii_case(name));
                let (coding, right) = match () {
                    () if has(b"gzip") => (Some(Coding::Gzip), is([b"gzip", b"x-gzip"])),
                    () if has(b"deflate") => (Some(Coding::Deflate), is([b"deflate", b"x-deflate"])),
                    () => (None, transfer || is([b"identity", b""])),
                };
                let more = coding.is_none_or(|coding| codings.push(coding));
                odd |= !right || !more;
            }
        }
    }
    (codings, odd)
}

/// Decoder of content codings. Nothing is allocated after construction.
#[derive(Debug)]
pub(crate) struct Inflater {
    state: Decompress,
    out: [Box<[u8]>; 2],
}

impl Inflater {
    /// Creates a decoder with at most `most` bytes of output; further output is discarded.
    pub(crate) fn new(most: usize) -> Inflater {
        Inflater {
            state: Decompress::new(false),
            out: [vec![0; most].into(), vec![0; most].into()],
        }
    }

    /// Removes the codings from the available bytes; `None` if none could be removed. Also returns `true` if the bytes
    /// are not in one of them, which is then skipped.
    pub(crate) fn decode(&mut self, codings: &Codings, bytes: &[u8]) -> (Option<&[u8]>, bool) {
        let (mut length, mut failed) = (None, false);
        for coding in codings.layers[..codings.count].iter().rev().flatten() {
            let [last, next] = &mut self.out;
            let input = length.map_or(bytes, |length| &last[..length]);
            if input.is_empty() {
                break;
            }
            let (count, whole) = inflate(&mut self.state, *coding, input, next);
            failed |= !whole;
            if count > 0 {
                length = Some(count);
                self.out.swap(0, 1);
            }
        }
        (length.map(|length| &self.out[0][..length]), failed)
    }

    /// Removes the coding that the bytes show: by their first ones, or since they are deflated from end to end. `None`
    /// if they show none.
    pub(crate) fn guess(&mut self, bytes: &[u8]) -> Option<&[u8]> {
        let shown = matches!(bytes, [0x1f, 0x8b, ..]) || is_zlib(bytes);
        let coding = if bytes.first() == Some(&0x1f) {
            Coding::Gzip
        } else {
            Coding::Deflate
        };
        let (count, progress) = match shown {
            true => (
                inflate(&mut self.state, coding, bytes, &mut self.out[0]).0,
                Progress::Ended,
            ),
            false => members(&mut self.state, bytes, &mut self.out[0]),
        };
        let whole = progress == Progress::Ended && (shown || count >= bytes.len());
        (count > 0 && whole).then(|| &self.out[0][..count])
    }
}

fn is_zlib(bytes: &[u8]) -> bool {
    let [first, second, ..] = bytes else {
        return false;
    };
    first & 0x0f == 8 && (u16::from(*first) << 8 | u16::from(*second)).is_multiple_of(31)
}

/// Inflates bytes, and returns the length of the output and `true` if all bytes were in the coding.
///
/// A receiver may ignore the name of the coding, a malformed header, or white space before it: each place where the
/// compressed data may start is tried, and the one that yields most is taken.
fn inflate(state: &mut Decompress, coding: Coding, bytes: &[u8], out: &mut [u8]) -> (usize, bool) {
    let blanks = bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let gzip = match &bytes[blanks..] {
        rest @ [0x1f, ..] => [
            behind_gzip_header(rest, true),
            behind_gzip_header(rest, false),
            Some(10),
        ],
        _ => [None; 3],
    };
    let gzip = gzip.map(|start| start.map(|start| start + blanks));
    let zlib = is_zlib(bytes).then_some(2);
    let in_gzip = gzip[1].filter(|start| is_zlib(bytes.get(*start..).unwrap_or_default()));
    let in_gzip = in_gzip.map(|start| start + 2);
    let [one, two, three] = gzip;
    let starts = match coding {
        Coding::Gzip => [one, two, in_gzip, three, zlib, Some(0)],
        Coding::Deflate => [zlib, Some(0), one, two, in_gzip, three],
    };
    let (mut best, mut last) = ((Progress::Failed, 0, 0), None);
    for (i, start) in starts.iter().enumerate() {
        let Some(start) = start.filter(|start| *start < bytes.len() && !starts[..i].contains(&Some(*start))) else {
            continue;
        };
        let (count, progress) = members(state, &bytes[start..], out);
        last = Some(start).filter(|_| count > 0).or(last);
        if count > 0 && (progress, count) > (best.0, best.1) {
            best = (progress, count, start);
        }
        // With a flag for a checksum that may be missing, both places are tried.
        if progress == Progress::Ended && count > 0 && one == two {
            break;
        }
    }
    let (progress, mut count, start) = best;
    if count == 0 {
        return (0, false);
    }
    if last != Some(start) {
        // A later place has overwritten the output.
        count = members(state, &bytes[start..], out).0;
    }
    // Only the first place is where the head says.
    let first = starts.iter().flatten().next() == Some(&start);
    (count, first && progress > Progress::Failed)
}

/// Result of inflating bytes, the best last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    /// An error.
    Failed,
    /// More bytes are needed.
    Partial,
    /// The compressed data has ended.
    Ended,
}

/// Inflates concatenated streams, and returns the length of the output.
fn members(state: &mut Decompress, mut bytes: &[u8], out: &mut [u8]) -> (usize, Progress) {
    let mut length = 0;
    for member in 0..MAX_MEMBERS {
        state.reset(false);
        let status = state.decompress(bytes, &mut out[length..], FlushDecompress::None);
        length += state.total_out() as usize;
        match status {
            Ok(Status::StreamEnd) => bytes = &bytes[(state.total_in() as usize).min(bytes.len())..],
            Ok(_) => return (length, Progress::Partial),
            // A browser may show the output before the error. Bytes behind a complete stream are no error.
            Err(_) if member == 0 => return (length, Progress::Failed),
            Err(_) => return (length, Progress::Ended),
        }
        let behind = bytes.get(GZIP_TRAILER..).unwrap_or_default();
        match behind {
            [0x1f, 0x8b, ..] => {
                let start = behind_gzip_header(behind, true).unwrap_or(behind.len());
                bytes = behind.get(start..).unwrap_or_default();
            }
            [] => break,
            _ => {}
        }
        if length == out.len() {
            break;
        }
    }
    (length, Progress::Ended)
}

/// Returns the length of a gzip header (RFC 1952), with or without its checksum; `None` if it is incomplete. The
/// signature, the method and unknown flags are not looked at.
fn behind_gzip_header(bytes: &[u8], checksum: bool) -> Option<usize> {
    let flags = *bytes.get(3)?;
    let mut at = 10;
    if flags & 4 != 0 {
        let [low, high] = *bytes.get(at..)?.first_chunk::<2>()?;
        at += 2 + usize::from(u16::from_le_bytes([low, high]));
    }
    // Skips a name and a comment, each terminated by a zero.
    for flag in [8, 16] {
        if flags & flag != 0 {
            at += memchr::memchr(0, bytes.get(at..)?)? + 1;
        }
    }
    if flags & 2 != 0 && checksum {
        at += 2;
    }
    (at <= bytes.len()).then_some(at)
}
