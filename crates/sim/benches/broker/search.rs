//! Fewest cores with which all objectives are kept.

use super::Arguments;
use super::chains::{Chain, all_kept, rack, run};
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tailwater_sim::{ChainReport, CoreSharing, SimReport};

/// Cores of a server of the papers' rack, and servers.
const SERVER: u16 = 64;
const SERVERS: usize = 5;

/// Result for a number of chains and a seed, as Markdown.
pub struct Row {
    pub summary: String,
    pub details: String,
}

/// Finds both numbers of cores.
pub(crate) fn compare(count: usize, seed: u64, arguments: &Arguments) -> Row {
    let numbers: Vec<usize> = (0..count).collect();
    let chains = parallel(&numbers, arguments.threads, |number| {
        Chain::new(*number, seed, arguments.source, arguments.seconds)
    });
    let alone = parallel(&chains, arguments.threads, |chain| {
        let one = std::slice::from_ref(chain);
        fewest(least(one), |cores| {
            run(&rack(&[cores], vec![0], CoreSharing::Own), one, true)
        })
    });
    let own: u32 = alone.iter().map(|(cores, _)| u32::from(*cores)).sum();
    let (servers, homes, shared) = together(&chains, arguments);
    let broker: u32 = servers.iter().map(|cores| u32::from(*cores)).sum();
    let mut reports: Vec<&ChainReport> = shared.iter().flat_map(|report| &report.chains).collect();
    reports.sort_by_key(|report| chains.iter().position(|chain| chain.name == report.chain));
    let kept = reports.iter().filter(|report| report.slo_met == Some(true)).count();
    let active = |reports: &mut dyn Iterator<Item = &SimReport>| reports.map(|r| r.cores.average).sum::<f64>();
    let summary = format!(
        "| {count} | {seed} | {own} | {broker} on {} | {:.2} | {kept} of {count} | {:.1}, {:.1} |",
        servers.len(),
        f64::from(broker) / f64::from(own),
        active(&mut alone.iter().map(|(_, report)| report)),
        active(&mut shared.iter()),
    );
    let mut details = format!(
        "{count} chains, seed {seed}; servers of {servers:?} cores\n\n| chain | traffic | load | objective, us | \
         own: cores, p99, late % | broker: server, dedicated + auxiliary, p99, late %, lost |\n|---|---|---|---|---|---|\n"
    );
    for (number, chain) in chains.iter().enumerate() {
        let (cores, before) = &alone[number];
        let (before, after) = (&before.chains[0], reports[number]);
        let _ = writeln!(
            details,
            "| {} | {} | {:.2} | {} | {cores}, {:.0}, {:.2} | {}, {:.2} + {:.2}, {:.0}, {:.2}, {} |",
            chain.name,
            chain.traffic,
            chain.load(),
            chain.slo.0 / 1000,
            before.latency_us.p99,
            late(before),
            homes[number] + 1,
            after.cores.dedicated,
            after.cores.auxiliary,
            after.latency_us.p99,
            late(after),
            after.packets.lost,
        );
    }
    Row { summary, details }
}

/// Returns the late and lost packets in percent.
fn late(report: &ChainReport) -> f64 {
    let late: u64 = report.late_by_cause.values().sum();
    late as f64 * 100.0 / report.packets.offered.max(1) as f64
}

/// Returns the fewest cores that can hold the mean load.
fn least(chains: &[Chain]) -> u16 {
    let load: f64 = chains.iter().map(Chain::load).sum();
    (load.ceil() as u16).max(chains.len() as u16)
}

/// Returns the fewest cores, from `least` on, with which a run keeps all objectives, and that run's report: a bisection
/// between the first power-of-two step that does and the last that does not.
fn fewest(least: u16, run: impl Fn(u16) -> SimReport) -> (u16, SimReport) {
    let (mut low, mut step) = (least, 1);
    let mut high = loop {
        let report = run(low.min(SERVER));
        if all_kept(&report) {
            break (low.min(SERVER), report);
        }
        assert!(low < SERVER, "no objective is kept with {SERVER} cores");
        low += step;
        step *= 2;
    };
    let mut fails = (high.0 - step / 2).max(least.saturating_sub(1));
    while high.0 - fails > 1 {
        let middle = fails + (high.0 - fails) / 2;
        let report = run(middle);
        match all_kept(&report) {
            true => high = (middle, report),
            false => fails = middle,
        }
    }
    high
}

/// Finds the cores of servers under the broker: as few servers as hold all chains, the chains dealt out in turn.
fn together(chains: &[Chain], arguments: &Arguments) -> (Vec<u16>, Vec<u16>, Vec<SimReport>) {
    for servers in 1..=SERVERS {
        let homes: Vec<u16> = (0..chains.len()).map(|number| (number % servers) as u16).collect();
        let groups: Vec<Vec<Chain>> = (0..servers)
            .map(|server| chains.iter().skip(server).step_by(servers).cloned().collect())
            .collect();
        let run_with = |group: &[Chain], cores| {
            let rack = rack(&[cores], vec![0; group.len()], CoreSharing::Broker);
            run(&rack, group, true)
        };
        let fits = |group: &Vec<Chain>| least(group) < SERVER && all_kept(&run_with(group, SERVER));
        if !parallel(&groups, arguments.threads, fits).into_iter().all(|fits| fits) {
            continue;
        }
        let found = parallel(&groups, arguments.threads, |group| {
            fewest(least(group), |cores| run_with(group, cores))
        });
        let (cores, reports) = found.into_iter().unzip();
        return (cores, homes, reports);
    }
    panic!("the rack is too small for {} chains", chains.len())
}

/// Calls `work` for all items on several threads.
pub fn parallel<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                while let Some(item) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    items.get(at).map(|item| (at, item))
                } {
                    let result = (item.0, work(item.1));
                    results.lock().unwrap_or_else(|error| panic!("{error}")).push(result);
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|error| panic!("{error}"));
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
