//! Which windows of a packet have fingerprints: places that its content decides, so that the same stretch has the same ones wherever in
//! a packet it is.

/// Bytes that a fingerprint is of: the shortest stretch that is found again.
pub const WINDOW: usize = 32;

/// How places are chosen (EndRE, §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// Bytes of certain values, half a period apart at least: the cheapest. EndRE learns the values from traffic; these are fixed.
    SampleByte,
    /// Bytes that, with the one behind them, are more than those within half a period: whatever values the content has.
    MaxP,
}

/// How many fingerprints a packet has, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprints {
    /// How places are chosen.
    pub sampling: Sampling,
    /// About one of so many bytes is a place.
    pub period: u16,
}

/// The least and the most bytes of a period.
pub(crate) const PERIODS: [u16; 2] = [16, 128];

/// What `SampleByte` stops at: common in text, in markup, in numbers, and in what binary formats fill up with; eight values, so that
/// content without pattern has a place in 32 bytes.
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
    /// The most places that content of this length has.
    pub(super) fn most(&self, length: usize) -> usize {
        length / usize::from(self.period / 2).max(1) + 1
    }

    /// Calls `found` with the start of each window, in their order; no two starts are closer than half a period.
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

/// Two bytes as a number; what is behind the end is 0.
#[inline]
fn value(content: &[u8], at: usize) -> u16 {
    match content.get(at..).unwrap_or_default() {
        [a, b, ..] => u16::from_be_bytes([*a, *b]),
        [a] => u16::from_be_bytes([*a, 0]),
        [] => 0,
    }
}

/// Whether the value there is above those of the places before it, and none of those behind it is above, as far as
/// `half` goes. The neighbours are asked first: most places are not, and neither are those of runs and slopes.
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
