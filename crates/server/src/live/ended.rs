//! Chains that have ended, and their counts across processes.

use crate::machine::PacketCounts;
use crate::take_over::fields::FinalCounts;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::report::{DropOutcome, DropReport, RunReport};
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
    /// Reason for which it failed, if it did.
    pub failure: Option<String>,
}

/// Wall-clock time at which a clock was 0.
pub(super) fn origin_of(clock: &Clock) -> Nanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = since.unwrap_or_default().as_nanos();
    Nanos(u64::try_from(since).unwrap_or(u64::MAX).saturating_sub(clock.now().0))
}

/// Adds the counts of the process that this one has taken over from to a chain's report, also to its drops.
pub(super) fn add_to_report(report: &mut RunReport, before: PacketCounts) {
    if before == PacketCounts::default() {
        return;
    }
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
}

/// Final counts for the process that has taken over.
pub fn final_counts(ended: &[EndedChain], ports: &[Arc<SharedPort>]) -> FinalCounts {
    // Versions of a chain that followed each other have one name.
    let mut chains = BTreeMap::<String, [u64; 4]>::new();
    for chain in ended {
        let packets = &chain.report.packets;
        let counts = [packets.offered, packets.delivered, packets.dropped_by_nf, packets.lost];
        let sums = chains.entry(chain.name.clone()).or_default();
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let ports = ports.iter().map(|port| {
        // Numbers by name are always a value.
        let counts = serde_json::to_value(port.counts()).unwrap_or_default();
        (port.name().to_owned(), counts)
    });
    FinalCounts {
        chains,
        ports: ports.collect(),
    }
}
