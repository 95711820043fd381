//! Packets parked until their flows leave an auxiliary core.

use tailwater_chain::parcel::Parcel;

/// Means no slot.
const NONE: u16 = u16::MAX;

/// Slot: a packet with the slot of the flow's next one, or empty with the next free slot.
#[derive(Debug)]
struct Slot {
    parcel: Option<Parcel>,
    next: u16,
}

/// List of packets per flow, all in one array. Adding and removing a packet takes constant time.
#[derive(Debug)]
pub(super) struct ParkedPackets {
    slots: Vec<Slot>,
    /// First free slot.
    free: u16,
    /// Slots of each flow's first and last packet, by flow number. Undefined for a flow without a packet.
    ends: Vec<[u16; 2]>,
}

impl ParkedPackets {
    /// For up to `most` packets, of flows with numbers below `numbers`.
    pub(super) fn new(most: usize, numbers: usize) -> ParkedPackets {
        let next = |at: usize| if at + 1 < most { at as u16 + 1 } else { NONE };
        let place = |at| Slot {
            parcel: None,
            next: next(at),
        };
        ParkedPackets {
            slots: (0..most).map(place).collect(),
            free: if most > 0 { 0 } else { NONE },
            ends: vec![[NONE; 2]; numbers],
        }
    }

    /// Appends a packet to those of its flow. `alone` is set if there are none.
    ///
    /// # Panics
    /// If all slots are in use.
    pub(super) fn push(&mut self, parcel: Parcel, alone: bool) {
        let (number, at) = (usize::from(parcel.number()), self.free);
        let place = &mut self.slots[usize::from(at)];
        place.parcel = Some(parcel);
        self.free = std::mem::replace(&mut place.next, NONE);
        let [first, last] = &mut self.ends[number];
        match alone {
            true => *first = at,
            false => self.slots[usize::from(*last)].next = at,
        }
        *last = at;
    }

    /// First packet of a flow that has one.
    pub(super) fn first(&self, number: u16) -> Option<&Parcel> {
        let [first, _] = self.ends[usize::from(number)];
        self.slots.get(usize::from(first))?.parcel.as_ref()
    }

    /// Removes the `count` packets of a flow, in order.
    pub(super) fn take(&mut self, number: u16, count: u32, mut each: impl FnMut(Parcel)) {
        let [mut at, _] = self.ends[usize::from(number)];
        for _ in 0..count {
            let place = &mut self.slots[usize::from(at)];
            let next = std::mem::replace(&mut place.next, self.free);
            place.parcel.take().into_iter().for_each(&mut each);
            self.free = std::mem::replace(&mut at, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_chain::batch::Batch;
    use tailwater_chain::buffer::BufferPool;
    use tailwater_chain::parcel::PacketStore;
    use tailwater_net::Nanos;

    /// Checked against a list of all packets, filled to capacity.
    #[test]
    fn packets_come_out_in_order_by_flow() {
        const MOST: u64 = 24;
        let mut pool = BufferPool::new(MOST as u32, 64).unwrap();
        let store = PacketStore::new(&pool);
        let mut batch = Batch::new(&pool, 1);
        let mut held = ParkedPackets::new(MOST as usize, 5);
        let mut all: Vec<(u16, Nanos)> = Vec::new();
        let mut state = 0x2545_f491_u64;
        for now in 0..5000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let flow = (state % 5) as u16;
            let before = all.iter().filter(|(of, _)| *of == flow).count();
            if state >> 8 & 7 > 0 && (all.len() as u64) < MOST {
                batch.push(&mut pool, &[0; 14], Nanos(now), 0);
                let send = |parcel| held.push(parcel, before == 0);
                batch.offload(&store, |_| Some(flow), send);
                all.push((flow, Nanos(now)));
                continue;
            }
            let first = all.iter().find(|(of, _)| *of == flow).copied();
            let expected: Vec<_> = all.extract_if(.., |(of, _)| *of == flow).collect();
            if let Some((_, arrival)) = first {
                assert_eq!(held.first(flow).map(|p| store.arrival(p)), Some(arrival));
            }
            let mut taken = Vec::new();
            held.take(flow, before as u32, |parcel| {
                taken.push((parcel.number(), store.arrival(&parcel)));
                pool.give(parcel.discard().into_buffer());
            });
            assert_eq!(taken, expected);
        }
    }
}
