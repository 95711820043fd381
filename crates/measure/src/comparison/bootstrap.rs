//! Block bootstrap: how much a run's figures would differ if the run were repeated under the same conditions.
//!
//! Neighbouring steps resemble each other (bursts, full queues, disturbed cores), so single steps must not be drawn
//! independently: blocks of consecutive steps are, each long enough that two blocks hardly depend on each other.

use super::document::RunFigures;
use super::figure::{Figure, LEAST_US};
use super::series::{Bins, Series};

/// Resampled pairs of runs.
const REPLICATES: usize = 500;

/// Minimum number of blocks in a run.
const FEWEST_BLOCKS: usize = 5;

/// Minimum number of steps in a run.
pub(super) const FEWEST_STEPS: usize = 2 * FEWEST_BLOCKS;

/// Resamples in the same way on every machine, so that a comparison can be repeated.
struct Random(u64);

impl Random {
    /// SplitMix64.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * bound as u128) >> 64) as usize
    }
}

/// Variance of a figure's difference, and its degrees of freedom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) variance: f64,
    pub(super) freedom: f64,
}

/// Result of resampling.
#[derive(Clone, Debug)]
pub(super) struct Resampled {
    /// Spread of each figure, or `None` if it does not exist in all resampled runs.
    pub(super) spreads: Vec<Option<Spread>>,
    /// The steps of both runs were drawn together.
    pub(super) paired: bool,
    /// Length of a block in steps, of the run with the longest blocks.
    pub(super) block: usize,
}

/// Resamples both groups. `None` if a run has fewer than [`FEWEST_STEPS`] steps.
pub(super) fn resample(before: &[&RunFigures], after: &[&RunFigures], figures: &[Figure]) -> Option<Resampled> {
    let all = || before.iter().chain(after).copied();
    if all().any(|run| run.steps.len() < FEWEST_STEPS) {
        return None;
    }
    let bins = Bins::of(all());
    let series = |runs: &[&RunFigures]| -> Vec<(Series, usize)> {
        let pairs = runs
            .iter()
            .map(|run| (Series::new(run, figures, bins), block_length(run)));
        pairs.collect()
    };
    let (mut first, mut second) = (series(before), series(after));
    let block = first.iter().chain(&second).map(|(_, block)| *block).max().unwrap_or(1);
    let paired = match (before, after) {
        ([a], [b]) => {
            let same_step = (a.step_ms - b.step_ms).abs() <= 1e-6 * a.step_ms;
            a.traffic == b.traffic && same_step && a.steps.len() == b.steps.len()
        }
        _ => false,
    };
    if paired {
        first.iter_mut().chain(&mut second).for_each(|(_, own)| *own = block);
    }
    let mut random = Random(1);
    let mut differences = vec![Moments::default(); figures.len()];
    let mut groups = [differences.clone(), differences.clone()];
    let mut steps = Vec::new();
    for _ in 0..REPLICATES {
        steps.clear();
        let mut draw = |group: &[(Series, usize)], random: &mut Random, again: bool| {
            let mut sums = vec![Some(0.0); figures.len()];
            let mut of_run = vec![None; figures.len()];
            for (series, block) in group {
                if !again {
                    draw_blocks(series.len(), *block, random, &mut steps);
                }
                series.figures(figures, &steps, &mut of_run);
                for (sum, value) in sums.iter_mut().zip(&of_run) {
                    *sum = sum.zip(*value).map(|(sum, value)| sum + value / group.len() as f64);
                }
            }
            sums
        };
        let drawn = [draw(&first, &mut random, false), draw(&second, &mut random, paired)];
        for (index, difference) in differences.iter_mut().enumerate() {
            let [before, after] = [drawn[0][index], drawn[1][index]];
            difference.add(before.zip(after).map(|(before, after)| after - before));
            groups[0][index].add(before);
            groups[1][index].add(after);
        }
    }
    let freedom = |group: &[(Series, usize)]| -> f64 {
        let blocks = group.iter().map(|(series, block)| (series.len() / block) as f64 - 1.0);
        blocks.sum::<f64>().max(1.0)
    };
    let (of_first, of_second) = (freedom(&first), freedom(&second));
    let spreads = (0..figures.len()).map(|index| {
        // The variance within k blocks is k/(k-1) times too small.
        let corrected = |moments: &Moments, freedom: f64| Some(moments.variance()? * (freedom + 1.0) / freedom);
        if paired {
            return Some(Spread {
                variance: corrected(&differences[index], of_first)?,
                freedom: of_first,
            });
        }
        let a = corrected(&groups[0][index], of_first)?;
        let b = corrected(&groups[1][index], of_second)?;
        Some(welch(a, of_first, b, of_second))
    });
    Some(Resampled {
        spreads: spreads.collect(),
        paired,
        block,
    })
}

