//! Observation of the ports' losses: events about them, and their counts.

use super::LiveMachine;
use super::port_losses::{PortLosses, cause_of};
use crate::details::PortDetails;
use crate::port_loss::{PortLossMonitor, PortReading};
use tailwater_dataplane::shared_port::UnreceivedCounts;

impl LiveMachine {
    /// Reads the losses of all ports, and notes which begin or stop losing packets.
    pub(super) fn observe_port_losses(&mut self) {
        let at = self.host.clock().now();
        let read: Vec<(&String, Vec<UnreceivedCounts>)> = self
            .ports
            .iter()
            .map(|(name, port)| (name, port.unreceived().collect()))
            .collect();
        // After the losses, which come at the end of a gap.
        let gaps = self.host.take_poll_gaps().collect();
        self.losses.gaps.swap(0, 1);
        self.losses.gaps[0] = gaps;
        let PortLosses { ports, gaps } = &mut self.losses;
        let name_of = |(number, slot): (usize, usize)| {
            let (name, _) = self.ports.iter().find(|(_, port)| port.number() == number)?;
            let mut chains = self.chains.values().chain(&self.leaving);
            let chain = chains.find(|chain| chain.port() == name && chain.slot() == Some(slot));
            chain.map(|chain| chain.name().to_owned())
        };
        for (name, counts) in read {
            let watched = ports.entry(name.clone()).or_default();
            let before = std::mem::replace(&mut watched.before, counts.clone());
            let reading = PortReading {
                at,
                arrived: counts.iter().map(|of_core| of_core.arrived).sum(),
                lost: counts.iter().map(|of_core| of_core.lost).sum(),
            };
            let cause = || cause_of(&before, &counts, gaps, name_of);
            self.notes.extend(watched.monitor.observe(name, reading, cause));
        }
    }

    /// Packets of the ports, in the order of their names.
    pub(super) fn port_details(&self) -> Vec<PortDetails> {
        let details = self.ports.iter().map(|(name, port)| {
            let counts = port.counts();
            let monitor = self.losses.ports.get(name).map(|watched| &watched.monitor);
            let (interval, arrived, lost) = monitor.map(PortLossMonitor::interval).unwrap_or_default();
            PortDetails {
                name: name.clone(),
                received: counts.received,
                unmatched: counts.unmatched,
                lost: counts.lost,
                damaged: counts.damaged,
                interval,
                interval_received: arrived,
                interval_lost: lost,
                losing_cores: monitor.map_or_else(Vec::new, |monitor| monitor.cores().collect()),
            }
        });
        details.collect()
    }
}
