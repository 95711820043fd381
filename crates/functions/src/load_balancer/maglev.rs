//! Look-up table of Maglev §3.4: backends claim entries in turns, each in its own order.

/// The paper's small table size. Its imbalance is below 1 % up to 655 backends.
pub const DEFAULT_TABLE_SIZE: u32 = 65_537;

/// A backend's parameters for filling a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// First entry of the backend's order, below the table size.
    pub(super) offset: u32,
    /// Step between entries of its order, from 1 to the table size minus 1.
    pub(super) skip: u32,
    /// Relative share of entries, not zero.
    pub(super) weight: u32,
}

impl Candidate {
    /// Derives the order from the backend's name. Two different hashes are used, so that backends with the same offset
    /// continue differently.
    pub(super) fn new(name: &[u8], weight: u32, size: u32) -> Candidate {
        Candidate {
            offset: (hash(name, 0x6f66_6673_6574) % u64::from(size)) as u32,
            skip: (hash(name, 0x736b_6970) % u64::from(size - 1)) as u32 + 1,
            weight,
        }
    }
}

/// Returns the candidate's index for each of `size` entries (a prime); empty without candidates.
///
/// With equal weights this is the paper's algorithm. Otherwise a candidate takes a turn only in the fraction of rounds
/// given by its weight over the largest weight.
pub(super) fn populate(size: u32, candidates: &[Candidate]) -> Vec<u16> {
    const FREE: u16 = u16::MAX;
    let Some(largest) = candidates.iter().map(|candidate| candidate.weight).max() else {
        return Vec::new();
    };
    let mut table = vec![FREE; size as usize];
    let mut cursors: Vec<u32> = candidates.iter().map(|candidate| candidate.offset).collect();
    let mut credits = vec![0u64; candidates.len()];
    let mut free = size;
    loop {
        for (i, candidate) in candidates.iter().enumerate() {
            credits[i] += u64::from(candidate.weight);
            if credits[i] < u64::from(largest) {
                continue;
            }
            credits[i] -= u64::from(largest);
            // The skip is coprime to the size, so the walk visits every entry, one of which is free.
            let mut place = cursors[i];
            while table[place as usize] != FREE {
                place = step(place, candidate.skip, size);
            }
            table[place as usize] = i as u16;
            cursors[i] = step(place, candidate.skip, size);
            free -= 1;
            if free == 0 {
                return table;
            }
        }
    }
}

#[inline]
fn step(place: u32, skip: u32, size: u32) -> u32 {
    let next = place + skip;
    if next >= size { next - size } else { next }
}

/// Returns `true` if a number is prime, by trial division: table sizes are small.
pub fn is_prime(number: u32) -> bool {
    number >= 2
        && (2..)
            .take_while(|divisor| divisor * divisor <= number)
            .all(|divisor| !number.is_multiple_of(divisor))
}

/// FNV-1a mixed by SplitMix64's finaliser. The same on every machine, so that all balancers build the same table.
fn hash(bytes: &[u8], seed: u64) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed;
    let mut x = bytes.iter().fold(start, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
