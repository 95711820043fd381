//! Caps: the rates at which the instances of an SLO police traffic beyond its limit.
//!
//! The `policer` function counts on one server. So a cap is divided among instances in proportion to their rates.
//! Together they pass exactly the cap, and each passes its part of the traffic.

use crate::cluster::Cluster;
use crate::demand::Demand;
use crate::plan::Placed;
use tailwater_net::Nanos;

/// Minimum burst in packets: a batch.
pub const LEAST_BURST: u64 = 32;

/// Parameters of the policer in front of an instance's chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policed {
    /// Packets per second.
    pub rate: u64,
    /// Maximum packets at once: those that arrive at this rate within the SLO's latency, and at least a batch.
    pub burst: u64,
}

/// Returns the policing parameters of each instance of an SLO, or an empty list without a cap. The rates add up to the
/// cap, unless it is smaller than the number of instances: each rate is at least 1.
pub fn policed(placed: &Placed, cluster: &Cluster) -> Vec<Policed> {
    let Placed { slo, instances, .. } = placed;
    let (Some(cap), Ok(demand)) = (slo.cap, Demand::new(slo, cluster)) else {
        return Vec::new();
    };
    let rates = instances.iter().map(|instance| {
        let kind = cluster.servers()[instance.server].kind;
        demand.rate(kind, instance.ways)
    });
    let rates: Vec<f64> = rates.collect();
    let total: f64 = rates.iter().sum();
    let (mut sum, mut given) = (0.0, 0);
    let part = |(number, rate): (usize, f64)| {
        sum += rate;
        // Rounded prefix sum: the rounding error moves on to the next instance, and vanishes at the last.
        let until = match number + 1 == instances.len() || total <= 0.0 {
            true => cap,
            false => ((cap as f64 * (sum / total)) as u64).clamp(given, cap),
        };
        let rate = (until - given).max(1);
        given = until;
        Policed {
            rate,
            burst: burst(rate, slo.latency),
        }
    };
    rates.into_iter().enumerate().map(part).collect()
}

/// Burst of a cap, in packets: those that arrive at this rate within the objective, and at least a batch.
pub(crate) fn burst(rate: u64, latency: Nanos) -> u64 {
    let packets = u128::from(rate) * u128::from(latency.0);
    (packets.div_ceil(1_000_000_000) as u64).max(LEAST_BURST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Instance;
    use crate::published::{LPM, Mix, server, slos};
    use crate::schedule::Request;

    /// Returns an SLO with instances of one way and of two.
    fn placed(cap: Option<u64>) -> (Placed, Cluster) {
        let cluster = Cluster::uniform(server(), 2).expect("servers");
        let mut slo = slos(Mix {
            name: "one",
            functions: &[LPM],
            slos: 1,
        })
        .expect("curves")
        .remove(0);
        slo.cap = cap;
        let cheapest = Request::new(slo.clone(), &cluster).expect("a server holds it").cheapest;
        let instance = |server, ways| Instance { server, node: 0, ways };
        let instances = vec![instance(0, 2), instance(0, 1), instance(1, 1)];
        let placed = Placed {
            slo,
            instances,
            cheapest,
        };
        (placed, cluster)
    }

    #[test]
    fn the_parts_of_a_cap_are_all_of_it_by_what_instances_do() {
        for cap in [3, 1_000_003, 12_000_000] {
            let (placed, cluster) = placed(Some(cap));
            let parts = policed(&placed, &cluster);
            assert_eq!(parts.iter().map(|part| part.rate).sum::<u64>(), cap);
            // LPM reaches 87 % with two ways, and 70 % with one.
            if cap > 3 {
                let first = parts[0].rate as f64 / cap as f64;
                assert!((first - 87.0 / 227.0).abs() < 1e-5, "{parts:?}");
                assert!(parts[1].rate.abs_diff(parts[2].rate) <= 1);
            }
        }
        let (placed, cluster) = placed(None);
        assert_eq!(policed(&placed, &cluster), []);
    }

    #[test]
    fn bursts_are_what_comes_within_the_latency_and_a_batch_at_least() {
        assert_eq!(burst(1_000_000, Nanos::from_micros(200)), 200);
        assert_eq!(burst(1_000_001, Nanos::from_micros(200)), 201);
        assert_eq!(burst(1, Nanos::from_micros(1)), LEAST_BURST);
    }
}
