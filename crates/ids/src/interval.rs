//! Sets of numbers (addresses, ports) as intervals.

/// A number that intervals are of.
pub trait Number: Copy + Ord {
    /// The smallest.
    const LEAST: Self;
    /// The largest.
    const MOST: Self;
    /// The one after; none after the largest.
    fn after(self) -> Option<Self>;
    /// The one in front; none in front of the smallest.
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

/// Numbers, as intervals in order that neither overlap nor touch; both ends are of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Intervals<T> {
    of: Vec<(T, T)>,
}

impl<T: Number> Intervals<T> {
    /// No number.
    pub fn none() -> Self {
        Intervals { of: Vec::new() }
    }

    /// Every number.
    pub fn all() -> Self {
        Intervals {
            of: vec![(T::LEAST, T::MOST)],
        }
    }

    /// The numbers from one to another, both included; none if they are the wrong way round.
    pub fn from_to(first: T, last: T) -> Self {
        match first <= last {
            true => Intervals {
                of: vec![(first, last)],
            },
            false => Intervals::none(),
        }
    }

    /// The intervals.
    pub fn intervals(&self) -> &[(T, T)] {
        &self.of
    }

    /// Whether every number is in it.
    pub fn is_all(&self) -> bool {
        self.of == [(T::LEAST, T::MOST)]
    }

    /// Whether no number is in it.
    pub fn is_none(&self) -> bool {
        self.of.is_empty()
    }

    /// Whether a number is in it.
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

    /// All numbers that are not in it.
    pub fn others(&self) -> Intervals<T> {
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

    /// Takes the numbers of another set away.
    pub fn remove(&mut self, other: &Intervals<T>) {
        // What is in one and not in the other is what is neither outside of the one nor in the other.
        let mut gone = self.others();
        gone.add(other);
        *self = gone.others();
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
        /// Beside sets with a place for every number. Ends of the range come up often.
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
                prop_assert_eq!(left.others().contains(n), !inside(&a, n));
                prop_assert_eq!(less.contains(n), inside(&a, n) && !inside(&b, n));
            }
            for pair in left.intervals().windows(2) {
                prop_assert!(pair[0].1 + 1 < pair[1].0);
            }
        }
    }
}
