//! Checksum of restored content, and fingerprints.

/// Odd constants without pattern: the fractions of the golden ratio and of the square roots of 2, 3 and 5.
const KEYS: [u64; 4] = [
    0x9e37_79b9_7f4a_7c15,
    0x6a09_e667_f3bc_c909,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
];
const WORD: usize = 8;
/// Bytes mixed at a time.
const BLOCK: usize = 4 * 2 * WORD;

/// Returns the exclusive or of the product's halves.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[inline]
fn word(bytes: &[u8; WORD]) -> u64 {
    u64::from_le_bytes(*bytes)
}

/// Returns a checksum of an epoch's content at a line. It detects accidental errors, not forgeries: it has no secret.
#[inline]
pub(super) fn checksum(content: &[u8], epoch: u32, line: u32) -> u32 {
    let start = u64::from(epoch) << 32 | u64::from(line);
    let mut lanes = KEYS.map(|key| key ^ start);
    let (blocks, rest) = content.as_chunks::<BLOCK>();
    for block in blocks {
        mix(&mut lanes, block);
    }
    let mut last = [0; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    mix(&mut lanes, &last);
    let [a, b, c, d] = lanes;
    // The length distinguishes content with trailing zeros from content without.
    let all = fold(a ^ content.len() as u64, KEYS[1] ^ b) ^ fold(c ^ KEYS[2], d ^ KEYS[3]);
    fold(all, KEYS[0]) as u32
}

#[inline]
fn mix(lanes: &mut [u64; 4], block: &[u8; BLOCK]) {
    let (words, _) = block.as_chunks::<WORD>();
    for (lane, pair) in lanes.iter_mut().zip(words.as_chunks::<2>().0) {
        *lane = fold(*lane ^ word(&pair[0]), word(&pair[1]) ^ KEYS[0]).wrapping_add(KEYS[1]);
    }
}

/// Returns the fingerprint of a window. Its high bits are the best mixed.
#[inline]
pub(super) fn fingerprint(window: &[u8; super::WINDOW]) -> u64 {
    let (words, _) = window.as_chunks::<WORD>();
    let mut all = 0;
    for (pair, key) in words.as_chunks::<2>().0.iter().zip(KEYS) {
        all ^= fold(word(&pair[0]) ^ key, word(&pair[1]) ^ key.rotate_left(32));
    }
    all.wrapping_mul(KEYS[0])
}
