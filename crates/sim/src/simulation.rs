//! Simulation run: a rack, its chains with their traffic and policies, from the first packet to the report.

use crate::chain::{COUNTED, ChainError, ChainModel};
use crate::engine::{ChainSetup, Engine};
use crate::policies::RackPolicy;
use crate::rack::{CoreSharing, Rack, RackError, Server};
use crate::report::{
    Cause, ChainReport, CoreUse, DistributionPoint, LatencyReport, Loss, Packets, RackCores, SimReport, WindowReport,
    verdict,
};
use crate::traffic::{Chunk, ChunkReader, FlowStart, MOST_CHAINS, Packet, Workload};
use std::collections::{BTreeMap, VecDeque};
use tailwater_net::Nanos;
use tailwater_traffic::TrafficError;

/// One chain of a run.
#[derive(Debug)]
pub struct ChainRun<'a> {
    /// Cost model of its packets.
    pub model: ChainModel,
    /// Its latency objective, for 99 % of the packets.
    pub slo: Nanos,
    /// Its policy.
    pub policy: RackPolicy,
    /// Its packets.
    pub workload: Workload<'a>,
}

/// Minimum window of a report: an epoch in which cores are counted.
pub const SHORTEST_WINDOW: Nanos = COUNTED;

/// Maximum number of windows of a run.
const MOST_WINDOWS: u64 = 1_000_000;

/// Maximum time for which packets arrive. Windows and epochs are stored for all that time.
pub const LONGEST_RUN: Nanos = Nanos::from_secs(3600);

/// Returns the maximum time for which packets arrive if the report has windows of this length.
pub(crate) fn longest(window: Nanos) -> Nanos {
    Nanos(window.0.saturating_mul(MOST_WINDOWS)).min(LONGEST_RUN)
}

/// Options of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Seed of random values: jitter.
    pub seed: u64,
    /// Length of a window of the report.
    pub window: Nanos,
    /// Initial time that is not reported, so that policies have found their cores. It is rounded up to whole windows.
    /// Packets in the system at its end count as offered.
    pub warm_up: Nanos,
    /// `true` to check all invariants, at some cost.
    pub check: bool,
    /// `true` to interleave all cores even where they are independent: slower, with the same result.
    pub together: bool,
    /// `true` to also report each chain's [`Burst`](crate::report::Burst), if its policy has a core mapper.
    pub bursts: bool,
    /// `true` to end the run as soon as a chain certainly misses its objective: more packets are late than allowed for
    /// the total. The report then covers the packets up to that time, and sets [`missed`](SimReport::missed). The total
    /// is known for recorded packets only.
    pub until_missed: bool,
}

impl RunOptions {
    /// Returns the warm-up, in whole windows.
    ///
    /// # Errors
    /// Windows are too short.
    pub(crate) fn warm_up(&self) -> Result<Nanos, SimError> {
        if self.window < SHORTEST_WINDOW {
            return Err(SimError::Setting {
                field: "window",
                expected: "at least 100us",
            });
        }
        Ok(Nanos(self.warm_up.0.next_multiple_of(self.window.0)))
    }
}

impl Default for RunOptions {
    /// Returns seed 1, windows of 10 ms, reports from the first packet to the last, no checks and no bursts.
    fn default() -> Self {
        RunOptions {
            seed: 1,
            window: Nanos::from_millis(10),
            warm_up: Nanos::ZERO,
            check: false,
            together: false,
            bursts: false,
            until_missed: false,
        }
    }
}

