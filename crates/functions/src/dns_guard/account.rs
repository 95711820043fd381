//! Encoding of an account in one 64-bit word. Each word is changed by compare-and-swap, because many cores may do so at
//! the same time.
//!
//! The upper 52 bits hold a time since the run's start, in ticks of 1/16 µs, enough for nine years. The lower 12 bits
//! hold a count. An account of bytes has a coarser time and more bits for the count.

use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_net::Nanos;

/// Number of bits of the count.
const COUNT: u32 = 12;
const COUNTS: u64 = (1 << COUNT) - 1;
/// Number of ticks in a second.
pub(super) const SECOND: u64 = 16_000_000;

/// Converts a time to ticks.
#[inline]
pub(super) fn ticks(time: Nanos) -> u64 {
    // A tick is 62.5 ns. The product fits for 292 years.
    time.0 * 2 / 125
}

/// Word of an account without debt and without waiting queries.
pub(super) const EMPTY: u64 = 0;

/// Returns `true` if the word's time is later than `now`.
#[inline]
pub(super) fn is_due(value: u64, now: u64) -> bool {
    value >> COUNT > now
}

/// Result of charging a response to an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RateVerdict {
    /// The response is within the rate.
    Within,
    /// The response exceeds the rate. The number counts such responses in a row, from 1.
    Beyond(u64),
}

/// Charges a response to an account. It is repaid in `interval` ticks, and one second's worth may come in a burst.
///
/// Responses beyond the rate are charged as well, so an account with constantly excessive demand gets nothing. The debt
/// is limited to what `window` ticks repay: after that time without responses the account is as before. This is the
/// token bucket of BIND's response-rate limiting, stored as the time at which the debt is repaid.
#[inline]
pub(super) fn debit(value: &AtomicU64, now: u64, interval: u64, window: u64) -> RateVerdict {
    let mut before = value.load(Ordering::Relaxed);
    loop {
        let paid = (before >> COUNT).max(now) + interval;
        let (after, standing) = match paid - now <= SECOND {
            true => (paid << COUNT, RateVerdict::Within),
            false => {
                // Wraps after 4,095, as if there had been a pause.
                let beyond = (before & COUNTS) % COUNTS + 1;
                let paid = paid.min(now + SECOND + window);
                (paid << COUNT | beyond, RateVerdict::Beyond(beyond))
            }
        };
        // Relaxed: only the word itself is shared, and it guards no other data.
        match value.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return standing,
            Err(now) => before = now,
        }
    }
}

/// Number of bits for the bytes of a byte account. The time above them is in milliseconds.
const BYTES: u32 = 26;
/// Maximum bytes of a byte account.
pub(super) const MAX_BYTES: u64 = (1 << BYTES) - 1;

/// Returns the word of a new account with a credit of `bytes`.
#[inline]
pub(super) fn credit_of(bytes: u64, now: u64) -> u64 {
    let milliseconds = now / (SECOND / 1000);
    milliseconds << BYTES | bytes.min(MAX_BYTES)
}

/// Adds bytes to an account, up to a credit of `most`.
pub(super) fn earn(value: &AtomicU64, now: u64, bytes: u64, most: u64) {
    change(value, now, |credit| (credit + bytes).min(most.max(credit)));
}

/// Takes bytes from an account if its credit suffices, and returns `true` if so. The time of the last use is updated in
/// either case.
pub(super) fn spend(value: &AtomicU64, now: u64, bytes: u64) -> bool {
    let mut enough = false;
    change(value, now, |credit| {
        enough = credit >= bytes;
        if enough { credit - bytes } else { credit }
    });
    enough
}

fn change(value: &AtomicU64, now: u64, mut to: impl FnMut(u64) -> u64) {
    let change = |before: u64| Some(credit_of(to(before & MAX_BYTES), now));
    let _ = value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
}

/// Time in milliseconds after which an unused byte account may be evicted as if it were full.
const MAX_IDLE_MS: u64 = 10 * 60 * 1000;

/// Returns the bytes spent from an account with a maximum of `most`, or 0 if it has been unused for ten minutes.
pub(super) fn spent(value: u64, now: u64, most: u64) -> u64 {
    let age = (now / (SECOND / 1000)).saturating_sub(value >> BYTES);
    match age < MAX_IDLE_MS {
        true => most.saturating_sub(value & MAX_BYTES),
        false => 0,
    }
}

/// Returns the eviction rank of a byte account. Those with the fewest spent bytes are evicted first, and among equals
/// the oldest.
pub(super) fn credit_rank(value: u64, now: u64, most: u64) -> u64 {
    spent(value, now, most) << (u64::BITS - BYTES) | value >> BYTES
}

/// Number of bits for the question in an account of queries. The bits above hold the number of waiting queries.
const QUESTION: u32 = 8;
const QUESTIONS: u64 = (1 << QUESTION) - 1;

/// Records a query that may be answered until `until`. Of several queries, only the last one's question is stored.
pub(super) fn add_query(value: &AtomicU64, now: u64, until: u64, question: u64) {
    let ask = |before: u64| {
        let waiting = match is_due(before, now) {
            true => (before & COUNTS) >> QUESTION,
            false => 0,
        };
        let waiting = (waiting + 1).min(COUNTS >> QUESTION);
        Some(until << COUNT | waiting << QUESTION | question & QUESTIONS)
    };
    let _ = value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, ask);
}

/// Removes a query that waits for this response, and returns `true` if there was one. The question must match if the
/// response contains one.
pub(super) fn take_query(value: &AtomicU64, now: u64, question: Option<u64>) -> bool {
    let answer = |before: u64| {
        let asked = question.is_none_or(|question| (question ^ before) & QUESTIONS == 0);
        let waits = is_due(before, now) && (before & COUNTS) >> QUESTION > 0;
        (asked && waits).then(|| before - (1 << QUESTION))
    };
    value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, answer).is_ok()
}

/// Returns the word of a datagram whose later fragments are dropped until `until`.
#[inline]
pub(super) fn dropped_until(until: u64) -> u64 {
    until << COUNT
}
