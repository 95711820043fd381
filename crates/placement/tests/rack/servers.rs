//! Tables: servers that are lost, cordoned or drained, and instances that fail.

use crate::world::*;
use tailwater_net::Nanos;
use tailwater_placement::admit::Reason;
use tailwater_placement::plan::Resource;
use tailwater_placement::rack::*;

fn two(chains: Vec<ChainView>) -> World<TailwaterScaling> {
    World::new(options(), exact(), vec![server("s0", 2), server("s1", 2)], chains)
}

#[test]
fn instances_of_a_lost_server_are_placed_anew_after_a_grace_period() {
    let mut world = two(vec![chain("a", 0.7), reserved("b", 0.5), reserved("c", 0.8)]);
    world.settle();
    assert_eq!(
        (world.places("a"), world.places("b"), world.places("c")),
        (vec!["s1"], vec!["s0"], vec!["s0"])
    );
    let since = world.view.now;
    world.server("s0").state = ServerState::Lost { since };
    for second in 0..3 {
        assert!(world.step().actions.is_empty(), "after {second} s");
    }
    let plan = world.step();
    let deleted = |name: &str| RackAction::Delete {
        instance: name.into(),
        reason: DeleteReason::ServerLost,
    };
    assert_eq!(plan.actions[..2], [deleted("b-0"), deleted("c-0")]);
    let new: Vec<_> = plan.actions[2..]
        .iter()
        .map(|action| match action {
            RackAction::Create(new) => (&*new.name, &*new.server, new.rate, new.reason),
            action => panic!("{action:?}"),
        })
        .collect();
    let lost = |name, rate| (name, "s1", rate, CreateReason::Lost);
    assert_eq!(new, [lost("b-1", 0.5e6), lost("c-1", 0.4e6), lost("c-2", 0.2e6)]);
    // The missing part does not fit any more, until the server is back.
    let plan = world.settle();
    assert!(matches!(plan.verdicts["c"], Verdict::TooFew { .. }), "{plan:?}");
    world.server("s0").state = ServerState::Ready;
    let plan = world.settle();
    assert_eq!(world.promised("c"), 0.8e6);
    assert!(matches!(plan.verdicts["c"], Verdict::Placed { .. }), "{plan:?}");
}

#[test]
fn chains_that_lost_instances_come_before_others() {
    let mut world = World::new(
        options(),
        exact(),
        vec![server("s0", 1), server("s1", 1)],
        vec![chain("z", 0.8)],
    );
    world.settle();
    world.view.servers.remove(0);
    world.view.chains.push(reserved("a", 0.8));
    let plan = world.step();
    let create = plan.actions.iter().find_map(|action| match action {
        RackAction::Create(new) => Some((&*new.chain, new.rate)),
        _ => None,
    });
    assert_eq!(create, Some(("z", 0.8e6)));
    assert!(matches!(plan.verdicts["a"], Verdict::TooFew { .. }));
}

#[test]
fn a_failed_instance_is_replaced() {
    let mut world = two(vec![chain("a", 0.5)]);
    world.settle();
    world.view.instances[0].phase = InstancePhase::Lost;
    let plan = world.step();
    let deleted = RackAction::Delete {
        instance: "a-0".into(),
        reason: DeleteReason::Failed,
    };
    assert_eq!(plan.actions[0], deleted);
    assert!(matches!(&plan.actions[1], RackAction::Create(new) if new.reason == CreateReason::Lost));
    assert_eq!(plan.actions.len(), 2);
}

#[test]
fn an_instance_that_failed_is_not_created_on_the_same_server_for_a_while() {
    let mut world = two(vec![chain("a", 0.5)]);
    world.settle();
    assert_eq!(world.places("a"), ["s0"]);
    // There is no other server: it waits.
    world.server("s1").state = ServerState::Cordoned;
    world.view.instances[0].phase = InstancePhase::Lost;
    world.step();
    assert!(world.places("a").is_empty());
    world.settle();
    assert_eq!(world.places("a"), ["s0"]);
    // There is one.
    world.server("s1").state = ServerState::Ready;
    world.view.instances[0].phase = InstancePhase::Lost;
    world.step();
    assert_eq!(world.places("a"), ["s1"]);
}

#[test]
fn a_cordoned_server_keeps_its_instances_and_gets_none() {
    let mut world = two(vec![chain("a", 0.5)]);
    world.settle();
    world.server("s0").state = ServerState::Cordoned;
    assert!(world.settle().actions.is_empty());
    // In place it still grows.
    world.chain("a").demand = demand(0.9);
    world.view.chains.push(chain("b", 0.2));
    world.settle();
    assert_eq!(
        (world.places("a"), world.places("b"), world.promised("a")),
        (vec!["s0"], vec!["s1"], 0.9e6)
    );
}

