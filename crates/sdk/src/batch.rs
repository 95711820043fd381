//! A batch of packets, as a function sees it.
//!
//! One of the few modules with `unsafe` code: it turns the pointers of a call into references that live no
//! longer than the call.

use crate::FlowKey;
use crate::abi;
use crate::flow_state::State;
use std::marker::PhantomData;
use std::slice;

/// The packets of one call, in order of arrival.
#[derive(Debug)]
pub struct Batch<'a, S> {
    packets: &'a mut [abi::Packet],
    counters: &'a mut [u64],
    state: PhantomData<S>,
}

impl<'a, S: State> Batch<'a, S> {
    /// The batch of a call.
    ///
    /// # Safety
    /// `batch` is as `tailwater_nf.h` says, for a function with so many counters and state `S`, and stays so
    /// for `'a`, in which nobody else touches what it points to.
    pub(crate) unsafe fn new(batch: &'a mut abi::Batch, counters: usize) -> Batch<'a, S> {
        // SAFETY: the caller's word: so many packets and counters. An empty list may be null.
        unsafe {
            Batch {
                packets: list(batch.packets, batch.count as usize),
                counters: list(batch.counters, counters),
                state: PhantomData,
            }
        }
    }

    /// How many packets there are.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Packet `i`.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn packet(&mut self, i: usize) -> Packet<'_, S> {
        Packet {
            raw: &mut self.packets[i],
            state: PhantomData,
        }
    }

    /// The counters, in the order of [`COUNTERS`](crate::Function::COUNTERS).
    pub fn counters(&mut self) -> &mut [u64] {
        self.counters
    }

    /// Runs `each` on every packet, in order, with the counters.
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

/// # Safety
/// `first` points to so many values that nobody else touches for `'a`, or is anything if there are none.
unsafe fn list<'a, T>(first: *mut T, count: usize) -> &'a mut [T] {
    match count {
        0 => &mut [],
        // SAFETY: the caller's word.
        _ => unsafe { slice::from_raw_parts_mut(first, count) },
    }
}

/// A packet: well-formed IP, of Ethernet.
#[derive(Debug)]
pub struct Packet<'a, S> {
    raw: &'a mut abi::Packet,
    state: PhantomData<S>,
}

impl<S: State> Packet<'_, S> {
    /// Whether this is the first packet of its flow that the function sees, or the first since a function in
    /// front sent the flow elsewhere: decide now, and keep it in the state. For functions with state.
    #[inline]
    pub fn is_new_flow(&self) -> bool {
        self.raw.flags & abi::NEW_FLOW != 0
    }

    /// When it arrived, in nanoseconds since the run's start: there is no other clock.
    #[inline]
    pub fn arrival_ns(&self) -> u64 {
        self.raw.arrival_ns
    }

    /// The flow's number in the flow table; `None` in a chain without one.
    #[inline]
    pub fn flow(&self) -> Option<u32> {
        (self.raw.flow != abi::NO_FLOW).then_some(self.raw.flow)
    }

    /// The 5-tuple, as it stood in the frame when the function was called.
    #[inline]
    pub fn key(&self) -> &FlowKey {
        // SAFETY: the runtime's pointer to a key, valid for the call; `FlowKey` is transparent.
        unsafe { &*self.raw.key.cast::<FlowKey>() }
    }

    /// 4 or 6.
    #[inline]
    pub fn ip_version(&self) -> u8 {
        self.raw.ip_version
    }

    /// Where in the frame, as it was when the function was called, the IP header, the transport header and its
    /// payload begin, and where the datagram ends.
    #[inline]
    pub fn offsets(&self) -> [usize; 4] {
        let raw = &self.raw;
        [raw.network_offset, raw.transport_offset, raw.payload_offset, raw.end].map(usize::from)
    }

    /// The frame.
    #[inline]
    pub fn frame(&self) -> &[u8] {
        // SAFETY: the runtime's pointer to so many bytes, which are this packet's alone for the call;
        // `resize` keeps both within the buffer.
        unsafe { slice::from_raw_parts(self.raw.frame, self.raw.length as usize) }
    }

    /// The transport payload. Empty if the frame has been cut.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let [_, _, start, end] = self.offsets();
        self.frame().get(start..end).unwrap_or_default()
    }

    /// The frame, to change payload. For headers: [`rewrite`](Packet::rewrite).
    #[inline]
    pub fn frame_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `frame`; `&mut self` makes the reference the only one.
        unsafe { slice::from_raw_parts_mut(self.raw.frame, self.raw.length as usize) }
    }

    /// The frame, to change headers: afterwards the runtime looks at them again.
    #[inline]
    pub fn rewrite(&mut self) -> &mut [u8] {
        self.raw.flags |= abi::REWRITTEN;
        self.frame_mut()
    }

    /// Lets the frame start so many bytes earlier, or later if negative, and end so many later, or earlier.
    /// New bytes hold anything. `false`, with nothing changed, if there is no room.
    #[inline]
    pub fn resize(&mut self, front: i32, back: i32) -> bool {
        let raw = &mut *self.raw;
        let grown = |room: u16, by: i32| u16::try_from(i64::from(room) - i64::from(by)).ok();
        let length = i64::from(raw.length) + i64::from(front) + i64::from(back);
        let fits = u32::try_from(length).ok();
        // Neither end passes the other one.
        let cuts = i64::from(front.min(0)) + i64::from(back.min(0)) + i64::from(raw.length);
        let (Some(headroom), Some(tailroom), Some(length), 0..) =
            (grown(raw.headroom, front), grown(raw.tailroom, back), fits, cuts)
        else {
            return false;
        };
        raw.frame = raw.frame.wrapping_offset(-(front as isize));
        (raw.headroom, raw.tailroom, raw.length) = (headroom, tailroom, length);
        raw.flags |= abi::REWRITTEN;
        true
    }

    /// The function's state of the packet's flow, to read. It is here: with a
    /// [`STATE_VERSION`](crate::Function::STATE_VERSION), and where the chain has a `state`, what another instance made of
    /// it was fetched before the packet came. In a [new flow](Packet::is_new_flow) it is zero, or what another instance
    /// left.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn read(&mut self) -> &S {
        self.state()
    }

    /// Changes the function's state of the packet's flow. What was changed is written to the store after the batch, and
    /// the packet, as all behind it of its flow, leaves when the store has it.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn update<R>(&mut self, change: impl FnOnce(&mut S) -> R) -> R {
        change(self.state())
    }

    /// The function's state of the packet's flow.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn state(&mut self) -> &mut S {
        let state = self.raw.state.cast::<S>();
        assert!(!state.is_null() || size_of::<S>() == 0, "a flow's state");
        if size_of::<S>() == 0 {
            // SAFETY: no byte is touched.
            return unsafe { std::ptr::NonNull::dangling().as_mut() };
        }
        // SAFETY: the runtime's pointer to as much state as `S` has, aligned to 8, of which any bytes are a
        // value (`State`). Packets of one flow share it; `&mut self`, of which there is one at a time, makes
        // the reference the only one.
        unsafe { &mut *state }
    }

    /// Drops the packet, for this one of the [`DROP_REASONS`](crate::Function::DROP_REASONS).
    #[inline]
    pub fn drop(&mut self, reason: u8) {
        self.raw.verdict = reason.saturating_add(1);
    }
}
