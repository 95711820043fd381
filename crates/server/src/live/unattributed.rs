//! Part of the ports' losses in the verdicts on chains.

use std::sync::Arc;
use tailwater_dataplane::report::{NoVerdict, RunReport, is_within};
use tailwater_dataplane::shared_port::SharedPort;

/// Packets that a chain's port has lost, and that are in no chain's books: any of them may be the chain's.
#[derive(Debug)]
pub(super) struct UnattributedLosses {
    port: Arc<SharedPort>,
    /// At the chain's start, and around its last window.
    at_start: u64,
    window: Option<u64>,
    from: u64,
    until: u64,
    /// When the chain took its last packet.
    at_end: Option<u64>,
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
            at_end: None,
        }
    }

    /// Begins anew.
    pub(super) fn restart(&mut self) {
        *self = UnattributedLosses::new(&self.port);
    }

    /// Notes that the chain takes no more packets. Only the first call counts.
    pub(super) fn end(&mut self) {
        self.at_end.get_or_insert_with(|| unattributed(&self.port));
    }

    /// Packets lost since the chain's start, until its end.
    pub(super) fn since_start(&self) -> u64 {
        self.at_end.unwrap_or_else(|| unattributed(&self.port)) - self.at_start
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

/// Takes the verdict of a chain that has ended back, if some of the `lost` packets of its port may have been its own.
pub(super) fn judge_report(report: &mut RunReport, lost: u64) {
    let packets = &report.packets;
    let late = report.late_by_cause.values().sum::<u64>().max(packets.lost);
    let counts = [late, packets.delivered + packets.lost];
    let verdict = verdict_with_losses(report.slo_met, counts, lost, report.slo.percentile);
    if verdict != report.slo_met {
        (report.slo_met, report.no_verdict) = (verdict, Some(NoVerdict::PortLoss));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
