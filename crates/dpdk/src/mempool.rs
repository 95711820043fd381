//! Buffers shared by DPDK and Tailwater.
//!
//! One of the few modules with `unsafe` code. A DPDK mempool occupies one memory zone, with its mbufs one stride apart.
//! The buffer behind each mbuf is identified by its index. Each buffer has one owner at any time: DPDK (free, or in a
//! device's ring), or the holder of the only [`Buffer`](tailwater_chain::buffer::Buffer) with that index. Only the shim
//! accesses the memory between buffers, which holds the mbufs themselves.

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

/// DPDK mempool. Clones share the pool. It is freed once all clones, its buffer memory and all ports that use it are
/// gone.
#[derive(Clone, Debug)]
pub struct Mempool {
    shared: Arc<Shared>,
    memory: BufferMemory,
}

/// Owner of the DPDK pool.
#[derive(Debug)]
struct Shared {
    pool: ffi::Pool,
}

// SAFETY: the struct does not change. DPDK synchronises access to what it points to: any thread may use a pool.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: made by `tw_pool_create`, freed once. The memory has no users any more: handles to buffers are
        // useless without a `BufferMemory`, which keeps this alive, as does every port.
        unsafe { ffi::tw_pool_free(&mut self.pool) }
    }
}

/// Counter that makes pool names unique.
static POOLS: AtomicU32 = AtomicU32::new(0);

/// Size of each thread's mempool cache, in buffers: DPDK's maximum, so that threads rarely contend.
const CACHE: u32 = 512;

impl Mempool {
    /// Free buffers that each thread's cache may hold back.
    pub const CACHED: u64 = CACHE as u64 * 3 / 2;

    /// Memory of a pool of `count` buffers, in bytes.
    pub fn bytes(count: u32, frame_bytes: usize) -> u64 {
        // The mbuf, and DPDK's object header in front of it.
        const MBUF: u64 = 128 + 64;
        u64::from(count) * (MBUF + buffer_bytes(frame_bytes) as u64)
    }

    /// Creates a pool of `count` buffers for frames of up to `frame_bytes` bytes, on NUMA node `node`. A negative
    /// `node` means any.
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
        // SAFETY: the environment runs, as `_eal` shows; `name` is a C string, and `pool` is written if the call
        // succeeds.
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
        // SAFETY: DPDK's zone holds all mbufs with their buffers, one stride apart, the first of which starts at
        // `base`: the shim has checked. The zone was filled with zeros, and lives as long as the pool, which is the
        // owner. Devices access only buffers that DPDK owns.
        let memory = unsafe { BufferMemory::lent(base, count, [stride, bytes], owner) };
        let memory = memory.map_err(no_memory)?;
        Ok(Mempool { shared, memory })
    }

    /// Buffer pool of one worker, which may hold up to `most` buffers at a time.
    pub fn part(&self, most: usize) -> BufferPool {
        BufferPool::lent(self.memory.clone(), most)
    }

    /// Number of buffers.
    pub fn capacity(&self) -> u32 {
        self.shared.pool.count
    }

    /// Number of free buffers. Slow: not for the data path.
    pub fn available(&self) -> u32 {
        // SAFETY: the pool lives.
        unsafe { ffi::tw_pool_available(self.as_ptr()) }
    }

    /// Memory of the buffers.
    pub fn memory(&self) -> &BufferMemory {
        &self.memory
    }

    /// Pointer for the shim.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *const ffi::Pool {
        &self.shared.pool
    }

    /// Addresses of mbufs and buffers, by value. The compiler must assume that a write to an mbuf may alias the pool's
    /// struct, and would otherwise reload these for each packet.
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

    /// Returns buffers released to `part` to DPDK. Called before each burst, so that the device can receive into them.
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
        // SAFETY: these are indexes of buffers of this pool whose handles are gone: DPDK owns them again.
        unsafe { ffi::tw_give_back(pool, scratch.as_ptr(), scratch.len() as u32) };
    }

    /// Allocates up to `count` free buffers, fewer if the pool has fewer, for packets that do not come from a device.
    /// Adds their indexes to `part`, from which they can be [taken](BufferPool::take).
    pub fn fill(&self, part: &mut BufferPool, count: usize) -> usize {
        assert!(part.memory().is(&self.memory), "buffers of another pool");
        const MOST: usize = 32;
        let mut indexes = [0u32; MOST];
        let mut filled = 0;
        while filled < count {
            let wanted = MOST.min(count - filled);
            // SAFETY: there is room for `wanted` indexes, and the pool lives.
            let result = unsafe { ffi::tw_take(self.as_ptr(), indexes.as_mut_ptr(), wanted as u32) };
            if result != 0 {
                break;
            }
            for &index in &indexes[..wanted] {
                // SAFETY: DPDK has just allocated the buffer, so we are its only owner.
                let buffer = unsafe { part.claim(index) };
                part.give(buffer);
            }
            filled += wanted;
        }
        filled
    }
}

/// Addresses of a pool's mbufs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    first: *mut u8,
    stride: u64,
    /// Distance from the start of the first mbuf to the end of the last, in bytes.
    bytes: u64,
    reciprocal: u64,
}

impl View {
    /// Address of the mbuf in front of the buffer with this index, which must be one of the pool.
    #[inline]
    pub(crate) fn mbuf(self, index: u32) -> *mut Mbuf {
        let offset = u64::from(index) * self.stride;
        self.first.wrapping_add(offset as usize).cast()
    }

    /// Returns `true` if the mbuf belongs to the pool.
    #[inline]
    pub(crate) fn owns(self, mbuf: *const Mbuf) -> bool {
        self.offset(mbuf) < self.bytes
    }

    /// Index of the buffer behind an mbuf of the pool.
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

/// Size of a buffer for frames of `frame_bytes`, headroom included. It makes the stride an odd number of cache lines:
/// with an even one the first lines of the frames would share a few cache sets.
fn buffer_bytes(frame_bytes: usize) -> usize {
    // Minimum that drivers require.
    const LEAST: usize = 2048;
    // The mbuf and DPDK's header before it take three lines.
    let lines = (HEADROOM + frame_bytes.clamp(LEAST, 16_384)).div_ceil(CACHE_LINE);
    (lines + lines % 2) * CACHE_LINE
}
