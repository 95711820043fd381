//! One stretch of memory, shared by handles that never overlap.
//!
//! This is one of the few modules with `unsafe` code. Everything that lives in a region
//! (packet buffers, flow entries, flow state) is addressed by index, never by address, so that a
//! region can be mapped elsewhere in another process.

use memmap2::{MmapMut, MmapRaw};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};
use tailwater_sdk::protocol::memory::Memory;

/// The size of a cache line, in bytes.
pub const CACHE_LINE: usize = 64;

/// Regions of at least this many bytes ask for huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed, page-aligned memory that stays where it is until dropped.
///
/// Access is by raw pointer only: whoever hands out references says why they do not overlap.
#[derive(Debug)]
pub struct Region {
    base: *mut u8,
    bytes: usize,
    _kept: Kept,
}

/// What is mapped, as long as this lives.
#[derive(Debug)]
enum Kept {
    Own(#[expect(dead_code)] MmapRaw),
    Shared(#[expect(dead_code)] Arc<Memory>),
}

// SAFETY: an address and a length of memory that stays mapped. Who touches which bytes is the obligation of those who do.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `bytes` of zeroed memory (rounded up to a page), present in memory from the start so that
    /// no packet pays for a page fault. Transparent huge pages are used where the kernel has them.
    ///
    /// # Errors
    /// What the kernel says when it cannot give that much.
    pub fn zeroed(bytes: usize) -> io::Result<Region> {
        let mut map = MmapMut::map_anon(bytes.max(1))?;
        if bytes >= HUGE_PAGE {
            // Only advice: without huge pages everything works, slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        // Writing one byte a page makes the kernel supply the page now.
        for page in map.chunks_mut(4096) {
            // A volatile write is not optimised away although the memory is zero already.
            // SAFETY: `page` is a live, exclusive, non-empty slice.
            unsafe { std::ptr::write_volatile(page.as_mut_ptr(), 0) };
        }
        let map = MmapRaw::from(map);
        Ok(Region {
            base: map.as_mut_ptr(),
            bytes: map.len(),
            _kept: Kept::Own(map),
        })
    }

    /// So many bytes of memory that processes share, from `offset` on, a multiple of a page. What others write there is
    /// seen here.
    ///
    /// # Errors
    /// There are not so many.
    pub fn shared(memory: &Arc<Memory>, offset: usize, bytes: usize) -> io::Result<Region> {
        if offset > memory.len() || bytes > memory.len() - offset {
            return Err(io::Error::other("the file is too short"));
        }
        Ok(Region {
            base: memory.base().wrapping_add(offset),
            bytes,
            _kept: Kept::Shared(Arc::clone(memory)),
        })
    }

    /// The first byte.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The region's length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the region holds no byte; never true.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What was written before is there before what is written from here on, for the process that takes memory over when
/// the one that wrote it has been killed. Costs no instruction: the processor keeps this order for whoever goes on behind the kernel,
/// and the compiler is told to.
#[inline(always)]
pub fn write_in_order() {
    compiler_fence(Ordering::SeqCst);
}

/// Asks the processor to bring the cache line at `address` near. Any address will do: a prefetch
/// reads nothing and cannot fault.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch of any address has no effect but on caches.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_zeroed_and_page_aligned() {
        let region = Region::zeroed(3 * HUGE_PAGE + 5).unwrap();
        assert_eq!(region.base() as usize % 4096, 0);
        assert!(region.len() >= 3 * HUGE_PAGE + 5);
        // SAFETY: nothing else refers to the region, and every byte in `len` is initialised.
        let bytes = unsafe { std::slice::from_raw_parts(region.base(), region.len()) };
        assert!(bytes.iter().all(|&b| b == 0));
    }
}
