//! Times in which packets were buffered while their RSS bucket migrated.

use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};

/// Time span in which packets were buffered during the last move of each bucket. Shared by all workers, since a packet
/// may be processed on any of them. Only the bucket's new owner writes.
#[derive(Debug)]
pub(crate) struct BufferedSpans(Box<[Span; BUCKETS]>);

/// Nanoseconds on the run's clock. A reader that sees only one of the two updated may at worst attribute a late packet
/// to the wrong cause.
#[derive(Debug)]
struct Span {
    /// Time at which the first packet was buffered.
    since: AtomicU64,
    /// Time at which the last buffered packet continued, or [`u64::MAX`] while the bucket migrates.
    until: AtomicU64,
}

impl Default for BufferedSpans {
    fn default() -> Self {
        BufferedSpans(Box::new(std::array::from_fn(|_| Span {
            since: AtomicU64::new(0),
            until: AtomicU64::new(0),
        })))
    }
}

impl BufferedSpans {
    /// Records that a packet of the bucket is buffered.
    pub(super) fn start(&self, bucket: u16, now: Nanos) {
        let span = &self.0[usize::from(bucket)];
        if span.until.load(Ordering::Relaxed) != u64::MAX {
            span.since.store(now.0, Ordering::Relaxed);
            span.until.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Records that a buffered packet of the bucket, which has arrived, continues.
    pub(super) fn end(&self, bucket: u16, now: Nanos) {
        let span = &self.0[usize::from(bucket)];
        span.until.store(now.0, Ordering::Relaxed);
    }

    /// Time for which a packet was buffered that arrived at `arrival` and was done at `sent`.
    pub(crate) fn of(&self, rss_hash: u32, arrival: Nanos, sent: Nanos) -> Nanos {
        let span = &self.0[usize::from(bucket_of(rss_hash))];
        let since = Nanos(span.since.load(Ordering::Relaxed));
        let until = Nanos(span.until.load(Ordering::Relaxed));
        until.min(sent).saturating_sub(since.max(arrival))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_kept_back_until_the_last_one_is_gone_on_with() {
        let kept = BufferedSpans::default();
        let of = |arrival, sent| kept.of(3, Nanos(arrival), Nanos(sent)).0;
        assert_eq!(of(10, 20), 0, "no move yet");
        kept.start(3, Nanos(100));
        kept.start(3, Nanos(130));
        // Until the bucket arrives, the end is unknown.
        assert_eq!([of(90, 150), of(120, 150)], [50, 30]);
        kept.end(3, Nanos(180));
        kept.end(3, Nanos(200));
        assert_eq!([of(90, 250), of(120, 250), of(200, 250)], [100, 80, 0]);
        kept.start(3, Nanos(500));
        assert_eq!([of(210, 600), of(550, 600)], [100, 50], "the next move");
        assert_eq!(kept.of(4, Nanos(90), Nanos(600)), Nanos::ZERO);
    }
}
