//! Costs fitted to measured runs.

use tailwater_policy::capacity::{CapacityProfile, ServiceCosts};

/// Characteristics of a run and its result. Figures are means per packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// Batches per packet.
    pub batches: f64,
    /// Bytes per packet.
    pub bytes: f64,
    /// Share of packets that open a flow.
    pub new: f64,
    /// Time per packet, nanoseconds.
    pub nanos: f64,
}

/// Contents and duration of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchSample {
    pub packets: f64,
    pub bytes: f64,
    /// Packets that open a flow.
    pub new: f64,
    /// Packets that are cold or open a flow.
    pub cold: f64,
    /// `true` if other packets waited behind the batch.
    pub backlog: bool,
    /// Duration, nanoseconds.
    pub nanos: f64,
}

/// Cost model of batches, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct BatchCosts {
    pub service: ServiceCosts,
    /// Cost of each cold packet, and of each batch with one.
    pub cold_packet: f64,
    pub cold_batch: f64,
    /// Cost of each batch with a packet that opens a flow.
    pub new_batch: f64,
    /// Cost of each packet of a batch behind which others wait.
    pub ring_packet: f64,
}

impl BatchSample {
    /// Returns the factor of each cost, in the order of [`BatchCosts::from_parts`].
    fn parts(&self) -> [f64; 8] {
        let [new, cold] = [self.new, self.cold].map(|packets| f64::from(packets > 0.0));
        let ring = f64::from(self.backlog) * self.packets;
        [1.0, self.packets, self.bytes, self.new, new, self.cold, cold, ring]
    }
}

impl BatchCosts {
    fn from_parts(parts: [f64; 8]) -> BatchCosts {
        let [
            batch,
            packet,
            byte,
            new_flow,
            new_batch,
            cold_packet,
            cold_batch,
            ring_packet,
        ] = parts;
        BatchCosts {
            service: ServiceCosts {
                batch,
                packet,
                byte,
                new_flow,
            },
            cold_packet,
            cold_batch,
            new_batch,
            ring_packet,
        }
    }

    /// Returns the profile's costs, or `None` if it has none.
    pub fn of(profile: &CapacityProfile) -> Option<BatchCosts> {
        let details = profile.details.as_ref()?;
        Some(BatchCosts {
            service: profile.costs?,
            cold_packet: details.cold_packet,
            cold_batch: details.cold_batch,
            new_batch: details.new_batch,
            ring_packet: details.ring_packet,
        })
    }

    /// Returns the expected duration of a batch.
    pub fn nanos(&self, sample: &BatchSample) -> f64 {
        let service = &self.service;
        let costs = [
            service.batch,
            service.packet,
            service.byte,
            service.new_flow,
            self.new_batch,
            self.cold_packet,
            self.cold_batch,
            self.ring_packet,
        ];
        let parts = sample.parts();
        parts.iter().zip(costs).map(|(part, cost)| part * cost).sum()
    }
}

/// Fits service costs to the samples.
pub(crate) fn fit(samples: &[Sample]) -> ServiceCosts {
    let mut equations = Equations::default();
    for sample in samples {
        let row = [sample.batches, 1.0, sample.bytes, sample.new];
        equations.add(row, sample.nanos, sample.nanos);
    }
    let [batch, packet, byte, new_flow] = equations.non_negative();
    ServiceCosts {
        batch,
        packet,
        byte,
        new_flow,
    }
}

/// Excess over the expected duration above which a batch counts as interrupted: this many nanoseconds plus this share
/// of the expected duration.
const INTERRUPTED: f64 = 3_000.0;
const INTERRUPTED_PART: f64 = 0.25;

/// Returns `true` if a batch of this duration was interrupted, given the duration of others like it.
pub(crate) fn is_interrupted(nanos: f64, expected: f64) -> bool {
    nanos > expected * (1.0 + INTERRUPTED_PART) + INTERRUPTED
}

/// Number of iterations of fitting and detecting interrupted batches.
const LOOKS: usize = 5;

