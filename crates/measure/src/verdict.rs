//! Verdict on a latency objective, and reasons for none.

use serde::Serialize;

/// Tolerance for percentiles without an exact binary fraction.
const ROUNDING: f64 = 1e-9;

/// Reason for which there is no verdict on an objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoVerdict {
    /// No packet arrived for the chain.
    NoPackets,
    /// The chain dropped all packets.
    AllDropped,
    /// Fewer packets were delivered or lost than the percentile [requires](packets_required).
    TooFewPackets,
    /// The port lost packets that may be the chain's, and with which it would have missed the objective.
    PortLoss,
}

/// Decides whether an objective was met: `percentile` percent of `owed` packets, those delivered or lost, were in time.
/// `late` of them were late or lost.
///
/// A percentile says nothing about fewer packets than it [requires](packets_required). They are judged only if the
/// objective would be missed with any number of further packets in time up to that one.
///
/// # Errors
/// The reason if there are too few packets. `offered` packets arrived, including those the chain dropped.
pub fn verdict(offered: u64, owed: u64, late: u64, percentile: f64) -> Result<bool, NoVerdict> {
    let required = packets_required(percentile);
    if !is_within(late, owed.max(required), percentile) {
        return Ok(false);
    }
    match (offered.max(owed), owed) {
        (0, _) => Err(NoVerdict::NoPackets),
        (_, 0) => Err(NoVerdict::AllDropped),
        (_, owed) if owed < required => Err(NoVerdict::TooFewPackets),
        _ => Ok(true),
    }
}

/// Returns `true` if at most the share of packets is late or lost that a percentile allows.
pub fn is_within(late: u64, packets: u64, percentile: f64) -> bool {
    let in_time = packets as f64 - late as f64;
    in_time * 100.0 >= packets as f64 * (percentile - ROUNDING)
}

/// Returns the minimum number of packets for a verdict on a percentile: of so many, one may be late. 100 for the 99th
/// percentile, and 1 for 100 %.
pub fn packets_required(percentile: f64) -> u64 {
    let packets = 100.0 / (100.0 - percentile) * (1.0 - ROUNDING);
    match packets.is_finite() && packets > 0.0 {
        true => packets.ceil() as u64,
        false => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_packet_of_those_required_may_be_late() {
        for (percentile, packets) in [
            (50.0, 2),
            (90.0, 10),
            (99.0, 100),
            (99.9, 1000),
            (99.99, 10_000),
            (99.999, 100_000),
        ] {
            assert_eq!(packets_required(percentile), packets, "{percentile}");
            assert_eq!(verdict(packets, packets, 1, percentile), Ok(true), "{percentile}");
            assert_eq!(verdict(packets, packets, 2, percentile), Ok(false), "{percentile}");
        }
        assert_eq!(packets_required(100.0), 1);
        assert_eq!(verdict(1, 1, 0, 100.0), Ok(true));
        assert_eq!(verdict(1, 1, 1, 100.0), Ok(false));
    }

    #[test]
    fn too_few_packets_have_no_verdict_unless_the_objective_is_missed_in_any_case() {
        assert_eq!(verdict(0, 0, 0, 99.0), Err(NoVerdict::NoPackets));
        assert_eq!(verdict(7, 0, 0, 99.0), Err(NoVerdict::AllDropped));
        assert_eq!(verdict(99, 99, 0, 99.0), Err(NoVerdict::TooFewPackets));
        assert_eq!(verdict(200, 99, 0, 99.0), Err(NoVerdict::TooFewPackets));
        assert_eq!(verdict(200, 100, 0, 99.0), Ok(true));
        // With 90 more packets in time, 1 % would be late.
        assert_eq!(verdict(10, 10, 1, 99.0), Err(NoVerdict::TooFewPackets));
        assert_eq!(verdict(10, 10, 2, 99.0), Ok(false));
    }
}
