//! Huffman code of HPACK (RFC 7541 Appendix B). The code is canonical: lengths determine it.

use super::Unreadable;

/// End of a string, which must not occur in one.
const END: u16 = 256;
/// Number of symbols.
const SYMBOLS: usize = 257;
/// Shortest and longest code, in bits.
const SHORTEST: u32 = 5;
const LONGEST: u32 = 30;

/// Length of each symbol's code, in bits.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

/// Codes by length.
struct Codes {
    /// First code of each length, and the one after the last.
    ranges: [[u32; 2]; LONGEST as usize + 1],
    /// Index of each length's first symbol.
    firsts: [usize; LONGEST as usize + 1],
    /// Symbols by length, then by value.
    symbols: [u16; SYMBOLS],
}

const CODES: Codes = {
    let mut codes = Codes {
        ranges: [[0; 2]; LONGEST as usize + 1],
        firsts: [0; LONGEST as usize + 1],
        symbols: [0; SYMBOLS],
    };
    let (mut code, mut count, mut length) = (0u32, 0, 1);
    while length <= LONGEST as usize {
        code <<= 1;
        codes.ranges[length][0] = code;
        codes.firsts[length] = count;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                codes.symbols[count] = symbol as u16;
                code += 1;
                count += 1;
            }
            symbol += 1;
        }
        codes.ranges[length][1] = code;
        length += 1;
    }
    // The code is complete.
    assert!(code == 1 << LONGEST && count == SYMBOLS);
    codes
};

/// Appends the decoded bytes to a text.
///
/// # Errors
/// The bytes are not in this code.
pub fn decode(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Unreadable> {
    static TABLE: Codes = CODES;
    let mut input = bytes.iter();
    let (mut bits, mut count) = (0u64, 0u32);
    'symbols: loop {
        while count <= 56
            && let Some(byte) = input.next()
        {
            bits = bits << 8 | u64::from(*byte);
            count += 8;
        }
        for length in SHORTEST..=LONGEST.min(count) {
            let code = (bits >> (count - length)) as u32 & ((1 << length) - 1);
            let [first, end] = TABLE.ranges[length as usize];
            if code < end {
                let symbol = TABLE.symbols[TABLE.firsts[length as usize] + (code - first) as usize];
                if symbol == END {
                    return Err(Unreadable::Malformed);
                }
                out.push(symbol as u8);
                count -= length;
                continue 'symbols;
            }
        }
        // Fewer than eight bits of the end's code fill the last byte.
        let rest = (1u64 << count) - 1;
        return match count < 8 && bits & rest == rest {
            true => Ok(()),
            false => Err(Unreadable::Malformed),
        };
    }
}

/// Appends bytes in this code to a text, for tests.
#[cfg(test)]
pub(crate) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut count) = (0u64, 0u32);
    for byte in bytes {
        let length = u32::from(LENGTHS[usize::from(*byte)]);
        let rank = LENGTHS[..usize::from(*byte)].iter();
        let rank = rank.filter(|known| u32::from(**known) == length).count() as u64;
        bits = bits << length | (u64::from(CODES.ranges[length as usize][0]) + rank);
        count += length;
        while count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        out.push((bits << (8 - count)) as u8 | (0xff >> count));
    }
}
