//! Scales from figures to pixels, with round axis labels.

use super::text::significant;

/// Maps figures onto pixels.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    kind: Kind,
    /// Figures at both ends.
    domain: [f64; 2],
    /// Pixels at both ends.
    range: [f64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Linear,
    Log,
    /// Scale of ratios on which each additional nine has equal length: 0, 0.9, 0.99, ...
    Nines,
}

impl Kind {
    fn warp(self, value: f64) -> f64 {
        match self {
            Kind::Linear => value,
            Kind::Log => value.max(f64::MIN_POSITIVE).log10(),
            Kind::Nines => -(1.0 - value).max(1e-12).log10(),
        }
    }
}

impl Scale {
    /// Linear scale from zero to the next round figure from `most` on.
    pub fn from_zero(most: f64, range: [f64; 2]) -> Scale {
        let step = round_step(most.max(1e-9) / 4.0);
        let most = (most.max(1e-9) / step - 1e-9).ceil() * step;
        Scale::linear(most, range)
    }

    /// Linear scale from zero to exactly `most`.
    pub fn linear(most: f64, range: [f64; 2]) -> Scale {
        Scale {
            kind: Kind::Linear,
            domain: [0.0, most.max(1e-9)],
            range,
        }
    }

    /// Logarithmic scale from the round figure below `least` to the one above `most`.
    pub fn log(least: f64, most: f64, range: [f64; 2]) -> Scale {
        let least = least.max(1e-3);
        let low = round_below(least);
        let mut high = round_below(most.max(least));
        while high < most * (1.0 - 1e-9) || high <= low {
            high = next_round(high);
        }
        Scale {
            kind: Kind::Log,
            domain: [low, high],
            range,
        }
    }

    /// Scale for ratios of this number of packets, from zero to one.
    pub fn nines(packets: u64, range: [f64; 2]) -> Scale {
        let nines = (packets.max(1) as f64).log10().ceil().clamp(2.0, 6.0);
        Scale {
            kind: Kind::Nines,
            domain: [0.0, 1.0 - 10f64.powf(-nines - 0.3)],
            range,
        }
    }

    /// Returns the pixel of a figure, limited to the ends.
    pub fn at(&self, value: f64) -> f64 {
        let [low, high] = self.domain.map(|end| self.kind.warp(end));
        let [from, to] = self.range;
        let share = (self.kind.warp(value) - low) / (high - low);
        from + share.clamp(0.0, 1.0) * (to - from)
    }

    /// Returns the pixels at both ends.
    pub fn range(&self) -> [f64; 2] {
        self.range
    }

    /// Returns about `wanted` round figures, in order.
    pub fn ticks(&self, wanted: usize) -> Vec<f64> {
        let [low, high] = self.domain;
        match self.kind {
            Kind::Linear => {
                let step = round_step(high / wanted.max(1) as f64);
                let last = (high / step + 1e-9).floor() as u64;
                (0..=last).map(|i| i as f64 * step).collect()
            }
            Kind::Log => {
                let decades = (high / low).log10();
                let mut all = vec![low];
                while let Some(&last) = all.last()
                    && last < high * (1.0 - 1e-9)
                {
                    all.push(next_round(last));
                }
                let every = (decades / wanted.max(1) as f64).ceil().max(1.0) as i32;
                if decades > 0.5 * wanted as f64 {
                    all.retain(|tick| {
                        let exponent = tick.log10();
                        let power = exponent.round();
                        (exponent - power).abs() < 1e-6 && power as i32 % every == 0
                    });
                }
                all
            }
            Kind::Nines => {
                let nines = (1..).map(|n| 1.0 - 10f64.powi(-n));
                [0.0, 0.5]
                    .into_iter()
                    .chain(nines.take_while(|&share| share <= high))
                    .collect()
            }
        }
    }
}

/// Returns the smallest round figure (1, 2 or 5 times a power of ten) that is at least `step`.
pub fn round_step(step: f64) -> f64 {
    let below = round_below(step);
    match below >= step * (1.0 - 1e-9) {
        true => below,
        false => next_round(below),
    }
}

