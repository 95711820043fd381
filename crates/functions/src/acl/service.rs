//! Look-up of the rule sets for ports and protocol.

use super::limits::ClassifierError;
use super::rule_sets::Packer;
use tailwater_net::flow::FlowKey;

/// Maximum number of combinations of ports and protocol: half a megabyte of table.
const MAX_COMBINATIONS: u64 = 1 << 17;

/// Map from the values of a small field to classes. Values of one class match the same rules.
struct ClassTable {
    /// Class of each value.
    class: Box<[u16]>,
    /// Rule set of each class.
    sets: Vec<u32>,
}

impl ClassTable {
    /// Builds the map from the intervals' first values, ascending from 0, and sets. The field has `values` values, at
    /// most 65,536.
    fn new(intervals: &[(u128, u32)], values: usize) -> Self {
        let mut sets: Vec<u32> = intervals.iter().map(|(_, set)| *set).collect();
        sets.sort_unstable();
        sets.dedup();
        let mut class = vec![0; values];
        for (i, &(start, set)) in intervals.iter().enumerate() {
            let end = intervals.get(i + 1).map_or(values, |next| next.0 as usize);
            // The sorted list contains every set, and at most one entry per value.
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

    /// Returns the heap size in bytes.
    fn memory_bytes(&self) -> usize {
        size_of_val(&*self.class) + self.sets.capacity() * size_of::<u32>()
    }
}

/// Rule sets for ports and protocol together, that is, for a packet's service.
///
/// Rule lists contain few different port ranges and protocols. So a table of precomputed intersections usually holds
/// all combinations of their classes. A look-up then intersects one set instead of three.
pub(super) struct ServiceTable {
    source_port: ClassTable,
    destination_port: ClassTable,
    protocol: ClassTable,
    /// Rule set of each combination of classes. The protocol varies fastest, the source port slowest. Empty if there
    /// are too many combinations.
    combined: Vec<u32>,
}

impl ServiceTable {
    /// Builds the table from the intervals of source port, destination port and protocol, whose sets are plain bit
    /// vectors of `words` words. Combinations are built if that takes at most `limit_words` word operations.
    ///
    /// # Errors
    /// If the sets exceed the memory limit.
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

    /// Returns `true` if one set covers all three fields.
    pub(super) fn is_combined(&self) -> bool {
        !self.combined.is_empty()
    }

    /// Returns the set for the key's ports and protocol. Requires [`is_combined`](Self::is_combined).
    #[inline(always)]
    pub(super) fn find_combined(&self, key: &FlowKey) -> u32 {
        let [source, destination, protocol] = self.classes(key);
        let pair = source * self.destination_port.sets.len() + destination;
        self.combined[pair * self.protocol.sets.len() + protocol]
    }

    /// Returns the sets for the key's source port, destination port and protocol.
    #[inline(always)]
    pub(super) fn find_separate(&self, key: &FlowKey) -> [u32; 3] {
        let [source, destination, protocol] = self.classes(key);
        [
            self.source_port.sets[source],
            self.destination_port.sets[destination],
            self.protocol.sets[protocol],
        ]
    }

    /// Returns the classes of the key's source port, destination port and protocol.
    #[inline(always)]
    fn classes(&self, key: &FlowKey) -> [usize; 3] {
        [
            self.source_port.class[usize::from(key.source_port())],
            self.destination_port.class[usize::from(key.destination_port())],
            self.protocol.class[usize::from(key.protocol())],
        ]
        .map(usize::from)
    }

    /// Returns the heap size in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.source_port.memory_bytes()
            + self.destination_port.memory_bytes()
            + self.protocol.memory_bytes()
            + self.combined.capacity() * size_of::<u32>()
    }
}

/// Writes the intersection of two plain bit vectors to `to`.
fn intersect(to: &mut [u64], a: &[u64], b: &[u64]) {
    for (to, (a, b)) in to.iter_mut().zip(a.iter().zip(b)) {
        *to = a & b;
    }
}
