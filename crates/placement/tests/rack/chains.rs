//! Tables: capacity of chains by their demand.

use crate::world::*;
use tailwater_net::Nanos;
use tailwater_placement::admit::{Nearest, Reason};
use tailwater_placement::demand::Unfit;
use tailwater_placement::plan::Resource;
use tailwater_placement::rack::*;

fn servers(number: usize, cores: u32) -> Vec<ServerView> {
    (0..number).map(|at| server(&format!("s{at}"), cores)).collect()
}

fn creates(plan: &RackPlan) -> Vec<(&str, &str, f64, CreateReason)> {
    let new = plan.actions.iter().filter_map(|action| match action {
        RackAction::Create(new) => Some((&*new.name, &*new.server, new.rate / CORE, new.reason)),
        _ => None,
    });
    new.collect()
}

#[test]
fn a_new_chain_gets_instances_for_its_demand() {
    let mut world = World::new(
        options(),
        exact(),
        servers(2, 2),
        vec![chain("a", 0.3), chain("b", 1.5)],
    );
    let plan = world.step();
    // Best fit: the second chain needs two instances, the first of which fills a core.
    let expected = [
        ("a-0", "s0", 0.3, CreateReason::Missing),
        ("b-0", "s0", 0.9, CreateReason::Missing),
        ("b-1", "s0", 0.6, CreateReason::Load),
    ];
    assert_eq!(creates(&plan), expected);
    let RackAction::Create(first) = &plan.actions[0] else {
        panic!("{plan:?}");
    };
    assert!((first.share - 0.3).abs() < 1e-9 && first.cores == 1 && !first.exclusive && first.replaces.is_none());
    // Instances that are starting count, but process nothing yet.
    let Verdict::AtRisk(Risk::Overload { promised: 0.0, .. }) = plan.verdicts["b"] else {
        panic!("{plan:?}");
    };
    world.delay = 5;
    assert!(world.step().actions.is_empty());
    world.settle();
    assert_eq!(
        world.step().verdicts["a"],
        Verdict::Placed {
            instances: 1,
            rate: 0.3e6
        }
    );
}

#[test]
fn more_demand_is_met_in_place_and_then_by_more_instances() {
    let mut world = World::new(
        options(),
        exact(),
        servers(2, 1),
        vec![chain("a", 0.3), chain("b", 0.3)],
    );
    world.settle();
    assert_eq!((world.places("a"), world.places("b")), (vec!["s0"], vec!["s0"]));
    world.chain("a").demand = demand(0.6);
    let plan = world.step();
    let expected = RackAction::Resize {
        instance: "a-0".into(),
        rate: 0.6e6,
        share: 0.6,
        reason: ResizeReason::Load,
    };
    assert_eq!(plan.actions, [expected]);
    // Its core is full: half of what misses does not fit there either, so all of it goes to another server.
    world.chain("b").demand = demand(0.5);
    let plan = world.step();
    assert_eq!(creates(&plan), [("b-1", "s1", 0.2, CreateReason::Load)]);
    // An instance has no more than a core: what misses then, another one gets.
    world.chain("a").demand = demand(1.3);
    world.settle();
    assert_eq!((world.promised("a"), world.promised("b")), (1.3e6, 0.5e6));
}

#[test]
fn less_demand_takes_capacity_away_after_a_while_and_keeps_the_most_that_was_wanted_meanwhile() {
    let mut world = World::new(options(), exact(), servers(2, 2), vec![chain("a", 1.6)]);
    world.settle();
    assert_eq!(world.of("a").len(), 2);
    world.chain("a").demand = demand(0.2);
    for second in 0..10 {
        assert!(world.step().actions.is_empty(), "after {second} s");
        // A short peak below what it has.
        world.chain("a").demand = demand(if second == 4 { 0.7 } else { 0.2 });
    }
    let plan = world.step();
    let idle = |action: &RackAction| {
        matches!(
            action,
            RackAction::Drain {
                reason: DrainReason::Idle,
                ..
            }
        )
    };
    assert!(idle(&plan.actions[0]), "{plan:?}");
    let RackAction::Resize { rate, reason, .. } = &plan.actions[1] else {
        panic!("{plan:?}");
    };
    assert_eq!((*rate, *reason), (0.7e6, ResizeReason::Idle));
    world.settle();
    assert_eq!((world.of("a").len(), world.promised("a")), (1, 0.2e6));
}

