//! Soak test: random bursts, with flows offloaded and split, auxiliary cores activated and relieved, and RSS buckets
//! moved every few hundred microseconds, round after round. Each round's packets, their order and the functions' state
//! must equal those of one core.
//!
//! `cargo test` runs one round with each policy. `make soak` runs as many rounds as fit in its time. SOAK_MINUTES sets
//! the time, SOAK_SEED the round to repeat.

mod common;

use common::mappers::{helped, random_buckets, random_help, random_leases, random_splits};
use common::traffic::{Traffic, random};
use common::{BALANCER, NAT, Reference, Setup, run_until};
use std::fmt;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tailwater_baselines::catalog::Policy;
use tailwater_dataplane::report::{PacketReport, RunReport};
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier};

/// Name, functions after accounting, and number of functions including it.
const CHAINS: [(&str, &str, usize); 3] = [("nat", NAT, 2), ("acl-nat", ACL_NAT, 3), ("load-balancer", BALANCER, 2)];

const ACL_NAT: &str = "acl: {rules: [{action: allow, source: 10.0.0.0/8}, {action: deny}]}, \
                       nat: {external: [203.0.113.0/28]}";

/// Random decisions first.
const POLICIES: [Option<Policy>; 3] = [None, Some(Policy::Tailwater), Some(Policy::NetBlaze)];

const PACKETS: u32 = if cfg!(debug_assertions) { 20_000 } else { 200_000 };

/// Minimum number of rounds per test. More follow until every kind of event has occurred.
const LEAST_ROUNDS: u64 = 3;
const MOST_ROUNDS: u64 = 24;

/// Number of consecutive polls without progress, at most a tenth of a second apart, after which a run counts as
/// hanging. Polls are counted rather than seconds because the whole process may be stopped for a while.
const HANGS: u32 = 300;

/// Mean time between packets: from what this machine can sustain to almost no bursts.
const SPACING: [Nanos; 2] = [Nanos(1_000), Nanos(64_000)];

/// All random parameters of a round come from its seed.
struct Round {
    seed: u64,
    chain: (&'static str, &'static str, usize),
    policy: Option<Policy>,
    dispatchers: usize,
    helpers: usize,
    setup: Setup,
}

impl Round {
    fn new(seed: u64, spacing: Nanos) -> Round {
        // Neighbouring seeds differ in all bits.
        let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for _ in 0..8 {
            random(&mut state);
        }
        let mut within = |from: u64, to: u64| from + random(&mut state) % (to - from + 1);
        let chain = CHAINS[within(0, 2) as usize];
        let policy = POLICIES[(seed % 3) as usize];
        let (dispatchers, helpers) = (within(2, 3) as usize, within(1, 2) as usize);
        let mut traffic = Traffic {
            seed: within(1, u64::MAX - 1),
            flows: within(20, 3000) as u32,
            packets: PACKETS,
            spacing,
            burst: within(16, 700) as u32,
            ..Traffic::default()
        };
        let park = match within(0, 1) {
            0 => Mode::Sleep,
            _ => Mode::SpinThenSleep(Duration::from_micros(20)),
        };
        let scaling = match policy {
            None => {
                let (kind, seed) = (within(0, 2), within(1, u64::MAX - 1));
                match kind {
                    0 => random_splits(seed, helpers, park, chain.2),
                    1 => random_leases(seed, helpers, park, chain.2),
                    _ => random_help(seed, [dispatchers, helpers - 1], park, chain.2),
                }
            }
            Some(policy) => {
                let profile = CapacityProfile {
                    frontier: EpochFrontier::constant(within(16, 128) as u32),
                    ..CapacityProfile::default()
                };
                let slo = Nanos::from_micros(within(100, 300));
                let mapper = policy.mappers(slo, &profile);
                let mapper = mapper.expect("a profile for any objective");
                ScalingConfig {
                    dedicated_help: within(0, 1) == 1,
                    ..helped(mapper.expect("a policy that scales"), helpers, park)
                }
            }
        };
        if scaling.dedicated_help {
            // With long queues, none helps.
            traffic.spacing = Nanos(8 * spacing.0);
            traffic.burst = 16 + traffic.burst % 128;
        }
        // Nor does a core whose buckets are leaving.
        let pace = if scaling.dedicated_help { 16 } else { 1 };
        let period = Nanos::from_micros(pace * within(200, 800));
        let (server, _) = random_buckets(within(1, u64::MAX - 1), period);
        let setup = Setup {
            traffic,
            workers: dispatchers,
            reta_delay: Nanos::from_micros(within(1, 500)),
            scaling: Some(scaling),
            server: Some(server),
            ..Setup::default()
        };
        Round {
            seed,
            chain,
            policy,
            dispatchers,
            helpers,
            setup,
        }
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = self.policy.map_or("random", Policy::name);
        let Traffic { flows, burst, .. } = self.setup.traffic;
        write!(
            f,
            "seed {}: {}, {policy}, {} dispatchers, {} auxiliary cores, {flows} flows, bursts of {burst}",
            self.seed, self.chain.0, self.dispatchers, self.helpers
        )
    }
}

/// Counts of events, in one round or in all.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    packets: u64,
    handed: u64,
    to_dedicated: u64,
    flows_moved: u64,
    splits: u64,
    recruited: u64,
    packets_held: u64,
    buckets_moved: u64,
    kept_back: u64,
}

impl Counts {
    /// Returns `true` if every kind of event has occurred.
    fn is_complete(&self) -> bool {
        let happened = [
            self.handed,
            self.to_dedicated,
            self.splits,
            self.recruited,
            self.packets_held,
            self.buckets_moved,
        ];
        !happened.contains(&0)
    }

