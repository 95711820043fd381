//! What the number of an account means. Each is changed by compare-and-swap: many cores may do so at the same moment.
//!
//! In its upper 52 bits it has a time, in [`TICK`]s of a sixteenth of a microsecond since the run's start (enough for
//! nine years), and below that a count. (An account of bytes has a coarser time, and more room below.)

use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_net::Nanos;

/// Bits of the count.
const COUNT: u32 = 12;
const COUNTS: u64 = (1 << COUNT) - 1;
/// Ticks in a second.
pub(super) const SECOND: u64 = 16_000_000;

/// A time in ticks.
#[inline]
pub(super) fn ticks(time: Nanos) -> u64 {
    // 62.5 ns each; the product fits for 292 years.
    time.0 * 2 / 125
}

/// The number of an account that nobody owes anything, nor waits for.
pub(super) const NOTHING: u64 = 0;

/// Whether a number's time is still to come.
#[inline]
pub(super) fn is_due(value: u64, now: u64) -> bool {
    value >> COUNT > now
}

/// What becomes of a response that is put on an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is within the rate.
    Within,
    /// It is beyond, as the so-manieth in a row, from 1 on.
    Beyond(u64),
}

/// Puts a response on an account that `interval` ticks pay for; what comes in a second may come at once. Those that are
/// beyond count as well, so that an account from which too much is wanted all the time gets nothing, but no more than
/// `window` ticks pay for: so long it must be left alone to be as before. (The token bucket of response-rate limiting as in BIND,
/// kept as the time at which all is paid.)
#[inline]
pub(super) fn debit(value: &AtomicU64, now: u64, interval: u64, window: u64) -> Standing {
    let mut before = value.load(Ordering::Relaxed);
    loop {
        let paid = (before >> COUNT).max(now) + interval;
        let (after, standing) = match paid - now <= SECOND {
            true => (paid << COUNT, Standing::Within),
            false => {
                // Goes round after 4,095, as if there had been a pause.
                let beyond = (before & COUNTS) % COUNTS + 1;
                let paid = paid.min(now + SECOND + window);
                (paid << COUNT | beyond, Standing::Beyond(beyond))
            }
        };
        // Only the number itself is shared, nothing that it would guard.
        match value.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return standing,
            Err(now) => before = now,
        }
    }
}

/// Bits of the bytes of an account of bytes; the time above them is in milliseconds.
const BYTES: u32 = 26;
/// Most bytes of such an account.
pub(super) const MAX_BYTES: u64 = (1 << BYTES) - 1;

/// The number of a new account that so many bytes may be spent from.
#[inline]
pub(super) fn credit_of(bytes: u64, now: u64) -> u64 {
    let milliseconds = now / (SECOND / 1000);
    milliseconds << BYTES | bytes.min(MAX_BYTES)
}

/// Adds bytes to an account, up to `most`.
pub(super) fn earn(value: &AtomicU64, now: u64, bytes: u64, most: u64) {
    change(value, now, |credit| (credit + bytes).min(most.max(credit)));
}

/// Takes bytes from an account, if it has as many. That it was asked is noted if it has not, too.
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

/// How long, in milliseconds, an account of bytes is kept that nobody asks or sends for, if others need its room.
const FORGOTTEN: u64 = 10 * 60 * 1000;

/// What is missing in an account of bytes that may have `most`: nothing if it was left alone for ten minutes.
pub(super) fn spent(value: u64, now: u64, most: u64) -> u64 {
    let age = (now / (SECOND / 1000)).saturating_sub(value >> BYTES);
    match age < FORGOTTEN {
        true => most.saturating_sub(value & MAX_BYTES),
        false => 0,
    }
}

/// Accounts of bytes in the order in which they make room: that from which least is spent, and of several the oldest.
pub(super) fn credit_rank(value: u64, now: u64, most: u64) -> u64 {
    spent(value, now, most) << (u64::BITS - BYTES) | value >> BYTES
}

/// Bits for the question of an account of queries; above them is the number of those that wait.
const QUESTION: u32 = 8;
const QUESTIONS: u64 = (1 << QUESTION) - 1;

/// Notes a query that may be answered until `until`. Of several, the last one's question is known.
pub(super) fn ask(value: &AtomicU64, now: u64, until: u64, question: u64) {
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

/// Takes a query that waits for a response, of this question if the response says one. Whether there was one.
pub(super) fn answer(value: &AtomicU64, now: u64, question: Option<u64>) -> bool {
    let answer = |before: u64| {
        let asked = question.is_none_or(|question| (question ^ before) & QUESTIONS == 0);
        let waits = is_due(before, now) && (before & COUNTS) >> QUESTION > 0;
        (asked && waits).then(|| before - (1 << QUESTION))
    };
    value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, answer).is_ok()
}

/// The number of a datagram whose first fragment was dropped, until `until`.
#[inline]
pub(super) fn dropped_until(until: u64) -> u64 {
    until << COUNT
}
