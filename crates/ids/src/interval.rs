//! Sets of numbers (addresses, ports) as sorted intervals.

/// Element type of intervals.
pub trait Number: Copy + Ord {
    /// Smallest number.
    const LEAST: Self;
    /// Largest number.
    const MOST: Self;
    /// Returns the next number, or `None` after the largest.
    fn after(self) -> Option<Self>;
    /// Returns the previous number, or `None` before the smallest.
    fn before(self) -> Option<Self>;
}

macro_rules! numbers {
    ($($type:ty),+) => {$(
        impl Number for $type {
            const LEAST: Self = <$type>::MIN;
            const MOST: Self = <$type>::MAX;
            fn after(self) -> Option<Self> {
                self.checked_add(1)
            }
            fn before(self) -> Option<Self> {
                self.checked_sub(1)
            }
        }
    )+};
}

numbers!(u16, u32, u128);

/// Set of numbers as sorted inclusive intervals that neither overlap nor touch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Intervals<T> {
    of: Vec<(T, T)>,
}

impl<T: Number> Intervals<T> {
    /// Returns the empty set.
    pub fn none() -> Self {
        Intervals { of: Vec::new() }
    }

    /// Returns the set of all numbers.
    pub fn all() -> Self {
        Intervals {
            of: vec![(T::LEAST, T::MOST)],
        }
    }

    /// Returns the numbers from `first` to `last`, both included; empty if `first` exceeds `last`.
    pub fn from_to(first: T, last: T) -> Self {
        match first <= last {
            true => Intervals {
                of: vec![(first, last)],
            },
            false => Intervals::none(),
        }
    }

    /// Returns the intervals.
    pub fn intervals(&self) -> &[(T, T)] {
        &self.of
    }

    /// Returns `true` if the set contains every number.
    pub fn is_all(&self) -> bool {
        self.of == [(T::LEAST, T::MOST)]
    }

    /// Returns `true` if the set is empty.
    pub fn is_none(&self) -> bool {
        self.of.is_empty()
    }

    /// Returns `true` if the set contains a number.
    #[inline]
    pub fn contains(&self, number: T) -> bool {
        if let [(first, last)] = self.of[..] {
            return first <= number && number <= last;
        }
        let behind = self.of.partition_point(|(first, _)| *first <= number);
        behind > 0 && number <= self.of[behind - 1].1
    }

    /// Adds the numbers of another set.
    pub fn add(&mut self, other: &Intervals<T>) {
        self.of.extend_from_slice(&other.of);
        self.of.sort_unstable();
        let mut joined: Vec<(T, T)> = Vec::with_capacity(self.of.len());
        for &(first, last) in &self.of {
            match joined.last_mut() {
                Some(before) if before.1.after().is_none_or(|next| first <= next) => {
                    before.1 = before.1.max(last);
                }
                _ => joined.push((first, last)),
            }
        }
        self.of = joined;
    }

    /// Returns the complement.
    pub fn complement(&self) -> Intervals<T> {
        let mut others = Vec::with_capacity(self.of.len() + 1);
        let mut from = Some(T::LEAST);
        for &(first, last) in &self.of {
            if let (Some(from), Some(to)) = (from, first.before())
                && from <= to
            {
                others.push((from, to));
            }
            from = last.after();
        }
        if let Some(from) = from {
            others.push((from, T::MOST));
        }
        Intervals { of: others }
    }

    /// Subtracts another set.
    pub fn remove(&mut self, other: &Intervals<T>) {
        // `a - b` is the complement of `complement(a) + b`.
        let mut gone = self.complement();
        gone.add(other);
        *self = gone.complement();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(pairs: &[(u16, u16)]) -> Intervals<u16> {
        let mut set = Intervals::none();
        for &(a, b) in pairs {
            set.add(&Intervals::from_to(a.min(b), a.max(b)));
        }
        set
    }

    proptest! {
        /// Compared with bit sets. Interval ends near the limits are frequent.
        #[test]
        fn intervals_are_sets(
            a in prop::collection::vec((prop_oneof![0u16..40, 65_500..=65_535u16], prop_oneof![0u16..40, 65_500..=65_535u16]), 0..6),
            b in prop::collection::vec((prop_oneof![0u16..40, 65_500..=65_535u16], prop_oneof![0u16..40, 65_500..=65_535u16]), 0..6),
        ) {
            let inside = |pairs: &[(u16, u16)], n: u16| pairs.iter().any(|&(x, y)| x.min(y) <= n && n <= x.max(y));
            let (left, right) = (set(&a), set(&b));
            let mut less = left.clone();
            less.remove(&right);
            for n in (0..60).chain(65_480..=65_535) {
                prop_assert_eq!(left.contains(n), inside(&a, n));
                prop_assert_eq!(left.complement().contains(n), !inside(&a, n));
                prop_assert_eq!(less.contains(n), inside(&a, n) && !inside(&b, n));
            }
            for pair in left.intervals().windows(2) {
                prop_assert!(pair[0].1 + 1 < pair[1].0);
            }
        }
    }
}