/// Spread of the difference of two independent means, by Welch and Satterthwaite, from the variances of the means.
pub(super) fn welch(a: f64, freedom_a: f64, b: f64, freedom_b: f64) -> Spread {
    let variance = a + b;
    let freedom = match variance > 0.0 {
        true => variance * variance / (a * a / freedom_a + b * b / freedom_b),
        false => freedom_a.min(freedom_b),
    };
    Spread {
        variance,
        freedom: freedom.max(1.0),
    }
}

/// Draws blocks of consecutive steps, the first step following the last, until there are as many steps as before.
fn draw_blocks(length: usize, block: usize, random: &mut Random, into: &mut Vec<usize>) {
    into.clear();
    while into.len() < length {
        let start = random.below(length);
        let room = length - into.len();
        into.extend((start..start + block.min(room)).map(|step| step % length));
    }
}

/// Length of a run's blocks: at least the cube root of its steps; longer with correlated steps, up to a fifth of them.
fn block_length(run: &RunFigures) -> usize {
    let steps = run.steps.len();
    let root = (steps as f64).cbrt();
    let log = |us: f64| us.max(LEAST_US).ln();
    let with_packets = || run.steps.iter().filter(|step| step.counts.delivered > 0);
    let series: [Vec<f64>; 4] = [
        with_packets().map(|step| log(step.latency.p50)).collect(),
        with_packets().map(|step| log(step.latency.p99)).collect(),
        run.steps.iter().map(|step| step.counts.delivered as f64).collect(),
        run.steps
            .iter()
            .map(|step| Figure::Late.part(&step.counts) / super::figure::owed(&step.counts).max(1.0))
            .collect(),
    ];
    let correlation = series.iter().map(|series| correlation(series)).fold(0.0, f64::max);
    // Carlstein's optimum for a first-order autoregression.
    let optimum = (6f64.sqrt() * correlation / (1.0 - correlation * correlation)).powf(2.0 / 3.0) * root;
    let most = steps / FEWEST_BLOCKS;
    (root.max(optimum).ceil() as usize).clamp(1, most.max(1))
}

/// Correlation of neighbours in a series, 0 to 0.99; 0 if all values are equal.
fn correlation(series: &[f64]) -> f64 {
    let count = series.len() as f64;
    let mean = series.iter().sum::<f64>() / count.max(1.0);
    let square: f64 = series.iter().map(|value| (value - mean).powi(2)).sum();
    let product: f64 = series.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    match square > 0.0 {
        // A short series underestimates it by about (1 + 4 r) / n.
        true => {
            let found = product / square;
            (found + (1.0 + 4.0 * found) / count).clamp(0.0, 0.99)
        }
        false => 0.0,
    }
}

/// Mean and variance of values as they come.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
    incomplete: bool,
}

impl Moments {
    fn add(&mut self, value: Option<f64>) {
        let Some(value) = value else {
            self.incomplete = true;
            return;
        };
        self.count += 1.0;
        let off = value - self.mean;
        self.mean += off / self.count;
        self.squares += off * (value - self.mean);
    }

    fn variance(&self) -> Option<f64> {
        (!self.incomplete && self.count > 1.0).then(|| self.squares / (self.count - 1.0))
    }
}
