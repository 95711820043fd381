//! Tunable competitor.

use crate::workload::{Order, PacketIo, Region, Workload};

/// Competitor whose load on each shared resource can be set (SLOMO §5: packet buffers, reads and writes per packet,
/// size of the structure, rate, packet size).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Competitor {
    /// Receive descriptors, each with a buffer.
    pub descriptors: u64,
    /// Random reads of the structure per packet.
    pub reads: f64,
    /// Random writes of the structure per packet.
    pub writes: f64,
    /// Size of the structure.
    pub bytes: u64,
    /// Rate of arriving packets, or as many as the core can process.
    pub packets_per_second: Option<f64>,
    /// Length of a frame.
    pub frame_bytes: u64,
}

impl Competitor {
    /// Workload of this competitor. A packet costs 200 instructions, as a light function does, and 8 per access.
    pub fn workload(&self) -> Workload {
        let Competitor {
            descriptors,
            reads,
            writes,
            bytes,
            packets_per_second,
            frame_bytes,
        } = *self;
        Workload {
            name: "synthetic".to_owned(),
            instructions: 200.0 + 8.0 * (reads + writes),
            base_ipc: 2.5,
            packets_per_second,
            io: Some(PacketIo {
                frame_bytes,
                descriptors,
                reads: 1.0,
                writes: 1.0,
                parallel: 4.0,
            }),
            regions: vec![Region {
                name: "structure".to_owned(),
                bytes,
                reads,
                writes,
                order: Order::Random,
                parallel: 4.0,
            }],
        }
    }
}
