//! Coarse duration histogram: 252 counters, four per octave, for any range.

use tailwater_net::Nanos;

/// Number of quarter-octave counters.
pub const QUARTERS: usize = 4 * 63;

/// Index of a duration's quarter octave: less than [`QUARTERS`].
#[inline]
pub fn quarter(duration: Nanos) -> usize {
    let nanos = duration.0;
    match nanos.checked_ilog2() {
        Some(octave @ 2..) => (octave as usize - 1) * 4 + (nanos >> (octave - 2) & 3) as usize,
        _ => nanos as usize,
    }
}

/// Shortest duration of a quarter octave, or the maximum beyond the last one.
fn first_of(quarter: usize) -> u64 {
    match quarter {
        0..4 => quarter as u64,
        QUARTERS.. => u64::MAX,
        _ => (4 + quarter as u64 % 4) << (quarter / 4 - 1),
    }
}

/// 99th percentile of durations counted by quarter octave, rounded to a quarter octave. Zero if there are none.
pub fn p99(counts: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + Clone) -> Nanos {
    let above = counts.clone().sum::<u64>() / 100;
    let mut seen = 0;
    for (quarter, count) in counts.enumerate().rev() {
        seen += count;
        if seen > above {
            return Nanos(first_of(quarter + 1) - 1);
        }
    }
    Nanos::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_of_octaves_cover_all_durations() {
        let mut next = 0;
        for step in 0..QUARTERS {
            assert_eq!(first_of(step), next);
            assert_eq!(quarter(Nanos(next)), step);
            next = first_of(step + 1);
            assert_eq!(quarter(Nanos(next - 1)), step);
        }
        assert_eq!(quarter(Nanos::MAX), QUARTERS - 1);
    }

    #[test]
    fn a_percentile_is_the_end_of_its_quarter() {
        assert_eq!(p99([0; QUARTERS].into_iter()), Nanos::ZERO);
        let mut counts = [0; QUARTERS];
        counts[quarter(Nanos(100))] = 99;
        counts[quarter(Nanos(5000))] = 1;
        assert_eq!(p99(counts.into_iter()), Nanos(111));
        counts[quarter(Nanos(5000))] = 2;
        assert_eq!(p99(counts.into_iter()), Nanos(5119));
    }
}
