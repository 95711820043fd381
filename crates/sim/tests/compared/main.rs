//! Comparison of Tailwater's core mapper with NetBlaze's and none: one core with a queue, and its auxiliary cores.
//!
//! The whole comparison, with its table:
//!
//! ```sh
//! cargo test --release -p tailwater-sim --test compared -- --ignored --nocapture
//! ```

mod traffic;

use std::sync::Arc;
use tailwater_baselines::netblaze::{Capacity, NetBlazeMapper, NetBlazeOptions};
use tailwater_net::Nanos;
use tailwater_policy::capacity::{EpochFrontier, ServiceCosts, SplitPoint, SplitProfile};
use tailwater_policy::core::{MakeMapper, Unit};
use tailwater_policy::tailwater::{TailwaterMapper, TailwaterOptions};
use tailwater_policy::training::TrainingRecorder;
use tailwater_sim::policies::Steered;
use tailwater_sim::{ChainModel, ChainRun, Rack, RackPolicy, Recording, RunOptions, SplitCost, Workload, simulate};
use traffic::{Kind, generate};

/// Service times, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// Each batch, including [`RECEIVE_BATCH`] for receiving.
    batch: u64,
    /// Each packet, including [`RECEIVE_PACKET`] for receiving.
    packet: u64,
    /// Each packet that opens a flow, in addition.
    new_flow: u64,
}

/// Parts for receiving, and the extra cost of an offloaded packet, as measured live.
const RECEIVE_BATCH: u64 = 60;
const RECEIVE_PACKET: u64 = 35;
const DISPATCH_PACKET: u64 = 85;
/// Sorting by bucket, assumed.
const LEASE_PACKET: u64 = 15;
const HAND_OVER_PACKET: u64 = 25;
const TAKE_OVER_PACKET: u64 = 35;

impl Service {
    /// Returns the time of a packet on a core that does all the work, in full batches.
    fn per_packet(&self) -> u64 {
        self.packet + self.batch / 32
    }

    /// Returns `true` if an auxiliary core relieves a core of more work than offloading costs.
    fn gains_by_auxiliaries(&self) -> bool {
        self.per_packet() > RECEIVE_PACKET + DISPATCH_PACKET + HAND_OVER_PACKET
    }

    fn model(&self) -> ChainModel {
        let costs = ServiceCosts {
            batch: self.batch as f64,
            packet: self.packet as f64,
            new_flow: self.new_flow as f64,
            byte: 0.0,
        };
        ChainModel {
            receive_batch: RECEIVE_BATCH as f64,
            receive_packet: RECEIVE_PACKET as f64,
            dispatch_packet: DISPATCH_PACKET as f64,
            lease_packet: LEASE_PACKET as f64,
            hand_over_packet: HAND_OVER_PACKET as f64,
            auxiliary_packet: TAKE_OVER_PACKET as f64,
            move_packet: 5.0,
            decide: 500.0,
            decide_flow: 4.0,
            // The receiving core gets the smaller part, as a profile would choose.
            splits: vec![SplitCost {
                last_functions: 1,
                first: 0.4,
                last: 0.6,
            }],
            ..ChainModel::new("compared", costs)
        }
    }
}

/// About 2.2 Mpps per core.
const LIGHT: Service = Service {
    batch: 310,
    packet: 435,
    new_flow: 800,
};
/// About 0.95 Mpps per core.
const HEAVY: Service = Service {
    batch: 310,
    packet: 1035,
    new_flow: 2000,
};
/// About 7.6 Mpps per core: offloading a packet takes longer than processing it.
const THIN: Service = Service {
    batch: 210,
    packet: 125,
    new_flow: 200,
};
const CHAINS: [(&str, Service); 3] = [("light", LIGHT), ("heavy", HEAVY), ("thin", THIN)];

/// Seeds, fixed before tuning. Options were chosen with the first.
const SEEDS: [u64; 3] = [1, 2, 3];

