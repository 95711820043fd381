//! One stretch of memory, shared by handles that never overlap.
//!
//! This is one of the few modules with `unsafe` code. Everything that lives in a region
//! (packet buffers, flow entries, flow state) is addressed by index, never by address, so that a
//! region can be mapped elsewhere in another process.

use memmap2::{MmapMut, MmapRaw};
use std::any::Any;
use std::fmt;
use std::io;

/// The size of a cache line, in bytes.
pub const CACHE_LINE: usize = 64;

/// Regions of at least this many bytes ask for huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed, page-aligned memory that stays where it is until dropped.
///
/// Access is by raw pointer only: whoever hands out references says why they do not overlap.
pub struct Region {
    base: *mut u8,
    bytes: usize,
    /// Gives the memory back when it is dropped.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: a region is an address and a length; what is there is touched by raw pointer only, and whoever
// does so says why nobody else does at the time.
unsafe impl Send for Region {}
// SAFETY: as above: a shared region gives nothing but its address and length.
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
            _owner: Box::new(map),
        })
    }

    /// `bytes` of memory from `base` on that somebody else lends, such as a driver. It belongs to
    /// `owner`, which is dropped with the region.
    ///
    /// # Safety
    /// As long as `owner` is not dropped, the memory is there, readable, writable and initialised.
    pub unsafe fn lent(base: *mut u8, bytes: usize, owner: Box<dyn Any + Send + Sync>) -> Region {
        Region {
            base,
            bytes,
            _owner: owner,
        }
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

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Region { base, bytes, .. } = self;
        f.debug_struct("Region")
            .field("base", base)
            .field("bytes", bytes)
            .finish_non_exhaustive()
    }
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