/// Fits costs to batches, excluding interrupted ones.
pub(crate) fn fit_batches(samples: &[BatchSample]) -> BatchCosts {
    // Initial estimate: the median cost per packet.
    let mut each: Vec<f64> = samples.iter().map(|s| s.nanos / s.packets).collect();
    each.sort_unstable_by(f64::total_cmp);
    let mut costs = BatchCosts::default();
    costs.service.packet = each.get(each.len() / 2).copied().unwrap_or(0.0);
    for _ in 0..LOOKS {
        let mut equations = Equations::default();
        for sample in samples {
            let expected = costs.nanos(sample);
            if !is_interrupted(sample.nanos, expected) {
                equations.add(sample.parts(), sample.nanos, expected);
            }
        }
        costs = BatchCosts::from_parts(equations.non_negative());
    }
    costs
}

/// Normal equations of a least-squares fit.
struct Equations<const N: usize> {
    matrix: [[f64; N]; N],
    sums: [f64; N],
}

impl<const N: usize> Default for Equations<N> {
    fn default() -> Self {
        Equations {
            matrix: [[0.0; N]; N],
            sums: [0.0; N],
        }
    }
}

impl<const N: usize> Equations<N> {
    /// Adds the equation `row` times costs equals `nanos`, with an error relative to `whole`.
    fn add(&mut self, row: [f64; N], nanos: f64, whole: f64) {
        let row = row.map(|x| x / whole.max(1e-3));
        for i in 0..N {
            for j in 0..N {
                self.matrix[i][j] += row[i] * row[j];
            }
            self.sums[i] += row[i] * nanos / whole.max(1e-3);
        }
    }

    /// Returns the non-negative least-squares solution. Negative costs are fixed at zero, the lowest first, and the
    /// rest solved again.
    fn non_negative(&self) -> [f64; N] {
        let mut used = [true; N];
        loop {
            let costs = self.solve(used);
            let worst = (0..N)
                .filter(|&i| used[i] && costs[i] < 0.0)
                .min_by(|&a, &b| costs[a].total_cmp(&costs[b]));
            match worst {
                Some(worst) => used[worst] = false,
                // Rounded to picoseconds, which suffices for a reader of the file.
                None => return costs.map(|cost| (cost * 1e3).round() / 1e3),
            }
        }
    }

