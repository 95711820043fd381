//! Tailwater's core mapper against NetBlaze's and none, in virtual time.
//!
//! The whole comparison, with its table:
//!
//! ```sh
//! cargo test --release -p tailwater-policy --test tailwater_model -- --ignored --nocapture
//! ```

mod queue_model;

use queue_model::traffic::{Arrival, Kind, generate};
use queue_model::train::train;
use queue_model::{Machine, Never, Outcome, Service, run};
use tailwater_net::Nanos;
use tailwater_policy::capacity::{EpochFrontier, SplitPoint, SplitProfile};
use tailwater_policy::netblaze::{Capacity, NetBlazeMapper, NetBlazeOptions};
use tailwater_policy::tailwater::{TailwaterMapper, TailwaterOptions};

/// About 2.2 Mpps on a core.
const LIGHT: Service = Service {
    batch: 250,
    packet: 300,
    flow: 100,
    new_flow: 800,
    poll: 60,
    receive: 35,
    hand_over: 12,
    decide: 500,
    decide_flow: 4,
};
/// About 0.9 Mpps on a core.
const HEAVY: Service = Service {
    packet: 700,
    flow: 300,
    new_flow: 2000,
    ..LIGHT
};
/// About 7 Mpps on a core: dispatching takes more than a quarter of it.
const THIN: Service = Service {
    batch: 150,
    packet: 60,
    flow: 30,
    new_flow: 200,
    ..LIGHT
};
const CHAINS: [(&str, Service); 3] = [("light", LIGHT), ("heavy", HEAVY), ("thin", THIN)];

/// Fixed before anything was tuned. Options were chosen with the first.
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

/// Helpers, and what waking one takes.
const HELPERS: [(usize, u64); 5] = [
    (1, 20_000),
    (2, 5_000),
    (2, 20_000),
    (2, 50_000),
    (4, 20_000),
];
/// The machine that the table shows.
const SHOWN: (usize, u64) = (2, 20_000);

/// Nanoseconds of traffic.
const LENGTH: u64 = 60_000_000;

fn machine(service: Service, (helpers, wake): (usize, u64)) -> Machine {
    Machine {
        service,
        helpers,
        wake,
        latency: 300,
        split: 60,
    }
}

/// Nothing is known of costs beforehand, and 20 µs are assumed for waking, whatever it takes.
fn tailwater(slo: Nanos) -> TailwaterMapper {
    TailwaterMapper::new(TailwaterOptions::new(slo), SplitProfile::new()).unwrap()
}

fn netblaze(slo: Nanos, frontier: &EpochFrontier) -> NetBlazeMapper {
    NetBlazeMapper::new(NetBlazeOptions::new(slo), frontier, SplitProfile::new()).unwrap()
}

