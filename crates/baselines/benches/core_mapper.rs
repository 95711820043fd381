//! Benchmark of NetBlaze's core mapper: microseconds per decision about a backlog.
//!
//! `cargo bench -p tailwater-policy --bench core_mapper [-- NAME]` runs the figures whose names contain NAME. It prints
//! one JSON line per figure on standard output. The caller's part, moving packets where the plan sends them, is not
//! included.

use std::hint::black_box;
use std::time::Instant;
use tailwater_baselines::netblaze::{NetBlazeMapper, NetBlazeOptions};
use tailwater_net::Nanos;
use tailwater_policy::capacity::{EpochFrontier, SplitPoint, SplitProfile};
use tailwater_policy::core::{AuxiliaryCore, CoreMapper, Load, Plan, QueuedFlow, View};

/// Measurements per figure, interleaved with those of the other figures. The median counts.
const RUNS: usize = 21;
/// Decisions per measurement.
const DECISIONS: usize = 20_000;
/// Different backlogs per figure, so that branch predictors cannot learn a single one.
const BACKLOGS: usize = 32;
/// Auxiliary cores, all idle.
const HELPERS: usize = 4;

struct Figure {
    name: String,
    mapper: NetBlazeMapper,
    /// Backlogs, each with its number of packets.
    backlogs: Vec<(Vec<QueuedFlow>, u32)>,
    auxiliaries: Vec<AuxiliaryCore>,
    times: Vec<f64>,
}

impl Figure {
    /// Returns the microseconds per decision, including the time to clear the plan.
    fn measure(&mut self, decisions: usize) {
        let mut plan = Plan::default();
        let start = Instant::now();
        for i in 0..decisions {
            let (queued, packets) = black_box(&self.backlogs[i % BACKLOGS]);
            decide(&mut self.mapper, queued, *packets, &self.auxiliaries, &mut plan);
            black_box(&plan);
        }
        let time = start.elapsed().as_secs_f64() * 1e6 / decisions as f64;
        self.times.push(time);
    }

