//! Batch of packets, as a function receives it.
//!
//! One of the few modules with `unsafe` code: it turns the pointers of a call into references that do not outlive the
//! call.

use crate::FlowKey;
use crate::abi;
use crate::flow_state::State;
use std::marker::PhantomData;
use std::mem::size_of;
use std::slice;

/// Packets of one call, in order of arrival.
#[derive(Debug)]
pub struct Batch<'a, S> {
    packets: &'a mut [abi::Packet],
    counters: &'a mut [u64],
    state: PhantomData<S>,
}

impl<'a, S: State> Batch<'a, S> {
    /// Wraps the batch of a call.
    ///
    /// # Safety
    /// `batch` obeys the rules of `tailwater_nf.h`, for a function with `counters` counters and state `S`, for `'a`.
    /// Nothing else accesses the data it points to during `'a`.
    pub(crate) unsafe fn new(batch: &'a mut abi::Batch, counters: usize) -> Batch<'a, S> {
        // SAFETY: the caller guarantees these numbers of packets and counters. The pointer of an empty list may be
        // null.
        unsafe {
            Batch {
                packets: list(batch.packets, batch.count as usize),
                counters: list(batch.counters, counters),
                state: PhantomData,
            }
        }
    }

    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns `true` if there are no packets.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns packet `i`.
    ///
    /// # Panics
    /// If the batch has `i` packets or fewer.
    #[inline]
    pub fn packet(&mut self, i: usize) -> Packet<'_, S> {
        Packet {
            raw: &mut self.packets[i],
            state: PhantomData,
        }
    }

    /// Returns the counters, in the order of [`COUNTERS`](crate::Function::COUNTERS).
    pub fn counters(&mut self) -> &mut [u64] {
        self.counters
    }

    /// Calls `each` for every packet, in order, with the counters.
    #[inline]
    pub fn for_each(&mut self, mut each: impl FnMut(&mut Packet<'_, S>, &mut [u64])) {
        for raw in self.packets.iter_mut() {
            let mut packet = Packet {
                raw,
                state: PhantomData,
            };
            each(&mut packet, self.counters);
        }
    }
}

/// Returns `count` values as a slice.
///
/// # Safety
/// `first` points to `count` values that nothing else accesses for `'a`. If `count` is 0, `first` may be any pointer.
unsafe fn list<'a, T>(first: *mut T, count: usize) -> &'a mut [T] {
    match count {
        0 => &mut [],
        // SAFETY: guaranteed by the caller.
        _ => unsafe { slice::from_raw_parts_mut(first, count) },
    }
}

/// Packet: a well-formed IP packet in an Ethernet frame.
#[derive(Debug)]
pub struct Packet<'a, S> {
    raw: &'a mut abi::Packet,
    state: PhantomData<S>,
}

impl<'a, S: State> Packet<'a, S> {
    /// Wraps one packet of a call.
    ///
    /// # Safety
    /// `raw` obeys the rules of `tailwater_nf.h`, for a function with state `S`, for `'a`. Nothing else accesses the
    /// data it points to during `'a`, or, if only a shared reference is used, nothing changes it.
    pub(crate) unsafe fn new(raw: &'a mut abi::Packet) -> Packet<'a, S> {
        Packet {
            raw,
            state: PhantomData,
        }
    }

    /// Returns `true` for the first packet of its flow in this function, and for the first after a preceding function
    /// rewrote the flow. The function then decides, and stores the decision in the flow's state. For functions with
    /// state.
    #[inline]
    pub fn is_new_flow(&self) -> bool {
        self.raw.flags & abi::NEW_FLOW != 0
    }

    /// Returns the arrival time in nanoseconds since the run's start. There is no other clock.
    #[inline]
    pub fn arrival_ns(&self) -> u64 {
        self.raw.arrival_ns
    }

    /// Returns the flow's index in the flow table, or `None` in a chain without one.
    #[inline]
    pub fn flow(&self) -> Option<u32> {
        (self.raw.flow != abi::NO_FLOW).then_some(self.raw.flow)
    }

    /// Returns the 5-tuple of the frame at the time of the call.
    #[inline]
    pub fn key(&self) -> &FlowKey {
        // SAFETY: the runtime's pointer to a key, valid for the call; `FlowKey` is transparent.
        unsafe { &*self.raw.key.cast::<FlowKey>() }
    }

    /// Returns the IP version, 4 or 6.
    #[inline]
    pub fn ip_version(&self) -> u8 {
        self.raw.ip_version
    }

    /// Returns the offsets in the frame, at the time of the call, of the IP header, the transport header, the payload
    /// and the datagram's end.
    #[inline]
    pub fn offsets(&self) -> [usize; 4] {
        let raw = &self.raw;
        [raw.network_offset, raw.transport_offset, raw.payload_offset, raw.end].map(usize::from)
    }

    /// Returns the frame.
    #[inline]
    pub fn frame(&self) -> &[u8] {
        // SAFETY: the runtime's pointer to `length` bytes, which belong to this packet alone for the call; `resize`
        // keeps both within the buffer.
        unsafe { slice::from_raw_parts(self.raw.frame, self.raw.length as usize) }
    }

    /// Returns the transport payload, which is empty if the frame is truncated.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let [_, _, start, end] = self.offsets();
        self.frame().get(start..end).unwrap_or_default()
    }

