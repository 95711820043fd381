//! What a worker asks of the store, many things at a time.

use tailwater_net::FlowKey;

/// What is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ask {
    /// The flow's pieces.
    #[default]
    Read,
    /// Whether there is a piece of that key.
    Probe,
    /// To keep pieces for so long.
    Update,
    /// To forget all pieces.
    Forget,
}

/// One thing asked, about one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// What.
    pub ask: Ask,
    /// About which flow.
    pub key: FlowKey,
    /// The flow's place in the worker's table; of a [`Probe`](Ask::Probe), that of the flow that wishes it.
    pub flow: u32,
    /// The key of that flow, if it is another.
    pub asker: FlowKey,
    /// Of which pieces: a bit for each.
    pub pieces: u16,
    /// The pieces that were found.
    pub found: u16,
    /// The number of a probe.
    pub number: u8,
    /// For how many milliseconds pieces are kept.
    pub life: u32,
    /// The number of the update: later ones have greater.
    pub stamp: u64,
}

/// Things asked at a time, and their answers. The store takes them in order.
#[derive(Debug)]
pub struct Request {
    /// Its number.
    pub number: u64,
    /// What is asked.
    pub entries: Vec<Entry>,
    /// A row of pieces for each entry.
    pub rows: Vec<u8>,
    /// The bytes of a row.
    pub row_bytes: usize,
    /// The store's incarnation when it answered.
    pub incarnation: u32,
}

impl Request {
    /// An empty one with room for so many entries.
    pub fn with_room(entries: usize, row_bytes: usize) -> Request {
        Request {
            number: 0,
            entries: Vec::with_capacity(entries),
            rows: Vec::with_capacity(entries * row_bytes),
            row_bytes,
            incarnation: 0,
        }
    }

    /// How many more entries there is room for.
    pub fn room(&self) -> usize {
        self.entries.capacity() - self.entries.len()
    }

    /// Adds an entry with a row of zeros, and returns its place.
    pub fn push(&mut self, entry: Entry) -> usize {
        self.entries.push(entry);
        self.rows.resize(self.entries.len() * self.row_bytes, 0);
        self.entries.len() - 1
    }

    /// An entry's row.
    pub fn row(&self, entry: usize) -> &[u8] {
        &self.rows[entry * self.row_bytes..(entry + 1) * self.row_bytes]
    }

    /// An entry's row, to write.
    pub fn row_mut(&mut self, entry: usize) -> &mut [u8] {
        &mut self.rows[entry * self.row_bytes..(entry + 1) * self.row_bytes]
    }

    /// Makes it empty.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.rows.clear();
    }
}
