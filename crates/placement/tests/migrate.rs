//! Migration from one plan to another, step by step.

use std::collections::BTreeMap;
use tailwater_baselines::schedulers::ResqGreedy;
use tailwater_placement::check::check;
use tailwater_placement::cluster::Cluster;
use tailwater_placement::improve::{Proposal, Saving, proposal};
use tailwater_placement::migrate::{Migration, MigrationError, Step, aligned, migration};
use tailwater_placement::plan::{Instance, Placed, Plan};
use tailwater_placement::published::{LPM, MIXES, Mix, server, slos};
use tailwater_placement::schedule::{Request, Scheduler, place_all};
use tailwater_placement::slo::{Slo, Target};
use tailwater_placement::tailwater::Tailwater;

fn placed(scheduler: &dyn Scheduler, cluster: &Cluster, slos: &[Slo]) -> Plan {
    let mut plan = Plan::new(cluster.clone());
    let slos = slos.iter().cloned();
    let requests: Vec<Request> = slos
        .map(|slo| Request::new(slo, cluster).expect("a server holds it"))
        .collect();
    place_all(scheduler, &mut plan, &requests).expect("room");
    plan
}

/// Takes all steps, checks that no SLO is violated after any of them, and that the target is reached.
fn taken(from: &Plan, to: &Plan, migration: &Migration) {
    let mut now: BTreeMap<String, Placed> = BTreeMap::new();
    now.extend(from.placed().map(|placed| (placed.slo.name.clone(), placed.clone())));
    for step in &migration.steps {
        let (Step::Start { slo, .. } | Step::Resize { slo, .. } | Step::Drain { slo, .. }) = step;
        let instances = &mut now.get_mut(slo).expect("an SLO of the plan").instances;
        let place = |at| instances.iter().position(|i| *i == at).expect("what runs");
        match *step {
            Step::Start { at, .. } => instances.push(at),
            Step::Resize { at, to, .. } => {
                let number = place(at);
                instances[number].ways = to;
            }
            Step::Drain { at, .. } => {
                let number = place(at);
                instances.remove(number);
            }
        }
        assert_eq!(check(from.cluster(), now.values()), [], "{step:?}");
    }
    for target in to.placed() {
        let instances = &mut now.get_mut(&target.slo.name).expect("an SLO").instances;
        instances.sort_unstable();
        assert_eq!(*instances, target.instances);
    }
}

#[test]
fn from_resqs_plan_to_a_better_one_no_promise_is_broken() {
    for mix in MIXES {
        let cluster = Cluster::uniform(server(), 46).expect("servers");
        let mut slos = slos(mix).expect("curves");
        for (i, slo) in slos.iter_mut().enumerate() {
            slo.spread = i % 3 == 0;
            slo.apart = (i % 10 == 0).then(|| format!("group-{}", i % 4));
        }
        let from = placed(&ResqGreedy, &cluster, &slos);
        slos.reverse();
        let to = placed(&Tailwater, &cluster, &slos);
        let way = migration(&from, &to).expect("a way");
        assert!(way.moved > 0 && way.steps.len() >= way.moved);
        taken(&from, &to, &way);
        let near = aligned(&from, &to);
        assert_eq!((check(&cluster, near.placed()), near.active()), (vec![], to.active()));
        let shorter = migration(&from, &near).expect("a way");
        taken(&from, &near, &shorter);
        assert!(shorter.moved < way.moved, "{} {}", shorter.moved, way.moved);
        let none = migration(&to, &to).expect("a way");
        assert_eq!((none.steps.len(), none.moved), (0, 0));
    }
}

/// Returns plans for full servers that exchange all of their instances.
fn exchanged(servers: usize) -> (Plan, Plan) {
    let cluster = Cluster::uniform(server(), servers).expect("servers");
    let mut slos = slos(Mix {
        name: "two",
        functions: &[LPM],
        slos: 2,
    })
    .expect("curves");
    for slo in &mut slos {
        // All cores of a server.
        slo.target = Target::Reserved {
            throughput: LPM.rate() * 0.97 * 0.87 * 9.0 * 0.999,
        };
    }
    let all = |server: usize| {
        vec![
            Instance {
                server,
                node: 0,
                ways: 2
            };
            9
        ]
    };
    let plan = |servers: [usize; 2]| {
        let mut plan = Plan::new(cluster.clone());
        for (slo, server) in slos.iter().zip(servers) {
            let request = Request::new(slo.clone(), &cluster).expect("a server holds it");
            plan.put(&request, all(server)).expect("room");
        }
        assert_eq!(check(&cluster, plan.placed()), []);
        plan
    };
    (plan([0, 1]), plan([1, 0]))
}

