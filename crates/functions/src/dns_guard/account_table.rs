//! Set-associative table of accounts by hash. It has a fixed size and is shared by all cores.
//!
//! An account is one 64-bit word. When all four accounts of a set are in use, opening another one evicts the account of
//! the lowest rank. For accounts whose high bits hold their expiry time, the word itself is the rank. So a flood of new
//! accounts, which owe little, evicts others of its kind before those that owe most.

use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::region::CACHE_LINE;

/// Number of accounts in a set.
const WAYS: usize = 4;
/// Hash of a free way. Hashes of accounts are odd.
const FREE: u64 = 0;
/// Hash of a way in which a core is creating an account.
const TAKEN: u64 = 2;
/// Number of attempts on a set that other cores keep changing.
const TRIES: usize = 8;

#[derive(Debug, Default)]
#[repr(align(64))]
struct AccountSet {
    hashes: [AtomicU64; WAYS],
    values: [AtomicU64; WAYS],
}

const _: () = assert!(size_of::<AccountSet>() == CACHE_LINE);

/// Table of accounts by hash.
#[derive(Debug)]
pub(super) struct AccountTable {
    places: Box<[AccountSet]>,
}

/// Account that was found or created.
#[derive(Debug)]
pub(super) struct Found<'a> {
    /// The account's word.
    pub(super) value: &'a AtomicU64,
    /// Word of the account that was evicted for this one, if any.
    pub(super) evicted: Option<u64>,
}

impl AccountTable {
    /// Creates a table for at least `accounts` accounts.
    pub(super) fn new(accounts: usize) -> AccountTable {
        let places = accounts.div_ceil(WAYS).next_power_of_two();
        AccountTable {
            places: (0..places).map(|_| AccountSet::default()).collect(),
        }
    }

    fn place(&self, hash: u64) -> &AccountSet {
        // Accounts within a set are distinguished by the remaining bits as well.
        let at = (hash >> 32) as usize & (self.places.len() - 1);
        &self.places[at]
    }

    /// Returns the account of a hash, if it exists.
    pub(super) fn find(&self, hash: u64) -> Option<&AtomicU64> {
        let place = self.place(hash);
        let at = position(place, hash | 1)?;
        Some(&place.values[at])
    }

    /// Same as [`open_by`](AccountTable::open_by), with the word as the rank: the account that expires first is
    /// evicted.
    pub(super) fn open(&self, hash: u64, first: u64) -> Option<Found<'_>> {
        self.open_by(hash, first, |value| value)
    }

    /// Returns the account of a hash. If there is none, creates one with the word `first` in a free way, or in that of
    /// the account with the lowest rank. Returns `None` if other cores kept changing the set.
    ///
    /// If two cores open an account at the same time, each may create one. From then on the first in the set counts. If
    /// an account is evicted while another core changes it, the change is lost or goes to the new account.
    pub(super) fn open_by(&self, hash: u64, first: u64, rank: impl Fn(u64) -> u64) -> Option<Found<'_>> {
        let (place, hash) = (self.place(hash), hash | 1);
        for _ in 0..TRIES {
            if let Some(at) = position(place, hash) {
                return Some(Found {
                    value: &place.values[at],
                    evicted: None,
                });
            }
            let ways = (0..WAYS).map(|at| {
                let hash = place.hashes[at].load(Ordering::Acquire);
                let value = place.values[at].load(Ordering::Relaxed);
                let rank = if hash == FREE { 0 } else { rank(value) };
                (rank, hash, at, value)
            });
            let ways = ways.filter(|(_, hash, ..)| *hash != TAKEN);
            let (_, old, at, value) = ways.min()?;
            let taken = place.hashes[at].compare_exchange(old, TAKEN, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                place.values[at].store(first, Ordering::Relaxed);
                // A core that finds the hash also sees the word.
                place.hashes[at].store(hash, Ordering::Release);
                return Some(Found {
                    value: &place.values[at],
                    evicted: (old != FREE).then_some(value),
                });
            }
        }
        None
    }
}

#[inline]
fn position(place: &AccountSet, hash: u64) -> Option<usize> {
    place
        .hashes
        .iter()
        .position(|found| found.load(Ordering::Acquire) == hash)
}
