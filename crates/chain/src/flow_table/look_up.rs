//! Look-up of a batch's flows.

use super::{EndedFlows, FlowIndex, FlowTable, Timer};
use crate::batch::packet::Slot;
use crate::batch::size::MAX_BATCH;
use crate::flow_table::tick::TICK_SHIFT;
use tailwater_net::toeplitz::bucket_of;
use tailwater_net::{FlowKey, Nanos};

impl FlowTable {
    /// Looks up the flow of every packet and opens new flows. A packet keeps [`FlowIndex::NONE`] if there is no slot
    /// for its flow or its bucket belongs to another worker.
    #[inline]
    pub(crate) fn lookup(&mut self, slots: &mut [Slot], now: Nanos, ends: &mut EndedFlows) {
        match self.connections {
            true => self.lookup_by::<true>(slots, now, ends),
            false => self.lookup_by::<false>(slots, now, ends),
        }
    }

    /// Looks packets up by their keys or, with `CONNECTIONS`, by a key common to both directions.
    #[inline]
    fn lookup_by<const CONNECTIONS: bool>(&mut self, slots: &mut [Slot], now: Nanos, ends: &mut EndedFlows) {
        let mut homes = [0u32; MAX_BATCH];
        // Home of packets whose bucket this view may not use.
        let no_home = self.shape.no_home();
        // First pass: computes each key's home and prefetches its line while the next key is hashed.
        for (slot, home) in slots.iter_mut().zip(&mut homes) {
            let bucket = bucket_of(slot.packet.rss_hash);
            let key = &slot.packet.headers.key;
            let reversed;
            (*home, reversed) = match CONNECTIONS {
                true => {
                    let (key, reversed) = key.of_connection();
                    (self.home(&key, bucket), reversed)
                }
                false => (self.home(key, bucket), false),
            };
            slot.packet.set_reversed(reversed);
            self.memory.prefetch_head(*home as usize);
            if !self.usable[usize::from(bucket)] {
                *home = no_home;
            }
        }
        // Second pass: prefetches the record of each home's first flow.
        let mut firsts = [0u32; MAX_BATCH];
        for (&home, first) in homes[..slots.len()].iter().zip(&mut firsts) {
            *first = self.head(home);
            self.memory.prefetch_record(*first as usize, &self.fetched);
        }
        // Third pass: most flows are the first of their home.
        let now = now.0 >> TICK_SHIFT;
        let tick = now as u32;
        let mut unsettled = [0u16; MAX_BATCH];
        let mut waiting = 0;
        for (i, (slot, &first)) in slots.iter_mut().zip(&firsts).enumerate() {
            let there = self.key_of(FlowIndex(first));
            let key = &slot.packet.headers.key;
            let is_it = match CONNECTIONS {
                true => *there == key.of_connection().0,
                false => there == key,
            };
            if is_it {
                slot.packet.flow = FlowIndex(first);
                self.see(FlowIndex(first), tick);
            } else {
                slot.packet.flow = FlowIndex::NONE;
                unsettled[waiting] = i as u16;
                waiting += 1;
            }
        }
        // Fourth pass: others and new flows, one by one and in order, so that a flow's second packet finds the flow
        // that its first packet opened.
        for &i in &unsettled[..waiting] {
            let home = homes[usize::from(i)];
            if home == no_home {
                continue;
            }
            let packet = &mut slots[usize::from(i)].packet;
            let key = match CONNECTIONS {
                true => packet.headers.key.of_connection().0,
                false => packet.headers.key,
            };
            let found = self.find(home, &key);
            let flow = found.or_else(|| self.open(home, &key, now, ends, Timer::Own));
            if let Some(flow) = flow {
                packet.flow = flow;
                packet.set_new(found.is_none());
                self.see(flow, tick);
            }
        }
    }

    /// Home of a key, as an index into the whole table's homes.
    #[inline]
    pub(super) fn home(&self, key: &FlowKey, bucket: u16) -> u32 {
        self.shape.home(key.hash(self.seed), bucket)
    }

    /// Returns the flow with this key among those of its home.
    #[inline]
    pub(super) fn find(&self, home: u32, key: &FlowKey) -> Option<FlowIndex> {
        let mut index = self.head(home);
        while index != self.memory.none() {
            if self.key_of(FlowIndex(index)) == key {
                return Some(FlowIndex(index));
            }
            index = self.links(FlowIndex(index)).chain;
        }
        None
    }
}