    /// Returns the frame for changes of the payload. For headers: [`rewrite`](Packet::rewrite).
    #[inline]
    pub fn frame_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `frame`; `&mut self` makes the reference the only one.
        unsafe { slice::from_raw_parts_mut(self.raw.frame, self.raw.length as usize) }
    }

    /// Returns the frame for changes of headers. The runtime parses it again afterwards.
    #[inline]
    pub fn rewrite(&mut self) -> &mut [u8] {
        self.raw.flags |= abi::REWRITTEN;
        self.frame_mut()
    }

    /// Extends the frame by `front` bytes at its start and `back` bytes at its end; negative numbers shorten it. New
    /// bytes have unspecified values. Returns `false`, with nothing changed, if there is no room.
    #[inline]
    pub fn resize(&mut self, front: i32, back: i32) -> bool {
        let raw = &mut *self.raw;
        let grown = |room: u16, by: i32| u16::try_from(i64::from(room) - i64::from(by)).ok();
        let length = i64::from(raw.length) + i64::from(front) + i64::from(back);
        let fits = u32::try_from(length).ok();
        // Start and end must not cross.
        let cuts = i64::from(front.min(0)) + i64::from(back.min(0)) + i64::from(raw.length);
        let (headroom, tailroom, length) = match (grown(raw.headroom, front), grown(raw.tailroom, back), fits) {
            (Some(headroom), Some(tailroom), Some(length)) if cuts >= 0 => (headroom, tailroom, length),
            _ => return false,
        };
        raw.frame = raw.frame.wrapping_offset(-(front as isize));
        (raw.headroom, raw.tailroom, raw.length) = (headroom, tailroom, length);
        raw.flags |= abi::REWRITTEN;
        true
    }

    /// Returns the function's state of the packet's flow, for reading.
    ///
    /// The state is local. With a [`STATE_VERSION`](crate::Function::STATE_VERSION), in a chain with `state`, it was
    /// fetched before the packet arrived, if another instance had written it. In a [new flow](Packet::is_new_flow) it
    /// is zero, or the state another instance left.
    ///
    /// # Panics
    /// If the packet has no state.
    #[inline]
    pub fn read(&self) -> &S {
        let state = self.raw.state.cast::<S>();
        assert!(!state.is_null() || size_of::<S>() == 0, "a flow's state");
        if size_of::<S>() == 0 {
            // SAFETY: `S` has no bytes, so none is accessed.
            return unsafe { std::ptr::NonNull::dangling().as_ref() };
        }
        // SAFETY: as in `state`; `&self` excludes changes meanwhile.
        unsafe { &*state }
    }

    /// Changes the function's state of the packet's flow. The change is written to the store after the batch. This
    /// packet and all later ones of its flow are sent once the store has it.
    ///
    /// # Panics
    /// If the packet has no state.
    #[inline]
    pub fn update<R>(&mut self, change: impl FnOnce(&mut S) -> R) -> R {
        change(self.state())
    }

    /// Returns the function's state of the packet's flow.
    ///
    /// # Panics
    /// If the packet has no state.
    #[inline]
    pub fn state(&mut self) -> &mut S {
        let state = self.raw.state.cast::<S>();
        assert!(!state.is_null() || size_of::<S>() == 0, "a flow's state");
        if size_of::<S>() == 0 {
            // SAFETY: `S` has no bytes, so none is accessed.
            return unsafe { std::ptr::NonNull::dangling().as_mut() };
        }
        // SAFETY: the runtime's pointer to state of the size of `S`, aligned to 8, for which any bytes are valid
        // (`State`). Packets of one flow share it; only one `&mut self` exists at a time, so the reference is unique.
        unsafe { &mut *state }
    }

    /// Returns the reason for which the function has dropped the packet, or `None` if it is forwarded.
    #[inline]
    pub fn dropped(&self) -> Option<u8> {
        self.raw.verdict.checked_sub(1)
    }

    /// Drops the packet with this reason, an index into [`DROP_REASONS`](crate::Function::DROP_REASONS).
    #[inline]
    pub fn drop(&mut self, reason: u8) {
        self.raw.verdict = reason.saturating_add(1);
    }
}
