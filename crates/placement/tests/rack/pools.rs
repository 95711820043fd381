//! Pools of servers: chains stay in theirs.

use crate::world::*;
use std::collections::BTreeMap;
use tailwater_placement::improve::Saving;
use tailwater_placement::rack::*;

/// Servers `s0`, `s1` and so on of a core each, in these pools.
fn servers(pools: &[&[&str]]) -> Vec<ServerView> {
    let server = |(at, pools): (usize, &&[&str])| ServerView {
        pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
        ..server(&format!("s{at}"), 1)
    };
    pools.iter().enumerate().map(server).collect()
}

fn in_pool(pool: Option<&str>, chain: ChainView) -> ChainView {
    ChainView {
        pool: pool.map(str::to_owned),
        ..chain
    }
}

#[test]
fn chains_use_servers_of_their_pool_and_those_without_one_the_others() {
    let servers = servers(&[&[], &["p"], &["p", "q"]]);
    let chains = vec![
        in_pool(Some("p"), reserved("a", 1.2)),
        in_pool(Some("q"), reserved("b", 0.2)),
        in_pool(None, reserved("c", 1.2)),
        in_pool(Some("gone"), reserved("d", 0.1)),
        in_pool(
            Some("p"),
            ChainView {
                promise: None,
                ..chain("e", 0.1)
            },
        ),
    ];
    let mut world = World::new(options(), exact(), servers, chains);
    let plan = world.settle();
    assert_eq!(world.places("a"), ["s1", "s2"]);
    assert_eq!(world.places("b"), ["s2"]);
    assert_eq!(world.places("c"), ["s0"]);
    assert!(world.places("d").is_empty());
    assert!(["s1", "s2"].contains(&world.places("e")[0]));
    for (chain, is_placed) in [("a", true), ("b", true), ("c", false), ("d", false), ("e", true)] {
        let verdict = &plan.verdicts[chain];
        assert_eq!(
            matches!(verdict, Verdict::Placed { .. }),
            is_placed,
            "{chain}: {verdict:?}"
        );
    }
}

#[test]
fn an_instance_leaves_a_server_that_left_its_pool_when_its_replacement_is_ready() {
    let mut world = World::new(
        options(),
        exact(),
        servers(&[&["p"], &["p"], &[]]),
        vec![in_pool(Some("p"), reserved("a", 0.4))],
    );
    world.settle();
    assert_eq!(world.places("a"), ["s0"]);
    world.server("s0").pools.clear();
    let plan = world.step();
    let RackAction::Create(new) = &plan.actions[0] else {
        panic!("{plan:?}")
    };
    let is_move = new.replaces.as_deref() == Some("a-0") && new.server == "s1";
    assert!(
        is_move && new.reason == CreateReason::Pool && plan.actions.len() == 1,
        "{plan:?}"
    );
    world.settle();
    assert_eq!(world.places("a"), ["s1"]);
    // Nothing is left of the pool: the instance stays, and gets no more.
    world.server("s1").pools.clear();
    *world.chain("a") = in_pool(Some("p"), reserved("a", 0.8));
    let plan = world.settle();
    assert_eq!((world.places("a"), world.promised("a")), (vec!["s1"], 0.4e6));
    let Verdict::TooFew { rate, wanted, .. } = plan.verdicts["a"] else {
        panic!("{plan:?}")
    };
    assert_eq!((rate, wanted), (0.4e6, 0.8e6));
    *world.chain("a") = in_pool(Some("p"), reserved("a", 0.4));
    let plan = world.settle();
    assert!(matches!(plan.verdicts["a"], Verdict::AtRisk(Risk::CannotMove { .. })));
    // A lost one is not replaced.
    let since = world.view.now;
    world.server("s1").state = ServerState::Lost { since };
    world.settle();
    assert!(world.of("a").is_empty());
}

/// Four servers with a third of a core used: `s0` and `s1` in a pool, the others in none.
fn loose() -> World<TailwaterScaling> {
    let pool = |at| (at < 2).then_some("p");
    let chains = (0..4).map(|at| in_pool(pool(at), reserved(&format!("c{at}"), 0.8)));
    let servers = servers(&[&["p"], &["p"], &[], &[]]);
    let mut world = World::new(options(), exact(), servers, chains.collect());
    world.settle();
    for (at, chain) in world.view.chains.iter_mut().enumerate() {
        *chain = in_pool(pool(at), reserved(&chain.name, 0.3));
    }
    world.settle();
    world
}

fn check(world: &World<TailwaterScaling>, plan: &Rearrangement) {
    for (instance, server) in &plan.servers {
        let chain = instance.trim_end_matches("-0");
        assert!(world.is_in_pool(chain, server), "{plan:?}");
    }
}

#[test]
fn better_plans_stay_within_the_pools() {
    let mut world = loose();
    let plan = consolidated(&world.view, &options());
    check(&world, &plan);
    // Without pools, four thirds of a core need two servers as well; with them, it is one of each.
    assert_eq!(plan.saved(&world.view), 2);
    let across: BTreeMap<String, String> = ["c0-0", "c1-0"]
        .map(|instance| (instance.to_owned(), "s3".to_owned()))
        .into();
    let wrong = Rearrangement { servers: across };
    let taken = world.controller.rearrange(&world.view, &wrong, Saving::Servers(0));
    assert_eq!(taken, Rearranged::TooLittle { saved: 0 });
    // A server that leaves the pool is no target any more.
    let plan = world.controller.rearrange(&world.view, &plan, Saving::Servers(2));
    assert_eq!(plan, Rearranged::Taken { saved: 2, moves: 2 });
    world.settle();
    let mut used: Vec<&str> = world.view.instances.iter().map(|one| &*one.server).collect();
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), 2);
}

#[cfg(feature = "milp")]
#[test]
fn the_solver_stays_within_the_pools() {
    use tailwater_placement::milp::Effort;
    let world = loose();
    let effort = Effort {
        time: std::time::Duration::from_secs(5),
        threads: 1,
        ..Effort::default()
    };
    let plan = solved(&world.view, &options(), effort).expect("a plan");
    check(&world, &plan);
    assert_eq!(plan.saved(&world.view), 2, "{plan:?}");
}
