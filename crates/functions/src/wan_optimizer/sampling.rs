//! Selection of the windows to fingerprint. It depends on the content only, so equal byte ranges have equal
//! fingerprints at any offset in a packet.

/// Bytes per fingerprint: the shortest range that is found again.
pub const WINDOW: usize = 32;

/// Method of selecting windows (EndRE, §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// Bytes of certain values, at least half a period apart: the cheapest method. EndRE learns the values from
    /// traffic; these are fixed.
    SampleByte,
    /// Two-byte values that are maximal within half a period, whatever values the content has.
    MaxP,
}

/// Method and density of fingerprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprints {
    /// Method of selecting windows.
    pub sampling: Sampling,
    /// Average distance of fingerprints, in bytes.
    pub period: u16,
}

/// Smallest and largest period, in bytes.
pub(crate) const PERIODS: [u16; 2] = [16, 128];

/// Values at which `SampleByte` takes a fingerprint: common in text, markup, numbers, and the padding of binary
/// formats. There are eight, so that random content has one in 32 bytes.
const MARKERS: [bool; 256] = {
    let mut markers = [false; 256];
    let values = *b"\x00\xff e/0ta";
    let mut i = 0;
    while i < values.len() {
        markers[values[i] as usize] = true;
        i += 1;
    }
    markers
};

impl Fingerprints {
    /// Returns the largest number of fingerprints of content of this length.
    pub(super) fn most(&self, length: usize) -> usize {
        length / usize::from(self.period / 2).max(1) + 1
    }

    /// Calls `found` with the start of each window, in order; starts are at least half a period apart.
    #[inline]
    pub(super) fn sample(&self, content: &[u8], mut found: impl FnMut(usize, &[u8; WINDOW])) {
        let Some(last) = content.len().checked_sub(WINDOW) else {
            return;
        };
        let half = usize::from(self.period / 2).max(1);
        let mut at = 0;
        while at <= last {
            let marked = match self.sampling {
                Sampling::SampleByte => MARKERS[usize::from(content[at])],
                Sampling::MaxP => is_maximum(content, at, half),
            };
            if let (true, Some(window)) = (marked, content[at..].first_chunk()) {
                found(at, window);
                at += half;
            } else {
                at += 1;
            }
        }
    }
}

/// Returns two bytes as a number, with 0 beyond the end.
#[inline]
fn value(content: &[u8], at: usize) -> u16 {
    match content.get(at..).unwrap_or_default() {
        [a, b, ..] => u16::from_be_bytes([*a, *b]),
        [a] => u16::from_be_bytes([*a, 0]),
        [] => 0,
    }
}

/// Returns `true` if the value at `at` exceeds all values up to `half` before it, and is exceeded by none up to `half`
/// after it. The neighbours come first: they rule out most positions, also in runs and slopes.
#[inline]
fn is_maximum(content: &[u8], at: usize, half: usize) -> bool {
    let here = value(content, at);
    let end = (at + half).min(content.len() - 1);
    value(content, at + 1) <= here
        && (at.saturating_sub(half)..at)
            .rev()
            .all(|before| value(content, before) < here)
        && (at + 1..=end).all(|next| value(content, next) <= here)
}
