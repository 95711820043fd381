//! Invariants for any rack and any sequence of events. The world checks each action.

use crate::world::*;
use proptest::prelude::*;
use tailwater_net::Nanos;
use tailwater_placement::core_shares::Wanted;
use tailwater_placement::rack::*;

#[derive(Clone, Debug)]
enum Event {
    Demand(usize, u32),
    State(usize, u8),
    Fail(usize),
    Remove(usize),
    Add(usize),
    Consolidate,
    Plan(Vec<(usize, usize)>),
    Pools(usize, u8),
    Pass(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..12_usize, 0..30_u32).prop_map(|(chain, tenths)| Event::Demand(chain, tenths)),
        3 => (0..8_usize, 0..4_u8).prop_map(|(server, state)| Event::State(server, state)),
        1 => (0..20_usize).prop_map(Event::Fail),
        1 => (0..12_usize).prop_map(Event::Remove),
        1 => (0..12_usize).prop_map(Event::Add),
        1 => Just(Event::Consolidate),
        1 => proptest::collection::vec((0..20_usize, 0..8_usize), 1..6).prop_map(Event::Plan),
        2 => (0..8_usize, 0..6_u8).prop_map(|(server, pools)| Event::Pools(server, pools)),
        3 => (1..15_u8).prop_map(Event::Pass),
    ]
}

