//! Latency section of a report. Field names are stable.

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
    /// Maximum, exact.
    pub max: f64,
    /// Mean, exact.
    pub mean: f64,
}

impl LatencyReport {
    /// Summary of a histogram. All zero if it is empty.
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

/// Point of the cumulative latency distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistributionPoint {
    /// Latency in microseconds.
    pub latency_us: f64,
    /// Delivered packets with at most this latency.
    pub packets: u64,
}

impl DistributionPoint {
    /// Distribution of a histogram, in steps of less than 3.2 %.
    pub fn all(histogram: &LatencyHistogram) -> Vec<DistributionPoint> {
        let points = histogram.coarse_cumulative();
        let point = |(value, packets): (tailwater_net::Nanos, u64)| DistributionPoint {
            latency_us: value.min(histogram.max()).as_micros_f64(),
            packets,
        };
        points.map(point).collect()
    }
}
