//! The traffic that a chain is measured with.

use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, Trace, TrafficError};

/// Flows that are new, packet by packet in turn, then as many others, and so on: minnows.
///
/// A block has `flows` flows with `each` packets each, in rounds: every round has one packet of each
/// flow of the block.
pub(crate) struct Minnows {
    flows: u32,
    each: u32,
    size: FrameSize,
    /// Packets yet to come.
    left: u64,
    /// The block at hand, its number, and packets of it yet to come.
    block: Option<Uniform>,
    number: u64,
    left_in_block: u64,
}

impl Minnows {
    /// `packets` packets, rounded up to whole blocks.
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

    /// Flows that any `packets` successive packets are certain to be of.
    pub(crate) fn certain_flows(flows: u32, each: u32, packets: u32) -> u32 {
        if each == 1 {
            // No flow has a second packet.
            return packets;
        }
        // So many hold a whole round; fewer hold at least half of theirs from one round, or belong
        // to two blocks, whose flows differ.
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
                // Times are set when it is loaded.
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

/// The first packets of a trace, with their times.
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

/// Loads a source, evenly spaced at `rate` packets a second.
pub(crate) fn evenly(source: &mut dyn PacketSource, rate: f64) -> Result<Trace, TrafficError> {
    let options = LoadOptions {
        rate_pps: Some(rate.clamp(1.0, 1e9)),
        ..LoadOptions::default()
    };
    Trace::load(source, &options)
}

/// A copy of a trace's first `packets` packets, at a mean rate of so many packets a second, with
/// its bursts. A trace without duration is spaced evenly.
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

/// So many flows in turn, evenly spaced.
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

/// Frames of about so many bytes, without check sequence.
pub(crate) fn frames(bytes: f64) -> FrameSize {
    FrameSize::Fixed((bytes + 4.0).round().clamp(64.0, 1518.0) as u16)
}
