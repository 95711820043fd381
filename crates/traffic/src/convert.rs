//! Transformations of traffic: cut, merge, change of speed, overlay.
//!
//! Each is a [`PacketSource`] around others, and holds at most one packet of each. Bytes of packets change only where
//! flows are renumbered, and their checksums with them.

use tailwater_net::Nanos;
use tailwater_net::parse::parse;

use crate::renumber::Renumbering;
use crate::{Notice, Packet, PacketSource, TrafficError};

/// Maximum number of overlaid copies.
pub const MOST_COPIES: u32 = 1_024;

/// Buffered packet.
#[derive(Clone, Debug, Default)]
struct Held {
    timestamp: Nanos,
    data: Vec<u8>,
    wire_length: u32,
}

impl Held {
    /// Buffers the source's next packet. Returns `false` if there is none.
    fn take<S: PacketSource + ?Sized>(&mut self, source: &mut S) -> Result<bool, TrafficError> {
        let Some(packet) = source.next_packet()? else {
            return Ok(false);
        };
        self.data.clear();
        self.data.extend_from_slice(packet.data);
        (self.timestamp, self.wire_length) = (packet.timestamp, packet.wire_length);
        Ok(true)
    }

    fn packet(&self) -> Packet<'_> {
        Packet {
            timestamp: self.timestamp,
            data: &self.data,
            wire_length: self.wire_length,
        }
    }
}

/// Merge of several sources by time. At equal times, the earlier source in the list comes first.
///
/// Times are those of the sources. A source that is not sorted by time stays unsorted.
#[derive(Debug)]
pub struct Merge<S> {
    name: String,
    sources: Vec<S>,
    /// Next packet of each source, and whether there is one.
    heads: Vec<(Held, bool)>,
    /// Source whose packet was yielded last, to be replaced.
    taken: Option<usize>,
    started: bool,
}

impl<S: PacketSource> Merge<S> {
    /// Merges these sources.
    pub fn new(sources: Vec<S>) -> Self {
        let names: Vec<&str> = sources.iter().map(|source| source.name()).collect();
        let name = match names[..] {
            [one] => one.to_owned(),
            [first, .., last] => format!("{first} to {last}"),
            [] => String::new(),
        };
        let heads = sources.iter().map(|_| (Held::default(), false)).collect();
        Merge {
            name,
            sources,
            heads,
            taken: None,
            started: false,
        }
    }

    fn fill(&mut self, index: usize) -> Result<(), TrafficError> {
        let (held, present) = &mut self.heads[index];
        *present = held.take(&mut self.sources[index])?;
        Ok(())
    }
}

impl<S: PacketSource> PacketSource for Merge<S> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        if !self.started {
            self.started = true;
            for index in 0..self.sources.len() {
                self.fill(index)?;
            }
        } else if let Some(index) = self.taken.take() {
            self.fill(index)?;
        }
        let present = self.heads.iter().enumerate().filter(|(_, head)| head.1);
        self.taken = present.min_by_key(|(_, head)| head.0.timestamp).map(|(index, _)| index);
        Ok(self.taken.map(|index| self.heads[index].0.packet()))
    }

    fn notices(&self) -> Vec<Notice> {
        self.sources.iter().flat_map(S::notices).collect()
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// Part of a source. Times count from its first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Start of the part, inclusive.
    pub from: Nanos,
    /// End of the part, exclusive.
    pub to: Nanos,
    /// Maximum number of packets.
    pub packets: u64,
}

impl Part {
    /// The whole source.
    pub const ALL: Part = Part {
        from: Nanos::ZERO,
        to: Nanos::MAX,
        packets: u64::MAX,
    };
}

/// Source cut to a part.
#[derive(Debug)]
pub struct Cut<S> {
    source: S,
    part: Part,
    start: Option<Nanos>,
    held: Held,
}

impl<S: PacketSource> Cut<S> {
    /// Cuts `source` to this part.
    pub fn new(source: S, part: Part) -> Self {
        Cut {
            source,
            part,
            start: None,
            held: Held::default(),
        }
    }
}

impl<S: PacketSource> PacketSource for Cut<S> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        while self.part.packets > 0 && self.held.take(&mut self.source)? {
            let start = *self.start.get_or_insert(self.held.timestamp);
            let since = self.held.timestamp.saturating_sub(start);
            // A source may be unsorted: later packets may lie inside the part again.
            if since >= self.part.from && since < self.part.to {
                self.part.packets -= 1;
                return Ok(Some(self.held.packet()));
            }
        }
        Ok(None)
    }

    fn notices(&self) -> Vec<Notice> {
        self.source.notices()
    }

    fn name(&self) -> &str {
        self.source.name()
    }
}