/// Returns the largest round figure that is at most `value`.
fn round_below(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    // Corrects rounding errors of the logarithm.
    let power = if power > value * (1.0 + 1e-9) {
        power / 10.0
    } else {
        power
    };
    let digit = value / power * (1.0 + 1e-9);
    power
        * match digit {
            d if d >= 10.0 => 10.0,
            d if d >= 5.0 => 5.0,
            d if d >= 2.0 => 2.0,
            _ => 1.0,
        }
}

/// Returns the next larger round figure.
fn next_round(round: f64) -> f64 {
    let power = 10f64.powf((round * (1.0 + 1e-9)).log10().floor());
    match round / power {
        digit if digit < 1.5 => 2.0 * power,
        digit if digit < 3.0 => 5.0 * power,
        _ => 10.0 * power,
    }
}

/// Returns the unit for times up to `seconds`: its name, and its length in seconds.
pub fn time_unit(seconds: f64) -> (&'static str, f64) {
    match seconds {
        s if s < 1e-3 => ("µs", 1e-6),
        s if s < 1.0 => ("ms", 1e-3),
        s if s < 300.0 => ("s", 1.0),
        s if s < 4.0 * 3600.0 => ("min", 60.0),
        s if s < 4.0 * 86_400.0 => ("h", 3600.0),
        _ => ("days", 86_400.0),
    }
}

/// Formats a ratio as percent for an axis: `0`, `50 %`, `99.9 %`.
pub fn percent_tick(share: f64) -> String {
    format!("{} %", significant(share * 100.0, 8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn linear_axes_end_at_round_figures() {
        let scale = Scale::from_zero(937.0, [300.0, 0.0]);
        assert_eq!(scale.ticks(5), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(scale.ticks(4), [0.0, 500.0, 1000.0]);
        assert_eq!(
            [0.0, 500.0, 1000.0, 2000.0].map(|v| scale.at(v)),
            [300.0, 150.0, 0.0, 0.0]
        );
        assert_eq!(Scale::from_zero(1.0, [0.0, 1.0]).at(1.0), 1.0);
        assert!(Scale::from_zero(0.0, [0.0, 1.0]).at(0.0).is_finite());
    }

    #[test]
    fn log_axes_show_decades_or_finer() {
        let scale = Scale::log(3.0, 450.0, [0.0, 100.0]);
        assert_eq!(scale.ticks(8), [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!((scale.at(2.0), scale.at(500.0)), (0.0, 100.0));
        let wide = Scale::log(0.4, 2e5, [0.0, 100.0]);
        let decades: Vec<i32> = wide.ticks(8).iter().map(|t| t.log10().round() as i32).collect();
        assert_eq!(decades, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn every_nine_takes_the_same_room() {
        let scale = Scale::nines(10_000, [0.0, 4.3]);
        assert_eq!(scale.ticks(9).len(), 6);
        for (share, place) in [(0.0, 0.0), (0.9, 1.0), (0.99, 2.0), (0.9999, 4.0), (1.0, 4.3)] {
            assert!((scale.at(share) - place).abs() < 1e-6, "{share}");
        }
        assert_eq!([0.0, 0.5, 0.999].map(percent_tick), ["0 %", "50 %", "99.9 %"]);
    }

    proptest! {
        #[test]
        fn axes_hold_their_figures_in_order(
            low in -3.0f64..9.0, decades in 0.0f64..9.0, wanted in 2usize..10,
        ) {
            let (least, most) = (10f64.powf(low), 10f64.powf(low + decades));
            let log = Scale::log(least, most, [0.0, 1.0]);
            prop_assert!(log.domain[0] <= least * 1.000001 && log.domain[1] >= most * 0.999999);
            for scale in [log, Scale::from_zero(most, [0.0, 1.0]), Scale::linear(most, [0.0, 1.0])] {
                let ticks = scale.ticks(wanted);
                prop_assert!(!ticks.is_empty() && ticks.len() <= 4 * wanted, "{:?}", ticks);
                prop_assert!(ticks.windows(2).all(|t| scale.at(t[0]) < scale.at(t[1])));
                prop_assert!(ticks.iter().all(|&t| t <= scale.domain[1] * 1.000001));
            }
        }
    }
}
