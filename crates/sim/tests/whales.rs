//! Whales whose chain is divided over several cores, beside small flows.

mod common;

use common::{MS, Random, SLO, checked, costs};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{RateFrontier, SplitPoint, SplitProfile};
use tailwater_policy::core::{
    CoreMapper, Destination, Flowlet, Loads, MakeMapper, Plan, Review, SplitFlow, Unit, View,
};
use tailwater_policy::server::{TailwaterServerConfig, TailwaterServerMapper};
use tailwater_policy::tailwater::{TailwaterMapper, TailwaterOptions};
use tailwater_sim::policies::Steered;
use tailwater_sim::{ChainModel, ChainReport, Rack, RackPolicy, Recording, SplitCost};

/// Nanoseconds per packet of the chain.
const PACKET: u64 = 5000;
/// Flow of the whale.
const WHALE: u32 = 1;

/// Chain of `functions` functions of equal costs, where each cut costs 4 % of a packet in addition.
fn model(functions: usize) -> ChainModel {
    let share = |part: usize| part as f64 / functions as f64 + 0.02;
    let cut = |last_functions| SplitCost {
        last_functions,
        first: share(functions - last_functions),
        last: share(last_functions),
    };
    ChainModel {
        receive_packet: 100.0,
        lease_packet: 30.0,
        hand_over_packet: 60.0,
        receipt_packet: 20.0,
        auxiliary_packet: 60.0,
        splits: (1..functions).map(cut).collect(),
        ..ChainModel::new("whales", costs(4970.0, 960.0))
    }
}

/// How often the mapper under test splits a flow.
#[derive(Clone, Copy, PartialEq)]
enum Splits {
    Never,
    Once,
    AsCoresAllow,
}

/// Tailwater's core mapper, which divides no part and joins none.
struct SplitOnce(TailwaterMapper);

impl CoreMapper for SplitOnce {
    fn unit(&self) -> Unit {
        self.0.unit()
    }
    fn batch(&self) -> usize {
        self.0.batch()
    }
    fn is_in_time(&self, packets: u32) -> bool {
        self.0.is_in_time(packets)
    }
    fn can_help(&self, packets: u32) -> bool {
        self.0.can_help(packets)
    }
    fn due(&self, now: Nanos, packets: u32) -> bool {
        self.0.due(now, packets)
    }
    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        self.0.decide(view, plan);
    }
    fn review(&mut self, split: &SplitFlow<'_>) -> Review {
        self.0.review(split);
        Review::Keep
    }
    fn place(&mut self, flowlet: Flowlet, loads: &Loads<'_>) -> Destination {
        self.0.place(flowlet, loads)
    }
    fn completed(&mut self, packets: u32, new: u32, took: Nanos) {
        self.0.completed(packets, new, took);
    }
    fn dispatched(&mut self, took: Nanos) {
        self.0.dispatched(took);
    }
    fn woke(&mut self, took: Nanos) {
        self.0.woke(took);
    }
}

/// One dedicated core with Tailwater's core mapper, and a profile of the model's costs.
fn policy(model: &ChainModel, splits: Splits, unit: Unit) -> RackPolicy {
    let options = TailwaterOptions {
        network_allowance: Nanos::ZERO,
        costs: Some(model.costs),
        unit,
        ..TailwaterOptions::new(SLO)
    };
    let mut profile = SplitProfile::new();
    for cut in model.splits.iter().filter(|_| splits != Splits::Never) {
        let packets = |share: f64| ((SLO.0 / 2) as f64 / (PACKET as f64 * share)) as u32;
        profile.insert(SplitPoint {
            last_functions: cut.last_functions,
            first: packets(cut.first),
            last: packets(cut.last),
        });
    }
    let make: MakeMapper = Arc::new(move || {
        let mapper = TailwaterMapper::new(options, profile.clone()).unwrap();
        match splits {
            Splits::Once => Box::new(SplitOnce(mapper)),
            Splits::Never | Splits::AsCoresAllow => Box::new(mapper),
        }
    });
    RackPolicy {
        name: "whales".to_owned(),
        steered: Steered::Rack(None),
        core: Some(make),
        start_cores: Some(1),
    }
}

/// A whale with this load at each millisecond, and small flows with another; both in percent of a core.
fn traffic(length: u64, whale: impl Fn(u64) -> u64, small: u64) -> Arc<Recording> {
    let mut random = Random(7);
    let mut packets = Vec::new();
    let mut now = 0;
    while now < length {
        let load = whale(now / MS);
        now += PACKET * 100 / load.max(1);
        if load > 0 {
            packets.push((now, WHALE));
        }
    }
    now = 0;
    while now < length {
        now += random.gap((PACKET * 100 / small) as f64).max(1);
        packets.push((now, 2 + random.below(40) as u32));
    }
    packets.sort_unstable();
    let packets = packets.into_iter().map(|(at, flow)| (Nanos(at), flow, 500));
    Arc::new(Recording::of_packets("whale", packets, 60))
}

