//! Sign test: whether the differences of pairs have one sign more often than chance explains.

/// Pairs by the sign of their difference, where lower values are better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignTest {
    /// Pairs in which the value is below the reference.
    pub better: u64,
    /// Pairs in which the value is above the reference.
    pub worse: u64,
    /// Pairs of equal values. They do not count in the test.
    pub equal: u64,
}

impl SignTest {
    /// Counts pairs of a value and its reference.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> SignTest {
        let mut counts = SignTest::default();
        for (value, reference) in pairs {
            counts.add(value, reference);
        }
        counts
    }

    /// Adds the counts of another test.
    pub fn merge(&mut self, other: SignTest) {
        self.better += other.better;
        self.worse += other.worse;
        self.equal += other.equal;
    }

    /// Two-sided p-value, exact: the probability of a split at least as uneven if both signs are equally likely. 1
    /// without unequal pairs.
    pub fn p_value(&self) -> f64 {
        let pairs = self.better + self.worse;
        let fewer = self.better.min(self.worse);
        // Logarithms, because 2^-n underflows and binomial coefficients overflow for a thousand pairs.
        let mut log_term = -(pairs as f64) * std::f64::consts::LN_2;
        let mut tail = log_term.exp();
        for i in 0..fewer {
            log_term += ((pairs - i) as f64 / (i + 1) as f64).ln();
            tail += log_term.exp();
        }
        (2.0 * tail).min(1.0)
    }

    /// Returns `true` if more pairs are worse than better, and chance explains that with a probability below
    /// `significance`.
    pub fn is_worse(&self, significance: f64) -> bool {
        self.worse > self.better && self.p_value() < significance
    }

    /// Returns `true` if more pairs are better than worse, and chance explains that with a probability below
    /// `significance`.
    pub fn is_better(&self, significance: f64) -> bool {
        self.better > self.worse && self.p_value() < significance
    }

    fn add(&mut self, value: f64, reference: f64) {
        match value.partial_cmp(&reference) {
            Some(std::cmp::Ordering::Less) => self.better += 1,
            Some(std::cmp::Ordering::Greater) => self.worse += 1,
            _ => self.equal += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(better: u64, worse: u64) -> SignTest {
        SignTest {
            better,
            worse,
            equal: 0,
        }
    }

    #[test]
    fn p_values_are_those_of_tables() {
        // 2 * sum of C(n, i), i <= k, over 2^n.
        for (better, worse, p) in [
            (0, 0, 1.0),
            (1, 0, 1.0),
            (5, 0, 0.0625),
            (0, 6, 0.03125),
            (1, 8, 20.0 / 512.0),
            (2, 8, 112.0 / 1024.0),
            (5, 5, 1.0),
            (5, 15, 0.041_389_465_332_031_25),
        ] {
            let found = counts(better, worse).p_value();
            assert!((found - p).abs() < 1e-12, "{better}, {worse}: {found}");
            assert_eq!(found, counts(worse, better).p_value());
        }
    }

    #[test]
    fn p_values_agree_with_integers() {
        for pairs in 1..=60u64 {
            let (mut coefficient, mut tail) = (1u128, 0u128);
            for fewer in 0..=pairs / 2 {
                tail += coefficient;
                let exact = (2.0 * tail as f64 / (1u128 << pairs) as f64).min(1.0);
                let found = counts(fewer, pairs - fewer).p_value();
                assert!(
                    (found / exact - 1.0).abs() < 1e-9,
                    "{fewer} of {pairs}: {found}, {exact}"
                );
                coefficient = coefficient * u128::from(pairs - fewer) / u128::from(fewer + 1);
            }
        }
    }

    #[test]
    fn many_pairs_neither_overflow_nor_underflow() {
        let even = counts(2000, 2000).p_value();
        assert!((even - 1.0).abs() < 1e-9);
        // Normal approximation with continuity correction: z = 3.146, p = 0.00166.
        let uneven = counts(1900, 2100).p_value();
        assert!((uneven - 0.001_66).abs() < 1e-4, "{uneven}");
    }

    #[test]
    fn equal_pairs_do_not_count() {
        let pairs = [(1.0, 2.0), (3.0, 2.0), (2.0, 2.0), (f64::NAN, 1.0)];
        let mut test = SignTest::of(pairs);
        assert_eq!((test.better, test.worse, test.equal), (1, 1, 2));
        test.merge(counts(0, 5));
        assert_eq!((test.better, test.worse), (1, 6));
        assert!(!test.is_worse(0.05) && !test.is_better(0.05), "p = 0.125");
        test.merge(counts(0, 3));
        assert!(test.is_worse(0.05) && !test.is_better(0.05), "p = 0.021");
    }
}
