//! Burst maxima over sliding windows.

use serde::Serialize;
use tailwater_net::Nanos;

use super::nanos::as_nanos;

/// Burst maxima: the largest amounts that fall into any window of a given length.
///
/// A window is half open, `[t, t + window)`, and slides: the maximum is over every `t`, not only over multiples of the
/// length. (A tumbling window, which starts at multiples only, finds between half of it and all of it.)
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Burst {
    /// Length of the window (in JSON `window_ns`).
    #[serde(rename = "window_ns", serialize_with = "as_nanos")]
    pub window: Nanos,
    /// Maximum number of packets.
    pub max_packets: u64,
    /// Maximum bytes of frames, without frame check sequences.
    pub max_bytes: u64,
    /// Maximum number of packets of one flow (a whale).
    pub max_flow_packets: u64,
    /// Maximum number of flows whose first packet falls into the window (minnows).
    pub max_new_flows: u64,
}

impl Burst {
    /// Returns [`Burst::max_packets`] as a rate.
    pub fn peak_packets_per_second(&self) -> f64 {
        self.max_packets as f64 / self.window.as_secs_f64()
    }

    /// Returns [`Burst::max_bytes`] as a rate.
    pub fn peak_bits_per_second(&self) -> f64 {
        self.max_bytes as f64 * 8.0 / self.window.as_secs_f64()
    }
}

/// Packet data that windows require: 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) time: Nanos,
    /// Index of the flow, or [`NO_FLOW`].
    pub(super) flow: u32,
    /// Length of the frame in bytes.
    pub(super) length: u16,
    /// `true` for its flow's first packet.
    pub(super) first: bool,
}

/// Flow index of packets without a flow.
pub(super) const NO_FLOW: u32 = u32::MAX;

/// Computes the maxima over all positions of a window. `samples` are in order of time, and their flows are below
/// `flows`. Takes time proportional to the packets, and 4 bytes per flow.
pub(super) fn burst(samples: &[Sample], flows: usize, window: Nanos) -> Burst {
    let mut burst = Burst {
        window,
        max_packets: 0,
        max_bytes: 0,
        max_flow_packets: 0,
        max_new_flows: 0,
    };
    // Packets in the window that ends with the current packet. Every maximum occurs in a window that ends with a
    // packet, so only those are examined.
    let mut in_window = vec![0u32; flows];
    let (mut oldest, mut bytes, mut new_flows) = (0, 0u64, 0u64);
    for (i, sample) in samples.iter().enumerate() {
        while sample.time.saturating_sub(samples[oldest].time) >= window && oldest < i {
            let left = &samples[oldest];
            bytes -= u64::from(left.length);
            new_flows -= u64::from(left.first);
            if let Some(count) = in_window.get_mut(left.flow as usize) {
                *count -= 1;
            }
            oldest += 1;
        }
        bytes += u64::from(sample.length);
        new_flows += u64::from(sample.first);
        if let Some(count) = in_window.get_mut(sample.flow as usize) {
            *count += 1;
            burst.max_flow_packets = burst.max_flow_packets.max(u64::from(*count));
        }
        burst.max_packets = burst.max_packets.max((i - oldest + 1) as u64);
        burst.max_bytes = burst.max_bytes.max(bytes);
        burst.max_new_flows = burst.max_new_flows.max(new_flows);
    }
    burst
}
