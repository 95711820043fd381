//! Runs of all chains, in parallel, and their report.

use super::chain::Chain;
use super::error::FlowLevelError;
use super::limits::{MOST_WINDOWS, STEP, ServerShare};
use super::meter::Meter;
use super::model::Model;
use super::source::Source;
use crate::chain::{ChainModel, random};
use crate::policies::{RackPolicy, Steered};
use crate::rack::Rack;
use crate::report::{
    Cause, ChainReport, CoreUse, DistributionPoint, LatencyReport, Loss, Packets, RackCores, SimReport, verdict,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use tailwater_measure::attribution;
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_traffic::generate::TrafficStatistics;

/// Virtual time between two reports of progress, in nanoseconds.
const PROGRESS: f64 = 100e6;

/// One chain of a run at flow level.
#[derive(Debug)]
pub struct FlowLevelChain {
    /// Name in reports.
    pub name: String,
    /// Cost model of its packets.
    pub model: ChainModel,
    /// Its latency objective, for 99 % of the packets.
    pub slo: Nanos,
    /// Its profile for this objective.
    pub profile: CapacityProfile,
    /// Its policy, made from the same profile.
    pub policy: RackPolicy,
    /// Name of its traffic, and its statistics.
    pub traffic: (String, TrafficStatistics),
    /// Seed of its traffic.
    pub seed: u64,
    /// Number of servers that it runs on, or `None` for all: the next ones of the rack, from the first again after the
    /// last. Chains on the same server have equal shares of its cores.
    pub servers: Option<usize>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct FlowLevelReport {
    /// Results, as of the packet-level model.
    pub report: SimReport,
    /// Bytes of state of the largest chain in progress. Each thread has one chain.
    pub state_bytes: usize,
}

/// Runs chains on a rack at flow level for `duration`, on `threads` threads. `options` holds the seed of random values,
/// the window of the report and the warm-up; the rest of it does not apply. `progress` is called with the chains' total
/// simulated time, at most `chains` times `duration`; if it returns `false`, the run ends, and there is no report.
///
/// Equal arguments give equal reports for any number of threads.
///
/// # Errors
/// The rack, a chain or a setting is invalid, or the model lacks a policy.
pub fn simulate_flows(
    rack: &Rack,
    chains: Vec<FlowLevelChain>,
    (duration, threads): (Nanos, usize),
    options: &crate::RunOptions,
    progress: impl Fn(Nanos) -> bool + Sync,
) -> Result<Option<FlowLevelReport>, FlowLevelError> {
    let setting = |field, expected| FlowLevelError::Setting { field, expected };
    let window = (options.window.0 as f64 / STEP).max(1.0) as u64 * STEP as u64;
    let warm_up = options.warm_up.0.next_multiple_of(STEP as u64);
    if duration.0 <= warm_up {
        return Err(setting("warmUp", "less than the duration"));
    }
    if duration > crate::LONGEST_RUN {
        return Err(setting("duration", "at most an hour"));
    }
    if rack.servers.iter().any(|server| server.fails_at.is_some()) {
        return Err(setting(
            "servers.failsAt",
            "none: lost servers are not modelled at flow level",
        ));
    }
    let scales_in = |chain: &FlowLevelChain| match &chain.policy.steered {
        Steered::Servers { ingress, .. } => ingress.scale_in,
        _ => false,
    };
    if chains.iter().any(scales_in) {
        return Err(setting(
            "ingress.scaleIn",
            "false: servers are not emptied at flow level",
        ));
    }
    let windows = (duration.0 - warm_up).div_ceil(window) as usize * chains.len();
    if windows > MOST_WINDOWS {
        return Err(FlowLevelError::Windows { found: windows });
    }
    let shares = place(rack, &chains)?;
    let count = chains.len();
    let times = Times {
        duration: duration.0,
        warm_up,
        window,
    };
    let mut prepared = Vec::new();
    for ((number, chain), shares) in chains.into_iter().enumerate().zip(shares) {
        if !progress(Nanos::ZERO) {
            return Ok(None);
        }
        prepared.push(Some(prepare(rack, chain, shares, random(options.seed, number as u64))?));
    }
    let jobs = Mutex::new(prepared);
    let (next, stopped, ticks) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicUsize::new(0));
    let results: Mutex<Vec<Option<(ChainReport, usize)>>> = Mutex::new((0..count).map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let job = jobs
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .get_mut(number)
                        .and_then(Option::take);
                    let Some(job) = job else { return };
                    let report = job.run(rack, &times, |advance| {
                        let done = ticks.fetch_add(advance, Ordering::Relaxed) + advance;
                        let all = Nanos((done as f64 * STEP) as u64);
                        if !stopped.load(Ordering::Relaxed) && !progress(all) {
                            stopped.store(true, Ordering::Relaxed);
                        }
                        !stopped.load(Ordering::Relaxed)
                    });
                    if let Some(report) = report {
                        results.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(report);
                    }
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    if stopped.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let (mut reports, sizes): (Vec<_>, Vec<_>) = results.into_iter().flatten().unzip();
    let cores = rack_cores(&mut reports);
    Ok(Some(FlowLevelReport {
        report: SimReport {
            chains: reports,
            cores,
            duration_s: Nanos(duration.0 - warm_up).as_secs_f64(),
            seed: options.seed,
            missed: false,
        },
        state_bytes: sizes.into_iter().max().unwrap_or(0),
    }))
}

struct Times {
    duration: u64,
    warm_up: u64,
    window: u64,
}

/// A chain made ready.
struct Job {
    chain: FlowLevelChain,
    servers: Vec<ServerShare>,
    model: Model,
    seed: u64,
}

/// Returns each chain's share of each of its servers' cores.
fn place(rack: &Rack, chains: &[FlowLevelChain]) -> Result<Vec<Vec<ServerShare>>, FlowLevelError> {
    let all = rack.servers.len();
    let mut next = 0;
    let mut on: Vec<Vec<usize>> = vec![Vec::new(); all];
    for (number, chain) in chains.iter().enumerate() {
        let servers = chain.servers.unwrap_or(all).min(all);
        for _ in 0..servers {
            on[next % all].push(number);
            next += 1;
        }
    }
    let mut shares = vec![Vec::new(); chains.len()];
    for (server, chains) in on.iter().enumerate() {
        let cores = usize::from(rack.servers[server].cores);
        if chains.len() > cores {
            return Err(FlowLevelError::Cores {
                server,
                cores,
                chains: chains.len(),
            });
        }
        for (number, chain) in chains.iter().enumerate() {
            let part = |number: usize| cores * number / chains.len();
            shares[*chain].push(ServerShare {
                cores: part(number + 1) - part(number),
                reta_delay: rack.servers[server].reta_delay,
            });
        }
    }
    Ok(shares)
}

fn prepare(rack: &Rack, chain: FlowLevelChain, servers: Vec<ServerShare>, seed: u64) -> Result<Job, FlowLevelError> {
    chain.model.compile().map_err(|source| FlowLevelError::Chain {
        name: chain.name.clone(),
        source,
    })?;
    let server = rack.servers.first().ok_or(FlowLevelError::Setting {
        field: "servers",
        expected: "at least one server",
    })?;
    let policy = (chain.slo, chain.policy.name.as_str());
    let model = Model::new(&chain.model, policy, &chain.profile, &chain.traffic.1, (rack, server))?;
    Ok(Job {
        model,
        seed: random(seed, chain.seed),
        chain,
        servers,
    })
}

impl Job {
    /// Simulates the chain. `progress` is called with the number of steps since its last call, and ends the run by
    /// `false`.
    fn run(self, rack: &Rack, times: &Times, progress: impl Fn(usize) -> bool) -> Option<(ChainReport, usize)> {
        let FlowLevelChain {
            name,
            slo,
            policy,
            traffic: (traffic, statistics),
            ..
        } = self.chain;
        let policy_name = policy.name.clone();
        let bytes = statistics.bytes;
        let source = |sections| Source::new(statistics, sections, self.seed);
        let meter = Meter::new(slo, self.model.calm);
        let mut chain = Chain::new(self.model, meter, source, policy, &self.servers, rack, self.seed);
        let (mut now, mut told) = (0.0, 0.0);
        let (duration, warm_up, window) = (times.duration as f64, times.warm_up as f64, times.window as f64);
        let mut window_starts = warm_up;
        while now < duration {
            chain.step(now);
            now += STEP;
            if now <= warm_up {
                if now >= warm_up {
                    chain.restart();
                }
            } else if now >= window_starts + window || now >= duration {
                chain.roll(Nanos((window_starts - warm_up) as u64), now - window_starts);
                window_starts = now;
            }
            if now - told >= PROGRESS || now >= duration {
                if !progress(((now - told) / STEP) as usize) {
                    return None;
                }
                told = now;
            }
        }
        chain.decided();
        let state = chain.state_bytes();
        let report = report((name, traffic, policy_name, slo), &chain, now - warm_up, bytes);
        Some((report, state))
    }
}

fn report(
    (name, traffic, policy, slo): (String, String, String, Nanos),
    chain: &Chain,
    time: f64,
    bytes: f64,
) -> ChainReport {
    let total = &chain.meter.total;
    let whole = |amount: f64| amount.round().max(0.0) as u64;
    let offered = whole(total.offered);
    let lost = whole(total.lost).min(offered);
    let late = whole(total.late).min(offered);
    let histogram = chain.meter.all.clone();
    let [dedicated, auxiliary] = [chain.dedicated, chain.auxiliary()].map(|sum| sum / time);
    let mut late_by_cause: BTreeMap<String, u64> =
        Cause::ALL.iter().map(|cause| (cause.name().to_owned(), 0)).collect();
    let mut cause = |cause: attribution::Cause, count| {
        late_by_cause.insert(Cause::Live(cause).name().to_owned(), count);
    };
    cause(attribution::Cause::RingFull, lost);
    cause(attribution::Cause::QueuedBehindOthers, late.saturating_sub(lost));
    let lost_by_reason = (lost > 0).then(|| (Loss::RingFull.name().to_owned(), lost));
    ChainReport {
        chain: name,
        traffic,
        policy,
        slo_us: slo.as_micros_f64(),
        slo_met: verdict(late, offered),
        latency_us: LatencyReport::of(&histogram),
        latency_distribution: DistributionPoint::all(&histogram),
        latency: histogram,
        packets: Packets {
            offered,
            delivered: offered - lost,
            delivered_bytes: whole((offered - lost) as f64 * bytes),
            lost,
            lost_by_reason: lost_by_reason.into_iter().collect(),
            flows: whole(total.flows),
        },
        loss_rate: lost as f64 / offered.max(1) as f64,
        late_by_cause,
        cores: CoreUse {
            dedicated,
            auxiliary,
            total: dedicated + auxiliary,
            busy: (chain.busy() / ((dedicated + auxiliary) * time).max(1.0)).min(1.0),
        },
        decisions: chain.decisions,
        windows: chain.meter.windows.clone(),
        burst: None,
    }
}

/// Adds up the chains' cores, and sets those of the rack in each window.
fn rack_cores(chains: &mut [ChainReport]) -> RackCores {
    let windows = chains.first().map_or(0, |chain| chain.windows.len());
    let mut sums = vec![0.0; windows];
    for chain in chains.iter() {
        for (sum, window) in sums.iter_mut().zip(&chain.windows) {
            *sum += window.cores;
        }
    }
    for chain in chains.iter_mut() {
        for (window, sum) in chain.windows.iter_mut().zip(&sums) {
            window.cores = *sum;
        }
    }
    RackCores {
        average: chains.iter().map(|chain| chain.cores.total).sum(),
        most: sums.iter().fold(0.0_f64, |most, sum| most.max(*sum)).ceil() as u32,
        per_epoch: Vec::new(),
    }
}
