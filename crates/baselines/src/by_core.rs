//! Flows sorted by core, once per decision instead of once per core.

/// Lists of flows by core. The memory is reused.
#[derive(Clone, Debug, Default)]
pub(super) struct ByCore {
    /// Index in `flows` of each core's first flow, plus one entry for the end.
    start: Vec<u32>,
    flows: Vec<u32>,
}

impl ByCore {
    /// Sorts flows by the cores in `places`, and by number within a core. Reserves memory for `most` flows.
    pub(super) fn sort(&mut self, cores: usize, most: usize, places: impl Iterator<Item = usize> + Clone) {
        self.start.clear();
        self.start.resize(cores + 2, 0);
        // Counts are stored two entries late, so that filling in moves each start index to its final entry.
        for core in places.clone() {
            self.start[core + 2] += 1;
        }
        for core in 2..self.start.len() {
            self.start[core] += self.start[core - 1];
        }
        self.flows.clear();
        self.flows.reserve(most);
        self.flows.resize(self.start[cores + 1] as usize, 0);
        for (flow, core) in places.enumerate() {
            let place = &mut self.start[core + 1];
            self.flows[*place as usize] = flow as u32;
            *place += 1;
        }
    }

    /// Returns the flows of `core`.
    pub(super) fn on(&self, core: usize) -> &[u32] {
        &self.flows[self.start[core] as usize..self.start[core + 1] as usize]
    }
}