    fn of(report: &RunReport) -> Counts {
        let scaling = report.scaling.unwrap_or_default();
        let server = report.server.unwrap_or_default();
        Counts {
            packets: report.packets.offered,
            handed: scaling.packets_offloaded,
            to_dedicated: scaling.packets_to_dedicated,
            flows_moved: scaling.flows_moved,
            splits: scaling.splits,
            recruited: scaling.activated,
            packets_held: scaling.packets_parked,
            buckets_moved: server.buckets_moved,
            kept_back: server.packets_buffered,
        }
    }

    fn add(&mut self, other: &Counts) {
        self.packets += other.packets;
        self.handed += other.handed;
        self.to_dedicated += other.to_dedicated;
        self.flows_moved += other.flows_moved;
        self.splits += other.splits;
        self.recruited += other.recruited;
        self.packets_held += other.packets_held;
        self.buckets_moved += other.buckets_moved;
        self.kept_back += other.kept_back;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} packets, {} offloaded ({} to dedicated cores), {} queued flows moved, {} split, {} activations, \
             {} packets parked, {} bucket moves, {} packets buffered",
            self.packets,
            self.handed,
            self.to_dedicated,
            self.flows_moved,
            self.splits,
            self.recruited,
            self.packets_held,
            self.buckets_moved,
            self.kept_back
        )
    }
}

/// Outcome of a round.
enum End {
    Same(Counts),
    Different(String),
    /// The machine was too busy to process the remaining packets in time.
    TooSlow,
    Stopped,
}

fn play(round: &Round, stop: &AtomicBool) -> End {
    let run = |setup: Setup| {
        let (mut before, mut same) = (PacketReport::default(), 0);
        run_until(round.chain.1, setup, stop, |progress| {
            same += 1;
            if progress.packets != before {
                (before, same) = (progress.packets.clone(), 0);
            }
            if same == HANGS {
                println!(
                    "DIFFERENT: a run hangs: {before:?}\nreplay: make soak SEED={}",
                    round.seed
                );
                std::process::exit(1);
            }
        })
    };
    let undrained = |report: &RunReport| {
        let packets = &report.packets;
        packets.lost > 0 && packets.reasons.get("not-drained") == Some(&packets.lost)
    };
    let single = run(Setup {
        workers: 1,
        scaling: None,
        server: None,
        ..round.setup.clone()
    });
    match &single.result {
        _ if stop.load(Ordering::Relaxed) => return End::Stopped,
        Err(error) => return End::Different(error.to_string()),
        Ok(report) if undrained(report) => return End::TooSlow,
        Ok(_) => {}
    }
    let reference = match Reference::new(single) {
        Ok(reference) => reference,
        Err(what) => return End::Different(what),
    };
    let moved = run(round.setup.clone());
    let counts = match &moved.result {
        _ if stop.load(Ordering::Relaxed) => return End::Stopped,
        Err(error) => return End::Different(error.to_string()),
        Ok(report) if undrained(report) => return End::TooSlow,
        Ok(report) => Counts::of(report),
    };
    match reference.difference(moved) {
        None => End::Same(counts),
        Some(what) => End::Different(what),
    }
}

/// An integer from the environment.
fn setting<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    let number = value.parse().ok();
    Some(number.unwrap_or_else(|| panic!("{name}: expected a whole number, found {value:?}")))
}

/// Peak memory of the process, in MiB.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes >> 10)
}

fn main() -> ExitCode {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second signal kills the process.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .expect("signals can be handled");
    }
    let time = setting("SOAK_MINUTES").map(|minutes: u64| Duration::from_secs(60 * minutes));
    let repeated: Option<u64> = setting("SOAK_SEED");
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    // Three rounds in a row have the three policies in turn. A test has the same rounds every time.
    let first = match time {
        Some(_) => since_1970.map_or(0, |time| time.as_secs() * 3),
        None => 0,
    };
    let (start, mut all, mut spacing) = (Instant::now(), Counts::default(), SPACING[0]);
    let (mut rounds, mut slow) = (0, 0);
    let is_over = |rounds: u64, all: &Counts| match time {
        Some(time) => start.elapsed() >= time,
        None => rounds >= LEAST_ROUNDS && all.is_complete() || rounds == MOST_ROUNDS,
    };
    while !is_over(rounds, &all) && !stop.load(Ordering::Relaxed) {
        let round = Round::new(repeated.unwrap_or(first + rounds), spacing);
        println!("{:>6.1} s, {round}", start.elapsed().as_secs_f64());
        match play(&round, &stop) {
            End::Same(counts) => {
                println!("         {counts}: the same");
                all.add(&counts);
                rounds += 1;
                spacing = Nanos(spacing.0 * 15 / 16).max(SPACING[0]);
            }
            End::TooSlow => {
                slow += 1;
                spacing = Nanos(spacing.0 * 2).min(SPACING[1]);
                println!("         too slow: again with {} ns a packet", spacing.0);
            }
            End::Different(what) => {
                println!("DIFFERENT: {what}\nreplay: make soak SEED={}", round.seed);
                return ExitCode::FAILURE;
            }
            End::Stopped => break,
        }
    }
    let seconds = start.elapsed().as_secs();
    println!("{rounds} rounds in {seconds} s ({slow} more were too slow): {all}; no difference");
    if let Some(peak) = peak_memory() {
        println!("{peak} MiB of memory at the most");
    }
    if !stop.load(Ordering::Relaxed) && !all.is_complete() {
        println!("but something never happened: that proves nothing");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