const KINDS: [(&str, Kind); 12] = [
    ("smooth-60", Kind::Smooth(60)),
    ("smooth-80", Kind::Smooth(80)),
    ("smooth-90", Kind::Smooth(90)),
    ("bursts", Kind::Bursts(70, 120)),
    ("minnows", Kind::Minnows(60, 100)),
    ("minnows-2", Kind::Minnows(60, 200)),
    ("half-whale", Kind::Whale(70, 60)),
    ("whale", Kind::Whale(60, 300)),
    ("surge", Kind::Surge(60, 120)),
    ("flood", Kind::Surge(60, 180)),
    ("flood-2", Kind::Surge(60, 240)),
    ("mixed", Kind::Mixed(60)),
];

/// Numbers of auxiliary cores, and their wake-up times in nanoseconds.
const HELPERS: [(u16, u64); 5] = [(1, 20_000), (2, 5_000), (2, 20_000), (2, 50_000), (4, 20_000)];
/// Machine shown in the table.
const SHOWN: (u16, u64) = (2, 20_000);

/// Nanoseconds of traffic.
const LENGTH: u64 = 60_000_000;

/// Core mapper of a run. Without one, the core works off its ring.
type Mapper = Option<MakeMapper>;

/// Results of a run.
struct Outcome {
    p50: Nanos,
    p99: Nanos,
    max: Nanos,
    /// Active cores, averaged over epochs of 100 us.
    cores: f64,
    decisions: tailwater_sim::report::Decisions,
}

/// Runs a core, with auxiliary cores that wake up in `wake` nanoseconds. All packets wait, but for those that a flow
/// with too many loses, which count as later than all others.
fn run(make: Mapper, service: Service, (auxiliaries, wake): (u16, u64), traffic: &Arc<Recording>) -> Outcome {
    let mut rack = Rack::of_one(1 + auxiliaries);
    rack.servers[0].ring = 1 << 20;
    rack.servers[0].buffers = u16::MAX.into();
    rack.timing.wake = Nanos(wake);
    let chain = ChainRun {
        model: service.model(),
        slo: Nanos::from_micros(200),
        policy: RackPolicy {
            name: "compared".to_owned(),
            steered: Steered::Rack(None),
            core: make,
            start_cores: Some(1),
        },
        workload: Workload::from(Arc::clone(traffic)),
    };
    let options = RunOptions {
        window: Nanos::from_millis(1),
        // All background flows are new initially.
        warm_up: Nanos::from_millis(2),
        ..RunOptions::default()
    };
    let report = simulate(&rack, vec![chain], &options).unwrap();
    let chain = &report.chains[0];
    let its_own = chain.packets.lost_by_reason.get("flow-overload");
    assert_eq!(chain.packets.lost, its_own.copied().unwrap_or(0));
    let percentile = |percent: f64| match percent * chain.packets.offered as f64 / chain.packets.delivered as f64 {
        percent if percent <= 100.0 => chain.latency.percentile(percent),
        _ => Nanos::MAX,
    };
    Outcome {
        p50: percentile(50.0),
        p99: percentile(99.0),
        max: chain.latency.max(),
        cores: report.cores.average,
        decisions: chain.decisions,
    }
}

/// Trains NetBlaze's frontier as its authors do: everything runs except flow migration. This traffic is used for
/// nothing else.
fn train(service: Service, epoch: Nanos) -> EpochFrontier {
    let kinds = [
        Kind::Smooth(95),
        Kind::Bursts(80, 150),
        Kind::Minnows(70, 200),
        Kind::Whale(60, 300),
        Kind::Surge(60, 150),
    ];
    let notes = TrainingRecorder::new(1 << 16);
    for kind in kinds {
        for seed in 9000..9003 {
            let traffic = generate(kind, &service, 20_000_000, seed);
            let notes = notes.clone();
            let make = move || Box::new(notes.mapper(epoch)) as _;
            run(Some(Arc::new(make)), service, SHOWN, &traffic);
        }
    }
    let mut frontier = EpochFrontier::new();
    for observation in notes.take() {
        frontier.insert(observation.load);
    }
    frontier
}

