//! Removal of content codings from message bodies.

use flate2::{Decompress, FlushDecompress, Status};

/// Decoder of content codings. Nothing is allocated after construction.
#[derive(Debug)]
pub(crate) struct Inflater {
    state: Decompress,
    out: Box<[u8]>,
}

impl Inflater {
    /// Creates a decoder with at most `most` bytes of output; further output is discarded.
    pub(crate) fn new(most: usize) -> Inflater {
        Inflater {
            state: Decompress::new(false),
            out: vec![0; most].into(),
        }
    }

    /// Decodes the available bytes; `None` if the coding is unknown or the bytes are not in it.
    pub(crate) fn decode(&mut self, coding: &[u8], bytes: &[u8]) -> Option<&[u8]> {
        let coding = coding.trim_ascii();
        let deflated = if coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"x-gzip") {
            behind_gzip_header(bytes)?
        } else if coding.eq_ignore_ascii_case(b"deflate") {
            match bytes {
                // With zlib's header (RFC 1950), or without, as some servers send it.
                [first, second, rest @ ..]
                    if first & 0x0f == 8 && (u16::from(*first) << 8 | u16::from(*second)) % 31 == 0 =>
                {
                    rest
                }
                _ => bytes,
            }
        } else {
            return None;
        };
        self.state.reset(false);
        let status = self.state.decompress(deflated, &mut self.out, FlushDecompress::None);
        let length = self.state.total_out() as usize;
        match status {
            Ok(Status::Ok | Status::StreamEnd | Status::BufError) => Some(&self.out[..length]),
            // A browser may show the output before the error.
            Err(_) => (length > 0).then(|| &self.out[..length]),
        }
    }
}

/// Returns the bytes after a gzip header (RFC 1952).
fn behind_gzip_header(bytes: &[u8]) -> Option<&[u8]> {
    let [0x1f, 0x8b, 8, flags, _, _, _, _, _, _, rest @ ..] = bytes else {
        return None;
    };
    let mut rest = rest;
    if flags & 4 != 0 {
        let [low, high, more @ ..] = rest else {
            return None;
        };
        rest = more.get(usize::from(u16::from_le_bytes([*low, *high]))..)?;
    }
    // Skips a name and a comment, each terminated by a zero.
    for flag in [8, 16] {
        if flags & flag != 0 {
            rest = &rest[memchr::memchr(0, rest)? + 1..];
        }
    }
    match flags & 2 {
        0 => Some(rest),
        _ => rest.get(2..),
    }
}