#[test]
fn a_server_is_drained_a_few_instances_at_a_time_and_ready_ones_come_first() {
    let chains: Vec<_> = (0..5).map(|at| chain(&format!("c{at}"), 0.2)).collect();
    let mut world = two(chains);
    world.settle();
    world.server("s0").state = ServerState::Draining;
    world.delay = 2;
    let plan = world.step();
    assert_eq!(plan.actions.len(), 2, "{plan:?}");
    for action in &plan.actions {
        let RackAction::Create(new) = action else {
            panic!("{action:?}");
        };
        assert_eq!(
            (new.reason, &*new.server, new.rate),
            (CreateReason::ServerDrain, "s1", 0.2e6)
        );
        assert_eq!(new.replaces.as_deref(), Some(&*format!("{}-0", new.chain)));
    }
    // Both have to be ready.
    assert!(world.step().actions.is_empty());
    let plan = world.step();
    let replaced = |action: &RackAction| {
        matches!(
            action,
            RackAction::Drain {
                reason: DrainReason::Replaced,
                ..
            }
        )
    };
    assert!(plan.actions.len() == 2 && plan.actions.iter().all(replaced), "{plan:?}");
    world.settle();
    for at in 0..5 {
        assert_eq!(world.places(&format!("c{at}")), ["s1"]);
    }
}

#[test]
fn an_instance_stays_on_a_draining_server_while_no_other_has_room() {
    let mut world = two(vec![reserved("a", 0.9), reserved("b", 0.9), reserved("c", 0.9)]);
    world.settle();
    world.server("s1").state = ServerState::Draining;
    world.server("s0").state = ServerState::Cordoned;
    let plan = world.settle();
    let risk = Risk::CannotMove {
        instance: "c-0".into(),
        reason: Reason::Room(vec![Resource::Servers]),
    };
    assert_eq!(plan.verdicts["c"], Verdict::AtRisk(risk));
    assert_eq!(world.places("c"), ["s1"]);
}

#[test]
fn redundancy_survives_moves() {
    let twice = ChainView {
        redundancy: 2,
        ..chain("a", 0.4)
    };
    let mut world = World::new(
        options(),
        exact(),
        (0..2).map(|at| server(&format!("s{at}"), 4)).collect(),
        vec![twice],
    );
    world.settle();
    world.server("s0").state = ServerState::Draining;
    let plan = world.settle();
    assert_eq!(world.places("a"), ["s0", "s1"]);
    assert!(matches!(plan.verdicts["a"], Verdict::AtRisk(Risk::CannotMove { .. })));
    world.view.servers.push(server("s2", 4));
    world.settle();
    assert_eq!(world.places("a"), ["s1", "s2"]);
}

#[test]
fn a_chain_that_is_gone_ends() {
    let mut world = two(vec![chain("a", 0.5)]);
    world.settle();
    world.view.chains.clear();
    let plan = world.step();
    let drained = RackAction::Drain {
        instance: "a-0".into(),
        reason: DrainReason::ChainGone,
    };
    assert_eq!(plan.actions, [drained]);
    world.settle();
    assert!(world.view.instances.is_empty());
    // One that has not started is removed at once.
    world.view.chains.push(chain("b", 0.5));
    world.delay = 9;
    world.step();
    world.view.chains.clear();
    let plan = world.step();
    let cancelled = RackAction::Delete {
        instance: "b-0".into(),
        reason: DeleteReason::Cancelled,
    };
    assert_eq!(plan.actions, [cancelled]);
}

#[test]
fn cores_that_a_server_has_not_reported_are_predicted() {
    let mut world = two(vec![reserved("a", 0.6), reserved("b", 0.6)]);
    world.step();
    world.view.instances.iter_mut().for_each(|one| one.cores.clear());
    world.view.chains.push(reserved("c", 0.3));
    world.view.chains.push(reserved("d", 0.9));
    let plan = world.controller.decide(&world.view);
    let servers = plan.actions.iter().map(|action| match action {
        RackAction::Create(new) => (&*new.name, &*new.server),
        action => panic!("{action:?}"),
    });
    assert_eq!(servers.collect::<Vec<_>>(), [("c-0", "s0"), ("d-0", "s1")]);
}

#[test]
fn a_new_controller_goes_on_from_the_view() {
    let mut world = two(vec![chain("a", 0.5), reserved("b", 0.5)]);
    world.settle();
    world.server("s0").state = ServerState::Draining;
    world.step();
    for _ in 0..20 {
        world.controller = RackController::new(options(), exact());
        world.step();
    }
    assert_eq!((world.places("a"), world.places("b")), (vec!["s1"], vec!["s1"]));
    assert_eq!(world.view.instances.len(), 2);
    world.server("s0").state = ServerState::Lost { since: Nanos(0) };
    assert!(world.settle().actions.is_empty());
}
