//! The other end of a virtual device, for tests and measurements: it sends frames, and takes back what comes.
//!
//! One of the few modules with `unsafe` code: packets go from device to device within one call, and Rust never
//! has them.

use crate::eal::enter_thread;
use crate::ffi;
use crate::queue::{RxQueue, TxQueue};
use std::sync::Arc;
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::buffer::HEADROOM;
use tailwater_chain::region::CACHE_LINE;

/// A cache line of frames.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; CACHE_LINE]);

/// Frames with their RSS hashes, ready to be copied: each starts at a cache line.
#[derive(Debug)]
pub struct Frames {
    lines: Vec<Line>,
    frames: Vec<ffi::Frame>,
    longest: usize,
}

impl Frames {
    /// Copies of these frames, with the hashes that a NIC would tell.
    ///
    /// # Panics
    /// If one is longer than 65,535 bytes, or they are more than 256 GiB.
    pub fn new<'f>(frames: impl IntoIterator<Item = (&'f [u8], u32)>) -> Frames {
        let mut all = Frames {
            lines: Vec::new(),
            frames: Vec::new(),
            longest: 0,
        };
        for (frame, hash) in frames {
            let (Ok(line), Ok(length)) = (all.lines.len().try_into(), frame.len().try_into()) else {
                panic!("a frame of {} bytes behind {} lines", frame.len(), all.lines.len());
            };
            // An empty frame, too, has a line: copies are of whole lines.
            let parts = frame.chunks(CACHE_LINE);
            let parts = parts.chain(frame.is_empty().then_some(frame));
            all.lines.extend(parts.map(|part| {
                let mut line = Line([0; CACHE_LINE]);
                line.0[..part.len()].copy_from_slice(part);
                line
            }));
            all.frames.push(ffi::Frame {
                line,
                lines: all.lines.len() as u32 - line,
                packet_length: u32::from(length),
                length,
                hash,
                ..ffi::Frame::default()
            });
            all.longest = all.longest.max(frame.len());
        }
        all
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The longest one, in bytes.
    pub fn longest(&self) -> usize {
        self.longest
    }
}

/// Who is at the other end: sends frames one after the other, over and over, in the buffers in which packets came
/// back.
#[derive(Debug)]
pub struct Peer {
    frames: Arc<Frames>,
    next: usize,
    from: RxQueue,
    to: TxQueue,
    /// Whether DPDK knows the thread.
    entered: bool,
}

impl Peer {
    /// Sends `frames` to `to`, and takes back what comes from `from`.
    ///
    /// # Panics
    /// If there are no frames, one is longer than buffers hold, or the queues are of different pools.
    pub fn new(frames: Arc<Frames>, from: RxQueue, to: TxQueue) -> Peer {
        let memory = to.mempool().memory();
        assert!(from.mempool().memory().is(memory), "queues of different pools");
        let room = memory.buffer_bytes() - HEADROOM;
        let longest = frames.longest().max(1).next_multiple_of(CACHE_LINE);
        assert!(longest <= room, "a frame of {} bytes", frames.longest());
        assert!(!frames.is_empty(), "no frames");
        Peer {
            frames,
            next: 0,
            from,
            to,
            entered: false,
        }
    }

    /// Takes up to `count` packets (of [`MAX_BATCH`]) that came, and sends as many frames in their buffers, and
    /// in fresh ones if fewer came. Returns how many were sent: fewer than `count` if the frames begin anew, the
    /// device is full, or there are no buffers.
    #[inline]
    pub fn turn(&mut self, count: usize) -> usize {
        if !self.entered {
            self.entered = enter_thread();
        }
        let frames = &self.frames.frames[self.next..];
        let count = count.min(frames.len()).min(MAX_BATCH);
        // One is enough for both.
        let _burst = self.from.burst().or_else(|| self.to.burst());
        // SAFETY: both ports run and have these queues, of which this is the only user. The pool is that of both.
        // So many frames are there, each in its lines, none longer than the room in a buffer, whole lines
        // counted: `new` has looked.
        let sent = unsafe {
            ffi::tw_refill(
                self.to.mempool().as_ptr(),
                self.from.queue(),
                self.to.queue(),
                self.frames.lines.as_ptr().cast(),
                frames.as_ptr(),
                count as u16,
            )
        };
        self.next += count;
        if self.next == self.frames.len() {
            self.next = 0;
        }
        usize::from(sent)
    }
}

/// Forwards up to `most` packets (of [`MAX_BATCH`]) as DPDK does by itself, without a look at them: what its own
/// programs are measured by. What the device does not take is lost. Returns how many were sent.
#[inline]
pub fn forward(from: &mut RxQueue, to: &mut TxQueue, most: usize) -> usize {
    let most = most.min(MAX_BATCH) as u16;
    let (from_queue, to_queue) = (from.queue(), to.queue());
    let _burst = from.burst().or_else(|| to.burst());
    // SAFETY: both ports run and have these queues, of which this is the only user.
    usize::from(unsafe { ffi::tw_forward(from_queue, to_queue, most) })
}
