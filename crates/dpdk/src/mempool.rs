//! Buffers that are DPDK's and Tailwater's at once.
//!
//! One of the few modules with `unsafe` code. DPDK's pool lies in one piece of memory, its mbufs one stride
//! apart; behind each mbuf is the buffer, which Tailwater knows by its number. Who has a buffer is clear
//! at any time: DPDK (free, or in a device's ring), or the holder of the only
//! [`Buffer`](tailwater_chain::buffer::Buffer) of that number. What is between buffers, the mbufs themselves,
//! only the shim touches.

use crate::eal::Eal;
use crate::error::{DpdkError, last_lines};
use crate::ffi;
use crate::mbuf::{MBUF, Mbuf};
use std::any::Any;
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tailwater_chain::buffer::{BufferMemory, BufferPool, HEADROOM};
use tailwater_chain::region::CACHE_LINE;

/// A pool of DPDK's. Clones are the same pool; it goes when all of them, its buffers' memory and all ports
/// that use it are gone.
#[derive(Clone, Debug)]
pub struct Mempool {
    shared: Arc<Shared>,
    memory: BufferMemory,
}

/// The pool itself.
#[derive(Debug)]
struct Shared {
    pool: ffi::Pool,
}

// SAFETY: the struct does not change; what it points to DPDK guards itself: pools may be used by any thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: made by `tw_pool_create`, freed once. Nobody uses the memory any more: handles to buffers
        // are no use without a `BufferMemory`, which holds on to this, and so does every port.
        unsafe { ffi::tw_pool_free(&mut self.pool) }
    }
}

/// Each pool has a name of its own.
static POOLS: AtomicU32 = AtomicU32::new(0);

/// Free buffers that each thread keeps to itself: the most that DPDK allows, so that threads seldom meet.
const CACHE: u32 = 512;

impl Mempool {
    /// Free buffers that each thread may keep to itself.
    pub const CACHED: u64 = CACHE as u64 * 3 / 2;

    /// Bytes of memory that such a pool takes.
    pub fn bytes(count: u32, frame_bytes: usize) -> u64 {
        // The mbuf, and DPDK's own header in front of it.
        const MBUF: u64 = 128 + 64;
        u64::from(count) * (MBUF + buffer_bytes(frame_bytes) as u64)
    }

    /// A pool of `count` buffers for frames of up to `frame_bytes`, on NUMA node `node` if it is not
    /// negative.
    ///
    /// # Errors
    /// If there is no memory, or after 65,535 pools.
    pub fn new(_eal: Eal, count: u32, frame_bytes: usize, node: i32) -> Result<Mempool, DpdkError> {
        let bytes = buffer_bytes(frame_bytes);
        let no_memory = |source| DpdkError::Memory {
            count,
            bytes,
            source,
            said: last_lines(&ffi::said()),
        };
        let number = POOLS.fetch_add(1, Ordering::Relaxed);
        let Ok(name) = CString::new(format!("tailwater_{number}")) else {
            unreachable!("the name has no zero byte");
        };
        let cache = CACHE.min(count * 2 / 3);
        let mut pool = MaybeUninit::uninit();
        // SAFETY: the environment runs, as `_eal` shows; `name` is a string, and `pool` is written if the
        // call succeeds.
        let result = unsafe {
            let bytes = bytes as u32;
            ffi::tw_pool_create(name.as_ptr(), count, bytes, cache, node, pool.as_mut_ptr())
        };
        if result != 0 {
            return Err(no_memory(io::Error::from_raw_os_error(-result)));
        }
        // SAFETY: the call succeeded.
        let pool = unsafe { pool.assume_init() };
        let shared = Arc::new(Shared { pool });
        let ffi::Pool { base, stride, .. } = shared.pool;
        let stride = stride as usize;
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(&shared) as _;
        // SAFETY: DPDK's zone holds all mbufs with their buffers, one stride apart, the first of which starts
        // at `base`: the shim has looked. The zone was filled with zeros, and lives as long as the pool,
        // which is the owner. Devices touch buffers that are DPDK's only.
        let memory = unsafe { BufferMemory::lent(base, count, [stride, bytes], owner) };
        let memory = memory.map_err(no_memory)?;
        Ok(Mempool { shared, memory })
    }

    /// A worker's part: it may hold up to `most` buffers at a time.
    pub fn part(&self, most: usize) -> BufferPool {
        BufferPool::lent(self.memory.clone(), most)
    }

