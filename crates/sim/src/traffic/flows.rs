//! Flow index: small numbers for flows, with removal of silent ones.

use tailwater_net::Nanos;

/// Limits of the flow index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowOptions {
    /// Idle time after which a flow is removed. Its next packet opens it anew.
    pub idle_timeout: Nanos,
    /// Maximum number of flows. Packets of further flows are lost, since the index has no room for them.
    pub most: u32,
}

impl Default for FlowOptions {
    /// Ten seconds and 16.8 million flows. These take at most 1 GiB: half here, half in the engine.
    fn default() -> Self {
        FlowOptions {
            idle_timeout: Nanos::from_secs(10),
            most: 1 << 24,
        }
    }
}

/// Entry of the table. It has 16 bytes, so that a look-up accesses one cache line.
#[derive(Clone, Copy, Debug)]
struct Entry {
    number: u64,
    index: u32,
    /// Time of the last packet, in [`TICK`]s.
    seen: u32,
}

const EMPTY: u32 = u32::MAX;
const NOTHING: Entry = Entry {
    number: 0,
    index: EMPTY,
    seen: 0,
};

/// `log2` of the nanoseconds of a tick: about a millisecond.
const TICK: u32 = 20;

/// Entries checked for silence with each packet. The whole table is covered in half as many packets as it has entries.
const SWEEP: usize = 2;

/// Minimum table size.
const SMALLEST: usize = 1024;

/// Hash table with linear probing, at most half full, that removes silent flows.
#[derive(Debug)]
pub(super) struct FlowIndex {
    table: Vec<Entry>,
    used: usize,
    /// Next entry to be checked for silence.
    hand: usize,
    free: Vec<u32>,
    next: u32,
    timeout: u64,
    most: usize,
    reuse: bool,
}

impl FlowIndex {
    pub(super) fn new(options: FlowOptions, reuse: bool) -> FlowIndex {
        // Rounding can lose a tick: no flow is removed early.
        let ticks = (options.idle_timeout.0 >> TICK).saturating_add(2);
        FlowIndex {
            table: vec![NOTHING; SMALLEST],
            used: 0,
            hand: 0,
            free: Vec::new(),
            next: 0,
            timeout: match options.idle_timeout {
                Nanos::MAX => u64::MAX,
                _ => ticks,
            },
            most: options.most as usize,
            reuse,
        }
    }

    #[inline]
    fn place(&self, number: u64) -> usize {
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash ^ (hash >> 32)) as usize & (self.table.len() - 1)
    }

    /// Returns the index of a flow with a packet at `now`, and `true` if the packet opens it. Returns `None` if there
    /// is no room for it. Flows with a packet since `oldest` may have packets in the system and are not removed.
    #[inline]
    pub(super) fn find(&mut self, number: u64, now: u64, oldest: u64) -> Option<(u32, bool)> {
        let tick = (now >> TICK) as u32;
        let oldest = (oldest >> TICK).min(u32::MAX.into()) as u32;
        for _ in 0..SWEEP {
            self.sweep(tick, oldest);
        }
        let mut place = self.place(number);
        loop {
            let entry = &mut self.table[place];
            if entry.index == EMPTY {
                return self.open(number, tick, oldest);
            }
            if entry.number == number {
                let silent = is_silent(entry, tick, oldest, self.timeout);
                entry.seen = tick;
                if silent && !self.reuse {
                    entry.index = self.next;
                    self.next += 1;
                }
                return Some((entry.index, silent));
            }
            place = (place + 1) & (self.table.len() - 1);
        }
    }

    #[cold]
    fn open(&mut self, number: u64, tick: u32, oldest: u32) -> Option<(u32, bool)> {
        /// Entries checked for a replaceable one when the table is full.
        const LOOKS: usize = 64;
        for _ in 0..LOOKS {
            if self.used < self.most {
                break;
            }
            self.sweep(tick, oldest);
        }
        if self.used >= self.most {
            return None;
        }
        if 2 * (self.used + 1) > self.table.len() {
            self.grow();
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.insert(Entry {
            number,
            index,
            seen: tick,
        });
        self.used += 1;
        Some((index, true))
    }

    fn insert(&mut self, entry: Entry) {
        let mut place = self.place(entry.number);
        while self.table[place].index != EMPTY {
            place = (place + 1) & (self.table.len() - 1);
        }
        self.table[place] = entry;
    }

    fn grow(&mut self) {
        let size = 2 * self.table.len();
        let old = std::mem::replace(&mut self.table, vec![NOTHING; size]);
        old.into_iter()
            .filter(|entry| entry.index != EMPTY)
            .for_each(|entry| self.insert(entry));
        self.hand = 0;
    }

    /// Removes the flow at the hand if it is silent, or advances the hand.
    #[inline]
    fn sweep(&mut self, tick: u32, oldest: u32) {
        let entry = self.table[self.hand];
        if entry.index != EMPTY && is_silent(&entry, tick, oldest, self.timeout) {
            // The entry that closes the gap moves under the hand.
            self.forget(self.hand);
            return;
        }
        self.hand = (self.hand + 1) & (self.table.len() - 1);
    }

    #[cold]
    fn forget(&mut self, place: usize) {
        if self.reuse {
            self.free.push(self.table[place].index);
        }
        self.used -= 1;
        let mask = self.table.len() - 1;
        let (mut gap, mut next) = (place, place);
        loop {
            next = (next + 1) & mask;
            let entry = self.table[next];
            if entry.index == EMPTY {
                break;
            }
            // An entry can close the gap unless it would then be in front of its home position.
            let own = self.place(entry.number);
            if (next.wrapping_sub(own) & mask) >= (next.wrapping_sub(gap) & mask) {
                self.table[gap] = entry;
                gap = next;
            }
        }
        self.table[gap] = NOTHING;
    }
}

