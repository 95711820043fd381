//! Alert thresholds: match counts by rule and address, shared by all workers.
//!
//! The table holds single words without locks: a fingerprint of the counted key, the start time, and the count. It is
//! accessed only when a rule has matched. In a full set the count with the earliest start is evicted.

use crate::rule::{Threshold, ThresholdKind, Track};
use std::fmt::Debug;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_net::{FlowKey, Nanos};

/// Words per set: one cache line.
const WAYS: usize = 8;
const SETS: usize = 1 << 13;
const COUNT_BITS: u32 = 16;
const TIME_BITS: u32 = 24;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const TIME: u64 = (1 << TIME_BITS) - 1;

/// Decision of a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThresholdDecision {
    /// The rule does not take effect.
    No,
    /// The rule takes effect without an alert.
    WithoutAlert,
    /// The rule takes effect with an alert.
    WithAlert,
}

/// Words of counts, which may be memory that processes share.
pub trait CountWords: Deref<Target = [AtomicU64]> + Debug + Send + Sync {}

impl<T: Deref<Target = [AtomicU64]> + Debug + Send + Sync> CountWords for T {}

/// Match counts of all rules.
#[derive(Debug)]
pub struct Thresholds {
    words: Box<dyn CountWords>,
    seed: u64,
}

impl Thresholds {
    /// Creates the table; the secret `seed` determines which counts share a set.
    pub fn new(seed: u64) -> Thresholds {
        let words: Box<[AtomicU64]> = (0..Thresholds::WORDS).map(|_| AtomicU64::new(0)).collect();
        Thresholds::with_words(words, seed)
    }

    /// Number of words of a table.
    pub const WORDS: usize = SETS * WAYS;

