//! Service costs from saturated runs.

use tailwater_policy::capacity::ServiceCosts;

/// What a run was like, and what it showed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Batches for each packet.
    pub batches: f64,
    /// Bytes of a packet, on average.
    pub bytes: f64,
    /// The share of packets that open a flow.
    pub new: f64,
    /// What a packet took, in nanoseconds.
    pub nanos: f64,
}

/// The costs that explain the samples best, none of them negative: least squares of the relative
/// errors, over the set of costs that leaves none negative when those that were are taken as
/// nothing.
pub(crate) fn fit(samples: &[Sample]) -> ServiceCosts {
    let rows: Vec<[f64; 4]> = samples
        .iter()
        .map(|s| [s.batches, 1.0, s.bytes, s.new].map(|x| x / s.nanos.max(1e-3)))
        .collect();
    let mut used = [true; 4];
    loop {
        let costs = solve(&rows, used);
        let worst = (0..4)
            .filter(|&i| used[i] && costs[i] < 0.0)
            .min_by(|&a, &b| costs[a].total_cmp(&costs[b]));
        match worst {
            Some(worst) => used[worst] = false,
            None => {
                // Picoseconds are more than enough for a reader of the file.
                let [batch, packet, byte, new_flow] = costs.map(|cost| (cost * 1e3).round() / 1e3);
                return ServiceCosts {
                    batch,
                    packet,
                    byte,
                    new_flow,
                };
            }
        }
    }
}

/// Least squares for `rows x = 1` over the columns in use, by the normal equations and Gauss and
/// Jordan. A column that the others explain gets zero.
fn solve(rows: &[[f64; 4]], used: [bool; 4]) -> [f64; 4] {
    let mut matrix = [[0.0; 5]; 4];
    for row in rows {
        for i in 0..4 {
            for j in 0..4 {
                matrix[i][j] += row[i] * row[j];
            }
            matrix[i][4] += row[i];
        }
    }
    let scale: [f64; 4] = std::array::from_fn(|i| matrix[i][i]);
    let mut solved = [false; 4];
    for pivot in (0..4).filter(|&i| used[i]) {
        // What is left of the column once the others are taken out.
        if matrix[pivot][pivot] <= scale[pivot] * 1e-9 {
            continue;
        }
        solved[pivot] = true;
        let divisor = matrix[pivot][pivot];
        matrix[pivot].iter_mut().for_each(|x| *x /= divisor);
        let line = matrix[pivot];
        for (other, row) in matrix.iter_mut().enumerate() {
            if other != pivot {
                let factor = row[pivot];
                row.iter_mut().zip(line).for_each(|(x, y)| *x -= factor * y);
            }
        }
    }
    std::array::from_fn(|i| if solved[i] { matrix[i][4] } else { 0.0 })
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
            new: 0.0,
            nanos: 100.0,
        };
        let found = fit(&[one; 3]);
        let total = found.batch * 0.03 + found.packet + found.byte * 60.0;
        assert!((total - 100.0).abs() < 0.1, "{found:?}");
        assert_eq!(fit(&[]), ServiceCosts::default());
    }
}