/// Source at another speed: times since the first packet are divided by a factor.
#[derive(Debug)]
pub struct Speed<S> {
    source: S,
    factor: f64,
    start: Option<Nanos>,
}

impl<S: PacketSource> Speed<S> {
    /// Replays `source` `factor` times as fast.
    ///
    /// # Errors
    /// [`TrafficError::Setting`] unless the factor is above zero and finite.
    pub fn new(source: S, factor: f64) -> Result<Self, TrafficError> {
        if !factor.is_finite() || factor <= 0.0 {
            let expected = "a factor above zero, such as 2 for twice the rate";
            return Err(TrafficError::setting("speed", factor, expected));
        }
        Ok(Speed {
            source,
            factor,
            start: None,
        })
    }
}

impl<S: PacketSource> PacketSource for Speed<S> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        let Some(packet) = self.source.next_packet()? else {
            return Ok(None);
        };
        let start = *self.start.get_or_insert(packet.timestamp);
        let since = |from: Nanos, to: Nanos| {
            // A float out of the integer's range saturates.
            (to.saturating_sub(from).0 as f64 / self.factor).round() as u64
        };
        // Packets out of order may precede the first.
        let (before, after) = (since(packet.timestamp, start), since(start, packet.timestamp));
        let timestamp = Nanos(start.0.saturating_sub(before).saturating_add(after));
        Ok(Some(Packet { timestamp, ..packet }))
    }

    fn notices(&self) -> Vec<Notice> {
        self.source.notices()
    }

    fn name(&self) -> &str {
        self.source.name()
    }
}

/// Delayed copy of a source, with other flows. A mask is XORed onto the low 16 bits of both addresses. So both
/// directions of a connection stay together, and so do prefixes down to /16 (IPv6: /112). Intervals within flows are
/// unchanged.
#[derive(Debug)]
pub struct Copy<S> {
    source: S,
    shift: Nanos,
    mask: u16,
    held: Held,
}

impl<S: PacketSource> Copy<S> {
    /// Creates copy `number` of `source`, delayed by `shift` per copy. Number 0 is the source itself.
    pub fn new(source: S, number: u32, shift: Nanos) -> Self {
        Copy {
            source,
            shift: Nanos(shift.0.saturating_mul(u64::from(number))),
            // With an odd factor all copies up to 65,536 have different masks, few of which are small.
            mask: (number as u16).wrapping_mul(0x9e37),
            held: Held::default(),
        }
    }
}

impl<S: PacketSource> PacketSource for Copy<S> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        if !self.held.take(&mut self.source)? {
            return Ok(None);
        }
        let held = &mut self.held;
        held.timestamp = Nanos(held.timestamp.0.saturating_add(self.shift.0));
        if self.mask != 0
            && let Ok(headers) = parse(&held.data)
        {
            Renumbering::of(&headers).apply(&mut held.data, self.mask);
        }
        Ok(Some(self.held.packet()))
    }

    fn notices(&self) -> Vec<Notice> {
        self.source.notices()
    }

    fn name(&self) -> &str {
        self.source.name()
    }
}

/// Settings of a conversion of captures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conversion {
    /// Part to convert.
    pub part: Part,
    /// Number of overlaid copies of that part, 1 to [`MOST_COPIES`].
    pub copies: u32,
    /// Delay of each copy relative to the one before.
    pub shift: Nanos,
    /// Speed factor of the result.
    pub speed: f64,
}

impl Conversion {
    /// Applies the conversion to sources, which are merged by time. `open` opens them once per copy; only the first
    /// copy's sources have notices.
    ///
    /// # Errors
    /// The error of `open`; [`TrafficError::Setting`] for a setting out of range.
    pub fn open<S: PacketSource>(
        &self,
        mut open: impl FnMut() -> Result<Vec<S>, TrafficError>,
    ) -> Result<impl PacketSource, TrafficError> {
        if !(1..=MOST_COPIES).contains(&self.copies) {
            return Err(TrafficError::setting("copies", self.copies, "1 to 1024"));
        }
        let mut copies = Vec::new();
        for number in 0..self.copies {
            let cut = Cut::new(Merge::new(open()?), self.part);
            copies.push(Copy::new(cut, number, self.shift));
        }
        Speed::new(First(Merge::new(copies)), self.speed)
    }
}

/// Merged copies, with the notices of the first copy only, because all copies have the same.
#[derive(Debug)]
struct First<S>(Merge<S>);

impl<S: PacketSource> PacketSource for First<S> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        self.0.next_packet()
    }

    fn notices(&self) -> Vec<Notice> {
        self.0.sources.first().map_or_else(Vec::new, S::notices)
    }

    fn name(&self) -> &str {
        self.0.sources.first().map_or("", |source| source.name())
    }
}

#[cfg(test)]
mod tests;