    /// Solves the least-squares problem over the columns in use, by Gauss-Jordan elimination. A linearly dependent
    /// column gets zero.
    fn solve(&self, used: [bool; N]) -> [f64; N] {
        let (mut matrix, mut sums) = (self.matrix, self.sums);
        let scale: [f64; N] = std::array::from_fn(|i| matrix[i][i]);
        let mut solved = [false; N];
        for pivot in (0..N).filter(|&i| used[i]) {
            // Remainder of the column after eliminating the others.
            if matrix[pivot][pivot] <= scale[pivot] * 1e-9 {
                continue;
            }
            solved[pivot] = true;
            let divisor = matrix[pivot][pivot];
            matrix[pivot].iter_mut().for_each(|x| *x /= divisor);
            sums[pivot] /= divisor;
            let (line, sum) = (matrix[pivot], sums[pivot]);
            for other in (0..N).filter(|&other| other != pivot) {
                let factor = matrix[other][pivot];
                let row = matrix[other].iter_mut();
                row.zip(line).for_each(|(x, y)| *x -= factor * y);
                sums[other] -= factor * sum;
            }
        }
        std::array::from_fn(|i| if solved[i] { sums[i] } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(costs: &ServiceCosts, batches: f64, bytes: f64, new: f64) -> Sample {
        Sample {
            batches,
            bytes,
            new,
            nanos: costs.batch * batches + costs.packet + costs.byte * bytes + costs.new_flow * new,
        }
    }

    const SETTINGS: [(f64, f64, f64); 6] = [
        (1.0 / 32.0, 60.0, 0.0),
        (1.0 / 32.0, 1514.0, 0.0),
        (1.0 / 4.0, 60.0, 0.0),
        (1.0 / 32.0, 60.0, 1.0),
        (1.0 / 32.0, 900.0, 0.1),
        (1.0 / 8.0, 300.0, 0.5),
    ];

    #[test]
    fn costs_that_explain_everything_are_found() {
        let costs = ServiceCosts {
            batch: 110.0,
            packet: 42.5,
            byte: 0.5,
            new_flow: 210.0,
        };
        let samples = SETTINGS.map(|(batches, bytes, new)| sample(&costs, batches, bytes, new));
        let found = fit(&samples);
        for (found, expected) in [
            (found.batch, costs.batch),
            (found.packet, costs.packet),
            (found.byte, costs.byte),
            (found.new_flow, costs.new_flow),
        ] {
            assert!((found - expected).abs() < 2e-3, "{found} for {expected}");
        }
    }

    #[test]
    fn batches_tell_all_parts_apart_and_interruptions_do_not_count() {
        let costs = BatchCosts {
            service: ServiceCosts {
                batch: 110.0,
                packet: 42.5,
                byte: 0.1,
                new_flow: 510.0,
            },
            cold_packet: 30.0,
            cold_batch: 90.0,
            new_batch: 150.0,
            ring_packet: 7.0,
        };
        let samples: Vec<BatchSample> = (0..4000_u32)
            .map(|i| {
                let packets = 1 + i % 32;
                let part = |every: u32| f64::from(packets.min(i % every));
                let (new, backlog) = (part(3), packets == 32 && i % 5 < 3);
                let cold = new.max(part(7));
                let bytes = f64::from(packets * (60 + i * 37 % 1400));
                let own = costs.service;
                let ring = if backlog { costs.ring_packet } else { 0.0 };
                let nanos = own.batch
                    + f64::from(packets) * (own.packet + ring)
                    + bytes * own.byte
                    + new * own.new_flow
                    + f64::from(new > 0.0) * costs.new_batch
                    + cold * costs.cold_packet
                    + f64::from(cold > 0.0) * costs.cold_batch;
                BatchSample {
                    packets: packets.into(),
                    bytes,
                    new,
                    cold,
                    backlog,
                    nanos: nanos + if i % 50 == 0 { 20_000.0 } else { 0.0 },
                }
            })
            .collect();
        let found = fit_batches(&samples);
        for (found, expected) in [
            (found.service.batch, 110.0),
            (found.service.packet, 42.5),
            (found.service.byte, 0.1),
            (found.service.new_flow, 510.0),
            (found.cold_packet, 30.0),
            (found.cold_batch, 90.0),
            (found.new_batch, 150.0),
            (found.ring_packet, 7.0),
        ] {
            assert!((found - expected).abs() < 2e-2, "{found} for {expected}");
        }
        assert_eq!(fit_batches(&[]), BatchCosts::default());
    }

    #[test]
    fn none_is_negative_and_the_rest_still_fits() {
        let odd = ServiceCosts {
            batch: -50.0,
            packet: 100.0,
            byte: 0.2,
            new_flow: 300.0,
        };
        let samples = SETTINGS.map(|(batches, bytes, new)| sample(&odd, batches, bytes, new));
        let found = fit(&samples);
        assert_eq!(found.batch, 0.0);
        assert!((80.0..120.0).contains(&found.packet), "{found:?}");
        assert!((250.0..350.0).contains(&found.new_flow), "{found:?}");
    }

    #[test]
    fn samples_that_do_not_tell_costs_apart_give_finite_ones() {
        let one = Sample {
            batches: 0.03,
            bytes: 60.0,
            nanos: 100.0,
            ..Sample::default()
        };
        let found = fit(&[one; 3]);
        let total = found.batch * 0.03 + found.packet + found.byte * 60.0;
        assert!((total - 100.0).abs() < 0.1, "{found:?}");
        assert_eq!(fit(&[]), ServiceCosts::default());
    }
}
