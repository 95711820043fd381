//! Accounts by their hash, in a table of a fixed size that all cores share.
//!
//! An account is one number. When four accounts that share a place are all in use, the one makes room that whoever opens another
//! ranks first. Where the high bits are the time after which an account is of no use any more, the number itself is its rank: so
//! a flood of new accounts, which owe little, forgets others of its own kind before those that owe most.

use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::region::CACHE_LINE;

/// Accounts that share a place.
const WAYS: usize = 4;
/// No account. Hashes of accounts are odd.
const FREE: u64 = 0;
/// Somebody is making an account here.
const TAKEN: u64 = 2;
/// How often a place is looked at anew because others changed it meanwhile.
const TRIES: usize = 8;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Place {
    hashes: [AtomicU64; WAYS],
    values: [AtomicU64; WAYS],
}

const _: () = assert!(size_of::<Place>() == CACHE_LINE);

/// Accounts by their hash.
#[derive(Debug)]
pub(super) struct Ledger {
    places: Box<[Place]>,
}

/// An account that was looked for.
#[derive(Debug)]
pub(super) struct Found<'a> {
    /// Its number.
    pub(super) value: &'a AtomicU64,
    /// The number of an account that was still there, and made room for this one.
    pub(super) evicted: Option<u64>,
}

impl Ledger {
    /// Room for at least so many accounts.
    pub(super) fn new(accounts: usize) -> Ledger {
        let places = accounts.div_ceil(WAYS).next_power_of_two();
        Ledger {
            places: (0..places).map(|_| Place::default()).collect(),
        }
    }

    fn place(&self, hash: u64) -> &Place {
        // The bits that tell accounts of a place apart are the others, too.
        let at = (hash >> 32) as usize & (self.places.len() - 1);
        &self.places[at]
    }

    /// The account of that hash, if there is one.
    pub(super) fn find(&self, hash: u64) -> Option<&AtomicU64> {
        let place = self.place(hash);
        let at = position(place, hash | 1)?;
        Some(&place.values[at])
    }

    /// As [`open_by`](Ledger::open_by), and the lowest number makes room: the one whose time comes first.
    pub(super) fn open(&self, hash: u64, first: u64) -> Option<Found<'_>> {
        self.open_by(hash, first, |value| value)
    }

    /// The account of that hash, or else a new one that holds `first`, in a free way or that of the account of the lowest rank.
    /// `None` if others kept changing the place.
    ///
    /// Two cores may open an account at the same moment and find one each; the first in the place counts from then on. One that
    /// is evicted in the moment in which another core changes it loses that change, or gives it to its successor.
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
                // Who finds the hash finds the number, too.
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
fn position(place: &Place, hash: u64) -> Option<usize> {
    place
        .hashes
        .iter()
        .position(|found| found.load(Ordering::Acquire) == hash)
}
