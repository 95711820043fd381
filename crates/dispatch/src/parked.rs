//! Packets parked until their flows leave an auxiliary core.

/// No slot.
const NONE: u16 = u16::MAX;

/// Slot: a packet with the slot of the flow's next one, or empty with the next free slot.
#[derive(Debug)]
struct Slot<P> {
    packet: Option<P>,
    next: u16,
}

/// List of packets per flow, all in one array. Adding and removing a packet takes constant time.
#[derive(Debug)]
pub(crate) struct ParkedPackets<P> {
    slots: Vec<Slot<P>>,
    /// First free slot.
    free: u16,
    /// Slots of each flow's first and last packet, by flow number. Undefined for a flow without a packet.
    ends: Vec<[u16; 2]>,
}

impl<P> ParkedPackets<P> {
    /// Without memory: it grows as packets come.
    pub(crate) fn new() -> ParkedPackets<P> {
        ParkedPackets::with_capacity(0, 0)
    }

    /// With memory for `packets` packets, of flows with numbers below `numbers`.
    pub(crate) fn with_capacity(packets: usize, numbers: usize) -> ParkedPackets<P> {
        let next = |at: usize| if at + 1 < packets { at as u16 + 1 } else { NONE };
        let slot = |at| Slot {
            packet: None,
            next: next(at),
        };
        ParkedPackets {
            slots: (0..packets).map(slot).collect(),
            free: if packets > 0 { 0 } else { NONE },
            ends: vec![[NONE; 2]; numbers],
        }
    }

    /// Appends a packet to those of its flow. `is_alone` is set if there are none.
    ///
    /// # Panics
    /// If there are 2^16 - 1 packets.
    pub(crate) fn push(&mut self, number: u16, packet: P, is_alone: bool) {
        let at = self.free_slot();
        let slot = &mut self.slots[usize::from(at)];
        slot.packet = Some(packet);
        self.free = std::mem::replace(&mut slot.next, NONE);
        let number = usize::from(number);
        if number >= self.ends.len() {
            self.ends.resize(number + 1, [NONE; 2]);
        }
        let [first, last] = &mut self.ends[number];
        match is_alone {
            true => *first = at,
            false => self.slots[usize::from(*last)].next = at,
        }
        *last = at;
    }

    fn free_slot(&mut self) -> u16 {
        if self.free == NONE {
            assert!(
                self.slots.len() < usize::from(NONE),
                "there are fewer packets than numbers"
            );
            self.free = self.slots.len() as u16;
            self.slots.push(Slot {
                packet: None,
                next: NONE,
            });
        }
        self.free
    }

    /// Returns the first packet of a flow that has one.
    pub(crate) fn first(&self, number: u16) -> Option<&P> {
        let [first, _] = *self.ends.get(usize::from(number))?;
        self.slots.get(usize::from(first))?.packet.as_ref()
    }

    /// Returns all packets, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = &P> {
        self.slots.iter().filter_map(|slot| slot.packet.as_ref())
    }

    /// Removes the `count` packets of a flow, in order.
    pub(crate) fn take(&mut self, number: u16, count: u16, mut each: impl FnMut(P)) {
        if count == 0 {
            return;
        }
        let [mut at, _] = self.ends[usize::from(number)];
        for _ in 0..count {
            let slot = &mut self.slots[usize::from(at)];
            let next = std::mem::replace(&mut slot.next, self.free);
            slot.packet.take().into_iter().for_each(&mut each);
            self.free = std::mem::replace(&mut at, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checked against a list of all packets, filled to capacity, and growing from nothing.
    #[test]
    fn packets_come_out_in_order_by_flow() {
        const MOST: usize = 24;
        for mut parked in [ParkedPackets::with_capacity(MOST, 5), ParkedPackets::new()] {
            let mut all: Vec<(u16, u64)> = Vec::new();
            let mut state = 0x2545_f491_u64;
            for now in 0..5000 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let flow = (state % 5) as u16;
                let before = all.iter().filter(|(of, _)| *of == flow).count();
                if state >> 8 & 7 > 0 && all.len() < MOST {
                    parked.push(flow, now, before == 0);
                    all.push((flow, now));
                    continue;
                }
                let first = all.iter().find(|(of, _)| *of == flow).copied();
                if let Some((_, arrival)) = first {
                    assert_eq!(parked.first(flow), Some(&arrival));
                }
                let expected: Vec<_> = all.extract_if(.., |(of, _)| *of == flow).collect();
                let mut taken = Vec::new();
                parked.take(flow, before as u16, |packet| taken.push((flow, packet)));
                assert_eq!(taken, expected);
            }
            assert_eq!(parked.slots.len(), MOST);
        }
    }
}
