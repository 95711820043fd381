//! Receive ring that the kernel fills with frames (TPACKET_V2): slots of equal size, in shared memory.

use super::slot::Frame;
use memmap2::MmapRaw;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a slot in front of the frame: the kernel's header, the sender's address and padding.
const IN_FRONT: usize = 96;
/// Size of the parts in which the kernel allocates a ring: a multiple of the page size of any machine.
const BLOCK: usize = 64 << 10;
/// Most bytes of any ring.
const MOST_BYTES: usize = 1 << 30;

/// Sizes of a ring. Slots are powers of two, so that blocks are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct RingLayout {
    pub(crate) slot_bytes: usize,
    pub(crate) slots: usize,
    pub(crate) block_bytes: usize,
}

impl RingLayout {
    /// Layout of `slots` slots for frames of up to `frame_bytes` bytes, at most
    /// [`MAX_FRAME`](tailwater_chain::buffer::MAX_FRAME). It has at most `most_bytes` bytes: longer frames have fewer
    /// slots.
    pub(crate) fn new(frame_bytes: usize, slots: usize, most_bytes: usize) -> RingLayout {
        let slot_bytes = (IN_FRONT + frame_bytes).next_power_of_two();
        let block_bytes = slot_bytes.max(BLOCK);
        let slots = (most_bytes / slot_bytes).min(slots).max(1);
        RingLayout {
            slot_bytes,
            // Whole blocks.
            slots: slots.next_multiple_of(block_bytes / slot_bytes),
            block_bytes,
        }
    }

    /// Size of the ring in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.slot_bytes * self.slots
    }

    /// Returns `true` if these are sizes that [`new`](Self::new) can return.
    pub(crate) fn is_plausible(&self) -> bool {
        let slot = self.slot_bytes;
        slot.is_power_of_two()
            && (128..=1 << 20).contains(&slot)
            && self.block_bytes == slot.max(BLOCK)
            && (1..=MOST_BYTES / slot).contains(&self.slots)
            && self.slots.is_multiple_of(self.block_bytes / slot)
    }
}

/// Ring shared with the kernel.
#[derive(Debug)]
pub(crate) struct RxRing {
    memory: MmapRaw,
    layout: RingLayout,
    next: usize,
}

impl RxRing {
    /// Takes over the mapped ring of a socket.
    ///
    /// # Panics
    /// If the mapping is shorter than the layout.
    pub(crate) fn new(memory: MmapRaw, layout: RingLayout) -> RxRing {
        assert!(memory.len() >= layout.bytes(), "the ring is mapped as a whole");
        RxRing {
            memory,
            layout,
            next: 0,
        }
    }

    /// Number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.layout.slots
    }

    /// Sizes of the ring.
    pub(crate) fn layout(&self) -> RingLayout {
        self.layout
    }

    /// Number of the next slot.
    pub(crate) fn position(&self) -> usize {
        self.next
    }

    /// Continues at this slot, which another process would have read next. Returns `false` if there is none.
    pub(crate) fn continue_at(&mut self, position: usize) -> bool {
        let exists = position < self.layout.slots;
        if exists {
            self.next = position;
        }
        exists
    }

    /// Returns the next filled slot, if there is one. It goes back to the kernel when it is dropped.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Slot<'_>> {
        let filled = self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0;
        // Not before it is filled: a slot that is dropped goes to the kernel.
        filled.then(|| Slot { ring: self })
    }

    /// Address of the next slot.
    #[inline]
    fn start(&self) -> *mut u8 {
        // `next` is below the number of slots, all of which are mapped.
        self.memory
            .as_mut_ptr()
            .wrapping_add(self.next * self.layout.slot_bytes)
    }

    /// Status of the next slot, by which it changes hands.
    #[inline]
    fn status(&self) -> &AtomicU32 {
        let start = self.start().cast::<u32>();
        // SAFETY: the address lies in the mapping, which `self` keeps, and is aligned: the mapping starts at a page,
        // and slots are powers of two of at least 128 bytes. The status is the header's first field. This process
        // writes it only in `Slot::drop`, through the same atomic, and the kernel writes it as a whole.
        unsafe { AtomicU32::from_ptr(start) }
    }
}