/// Returns Tailwater's mapper without cost data and with an assumed wake-up time of 20 µs, independent of the real one.
fn tailwater(slo: Nanos) -> Mapper {
    tailwater_with(TailwaterOptions::new(slo), SplitProfile::new())
}

fn tailwater_with(options: TailwaterOptions, splits: SplitProfile) -> Mapper {
    let make = move || Box::new(TailwaterMapper::new(options, splits.clone()).unwrap()) as _;
    Some(Arc::new(make))
}

fn netblaze(options: NetBlazeOptions, frontier: &EpochFrontier) -> Mapper {
    let frontier = frontier.clone();
    let mapper = move || NetBlazeMapper::new(options, &frontier, SplitProfile::new()).unwrap();
    Some(Arc::new(move || Box::new(mapper()) as _))
}

/// Returns the epoch of NetBlaze's mapper.
fn epoch(slo: Nanos) -> Nanos {
    let any = EpochFrontier::constant(1);
    let mapper = NetBlazeMapper::new(NetBlazeOptions::new(slo), &any, SplitProfile::new());
    mapper.unwrap().epoch()
}

/// Returns NetBlaze's ablations.
fn ablations(slo: Nanos) -> [(&'static str, NetBlazeOptions); 3] {
    let whole = NetBlazeOptions::new(slo);
    let safe = NetBlazeOptions {
        capacity: Capacity::StaticSafe,
        ..whole
    };
    let unsafe_ = NetBlazeOptions {
        capacity: Capacity::StaticUnsafe,
        ..whole
    };
    let no_boost = NetBlazeOptions {
        boost_after: None,
        ..whole
    };
    [
        ("netblaze-static-safe", safe),
        ("netblaze-static-unsafe", unsafe_),
        ("netblaze-no-boost", no_boost),
    ]
}

#[derive(Default)]
struct Tally {
    cases: usize,
    feasible: usize,
    /// Cases that no policy serves in time in which NetBlaze has fewer cores, or a lower p99.
    worse: usize,
    /// Sums over the cases that can be served: logarithms of the quotients of p99, and cores.
    p99: f64,
    tailwater: f64,
    netblaze: f64,
    /// Cases that can be served, and have a higher p99 or more cores than with NetBlaze.
    lost: Vec<String>,
}

impl Tally {
    /// Returns the geometric mean of p99, and the mean of cores, relative to NetBlaze.
    fn parts(&self) -> (f64, f64) {
        let p99 = (self.p99 / self.feasible as f64).exp();
        (p99, self.tailwater / self.netblaze)
    }

    fn print(&self) {
        let (p99, cores) = self.parts();
        println!(
            "{} cases, {} can be served in time; there Tailwater's p99 is {p99:.3} of NetBlaze's \
             (geometric mean), its cores {cores:.3}, and {} have a higher p99 or more cores. Of the \
             others, {} do.",
            self.cases,
            self.feasible,
            self.lost.len(),
            self.worse,
        );
    }

    /// Checks that p99 is a quarter lower, and cores a twentieth lower if auxiliary cores are beneficial. At most one
    /// case in ten may have more of either.
    fn check(&self, gains_by_auxiliaries: bool) {
        let (p99, cores) = self.parts();
        assert!(p99 < 0.75, "{p99}");
        if gains_by_auxiliaries {
            assert!(cores < 0.95, "{cores}");
            assert!(self.lost.len() * 10 <= self.feasible, "{:#?}", self.lost);
        }
    }
}

fn row(name: &str, outcome: &Outcome) {
    let done = &outcome.decisions;
    println!(
        "    {name:23} p50 {:8.1} p99 {:8.1} max {:8.1} us  cores {:.3}  moved {:6} handed {:6} \
         activated {:4} boosts {:3} notices {}",
        outcome.p50.as_micros_f64(),
        outcome.p99.as_micros_f64(),
        outcome.max.as_micros_f64(),
        outcome.cores,
        done.flows_moved,
        done.packets_handed,
        done.activated,
        done.boosts,
        done.whales_beyond_split + done.out_of_cores,
    );
}

/// Compares the policies on every case of a chain. Assertions apply to cases in which any policy meets the objective.
fn compare(
    (chain, service): (&str, Service),
    seed: u64,
    auxiliaries: &[(u16, u64)],
    length: u64,
    table: bool,
) -> Tally {
    let mut tally = Tally::default();
    let traffics = KINDS.map(|(name, kind)| (name, generate(kind, &service, length, seed)));
    for micros in [100, 200, 500] {
        let slo = Nanos::from_micros(micros);
        let frontier = train(service, epoch(slo));
        if table {
            println!("{chain}, L = {micros} us: frontier {:?}", frontier.corners());
        }
        for &auxiliaries in auxiliaries {
            for (name, traffic) in &traffics {
                let case = format!(
                    "{chain}, L = {micros} us, {} helpers that wake in {} us, {name}, seed {seed}",
                    auxiliaries.0,
                    auxiliaries.1 / 1000
                );
                let run = |make| run(make, service, auxiliaries, traffic);
                let old = run(netblaze(NetBlazeOptions::new(slo), &frontier));
                let new = run(tailwater(slo));
                let mut best = old.p99.min(new.p99);
                if table && auxiliaries == SHOWN {
                    println!("{case}");
                    row("static", &run(None));
                    row("netblaze", &old);
                    for (name, options) in ablations(slo) {
                        let outcome = run(netblaze(options, &frontier));
                        best = best.min(outcome.p99);
                        row(name, &outcome);
                    }
                    row("tailwater", &new);
                }
                judge(&case, &old, &new, best <= slo, &mut tally);
            }
        }
    }
    tally
}

fn judge(case: &str, old: &Outcome, new: &Outcome, feasible: bool, tally: &mut Tally) {
    let (was, is) = (old.p99, new.p99);
    let better = is <= was && new.cores <= old.cores;
    tally.cases += 1;
    if !feasible {
        tally.worse += usize::from(!better);
        return;
    }
    if !better {
        let (new, old) = (new.cores, old.cores);
        tally.lost.push(format!(
            "{case}: p99 {is} on {new:.3} cores, NetBlaze {was} on {old:.3}"
        ));
    }
    tally.feasible += 1;
    tally.p99 += (is.0 as f64 / was.0 as f64).ln();
    tally.tailwater += new.cores;
    tally.netblaze += old.cores;
}

#[test]
#[ignore = "the whole comparison takes minutes; run it with --release"]
fn cases_that_can_be_served_have_a_lower_p99_on_fewer_cores_than_with_netblaze() {
    for (chain, service) in CHAINS {
        for seed in SEEDS {
            let table = seed == SEEDS[1];
            let tally = compare((chain, service), seed, &HELPERS, LENGTH, table);
            println!("{chain}, seed {seed}:");
            tally.print();
            tally.lost.iter().for_each(|case| println!("    {case}"));
            tally.check(service.gains_by_auxiliaries());
        }
    }
}

/// Change of options.
type Change = fn(&mut TailwaterOptions);

/// Change of options, with its results.
struct Tried {
    name: &'static str,
    change: Change,
    tally: Tally,
}

#[test]
#[ignore = "prints what other options come to; run it with --release"]
fn options_tried() {
    let all: [(&str, Change); 13] = [
        ("as they are", |_| {}),
        ("activation at 40 %", |o| o.activate_percent = 40),
        ("activation at 50 %", |o| o.activate_percent = 50),
        ("activation at 70 %", |o| o.activate_percent = 70),
        ("share at 10 %", |o| o.share_percent = 10),
        ("share at 40 %", |o| o.share_percent = 40),
        ("sharing as late as activation", |o| o.share_percent = 60),
        ("release after 25 %", |o| o.release_percent = 25),
        ("release after 100 %", |o| o.release_percent = 100),
        ("relieve at 60 %", |o| o.relieve_percent = Some(60)),
        ("relieve at 100 %", |o| o.relieve_percent = Some(100)),
        ("no relief", |o| o.relieve_percent = None),
        ("no boost", |o| o.boost_after = None),
    ];
    let mut tried = all.map(|(name, change)| Tried {
        name,
        change,
        tally: Tally::default(),
    });
    for (chain, service) in CHAINS {
        let traffics = KINDS.map(|(name, kind)| (name, generate(kind, &service, LENGTH, SEEDS[0])));
        for micros in [100, 200, 500] {
            let slo = Nanos::from_micros(micros);
            let frontier = train(service, epoch(slo));
            for (name, traffic) in &traffics {
                let run = |make| run(make, service, SHOWN, traffic);
                let old = run(netblaze(NetBlazeOptions::new(slo), &frontier));
                let best = run(tailwater(slo)).p99;
                // The same cases for all, independent of the results of the current options.
                let feasible = best.min(old.p99) <= slo;
                for tried in &mut tried {
                    let mut options = TailwaterOptions::new(slo);
                    (tried.change)(&mut options);
                    let new = run(tailwater_with(options, SplitProfile::new()));
                    let case = format!("{chain} {name}");
                    judge(&case, &old, &new, feasible, &mut tried.tally);
                }
            }
        }
    }
    for Tried { name, tally, .. } in &tried {
        println!("{name}:");
        tally.print();
        assert_eq!(tally.feasible, tried[0].tally.feasible);
    }
    tried[0].tally.check(true);
}

#[test]
fn the_heavy_chain_has_a_lower_p99_on_fewer_cores_than_with_netblaze() {
    let tally = compare(("heavy", HEAVY), SEEDS[1], &[SHOWN], LENGTH / 2, false);
    tally.print();
    tally.check(HEAVY.gains_by_auxiliaries());
    assert!(tally.feasible * 2 > tally.cases);
}

#[test]
fn boost_mode_helps_where_dispatching_takes_a_core() {
    let slo = Nanos::from_micros(200);
    // More than three cores' load, so receiving and offloading alone take a core.
    let traffic = generate(Kind::Surge(60, 300), &LIGHT, LENGTH / 3, SEEDS[1]);
    let run = |make| run(make, LIGHT, (4, 20_000), &traffic);
    let flows = TailwaterOptions {
        unit: Unit::Flow,
        ..TailwaterOptions::new(slo)
    };
    let with = run(tailwater_with(flows, SplitProfile::new()));
    let options = TailwaterOptions {
        boost_after: None,
        ..flows
    };
    let without = run(tailwater_with(options, SplitProfile::new()));
    // A dispatcher that offloads buckets has time to spare.
    let buckets = run(tailwater(slo));
    row("with", &with);
    row("without", &without);
    row("buckets", &buckets);
    assert!(with.decisions.boosts > 0);
    assert!(with.p99.0 * 3 < without.p99.0);
    assert!(buckets.p99 < with.p99 && buckets.cores < with.cores);
}

#[test]
fn a_split_whale_is_sooner_done_than_a_whole_one() {
    let slo = Nanos::from_micros(200);
    let traffic = generate(Kind::Whale(10, 130), &LIGHT, LENGTH, SEEDS[1]);
    let run = |make| run(make, LIGHT, SHOWN, &traffic);
    let whole = run(tailwater(slo));
    let mut splits = SplitProfile::new();
    splits.insert(SplitPoint {
        last_functions: 1,
        first: 2000,
        last: 2000,
    });
    let split = run(tailwater_with(TailwaterOptions::new(slo), splits));
    row("whole", &whole);
    row("split", &split);
    assert!(split.decisions.splits > 0);
    assert!(split.p99 < slo && slo < whole.p99);
}
