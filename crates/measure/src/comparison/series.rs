//! A run as a series of steps, from which any resampled run's figures can be computed.

use super::document::{RunFigures, Step};
use super::figure::{Figure, LEAST_US};

/// Maximum number of bins of the approximate latency distributions.
const MOST_BINS: usize = 512;

/// Ratio of the bounds of a bin, if so many bins suffice.
const FINEST: f64 = 1.02;

/// Bins of latencies, evenly spaced in their logarithms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bins {
    low: f64,
    width: f64,
    count: usize,
}

impl Bins {
    /// Returns bins for all latencies of these runs.
    pub(super) fn of<'r>(runs: impl Iterator<Item = &'r RunFigures>) -> Bins {
        let steps = runs.flat_map(|run| &run.steps);
        let knots = steps
            .filter(|step| step.counts.delivered > 0)
            .map(|step| knots(step).map(|(log, _)| log));
        let range = knots.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| {
            (low.min(at[0]), high.max(at[5]))
        });
        let (low, high) = match range.0 < range.1 {
            true => range,
            false => (0.0, 1.0),
        };
        let width = ((high - low) / MOST_BINS as f64).max(FINEST.ln());
        Bins {
            low,
            width,
            count: ((high - low) / width).ceil() as usize + 1,
        }
    }
}

/// Points of a step's cumulative distribution: logarithm of the latency, and the share of packets at most so late.
/// Below the median the distribution is taken as the mirror image of its part up to the 90th percentile.
fn knots(step: &Step) -> [(f64, f64); 6] {
    let latency = &step.latency;
    let mut least = LEAST_US;
    let log = [latency.p50, latency.p90, latency.p99, latency.p999, latency.max].map(|us| {
        least = us.max(least);
        least.ln()
    });
    let first = (2.0 * log[0] - log[1]).max(LEAST_US.ln());
    [
        (first, 0.0),
        (log[0], 0.5),
        (log[1], 0.9),
        (log[2], 0.99),
        (log[3], 0.999),
        (log[4], 1.0),
    ]
}

/// Counts of a step in the form that is summed up.
#[derive(Clone, Debug)]
struct Sample {
    offered: f64,
    owed: f64,
    delivered: f64,
    /// Numerators of the shares, in the order of the figures.
    shares: Vec<f64>,
    /// First bin with packets, and the packets from there.
    first: usize,
    bins: Vec<f64>,
}

/// Steps of a run.
#[derive(Clone, Debug)]
pub(super) struct Series {
    samples: Vec<Sample>,
    step_s: f64,
    bins: Bins,
}

impl Series {
    pub(super) fn new(run: &RunFigures, figures: &[Figure], bins: Bins) -> Series {
        let samples = run.steps.iter().map(|step| {
            let counts = &step.counts;
            let (first, distribution) = distribution(step, bins);
            Sample {
                offered: counts.offered as f64,
                owed: super::figure::owed(counts),
                delivered: counts.delivered as f64,
                shares: figures.iter().map(|figure| figure.part(counts)).collect(),
                first,
                bins: distribution,
            }
        });
        Series {
            samples: samples.collect(),
            step_s: run.step_ms / 1e3,
            bins,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    /// Returns the figures of the run that consists of these steps, in the figures' order and on their scale, or
    /// `None` for one that does not exist, such as a latency without packets.
    pub(super) fn figures(&self, figures: &[Figure], steps: &[usize], into: &mut [Option<f64>]) {
        let (mut offered, mut owed, mut delivered) = (0.0, 0.0, 0.0);
        let mut shares = vec![0.0; figures.len()];
        let mut bins = vec![0.0; self.bins.count];
        for sample in steps.iter().filter_map(|step| self.samples.get(*step)) {
            offered += sample.offered;
            owed += sample.owed;
            delivered += sample.delivered;
            shares
                .iter_mut()
                .zip(&sample.shares)
                .for_each(|(sum, part)| *sum += part);
            let there = bins.iter_mut().skip(sample.first);
            there.zip(&sample.bins).for_each(|(sum, part)| *sum += part);
        }
        let seconds = steps.len() as f64 * self.step_s;
        for ((figure, share), into) in figures.iter().zip(&shares).zip(into) {
            *into = match figure {
                Figure::Latency(percentile) => self.quantile(&bins, f64::from(*percentile) / 100.0),
                Figure::Throughput => (delivered > 0.0 && seconds > 0.0).then(|| (delivered / seconds).ln()),
                Figure::Late | Figure::Cause(_) => (owed > 0.0).then(|| share / owed),
                Figure::Loss | Figure::Reason(_) => (offered > 0.0).then(|| share / offered),
                Figure::Cores | Figure::External(_) => None,
            };
        }
    }

    /// Logarithm of a quantile.
    fn quantile(&self, bins: &[f64], share: f64) -> Option<f64> {
        let total: f64 = bins.iter().sum();
        let wanted = total * share;
        let mut below = 0.0;
        for (number, packets) in bins.iter().enumerate() {
            if *packets > 0.0 && below + packets >= wanted {
                let inside = (wanted - below) / packets;
                return Some(self.bins.low + (number as f64 + inside) * self.bins.width);
            }
            below += packets;
        }
        None
    }
}

/// Distributes a step's packets over the bins, evenly between two points of its distribution.
fn distribution(step: &Step, bins: Bins) -> (usize, Vec<f64>) {
    if step.counts.delivered == 0 {
        return (0, Vec::new());
    }
    let packets = step.counts.delivered as f64;
    let knots = knots(step);
    let at = |log: f64| ((log - bins.low) / bins.width).clamp(0.0, bins.count as f64 - 1e-6);
    let first = at(knots[0].0) as usize;
    let mut found = vec![0.0; at(knots[5].0) as usize + 1 - first];
    for pair in knots.windows(2) {
        let [(from, below), (to, up_to)] = pair else { continue };
        let (from, to, share) = (at(*from), at(*to), up_to - below);
        for number in from as usize..=to as usize {
            let inside = (to.min(number as f64 + 1.0) - from.max(number as f64)).max(0.0);
            let part = match to > from {
                true => inside / (to - from),
                false => 1.0,
            };
            found[number - first] += packets * share * part;
        }
    }
    (first, found)
}