/// Reason why a run is impossible.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The rack is invalid.
    #[error(transparent)]
    Rack(#[from] RackError),
    /// A chain is invalid.
    #[error("chain \"{name}\": {source}")]
    Chain {
        /// Name of the chain.
        name: String,
        /// Cause.
        source: ChainError,
    },
    /// The traffic cannot be read.
    #[error(transparent)]
    Traffic(#[from] TrafficError),
    /// There are too many chains, or none.
    #[error("expected 1 to {MOST_CHAINS} chains, and a core for each on every server; found {found} chains")]
    Chains {
        /// Number of chains.
        found: usize,
    },
    /// The traffic lasts too long.
    #[error("{name}: expected packets for at most {most}, found one {found} after the first")]
    TooLong {
        /// Traffic of the first such chain.
        name: String,
        /// Maximum duration: [`LONGEST_RUN`], or less with short windows.
        most: Nanos,
        /// Arrival time of a packet beyond it.
        found: Nanos,
    },
    /// A setting is out of its range.
    #[error("{field}: expected {expected}")]
    Setting {
        /// Setting.
        field: &'static str,
        /// Expected value.
        expected: &'static str,
    },
}

/// Runs chains on a rack until all their packets have left or are lost.
///
/// Equal arguments give equal reports on any machine.
///
/// # Errors
/// The rack, a chain or a setting is invalid, or traffic cannot be read.
///
/// # Panics
/// With [`RunOptions::check`], if an invariant is violated. Always, if a policy violates its interface.
pub fn simulate(rack: &Rack, chains: Vec<ChainRun<'_>>, options: &RunOptions) -> Result<SimReport, SimError> {
    simulate_with(rack, chains, options, |_| true)
}

/// Like [`simulate`], with calls of `progress` with the virtual time. If `progress` returns `false`, the run ends.
///
/// # Errors
/// As [`simulate`].
///
/// # Panics
/// As [`simulate`].
pub fn simulate_with(
    rack: &Rack,
    mut chains: Vec<ChainRun<'_>>,
    options: &RunOptions,
    mut progress: impl FnMut(Nanos) -> bool,
) -> Result<SimReport, SimError> {
    rack.check()?;
    if chains.is_empty() || chains.len() > MOST_CHAINS || !have_cores(rack, chains.len()) {
        let found = chains.len();
        return Err(SimError::Chains { found });
    }
    let warm_up = options.warm_up()?;
    let mut setups = Vec::new();
    let count = chains.len();
    for (number, chain) in chains.iter_mut().enumerate() {
        setups.push(setup(rack, chain, (number, count), options)?);
    }
    let times = (options.window, warm_up);
    let mut engine = Engine::new(rack, times, setups, options.together);
    if options.bursts {
        engine.watch();
    }
    let mut names = Vec::new();
    let mut feeds = Vec::new();
    for chain in &mut chains {
        let (model, policy) = (chain.model.name.clone(), chain.policy.name.clone());
        names.push((model, chain.workload.name().to_owned(), policy, chain.slo));
        feeds.push(ChunkReader::new(&mut chain.workload));
    }
    let most = longest(options.window);
    let mut traffic = Merged::new(feeds);
    let (mut interrupted, mut missed) = (false, false);
    while !missed {
        let oldest = engine.oldest_known();
        let chunk = traffic.next(oldest)?;
        let Some(last) = chunk.packets.last() else {
            break;
        };
        let time = Nanos(last.arrival);
        if time > most {
            let name = names.swap_remove(0).1;
            let found = time;
            return Err(SimError::TooLong { name, most, found });
        }
        engine.take(chunk);
        if !progress(time) {
            interrupted = true;
            break;
        }
        missed = options.until_missed && traffic.has_more() && engine.is_missed(|chain| traffic.rest(chain));
    }
    let end = engine.drain();
    if end <= warm_up.0 && warm_up > Nanos::ZERO && !interrupted {
        return Err(SimError::Setting {
            field: "warm_up",
            expected: "less than the time in which packets arrive",
        });
    }
    let reported = end.saturating_sub(warm_up.0);
    let (finished, per_epoch) = engine.finish(end);
    let rack_cores = rack_cores(per_epoch);
    let reports = finished.into_iter().zip(names);
    let reports = reports.map(|(finished, (chain, traffic, policy, slo))| {
        let total = &finished.meter.total;
        let offered = total.offered;
        let lost = total.total_lost();
        let histogram = finished.meter.all;
        let late: u64 = total.late.iter().sum();
        let spans = [finished.dedicated, finished.auxiliary];
        let [dedicated, auxiliary] = spans.map(|span| span as f64 / reported.max(1) as f64);
        let used = (finished.dedicated + finished.auxiliary).max(1);
        let mut windows = finished.meter.windows;
        fill_cores(&mut windows, &rack_cores.per_epoch, options.window);
        let named = |(name, count): (&'static str, u64)| (count > 0).then(|| (name.to_owned(), count));
        ChainReport {
            chain,
            traffic,
            policy,
            slo_us: slo.as_micros_f64(),
            slo_met: verdict(late, offered),
            latency_us: LatencyReport::of(&histogram),
            latency_distribution: DistributionPoint::all(&histogram),
            latency: histogram,
            packets: Packets {
                offered,
                delivered: total.delivered,
                delivered_bytes: total.bytes,
                lost,
                lost_by_reason: Loss::ALL
                    .iter()
                    .filter_map(|loss| named((loss.name(), total.lost[*loss as usize])))
                    .collect(),
                flows: total.new,
            },
            loss_rate: lost as f64 / offered.max(1) as f64,
            late_by_cause: Cause::ALL
                .iter()
                .map(|cause| (cause.name().to_owned(), total.late[cause.number()]))
                .collect::<BTreeMap<_, _>>(),
            cores: CoreUse {
                dedicated,
                auxiliary,
                total: dedicated + auxiliary,
                busy: finished.worked as f64 / used as f64,
            },
            decisions: finished.decisions,
            windows,
            burst: finished.burst,
        }
    });
    Ok(SimReport {
        chains: reports.collect(),
        cores: rack_cores,
        duration_s: Nanos(reported).as_secs_f64(),
        seed: options.seed,
        missed,
    })
}

/// A chain made ready. Of each server it may have a share of the cores.
fn setup(
    rack: &Rack,
    chain: &mut ChainRun<'_>,
    (number, count): (usize, usize),
    options: &RunOptions,
) -> Result<ChainSetup, SimError> {
    let costs = chain.model.compile().map_err(|source| SimError::Chain {
        name: chain.model.name.clone(),
        source,
    })?;
    let brokered = rack.sharing == CoreSharing::Broker && chain.policy.core.is_some();
    let cores = cores(rack, (number, count), brokered);
    let all: usize = cores.iter().map(Vec::len).sum();
    let steered = std::mem::replace(&mut chain.policy.steered, crate::policies::Steered::Rack(None));
    Ok(ChainSetup {
        costs,
        slo: chain.slo,
        make: chain.policy.core.take(),
        steered,
        start_cores: chain.policy.start_cores.unwrap_or(all as u16),
        cores,
        seed: crate::chain::random(options.seed, number as u64),
        check: options.check,
    })
}

/// Returns the cores of each server that a chain can have for queues, in the order in which its mapper numbers them.
///
/// It has a share of all servers, or of its own. Under a broker it can get any core of the server, and begins with the
/// first of its share.
fn cores(rack: &Rack, (number, count): (usize, usize), brokered: bool) -> Vec<Vec<u16>> {
    let mut first = 0;
    let servers = rack.servers.iter().enumerate();
    let cores = servers.map(|(server, Server { cores, .. })| {
        let begins = first;
        first += usize::from(*cores);
        let is_here = |chain: &usize| rack.home(*chain).is_none_or(|home| home == server);
        if !is_here(&number) {
            return Vec::new();
        }
        let chains = (0..count).filter(is_here).count();
        let before = (0..number).filter(is_here).count();
        let share = |number: usize| usize::from(*cores) * number / chains;
        let mine = share(before)..share(before + 1);
        let numbers: Vec<usize> = match brokered {
            true => (mine.start..usize::from(*cores)).chain(0..mine.start).collect(),
            false => mine.collect(),
        };
        numbers.into_iter().map(|core| (begins + core) as u16).collect()
    });
    cores.collect()
}

/// Returns `true` if each server has a core for each of its chains.
fn have_cores(rack: &Rack, chains: usize) -> bool {
    let mut servers = rack.servers.iter().enumerate();
    servers.all(|(server, Server { cores, .. })| {
        let is_here = |chain: &usize| rack.home(*chain).is_none_or(|home| home == server);
        (0..chains).filter(is_here).count() <= usize::from(*cores)
    })
}

fn rack_cores(per_epoch: Vec<u16>) -> RackCores {
    let sum: u64 = per_epoch.iter().map(|cores| u64::from(*cores)).sum();
    RackCores {
        average: sum as f64 / per_epoch.len().max(1) as f64,
        most: per_epoch.iter().copied().max().unwrap_or(0).into(),
        per_epoch,
    }
}

/// Sets the number of active cores in each window.
fn fill_cores(windows: &mut [WindowReport], per_epoch: &[u16], window: Nanos) {
    let epochs = (window.0 / COUNTED.0).max(1) as usize;
    for (window, epochs) in windows.iter_mut().zip(per_epoch.chunks(epochs)) {
        let sum: u64 = epochs.iter().map(|cores| u64::from(*cores)).sum();
        window.cores = sum as f64 / epochs.len() as f64;
    }
}

/// Traffic of all chains, merged by time. Equal times are ordered by chain.
pub(crate) struct Merged<'w, 'a> {
    feeds: Vec<ChunkReader<'w, 'a>>,
    /// By chain, packets that were read but not returned. With one feed there are none.
    read: Vec<(VecDeque<Packet>, VecDeque<FlowStart>, bool)>,
    packets: Vec<Packet>,
    starts: Vec<FlowStart>,
}

impl<'w, 'a> Merged<'w, 'a> {
    pub fn new(feeds: Vec<ChunkReader<'w, 'a>>) -> Self {
        let read = feeds.iter().map(|_| Default::default()).collect();
        Merged {
            feeds,
            read,
            packets: Vec::new(),
            starts: Vec::new(),
        }
    }

    /// Returns the number of a chain's remaining packets, if known.
    pub fn rest(&self, chain: usize) -> Option<u64> {
        let read = self.read[chain].0.len() as u64;
        Some(self.feeds[chain].rest()? + read)
    }

    /// Returns `true` if packets remain, or if that is unknown.
    pub fn has_more(&self) -> bool {
        (0..self.feeds.len()).any(|chain| self.rest(chain) != Some(0))
    }

    pub fn next(&mut self, oldest: u64) -> Result<Chunk<'_>, TrafficError> {
        if self.feeds.len() == 1 {
            return self.feeds[0].next(oldest);
        }
        self.packets.clear();
        self.starts.clear();
        while self.packets.len() < crate::traffic::CHUNK {
            let mut first: Option<(u64, usize)> = None;
            for number in 0..self.feeds.len() {
                let (packets, starts, ended) = &mut self.read[number];
                if packets.is_empty() && !*ended {
                    let chunk = self.feeds[number].next(oldest)?;
                    packets.extend(chunk.packets);
                    starts.extend(chunk.starts);
                    *ended = packets.is_empty();
                }
                if let Some(packet) = packets.front()
                    && first.is_none_or(|(arrival, _)| packet.arrival < arrival)
                {
                    first = Some((packet.arrival, number));
                }
            }
            let Some((_, number)) = first else { break };
            let (packets, starts, _) = &mut self.read[number];
            let Some(packet) = packets.pop_front() else {
                break;
            };
            if packet.is_first()
                && let Some(start) = starts.pop_front()
            {
                self.starts.push(start);
            }
            self.packets.push(packet.of_chain(number));
        }
        Ok(Chunk {
            packets: &self.packets,
            starts: &self.starts,
        })
    }
}
