//! Tables: better plans, and how a rack follows them.

use crate::world::*;
use std::collections::BTreeMap;
use tailwater_placement::cluster::{Cluster, Server, ServerKind};
use tailwater_placement::improve::Saving;
use tailwater_placement::plan::{Instance, Plan};
use tailwater_placement::rack::*;
use tailwater_placement::schedule::Request;
use tailwater_placement::slo::{ChainProfile, Slo, Target};

/// Six servers of a core, half of the chains of which are gone: a third is left on each.
fn fragmented() -> World<TailwaterScaling> {
    let servers = (0..6).map(|at| server(&format!("s{at}"), 1)).collect();
    let chains = (0..6).map(|at| reserved(&format!("c{at}"), 0.55)).collect();
    let mut world = World::new(options(), exact(), servers, chains);
    world.settle();
    for chain in &mut world.view.chains {
        *chain = reserved(&chain.name, 0.3);
    }
    world.settle();
    world
}

fn used<P: ScalingPolicy>(world: &World<P>) -> usize {
    let mut servers: Vec<&str> = world.view.instances.iter().map(|one| &*one.server).collect();
    servers.sort_unstable();
    servers.dedup();
    servers.len()
}

#[test]
fn consolidation_frees_servers_by_moves() {
    let mut world = fragmented();
    assert_eq!(used(&world), 6);
    let plan = consolidated(&world.view, &options());
    assert_eq!(plan.servers.len(), 4);
    let little = world.controller.rearrange(&world.view, &plan, Saving::Servers(5));
    assert_eq!(little, Rearranged::TooLittle { saved: 4 });
    assert!(!world.controller.is_rearranging() && world.step().actions.is_empty());
    let taken = world.controller.rearrange(&world.view, &plan, Saving::Servers(4));
    assert_eq!(taken, Rearranged::Taken { saved: 4, moves: 4 });
    let first = world.step();
    assert!(
        first
            .actions
            .iter()
            .all(|action| matches!(action, RackAction::Create(new)
        if new.reason == CreateReason::Plan && new.replaces.is_some()))
    );
    assert_eq!(first.actions.len(), 2);
    assert!(world.controller.is_rearranging());
    world.settle();
    assert!(!world.controller.is_rearranging());
    assert_eq!(used(&world), 2);
    // Nothing is left to save.
    assert_eq!(consolidated(&world.view, &options()), Rearrangement::default());
}

#[test]
fn consolidation_respects_redundancy_and_leaves_moving_instances() {
    let servers = (0..3).map(|at| server(&format!("s{at}"), 1)).collect();
    let thrice = ChainView {
        redundancy: 3,
        ..reserved("a", 0.3)
    };
    let mut world = World::new(options(), exact(), servers, vec![thrice]);
    world.settle();
    assert_eq!(consolidated(&world.view, &options()), Rearrangement::default());
    world.chain("a").redundancy = 1;
    assert_eq!(consolidated(&world.view, &options()).servers.len(), 2);
    world.view.instances[0].phase = InstancePhase::Starting;
    assert_eq!(consolidated(&world.view, &options()).servers.len(), 2);
    world.view.instances[1].phase = InstancePhase::Starting;
    assert_eq!(consolidated(&world.view, &options()).servers.len(), 1);
}

#[test]
fn what_does_not_apply_any_more_is_dropped() {
    let mut world = fragmented();
    let servers = [
        ("c0-0", "s1"),
        ("c1-0", "s0"),
        ("c9-0", "s1"),
        ("c2-0", "nowhere"),
        ("c3-0", "s3"),
    ];
    let servers = servers.map(|(instance, server)| (instance.to_owned(), server.to_owned()));
    let plan = Rearrangement {
        servers: BTreeMap::from(servers),
    };
    let result = world.controller.rearrange(&world.view, &plan, Saving::Servers(1));
    assert_eq!(result, Rearranged::TooLittle { saved: 0 });
    let all: BTreeMap<String, String> = (1..6).map(|at| (format!("c{at}-0"), "s0".to_owned())).collect();
    let taken = world
        .controller
        .rearrange(&world.view, &Rearrangement { servers: all }, Saving::Servers(1));
    assert_eq!(taken, Rearranged::Taken { saved: 5, moves: 5 });
    // Three of them fit; the others stay and wait for nothing.
    world.settle();
    assert!(!world.controller.is_rearranging());
    assert_eq!(used(&world), 4);
    // A target that is not ready any more.
    let one = BTreeMap::from([("c5-0".to_owned(), "s4".to_owned())]);
    world
        .controller
        .rearrange(&world.view, &Rearrangement { servers: one }, Saving::Servers(0));
    world.server("s4").state = ServerState::Cordoned;
    world.settle();
    assert_eq!(world.places("c5"), ["s5"]);
}

