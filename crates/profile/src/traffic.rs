//! Traffic that a chain is measured with.

use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, Trace, TrafficError};

/// Minnows, that is, short flows: blocks of new flows, one after the other.
///
/// A block has `flows` flows with `each` packets each, in rounds of one packet per flow.
pub(crate) struct Minnows {
    flows: u32,
    each: u32,
    size: FrameSize,
    /// Remaining packets.
    left: u64,
    /// Current block, its number, and its remaining packets.
    block: Option<Uniform>,
    number: u64,
    left_in_block: u64,
}

impl Minnows {
    /// Generates `packets` packets, rounded up to whole blocks.
    pub(crate) fn new(flows: u32, each: u32, size: FrameSize, packets: u64) -> Minnows {
        let block = u64::from(flows) * u64::from(each);
        Minnows {
            flows,
            each,
            size,
            left: packets.next_multiple_of(block.max(1)),
            block: None,
            number: 0,
            left_in_block: 0,
        }
    }

    /// Returns the minimum number of flows among any `packets` successive packets.
    pub(crate) fn certain_flows(flows: u32, each: u32, packets: u32) -> u32 {
        if each == 1 {
            // Each flow has a single packet.
            return packets;
        }
        // This many contain a whole round. Fewer have at least half of theirs in one round, or span two blocks, whose
        // flows differ.
        if packets >= (2 * flows).saturating_sub(1) {
            flows
        } else {
            packets.div_ceil(2).min(flows)
        }
    }
}

impl PacketSource for Minnows {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        if self.left == 0 {
            return Ok(None);
        }
        if self.left_in_block == 0 {
            self.left_in_block = u64::from(self.flows) * u64::from(self.each);
            self.number += 1;
            self.block = Some(Uniform::new(UniformConfig {
                seed: self.number,
                flows: self.flows,
                size: self.size,
                transport: Transport::Tcp,
                // Arrival times are set on loading.
                rate_pps: 1_000_000,
                packets: self.left_in_block,
            })?);
        }
        self.left -= 1;
        self.left_in_block -= 1;
        match &mut self.block {
            Some(block) => block.next_packet(),
            None => Ok(None),
        }
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "minnows"
    }
}

/// First packets of a trace, with their times.
struct First<'a> {
    source: Box<dyn PacketSource + 'a>,
    left: usize,
}

impl PacketSource for First<'_> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.source.next_packet()
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        self.source.name()
    }
}

/// Loads a source, evenly spaced at `rate` packets per second.
pub(crate) fn evenly(source: &mut dyn PacketSource, rate: f64) -> Result<Trace, TrafficError> {
    let options = LoadOptions {
        rate_pps: Some(rate.clamp(1.0, 1e9)),
        ..LoadOptions::default()
    };
    Trace::load(source, &options)
}

/// Copies a trace's first `packets` packets, scaled to a mean of `rate` packets per second. Bursts are preserved; a
/// trace without duration is spaced evenly.
pub(crate) fn at_rate(trace: &Trace, packets: usize, rate: f64) -> Result<Trace, TrafficError> {
    let mut first = First {
        source: Box::new(trace.source()),
        left: packets,
    };
    if trace.duration().0 == 0 || trace.len() < 2 {
        return evenly(&mut first, rate);
    }
    let mut copy = Trace::load(&mut first, &LoadOptions::default())?;
    let own = 1.0 / copy.mean_gap().as_secs_f64();
    copy.scale_rate(rate.max(1.0) / own)?;
    Ok(copy)
}

/// Returns `flows` flows in round-robin order, evenly spaced.
pub(crate) fn steady(flows: u32, size: FrameSize, packets: u64, rate: f64) -> Result<Trace, TrafficError> {
    let mut source = Uniform::new(UniformConfig {
        seed: 1,
        flows,
        size,
        transport: Transport::Tcp,
        rate_pps: 1_000_000,
        packets,
    })?;
    evenly(&mut source, rate)
}

/// Frames of about `bytes` bytes, without check sequence.
pub(crate) fn frames(bytes: f64) -> FrameSize {
    FrameSize::Fixed((bytes + 4.0).round().clamp(64.0, 1518.0) as u16)
}