    /// Creates the table in these words, [`WORDS`](Thresholds::WORDS) of zeros, best in whole cache lines.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn with_words(words: impl CountWords + 'static, seed: u64) -> Thresholds {
        assert!(words.len() >= Thresholds::WORDS, "words of the whole table");
        let words = Box::new(words);
        Thresholds { words, seed }
    }

    /// Counts a match.
    pub(crate) fn count(
        &self,
        rule: u64,
        threshold: &Threshold,
        [source, destination]: [IpAddr; 2],
        now: Nanos,
    ) -> ThresholdDecision {
        let zero: IpAddr = match source {
            IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let pair = match threshold.track {
            Track::Source => [source, zero],
            Track::Destination => [destination, zero],
            Track::Both => [source, destination],
            Track::Rule => [zero, zero],
        };
        let key = match pair {
            [IpAddr::V4(one), IpAddr::V4(other)] => FlowKey::v4(one, other, 0, 0, 0),
            [IpAddr::V6(one), IpAddr::V6(other)] => FlowKey::v6(one, other, 0, 0, 0),
            // Mixed IP versions cannot come from one packet.
            _ => FlowKey::default(),
        };
        let hash = key.hash(self.seed ^ rule.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let set = hash as usize & (SETS - 1);
        let words = &self.words[set * WAYS..][..WAYS];
        // The highest bit marks a word in use.
        let print = (hash >> (COUNT_BITS + TIME_BITS) | 1 << 23) << (COUNT_BITS + TIME_BITS);
        let seconds = (now.0 / 1_000_000_000) & TIME;
        let age = |word: u64| seconds.wrapping_sub(word >> COUNT_BITS) & TIME;
        loop {
            let same = |word: &&AtomicU64| {
                word.load(Ordering::Relaxed) >> (COUNT_BITS + TIME_BITS) == print >> (COUNT_BITS + TIME_BITS)
            };
            let oldest = |word: &&AtomicU64| match word.load(Ordering::Relaxed) {
                0 => u64::MAX,
                word => age(word),
            };
            let known = words.iter().find(same);
            let Some(word) = known.or_else(|| words.iter().max_by_key(oldest)) else {
                return ThresholdDecision::No;
            };
            let before = word.load(Ordering::Relaxed);
            let goes_on = before >> (COUNT_BITS + TIME_BITS) == print >> (COUNT_BITS + TIME_BITS)
                && age(before) < u64::from(threshold.seconds);
            let (start, count) = match goes_on {
                true => (before >> COUNT_BITS & TIME, before & COUNT),
                false => (seconds, 0),
            };
            let count = (count + 1).min(COUNT);
            let wanted = u64::from(threshold.count);
            let (told, kept) = match threshold.kind {
                ThresholdKind::Limit if count <= wanted => (ThresholdDecision::WithAlert, count),
                ThresholdKind::Limit => (ThresholdDecision::WithoutAlert, count),
                ThresholdKind::Threshold if count >= wanted => (ThresholdDecision::WithAlert, 0),
                ThresholdKind::Threshold => (ThresholdDecision::No, count),
                ThresholdKind::Both if count < wanted => (ThresholdDecision::No, count),
                ThresholdKind::Both if count == wanted => (ThresholdDecision::WithAlert, count),
                ThresholdKind::Both => (ThresholdDecision::WithoutAlert, count),
                ThresholdKind::Filter if count > wanted => (ThresholdDecision::WithAlert, count),
                ThresholdKind::Filter => (ThresholdDecision::No, count),
            };
            let after = print | start << COUNT_BITS | kept;
            let swapped = word.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
            if swapped.is_ok() {
                return told;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(kind: ThresholdKind, times: &[u64]) -> Vec<ThresholdDecision> {
        let table = Thresholds::new(5);
        let threshold = Threshold {
            kind,
            track: Track::Source,
            count: 2,
            seconds: 10,
        };
        let ends = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let count = |second: &u64| table.count(1, &threshold, ends, Nanos::from_secs(*second));
        times.iter().map(count).collect()
    }

    #[test]
    fn each_kind_tells_what_suricata_says() {
        use ThresholdDecision::{No, WithAlert, WithoutAlert};
        let times = [0, 1, 2, 3, 9, 10, 11, 12];
        let kinds = [
            (
                ThresholdKind::Limit,
                [
                    WithAlert,
                    WithAlert,
                    WithoutAlert,
                    WithoutAlert,
                    WithoutAlert,
                    WithAlert,
                    WithAlert,
                    WithoutAlert,
                ],
            ),
            (
                ThresholdKind::Threshold,
                [No, WithAlert, No, WithAlert, No, No, WithAlert, No],
            ),
            (
                ThresholdKind::Both,
                [
                    No,
                    WithAlert,
                    WithoutAlert,
                    WithoutAlert,
                    WithoutAlert,
                    No,
                    WithAlert,
                    WithoutAlert,
                ],
            ),
            (
                ThresholdKind::Filter,
                [No, No, WithAlert, WithAlert, WithAlert, No, No, WithAlert],
            ),
        ];
        for (kind, expected) in kinds {
            assert_eq!(told(kind, &times), expected, "{kind:?}");
        }
    }

    #[test]
    fn what_is_counted_together_is_what_the_rule_says() {
        let table = Thresholds::new(5);
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let first = |track, rule, ends| {
            let threshold = Threshold {
                kind: ThresholdKind::Limit,
                track,
                count: 1,
                seconds: 10,
            };
            table.count(rule, &threshold, ends, Nanos::from_secs(1)) == ThresholdDecision::WithAlert
        };
        assert!(first(Track::Source, 1, [address(1), address(2)]));
        assert!(!first(Track::Source, 1, [address(1), address(3)]));
        assert!(first(Track::Source, 1, [address(2), address(3)]));
        assert!(first(Track::Destination, 2, [address(1), address(2)]));
        assert!(!first(Track::Destination, 2, [address(3), address(2)]));
        assert!(first(Track::Both, 3, [address(1), address(2)]));
        assert!(first(Track::Both, 3, [address(1), address(3)]));
        assert!(first(Track::Rule, 4, [address(1), address(2)]));
        assert!(!first(Track::Rule, 4, [address(3), address(4)]));
        // More keys than there is room for: the newest are counted.
        for i in 0..200_000u32 {
            let many = IpAddr::from(i.to_be_bytes());
            assert!(first(Track::Source, 9, [many, many]));
            assert!(!first(Track::Source, 9, [many, many]));
        }
    }
}
