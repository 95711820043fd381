//! IPv4 look-up by DIR-24-8: one read for all prefixes up to /24, two for longer ones.
//!
//! The structure follows Gupta, Lin and McKeown, "Routing Lookups in Hardware at Memory Access Speeds", INFOCOM 1998,
//! with 16-bit entries.

use super::error::{MAX_EXTENDED, TableError};
use super::memory::HugeSlice;
use super::route::Decision;
use tailwater_chain::region::prefetch;

/// Entries of the first table, one per /24.
const FIRST: usize = 1 << 24;

/// Flag in an entry of the first table: the remaining bits are the index of a group of 256 entries in the second table.
const EXTENDED: u16 = Decision::LIMIT;

/// Look-up structure: 32 MiB, and 512 bytes for each /24 that contains longer prefixes.
pub(super) struct V4Table {
    first: HugeSlice<u16>,
    second: Vec<u16>,
}

/// A prefix: network, length, decision.
pub(super) type Entry = (u32, u8, Decision);

impl V4Table {
    /// Builds the structure from entries in any order. Of equal prefixes the last counts. `default` is for all other
    /// addresses.
    pub(super) fn new(mut entries: Vec<Entry>, default: Decision) -> Result<V4Table, TableError> {
        // Each prefix comes after those that contain it and overwrites their part. Configured routes are in this order
        // already, and the table is written from its start to its end.
        entries.sort_by_key(|(network, length, _)| (*network, *length));
        let mut table = V4Table {
            first: HugeSlice::zeroed(FIRST).map_err(TableError::Memory)?,
            second: Vec::new(),
        };
        if default != Decision::NONE {
            table.first.fill(default.0);
        }
        for (network, length, decision) in entries {
            if length <= 24 {
                let start = (network >> 8) as usize;
                let end = start + (1 << (24 - length));
                table.first[start..end].fill(decision.0);
            } else {
                let group = table.extended((network >> 8) as usize)?;
                let start = 256 * group + (network & 0xff) as usize;
                let end = start + (1 << (32 - u32::from(length)));
                table.second[start..end].fill(decision.0);
            }
        }
        table.second.shrink_to_fit();
        Ok(table)
    }

    /// Returns the group of a /24 in the second table, which is created if necessary.
    fn extended(&mut self, at: usize) -> Result<usize, TableError> {
        let entry = self.first[at];
        if entry & EXTENDED != 0 {
            return Ok(usize::from(entry & !EXTENDED));
        }
        let group = self.second.len() / 256;
        if group == MAX_EXTENDED {
            return Err(TableError::TooManyLongPrefixes);
        }
        self.second.resize(self.second.len() + 256, entry);
        self.first[at] = EXTENDED | group as u16;
        Ok(group)
    }

    /// Prefetches the cache line that [`find`](V4Table::find) will read.
    #[inline(always)]
    pub(super) fn prefetch(&self, address: u32) {
        if let Some(entry) = self.first.get((address >> 8) as usize) {
            prefetch(std::ptr::from_ref(entry).cast());
        }
    }

    /// Returns the decision for an address.
    #[inline(always)]
    pub(super) fn find(&self, address: u32) -> Decision {
        let entry = self.first[(address >> 8) as usize];
        if entry & EXTENDED == 0 {
            return Decision(entry);
        }
        let group = usize::from(entry & !EXTENDED);
        Decision(self.second[256 * group + (address & 0xff) as usize])
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.first.memory_bytes() + self.second.capacity() * size_of::<u16>()
    }
}
