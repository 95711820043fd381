//! Stand-in for the ciphers in a program without the feature `ipsec`.

use super::cipher::{ICV, IV, Keying};

/// Key schedule of a cipher: no value of this type exists.
pub(super) enum Sealer {}

impl Sealer {
    /// Returns `None`. Specs with `ipsec` are refused before.
    pub(super) fn new(_: &Keying, _: bool) -> Option<Sealer> {
        None
    }

    /// Never called.
    pub(super) fn seal(&self, _: u32, _: u64, _: [u8; IV], _: &mut [u8], _: &mut [u8; ICV]) -> Option<()> {
        match *self {}
    }

    /// Never called.
    pub(super) fn open(&self, _: u32, _: u64, _: [u8; IV], _: &mut [u8]) -> Option<()> {
        match *self {}
    }
}
