//! Look-up of the rule sets of ports and protocol.

use super::classifier::ClassifierError;
use super::rule_sets::Packer;
use tailwater_net::flow::FlowKey;

/// The most combinations of ports and protocol that are made: half a megabyte of table.
const MAX_COMBINATIONS: u64 = 1 << 17;

/// From the values of a small field to its classes: values in one class match the same rules.
struct ClassTable {
    /// Class of each value.
    class: Box<[u16]>,
    /// Set of each class.
    sets: Vec<u32>,
}

impl ClassTable {
    /// From the intervals' first values (the first 0, ascending) and sets, of a field of `values`
    /// values, at most 65,536.
    fn new(intervals: &[(u128, u32)], values: usize) -> Self {
        let mut sets: Vec<u32> = intervals.iter().map(|(_, set)| *set).collect();
        sets.sort_unstable();
        sets.dedup();
        let mut class = vec![0; values];
        for (i, &(start, set)) in intervals.iter().enumerate() {
            let end = intervals.get(i + 1).map_or(values, |next| next.0 as usize);
            // Every set is in the sorted list, which has at most one entry per value.
            let of_set = sets.partition_point(|other| *other < set) as u16;
            if let Some(values) = class.get_mut(start as usize..end) {
                values.fill(of_set);
            }
        }
        ClassTable {
            class: class.into_boxed_slice(),
            sets,
        }
    }

    /// Bytes on the heap.
    fn memory_bytes(&self) -> usize {
        size_of_val(&*self.class) + self.sets.capacity() * size_of::<u32>()
    }
}

/// Rule sets of ports and protocol together (the service that a packet is for).
///
/// Rule sets name few different port ranges and protocols. So all combinations of their classes
/// usually fit a table of ready-made intersections, and a look-up intersects one set instead of
/// three.
pub(super) struct ServiceTable {
    source_port: ClassTable,
    destination_port: ClassTable,
    protocol: ClassTable,
    /// Set of each combination of classes, protocol fastest, source port slowest. Empty if
    /// there are too many combinations.
    combined: Vec<u32>,
}

impl ServiceTable {
    /// From the intervals of source port, destination port and protocol, whose sets are plain bit
    /// vectors of `words` words. Combinations are computed if that takes at most `limit_words`
    /// steps of a word each.
    pub(super) fn new(
        packer: &mut Packer,
        words: usize,
        [source_port, destination_port, protocol]: [Vec<(u128, u32)>; 3],
        limit_words: usize,
    ) -> Result<Self, ClassifierError> {
        let mut table = ServiceTable {
            source_port: ClassTable::new(&source_port, 1 << 16),
            destination_port: ClassTable::new(&destination_port, 1 << 16),
            protocol: ClassTable::new(&protocol, 1 << 8),
            combined: Vec::new(),
        };
        let fields = [
            &table.source_port.sets,
            &table.destination_port.sets,
            &table.protocol.sets,
        ];
        // Each field has at most 65,536 sets.
        let combinations: u64 = fields.iter().map(|sets| sets.len() as u64).product();
        let most = limit_words / words.max(1);
        if combinations > MAX_COMBINATIONS.min(most as u64) {
            return Ok(table);
        }
        let [sources, destinations, protocols] =
            fields.map(|sets| sets.iter().map(|set| packer.unpack(*set, words)).collect::<Vec<_>>());
        let mut pair = vec![0; words];
        let mut all = vec![0; words];
        for source in &sources {
            for destination in &destinations {
                intersect(&mut pair, source, destination);
                for protocol in &protocols {
                    intersect(&mut all, &pair, protocol);
                    table.combined.push(packer.pack(&all)?);
                }
            }
        }
        Ok(table)
    }

    /// Whether one set stands for all three fields.
    pub(super) fn is_combined(&self) -> bool {
        !self.combined.is_empty()
    }

    /// The set for the key's ports and protocol, if [`is_combined`](Self::is_combined).
    #[inline(always)]
    pub(super) fn find_combined(&self, key: &FlowKey) -> u32 {
        let [source, destination, protocol] = self.classes(key);
        let pair = source * self.destination_port.sets.len() + destination;
        self.combined[pair * self.protocol.sets.len() + protocol]
    }

    /// The sets for the key's source port, destination port and protocol.
    #[inline(always)]
    pub(super) fn find_separate(&self, key: &FlowKey) -> [u32; 3] {
        let [source, destination, protocol] = self.classes(key);
        [
            self.source_port.sets[source],
            self.destination_port.sets[destination],
            self.protocol.sets[protocol],
        ]
    }

    /// The classes of the key's source port, destination port and protocol.
    #[inline(always)]
    fn classes(&self, key: &FlowKey) -> [usize; 3] {
        [
            self.source_port.class[usize::from(key.source_port())],
            self.destination_port.class[usize::from(key.destination_port())],
            self.protocol.class[usize::from(key.protocol())],
        ]
        .map(usize::from)
    }

    /// Bytes on the heap.
    pub(super) fn memory_bytes(&self) -> usize {
        self.source_port.memory_bytes()
            + self.destination_port.memory_bytes()
            + self.protocol.memory_bytes()
            + self.combined.capacity() * size_of::<u32>()
    }
}

/// Writes the intersection of two plain bit vectors.
fn intersect(to: &mut [u64], a: &[u64], b: &[u64]) {
    for (to, (a, b)) in to.iter_mut().zip(a.iter().zip(b)) {
        *to = a & b;
    }
}
