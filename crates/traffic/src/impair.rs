//! Traffic made worse on purpose: packets lost, repeated, delayed, overtaken, damaged.
//!
//! For tests of what has to bear it. The same seed does the same to the same packets; what was done is counted, so
//! that a test knows what to expect: packets yielded = read - lost + repeated.

use crate::generate::random::Random;
use crate::packet::MAX_FRAME;
use crate::{Notice, Packet, PacketSource, TrafficError};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tailwater_net::Nanos;

/// What is done, and how often: probabilities for each packet, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impairments {
    /// Selects one of 2^64 streams of mischief.
    pub seed: u64,
    /// The packet is lost.
    pub lose: f64,
    /// It comes again, once to three times, each up to [`delay_max`](Self::delay_max) later.
    pub repeat: f64,
    /// It alone is up to [`delay_max`](Self::delay_max) late, so that others overtake it.
    pub overtake: f64,
    /// From it on, everything is held up to [`delay_max`](Self::delay_max), and then comes at once, in order.
    pub stall: f64,
    /// Bits of it are flipped, or it is cut, or has bytes behind it that are none of its own.
    pub damage: f64,
    /// The longest delay.
    pub delay_max: Nanos,
}

impl Impairments {
    /// Nothing: to name only what is wanted.
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

/// What was done, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Packets that came from the source.
    pub read: u64,
    /// Of those, lost.
    pub lost: u64,
    /// Packets yielded beside the first of their kind.
    pub repeated: u64,
    /// Delayed alone.
    pub delayed: u64,
    /// Stalls.
    pub stalls: u64,
    /// Damaged; each of a repeated packet's copies is damaged for itself.
    pub damaged: u64,
    /// Packets yielded.
    pub yielded: u64,
}

/// A packet that is held. The earliest is the greatest; at equal times the one that was read first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    order: Reverse<(Nanos, u64)>,
    wire_length: u32,
    data: Vec<u8>,
}

/// A source around another one. Its packets are sorted by time, also where the other's are not.
#[derive(Debug)]
pub struct Impaired<S> {
    source: S,
    impairments: Impairments,
    random: Random,
    held: BinaryHeap<Held>,
    /// The packet yielded last.
    current: Vec<u8>,
    /// The latest time read.
    now: Nanos,
    /// Until when everything is held.
    stalled_until: Nanos,
    /// Packets put in so far.
    number: u64,
    ended: bool,
    done: Done,
}

impl<S: PacketSource> Impaired<S> {
    /// Does all this to the packets of `source`. Those of a delay are held, and no more.
    ///
    /// # Errors
    /// [`TrafficError::Setting`] if a probability is none.
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

    /// What was done so far; of packets that are still held, too, but for those yielded.
    pub fn done(&self) -> Done {
        self.done
    }

    /// Reads a packet and decides what becomes of it. Whether there was one.
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
        // Whatever is read from now on comes no earlier than what was read last.
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

/// Changes a frame, which keeps at least one byte: always in some way.
fn damage(data: &mut Vec<u8>, random: &mut Random) {
    let length = data.len() as u64;
    match random.below(4) {
        0 if length > 1 => data.truncate(random.between(1, length - 1) as usize),
        1 if data.len() < MAX_FRAME => {
            let more = random.between(1, 64).min(MAX_FRAME as u64 - length);
            data.extend((0..more).map(|_| random.below(256) as u8));
        }
        // What is wrong in headers goes furthest: half of the flips are there.
        way => {
            let reach = if way == 2 { length.min(54) } else { length };
            // An odd number of flips of one bit each cannot undo itself.
            for _ in 0..2 * random.below(4) + 1 {
                let bit = random.below(8 * reach);
                data[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
        }
    }
}

#[cfg(test)]
mod tests;