/// Returns `true` if a flow has been silent for long enough, and none of its packets is in the system.
#[inline]
fn is_silent(entry: &Entry, tick: u32, oldest: u32, timeout: u64) -> bool {
    u64::from(tick.wrapping_sub(entry.seen)) >= timeout && entry.seen < oldest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn index(timeout_ms: u64, most: u32, reuse: bool) -> FlowIndex {
        let options = FlowOptions {
            idle_timeout: Nanos::from_millis(timeout_ms),
            most,
        };
        FlowIndex::new(options, reuse)
    }

    #[test]
    fn a_full_table_refuses_until_a_flow_is_silent() {
        let mut index = index(10, 2, true);
        assert_eq!(index.find(7, 0, 0), Some((0, true)));
        assert_eq!(index.find(8, 0, 0), Some((1, true)));
        assert_eq!(index.find(9, 0, 0), None);
        let later = 100_000_000;
        assert_eq!(index.find(8, later, later), Some((1, true)), "begins anew");
        // Flow 7 is silent, but may still have a packet in the system.
        assert_eq!(index.find(9, later, 0), None);
        let all = (0..40).find_map(|_| index.find(9, later, later));
        assert_eq!(all, Some((0, true)), "7's index is free");
    }

    proptest! {
        /// Comparison with a map: the same flows open, and no two flows share an index at a time.
        #[test]
        fn indices_are_those_of_a_map(
            packets in prop::collection::vec((0_u64..300, 0_u64..4), 1..2000),
            reuse in any::<bool>(),
        ) {
            let mut index = index(50, 1 << 20, reuse);
            let mut known: HashMap<u64, (u32, u64)> = HashMap::new();
            let mut now = 0_u64;
            for (flow, gap) in packets {
                now += gap << TICK;
                let (found, first) = index.find(flow, now, now).unwrap();
                let timeout = (50_000_000 >> TICK) + 2;
                let expected = match known.get(&flow) {
                    Some((_, seen)) => (now >> TICK) - seen >= timeout,
                    None => true,
                };
                prop_assert_eq!(first, expected);
                if !first {
                    prop_assert_eq!(found, known[&flow].0);
                }
                known.insert(flow, (found, now >> TICK));
                let fresh = |(_, seen): &(u32, u64)| (now >> TICK) - seen < timeout;
                let same = known.values().filter(|k| k.0 == found && fresh(k)).count();
                prop_assert_eq!(same, 1);
            }
        }
    }
}