#[test]
fn demand_that_returns_in_time_changes_nothing() {
    let mut world = World::new(options(), exact(), servers(1, 2), vec![chain("a", 0.8)]);
    world.settle();
    for round in 0..60 {
        world.chain("a").demand = demand(if round % 9 == 0 { 0.8 } else { 0.1 });
        assert!(world.step().actions.is_empty(), "round {round}");
    }
}

#[test]
fn capacity_has_a_band_around_the_demand() {
    let with_band = RackOptions { band: 0.2, ..options() };
    let mut world = World::new(with_band, exact(), servers(1, 2), vec![chain("a", 0.5)]);
    world.settle();
    assert_eq!(world.promised("a"), 0.6e6);
    // Up to 0.6 it suffices; from 0.4 on, with room for growth, less than 0.48 would.
    for cores in [0.6, 0.41] {
        world.chain("a").demand = demand(cores);
        world.settle();
        assert_eq!(world.promised("a"), 0.6e6, "{cores}");
    }
    world.chain("a").demand = demand(0.39);
    world.settle();
    assert_eq!(world.promised("a"), 468_000.0);
    world.chain("a").demand = demand(0.47);
    world.settle();
    assert_eq!(world.promised("a"), 564_000.0);
}

#[test]
fn a_reserved_throughput_does_not_follow_demand() {
    let mut world = World::new(options(), exact(), servers(1, 2), vec![reserved("a", 1.2)]);
    world.chain("a").demand = demand(0.0);
    world.settle();
    assert_eq!(world.promised("a"), 1.2e6);
    world.chain("a").demand = demand(3.0);
    let plan = world.settle();
    assert_eq!(world.promised("a"), 1.2e6);
    assert!(matches!(plan.verdicts["a"], Verdict::Placed { .. }), "{plan:?}");
}

#[test]
fn limits_of_instances_are_kept() {
    let few = ChainView {
        most: 2,
        ..chain("a", 2.5)
    };
    let many = ChainView {
        least: 3,
        ..chain("b", 0.3)
    };
    let mut world = World::new(options(), exact(), servers(4, 2), vec![few, many]);
    let plan = world.settle();
    assert_eq!((world.of("a").len(), world.of("b").len()), (2, 3));
    let Verdict::TooFew {
        instances: 2,
        reason,
        wanted,
        ..
    } = &plan.verdicts["a"]
    else {
        panic!("{plan:?}");
    };
    assert_eq!((reason, *wanted), (&Reason::Instances, 2.5e6));
    world.chain("b").most = 2;
    world.chain("b").least = 1;
    world.settle();
    assert!(world.of("b").len() <= 2);
}

#[test]
fn a_lowered_least_number_takes_instances_away_though_the_promise_stays() {
    let two = ChainView {
        least: 2,
        ..chain("a", 0.4)
    };
    let mut world = World::new(options(), exact(), servers(2, 1), vec![two]);
    world.settle();
    assert_eq!((world.of("a").len(), world.promised("a")), (2, 0.4e6));
    world.chain("a").least = 1;
    world.settle();
    assert_eq!((world.of("a").len(), world.promised("a")), (1, 0.4e6));
    // Instances of before it had a promise count, too.
    let promise = std::mem::take(&mut world.chain("a").promise);
    world.chain("a").least = 2;
    world.settle();
    assert_eq!(world.of("a").len(), 2);
    world.chain("a").promise = promise;
    world.chain("a").least = 1;
    world.settle();
    assert_eq!((world.of("a").len(), world.promised("a")), (1, 0.4e6));
}

