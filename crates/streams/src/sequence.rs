//! Arithmetic on TCP sequence numbers, which wrap (RFC 9293 §3.4).

/// Returns how far `a` lies after `b` in sequence space; negative if before.
#[inline]
pub fn distance(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}
