//! `rte_mbuf`, the header in front of each buffer: the fields that forwarding needs.
//!
//! Bursts loop over mbufs in Rust. One C call per packet, or an array of records between the two languages, would cost
//! as much as the work itself. `csrc/shim.c` fails to compile if DPDK's struct has another layout.

use std::sync::atomic::{AtomicU64, Ordering};

/// The first cache line of an mbuf.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Mbuf {
    _address: u64,
    _iova: u64,
    /// The frame's offset in the buffer behind the mbuf, the reference count, the number of segments, and the input
    /// port (or the port set in its stead).
    place: MbufLayout,
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
struct MbufLayout {
    start: u16,
    users: u16,
    buffers: u16,
    port: u16,
}

/// Size of an mbuf in bytes. The buffer follows it.
pub(crate) const MBUF: usize = 128;

/// Flag bit: the mbuf has an RSS hash.
const HAS_HASH: u64 = 1 << 1;

/// Location of the receive timestamp in an mbuf, as DPDK registered it for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    offset: u16,
    flag: u64,
}

impl Stamp {
    /// Timestamp at `offset` bytes from the mbuf's start, valid under the bit `flag`. `None` if that is outside the
    /// mbuf.
    pub(crate) fn new(offset: u16, flag: u64) -> Option<Stamp> {
        let within = usize::from(offset) + size_of::<u64>() <= MBUF;
        within.then_some(Stamp { offset, flag })
    }
}

/// Flag bits of which one is set if the device found a wrong checksum.
const PERHAPS_BAD: u64 = 1 << 3 | 1 << 4;

const _: () = assert!(size_of::<Mbuf>() == 64 && align_of::<Mbuf>() == 8);

impl Mbuf {
    /// Returns `true` if the packet is in one buffer with a reference count of one, and the device found no error.
    ///
    /// # Safety
    /// `this` points to an mbuf.
    #[inline]
    pub(crate) unsafe fn is_ordinary(this: *mut Mbuf) -> bool {
        // SAFETY: the fields exist and are aligned. Another thread may change the reference count, hence the atomic
        // read.
        let (place, flags) = unsafe {
            let place = AtomicU64::from_ptr(&raw mut (*this).place as *mut u64);
            (place.load(Ordering::Relaxed), (*this).flags)
        };
        let [_, users, buffers, _] = u16s(place);
        (users, buffers) == (1, 1) && flags & PERHAPS_BAD == 0
    }

    /// Offset of the frame in its buffer, in bytes.
    #[inline]
    pub(crate) fn start(&self) -> u16 {
        self.place.start
    }

    /// Length of the frame in bytes, if it is in one buffer.
    #[inline]
    pub(crate) fn length(&self) -> u16 {
        self.length
    }

    /// RSS hash, if the device computed one.
    #[inline]
    pub(crate) fn hash(&self) -> Option<u32> {
        (self.flags & HAS_HASH != 0).then_some(self.hash)
    }

    /// Receive timestamp in device ticks, if the device set one.
    ///
    /// # Safety
    /// `this` points to a whole mbuf of [`MBUF`] bytes that nobody writes to meanwhile.
    #[inline]
    pub(crate) unsafe fn ticks(this: *const Mbuf, stamp: Stamp) -> Option<u64> {
        // SAFETY: the flags exist and are aligned.
        let told = unsafe { (*this).flags } & stamp.flag != 0;
        // SAFETY: the offset is inside the mbuf: `Stamp::new` has checked. Every bit pattern is a valid number.
        told.then(|| unsafe {
            let at = this.cast::<u8>().add(usize::from(stamp.offset));
            at.cast::<u64>().read_unaligned()
        })
    }

    /// Input port.
    #[inline]
    pub(crate) fn port(&self) -> u16 {
        self.place.port
    }

    /// Sets the input port.
    #[inline]
    pub(crate) fn set_port(&mut self, port: u16) {
        self.place.port = port;
    }

    /// Sets the frame to send, with no offloads requested.
    #[inline]
    pub(crate) fn prepare(&mut self, start: u16, length: u16) {
        self.place.start = start;
        self.length = length;
        self.packet_length = u32::from(length);
        self.flags = 0;
    }
}

/// The four 16-bit fields of a word, in memory order.
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
        // The flags are word 3.
        (words[3], words[13], words[15]) = (1 << 40 | HAS_HASH, 7, 9);
        let ticks = |offset, flag| {
            let stamp = Stamp::new(offset, flag).unwrap();
            // SAFETY: the array has the size and alignment of an mbuf, and no other user.
            unsafe { Mbuf::ticks(words.as_ptr().cast(), stamp) }
        };
        assert_eq!(ticks(104, 1 << 40), Some(7));
        assert_eq!(ticks(120, 1 << 40), Some(9));
        assert_eq!(ticks(104, 1 << 41), None);
        assert_eq!(Stamp::new(121, 1), None);
        assert_eq!(Stamp::new(u16::MAX, 1), None);
    }
}
