//! Anomalies of HTTP messages: forms that receivers interpret differently, or not at all.

use bytemuck::{Pod, Zeroable};
use std::ops::{BitOr, BitOrAssign};

/// Set of anomalies of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Anomalies(u16);

impl Anomalies {
    /// None.
    pub const NONE: Anomalies = Anomalies(0);
    /// First line: a version other than HTTP/1.0 and HTTP/1.1, or a status other than three digits.
    pub const FIRST_LINE: Anomalies = Anomalies(1);
    /// Line end in a head other than CRLF and LF.
    pub const LINE_END: Anomalies = Anomalies(1 << 1);
    /// Field without a colon, without a name, with white space before its name or colon, or with a name that is no
    /// token; or more fields than are parsed.
    pub const FIELD: Anomalies = Anomalies(1 << 2);
    /// Field over several lines.
    pub const FOLDED: Anomalies = Anomalies(1 << 3);
    /// Content-Length that is not a number.
    pub const LENGTH: Anomalies = Anomalies(1 << 4);
    /// Content-Lengths that differ.
    pub const LENGTHS_DIFFER: Anomalies = Anomalies(1 << 5);
    /// Content-Length beside a chunked body.
    pub const LENGTH_AND_CHUNKED: Anomalies = Anomalies(1 << 6);
    /// Transfer-Encoding other than `chunked`.
    pub const TRANSFER_CODING: Anomalies = Anomalies(1 << 7);
    /// Chunked body in a version before HTTP/1.1.
    pub const CHUNKED_OLD: Anomalies = Anomalies(1 << 8);
    /// Malformed chunk.
    pub const CHUNK: Anomalies = Anomalies(1 << 9);
    /// Content-Encoding that is unknown or malformed.
    pub const CONTENT_CODING: Anomalies = Anomalies(1 << 10);
    /// Body that is not in its content coding.
    pub const CODING_FAILED: Anomalies = Anomalies(1 << 11);
    /// Bytes behind a response, or in place of one, that are no response.
    pub const EXTRA_BODY: Anomalies = Anomalies(1 << 12);
    /// Body that ends before its length or last chunk.
    pub const TRUNCATED: Anomalies = Anomalies(1 << 13);

    /// Names of the counters, in the order of the bits.
    pub const NAMES: [&'static str; 14] = [
        "http-first-line",
        "http-line-end",
        "http-field",
        "http-folded",
        "http-length",
        "http-lengths-differ",
        "http-length-and-chunked",
        "http-transfer-coding",
        "http-chunked-old",
        "http-chunk",
        "http-content-coding",
        "http-coding-failed",
        "http-extra-body",
        "http-truncated",
    ];

    /// Returns `true` if there is none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns `true` if both sets have an anomaly in common.
    #[inline]
    pub const fn intersects(self, other: Anomalies) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the anomalies that are not in another set.
    #[inline]
    pub const fn without(self, other: Anomalies) -> Anomalies {
        Anomalies(self.0 & !other.0)
    }

    /// Adds anomalies if a condition holds.
    #[inline]
    pub fn add_if(&mut self, condition: bool, anomalies: Anomalies) {
        if condition {
            *self |= anomalies;
        }
    }

    /// Iterates over the positions in [`NAMES`](Anomalies::NAMES).
    pub fn positions(self) -> impl Iterator<Item = usize> {
        (0..Anomalies::NAMES.len()).filter(move |position| self.0 >> position & 1 != 0)
    }
}

impl BitOr for Anomalies {
    type Output = Anomalies;

    fn bitor(self, other: Anomalies) -> Anomalies {
        Anomalies(self.0 | other.0)
    }
}

impl BitOrAssign for Anomalies {
    fn bitor_assign(&mut self, other: Anomalies) {
        self.0 |= other.0;
    }
}
