//! Time types. No bare integer crosses a crate border as a time.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// Duration or instant in nanoseconds. The origin of an instant is documented where it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Zero nanoseconds.
    pub const ZERO: Nanos = Nanos(0);
    /// Largest representable instant, 584 years from zero.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// `us` microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Nanos(us * 1_000)
    }

    /// `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Nanos(ms * 1_000_000)
    }

    /// `s` seconds.
    pub const fn from_secs(s: u64) -> Self {
        Nanos(s * 1_000_000_000)
    }

    /// `s` seconds, rounded to the nearest nanosecond; zero for negative numbers and NaN.
    pub fn from_secs_f64(s: f64) -> Self {
        Nanos((s * 1e9).round() as u64)
    }

    /// Returns the time in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the time in microseconds.
    pub fn as_micros_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// Returns `self - other`, or zero if `other` is later.
    pub const fn saturating_sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0 + other.0)
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        self.0 += other.0;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        Nanos(self.0 - other.0)
    }
}

impl SubAssign for Nanos {
    fn sub_assign(&mut self, other: Nanos) {
        self.0 -= other.0;
    }
}

/// Formats the time with a fitting unit: `850ns`, `12.5us`, `200us`, `1.5ms`, `3s`.
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            n if n < 1_000 => (n as f64, "ns"),
            n if n < 1_000_000 => (n as f64 / 1e3, "us"),
            n if n < 1_000_000_000 => (n as f64 / 1e6, "ms"),
            n => (n as f64 / 1e9, "s"),
        };
        // At most three decimals, without trailing zeros.
        let text = format!("{value:.3}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        write!(f, "{text}{unit}")
    }
}

/// Duration in ticks of the processor's time-stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Cycles(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_picks_the_unit() {
        for (ns, text) in [
            (0, "0ns"),
            (850, "850ns"),
            (12_500, "12.5us"),
            (200_000, "200us"),
            (1_500_000, "1.5ms"),
            (3_000_000_000, "3s"),
        ] {
            assert_eq!(Nanos(ns).to_string(), text);
        }
    }
}