#[test]
fn an_instance_that_cannot_grow_moves_where_it_can_if_its_chain_may_have_no_more() {
    let one = |name: &str, cores: f64| ChainView {
        most: 1,
        ..reserved(name, cores)
    };
    let mut world = World::new(
        options(),
        exact(),
        servers(1, 1),
        vec![reserved("a", 0.6), one("b", 0.6)],
    );
    let plan = world.settle();
    assert!(matches!(
        plan.verdicts["b"],
        Verdict::TooFew {
            reason: Reason::Instances,
            ..
        }
    ));
    assert_eq!(world.promised("b"), 0.3e6);
    // A server comes: it moves, and its flows have an instance at each time.
    world.view.servers.push(server("s1", 1));
    let plan = world.step();
    assert_eq!(creates(&plan), [("b-1", "s1", 0.6, CreateReason::Load)]);
    assert_eq!(world.of("b").len(), 2);
    let plan = world.settle();
    assert!(matches!(plan.verdicts["b"], Verdict::Placed { .. }), "{plan:?}");
    assert_eq!((world.places("b"), world.promised("b")), (vec!["s1"], 0.6e6));
    // Of two, the smaller one, and no more moves at a time than permitted.
    let few = |name: &str| ChainView {
        most: 2,
        ..reserved(name, 1.2)
    };
    let mut world = World::new(
        options(),
        exact(),
        servers(1, 2),
        vec![reserved("a", 0.7), few("b"), few("c")],
    );
    world.settle();
    let promised = ["b", "c"].map(|name| world.promised(name));
    world.view.servers.push(server("s1", 3));
    world.settle();
    let after = ["b", "c"].map(|name| world.promised(name));
    assert_eq!(after, [1.2e6; 2], "before: {promised:?}");
}

#[test]
fn an_instance_whose_flows_would_lose_state_does_not_move() {
    let bound = ChainView {
        is_bound: true,
        most: 1,
        ..reserved("b", 0.6)
    };
    let mut world = World::new(options(), exact(), servers(1, 1), vec![reserved("a", 0.6), bound]);
    world.settle();
    assert_eq!(world.promised("b"), 0.3e6);
    world.view.servers.push(server("s1", 1));
    let plan = world.settle();
    assert!(matches!(plan.verdicts["b"], Verdict::TooFew { .. }), "{plan:?}");
    // Better plans leave it where it is, too.
    world.view.chains.push(reserved("c", 0.1));
    world.settle();
    world.chain("b").promise = None;
    let servers = ["a-0", "b-0", "c-0"].map(|name| (name.to_owned(), "s1".to_owned()));
    let plan = Rearrangement {
        servers: servers.into(),
    };
    assert_eq!(plan.saved(&world.view), 0);
    world.chain("b").is_bound = false;
    assert_eq!(plan.saved(&world.view), 1);
    world.chain("b").is_bound = true;
    // Nor does it leave a server that is to become empty.
    world.server("s0").state = ServerState::Draining;
    let plan = world.settle();
    let risk = Risk::Bound { instance: "b-0".into() };
    assert_eq!(
        (&plan.verdicts["b"], world.places("b")),
        (&Verdict::AtRisk(risk), vec!["s0"])
    );
    assert_eq!(world.places("a"), ["s1"]);
}

#[test]
fn redundancy_is_on_different_servers() {
    let twice = ChainView {
        redundancy: 2,
        ..chain("a", 0.4)
    };
    let mut world = World::new(options(), exact(), servers(2, 4), vec![twice.clone()]);
    world.settle();
    assert_eq!((world.places("a"), world.promised("a")), (vec!["s0", "s1"], 0.4e6));
    // With one server only, the reason is that there is none for the second instance.
    let mut world = World::new(options(), exact(), servers(1, 4), vec![twice]);
    let plan = world.settle();
    let Verdict::TooFew {
        instances: 1, reason, ..
    } = &plan.verdicts["a"]
    else {
        panic!("{plan:?}");
    };
    assert_eq!(reason, &Reason::Room(vec![Resource::Servers]));
}

