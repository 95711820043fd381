//! Batched requests from a worker to the store.

use tailwater_net::FlowKey;

/// Operation of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operation {
    /// Read the flow's state.
    #[default]
    Read,
    /// Check if a key exists.
    Probe,
    /// Write state with a time to live.
    Update,
    /// Delete all state that this run has written.
    Forget,
}

/// Operation on one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// Operation.
    pub operation: Operation,
    /// Key of the flow.
    pub key: FlowKey,
    /// Index of the flow in the worker's table. For a [`Probe`](Operation::Probe), index of the flow the candidate is
    /// for.
    pub flow: u32,
    /// Key of the flow at that index. It differs from `key` for a probe.
    pub asker: FlowKey,
    /// For an update of functions in `paired`, the flow's companion.
    pub companion: FlowKey,
    /// Functions concerned, one bit each.
    pub pieces: u16,
    /// Functions whose state was found, one bit each.
    pub found: u16,
    /// Number of a probe's candidate.
    pub number: u8,
    /// Time to live in milliseconds.
    pub life: u32,
    /// Update number. Later updates of a flow have greater ones, whichever instance writes them. After a read, the
    /// greatest of the values found.
    pub stamp: u64,
    /// For an update, the number of the values that this instance took the flow up from; 0 if there were none. Values
    /// of other instances with a greater one are not replaced.
    pub base: u64,
    /// Functions that store the flow's companion with their state, one bit each.
    pub paired: u16,
    /// The flow was opened as a companion, and its values have not been read: what names the same companion is
    /// replaced.
    pub joins: bool,
    /// Functions whose values were not replaced, since another instance has the flow, one bit each.
    pub refused: u16,
}

/// Batch of entries with their answers. The store executes them in order.
#[derive(Debug)]
pub struct Request {
    /// Number of the request.
    pub number: u64,
    /// Entries, in order.
    pub entries: Vec<Entry>,
    /// One row of state per entry.
    pub rows: Vec<u8>,
    /// Length of a row in bytes.
    pub row_bytes: usize,
    /// Incarnation of the store when it answered.
    pub incarnation: u32,
}

impl Request {
    /// An empty request with room for `entries` entries.
    pub fn with_room(entries: usize, row_bytes: usize) -> Request {
        Request {
            number: 0,
            entries: Vec::with_capacity(entries),
            rows: Vec::with_capacity(entries * row_bytes),
            row_bytes,
            incarnation: 0,
        }
    }

    /// Number of entries there is still room for.
    pub fn room(&self) -> usize {
        self.entries.capacity() - self.entries.len()
    }

    /// Adds an entry with a zeroed row, and returns its index.
    pub fn push(&mut self, entry: Entry) -> usize {
        self.entries.push(entry);
        self.rows.resize(self.entries.len() * self.row_bytes, 0);
        self.entries.len() - 1
    }

    /// Row of an entry.
    pub fn row(&self, entry: usize) -> &[u8] {
        &self.rows[entry * self.row_bytes..(entry + 1) * self.row_bytes]
    }

    /// Mutable row of an entry.
    pub fn row_mut(&mut self, entry: usize) -> &mut [u8] {
        &mut self.rows[entry * self.row_bytes..(entry + 1) * self.row_bytes]
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.rows.clear();
    }
}
