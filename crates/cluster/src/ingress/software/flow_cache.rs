//! Rules of recent packets, by all fields that rules can match: one comparison instead of a look-up in each group of
//! rules. A new table makes all entries void.

use super::key::PacketKey;
use super::table::{NONE, RuleIndex};
use tailwater_chain::region::prefetch;

/// Entries, a cache line each: half a mebibyte for a core.
const ENTRIES: usize = 8192;

/// Rule of a packet under a version of the table; 0 is none.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Entry {
    key: PacketKey,
    version: u32,
    rule: RuleIndex,
}

/// Direct-mapped cache of one core.
#[derive(Debug)]
pub(super) struct FlowCache(Box<[Entry]>);

impl FlowCache {
    pub fn new() -> FlowCache {
        let void = Entry {
            key: PacketKey::default(),
            version: 0,
            rule: NONE,
        };
        FlowCache(vec![void; ENTRIES].into_boxed_slice())
    }

    /// Loads the entry of a hash into the core's cache.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch((&raw const self.0[hash as usize % ENTRIES]).cast());
    }

    /// Returns the rule of a key under a version, by `find` if it is not known yet.
    #[inline]
    pub fn rule(
        &mut self,
        key: &PacketKey,
        hash: u64,
        version: u32,
        find: impl FnOnce(&PacketKey) -> RuleIndex,
    ) -> RuleIndex {
        let entry = &mut self.0[hash as usize % ENTRIES];
        if entry.version != version || entry.key != *key {
            *entry = Entry {
                key: *key,
                version,
                rule: find(key),
            };
        }
        entry.rule
    }
}