/// Filled slot, which belongs to this process.
pub(crate) struct Slot<'r> {
    ring: &'r mut RxRing,
}

impl Slot<'_> {
    /// Returns the frame in the slot; see [`Frame::of_slot`].
    #[inline]
    pub(crate) fn frame(&self) -> Option<Frame<'_>> {
        let (start, length) = (self.ring.start(), self.ring.layout.slot_bytes);
        // SAFETY: the slot lies in the mapping, which `self` borrows. The status said that the slot is this process's,
        // read with acquire ordering, and the kernel does not write to it until `drop` gives it back, which requires
        // `self`. Any bytes are valid.
        let bytes = unsafe { std::slice::from_raw_parts(start, length) };
        Frame::of_slot(bytes)
    }
}

impl Drop for Slot<'_> {
    #[inline]
    fn drop(&mut self) {
        self.ring.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        let next = self.ring.next + 1;
        self.ring.next = if next == self.ring.layout.slots { 0 } else { next };
    }
}

#[cfg(test)]
mod tests {
    use super::super::slot::tests::slot;
    use super::*;
    use memmap2::MmapMut;
    use tailwater_chain::buffer::MAX_FRAME;

    #[test]
    fn rings_are_whole_blocks_within_their_limit() {
        for frame_bytes in (64..=MAX_FRAME).step_by(97).chain([MAX_FRAME]) {
            let layout = RingLayout::new(frame_bytes, 1024, 16 << 20);
            assert!(layout.slot_bytes >= IN_FRONT + frame_bytes && layout.bytes() <= 16 << 20);
            assert!(layout.is_plausible(), "{layout:?}");
            assert_eq!(layout.bytes() % layout.block_bytes, 0, "{layout:?}");
            assert_eq!((layout.slot_bytes % 16, layout.block_bytes % BLOCK), (0, 0));
            assert!(layout.slots >= 64, "{layout:?}");
        }
        let usual = RingLayout::new(1522, 1024, 16 << 20);
        assert_eq!((usual.slot_bytes, usual.slots), (2048, 1024));
        // Whole blocks of 32 slots.
        assert_eq!(RingLayout::new(1522, 100, 16 << 20).slots, 128);
        for wrong in [
            RingLayout { slots: 0, ..usual },
            RingLayout { slots: 1000, ..usual },
            RingLayout {
                slots: 1 << 40,
                ..usual
            },
            RingLayout {
                slot_bytes: 2000,
                ..usual
            },
            RingLayout {
                block_bytes: 2048,
                ..usual
            },
        ] {
            assert!(!wrong.is_plausible(), "{wrong:?}");
        }
    }

    /// A ring in ordinary memory, with the kernel's side played by the test.
    #[test]
    fn slots_are_received_in_order_around_the_ring_and_given_back() {
        let layout = RingLayout {
            slot_bytes: 256,
            slots: 4,
            block_bytes: 1024,
        };
        let memory = MmapMut::map_anon(layout.bytes()).unwrap();
        let mut ring = RxRing::new(memory.into(), layout);
        assert!(ring.next().is_none());
        let mut received = Vec::new();
        for round in 0..10u8 {
            // Three frames at a time, so that rounds start at all slots.
            for number in 0..3 {
                let at = (usize::from(round) * 3 + number) % layout.slots;
                let filled = slot(&[round * 3 + number as u8; 60], 0, [0; 2], layout.slot_bytes);
                let to = ring.memory.as_mut_ptr().wrapping_add(at * layout.slot_bytes);
                // SAFETY: the slot lies in the mapping, and nothing borrows it.
                unsafe { std::ptr::copy_nonoverlapping(filled.as_ptr(), to, filled.len()) };
            }
            while let Some(slot) = ring.next() {
                let mut bytes = [0; 60];
                slot.frame().unwrap().copy_to(&mut bytes);
                received.push(bytes[59]);
            }
        }
        assert_eq!(received, (0..30).collect::<Vec<u8>>());
        assert_eq!(ring.position(), 30 % 4);
        assert!(!ring.continue_at(4) && ring.continue_at(3));
        assert_eq!(ring.position(), 3);
    }
}
