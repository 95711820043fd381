//! Exhaustive search over all schedules of a few packets, in slots of time.

use std::collections::HashMap;

/// Slots per epoch of 100 µs.
pub const SLOTS: u64 = 4;

/// Packet: slot of its arrival, and flow. Sorted by time.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub at: u64,
    pub flow: u8,
}

/// Problem to schedule, in slots.
#[derive(Clone, Debug)]
pub struct Problem {
    pub packets: Vec<Packet>,
    pub batch: u64,
    pub packet: u64,
    /// Maximum packets per batch.
    pub most: usize,
    pub slo: u64,
    pub cores: usize,
}

/// Core: end of its batch, the packets in it, and `true` if it counts in this epoch.
type Core = (u64, u16, bool);

impl Problem {
    /// Returns the fewest core-epochs with `late` late packets, or `None` if more must be late.
    pub fn best(&self, late: usize) -> Option<u64> {
        let all = (1_u16 << self.packets.len()) - 1;
        let lost = (0..=all).filter(|lost| lost.count_ones() as usize == late);
        let best = lost.filter_map(|lost| {
            let mut known = HashMap::new();
            let cores = vec![(0, 0, false); self.cores];
            self.from(0, all & !lost, cores, &mut known)
        });
        best.min()
    }

    /// Searches from the start of a slot on, with packets that have not been started.
    fn from(
        &self,
        slot: u64,
        left: u16,
        mut cores: Vec<Core>,
        known: &mut HashMap<(u64, u16, Vec<Core>), Option<u64>>,
    ) -> Option<u64> {
        let mut begun = 0;
        for (ends, packets, active) in &mut cores {
            if *ends <= slot {
                (*ends, *packets) = (0, 0);
            }
            if slot.is_multiple_of(SLOTS) {
                *active = *ends > slot;
                begun += u64::from(*active);
            }
        }
        if left == 0 {
            // Working cores continue to the end of their batches.
            let epoch = |ends: u64| ends.saturating_sub(1) / SLOTS;
            let rest = cores.iter().map(|core| epoch(core.0).saturating_sub(slot / SLOTS));
            return Some(begun + rest.sum::<u64>());
        }
        let late = |i: &usize| left & 1 << i != 0 && self.packets[*i].at + self.slo <= slot;
        if (0..self.packets.len()).any(|i| late(&i)) {
            return None;
        }
        cores.sort_unstable();
        let state = (slot, left, cores.clone());
        let best = match known.get(&state) {
            Some(best) => *best,
            None => {
                let best = self.choose(slot, left, cores, 0, known);
                known.insert(state, best);
                best
            }
        };
        best.map(|best| begun + best)
    }

    /// Lets the cores from `core` on start batches.
    fn choose(
        &self,
        slot: u64,
        left: u16,
        cores: Vec<Core>,
        core: usize,
        known: &mut HashMap<(u64, u16, Vec<Core>), Option<u64>>,
    ) -> Option<u64> {
        if core == cores.len() {
            return self.from(slot + 1, left, cores, known);
        }
        let mut best = self.choose(slot, left, cores.clone(), core + 1, known);
        if cores[core].0 > slot {
            return best;
        }
        for batch in 1..=left {
            let size = batch.count_ones() as usize;
            if batch & !left != 0 || size > self.most {
                continue;
            }
            let ends = slot + self.batch + self.packet * size as u64;
            if !self.may_begin(slot, left, batch, ends, &cores) {
                continue;
            }
            let mut cores = cores.clone();
            let begun = u64::from(!cores[core].2);
            cores[core] = (ends, batch, true);
            let rest = self.choose(slot, left & !batch, cores, core + 1, known);
            let with = rest.map(|rest| rest + begun);
            best = [best, with].into_iter().flatten().min();
        }
        best
    }

    /// Returns `true` if packets have arrived, are in time, are next of their flows, and no other core has their flows.
    fn may_begin(&self, slot: u64, left: u16, batch: u16, ends: u64, cores: &[Core]) -> bool {
        let flow = |i: usize| self.packets[i].flow;
        let of = |set: u16| (0..self.packets.len()).filter(move |i| set & 1 << i != 0);
        let busy = cores.iter().fold(0, |busy, core| busy | core.1);
        of(batch).all(|i| {
            let packet = self.packets[i];
            packet.at <= slot
                && packet.at + self.slo >= ends
                && of(busy).all(|other| flow(other) != packet.flow)
                && of(left & !batch).all(|other| other > i || flow(other) != packet.flow)
        })
    }
}
