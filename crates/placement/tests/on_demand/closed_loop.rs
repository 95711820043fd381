//! Closed loop of a server, with the functions of ResQ's evaluation.

use crate::rig::{Noise, cache, tenant};
use tailwater_net::Nanos;
use tailwater_placement::on_demand::model::{Model, TenantPerformance};
use tailwater_placement::on_demand::{
    Allocation, AskKind, Config, Decision, Kind, OnDemand, Policing, Reserved, Situation,
};
use tailwater_placement::published::{FIREWALL, IPSEC, LPM, MAZU_NAT, SNORT, STATS};
use tailwater_placement::slo::Curves;

/// Server, its agent, and their state.
struct Rig {
    model: Model,
    policy: OnDemand,
    reserved: Vec<(Reserved, Curves, f64)>,
    ways: u16,
    noise: Noise,
    /// Maximum relative error of measurements.
    part: f64,
    tick: u64,
    policing: Vec<Policing>,
    allocation: Allocation,
}

impl Rig {
    /// Creates six instances with little load, and two reserved ones with two ways each.
    fn new(known: bool, part: f64) -> Rig {
        let functions = [STATS, MAZU_NAT, LPM, SNORT, FIREWALL, IPSEC];
        let tenants = functions.map(|function| tenant(&function, function.name, 0.3, known));
        let reserved = [LPM, SNORT].map(|function| {
            let curves = function.profile().expect("published curves").curves[0].clone();
            let reserved = Reserved {
                name: format!("reserved-{}", function.name),
                ways: 2,
                tasks: Vec::new(),
            };
            // The rate for which two ways just suffice.
            let rate = curves.cache.rate(2 * cache().way_bytes);
            (reserved, curves, rate)
        });
        Rig {
            model: Model::new(cache(), tenants.to_vec()),
            policy: OnDemand::new(Config::new(cache()), Allocation::default()),
            reserved: reserved.to_vec(),
            ways: 14,
            noise: Noise(7),
            part,
            tick: 0,
            policing: Vec::new(),
            allocation: Allocation::default(),
        }
    }

    fn load(&mut self, name: &str, load: f64) {
        for tenant in self.model.tenants.iter_mut().filter(|tenant| tenant.name == name) {
            tenant.offered = load * tenant.curves.cache.most();
        }
    }

    /// Runs a tick: measures with the current allocation, and decides. Reserved SLOs must be met in each tick.
    fn tick(&mut self) -> (Vec<TenantPerformance>, Decision) {
        for (reserved, curves, rate) in &self.reserved {
            if self.tick > 0 {
                assert!(
                    self.model.keeps(&self.allocation, reserved, curves, *rate),
                    "{}",
                    reserved.name
                );
            }
        }
        let fares = self.model.tick(&self.allocation, &self.policing);
        let (noise, part) = (&mut self.noise, self.part);
        let observed = self.model.observed(&fares, || part * noise.next());
        let reserved: Vec<Reserved> = self.reserved.iter().map(|(reserved, ..)| reserved.clone()).collect();
        let decision = self.policy.tick(&Situation {
            now: Nanos::from_millis(100 * self.tick),
            ways: self.ways,
            reserved: &reserved,
            on_demand: &observed,
        });
        self.tick += 1;
        self.policing.clone_from(&decision.policing);
        self.allocation.clone_from(&decision.allocation);
        (fares, decision)
    }

    fn run(&mut self, ticks: u32) -> (Vec<TenantPerformance>, Decision) {
        let mut last = self.tick();
        for _ in 1..ticks {
            last = self.tick();
        }
        last
    }

    /// Returns the number of mask changes in this number of ticks.
    fn changes(&mut self, ticks: u32) -> u32 {
        let mut before = self.allocation.clone();
        let change = |_| {
            let (_, decision) = self.tick();
            let changed = decision.allocation != before;
            before = decision.allocation;
            u32::from(changed)
        };
        (0..ticks).map(change).sum()
    }
}

