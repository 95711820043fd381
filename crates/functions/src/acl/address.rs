//! Tables that map an address to the set of rules that match it.

use std::collections::HashMap;
use std::net::Ipv6Addr;

/// Number of keys looked up together. It is large enough to hide memory latency, and small enough for intermediate
/// results to stay in the L1 cache.
pub(super) const GROUP: usize = 32;

/// Branches of a tree node: interval starts compared at once.
const BRANCHES: usize = 16;

/// Map from an IPv4 address to a rule set: a table over the upper 16 bits, then a B+-tree over the lower 16. Most trees
/// have one node.
pub(super) struct V4Table {
    /// Tree of each upper half: the root node's index and, from bit [`NODE_BITS`], the number of levels below it. Upper
    /// halves that lie in one interval share a tree with all others of the same set.
    roots: Box<[u32; 1 << 16]>,
    nodes: Nodes,
}

/// Bits of a node's index. They address 26 GB of nodes, far more than the classifier's memory limit. The remaining bits
/// hold the number of tree levels: 65,536 intervals need four.
const NODE_BITS: u32 = 28;

/// The nodes of all trees.
#[derive(Default)]
struct Nodes {
    /// First lower half of each branch, per node, ascending. In a tree's leftmost node the first is 0. The last branch
    /// is repeated to fill the node.
    starts: Vec<[u16; BRANCHES]>,
    /// Child node of each branch, per node; in a leaf, the rule set.
    branches: Vec<[u32; BRANCHES]>,
}

impl V4Table {
    /// Builds the table from the intervals' first addresses and sets. The addresses ascend from 0.
    pub(super) fn new(intervals: &[(u128, u32)]) -> Self {
        let mut nodes = Nodes::default();
        let mut roots = Box::new([0; 1 << 16]);
        let mut of_set: HashMap<u32, u32> = HashMap::new();
        // The next upper half, and the set of its first address unless an interval begins there.
        let (mut next, mut set) = (0, 0);
        let upper = |start: u128| (start >> 16) as usize;
        for group in intervals.chunk_by(|a, b| upper(a.0) == upper(b.0)) {
            let at = upper(group[0].0);
            let mut inside: Vec<(u16, u32)> = group.iter().map(|i| (i.0 as u16, i.1)).collect();
            if inside[0].0 != 0 {
                inside.insert(0, (0, set));
            }
            let mut whole = |set| *of_set.entry(set).or_insert_with(|| nodes.tree(&[(0, set)]));
            roots[next..at].fill(whole(set));
            roots[at] = match *inside {
                [(_, set)] => whole(set),
                _ => nodes.tree(&inside),
            };
            next = at + 1;
            set = group[group.len() - 1].1;
        }
        roots[next..].fill(nodes.tree(&[(0, set)]));
        nodes.starts.shrink_to_fit();
        nodes.branches.shrink_to_fit();
        V4Table { roots, nodes }
    }

    /// Writes to `sets[i]` the position of the rule set that matches `addresses[i]`. There are at most [`GROUP`]
    /// addresses.
    ///
    /// The search descends level by level for all addresses, with a list of those that have levels left. A tree's depth
    /// is unpredictable, so a branch on it would cost more than the comparison.
    #[inline(always)]
    pub(super) fn find_all(&self, addresses: &[u32], sets: &mut [u32; GROUP]) {
        const NODE: u32 = (1 << NODE_BITS) - 1;
        let mut deeper = [0_u8; GROUP];
        let mut left = 0;
        for (i, (address, root)) in addresses.iter().zip(sets.iter_mut()).enumerate() {
            *root = self.roots[(address >> 16) as usize];
            deeper[left] = i as u8;
            left += usize::from(*root > NODE);
        }
        while left > 0 {
            let level = deeper;
            let before = std::mem::take(&mut left);
            for &i in &level[..before] {
                let (address, root) = (addresses[usize::from(i)], &mut sets[usize::from(i)]);
                let below = self.nodes.branch(*root & NODE, address as u16);
                *root = below | ((*root & !NODE) - (1 << NODE_BITS));
                deeper[left] = i;
                left += usize::from(*root > NODE);
            }
        }
        for (address, set) in addresses.iter().zip(sets) {
            *set = self.nodes.branch(*set, *address as u16);
        }
    }

    /// Returns the heap size in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.roots)
            + self.nodes.starts.capacity() * size_of::<[u16; BRANCHES]>()
            + self.nodes.branches.capacity() * size_of::<[u32; BRANCHES]>()
    }
}

impl Nodes {
    /// Adds the tree of these intervals, of which there must be at least one. Returns its root in the format of
    /// [`V4Table::roots`].
    fn tree(&mut self, intervals: &[(u16, u32)]) -> u32 {
        let mut level = self.level(intervals);
        let mut height = 0;
        while level.len() > 1 {
            level = self.level(&level);
            height += 1;
        }
        let root = level.first().map_or(0, |(_, node)| *node);
        debug_assert!(root >> NODE_BITS == 0 && height < 16);
        root | (height << NODE_BITS)
    }

    /// Adds a level of nodes with these branches. Returns each node's first start and index.
    fn level(&mut self, branches: &[(u16, u32)]) -> Vec<(u16, u32)> {
        let mut nodes = Vec::new();
        for node in branches.chunks(BRANCHES) {
            let at = |i: usize| node.get(i).or(node.last()).copied().unwrap_or_default();
            nodes.push((at(0).0, self.starts.len() as u32));
            self.starts.push(std::array::from_fn(|i| at(i).0));
            self.branches.push(std::array::from_fn(|i| at(i).1));
        }
        nodes
    }

    /// Returns the value of the node's last branch that starts at or before `low`.
    #[inline(always)]
    fn branch(&self, node: u32, low: u16) -> u32 {
        let not_after: u16 = self.starts[node as usize]
            .iter()
            .map(|start| u16::from(*start <= low))
            .sum();
        // The first branch of a reached node starts at or before `low`, so the count is 1 to 16.
        self.branches[node as usize][usize::from(not_after.wrapping_sub(1)) % BRANCHES]
    }
}

/// Map from an IPv6 address to a rule set, by binary search over the intervals.
pub(super) struct V6Table {
    /// First address of each interval, ascending from 0.
    starts: Vec<u128>,
    /// Rule set of each interval.
    sets: Vec<u32>,
}

impl V6Table {
    /// Builds the table from the intervals' first addresses and sets. The addresses ascend from 0.
    pub(super) fn new(intervals: &[(u128, u32)]) -> Self {
        V6Table {
            starts: intervals.iter().map(|(start, _)| *start).collect(),
            sets: intervals.iter().map(|(_, set)| *set).collect(),
        }
    }

    /// Returns the position of the rule set that matches the address.
    #[inline(always)]
    pub(super) fn find(&self, address: Ipv6Addr) -> u32 {
        let address = address.to_bits();
        let not_after = self.starts.partition_point(|start| *start <= address);
        // The first start is 0, so at least one start is not above the address.
        self.sets[not_after.saturating_sub(1)]
    }

    /// Returns the heap size in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.starts.capacity() * size_of::<u128>() + self.sets.capacity() * size_of::<u32>()
    }
}
