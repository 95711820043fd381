//! Trace in the form that the trace NIC reads: laps through it, and the packets' descriptors.

use super::renumber::Renumber;
use tailwater_chain::batch::Incoming;
use tailwater_chain::region::prefetch;
use tailwater_net::Nanos;
use tailwater_net::parse::{Network, parse};
use tailwater_net::toeplitz::RssHasher;
use tailwater_traffic::Trace;
use tailwater_traffic::renumber::{HashChange, Renumbering};

/// Receive metadata that a NIC would compute, and the location of the packet: half a cache line, and all that is read
/// of a packet apart from its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    pub(super) arrival: Nanos,
    pub(super) rss_hash: u32,
    line: u32,
    length: u32,
    pub(super) renumbering: Renumbering,
    /// All headers are in the packet's first bytes, so the rest may be copied later.
    divisible: bool,
}

impl Descriptor {
    /// [`Image::write`] of a whole packet, of these lines of the trace, in a lap that is not
    /// [renumbered](Lap::is_renumbered).
    #[inline(always)]
    pub(super) fn write_whole(&self, lines: &[[u8; 64]], arrival: Nanos, room: &mut [u8]) -> Incoming {
        let length = self.length as usize;
        copy_lines(lines, self.line, length, room);
        Incoming {
            length,
            arrival,
            rss_hash: self.rss_hash,
            rest: 0,
        }
    }
}

/// Bytes copied at once if the rest may be copied later: two cache lines.
const FIRST: usize = 128;

const _: () = assert!(size_of::<Descriptor>() == 32);

/// Trace, ready to be received.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) trace: Trace,
    pub(super) descriptors: Vec<Descriptor>,
    rss: RssHasher,
    /// Time from a lap's first packet to the next lap's.
    lap: Nanos,
    renumber: Renumber,
    /// Low bits of addresses that change, at most 16.
    pub(super) renumber_bits: u8,
}

impl Image {
    pub(super) fn new(trace: Trace, rss: RssHasher, (renumber, bits): (Renumber, u8)) -> Image {
        let descriptors = (0..trace.len())
            .map(|i| {
                let headers = parse(trace.packet(i)).ok();
                Descriptor {
                    arrival: trace.arrival(i),
                    rss_hash: headers.as_ref().map_or(0, |headers| rss.hash_headers(headers)),
                    line: trace.line(i),
                    length: trace.length(i) as u32,
                    renumbering: match &headers {
                        Some(headers) if renumber.includes(&headers.key) => Renumbering::of(headers),
                        _ => Renumbering::NONE,
                    },
                    divisible: headers.as_ref().is_some_and(|headers| {
                        headers.network != Network::NotIp
                            && usize::from(headers.payload_offset) <= FIRST
                            && trace.length(i) > FIRST
                    }),
                }
            })
            .collect();
        Image {
            lap: trace.duration() + trace.mean_gap(),
            trace,
            descriptors,
            rss,
            renumber,
            renumber_bits: bits.min(16),
        }
    }

    /// Prefetches the first bytes of a packet that is to be written in parts. Accesses to so few bytes of each packet
    /// are not a stream that the hardware prefetcher detects.
    #[inline]
    pub(super) fn prefetch(&self, descriptor: &Descriptor) {
        if descriptor.divisible {
            let lines = self.trace.lines().as_ptr();
            let first = lines.wrapping_add(descriptor.line as usize);
            prefetch(first.cast());
            prefetch(first.wrapping_add(1).cast());
        }
    }

    /// Writes a packet into its buffer, as it is in `lap`. With `in_parts`, it may leave out the end.
    // The hot path of two loops: a call per packet would cost as much as the copy.
    #[inline(always)]
    pub(super) fn write(
        &self,
        descriptor: &Descriptor,
        lap: &Lap,
        arrival: Nanos,
        room: &mut [u8],
        in_parts: bool,
    ) -> Incoming {
        let length = descriptor.length as usize;
        let (first, rest) = match in_parts && descriptor.divisible {
            true => (FIRST, descriptor.line + 1),
            false => (length, 0),
        };
        copy_lines(self.trace.lines(), descriptor.line, first, room);
        if lap.mask != 0
            && let Some(frame) = room.get_mut(..length)
        {
            descriptor.renumbering.apply(frame, lap.mask);
        }
        Incoming {
            length,
            arrival,
            rss_hash: lap.rss_hash(descriptor),
            rest,
        }
    }

    /// Writes the end of a packet whose beginning [`write`](Image::write) wrote.
    #[inline]
    pub(super) fn write_rest(&self, rest: u32, frame: &mut [u8]) {
        let start = (rest as usize - 1) * 64 + FIRST;
        let end = start + frame.len().saturating_sub(FIRST);
        let from = self.trace.lines().as_flattened().get(start..end);
        if let (Some(from), Some(to)) = (from, frame.get_mut(FIRST..)) {
            to.copy_from_slice(from);
        }
    }
}

/// Pass through the trace. After 65,536 passes, or fewer if fewer bits change, the same flows come again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lap {
    pub(super) number: u32,
    pub(super) start: Nanos,
    /// Mask that renumbering XORs onto the low 16 bits of every address.
    mask: u16,
    /// Effect of the mask on RSS hashes.
    hash_change: HashChange,
}

impl Lap {
    pub(super) fn new(image: &Image, number: u32, start: Nanos) -> Lap {
        // The lap's number with reversed bits: neighbouring hosts stay neighbours.
        let mask = match image.renumber {
            Renumber::None => 0,
            _ => (number as u16)
                .reverse_bits()
                .unbounded_shr(16 - u32::from(image.renumber_bits)),
        };
        Lap {
            number,
            start,
            mask,
            hash_change: Renumbering::hash_change(&image.rss, mask),
        }
    }

    pub(super) fn next(&self, image: &Image) -> Lap {
        Lap::new(image, self.number.wrapping_add(1), self.start + image.lap)
    }

    /// Returns `true` if the lap has other flows than the trace.
    #[inline]
    pub(super) fn is_renumbered(&self) -> bool {
        self.mask != 0
    }

    /// RSS hash of a packet in this lap.
    #[inline]
    pub(super) fn rss_hash(&self, descriptor: &Descriptor) -> u32 {
        let renumbering = descriptor.renumbering;
        renumbering.hash(descriptor.rss_hash, &self.hash_change)
    }
}

/// Copies a packet of `length` bytes, which begins in this line, in whole cache lines. The first one, often the only
/// one, is copied by moves of a fixed size rather than a call to a copy routine.
#[inline(always)]
fn copy_lines(lines: &[[u8; 64]], line: u32, length: usize, room: &mut [u8]) {
    if let (Some(first), Some(to)) = (lines.get(line as usize), room.first_chunk_mut::<64>()) {
        *to = *first;
    }
    if length > 64 {
        copy_rest(lines, line, length, room);
    }
}

/// Copies all lines of a packet but the first.
#[inline(never)]
fn copy_rest(lines: &[[u8; 64]], line: u32, length: usize, room: &mut [u8]) {
    let rest = 64..length.next_multiple_of(64);
    let lines = lines.get(line as usize..).unwrap_or_default();
    let from = lines.as_flattened().get(rest.clone());
    if let (Some(from), Some(to)) = (from, room.get_mut(rest)) {
        to.copy_from_slice(from);
    }
}