/// Ticks from a change of load to correct shares: patience, one tick for smoothing, the ticks until other instances
/// need less, and some in which ways change hands.
const SETTLED: u32 = 40;
/// Ticks in which instances return to the shared class, at most one after the other.
const REJOINED: u32 = 120;

fn late(fares: &[TenantPerformance]) -> usize {
    fares.iter().filter(|fare| !fare.on_time).count()
}

/// Checks max-min fairness: no isolated instance with unmet demand could get a way from one that would have no fewer
/// ways.
fn assert_max_min(decision: &Decision) {
    let alone = decision
        .allocation
        .classes
        .iter()
        .filter(|class| class.kind == Kind::Isolated);
    let alone: Vec<(u16, f64)> = alone
        .filter_map(|class| {
            let share = decision.shares.iter().find(|share| class.instances[0] == share.name)?;
            Some((class.mask.ways(), share.demand))
        })
        .collect();
    for &(ways, demand) in &alone {
        if f64::from(ways) < demand {
            assert!(alone.iter().all(|(other, _)| *other <= ways + 1), "{decision:?}");
        }
        assert!(
            f64::from(ways) < demand + 1.0,
            "more than it has a use for: {decision:?}"
        );
    }
    assert!(!alone.is_empty());
}

#[test]
fn as_long_as_all_are_on_time_they_share() {
    let mut rig = Rig::new(true, 0.03);
    let (fares, decision) = rig.run(100);
    assert_eq!(late(&fares), 0);
    let shared = decision
        .allocation
        .classes
        .iter()
        .filter(|class| class.kind == Kind::Shared);
    assert_eq!(shared.map(|class| class.mask.ways()).collect::<Vec<_>>(), [14]);
    assert!(decision.spare > 0 && decision.short == 0 && decision.asks.is_empty());
}

#[test]
fn shares_are_max_min_fair_soon_after_a_change_of_load() {
    for part in [0.0, 0.03] {
        let mut rig = Rig::new(true, part);
        rig.run(20);
        for loads in [
            [("stats", 0.72), ("mazu-nat", 0.74), ("snort", 0.6), ("lpm", 0.7)],
            [("stats", 0.76), ("mazu-nat", 0.2), ("snort", 0.72), ("lpm", 0.3)],
            [("stats", 0.2), ("mazu-nat", 0.76), ("snort", 0.7), ("lpm", 0.76)],
        ] {
            loads.iter().for_each(|(name, load)| rig.load(name, *load));
            let (_, decision) = rig.run(SETTLED);
            assert_max_min(&decision);
            // Instances without significant demand return to the shared class. Then nothing moves.
            rig.run(REJOINED);
            assert_eq!(rig.changes(100), 0, "{loads:?}, {part}");
        }
    }
}

#[test]
fn who_fits_is_on_time_and_stays_so_under_noise() {
    let mut rig = Rig::new(true, 0.04);
    rig.run(20);
    // Together they fit: 5 + 4 + 1 + 2, and one for each of the two with almost no demand.
    for (name, load) in [("stats", 0.65), ("mazu-nat", 0.5), ("snort", 0.5)] {
        rig.load(name, load);
    }
    rig.run(SETTLED);
    let mut changed = 0;
    for _ in 0..300 {
        let before = rig.allocation.clone();
        let (fares, decision) = rig.tick();
        assert_eq!(late(&fares), 0, "{decision:?}");
        changed += u32::from(before != decision.allocation);
    }
    assert_eq!(changed, 0);
}

