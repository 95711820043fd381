//! Quantiles of Student's t distribution.

use std::f64::consts::{FRAC_PI_2, PI};

/// Returns the value that a t-distributed variable exceeds in absolute value with probability `p`, 0 to 1 exclusive.
/// `freedom` is at least 1 and need not be whole (Welch). Hill's algorithm 396: six digits.
pub(super) fn two_sided(p: f64, freedom: f64) -> f64 {
    let n = freedom;
    if n < 1.5 {
        return 1.0 / (p * FRAC_PI_2).tan();
    }
    if (n - 2.0).abs() < 1e-9 {
        return (2.0 / (p * (2.0 - p)) - 2.0).sqrt();
    }
    let a = 1.0 / (n - 0.5);
    let b = 48.0 / (a * a);
    let mut c = ((20_700.0 * a / b - 98.0) * a - 16.0) * a + 96.36;
    let d = ((94.5 / (b + c) - 3.0) / b + 1.0) * (a * FRAC_PI_2).sqrt() * n;
    let mut y = (d * p).powf(2.0 / n);
    if y > 0.05 + a {
        let x = normal(p / 2.0);
        y = x * x;
        if n < 5.0 {
            c += 0.3 * (n - 4.5) * (x + 0.6);
        }
        c += (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b;
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x;
        y = (a * y * y).exp_m1();
    } else {
        y = ((1.0 / (((n + 6.0) / (n * y) - 0.089 * d - 0.822) * (n + 2.0) * 3.0) + 0.5 / (n + 4.0)) * y - 1.0)
            * (n + 1.0)
            / (n + 2.0)
            + 1.0 / y;
    }
    (n * y).sqrt()
}

/// Returns the value below which a normally distributed variable lies with probability `p`, at most a half: by
/// bisection of the complementary error function's series and continued fraction.
fn normal(p: f64) -> f64 {
    let (mut low, mut high) = (-40.0, 0.0);
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        match lower_tail(-middle) < p {
            true => low = middle,
            false => high = middle,
        }
    }
    f64::midpoint(low, high)
}

/// Probability that a normally distributed variable is below `-x`, for `x` of at least 0.
fn lower_tail(x: f64) -> f64 {
    let density = (-x * x / 2.0).exp() / (2.0 * PI).sqrt();
    if x < 3.0 {
        let (mut term, mut sum) = (x, x);
        for k in 1..60 {
            term *= x * x / f64::from(2 * k + 1);
            sum += term;
        }
        return 0.5 - density * sum;
    }
    let fraction = (1..60).rev().fold(x, |below, k| x + f64::from(k) / below);
    density / fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_tables() {
        for (p, freedom, t) in [
            (0.05, 1.0, 12.706),
            (0.05, 2.0, 4.303),
            (0.05, 3.0, 3.182),
            (0.05, 4.0, 2.776),
            (0.05, 7.0, 2.365),
            (0.05, 30.0, 2.042),
            (0.05, 1e6, 1.960),
            (0.01, 4.0, 4.604),
            (0.01, 10.0, 3.169),
            (0.001, 5.0, 6.869),
            (0.001, 60.0, 3.460),
            (0.5, 8.0, 0.706),
        ] {
            let found = two_sided(p, freedom);
            assert!((found / t - 1.0).abs() < 2e-3, "{p} {freedom}: {found}, not {t}");
        }
    }
}
