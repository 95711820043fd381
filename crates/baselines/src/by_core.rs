//! Flows sorted by core, once for a decision instead of once for each core.

/// Lists of flows. Reused.
#[derive(Clone, Debug, Default)]
pub(super) struct ByCore {
    /// Where each core's flows begin in `flows`; one more for the end.
    start: Vec<u32>,
    flows: Vec<u32>,
}

impl ByCore {
    /// Sorts flows by the cores that `places` names, in the order of their numbers.
    pub(super) fn sort(&mut self, cores: usize, places: impl Iterator<Item = usize> + Clone) {
        self.start.clear();
        self.start.resize(cores + 2, 0);
        // Counted two places late, so that filling in moves each beginning to where it belongs.
        for core in places.clone() {
            self.start[core + 2] += 1;
        }
        for core in 2..self.start.len() {
            self.start[core] += self.start[core - 1];
        }
        self.flows.clear();
        self.flows.resize(self.start[cores + 1] as usize, 0);
        for (flow, core) in places.enumerate() {
            let place = &mut self.start[core + 1];
            self.flows[*place as usize] = flow as u32;
            *place += 1;
        }
    }

    /// The flows of `core`.
    pub(super) fn on(&self, core: usize) -> &[u32] {
        &self.flows[self.start[core] as usize..self.start[core + 1] as usize]
    }
}
