//! Sorts the touched lines of a recording: packets, hot lines, others.

use crate::recording::{Recording, Touch};
use std::collections::HashMap;
use tailwater_socket::MAX_PARALLEL_MISSES;

/// Instructions within which misses proceed in parallel: the order of a reorder buffer's size.
const WINDOW: u64 = 256;

/// Touches of a recording.
pub struct Lines {
    /// Lines of a packet that are only read, or written, each per packet.
    pub packet_reads: f64,
    pub packet_writes: f64,
    pub hot_bytes: f64,
    pub hot_reads: f64,
    pub hot_writes: f64,
    /// Touches of other lines.
    pub others: Vec<Touch>,
    pub packets: f64,
    /// Mean number of these that proceed in parallel.
    pub parallel: f64,
}

impl Lines {
    pub fn of(recording: &Recording) -> Lines {
        let packets = 1.0 / recording.per_packet(1);
        let mut batches: HashMap<u64, u32> = HashMap::new();
        for touch in &recording.touches {
            *batches.entry(touch.line).or_default() += 1;
        }
        let [first, last, stride] = recording.addresses.buffers;
        // Headers may be put in front of a frame, within its buffer.
        let frames = (first - 128) / 64..=(last + stride - 129) / 64;
        let is_hot = |line: u64| batches[&line] * 4 >= recording.batches;
        let [mut packet, mut hot] = [[0.0; 2]; 2];
        let mut others = Vec::new();
        for touch in &recording.touches {
            if frames.contains(&touch.line) {
                packet[usize::from(touch.is_written)] += 1.0 / packets;
            } else if is_hot(touch.line) {
                hot[usize::from(touch.is_written)] += 1.0 / packets;
            } else {
                others.push(*touch);
            }
        }
        let hot_lines = batches
            .keys()
            .filter(|&&line| !frames.contains(&line) && is_hot(line))
            .count();
        // Not only other lines miss: those of packets do, too, and are prefetched.
        let touched = others.len() as f64 / packets + packet[0] + packet[1];
        let prefetched = (recording.per_packet(recording.prefetches) / touched).min(1.0);
        let near = near(&others).clamp(1.0, MAX_PARALLEL_MISSES);
        Lines {
            packet_reads: packet[0] + packet[1],
            packet_writes: packet[1],
            hot_bytes: hot_lines as f64 * 64.0,
            hot_reads: hot[0],
            hot_writes: hot[1],
            others,
            packets,
            parallel: 1.0 / (prefetched / MAX_PARALLEL_MISSES + (1.0 - prefetched) / near),
        }
    }
}

/// Mean number of touches within half a window before and after each, itself included.
fn near(touches: &[Touch]) -> f64 {
    let mut sum = 0;
    let mut first = 0;
    for (index, touch) in touches.iter().enumerate() {
        while (touches[first].batch, touches[first].at + WINDOW / 2) < (touch.batch, touch.at) {
            first += 1;
        }
        // Each earlier one within half a window counts for both.
        sum += 1 + 2 * (index - first);
    }
    sum as f64 / touches.len().max(1) as f64
}
