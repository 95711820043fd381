//! IPv6 look-up: a table over the first 20 bits, then a compressed trie with 6 bits per node.
//!
//! A node has one bit for each of its 64 branches, which distinguishes nodes from leaves. Counting the bits up to a
//! branch gives the index of its node or leaf in dense arrays. Equal adjacent leaves are stored once. After Asai and
//! Ohara, "Poptrie: A Compressed Trie with Population Count for Fast and Scalable Software IP Routing Table Lookup",
//! SIGCOMM 2015.

use super::error::{MAX_V6_BYTES, TableError};
use super::memory::HugeSlice;
use super::route::Decision;
use bytemuck::{Pod, Zeroable};
use tailwater_chain::region::prefetch;

/// Number of bits that the first table resolves.
const FIRST_BITS: u32 = 20;
/// Number of bits that a node resolves. 18 levels complete the 128 bits.
const STRIDE: u32 = 6;

/// Flag in an entry of the first table: the remaining bits are a decision, not a node.
const DECIDED: u32 = 1 << 31;

/// Trie node with 64 branches.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct Node {
    /// Bit set of the branches that lead to nodes.
    children: u64,
    /// Bit set of the other branches whose leaf differs from the previous one.
    leaves: u64,
    /// Index of the first child.
    first_child: u32,
    /// Index of the first leaf.
    first_leaf: u32,
}

/// State of a look-up.
#[derive(Clone, Copy, Debug)]
enum Step {
    Node(u32),
    Leaf(u32),
    Done(Decision),
}

impl Node {
    #[inline(always)]
    fn branch(&self, branch: u32) -> Step {
        let bit = 1_u64 << branch;
        if self.children & bit != 0 {
            let before = (self.children & (bit - 1)).count_ones();
            Step::Node(self.first_child + before)
        } else {
            // The first leaf's bit is set, so the count is at least 1.
            let up_to = (self.leaves & (bit | (bit - 1))).count_ones();
            Step::Leaf(self.first_leaf.wrapping_add(up_to.wrapping_sub(1)))
        }
    }
}

/// Look-up of one address in a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    address: u128,
    /// Number of address bits not yet used.
    left: u32,
    step: Step,
    /// Index of the packet in the batch.
    pub(super) packet: usize,
}

impl Search {
    pub(super) fn new(address: u128, packet: usize) -> Search {
        Search {
            address,
            left: 128,
            step: Step::Done(Decision::NONE),
            packet,
        }
    }

    /// Returns the result of a finished look-up.
    pub(super) fn decision(&self) -> Decision {
        match self.step {
            Step::Done(decision) => decision,
            Step::Node(_) | Step::Leaf(_) => Decision::NONE,
        }
    }
}

/// Look-up structure: 4 MiB, 24 bytes per node, 2 bytes per leaf.
pub(super) struct V6Table {
    first: HugeSlice<u32>,
    nodes: HugeSlice<Node>,
    leaves: HugeSlice<u16>,
}

/// A prefix: network, length, decision.
pub(super) type Entry = (u128, u8, Decision);

/// Returns the bits of an address that select a branch when `left` bits are unused.
#[inline(always)]
fn branch_at(address: u128, left: u32) -> u32 {
    (address >> (left - STRIDE)) as u32 & ((1 << STRIDE) - 1)
}

impl V6Table {
    /// Builds the structure from entries in any order. Of equal prefixes the last counts. `default` is for all other
    /// addresses.
    pub(super) fn new(mut entries: Vec<Entry>, default: Decision) -> Result<V6Table, TableError> {
        // Each prefix comes after those that contain it, and is followed by those within it.
        entries.sort_by_key(|(network, length, _)| (*network, *length));
        let first = HugeSlice::zeroed(1 << FIRST_BITS);
        let mut first: HugeSlice<u32> = first.map_err(TableError::Memory)?;
        first.fill(DECIDED | u32::from(default.0));
        let is_short = |entry: &&Entry| u32::from(entry.1) <= FIRST_BITS;
        let at = |network: u128| (network >> (128 - FIRST_BITS)) as usize;
        for (network, length, decision) in entries.iter().filter(is_short) {
            let end = at(*network) + (1 << (FIRST_BITS - u32::from(*length)));
            first[at(*network)..end].fill(DECIDED | u32::from(decision.0));
        }
        let mut builder = Builder::default();
        for group in entries.chunk_by(|a, b| at(a.0) == at(b.0)) {
            let short = group.partition_point(|entry| is_short(&entry));
            if let long @ [(network, ..), ..] = &group[short..] {
                let inherited = Decision((first[at(*network)] & !DECIDED) as u16);
                let root = builder.nodes.len() as u32;
                builder.nodes.push(Node::default());
                builder.node(root, long, 128 - FIRST_BITS, inherited)?;
                first[at(*network)] = root;
            }
        }
        Ok(V6Table {
            first,
            nodes: HugeSlice::copy_of(&builder.nodes).map_err(TableError::Memory)?,
            leaves: HugeSlice::copy_of(&builder.leaves).map_err(TableError::Memory)?,
        })
    }

