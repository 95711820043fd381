//! Costs from what runs showed.

use tailwater_policy::capacity::ServiceCosts;

/// What a run was like, and what it showed. Parts are of a packet, on average.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// Batches.
    pub batches: f64,
    /// Bytes.
    pub bytes: f64,
    /// Packets that open a flow.
    pub new: f64,
    /// Packets that are cold, or open a flow.
    pub cold: f64,
    /// Batches with such a packet.
    pub cold_batches: f64,
    /// Packets among others of other lengths: no branch can be foreseen that depends on it.
    pub mixed: f64,
    /// What a packet took, in nanoseconds.
    pub nanos: f64,
}

/// Costs that explain samples: of service, of a cold packet, of a batch with one.
pub(crate) type Explained = (ServiceCosts, f64, f64);

/// The service costs that explain the samples best.
pub(crate) fn fit(samples: &[Sample]) -> ServiceCosts {
    let rows = rows(samples, |s| [s.batches, 1.0, s.bytes, s.new]);
    service(non_negative(&rows))
}

/// The same where samples tell cold packets from others.
pub(crate) fn fit_all(samples: &[Sample]) -> Explained {
    let columns = |s: &Sample| {
        let cold = [s.cold, s.cold_batches];
        [s.batches, 1.0, s.bytes, s.new, cold[0], cold[1], s.mixed]
    };
    let costs = non_negative(&rows(samples, columns));
    let [batch, packet, byte, new_flow, cold, cold_batch, mixed] = costs;
    // Real traffic is mixed.
    (
        service([batch, packet + mixed, byte, new_flow]),
        cold,
        cold_batch,
    )
}

fn service([batch, packet, byte, new_flow]: [f64; 4]) -> ServiceCosts {
    ServiceCosts {
        batch,
        packet,
        byte,
        new_flow,
    }
}

/// The equations of the samples, each as an error relative to what was measured.
fn rows<const N: usize>(samples: &[Sample], of: impl Fn(&Sample) -> [f64; N]) -> Vec<[f64; N]> {
    let row = |s: &Sample| of(s).map(|x| x / s.nanos.max(1e-3));
    samples.iter().map(row).collect()
}

/// The costs that explain the rows best, none of them negative: least squares, over the set of costs
/// that leaves none negative when those that were are taken as nothing.
fn non_negative<const N: usize>(rows: &[[f64; N]]) -> [f64; N] {
    let mut used = [true; N];
    loop {
        let costs = solve(rows, used);
        let worst = (0..N)
            .filter(|&i| used[i] && costs[i] < 0.0)
            .min_by(|&a, &b| costs[a].total_cmp(&costs[b]));
        match worst {
            Some(worst) => used[worst] = false,
            // Picoseconds are more than enough for a reader of the file.
            None => return costs.map(|cost| (cost * 1e3).round() / 1e3),
        }
    }
}

/// Least squares for `rows x = 1` over the columns in use, by the normal equations and Gauss and
/// Jordan. A column that the others explain gets zero.
fn solve<const N: usize>(rows: &[[f64; N]], used: [bool; N]) -> [f64; N] {
    // The matrix, and beside it what its rows are to come to.
    let (mut matrix, mut sums) = ([[0.0; N]; N], [0.0; N]);
    for row in rows {
        for i in 0..N {
            for j in 0..N {
                matrix[i][j] += row[i] * row[j];
            }
            sums[i] += row[i];
        }
    }
    let scale: [f64; N] = std::array::from_fn(|i| matrix[i][i]);
    let mut solved = [false; N];
    for pivot in (0..N).filter(|&i| used[i]) {
        // What is left of the column once the others are taken out.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(costs: &ServiceCosts, batches: f64, bytes: f64, new: f64) -> Sample {
        Sample {
            batches,
            bytes,
            new,
            cold: 0.0,
            cold_batches: 0.0,
            mixed: 0.0,
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
    fn what_cold_packets_cost_is_told_from_the_rest() {
        let costs = ServiceCosts {
            batch: 110.0,
            packet: 42.5,
            byte: 0.1,
            new_flow: 210.0,
        };
        let (cold_packet, cold_batch) = (30.0, 90.0);
        let samples = SETTINGS.iter().flat_map(|&(batches, bytes, new)| {
            [0.0, 0.5].map(|cold| {
                let mut sample = sample(&costs, batches, bytes, new);
                sample.cold = new.max(cold);
                sample.cold_batches = if sample.cold > 0.0 { batches } else { 0.0 };
                sample.nanos += cold_packet * sample.cold + cold_batch * sample.cold_batches;
                sample
            })
        });
        let (found, packet, batch) = fit_all(&samples.collect::<Vec<_>>());
        assert!((found.batch - costs.batch).abs() < 2e-3, "{found:?}");
        assert!((found.new_flow - costs.new_flow).abs() < 2e-3, "{found:?}");
        assert!((packet - cold_packet).abs() < 2e-3 && (batch - cold_batch).abs() < 2e-3);
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
