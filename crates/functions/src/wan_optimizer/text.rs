//! Lengths of common prefixes and suffixes.

const WORD: usize = 8;

/// Returns the number of equal bytes at the start.
#[inline]
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let length = a.len().min(b.len());
    let (a, b) = (&a[..length], &b[..length]);
    let words = a.as_chunks::<WORD>().0.iter().zip(b.as_chunks::<WORD>().0);
    for (at, (a, b)) in words.enumerate() {
        let differ = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differ != 0 {
            return at * WORD + (differ.trailing_zeros() / 8) as usize;
        }
    }
    let whole = length / WORD * WORD;
    let rest = a[whole..].iter().zip(&b[whole..]);
    whole + rest.take_while(|(a, b)| a == b).count()
}

/// Returns the number of equal bytes at the end.
#[inline]
pub(super) fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let length = a.len().min(b.len());
    let (a, b) = (&a[a.len() - length..], &b[b.len() - length..]);
    let words = a.as_rchunks::<WORD>().1.iter().rev();
    let words = words.zip(b.as_rchunks::<WORD>().1.iter().rev());
    for (at, (a, b)) in words.enumerate() {
        let differ = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differ != 0 {
            return at * WORD + (differ.leading_zeros() / 8) as usize;
        }
    }
    let rest = length % WORD;
    let bytes = a[..rest].iter().rev().zip(b[..rest].iter().rev());
    length - rest + bytes.take_while(|(a, b)| a == b).count()
}