    /// How many buffers there are.
    pub fn capacity(&self) -> u32 {
        self.shared.pool.count
    }

    /// How many are free. Slow: not for the data path.
    pub fn available(&self) -> u32 {
        // SAFETY: the pool lives.
        unsafe { ffi::tw_pool_available(self.as_ptr()) }
    }

    /// Where the buffers lie.
    pub fn memory(&self) -> &BufferMemory {
        &self.memory
    }

    /// The pool, for the shim.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *const ffi::Pool {
        &self.shared.pool
    }

    /// Where mbufs and buffers are, in registers: a compiler that must assume that every mbuf written might be the
    /// pool reads that anew for each packet.
    #[inline]
    pub(crate) fn view(&self) -> View {
        let ffi::Pool {
            base,
            stride,
            reciprocal,
            count,
            ..
        } = self.shared.pool;
        View {
            first: base.wrapping_sub(MBUF),
            stride,
            bytes: u64::from(count) * stride,
            reciprocal,
        }
    }

    /// Gives DPDK the buffers back that `part` got back. To be called before each burst, so that
    /// they can be received into.
    #[inline]
    pub(crate) fn settle(&self, part: &mut BufferPool, scratch: &mut Vec<u32>) {
        assert!(part.memory().is(&self.memory), "buffers of another pool");
        let returned = part.returned();
        if returned.len() == 0 {
            return;
        }
        scratch.clear();
        scratch.extend(returned);
        let pool = self.as_ptr();
        // SAFETY: these are numbers of buffers of this pool, whose handles are gone: they are DPDK's again.
        unsafe { ffi::tw_give_back(pool, scratch.as_ptr(), scratch.len() as u32) };
    }

    /// Takes up to `count` free buffers, as many as there are all together, for packets that come from
    /// elsewhere than a device. Adds their numbers to `part`, from which they can be
    /// [taken](BufferPool::take).
    pub fn fill(&self, part: &mut BufferPool, count: usize) -> usize {
        assert!(part.memory().is(&self.memory), "buffers of another pool");
        const MOST: usize = 32;
        let mut indexes = [0u32; MOST];
        let mut filled = 0;
        while filled < count {
            let wanted = MOST.min(count - filled);
            // SAFETY: there is room for so many numbers, and the pool lives.
            let result = unsafe { ffi::tw_take(self.as_ptr(), indexes.as_mut_ptr(), wanted as u32) };
            if result != 0 {
                break;
            }
            for &index in &indexes[..wanted] {
                // SAFETY: DPDK has just given the buffer to nobody but us.
                let buffer = unsafe { part.claim(index) };
                part.give(buffer);
            }
            filled += wanted;
        }
        filled
    }
}

/// Where a pool's mbufs are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    first: *mut u8,
    stride: u64,
    /// From the first one to behind the last.
    bytes: u64,
    reciprocal: u64,
}

impl View {
    /// The mbuf of the buffer of this number, if there is one.
    #[inline]
    pub(crate) fn mbuf(self, index: u32) -> *mut Mbuf {
        let offset = u64::from(index) * self.stride;
        self.first.wrapping_add(offset as usize).cast()
    }

    /// Whether an mbuf is of the pool.
    #[inline]
    pub(crate) fn owns(self, mbuf: *const Mbuf) -> bool {
        self.offset(mbuf) < self.bytes
    }

    /// The number of the buffer behind an mbuf of the pool.
    #[inline]
    pub(crate) fn index(self, mbuf: *const Mbuf) -> u32 {
        // Exact: with offsets below 2^47 and strides of up to 2^15 the product is too large by less than
        // 2^64 / stride.
        ((u128::from(self.offset(mbuf)) * u128::from(self.reciprocal)) >> 64) as u32
    }

    #[inline]
    fn offset(self, mbuf: *const Mbuf) -> u64 {
        mbuf.addr().wrapping_sub(self.first.addr()) as u64
    }
}

/// Bytes of a buffer for such frames, headroom included, so that buffers with their mbufs start an odd number
/// of cache lines apart: with an even number the frames' first lines would share a few sets of the cache.
fn buffer_bytes(frame_bytes: usize) -> usize {
    // What drivers expect at the least.
    const LEAST: usize = 2048;
    // The mbuf and DPDK's header before it take three lines.
    let lines = (HEADROOM + frame_bytes.clamp(LEAST, 16_384)).div_ceil(CACHE_LINE);
    (lines + lines % 2) * CACHE_LINE
}
