//! ChaCha20 (RFC 8439 §2.3) on many blocks at a time, and HChaCha20 for key derivation.
//!
//! One of the few modules with `unsafe` code: it calls functions compiled for AVX2 or AVX-512 after detecting these
//! features. The functions themselves are plain loops over lanes, one lane per block, which the compiler vectorises.

/// 256-bit key as little-endian words.
pub(super) type Key = [u32; 8];

/// The string "expand 32-byte k" as words.
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
/// Bytes of a block.
pub(super) const BLOCK: usize = 64;
/// Maximum number of blocks computed at a time.
const WIDE: usize = 16;

/// Instruction set used for the cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instructions {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Any,
}

/// ChaCha20 in the variant for this processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChaCha20 {
    instructions: Instructions,
}

impl ChaCha20 {
    /// Returns the fastest variant that the processor supports.
    pub(super) fn detect() -> ChaCha20 {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") {
            let instructions = Instructions::Avx512;
            return ChaCha20 { instructions };
        } else if std::arch::is_x86_feature_detected!("avx2") {
            let instructions = Instructions::Avx2;
            return ChaCha20 { instructions };
        }
        ChaCha20::portable()
    }

    /// Returns the variant without special instructions.
    pub(super) fn portable() -> ChaCha20 {
        let instructions = Instructions::Any;
        ChaCha20 { instructions }
    }

    /// XORs `data` with the key stream from byte `position` on. `nonce` is the last two words of the state. The two
    /// words before it are a 64-bit block counter. Below 256 GiB this equals RFC 8439 with a nonce whose first word is
    /// zero.
    #[inline]
    pub(super) fn apply(&self, key: &Key, nonce: [u32; 2], position: u64, data: &mut [u8]) {
        let (mut block, within) = (position / BLOCK as u64, (position % BLOCK as u64) as usize);
        // Only the first block may begin in its middle.
        let mut skip = within;
        let mut data = data;
        while !data.is_empty() {
            let mut stream = [0u8; WIDE * BLOCK];
            let blocks = (skip + data.len()).div_ceil(BLOCK).min(WIDE);
            self.blocks(key, nonce, block, blocks, &mut stream);
            let length = data.len().min(blocks * BLOCK - skip);
            let (now, rest) = data.split_at_mut(length);
            for (byte, key) in now.iter_mut().zip(&stream[skip..]) {
                *byte ^= key;
            }
            data = rest;
            block = block.wrapping_add(blocks as u64);
            skip = 0;
        }
    }

    /// Writes `count` blocks of the key stream from `block` on. May write more blocks.
    #[inline]
    fn blocks(&self, key: &Key, nonce: [u32; 2], block: u64, count: usize, stream: &mut [u8; WIDE * BLOCK]) {
        match self.instructions {
            // SAFETY: `detect` has found AVX-512F on this processor.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => unsafe { blocks_avx512(key, nonce, block, count, stream) },
            // SAFETY: `detect` has found AVX2 on this processor.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { blocks_avx2(key, nonce, block, count, stream) },
            Instructions::Any => blocks_any(key, nonce, block, count, stream),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn blocks_avx512(key: &Key, nonce: [u32; 2], block: u64, count: usize, stream: &mut [u8; WIDE * BLOCK]) {
    match count {
        0..=4 => lanes::<4>(key, nonce, block, stream),
        5..=8 => lanes::<8>(key, nonce, block, stream),
        _ => lanes::<16>(key, nonce, block, stream),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn blocks_avx2(key: &Key, nonce: [u32; 2], block: u64, count: usize, stream: &mut [u8; WIDE * BLOCK]) {
    match count {
        0..=4 => lanes::<4>(key, nonce, block, stream),
        5..=8 => lanes::<8>(key, nonce, block, stream),
        _ => {
            lanes::<8>(key, nonce, block, stream);
            lanes::<8>(key, nonce, block.wrapping_add(8), &mut stream[8 * BLOCK..]);
        }
    }
}

fn blocks_any(key: &Key, nonce: [u32; 2], block: u64, count: usize, stream: &mut [u8; WIDE * BLOCK]) {
    for first in (0..count).step_by(4) {
        let block = block.wrapping_add(first as u64);
        lanes::<4>(key, nonce, block, &mut stream[first * BLOCK..]);
    }
}

/// Computes `LANES` blocks. `state[w]` holds word `w` of all blocks.
#[inline(always)]
fn lanes<const LANES: usize>(key: &Key, nonce: [u32; 2], block: u64, stream: &mut [u8]) {
    let mut start = [[0u32; LANES]; 16];
    for (words, constant) in start.iter_mut().zip(CONSTANTS.iter().chain(key)) {
        *words = [*constant; LANES];
    }
    let counters: [u64; LANES] = std::array::from_fn(|lane| block.wrapping_add(lane as u64));
    start[12] = counters.map(|counter| counter as u32);
    start[13] = counters.map(|counter| (counter >> 32) as u32);
    start[14] = [nonce[0]; LANES];
    start[15] = [nonce[1]; LANES];
    let mut state = start;
    rounds(&mut state);
    for (words, start) in state.iter_mut().zip(&start) {
        for (word, start) in words.iter_mut().zip(start) {
            *word = word.wrapping_add(*start);
        }
    }
    let (blocks, _) = stream.as_chunks_mut::<BLOCK>();
    for (lane, out) in blocks.iter_mut().take(LANES).enumerate() {
        let (words, _) = out.as_chunks_mut::<4>();
        for (out, words) in words.iter_mut().zip(&state) {
            *out = words[lane].to_le_bytes();
        }
    }
}

/// Runs ten double rounds, each a column round and a diagonal round (RFC 8439 §2.3).
#[inline(always)]
fn rounds<const LANES: usize>(state: &mut [[u32; LANES]; 16]) {
    for _ in 0..10 {
        quarter(state, 0, 4, 8, 12);
        quarter(state, 1, 5, 9, 13);
        quarter(state, 2, 6, 10, 14);
        quarter(state, 3, 7, 11, 15);
        quarter(state, 0, 5, 10, 15);
        quarter(state, 1, 6, 11, 12);
        quarter(state, 2, 7, 8, 13);
        quarter(state, 3, 4, 9, 14);
    }
}

/// Runs the quarter round (RFC 8439 §2.1) in all lanes.
#[inline(always)]
fn quarter<const LANES: usize>(state: &mut [[u32; LANES]; 16], a: usize, b: usize, c: usize, d: usize) {
    for (sum, with, turned, by) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
        // Indexed, because `sum` and `turned` are rows of one array.
        #[expect(clippy::needless_range_loop)]
        for lane in 0..LANES {
            state[sum][lane] = state[sum][lane].wrapping_add(state[with][lane]);
            state[turned][lane] = (state[turned][lane] ^ state[sum][lane]).rotate_left(by);
        }
    }
}

/// HChaCha20 (draft-irtf-cfrg-xchacha §2.2), a pseudorandom function: derives a key from a key and 16 bytes.
pub(super) fn derive(key: &Key, input: [u8; 16]) -> Key {
    let mut state = [[0u32; 1]; 16];
    let (input, _) = input.as_chunks::<4>();
    let input = input.iter().map(|bytes| u32::from_le_bytes(*bytes));
    let words = CONSTANTS.into_iter().chain(*key).chain(input);
    for (word, value) in state.iter_mut().zip(words) {
        *word = [value];
    }
    rounds(&mut state);
    let mut derived = [0; 8];
    let ends = state[..4].iter().chain(&state[12..]);
    for (word, [value]) in derived.iter_mut().zip(ends) {
        *word = *value;
    }
    derived
}

/// Converts the 32 bytes of a key.
pub(super) fn key_of(bytes: &[u8; 32]) -> Key {
    let mut key = [0; 8];
    let (words, _) = bytes.as_chunks::<4>();
    for (word, bytes) in key.iter_mut().zip(words) {
        *word = u32::from_le_bytes(*bytes);
    }
    key
}
