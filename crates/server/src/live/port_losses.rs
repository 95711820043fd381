//! Losses of the ports: events about them, and their part in the verdicts on chains.

use super::LiveMachine;
use super::running::RunningChain;
use crate::details::PortDetails;
use crate::port_loss::{LossCause, PortLossMonitor, PortReading};
use std::collections::BTreeMap;
use std::sync::Arc;
use tailwater_dataplane::core_host::PollGap;
use tailwater_dataplane::report::{NoVerdict, RunReport, is_within};
use tailwater_dataplane::shared_port::{SharedPort, UnreceivedCounts};

/// Losses of all ports, as they were last observed.
#[derive(Debug, Default)]
pub(super) struct PortLosses {
    ports: BTreeMap<String, WatchedPort>,
    /// Longest gap between two polls of each core before the last observation, and before the one before it: a device
    /// reports its losses late.
    gaps: [Vec<PollGap>; 2],
}

#[derive(Debug, Default)]
struct WatchedPort {
    monitor: PortLossMonitor,
    /// By core.
    before: Vec<UnreceivedCounts>,
}

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

/// Cores on which packets were lost between two readings, and the longest of their gaps.
fn cause_of(
    before: &[UnreceivedCounts],
    now: &[UnreceivedCounts],
    gaps: &[Vec<PollGap>; 2],
    name_of: impl Fn((usize, usize)) -> Option<String>,
) -> LossCause {
    let nothing = UnreceivedCounts::default();
    let since = |number: usize| {
        (
            before.get(number).unwrap_or(&nothing),
            now.get(number).unwrap_or(&nothing),
        )
    };
    let is_any = (0..now.len()).any(|number| {
        let (before, now) = since(number);
        now.on_any_queue > before.on_any_queue
    });
    let loses = |number: usize| {
        let (before, now) = since(number);
        is_any || now.lost > before.lost
    };
    let own = gaps.iter().flat_map(|gaps| gaps.iter().enumerate());
    let own = own.filter(|(number, _)| loses(*number)).map(|(_, gap)| gap);
    let longest = own.clone().max_by_key(|gap| gap.length);
    let mut cores: Vec<u32> = own.map(|gap| gap.core as u32).collect();
    cores.sort_unstable();
    cores.dedup();
    LossCause {
        cores,
        gap: longest.map_or_else(Default::default, |gap| gap.length),
        chain: longest.and_then(|gap| name_of(gap.chain?)),
    }
}

/// Packets that a chain's port has lost, and that are in no chain's books: any of them may be the chain's.
#[derive(Debug)]
pub(super) struct UnattributedLosses {
    port: Arc<SharedPort>,
    /// At the chain's start, and around its last window.
    at_start: u64,
    window: Option<u64>,
    from: u64,
    until: u64,
}

impl UnattributedLosses {
    /// Losses beside a chain that starts now.
    pub(super) fn new(port: &Arc<SharedPort>) -> UnattributedLosses {
        let at_start = unattributed(port);
        UnattributedLosses {
            port: Arc::clone(port),
            at_start,
            window: None,
            from: at_start,
            until: at_start,
        }
    }

    /// Begins anew.
    pub(super) fn restart(&mut self) {
        *self = UnattributedLosses::new(&self.port);
    }

    /// Packets lost since the chain's start.
    pub(super) fn since_start(&self) -> u64 {
        unattributed(&self.port) - self.at_start
    }

    /// Packets lost in the chain's last window, which has this index. Each loss is in one window.
    pub(super) fn in_window(&mut self, index: u64) -> u64 {
        if self.window.replace(index) != Some(index) {
            self.from = std::mem::replace(&mut self.until, unattributed(&self.port));
        }
        self.until - self.from
    }
}

fn unattributed(port: &SharedPort) -> u64 {
    port.unreceived().map(|of_core| of_core.unattributed).sum()
}

/// Verdict on an objective with packets that the chain's port lost: met only if it is met even with all of them as the
/// chain's own. `late` of `owed` packets were late or lost.
pub(super) fn verdict_with_losses(
    met: Option<bool>,
    [late, owed]: [u64; 2],
    port_lost: u64,
    percentile: f64,
) -> Option<bool> {
    met.filter(|met| !met || is_within(late + port_lost, owed + port_lost, percentile))
}

/// Takes the verdict of a chain that has ended back, if packets of its port may have been its own.
pub(super) fn judge_report(report: &mut RunReport, chain: &RunningChain) {
    let packets = &report.packets;
    let late = report.late_by_cause.values().sum::<u64>().max(packets.lost);
    let counts = [late, packets.delivered + packets.lost];
    let lost = chain.port_losses.since_start();
    let verdict = verdict_with_losses(report.slo_met, counts, lost, report.slo.percentile);
    if verdict != report.slo_met {
        (report.slo_met, report.no_verdict) = (verdict, Some(NoVerdict::PortLoss));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_net::Nanos;

    #[test]
    fn an_objective_is_met_only_if_all_packets_of_the_port_may_be_the_chains() {
        let verdict = |met, late, port_lost| verdict_with_losses(met, [late, 1000], port_lost, 99.0);
        assert_eq!(verdict(Some(true), 0, 0), Some(true));
        assert_eq!(verdict(Some(true), 0, 10), Some(true));
        assert_eq!(verdict(Some(true), 0, 11), None);
        assert_eq!(verdict(Some(true), 10, 1), None);
        assert_eq!(verdict(Some(false), 500, 1), Some(false));
        assert_eq!(verdict(None, 0, 1000), None);
    }

    #[test]
    fn the_cause_is_on_the_cores_that_lost_packets() {
        let counts = |lost: u64, on_any_queue: u64| UnreceivedCounts {
            arrived: 100,
            lost,
            unattributed: lost,
            on_any_queue,
        };
        let gap = |core, length, slot| PollGap {
            core,
            length: Nanos(length),
            chain: Some((0, slot)),
        };
        let gaps = [vec![gap(4, 50, 1), gap(7, 90, 2)], vec![gap(4, 70, 3), gap(7, 10, 4)]];
        let cause = |now: [UnreceivedCounts; 2]| {
            cause_of(&[counts(5, 0); 2], &now, &gaps, |(_, slot)| Some(format!("c{slot}")))
        };
        let expected = |cores: &[u32], gap, chain: &str| LossCause {
            cores: cores.to_vec(),
            gap: Nanos(gap),
            chain: Some(chain.to_owned()),
        };
        assert_eq!(cause([counts(6, 0), counts(5, 0)]), expected(&[4], 70, "c3"));
        assert_eq!(cause([counts(6, 0), counts(7, 0)]), expected(&[4, 7], 90, "c2"));
        // The device does not report the queue.
        assert_eq!(cause([counts(6, 1), counts(5, 0)]), expected(&[4, 7], 90, "c2"));
    }
}