#[test]
fn what_waits_for_each_other_stops_at_an_empty_server() {
    let (from, to) = exchanged(12);
    let way = migration(&from, &to).expect("a way");
    taken(&from, &to, &way);
    assert!(way.steps.len() > 2 * way.moved, "some stood aside");
}

#[test]
fn without_any_room_there_is_no_way() {
    let (from, to) = exchanged(2);
    assert_eq!(migration(&from, &to), Err(MigrationError::Stuck(2)));
}

#[test]
fn a_better_plan_is_proposed_only_if_it_saves_enough() {
    let cluster = Cluster::uniform(server(), 50).expect("servers");
    let slos = slos(MIXES[1]).expect("curves");
    let from = placed(&ResqGreedy, &cluster, &slos);
    let to = placed(&Tailwater, &cluster, &slos);
    assert_eq!((from.active(), to.active()), (35, 29));
    // Six of 35 servers are 17.1 percent.
    for least in [Saving::Servers(1), Saving::Servers(6), Saving::Percent(17.0)] {
        let Proposal::Worth { plan, migration, saved } = proposal(&from, &to, least) else {
            panic!("{least:?}");
        };
        assert_eq!((saved, plan.active()), (6, 29));
        taken(&from, &plan, &migration);
    }
    for least in [Saving::Servers(7), Saving::Percent(18.0)] {
        let found = proposal(&from, &to, least);
        assert_eq!(found, Proposal::TooLittle { saved: 6 }, "{least:?}");
    }
    // A saving of zero never suffices.
    let none = proposal(&to, &from, Saving::Percent(0.0));
    assert_eq!(none, Proposal::TooLittle { saved: 0 });
    let (from, to) = exchanged(2);
    assert!(matches!(
        proposal(&from, &to, Saving::Servers(1)),
        Proposal::TooLittle { saved: 0 }
    ));
}

#[test]
fn an_on_demand_slo_never_has_more_than_its_most() {
    let cluster = Cluster::uniform(server(), 3).expect("servers");
    for (most, moves) in [(1, false), (2, true)] {
        let mut slo = slos(Mix {
            name: "one",
            functions: &[LPM],
            slos: 1,
        })
        .expect("curves")
        .remove(0);
        slo.target = Target::OnDemand { most };
        let at = |server| {
            let mut plan = Plan::new(cluster.clone());
            let request = Request::new(slo.clone(), &cluster).expect("a server holds it");
            let ways = 2;
            let node = 0;
            plan.put(&request, vec![Instance { server, node, ways }]).expect("room");
            plan
        };
        let (from, to) = (at(0), at(1));
        match migration(&from, &to) {
            Ok(way) => taken(&from, &to, &way),
            Err(error) => assert_eq!(error, MigrationError::Stuck(1)),
        }
        assert_eq!(migration(&from, &to).is_ok(), moves);
    }
}

#[test]
fn on_demand_slos_at_their_most_stay_while_others_save_servers() {
    let cluster = Cluster::uniform(server(), 50).expect("servers");
    let mut slos = slos(MIXES[1]).expect("curves");
    for slo in slos.iter_mut().step_by(40) {
        slo.target = Target::OnDemand { most: 1 };
    }
    let from = placed(&ResqGreedy, &cluster, &slos);
    slos.reverse();
    let to = placed(&Tailwater, &cluster, &slos);
    match proposal(&from, &to, Saving::Servers(1)) {
        Proposal::Worth { plan, migration, .. } => {
            taken(&from, &plan, &migration);
            for old in from.placed() {
                if matches!(old.slo.target, Target::OnDemand { .. }) {
                    let new = plan.get(&old.slo.name).expect("the same SLOs");
                    assert_eq!(new.instances, old.instances);
                }
            }
        }
        // Full servers may have no temporary places. Then no migration that would violate an SLO is proposed.
        Proposal::NoWay { why, .. } => assert!(matches!(why, MigrationError::Stuck(_)), "{why}"),
        Proposal::TooLittle { saved } => panic!("{saved}"),
    }
}