fn share_late(report: &ChainReport) -> f64 {
    let late: u64 = report.late_by_cause.values().sum();
    late as f64 / report.packets.offered as f64
}

/// Late and lost packets of a whale that fits into the cores if it is divided often enough: none. Split once, or whole,
/// most of its packets are late. The small flows beside it keep the objective.
#[test]
fn a_whale_is_divided_as_often_as_cores_allow() {
    for (unit, functions, whale) in [
        (Unit::Flow, 3, 150),
        (Unit::Bucket, 3, 150),
        (Unit::Flow, 4, 250),
        (Unit::Bucket, 4, 250),
    ] {
        let model = model(functions);
        let packets = traffic(60 * MS, |_| whale, 20);
        let rack = Rack::of_one(functions as u16 + 1);
        let of = |splits| checked(&rack, model.clone(), policy(&model, splits, unit), &packets);
        let [never, once, often] = [Splits::Never, Splits::Once, Splits::AsCoresAllow].map(of);
        let line = format!(
            "{unit:?}, {functions} functions, {whale} %: late {:.4} whole, {:.4} split once, {:.4}; lost {:.4}, \
             {:.4}, {:.4}",
            share_late(&never),
            share_late(&once),
            share_late(&often),
            never.loss_rate,
            once.loss_rate,
            often.loss_rate
        );
        println!("{line}");
        assert!(share_late(&often) < 0.002 && often.packets.lost == 0, "{line}");
        assert!(share_late(&once) > 0.5 && share_late(&never) > 0.5, "{line}");
        assert_eq!(often.late_by_cause["queued-behind-others"], 0, "{line}");
        // Each division made it possible to take one core more: no more are used than parts.
        assert_eq!(often.decisions.joins, 0, "{line}");
        assert!(often.cores.auxiliary < functions as f64, "{line}");
    }
}

#[test]
fn parts_are_joined_when_the_load_has_fallen_and_divided_when_it_rises() {
    for unit in [Unit::Flow, Unit::Bucket] {
        let model = model(3);
        // High for 40 ms, and low for 60 ms.
        let load = |now: u64| if now % 100 < 40 { 180 } else { 45 };
        let packets = traffic(200 * MS, load, 20);
        let report = checked(
            &Rack::of_one(4),
            model.clone(),
            policy(&model, Splits::AsCoresAllow, unit),
            &packets,
        );
        let line = format!("{unit:?}: late {:.4}, {:?}", share_late(&report), report.decisions);
        println!("{line}");
        assert!(report.decisions.splits >= 4 && report.decisions.joins >= 2, "{line}");
        assert!(share_late(&report) < 0.01 && report.packets.lost == 0, "{line}");
        // Two auxiliary cores for 40 %, and most of the rest none.
        assert!(report.cores.auxiliary < 1.3, "{line}");
    }
}

/// The server mapper made all cores dedicated, as packets of the whale were late: none was left that could take parts
/// of it, and they stayed late. Parts on cores that became dedicated stayed there.
#[test]
fn a_whale_is_divided_on_a_server_that_maps_its_cores() {
    let model = model(3);
    let packets = traffic(400 * MS, |_| 105, 100);
    let of = |divides| {
        let config = TailwaterServerConfig {
            period: Nanos::from_millis(20),
            backlog: Nanos::from_millis(5),
            // All cores, as after late packets.
            fill: 0.5,
            reclaim_fill: 0.48,
            divides,
            ..TailwaterServerConfig::default()
        };
        let rates = RateFrontier::constant(1e9 / PACKET as f64);
        let policy = RackPolicy {
            steered: Steered::Rack(Some(Box::new(TailwaterServerMapper::new(config, rates)))),
            ..policy(&model, Splits::AsCoresAllow, Unit::Bucket)
        };
        checked(&Rack::of_one(4), model.clone(), policy, &packets)
    };
    let [without, with] = [false, true].map(of);
    let line = format!(
        "late {:.4} and {:.4}, {:?} and {:?}",
        share_late(&without),
        share_late(&with),
        without.cores,
        with.cores
    );
    println!("{line}");
    for cores in [&without.cores, &with.cores] {
        assert!(cores.total <= 4.0, "{line}");
    }
    assert!(share_late(&without) > 0.3, "{line}");
    assert!(share_late(&with) < 0.05, "{line}");
}

/// A core that has no cheaper part to give keeps the whale as it is, and no core is taken for nothing.
#[test]
fn no_part_is_divided_that_gains_nothing() {
    // Two functions: one cut.
    let model = model(2);
    let packets = traffic(40 * MS, |_| 300, 10);
    let report = checked(
        &Rack::of_one(5),
        model.clone(),
        policy(&model, Splits::AsCoresAllow, Unit::Bucket),
        &packets,
    );
    assert_eq!(report.decisions.splits, 1, "{:?}", report.decisions);
    assert_eq!(report.late_by_cause["queued-behind-others"], 0);
}
