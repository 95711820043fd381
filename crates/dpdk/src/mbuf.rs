//! What comes before each buffer: DPDK's `rte_mbuf`, as far as packets that pass through need it.
//!
//! Bursts are loops over these: a call into C for each packet, or a list of records between the two languages, would
//! cost as much as the work itself. `csrc/shim.c` does not compile where DPDK's struct is laid out otherwise.

use std::sync::atomic::{AtomicU64, Ordering};

/// The first cache line of an mbuf.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Mbuf {
    _address: u64,
    _iova: u64,
    /// Where the frame starts in the buffer, which is behind the mbuf; how many users there are; how many
    /// buffers; which port it came from, or is told to have.
    place: Place,
    flags: u64,
    _packet_type: u32,
    packet_length: u32,
    length: u16,
    _vlan: u16,
    hash: u32,
    _rest: u64,
    _pool: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
struct Place {
    start: u16,
    users: u16,
    buffers: u16,
    port: u16,
}

/// Bytes of an mbuf: the buffer comes behind it.
pub(crate) const MBUF: usize = 128;

/// The bit of the flags that says that there is an RSS hash.
const HAS_HASH: u64 = 1 << 1;

/// Where drivers put the time at which a packet came, as DPDK has laid that out for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    offset: u16,
    flag: u64,
}

impl Stamp {
    /// At so many bytes from the mbuf's start, under this bit of the flags; `None` if that is beyond it.
    pub(crate) fn new(offset: u16, flag: u64) -> Option<Stamp> {
        let within = usize::from(offset) + size_of::<u64>() <= MBUF;
        within.then_some(Stamp { offset, flag })
    }
}

/// One of these bits is set where the device found a checksum wrong.
const PERHAPS_BAD: u64 = 1 << 3 | 1 << 4;

const _: () = assert!(size_of::<Mbuf>() == 64 && align_of::<Mbuf>() == 8);

impl Mbuf {
    /// Whether the packet is in one buffer, which has no other user, and the device found no damage.
    ///
    /// # Safety
    /// There is an mbuf.
    #[inline]
    pub(crate) unsafe fn is_ordinary(this: *mut Mbuf) -> bool {
        // SAFETY: the fields are there, and aligned. The number of users may be another thread's as well, which is
        // why it is read so.
        let (place, flags) = unsafe {
            let place = AtomicU64::from_ptr(&raw mut (*this).place as *mut u64);
            (place.load(Ordering::Relaxed), (*this).flags)
        };
        let [_, users, buffers, _] = u16s(place);
        (users, buffers) == (1, 1) && flags & PERHAPS_BAD == 0
    }

    /// Where the frame starts in its buffer.
    #[inline]
    pub(crate) fn start(&self) -> u16 {
        self.place.start
    }

    /// The frame's length, if it is in one buffer.
    #[inline]
    pub(crate) fn length(&self) -> u16 {
        self.length
    }

    /// The RSS hash, if the device tells one.
    #[inline]
    pub(crate) fn hash(&self) -> Option<u32> {
        (self.flags & HAS_HASH != 0).then_some(self.hash)
    }

    /// When the packet came, in the device's ticks, if the device tells.
    ///
    /// # Safety
    /// There is a whole mbuf, of [`MBUF`] bytes, and nobody writes to it meanwhile.
    #[inline]
    pub(crate) unsafe fn ticks(this: *const Mbuf, stamp: Stamp) -> Option<u64> {
        // SAFETY: the flags are there, and aligned.
        let told = unsafe { (*this).flags } & stamp.flag != 0;
        // SAFETY: the mbuf has so many bytes: `Stamp::new` has looked. Any bytes are a number.
        told.then(|| unsafe {
            let at = this.cast::<u8>().add(usize::from(stamp.offset));
            at.cast::<u64>().read_unaligned()
        })
    }

    /// The port that it came from.
    #[inline]
    pub(crate) fn port(&self) -> u16 {
        self.place.port
    }

    /// Says where it came from.
    #[inline]
    pub(crate) fn set_port(&mut self, port: u16) {
        self.place.port = port;
    }

    /// Says what is to be sent, with nothing that the device should do besides.
    #[inline]
    pub(crate) fn prepare(&mut self, start: u16, length: u16) {
        self.place.start = start;
        self.length = length;
        self.packet_length = u32::from(length);
        self.flags = 0;
    }
}

/// The four numbers in the order in which they lie in memory.
#[inline]
fn u16s(all: u64) -> [u16; 4] {
    let bytes = all.to_ne_bytes();
    std::array::from_fn(|i| u16::from_ne_bytes([bytes[2 * i], bytes[2 * i + 1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_where_it_was_laid_out_and_only_under_its_flag() {
        let mut words = [0u64; MBUF / 8];
        // The flags are the fourth word.
        (words[3], words[13], words[15]) = (1 << 40 | HAS_HASH, 7, 9);
        let ticks = |offset, flag| {
            let stamp = Stamp::new(offset, flag).unwrap();
            // SAFETY: as many bytes as an mbuf has, aligned, and nobody else's.
            unsafe { Mbuf::ticks(words.as_ptr().cast(), stamp) }
        };
        assert_eq!(ticks(104, 1 << 40), Some(7));
        assert_eq!(ticks(120, 1 << 40), Some(9));
        assert_eq!(ticks(104, 1 << 41), None);
        assert_eq!(Stamp::new(121, 1), None);
        assert_eq!(Stamp::new(u16::MAX, 1), None);
    }
}