#[test]
fn chains_without_a_promise_get_instances_by_number() {
    let best_effort = |name: &str| ChainView {
        promise: None,
        least: 2,
        ..chain(name, 5.0)
    };
    let mut world = World::new(options(), exact(), servers(2, 1), vec![best_effort("a")]);
    world.settle();
    assert_eq!((world.of("a").len(), world.promised("a")), (2, 0.0));
    world.chain("a").least = 1;
    world.settle();
    assert_eq!(world.of("a").len(), 1);
    // A server with fewer chains for each core is preferred, unless that is not used.
    world.view.chains.push(best_effort("b"));
    world.view.chains.push(chain("c", 0.1));
    world.settle();
    assert_eq!(world.of("b").len(), 2);
}

#[test]
fn a_promise_comes_before_none_and_a_reserved_one_first() {
    let effort = ChainView {
        promise: None,
        ..chain("a", 0.0)
    };
    let mut world = World::new(
        options(),
        exact(),
        servers(1, 1),
        vec![effort, chain("b", 0.5), reserved("c", 0.5)],
    );
    let plan = world.step();
    let order: Vec<&str> = creates(&plan).iter().map(|create| create.0).collect();
    // Of the chain on demand, parts are tried: 0.4 of 0.5 is left on the core.
    assert_eq!(order, ["c-0", "b-0", "a-0"]);
    assert_eq!(world.promised("b"), 0.375e6);
}

#[test]
fn a_refusal_has_a_reason_and_the_nearest_that_fits() {
    let mut world = World::new(
        options(),
        exact(),
        servers(2, 1),
        vec![reserved("a", 0.7), reserved("b", 0.8)],
    );
    world.settle();
    world.view.chains.push(ChainView {
        most: 1,
        ..reserved("c", 0.4)
    });
    world.view.chains.push(ChainView {
        promise: chain("d", 0.0).promise.map(|promise| RackPromise {
            latency: Nanos::from_micros(5),
            ..promise
        }),
        ..chain("d", 0.1)
    });
    world.view.chains.push(ChainView {
        cores: 2,
        ..chain("e", 0.1)
    });
    world.view.chains.push(ChainView {
        promise: chain("f", 0.0).promise.map(|promise| RackPromise {
            curves: vec![curves("other")],
            ..promise
        }),
        ..chain("f", 0.1)
    });
    // Half of what the chain wants fits, but it may have one instance only.
    let plan = world.settle();
    assert_eq!(world.promised("c"), 0.2e6);
    let reason = |name: &str| match &plan.verdicts[name] {
        Verdict::TooFew { reason, .. } => reason.clone(),
        verdict => panic!("{name}: {verdict:?}"),
    };
    assert_eq!(reason("c"), Reason::Instances);
    let least = Nanos::from_micros(10);
    assert_eq!(reason("d"), Reason::Unfit(Unfit::Latency { least }));
    assert_eq!(reason("e"), Reason::Unfit(Unfit::Size { cores: 2, bytes: 10 }));
    let measured = vec!["other".to_owned()];
    assert_eq!(reason("f"), Reason::Unfit(Unfit::NoCurves { measured }));
    // Less than an eighth is left.
    world.view.chains.push(reserved("g", 0.9));
    let plan = world.settle();
    let Verdict::TooFew {
        reason,
        nearest,
        instances: 0,
        ..
    } = &plan.verdicts["g"]
    else {
        panic!("{plan:?}");
    };
    assert_eq!(*reason, Reason::Room(vec![Resource::Cores]));
    let [Nearest::Throughput(rate)] = nearest[..] else {
        panic!("{nearest:?}");
    };
    assert!((0.09e6..=0.1e6).contains(&rate), "{rate}");
}

