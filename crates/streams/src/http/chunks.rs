//! Chunked transfer coding (RFC 9112 §7.1), from whole lines.

use super::target::hex;
use memchr::memchr;

/// Largest number of digits of a chunk's size.
const SIZE_DIGITS: usize = 15;

/// Parses the size of a chunk; extensions are ignored.
pub(crate) fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| matches!(byte, b';' | b' ' | b'\t')).next()?;
    let digits = (!digits.is_empty() && digits.len() <= SIZE_DIGITS).then_some(digits)?;
    digits
        .iter()
        .try_fold(0, |size, digit| Some(size << 4 | u64::from(hex(*digit)?)))
}

/// Concatenates the data of chunks, as far as available.
pub fn unchunk(mut bytes: &[u8], out: &mut Vec<u8>) {
    while let Some(end) = memchr(b'\n', bytes) {
        let line = bytes[..end].trim_ascii();
        bytes = &bytes[end + 1..];
        if line.is_empty() {
            continue;
        }
        let Some(size) = chunk_size(line).filter(|size| *size > 0) else {
            return;
        };
        let there = bytes.len().min(usize::try_from(size).unwrap_or(usize::MAX));
        out.extend_from_slice(&bytes[..there]);
        bytes = &bytes[there..];
    }
}
