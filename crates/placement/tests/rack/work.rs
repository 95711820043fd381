//! Work of a round for a large rack, as counts.

use crate::world::*;
use tailwater_net::Nanos;
use tailwater_placement::rack::*;

/// A rack of 1,000 servers with 2,000 chains.
fn large() -> World<TailwaterScaling> {
    let servers = (0..1000).map(|at| server(&format!("s{at:04}"), 8)).collect();
    let chains = (0..2000).map(|at| chain(&format!("c{at:04}"), 0.2 + f64::from(at % 20) / 10.0));
    let options = RackOptions { moves: 16, ..options() };
    World::new(options, exact(), servers, chains.collect())
}

#[test]
fn a_round_of_a_large_rack_predicts_only_where_something_changes() {
    let mut world = large();
    let plan = world.step();
    let actions = plan.actions.len() as u64;
    assert!(actions >= 2000, "{actions}");
    // The first placement: a few predictions of one server for each instance.
    assert!(plan.work.predicted < 4 * actions, "{:?} for {actions}", plan.work);
    assert!(plan.work.compared < 30 * actions, "{:?} for {actions}", plan.work);
    world.step();
    let plan = world.step();
    assert_eq!((plan.actions.len(), plan.work), (0, RackWork::default()));
    // A tenth of the chains gets more load.
    for chain in world.view.chains.iter_mut().step_by(10) {
        chain.demand = demand(chain.demand.offered / CORE * 1.2);
    }
    let plan = world.step();
    let actions = plan.actions.len() as u64;
    assert!((200..400).contains(&actions), "{actions}");
    assert!(plan.work.predicted < 6 * actions, "{:?} for {actions}", plan.work);
    world.step();
    // A hundredth of the servers is lost.
    for server in world.view.servers.iter_mut().take(10) {
        server.state = ServerState::Lost { since: Nanos(0) };
    }
    let plan = world.step();
    let actions = plan.actions.len() as u64;
    assert!((50..500).contains(&actions), "{actions}");
    assert!(plan.work.predicted < 8 * actions, "{:?} for {actions}", plan.work);
}

#[test]
fn a_full_rack_refuses_without_a_prediction_of_each_server() {
    let mut world = World::new(
        options(),
        exact(),
        (0..200).map(|at| server(&format!("s{at:03}"), 2)).collect(),
        (0..600).map(|at| reserved(&format!("c{at:03}"), 0.7)).collect(),
    );
    let first = world.step();
    let refused = first
        .verdicts
        .values()
        .filter(|verdict| matches!(verdict, Verdict::TooFew { .. }))
        .count();
    assert!(refused >= 100, "{refused}");
    assert!(first.work.predicted < 3000, "{:?}", first.work);
    assert_eq!(first.work.explained, 8);
    // Explanations follow, a few in each round, until all have one.
    let plan = world.settle();
    assert!(plan.work.predicted < 3000, "{:?}", plan.work);
}