#[test]
fn a_tight_neighbour_is_not_disturbed() {
    let tight = |name: &str, cores: f64, micros: u64| {
        let mut chain = reserved(name, cores);
        if let Some(promise) = &mut chain.promise {
            promise.latency = Nanos::from_micros(micros);
        }
        chain
    };
    // 10 us, and 32 us of a neighbour's batch, are within 45 us up to a load just above one half.
    let chains = vec![tight("a", 0.3, 45), reserved("b", 0.55), tight("c", 0.2, 45)];
    let mut world = World::new(options(), exact(), vec![server("s0", 1), server("s1", 1)], chains);
    world.settle();
    let places = ["a", "b", "c"].map(|name| world.places(name)[0].to_owned());
    assert_eq!(places, ["s0", "s1", "s0"]);
    // Beside this one, no batch is short enough.
    let chains = vec![tight("a", 0.1, 41), reserved("b", 0.5)];
    let mut world = World::new(options(), exact(), vec![server("s0", 1)], chains);
    let plan = world.settle();
    let Verdict::TooFew { reason, nearest, .. } = &plan.verdicts["b"] else {
        panic!("{plan:?}");
    };
    assert_eq!((reason, nearest.len()), (&Reason::Room(vec![Resource::Quiet]), 0));
}

#[test]
fn measurements_put_an_objective_at_risk() {
    let mut world = World::new(options(), exact(), servers(2, 1), vec![chain("a", 0.5)]);
    world.settle();
    world.view.instances[0].load.p99 = Some(Nanos::from_millis(1));
    assert!(matches!(world.step().verdicts["a"], Verdict::Placed { .. }));
    world.view.instances[0].load.p99 = Some(Nanos::from_micros(1001));
    let risk = Risk::Latency {
        instance: "a-0".into(),
        p99: Nanos::from_micros(1001),
    };
    assert_eq!(world.step().verdicts["a"], Verdict::AtRisk(risk));
    world.view.instances[0].load.p99 = None;
    world.delay = 3;
    world.chain("a").demand = demand(1.2);
    let risk = Risk::Overload {
        offered: 1.2e6,
        promised: 0.5e6,
    };
    assert_eq!(world.step().verdicts["a"], Verdict::AtRisk(risk));
    let plan = world.settle();
    assert!(matches!(plan.verdicts["a"], Verdict::Placed { .. }), "{plan:?}");
}

#[test]
fn demand_of_tailwaters_policy() {
    let policy = TailwaterScaling {
        margin: 0.1,
        peak: 0.5,
        ..TailwaterScaling::default()
    };
    let load = |offered, smoothed, peak, chain: &ChainView| {
        let chain = ChainView {
            demand: ChainDemand {
                offered,
                smoothed,
                peak,
            },
            ..chain.clone()
        };
        let mut policy = policy;
        let capacity = policy.capacity(&ChainLoad {
            now: Nanos(1),
            chain: &chain,
            instances: &[],
            instance_rate: 1.0,
        });
        assert!((capacity.instances, capacity.exclusive, capacity.idle.len()) == (0, false, 0));
        capacity.rate.round()
    };
    let on_demand = chain("a", 1.0);
    assert_eq!(load(100.0, 100.0, 300.0, &on_demand), 220.0);
    assert_eq!(load(500.0, 100.0, 300.0, &on_demand), 550.0);
    assert_eq!(load(10.0, 100.0, 50.0, &on_demand), 110.0);
    assert_eq!(load(100.0, 100.0, 300.0, &reserved("a", 7e-6)), 7.0);
    assert_eq!(
        load(
            100.0,
            100.0,
            300.0,
            &ChainView {
                promise: None,
                ..on_demand
            }
        ),
        0.0
    );
}
