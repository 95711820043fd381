//! Traffic impairments: packets lost, repeated, delayed, reordered, damaged.
//!
//! For tests of robustness. The same seed has the same effect on the same packets. The effects are counted, so that a
//! test can compute its expectation: packets yielded = read - lost + repeated.

use crate::generate::random::Random;
use crate::packet::MAX_FRAME;
use crate::{Notice, Packet, PacketSource, TrafficError};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tailwater_net::Nanos;

/// Impairments with their probabilities per packet, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impairments {
    /// Seed that selects one of 2^64 random streams.
    pub seed: u64,
    /// Loss of the packet.
    pub lose: f64,
    /// Repetition, one to three times, each up to [`delay_max`](Self::delay_max) later.
    pub repeat: f64,
    /// Delay of the packet alone by up to [`delay_max`](Self::delay_max), so that others overtake it.
    pub overtake: f64,
    /// Stall: this and later packets are held for up to [`delay_max`](Self::delay_max), then released at once, in
    /// order.
    pub stall: f64,
    /// Damage: bits are flipped, the packet is truncated, or bytes are appended.
    pub damage: f64,
    /// Maximum delay.
    pub delay_max: Nanos,
}

impl Impairments {
    /// No impairments, as a base for struct update syntax.
    pub const NONE: Impairments = Impairments {
        seed: 0,
        lose: 0.0,
        repeat: 0.0,
        overtake: 0.0,
        stall: 0.0,
        damage: 0.0,
        delay_max: Nanos::from_millis(1),
    };

    fn validate(&self) -> Result<(), TrafficError> {
        for (field, value) in [
            ("lose", self.lose),
            ("repeat", self.repeat),
            ("overtake", self.overtake),
            ("stall", self.stall),
            ("damage", self.damage),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(TrafficError::setting(field, value, "0 to 1"));
            }
        }
        Ok(())
    }
}

/// Applied impairments, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Packets read from the source.
    pub read: u64,
    /// Packets lost.
    pub lost: u64,
    /// Additional copies of packets.
    pub repeated: u64,
    /// Packets delayed alone.
    pub delayed: u64,
    /// Number of stalls.
    pub stalls: u64,
    /// Packets damaged; copies of a packet are damaged independently.
    pub damaged: u64,
    /// Packets yielded.
    pub yielded: u64,
}

/// Buffered packet. The earliest is the greatest; at equal times the one that was read first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    order: Reverse<(Nanos, u64)>,
    wire_length: u32,
    data: Vec<u8>,
}

/// Source that impairs another one. Its packets are sorted by time, even if the other's are not.
#[derive(Debug)]
pub struct Impaired<S> {
    source: S,
    impairments: Impairments,
    random: Random,
    held: BinaryHeap<Held>,
    /// Last packet yielded.
    current: Vec<u8>,
    /// Latest time read.
    now: Nanos,
    /// End of the current stall.
    stalled_until: Nanos,
    /// Number of packets buffered so far.
    number: u64,
    ended: bool,
    done: Done,
}

impl<S: PacketSource> Impaired<S> {
    /// Applies the impairments to the packets of `source`. It buffers only packets within the maximum delay.
    ///
    /// # Errors
    /// [`TrafficError::Setting`] if a probability is not between 0 and 1.
    pub fn new(source: S, impairments: Impairments) -> Result<Impaired<S>, TrafficError> {
        impairments.validate()?;
        Ok(Impaired {
            source,
            random: Random::new(impairments.seed),
            impairments,
            held: BinaryHeap::new(),
            current: Vec::new(),
            now: Nanos::ZERO,
            stalled_until: Nanos::ZERO,
            number: 0,
            ended: false,
            done: Done::default(),
        })
    }

    /// Returns the impairments applied so far. They include packets still buffered, except for `yielded`.
    pub fn done(&self) -> Done {
        self.done
    }

    /// Reads a packet and applies impairments to it. Returns `false` at the end.
    fn read(&mut self) -> Result<bool, TrafficError> {
        let Some(packet) = self.source.next_packet()? else {
            return Ok(false);
        };
        let (random, done, what) = (&mut self.random, &mut self.done, &self.impairments);
        let mut happens = |probability: f64| random.unit() <= probability;
        let [lose, repeat, overtake, stall] = [what.lose, what.repeat, what.overtake, what.stall].map(&mut happens);
        done.read += 1;
        self.now = self.now.max(packet.timestamp);
        let delay = |random: &mut Random| Nanos(random.below(what.delay_max.0.saturating_add(1)));
        if stall {
            done.stalls += 1;
            let until = self.now + delay(random);
            self.stalled_until = self.stalled_until.max(until);
        }
        if lose {
            done.lost += 1;
            return Ok(true);
        }
        let came = self.now.max(self.stalled_until);
        let copies = if repeat { random.between(1, 3) } else { 0 };
        for copy in 0..=copies {
            let mut data = packet.data.to_vec();
            if random.unit() <= what.damage {
                done.damaged += 1;
                damage(&mut data, random);
            }
            let mut time = came;
            if copy > 0 {
                done.repeated += 1;
                time += delay(random);
            } else if overtake {
                done.delayed += 1;
                time += delay(random);
            }
            self.held.push(Held {
                order: Reverse((time, self.number)),
                wire_length: packet.wire_length.max(data.len() as u32),
                data,
            });
            self.number += 1;
        }
        Ok(true)
    }
}

impl<S: PacketSource> PacketSource for Impaired<S> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        // A packet read later is never due before the latest time read.
        let due = |held: &Held, now| held.order.0.0 < now;
        while !self.ended && !self.held.peek().is_some_and(|held| due(held, self.now)) {
            self.ended = !self.read()?;
        }
        let Some(held) = self.held.pop() else {
            return Ok(None);
        };
        self.done.yielded += 1;
        self.current = held.data;
        Ok(Some(Packet {
            timestamp: held.order.0.0,
            data: &self.current,
            wire_length: held.wire_length,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        self.source.notices()
    }

    fn name(&self) -> &str {
        self.source.name()
    }
}

/// Changes a frame, in every case, and leaves at least one byte.
fn damage(data: &mut Vec<u8>, random: &mut Random) {
    let length = data.len() as u64;
    match random.below(4) {
        0 if length > 1 => data.truncate(random.between(1, length - 1) as usize),
        1 if data.len() < MAX_FRAME => {
            let more = random.between(1, 64).min(MAX_FRAME as u64 - length);
            data.extend((0..more).map(|_| random.below(256) as u8));
        }
        // Damaged headers have the largest effect, so half of the bit flips are in them.
        way => {
            let reach = if way == 2 { length.min(54) } else { length };
            // An odd number of bit flips cannot cancel out.
            for _ in 0..2 * random.below(4) + 1 {
                let bit = random.below(8 * reach);
                data[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
        }
    }
}

#[cfg(test)]
mod tests;
