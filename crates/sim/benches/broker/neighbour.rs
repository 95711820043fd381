//! A chain beside one with five times its rate.

use super::Arguments;
use super::chains::{Chain, rack, run};
use super::traffic::Source;
use tailwater_sim::{ChainReport, CoreSharing};

/// Cores of the server: the two chains keep their objectives with them.
const CORES: u16 = 16;
/// Multiples of its rate offered to the neighbour.
const TIMES: [f64; 3] = [1.0, 2.0, 5.0];
/// Part by which the 99th percentile may be longer than alone, in addition to a batch of the neighbour.
const LONGER: f64 = 1.1;

/// Prints the table.
pub(crate) fn table(arguments: &Arguments) {
    println!(
        "| seed | chain B: objective | neighbour A | p99 of B, us | limit | late %, lost | A: load, cores, lost % | kept |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for &seed in &arguments.seeds {
        // Chain 2 with the highest bursts, beside chain 1 with frequent ones.
        let chain = Chain::new(3, seed, Source::Bursts, arguments.seconds);
        let broker = |count| rack(&[CORES], vec![0; count], CoreSharing::Broker);
        let alone = run(&broker(1), std::slice::from_ref(&chain), false);
        let alone = &alone.chains[0];
        let objective = chain.slo.0 / 1000;
        println!(
            "| {seed} | {objective} us | none | {:.0} | | {} | | |",
            alone.latency_us.p99,
            losses(alone)
        );
        for times in TIMES {
            let neighbour = Chain::offered(4, (seed, times), Source::Bursts, arguments.seconds);
            let report = run(&broker(2), &[chain.clone(), neighbour.clone()], false);
            let (own, other) = (&report.chains[0], &report.chains[1]);
            let limit = alone.latency_us.p99 * LONGER + neighbour.batch().0 as f64 / 1000.0;
            println!(
                "| {seed} | {objective} us | {times} times | {:.0} | {limit:.0} | {} | {:.1}, {:.1}, {:.1} | {} |",
                own.latency_us.p99,
                losses(own),
                neighbour.load(),
                other.cores.total,
                other.loss_rate * 100.0,
                own.latency_us.p99 <= limit && own.packets.lost == 0,
            );
        }
    }
}

/// Returns the late packets in percent, and the lost ones.
fn losses(report: &ChainReport) -> String {
    let late: u64 = report.late_by_cause.values().sum();
    let share = late as f64 * 100.0 / report.packets.offered.max(1) as f64;
    format!("{share:.2}, {}", report.packets.lost)
}
