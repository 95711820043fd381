//! Chains that have ended, and their counts across processes.

use crate::machine::PacketCounts;
use crate::take_over::fields::FinalCounts;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::report::{DropOutcome, DropReport, NoVerdict, PacketReport, RunReport, verdict};
use tailwater_dataplane::shared_port::SharedPort;
use tailwater_net::Nanos;

/// Chain that has ended.
#[derive(Clone, Debug)]
pub struct EndedChain {
    /// Name.
    pub name: String,
    /// Its dedicated cores.
    pub cores: Vec<usize>,
    /// Report of its run.
    pub report: Box<RunReport>,
    /// Packets that its port lost meanwhile, and that may have been its own.
    pub port_lost: u64,
    /// Reason for which it failed, if it did.
    pub failure: Option<String>,
}

/// Wall-clock time at which a clock was 0.
pub(super) fn origin_of(clock: &Clock) -> Nanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = since.unwrap_or_default().as_nanos();
    Nanos(u64::try_from(since).unwrap_or(u64::MAX).saturating_sub(clock.now().0))
}

/// Counts of a chain in the process that this one has taken over from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CarriedCounts {
    /// Packets.
    pub(super) packets: PacketCounts,
    /// Late and lost packets by cause.
    pub(super) late: BTreeMap<String, u64>,
    /// Packets that its port lost meanwhile, and that may have been its own.
    pub(super) port_lost: u64,
}

/// Adds the counts of the process that this one has taken over from to a chain's report, also to its drops and causes,
/// and judges the objective for the packets of both. Latencies and windows are of this process alone.
pub(super) fn add_to_report(report: &mut RunReport, carried: &CarriedCounts) {
    if *carried == CarriedCounts::default() {
        return;
    }
    let before = carried.packets;
    let packets = &mut report.packets;
    packets.offered += before.offered;
    packets.delivered += before.delivered;
    packets.dropped_by_nf += before.dropped;
    packets.lost += before.lost;
    let drops = [(DropOutcome::Dropped, before.dropped), (DropOutcome::Lost, before.lost)];
    for (outcome, packets) in drops.into_iter().filter(|(_, packets)| *packets > 0) {
        report.packets.drops.push(DropReport {
            function: None,
            reason: "before-take-over".to_owned(),
            outcome,
            packets,
        });
    }
    report.loss_rate = report.packets.lost as f64 / report.packets.offered.max(1) as f64;
    add_late(&mut report.late_by_cause, &carried.late);
    let judged = judge(&report.packets, &report.late_by_cause, report.slo.percentile);
    (report.slo_met, report.no_verdict) = (judged.ok(), judged.err());
}

/// Adds late and lost packets of causes that this version has.
fn add_late(late: &mut BTreeMap<&'static str, u64>, before: &BTreeMap<String, u64>) {
    for (cause, count) in late {
        *count += before.get(*cause).copied().unwrap_or_default();
    }
}

/// Verdict on an objective for this percentage of the packets.
fn judge(packets: &PacketReport, late: &BTreeMap<&'static str, u64>, percentile: f64) -> Result<bool, NoVerdict> {
    // Older versions pass on no causes.
    let late = late.values().sum::<u64>().max(packets.lost);
    verdict(packets.offered, packets.delivered + packets.lost, late, percentile)
}

/// Final counts for the process that has taken over.
pub fn final_counts(ended: &[EndedChain], ports: &[Arc<SharedPort>]) -> FinalCounts {
    // Versions of a chain that followed each other have one name.
    let mut chains = BTreeMap::<String, [u64; 4]>::new();
    let mut late = BTreeMap::<String, BTreeMap<String, u64>>::new();
    let mut port_lost = BTreeMap::<String, u64>::new();
    for chain in ended {
        *port_lost.entry(chain.name.clone()).or_default() += chain.port_lost;
        let packets = &chain.report.packets;
        let counts = [packets.offered, packets.delivered, packets.dropped_by_nf, packets.lost];
        let sums = chains.entry(chain.name.clone()).or_default();
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        let of_chain = late.entry(chain.name.clone()).or_default();
        for (cause, count) in chain.report.late_by_cause.iter().filter(|(_, count)| **count > 0) {
            *of_chain.entry((*cause).to_owned()).or_default() += count;
        }
    }
    let ports = ports.iter().map(|port| {
        // Numbers by name are always a value.
        let counts = serde_json::to_value(port.counts()).unwrap_or_default();
        (port.name().to_owned(), counts)
    });
    FinalCounts {
        chains,
        late,
        port_lost,
        ports: ports.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It read 14 lost packets, no cause, objective met.
    #[test]
    fn packets_that_were_late_before_a_take_over_count_in_the_verdict() {
        let packets = PacketReport {
            offered: 1000,
            delivered: 986,
            lost: 14,
            ..PacketReport::default()
        };
        let mut late = BTreeMap::from([("core-overload", 1), ("flow-overload", 0)]);
        let before = [("core-overload", 2), ("flow-overload", 14), ("of a newer version", 1)];
        let before = before.map(|(cause, count)| (cause.to_owned(), count));
        add_late(&mut late, &before.into());
        assert_eq!(late, BTreeMap::from([("core-overload", 3), ("flow-overload", 14)]));
        assert_eq!(judge(&packets, &late, 99.0), Ok(false));
        assert_eq!(judge(&packets, &late, 98.0), Ok(true));
        assert_eq!(judge(&packets, &BTreeMap::new(), 99.0), Ok(false), "without causes");
    }
}
