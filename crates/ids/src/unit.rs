//! Unit of evaluation: the buffers of a packet, a stream window or a message.

use crate::buffer::BufferKey;
use crate::evaluate::Bytes;

/// Buffers available for evaluation.
#[derive(Debug)]
pub(crate) struct Unit<'a> {
    slices: [Option<&'a [u8]>; BufferKey::COUNT],
}

impl<'a> Unit<'a> {
    pub(crate) fn new() -> Unit<'a> {
        Unit {
            slices: [None; BufferKey::COUNT],
        }
    }

    /// Adds a buffer.
    #[inline]
    pub(crate) fn set(&mut self, key: impl Into<BufferKey>, bytes: &'a [u8]) {
        self.slices[key.into().index()] = Some(bytes);
    }

    /// Adds a buffer whose bytes have a leading dot.
    pub(crate) fn set_dotted(&mut self, key: impl Into<BufferKey>, dotted: &'a [u8]) {
        let key = key.into();
        self.set(BufferKey { dotted: true, ..key }, dotted);
        self.set(key, dotted.get(1..).unwrap_or_default());
    }

    #[inline]
    pub(crate) fn get(&self, key: BufferKey) -> Option<&'a [u8]> {
        self.slices[key.index()]
    }
}

/// Lower-case copies of buffers, made on first use.
#[derive(Debug)]
pub(crate) struct Lowered {
    bytes: Vec<u8>,
    /// Per buffer, its copy's position, and 1 if the copy was made.
    places: [[u32; 2]; BufferKey::COUNT],
}

impl Lowered {
    /// Allocates room for this many bytes.
    pub(crate) fn with_room(bytes: usize) -> Lowered {
        Lowered {
            bytes: Vec::with_capacity(bytes),
            places: [[0; 2]; BufferKey::COUNT],
        }
    }

    /// Starts another unit.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if !self.bytes.is_empty() {
            self.bytes.clear();
            self.places = [[0; 2]; BufferKey::COUNT];
        }
    }

    /// Returns a buffer of the unit, with its lower-case copy if `lower`.
    pub(crate) fn get<'a>(&'a mut self, unit: &Unit<'a>, key: BufferKey, lower: bool) -> Option<Bytes<'a>> {
        let plain = unit.get(key)?;
        if !lower || plain.is_empty() {
            return Some(Bytes { plain, lower: plain });
        }
        let place = &mut self.places[key.index()];
        if place[1] == 0 {
            *place = [self.bytes.len() as u32, 1];
            self.bytes.extend(plain.iter().map(u8::to_ascii_lowercase));
        }
        let from = place[0] as usize;
        Some(Bytes {
            plain,
            lower: &self.bytes[from..from + plain.len()],
        })
    }
}