#[test]
fn few_ways_change_hands_in_a_tick() {
    let mut rig = Rig::new(true, 0.0);
    rig.run(20);
    for (name, load) in [("stats", 0.76), ("mazu-nat", 0.76), ("lpm", 0.76)] {
        rig.load(name, load);
    }
    rig.run(SETTLED);
    rig.load("stats", 0.2);
    rig.load("lpm", 0.7);
    let mut before = rig.allocation.clone();
    let mut all = 0;
    for _ in 0..SETTLED {
        let (_, decision) = rig.tick();
        let fresh = |name: &str| {
            let (old, new) = (before.class_of(name), decision.allocation.class_of(name));
            let same = old.map(|class| &class.name) == new.map(|class| &class.name);
            new.filter(|_| same)
                .map_or(0, |class| class.mask.fresh(old.map(|old| old.mask)))
        };
        let moved: u16 = ["stats", "mazu-nat", "lpm", "ipsec"].map(fresh).iter().sum();
        let most = Config::new(cache()).moves.max(before.classes.len() as u16);
        assert!(moved <= most, "{moved} ways");
        all += moved;
        before = decision.allocation;
    }
    assert!(all > 0);
}

#[test]
fn what_the_lease_loses_is_given_back_at_once_and_nobody_else_is_touched() {
    let mut rig = Rig::new(true, 0.0);
    rig.run(10);
    rig.load("stats", 0.76);
    rig.load("mazu-nat", 0.76);
    rig.run(SETTLED);
    rig.ways = 6;
    let (_, decision) = rig.tick();
    let on_demand = decision.allocation.bits(&[Kind::Isolated, Kind::Shared]);
    assert!(on_demand.count_ones() <= 6 && decision.short > 0);
    let (_, decision) = rig.run(SETTLED);
    assert_max_min(&decision);
}

#[test]
fn instances_without_curves_are_helped_by_what_is_measured() {
    let mut rig = Rig::new(false, 0.01);
    rig.run(20);
    rig.load("stats", 0.62);
    rig.load("mazu-nat", 0.55);
    rig.run(200);
    let mut count = 0;
    for _ in 0..200 {
        let (fares, _) = rig.tick();
        count += late(&fares);
    }
    // Trials with one way less end at once when packets are late.
    assert!(count * 20 < 200 * 6, "{count} times late");
}

#[test]
fn too_much_for_one_instance_asks_for_another_and_then_is_policed() {
    let mut rig = Rig::new(true, 0.0);
    rig.run(10);
    rig.load("stats", 1.3);
    let asks: Vec<_> = (0..20).flat_map(|_| rig.tick().1.asks).collect();
    assert_eq!(asks.len(), 1, "{asks:?}");
    assert_eq!((&*asks[0].name, asks[0].kind), ("stats", AskKind::ScaleOut));
    // The request is repeated after a while without an answer. At its maximum number of instances, its input is
    // policed.
    let asks: Vec<_> = (0..100).flat_map(|_| rig.tick().1.asks).collect();
    assert_eq!(asks.len(), 1, "{asks:?}");
    rig.model.tenants[0].instances = (4, 4);
    let (fares, decision) = rig.run(60);
    assert_eq!(late(&fares), 0, "{fares:?}");
    let limit = decision
        .policing
        .iter()
        .find(|limit| limit.name == "stats")
        .expect("a limit");
    // Four fifths of its rate are in time, and a limit is no lower than necessary.
    let most = STATS.rate() * 0.8;
    assert!(
        (limit.rate as f64) < most && limit.rate as f64 > most * 0.8,
        "{limit:?}"
    );
    // Less load: no limit.
    rig.load("stats", 0.4);
    let (_, decision) = rig.run(60);
    assert_eq!(decision.policing, []);
}

#[test]
fn with_too_few_classes_on_demand_instances_share_one() {
    let mut rig = Rig::new(true, 0.0);
    let mut narrow = cache();
    narrow.classes = 3;
    rig.policy = OnDemand::new(Config::new(narrow), Allocation::default());
    rig.run(10);
    for name in ["stats", "mazu-nat", "snort", "lpm"] {
        rig.load(name, 0.7);
    }
    let (_, decision) = rig.run(SETTLED);
    let classes = &decision.allocation.classes;
    assert_eq!(classes.len(), 3);
    assert_eq!(classes[2].kind, Kind::Shared);
    assert_eq!((classes[2].instances.len(), classes[2].mask.ways()), (6, 14));
    // No instance can be helped here: the late ones request more instances.
    assert!(decision.short > 0);
}