    /// Advances a look-up by one step and prefetches the data of the next step.
    #[inline(always)]
    fn advance(&self, search: &mut Search) {
        search.step = match search.step {
            Step::Done(_) => return,
            Step::Leaf(leaf) => Step::Done(Decision(self.leaves[leaf as usize])),
            Step::Node(node) => {
                let branch = branch_at(search.address, search.left);
                search.left -= STRIDE;
                self.nodes[node as usize].branch(branch)
            }
        };
        self.prefetch(search.step);
    }

    #[inline(always)]
    fn prefetch(&self, step: Step) {
        match step {
            Step::Done(_) => {}
            Step::Node(node) => prefetch(self.nodes.as_ptr().wrapping_add(node as usize).cast()),
            Step::Leaf(leaf) => prefetch(self.leaves.as_ptr().wrapping_add(leaf as usize).cast()),
        }
    }

    #[inline(always)]
    fn begin(&self, search: &mut Search) {
        let entry = self.first[(search.address >> (128 - FIRST_BITS)) as usize];
        search.left = 128 - FIRST_BITS;
        search.step = match entry & DECIDED {
            0 => Step::Node(entry),
            _ => Step::Done(Decision(entry as u16)),
        };
        self.prefetch(search.step);
    }

    /// Completes all look-ups, one step of each in turn, so that their memory accesses overlap.
    #[inline]
    pub(super) fn find_all(&self, searches: &mut [Search]) {
        for search in searches.iter() {
            let entry = (search.address >> (128 - FIRST_BITS)) as usize;
            prefetch(self.first.as_ptr().wrapping_add(entry).cast());
        }
        for search in searches.iter_mut() {
            self.begin(search);
        }
        loop {
            let mut done = true;
            for search in searches.iter_mut() {
                self.advance(search);
                done &= matches!(search.step, Step::Done(_));
            }
            if done {
                break;
            }
        }
    }

    /// Returns the decision for an address.
    pub(super) fn find(&self, address: u128) -> Decision {
        let mut search = [Search::new(address, 0)];
        self.find_all(&mut search);
        search[0].decision()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.first.memory_bytes() + self.nodes.memory_bytes() + self.leaves.memory_bytes()
    }
}

/// Nodes and leaves under construction.
#[derive(Default)]
struct Builder {
    nodes: Vec<Node>,
    leaves: Vec<u16>,
}

impl Builder {
    /// Fills node `at`, which branches by the first of the `left` bits. The entries are sorted and longer than the bits
    /// before. `inherited` is the decision for addresses without an entry.
    fn node(&mut self, at: u32, entries: &[Entry], left: u32, inherited: Decision) -> Result<(), TableError> {
        // Prefixes up to this length end in this node.
        let last = 128 - left + STRIDE;
        let ends_here = |entry: &Entry| u32::from(entry.1) <= last;
        let mut decisions = [inherited; 1 << STRIDE];
        for (network, length, decision) in entries.iter().filter(|entry| ends_here(entry)) {
            let start = branch_at(*network, left) as usize;
            let end = start + (1 << (last - u32::from(*length)));
            decisions[start..end].fill(*decision);
        }
        let mut node = Node {
            first_child: self.nodes.len() as u32,
            first_leaf: self.leaves.len() as u32,
            ..Node::default()
        };
        for entry in entries.iter().filter(|entry| !ends_here(entry)) {
            node.children |= 1 << branch_at(entry.0, left);
        }
        let mut before = None;
        for (branch, decision) in decisions.iter().enumerate() {
            if node.children & (1 << branch) == 0 && before != Some(*decision) {
                node.leaves |= 1 << branch;
                self.leaves.push(decision.0);
                before = Some(*decision);
            }
        }
        let children = node.children.count_ones() as usize;
        let nodes = self.nodes.len() + children;
        if nodes * size_of::<Node>() + self.leaves.len() * size_of::<u16>() > MAX_V6_BYTES {
            return Err(TableError::TooLarge);
        }
        self.nodes.resize(nodes, Node::default());
        self.nodes[at as usize] = node;
        let groups = entries.chunk_by(|a, b| branch_at(a.0, left) == branch_at(b.0, left));
        let mut child = node.first_child;
        for group in groups {
            let ending = group.partition_point(ends_here);
            if let deeper @ [(network, ..), ..] = &group[ending..] {
                let inherited = decisions[branch_at(*network, left) as usize];
                self.node(child, deeper, left - STRIDE, inherited)?;
                child += 1;
            }
        }
        Ok(())
    }
}
