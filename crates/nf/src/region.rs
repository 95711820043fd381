//! One stretch of memory, shared by handles that never overlap.
//!
//! This is one of the few modules with `unsafe` code. Everything that lives in a region
//! (packet buffers, flow entries, flow state) is addressed by index, never by address, so that a
//! region can be mapped elsewhere in another process.

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use std::fs::File;
use std::io;

/// The size of a cache line, in bytes.
pub const CACHE_LINE: usize = 64;

/// Regions of at least this many bytes ask for huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed, page-aligned memory that stays where it is until dropped.
///
/// Access is by raw pointer only: whoever hands out references says why they do not overlap.
#[derive(Debug)]
pub struct Region {
    map: MmapRaw,
}

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
        Ok(Region {
            map: MmapRaw::from(map),
        })
    }

    /// So many bytes of a file in memory (`memfd`), from `offset` on, a multiple of a page. Other processes may
    /// map it, too: what they write is seen here.
    ///
    /// # Errors
    /// What the kernel says, or the file is shorter.
    pub fn shared(file: &File, offset: usize, bytes: usize) -> io::Result<Region> {
        if file.metadata()?.len() < (offset + bytes) as u64 {
            return Err(io::Error::other("the file is too short"));
        }
        let mut options = MmapOptions::new();
        let map = options.offset(offset as u64).len(bytes).map_raw(file)?;
        Ok(Region { map })
    }

    /// The first byte.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// The region's length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the region holds no byte; never true.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
