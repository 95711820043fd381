//! Tests of fingerprint selection, checksums and comparisons.

use super::super::checksum::{checksum, fingerprint};
use super::super::text::{common_prefix, common_suffix};
use super::super::{Fingerprints, Sampling, WINDOW};
use super::Chance;
use proptest::prelude::*;

fn places(fingerprints: Fingerprints, content: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    fingerprints.sample(content, |at, window| {
        assert_eq!(window, &content[at..at + WINDOW]);
        places.push(at);
    });
    places
}

fn both(period: u16) -> [Fingerprints; 2] {
    [Sampling::SampleByte, Sampling::MaxP].map(|sampling| Fingerprints { sampling, period })
}

/// Reference implementation of local maxima.
fn maxima(content: &[u8], half: usize) -> Vec<usize> {
    let value = |at: usize| {
        let second = content.get(at + 1).copied().unwrap_or(0);
        u32::from(content[at]) << 8 | u32::from(second)
    };
    let (mut found, mut next) = (Vec::new(), 0);
    for at in 0..content.len() {
        let left = at.saturating_sub(half)..at;
        let right = at + 1..(at + half + 1).min(content.len());
        let highest = left.into_iter().all(|other| value(other) < value(at))
            && right.into_iter().all(|other| value(other) <= value(at));
        if highest && at >= next && at + WINDOW <= content.len() {
            found.push(at);
            next = at + half;
        }
    }
    found
}

proptest! {
    #[test]
    fn maxima_are_maxima(
        // Few values, so that many are equal.
        content in prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..400), period in 16u16..=128,
    ) {
        let max_p = Fingerprints { sampling: Sampling::MaxP, period };
        prop_assert_eq!(places(max_p, &content), maxima(&content, usize::from(period / 2)));
    }

    #[test]
    fn bytes_are_compared_from_either_end(
        a in prop::collection::vec(0u8..2, 0..80), b in prop::collection::vec(0u8..2, 0..80), same in 0usize..80,
    ) {
        let mut b = b;
        let n = same.min(a.len()).min(b.len());
        b[..n].copy_from_slice(&a[..n]);
        let prefix = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        prop_assert_eq!(common_prefix(&a, &b), prefix);
        let (a, b): (Vec<u8>, Vec<u8>) = (a.into_iter().rev().collect(), b.into_iter().rev().collect());
        prop_assert_eq!(common_suffix(&a, &b), prefix);
    }
}

/// About one position per period is selected, never closer than half a period, and the same ones at another offset.
#[test]
fn places_are_the_contents() {
    let mut chance = Chance(1);
    let content = chance.bytes(100_000);
    for period in [16, 32, 128] {
        for fingerprints in both(period) {
            let found = places(fingerprints, &content);
            let half = usize::from(period / 2);
            assert!(found.windows(2).all(|pair| pair[1] - pair[0] >= half));
            assert!(found.len() < fingerprints.most(content.len()));
            let least = match fingerprints.sampling {
                Sampling::MaxP => content.len() / usize::from(period) / 2,
                // One byte in 32 is a marker, whatever the period.
                Sampling::SampleByte => content.len() / (32 + usize::from(period / 2)) * 9 / 10,
            };
            assert!(found.len() > least, "{fingerprints:?} {}", found.len());
            let mut moved = chance.bytes(777);
            moved.extend(&content);
            let moved = places(fingerprints, &moved);
            let again = found.iter().filter(|at| moved.binary_search(&(*at + 777)).is_ok());
            assert!(again.count() * 10 > found.len() * 9, "{fingerprints:?}");
        }
    }
}

/// A run of zeros has fingerprints, since it is the most frequent repetition.
#[test]
fn content_of_one_value_costs_little() {
    let zeros = vec![0; 1500];
    let [sample_byte, max_p] = both(32);
    assert_eq!(places(sample_byte, &zeros).len(), (1500 - WINDOW) / 16 + 1);
    assert_eq!(places(max_p, &zeros), [0]);
    for short in 0..WINDOW {
        assert!(places(sample_byte, &zeros[..short]).is_empty());
    }
}

/// The checksum depends on each bit of the content, its length and its position.
#[test]
fn checksums_tell_content_apart() {
    let mut chance = Chance(2);
    let content = chance.bytes(300);
    let mut seen: Vec<u32> = vec![
        checksum(&content, 1, 1),
        checksum(&content, 2, 1),
        checksum(&content, 1, 2),
    ];
    for bit in 0..content.len() * 8 {
        let mut other = content.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        seen.push(checksum(&other, 1, 1));
    }
    for length in 0..content.len() {
        seen.push(checksum(&content[..length], 1, 1));
        // A prefix padded with zeros differs from the prefix.
        let padded = [&content[..length], &[0]].concat();
        seen.push(checksum(&padded, 1, 1));
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert!(count - seen.len() <= 1, "{} of {count} are alike", count - seen.len());
    // Values of an independent implementation: two ends must agree whatever their versions.
    assert_eq!(checksum(b"", 0, 0), KNOWN[0]);
    assert_eq!(checksum(b"what goes over the link", 7, 9), KNOWN[1]);
    assert_eq!(checksum(&[0xa5; 200], u32::MAX, u32::MAX), KNOWN[2]);
}

const KNOWN: [u32; 3] = [0x3450_e18f, 0x433b_4dd9, 0x1721_60ab];

/// High bits of fingerprints spread over a table.
#[test]
fn fingerprints_spread() {
    let mut slots = vec![0u32; 1 << 10];
    for i in 0..1u32 << 14 {
        let mut window = [b'a'; WINDOW];
        window[(i % 29) as usize..][..4].copy_from_slice(&i.to_le_bytes());
        slots[(fingerprint(&window) >> 54) as usize] += 1;
    }
    assert!(slots.iter().all(|count| (1..64).contains(count)), "{slots:?}");
}