#[test]
fn a_plan_of_the_solver_moves_what_is_elsewhere() {
    let world = fragmented();
    let kind = ServerKind {
        machine: "m".into(),
        nodes: 1,
        cores: 4,
        ways: 8,
        way_bytes: 10,
        classes: 8,
    };
    let named = |at: usize| Server {
        name: format!("s{at}"),
        kind: 0,
    };
    let cluster = Cluster::new(vec![kind], (0..6).map(named).collect()).expect("a cluster");
    let mut plan = Plan::new(cluster.clone());
    for (name, server) in [("c0", 0), ("c1", 0), ("c2", 4)] {
        let slo = Slo {
            name: name.into(),
            chain: std::sync::Arc::new(ChainProfile {
                name: name.into(),
                configuration: None,
                traffic: None,
                percentile: None,
                curves: vec![(*curves("m")).clone()],
            }),
            target: Target::Reserved { throughput: 1.0 },
            latency: tailwater_net::Nanos::from_millis(1),
            cap: None,
            spread: false,
            apart: None,
        };
        let request = Request::new(slo, &cluster).expect("a request");
        let at = Instance {
            server,
            node: 0,
            ways: 1,
        };
        plan.put(&request, vec![at]).expect("room");
    }
    let found = Rearrangement::from_plan(&world.view, &plan);
    let place = |name: &str| world.places(name)[0].to_owned();
    let mut expected = BTreeMap::new();
    for (name, server) in [("c0", "s0"), ("c1", "s0"), ("c2", "s4")] {
        if place(name) != server {
            expected.insert(format!("{name}-0"), server.to_owned());
        }
    }
    assert_eq!(found.servers, expected);
    assert!(expected.len() >= 2);
}

/// Eight servers of a core, each with a chain of 0.5 or 0.35 cores: one of each fit together.
#[cfg(feature = "milp")]
#[test]
fn the_solver_frees_servers_by_moves_that_servers_accept() {
    use tailwater_placement::milp::Effort;
    let sizes = [0.5, 0.5, 0.5, 0.5, 0.35, 0.35, 0.35, 0.35];
    let servers = (0..8).map(|at| server(&format!("s{at}"), 1)).collect();
    let chains = (0..8).map(|at| reserved(&format!("c{at}"), 0.8)).collect();
    let mut world = World::new(options(), exact(), servers, chains);
    world.settle();
    for (chain, size) in world.view.chains.iter_mut().zip(sizes) {
        *chain = reserved(&chain.name, size);
    }
    world.settle();
    assert_eq!(used(&world), 8);
    let effort = Effort {
        time: std::time::Duration::from_secs(5),
        threads: 1,
        ..Effort::default()
    };
    let plan = solved(&world.view, &options(), effort).expect("a plan");
    // 3.4 cores, of which 0.9 of each can be promised, in pairs of 0.85.
    assert_eq!((plan.saved(&world.view), plan.servers.len()), (4, 4), "{plan:?}");
    assert!(consolidated(&world.view, &options()).saved(&world.view) <= 4);
    let taken = world.controller.rearrange(&world.view, &plan, Saving::Servers(4));
    assert_eq!(taken, Rearranged::Taken { saved: 4, moves: 4 });
    world.settle();
    assert_eq!(used(&world), 4);
    // There is nothing more to save.
    let plan = solved(&world.view, &options(), effort).expect("a plan");
    assert_eq!(plan.saved(&world.view), 0);
}
