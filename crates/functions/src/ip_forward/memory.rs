//! Large tables in memory that asks for huge pages: a look-up in 32 MiB of ordinary pages would
//! often miss the TLB, too.

use bytemuck::Pod;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use tailwater_chain::region::Region;

/// A slice that owns a region of its own.
#[derive(Debug)]
pub(super) struct HugeSlice<T> {
    region: Region,
    length: usize,
    items: PhantomData<T>,
}

impl<T: Pod> HugeSlice<T> {
    /// `length` items of all zero bytes.
    ///
    /// # Errors
    /// What the kernel says when it cannot give that much memory.
    pub(super) fn zeroed(length: usize) -> io::Result<Self> {
        const { assert!(align_of::<T>() <= 4096, "regions are aligned to pages") };
        let bytes = length.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(HugeSlice {
            region: Region::zeroed(bytes)?,
            length,
            items: PhantomData,
        })
    }

    /// A copy of `items`.
    ///
    /// # Errors
    /// As [`zeroed`](HugeSlice::zeroed).
    pub(super) fn copy_of(items: &[T]) -> io::Result<Self> {
        let mut slice = HugeSlice::zeroed(items.len())?;
        slice.copy_from_slice(items);
        Ok(slice)
    }

    /// The memory taken, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.region.len()
    }
}

impl<T: Pod> Deref for HugeSlice<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the region holds `length` items, is aligned to a page, initialised, and any
        // bytes are a `Pod`. It belongs to `self` alone, so what borrows `self` borrows it.
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
