//! Memory regions, accessed by handles that never overlap.
//!
//! One of the few modules with `unsafe` code. Everything in a region (packet buffers, flow entries, flow state) is
//! addressed by index, never by address, so that another process can map the region elsewhere.

use memmap2::{MmapMut, MmapRaw};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};
use tailwater_sdk::protocol::memory::Memory;

/// Size of a cache line in bytes.
pub const CACHE_LINE: usize = 64;

/// Minimum size in bytes from which regions request huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed, page-aligned memory at a fixed address until dropped.
///
/// Access is by raw pointer only: code that creates references must justify that they do not overlap.
#[derive(Debug)]
pub struct Region {
    base: *mut u8,
    bytes: usize,
    _mapping: Mapping,
}

/// Mapping that backs the region, kept as long as the region.
#[derive(Debug)]
enum Mapping {
    /// No memory.
    None,
    Own(#[expect(dead_code)] MmapRaw),
    Shared(#[expect(dead_code)] Arc<Memory>),
}

// SAFETY: an address and a length of memory that stays mapped. Code that accesses the bytes is obliged to avoid races.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Region without any bytes.
    pub fn empty() -> Region {
        Region {
            base: std::ptr::without_provenance_mut(HUGE_PAGE),
            bytes: 0,
            _mapping: Mapping::None,
        }
    }

    /// Allocates `bytes` of zeroed memory (rounded up to a page), populated from the start so that no packet pays for a
    /// page fault. Transparent huge pages are used where the kernel has them.
    ///
    /// # Errors
    /// If the kernel cannot map that much memory.
    pub fn zeroed(bytes: usize) -> io::Result<Region> {
        let mut map = MmapMut::map_anon(bytes.max(1))?;
        if bytes >= HUGE_PAGE {
            // Only a hint: everything works without huge pages, but slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        // Writing one byte per page makes the kernel populate the page now.
        for page in map.chunks_mut(4096) {
            // A volatile write is not optimised away although the memory is zero already. SAFETY: `page` is a live,
            // exclusive, non-empty slice.
            unsafe { std::ptr::write_volatile(page.as_mut_ptr(), 0) };
        }
        let map = MmapRaw::from(map);
        Ok(Region {
            base: map.as_mut_ptr(),
            bytes: map.len(),
            _mapping: Mapping::Own(map),
        })
    }

    /// Region of `bytes` bytes in memory shared by processes, starting at `offset`, a multiple of the page size. Writes
    /// of other processes are visible here.
    ///
    /// # Errors
    /// If the memory is too short.
    pub fn shared(memory: &Arc<Memory>, offset: usize, bytes: usize) -> io::Result<Region> {
        if offset > memory.len() || bytes > memory.len() - offset {
            return Err(io::Error::other("the file is too short"));
        }
        Ok(Region {
            base: memory.base().wrapping_add(offset),
            bytes,
            _mapping: Mapping::Shared(Arc::clone(memory)),
        })
    }

    /// Address of the first byte.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Length of the region in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns `true` if the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Orders all earlier writes before all later ones, for a process that takes the memory over after this one was killed.
/// It costs no instruction: the processor keeps this order for code that continues after a kernel transition, and a
/// compiler fence makes the compiler keep it.
#[inline(always)]
pub fn write_in_order() {
    compiler_fence(Ordering::SeqCst);
}

/// Prefetches the cache line at `address`. Any address is allowed: a prefetch reads nothing and cannot fault.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch of any address affects only the caches.
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
