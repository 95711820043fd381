//! Other end of a virtual device, for tests and measurements: it sends frames and receives what comes back.
//!
//! One of the few modules with `unsafe` code: packets move from device to device within one C call and are never
//! visible to Rust.

use crate::eal::enter_thread;
use crate::ffi;
use crate::queue::{RxQueue, TxQueue};
use std::sync::Arc;
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::buffer::HEADROOM;
use tailwater_chain::region::CACHE_LINE;

/// Cache line of frame bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; CACHE_LINE]);

/// Frames with their RSS hashes, each aligned to a cache line for copying.
#[derive(Debug)]
pub struct Frames {
    lines: Vec<Line>,
    frames: Vec<ffi::Frame>,
    longest: usize,
}

impl Frames {
    /// Copies the given frames, each with the RSS hash a NIC would report.
    ///
    /// # Panics
    /// If a frame is longer than 65,535 bytes, or all together exceed 256 GiB.
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
            // An empty frame occupies a line, too: copies are of whole lines.
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

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns `true` if there are no frames.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Length of the longest frame, in bytes.
    pub fn longest(&self) -> usize {
        self.longest
    }
}

/// Traffic source and sink at the other end of a device. Sends the frames in order, over and over, reusing the buffers
/// of returned packets.
#[derive(Debug)]
pub struct Peer {
    frames: Arc<Frames>,
    next: usize,
    from: RxQueue,
    to: TxQueue,
    /// Set once the thread is registered with DPDK.
    entered: bool,
}

impl Peer {
    /// Sends `frames` to `to` and receives from `from`.
    ///
    /// # Panics
    /// If there are no frames, one is longer than a buffer, or the queues use different pools.
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

    /// Receives up to `count` packets (at most [`MAX_BATCH`]) and sends as many frames in their buffers, and in fresh
    /// ones if fewer came. Returns the number sent. It is less than `count` if the frames wrap around, the device is
    /// full, or buffers run out.
    #[inline]
    pub fn turn(&mut self, count: usize) -> usize {
        if !self.entered {
            self.entered = enter_thread();
        }
        let frames = &self.frames.frames[self.next..];
        let count = count.min(frames.len()).min(MAX_BATCH);
        // One guard covers both queues.
        let _burst = self.from.burst().or_else(|| self.to.burst());
        // SAFETY: both ports run and have these queues, of which this is the only user. Both use this pool. `count`
        // frames exist, each in its own lines, none longer than a buffer's room, whole lines counted: `new` has
        // checked.
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

/// Forwards up to `most` packets (at most [`MAX_BATCH`]) without inspecting them, as DPDK's own example programs do:
/// the baseline for measurements. Packets the device refuses are lost. Returns the number sent.
#[inline]
pub fn forward(from: &mut RxQueue, to: &mut TxQueue, most: usize) -> usize {
    let most = most.min(MAX_BATCH) as u16;
    let (from_queue, to_queue) = (from.queue(), to.queue());
    let _burst = from.burst().or_else(|| to.burst());
    // SAFETY: both ports run and have these queues, of which this is the only user.
    usize::from(unsafe { ffi::tw_forward(from_queue, to_queue, most) })
}