/// Pools of a server: mostly none.
fn pools(kind: u8) -> Vec<String> {
    let names: &[&str] = match kind {
        0 => &["p"],
        1 => &["q"],
        2 => &["p", "q"],
        _ => &[],
    };
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn any_chain() -> impl Strategy<Value = ChainView> {
    let latency = prop_oneof![Just(1000_u64), Just(80), Just(45), Just(9)];
    let limits = (0..3_u16, 1..8_u16, 0..3_u16, 1..3_u16);
    let pool = (0..8_u8).prop_map(|kind| pools(kind).pop());
    (0..5_u8, 0..25_u32, latency, limits, 0..3_u8, pool).prop_map(|(kind, tenths, latency, limits, machines, pool)| {
        let cores = f64::from(tenths) / 10.0;
        let mut one = if kind < 2 {
            reserved("", cores)
        } else {
            chain("", cores)
        };
        if let Some(promise) = &mut one.promise {
            promise.latency = Nanos::from_micros(latency);
            promise.curves = match machines {
                0 => vec![curves("m")],
                1 => vec![curves("n")],
                _ => vec![curves("m"), curves("n")],
            };
        }
        if kind == 4 {
            one.promise = None;
        }
        (one.least, one.most, one.redundancy, one.cores) = limits;
        one.pool = pool;
        one
    })
}

fn any_world() -> impl Strategy<Value = (Vec<ServerView>, Vec<ChainView>)> {
    let servers = proptest::collection::vec((1..5_u32, any::<bool>(), 0..6_u8), 1..8);
    let chains = proptest::collection::vec(any_chain(), 1..10);
    (servers, chains).prop_map(|(servers, mut chains)| {
        let servers = servers
            .into_iter()
            .enumerate()
            .map(|(at, (cores, other, kind))| ServerView {
                pools: pools(kind),
                machine: if other { "n".into() } else { "m".into() },
                ..server(&format!("s{at}"), cores)
            });
        for (at, chain) in chains.iter_mut().enumerate() {
            chain.name = format!("c{at}");
        }
        (servers.collect(), chains)
    })
}

fn play(
    (servers, chains): &(Vec<ServerView>, Vec<ChainView>),
    events: &[Event],
    options: RackOptions,
) -> (World<TailwaterScaling>, Vec<RackPlan>) {
    let mut world = World::new(options, TailwaterScaling::default(), servers.clone(), chains.clone());
    let mut plans = vec![world.step()];
    for event in events {
        let now = world.view.now;
        match event {
            Event::Demand(chain, tenths) => {
                let at = chain % chains.len();
                if let Some(chain) = world.view.chains.get_mut(at) {
                    chain.demand = demand(f64::from(*tenths) / 10.0);
                }
            }
            Event::State(at, state) => {
                let at = at % servers.len();
                world.view.servers[at].state = match state {
                    0 => ServerState::Lost { since: now },
                    1 => ServerState::Cordoned,
                    2 => ServerState::Draining,
                    _ => ServerState::Ready,
                };
            }
            Event::Fail(at) => {
                if let Some(instance) = world.view.instances.get_mut(*at) {
                    instance.phase = InstancePhase::Lost;
                }
            }
            Event::Remove(chain) => world.view.chains.retain(|view| view.name != format!("c{chain}")),
            Event::Add(chain) => {
                let missing = chains
                    .get(*chain)
                    .filter(|new| world.view.chains.iter().all(|old| old.name != new.name));
                world.view.chains.extend(missing.cloned());
            }
            Event::Consolidate => {
                let plan = consolidated(&world.view, &options);
                world
                    .controller
                    .rearrange(&world.view, &plan, tailwater_placement::improve::Saving::Servers(1));
            }
            Event::Plan(moves) => {
                let name = |(instance, server): &(usize, usize)| {
                    let instance = world.view.instances.get(*instance)?.name.clone();
                    Some((instance, servers[server % servers.len()].name.clone()))
                };
                let plan = Rearrangement {
                    servers: moves.iter().filter_map(name).collect(),
                };
                let least = tailwater_placement::improve::Saving::Servers(0);
                world.controller.rearrange(&world.view, &plan, least);
            }
            Event::Pools(server, kind) => world.view.servers[server % servers.len()].pools = pools(*kind),
            Event::Pass(rounds) => plans.extend((0..*rounds).map(|_| world.step())),
        }
        plans.push(world.step());
    }
    (world, plans)
}

/// Parts of what a chain misses that its controller tries.
const LEAST_PART: f64 = 0.125;

fn check_refusals(world: &World<TailwaterScaling>, plan: &RackPlan) -> Result<(), TestCaseError> {
    for chain in &world.view.chains {
        let Verdict::TooFew {
            instances,
            rate,
            wanted,
            ..
        } = &plan.verdicts[&chain.name]
        else {
            continue;
        };
        if *instances >= chain.most.max(1) {
            continue;
        }
        let on: Vec<&str> = world.places(&chain.name);
        let is_apart = usize::from(chain.redundancy) > 1;
        let missing = (wanted - rate).max(1.0);
        // A smaller part than any that is tried.
        let part = (missing * LEAST_PART / f64::from(chain.most.max(1)))
            .ceil()
            .max(wanted / 10.0);
        for server in world
            .view
            .servers
            .iter()
            .filter(|server| server.state == ServerState::Ready)
        {
            if !world.is_in_pool(&chain.name, &server.name) {
                continue;
            }
            let is_taken = is_apart && on.contains(&&*server.name);
            let (shared, others) = world.shared(&server.name, "");
            let fits = usize::from(chain.cores) <= shared.cores.len();
            if is_taken || !fits {
                continue;
            }
            let claim = world.claim(&chain.name, &server.machine, part.max(missing));
            if chain.promise.is_some() && claim.is_none() {
                continue;
            }
            let asked = Wanted {
                name: "new",
                cores: chain.cores.into(),
                claim: claim.as_ref(),
                before: &[],
            };
            let admitted = shared.admit(&others, asked);
            prop_assert!(admitted.is_err(), "{} fits on {}", chain.name, server.name);
        }
    }
    Ok(())
}

/// An instance outside its chain's pool is one that cannot move, and the verdict tells it.
fn check_pools(world: &World<TailwaterScaling>, plan: &RackPlan) -> Result<(), TestCaseError> {
    for instance in world.view.instances.iter().filter(|one| one.is_active()) {
        if !world.is_in_pool(&instance.chain, &instance.server) {
            let verdict = &plan.verdicts[&instance.chain];
            let is_told = matches!(
                verdict,
                Verdict::TooFew { .. } | Verdict::AtRisk(Risk::CannotMove { .. })
            );
            prop_assert!(is_told, "{} on {}: {:?}", instance.name, instance.server, verdict);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_events_keep_the_invariants_and_the_rack_settles(
        start in any_world(),
        events in proptest::collection::vec(event(), 0..25),
        band in prop_oneof![Just(0.0), Just(0.1), Just(0.3)],
        moves in 1..4_usize,
    ) {
        let options = RackOptions { band, moves, ..options() };
        let (mut world, _) = play(&start, &events, options);
        let plan = world.settle();
        check_refusals(&world, &plan)?;
        check_pools(&world, &plan)?;
        // The same view gives a new controller no reason for anything else, but for what it holds back.
        let mut again = RackController::new(options, TailwaterScaling::default());
        prop_assert!(again.decide(&world.view).actions.is_empty());
        for server in &world.view.servers {
            let (shared, occupants) = world.shared(&server.name, "");
            prop_assert!(shared.violations(&occupants).is_empty());
        }
    }

    #[test]
    fn equal_views_give_equal_plans(
        start in any_world(),
        events in proptest::collection::vec(event(), 0..12),
    ) {
        let (_, one) = play(&start, &events, options());
        let (_, two) = play(&start, &events, options());
        prop_assert_eq!(one, two);
    }

    #[test]
    fn a_tenth_of_the_servers_is_lost_and_placed_anew(
        number in 10..40_usize,
        load in 1..8_u32,
        seed in 0..1000_usize,
    ) {
        let servers: Vec<_> = (0..number).map(|at| server(&format!("s{at:02}"), 4)).collect();
        // At most 80 % of what the rest can promise, in parts that fit.
        let chains = (0..number * 4 * 8 * 9 / 10 / 10).map(|at| reserved(&format!("c{at:03}"), f64::from(load) / 8.0));
        let chains: Vec<_> = chains.take((number as f64 * 2.5 / (f64::from(load) / 8.0)) as usize).collect();
        let mut world = World::new(options(), exact(), servers, chains);
        world.settle();
        let since = world.view.now;
        let lost = number / 10;
        for at in 0..lost {
            world.view.servers[(seed + at * 7) % number].state = ServerState::Lost { since };
        }
        let plan = world.settle();
        for (name, verdict) in &plan.verdicts {
            prop_assert!(matches!(verdict, Verdict::Placed { .. }), "{}: {:?}", name, verdict);
        }
    }
}
