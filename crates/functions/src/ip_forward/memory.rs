//! Large tables in memory backed by huge pages if available. With ordinary pages, a look-up in 32 MiB would often also
//! miss the TLB.

use bytemuck::Pod;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use tailwater_chain::region::Region;

/// Slice that owns a memory region.
#[derive(Debug)]
pub(super) struct HugeSlice<T> {
    region: Region,
    length: usize,
    items: PhantomData<T>,
}

impl<T: Pod> HugeSlice<T> {
    /// Allocates `length` zeroed items.
    ///
    /// # Errors
    /// The kernel's error if it cannot provide the memory.
    pub(super) fn zeroed(length: usize) -> io::Result<Self> {
        const { assert!(align_of::<T>() <= 4096, "regions are aligned to pages") };
        let bytes = length.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(HugeSlice {
            region: Region::zeroed(bytes)?,
            length,
            items: PhantomData,
        })
    }

    /// Allocates a copy of `items`.
    ///
    /// # Errors
    /// See [`zeroed`](HugeSlice::zeroed).
    pub(super) fn copy_of(items: &[T]) -> io::Result<Self> {
        let mut slice = HugeSlice::zeroed(items.len())?;
        slice.copy_from_slice(items);
        Ok(slice)
    }

    /// Returns the allocated memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.region.len()
    }
}

impl<T: Pod> Deref for HugeSlice<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the region holds `length` initialised items and is page-aligned, and any bytes are a valid `Pod`. The
        // region belongs to `self` alone, so a borrow of `self` covers it.
        unsafe { std::slice::from_raw_parts(self.region.base().cast(), self.length) }
    }
}

impl<T: Pod> DerefMut for HugeSlice<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.region.base().cast(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_hold_what_is_written() {
        let mut slice = HugeSlice::<u32>::zeroed(5000).unwrap();
        assert!(slice.iter().all(|item| *item == 0) && slice.len() == 5000);
        slice[4999] = 7;
        assert_eq!(HugeSlice::copy_of(&slice).unwrap()[4998..], [0, 7]);
        assert!(slice.memory_bytes() >= 20_000);
        assert!(HugeSlice::<u64>::copy_of(&[]).unwrap().is_empty());
        assert!(HugeSlice::<u64>::zeroed(usize::MAX / 2).is_err());
    }
}
