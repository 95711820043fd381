//! Models of a simulation, and their limits.

use crate::flow_level;
use crate::rack::{MOST_CORES, MOST_SERVERS};
use crate::traffic::MOST_CHAINS;

/// Way to simulate a rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SimulationModel {
    /// Every packet.
    #[default]
    Packets,
    /// Rates and backlogs: [`flow_level`].
    Flows,
}

impl SimulationModel {
    /// All models, by their names in specs.
    pub const ALL: [(&'static str, SimulationModel); 2] =
        [("packets", SimulationModel::Packets), ("flows", SimulationModel::Flows)];

    /// Returns its name in specs.
    pub fn name(self) -> &'static str {
        SimulationModel::ALL[self as usize].0
    }

    /// Returns the maximum numbers of servers and of cores.
    pub(super) fn most(self) -> (usize, usize) {
        match self {
            SimulationModel::Packets => (MOST_SERVERS, MOST_CORES),
            SimulationModel::Flows => (flow_level::MOST_SERVERS, flow_level::MOST_CORES),
        }
    }

    /// Returns the maximum number of chains.
    pub(super) fn most_chains(self) -> usize {
        match self {
            SimulationModel::Packets => MOST_CHAINS,
            SimulationModel::Flows => flow_level::MOST_CHAINS,
        }
    }
}