    /// Prints the median, minimum and maximum.
    fn print(&mut self) {
        let times = &mut self.times;
        times.sort_by(f64::total_cmp);
        let (min, max, runs) = (times[0], times[times.len() - 1], times.len());
        println!(
            "{{\"name\": \"{}\", \"value\": {:.3}, \"unit\": \"us\", \"min\": {min:.3}, \
             \"max\": {max:.3}, \"runs\": {runs}}}",
            self.name,
            times[runs / 2],
        );
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without the flag, as a smoke test only.
    let (runs, decisions) = if arguments.iter().any(|a| a == "--bench") {
        (RUNS, DECISIONS)
    } else {
        (1, BACKLOGS)
    };
    let wanted = arguments.iter().find(|a| !a.starts_with('-'));
    let mut figures = figures();
    figures.retain(|figure| wanted.is_none_or(|part| figure.name.contains(part.as_str())));
    for _ in 0..runs {
        for figure in &mut figures {
            figure.measure(decisions);
        }
    }
    for figure in &mut figures {
        figure.print();
    }
}

fn figures() -> Vec<Figure> {
    let mut figures = Vec::new();
    for packets in [128, 256, 512, 1024] {
        figures.push(whale(packets));
        for flows in [32, 310] {
            if flows <= packets {
                figures.extend((2..=4).map(|groups| cut(packets, flows, groups)));
            }
        }
    }
    figures.push(bound());
    figures.push(out_of_cores());
    let equal = |count, packets| EqualFlows { count, packets };
    figures.push(largest_first(equal(28, 5), equal(4, 62), 4));
    figures.push(largest_first(equal(300, 1), equal(10, 60), 10));
    figures.push(all_ways());
    figures
}

/// A single flow beyond a core's capacity, which is split.
fn whale(packets: u32) -> Figure {
    let frontier = EpochFrontier::constant(packets * 3 / 5);
    let backlog = vec![flow(packets)];
    Figure {
        name: format!("scaling/plan/{packets}-packets/1-flows/2-groups"),
        backlogs: counted(vec![backlog; BACKLOGS]),
        ..figure(&frontier, HELPERS)
    }
}

/// Backlogs of flows of different sizes. The frontier has the shape of NetBlaze's, and the mean group is just far
/// enough inside it that first fit needs `groups` groups.
fn cut(packets: u32, flows: u32, groups: u32) -> Figure {
    let backlogs: Vec<_> = (0..BACKLOGS).map(|i| backlog(packets, flows, i as u64)).collect();
    let mut figure = (100..200).step_by(2).find_map(|percent| {
        let mut frontier = EpochFrontier::new();
        let (mean_flows, mean_packets) = (flows.div_ceil(groups), packets.div_ceil(groups));
        // Chain 1 at 200 us: from 352 packets of 10 flows to 128 packets of 103 flows. The middle is the mean group.
        for (flows, packets) in [(23, 122), (72, 111), (100, 100), (240, 44)] {
            frontier.insert(Load {
                flows: (mean_flows * flows * percent).div_ceil(10_000),
                packets: (mean_packets * packets * percent).div_ceil(10_000),
            });
        }
        let mut figure = figure(&frontier, HELPERS.max(groups as usize));
        let all = backlogs
            .iter()
            .all(|backlog| used(&mut figure, backlog) == groups as usize);
        all.then_some(figure)
    });
    let figure = figure.take().expect("a frontier makes that many groups");
    Figure {
        name: format!("scaling/plan/{packets}-packets/{flows}-flows/{groups}-groups"),
        backlogs: counted(backlogs),
        ..figure
    }
}

/// The same backlogs, with every tenth flow bound to this core.
fn bound() -> Figure {
    let mut figure = cut(512, 310, 4);
    for (backlog, _) in &mut figure.backlogs {
        for flow in backlog.iter_mut().step_by(10) {
            flow.bound = true;
        }
    }
    Figure {
        name: "scaling/plan/512-packets/310-flows/31-bound".to_owned(),
        ..figure
    }
}

/// A backlog for eight cores on a machine with five.
fn out_of_cores() -> Figure {
    let mut figure = cut(1024, 310, 8);
    figure.auxiliaries.truncate(4);
    Figure {
        name: "scaling/plan/1024-packets/310-flows/out-of-cores".to_owned(),
        ..figure
    }
}

/// Flows of equal size.
struct EqualFlows {
    count: usize,
    /// Packets of each.
    packets: u32,
}

/// Small flows before large ones. In order of arrival, small flows fill cores that the large ones need. The bound shows
/// that fewer cores may suffice, so largest-first is tried.
fn largest_first(small: EqualFlows, large: EqualFlows, groups: usize) -> Figure {
    let mut backlog = vec![flow(small.packets); small.count];
    backlog.extend(vec![flow(large.packets); large.count]);
    let (packets, flows) = (packets(&backlog), backlog.len());
    chosen(
        &format!("{packets}-packets/{flows}-flows/largest-first"),
        groups,
        backlog,
    )
}

/// Eight flows that both orders cut into four groups. The optimum is three.
fn all_ways() -> Figure {
    let backlog = [38, 53, 31, 34, 39, 21, 16, 51].map(flow).to_vec();
    chosen("283-packets/8-flows/all-ways", 3, backlog)
}

/// One given backlog on cores with a capacity of 100 packets each.
fn chosen(name: &str, groups: usize, backlog: Vec<QueuedFlow>) -> Figure {
    let mut figure = figure(&EpochFrontier::constant(100), 13);
    assert_eq!(used(&mut figure, &backlog), groups);
    Figure {
        name: format!("scaling/plan/{name}"),
        backlogs: counted(vec![backlog; BACKLOGS]),
        ..figure
    }
}

/// A figure without backlogs.
fn figure(frontier: &EpochFrontier, auxiliaries: usize) -> Figure {
    let options = NetBlazeOptions {
        boost_after: None,
        ..NetBlazeOptions::new(Nanos::from_micros(200))
    };
    let mut splits = SplitProfile::new();
    let point = SplitPoint {
        last_functions: 1,
        first: 1 << 20,
        last: 1 << 20,
    };
    splits.insert(point);
    Figure {
        name: String::new(),
        mapper: NetBlazeMapper::new(options, frontier, splits).expect("the frontier is not empty"),
        backlogs: Vec::new(),
        auxiliaries: vec![AuxiliaryCore::default(); auxiliaries],
        times: Vec::new(),
    }
}

fn packets(backlog: &[QueuedFlow]) -> u32 {
    backlog.iter().map(|flow| flow.packets).sum()
}

fn counted(backlogs: Vec<Vec<QueuedFlow>>) -> Vec<(Vec<QueuedFlow>, u32)> {
    let count = |backlog: Vec<QueuedFlow>| {
        let packets = packets(&backlog);
        (backlog, packets)
    };
    backlogs.into_iter().map(count).collect()
}

fn flow(packets: u32) -> QueuedFlow {
    QueuedFlow { packets, bound: false }
}

/// Backlog in which each flow has one packet and the remaining packets go to flows with a skewed distribution.
fn backlog(packets: u32, flows: u32, seed: u64) -> Vec<QueuedFlow> {
    let mut backlog = vec![flow(1); flows as usize];
    let mut state = seed;
    for _ in flows..packets {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let uniform = (state >> 33) as f64 / (1_u64 << 31) as f64;
        // Shuffled: a flow's size does not depend on its order of arrival.
        let rank = (uniform * uniform * f64::from(flows)) as usize;
        backlog[(rank * 7 + seed as usize) % flows as usize].packets += 1;
    }
    backlog
}

/// Number of cores that a plan uses.
fn used(figure: &mut Figure, backlog: &[QueuedFlow]) -> usize {
    let mut plan = Plan::default();
    decide(
        &mut figure.mapper,
        backlog,
        packets(backlog),
        &figure.auxiliaries,
        &mut plan,
    );
    assert_eq!(plan.notice, None, "all fits on the cores that there are");
    let mut places = plan.destinations;
    places.sort_unstable();
    places.dedup();
    places.len()
}

fn decide(
    mapper: &mut NetBlazeMapper,
    queued: &[QueuedFlow],
    packets: u32,
    auxiliaries: &[AuxiliaryCore],
    plan: &mut Plan,
) {
    plan.clear(queued.len());
    let view = View {
        now: Nanos::ZERO,
        oldest: Nanos::ZERO,
        parked: Load::default(),
        queued,
        packets,
        auxiliaries,
    };
    mapper.decide(&view, plan);
}
