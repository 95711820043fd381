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