/// NetBlaze's ablations.
fn ablations(slo: Nanos, frontier: &EpochFrontier) -> [(&'static str, NetBlazeMapper); 3] {
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
    let mapper = |options| NetBlazeMapper::new(options, frontier, SplitProfile::new()).unwrap();
    [
        ("netblaze-static-safe", mapper(safe)),
        ("netblaze-static-unsafe", mapper(unsafe_)),
        ("netblaze-no-boost", mapper(no_boost)),
    ]
}

#[derive(Default)]
struct Tally {
    cases: usize,
    feasible: usize,
    /// Among those that no policy serves in time: fewer cores, or a lower p99, for NetBlaze.
    worse: usize,
    /// Sums over the cases that can be served: logarithms of the quotients of p99, and cores.
    p99: f64,
    tailwater: f64,
    netblaze: f64,
    /// Cases that could be served, and have a higher p99 or more cores than with NetBlaze.
    lost: Vec<String>,
}

impl Tally {
    fn print(&self) {
        println!(
            "{} cases, {} can be served in time; there Tailwater's p99 is {:.3} of NetBlaze's \
             (geometric mean), its cores {:.3}. Of the others, {} have a higher p99 or more cores.",
            self.cases,
            self.feasible,
            (self.p99 / self.feasible as f64).exp(),
            self.tailwater / self.netblaze,
            self.worse,
        );
    }
}

fn row(name: &str, outcome: &Outcome) {
    println!(
        "    {name:23} p50 {:8.1} p99 {:8.1} max {:8.1} us  cores {:.3}  moved {:6} placed {:6} \
         recruited {:4} held {:6} boosts {:3} notices {}",
        outcome.per_mille(500) as f64 / 1e3,
        outcome.per_mille(990) as f64 / 1e3,
        outcome.per_mille(1000) as f64 / 1e3,
        outcome.cores,
        outcome.moves,
        outcome.placed,
        outcome.recruited,
        outcome.held,
        outcome.boosts,
        outcome.whale_notices + outcome.out_of_cores,
    );
}

/// Compares the policies on every case of a chain. Cases are asserted where any policy keeps the
/// objective.
fn compare(
    (chain, service): (&str, Service),
    seed: u64,
    helpers: &[(usize, u64)],
    table: bool,
) -> Tally {
    let mut tally = Tally::default();
    let traffics = KINDS.map(|(name, kind)| (name, generate(kind, &service, LENGTH, seed)));
    for micros in [100, 200, 500] {
        let slo = Nanos::from_micros(micros);
        let epoch = netblaze(slo, &EpochFrontier::constant(1)).epoch().0;
        let frontier = train(&machine(service, SHOWN), epoch);
        if table {
            println!(
                "{chain}, L = {micros} us: frontier {:?}",
                frontier.corners()
            );
        }
        for &helpers in helpers {
            let machine = machine(service, helpers);
            for (name, traffic) in &traffics {
                let case = format!(
                    "{chain}, L = {micros} us, {} helpers that wake in {} us, {name}, seed {seed}",
                    helpers.0,
                    helpers.1 / 1000
                );
                let old = run(&mut netblaze(slo, &frontier), &machine, traffic);
                let new = run(&mut tailwater(slo), &machine, traffic);
                let mut best = old.per_mille(990).min(new.per_mille(990));
                if table && helpers == SHOWN {
                    println!("{case}");
                    row("static", &run(&mut Never, &machine, traffic));
                    row("netblaze", &old);
                    for (name, mut mapper) in ablations(slo, &frontier) {
                        let outcome = run(&mut mapper, &machine, traffic);
                        best = best.min(outcome.per_mille(990));
                        row(name, &outcome);
                    }
                    row("tailwater", &new);
                }
                judge(&case, &old, &new, best <= slo.0, &mut tally);
            }
        }
    }
    tally
}

fn judge(case: &str, old: &Outcome, new: &Outcome, feasible: bool, tally: &mut Tally) {
    let (was, is) = (old.per_mille(990), new.per_mille(990));
    let better = is <= was && new.cores <= old.cores;
    tally.cases += 1;
    if !feasible {
        tally.worse += usize::from(!better);
        return;
    }
    if !better {
        let (new, old) = (new.cores, old.cores);
        tally.lost.push(format!(
            "{case}: p99 {is} ns on {new:.3} cores, NetBlaze {was} ns on {old:.3}"
        ));
    }
    tally.feasible += 1;
    tally.p99 += (is as f64 / was as f64).ln();
    tally.tailwater += new.cores;
    tally.netblaze += old.cores;
}

#[test]
#[ignore = "the whole comparison takes minutes; run it with --release"]
fn every_case_that_can_be_served_has_a_lower_p99_on_no_more_cores_than_with_netblaze() {
    let mut lost = Vec::new();
    for (chain, service) in CHAINS {
        for seed in SEEDS {
            let table = seed == SEEDS[1];
            let tally = compare((chain, service), seed, &HELPERS, table);
            println!("{chain}, seed {seed}:");
            tally.print();
            lost.extend(tally.lost);
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
}

/// Changes options.
type Change = fn(&mut TailwaterOptions);

/// A change of options, and what it came to.
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
        ("recruit at 40 %", |o| o.recruit_percent = 40),
        ("recruit at 50 %", |o| o.recruit_percent = 50),
        ("recruit at 70 %", |o| o.recruit_percent = 70),
        ("share at 10 %", |o| o.share_percent = 10),
        ("share at 40 %", |o| o.share_percent = 40),
        ("share as late as recruit", |o| o.share_percent = 60),
        ("hold for 25 %", |o| o.hold_percent = 25),
        ("hold for 100 %", |o| o.hold_percent = 100),
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
        let machine = machine(service, SHOWN);
        let traffics = KINDS.map(|(name, kind)| (name, generate(kind, &service, LENGTH, SEEDS[0])));
        for micros in [100, 200, 500] {
            let slo = Nanos::from_micros(micros);
            let epoch = netblaze(slo, &EpochFrontier::constant(1)).epoch().0;
            let frontier = train(&machine, epoch);
            for (name, traffic) in &traffics {
                let old = run(&mut netblaze(slo, &frontier), &machine, traffic);
                let best = run(&mut tailwater(slo), &machine, traffic).per_mille(990);
                // The same cases for all, whatever the options in hand come to.
                let feasible = best.min(old.per_mille(990)) <= slo.0;
                for tried in &mut tried {
                    let mut options = TailwaterOptions::new(slo);
                    (tried.change)(&mut options);
                    let mut mapper = TailwaterMapper::new(options, SplitProfile::new()).unwrap();
                    let new = run(&mut mapper, &machine, traffic);
                    judge(
                        &format!("{chain} {name}"),
                        &old,
                        &new,
                        feasible,
                        &mut tried.tally,
                    );
                }
            }
        }
    }
    for Tried { name, tally, .. } in &tried {
        let lost = tally.lost.len();
        println!("{name}: {lost} cases lost. ");
        tally.print();
        assert_eq!(tally.feasible, tried[0].tally.feasible);
    }
    assert!(tried[0].tally.lost.is_empty());
}

#[test]
fn the_heavy_chain_has_a_lower_p99_on_no_more_cores_than_with_netblaze() {
    let tally = compare(("heavy", HEAVY), SEEDS[1], &[SHOWN], false);
    tally.print();
    assert!(tally.lost.is_empty(), "{:#?}", tally.lost);
    assert!(tally.feasible * 3 > tally.cases * 2);
}

#[test]
fn the_model_adds_up_what_a_packet_takes() {
    let one = [Arrival { at: 0, flow: 1000 }];
    let outcome = run(&mut Never, &machine(LIGHT, SHOWN), &one);
    let opening = LIGHT.poll + LIGHT.receive + LIGHT.batch + LIGHT.packet;
    let opening = opening + LIGHT.flow + LIGHT.new_flow;
    assert_eq!(outcome.latencies, [opening]);
    assert_eq!(outcome.cores, 1.0);
}

#[test]
fn boost_mode_helps_where_dispatching_takes_a_core() {
    let machine = machine(THIN, (4, 20_000));
    let slo = Nanos::from_micros(200);
    let traffic = generate(Kind::Surge(60, 180), &THIN, LENGTH / 3, SEEDS[1]);
    let with = run(&mut tailwater(slo), &machine, &traffic);
    let options = TailwaterOptions {
        boost_after: None,
        ..TailwaterOptions::new(slo)
    };
    let mut mapper = TailwaterMapper::new(options, SplitProfile::new()).unwrap();
    let without = run(&mut mapper, &machine, &traffic);
    row("with", &with);
    row("without", &without);
    assert!(with.boosts > 0);
    assert!(with.per_mille(990) < slo.0 && slo.0 < without.per_mille(990));
}

#[test]
fn a_split_whale_is_sooner_done_than_a_whole_one() {
    let machine = machine(LIGHT, (2, 20_000));
    let slo = Nanos::from_micros(500);
    let traffic = generate(Kind::Whale(30, 130), &LIGHT, LENGTH, SEEDS[1]);
    let whole = run(&mut tailwater(slo), &machine, &traffic);
    let mut splits = SplitProfile::new();
    splits.insert(SplitPoint {
        last_functions: 1,
        first: 2000,
        last: 2000,
    });
    let mut mapper = TailwaterMapper::new(TailwaterOptions::new(slo), splits).unwrap();
    let split = run(&mut mapper, &machine, &traffic);
    row("whole", &whole);
    row("split", &split);
    assert!(split.splits > 0);
    assert!(split.per_mille(990) < whole.per_mille(990));
}
