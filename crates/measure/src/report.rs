//! What is told of latencies. Field names are stable.

use crate::histogram::LatencyHistogram;
use serde::{Deserialize, Serialize};

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The longest, exactly.
    pub max: f64,
    /// Mean, exactly.
    pub mean: f64,
}

impl LatencyReport {
    /// Those that were counted; all zero if none were.
    pub fn of(histogram: &LatencyHistogram) -> LatencyReport {
        let percentile = |p| histogram.percentile(p).as_micros_f64();
        LatencyReport {
            p50: percentile(50.0),
            p90: percentile(90.0),
            p99: percentile(99.0),
            p999: percentile(99.9),
            max: histogram.max().as_micros_f64(),
            mean: histogram.sum().as_micros_f64() / histogram.total().max(1) as f64,
        }
    }
}

/// A point of the distribution of latencies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistributionPoint {
    /// A latency, in microseconds.
    pub latency_us: f64,
    /// Delivered packets that did not take longer.
    pub packets: u64,
}

impl DistributionPoint {
    /// The distribution of what was counted, in steps of less than 3.2 %.
    pub fn all(histogram: &LatencyHistogram) -> Vec<DistributionPoint> {
        let points = histogram.coarse_cumulative();
        let point = |(value, packets): (tailwater_net::Nanos, u64)| DistributionPoint {
            latency_us: value.min(histogram.max()).as_micros_f64(),
            packets,
        };
        points.map(point).collect()
    }
}
