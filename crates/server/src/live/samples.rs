//! Samples of the ports' packets, by chain.

use super::LiveMachine;
use std::collections::BTreeMap;

impl LiveMachine {
    /// Reads the samples of all ports.
    pub(super) fn read_flow_samples(&mut self) {
        for (name, port) in &self.ports {
            let of_port = self.chains.values_mut().filter(|chain| chain.port() == name.as_str());
            let by_slot = of_port.filter_map(|chain| Some((chain.slot()?, &mut chain.classes)));
            let mut by_slot: BTreeMap<usize, _> = by_slot.collect();
            port.read_flow_samples(|sample| {
                if let Some(classes) = by_slot.get_mut(&sample.slot) {
                    classes.add(&sample);
                }
            });
        }
    }
}
