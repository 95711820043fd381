//! Losses of the ports, as they were last observed, and their causes.

use crate::port_loss::{LossCause, PortLossMonitor};
use std::collections::BTreeMap;
use tailwater_dataplane::core_host::PollGap;
use tailwater_dataplane::shared_port::UnreceivedCounts;

/// Losses of all ports, as they were last observed.
#[derive(Debug, Default)]
pub(super) struct PortLosses {
    pub(super) ports: BTreeMap<String, WatchedPort>,
    /// Longest gap between two polls of each core before the last observation, and before the one before it: a device
    /// reports its losses late.
    pub(super) gaps: [Vec<PollGap>; 2],
}

/// Losses of a port.
#[derive(Debug, Default)]
pub(super) struct WatchedPort {
    pub(super) monitor: PortLossMonitor,
    /// By core.
    pub(super) before: Vec<UnreceivedCounts>,
}

/// Cores on which packets were lost between two readings, and the longest of their gaps.
pub(super) fn cause_of(
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

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_net::Nanos;

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
