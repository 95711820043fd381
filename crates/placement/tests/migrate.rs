//! The way from one plan to another, step by step.

use std::collections::BTreeMap;
use tailwater_placement::check::check;
use tailwater_placement::cluster::Cluster;
use tailwater_placement::greedy::ResqGreedy;
use tailwater_placement::migrate::{Migration, MigrationError, Step, aligned, migration};
use tailwater_placement::plan::{Instance, Placed, Plan};
use tailwater_placement::published::{LPM, MIXES, server, slos};
use tailwater_placement::schedule::{Request, Scheduler};
use tailwater_placement::slo::{Slo, Target};
use tailwater_placement::tailwater::Tailwater;

fn placed(scheduler: &dyn Scheduler, cluster: &Cluster, slos: &[Slo]) -> Plan {
    let mut plan = Plan::new(cluster.clone());
    for slo in slos {
        let request = Request::new(slo.clone(), cluster).expect("a server holds it");
        let instances = scheduler.place(&plan, &request).expect("room");
        plan.put(&request, instances).expect("room");
    }
    plan
}

/// Takes all steps, with no promise broken after any of them, and arrives.
fn taken(from: &Plan, to: &Plan, migration: &Migration) {
    let mut now: BTreeMap<String, Placed> = BTreeMap::new();
    now.extend(
        from.placed()
            .map(|placed| (placed.slo.name.clone(), placed.clone())),
    );
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
        assert_eq!(
            (check(&cluster, near.placed()), near.active()),
            (vec![], to.active())
        );
        let shorter = migration(&from, &near).expect("a way");
        taken(&from, &near, &shorter);
        assert!(shorter.moved < way.moved, "{} {}", shorter.moved, way.moved);
        let none = migration(&to, &to).expect("a way");
        assert_eq!((none.steps.len(), none.moved), (0, 0));
    }
}

/// Two servers of which each is full of what the other is to have.
fn exchanged(servers: usize) -> (Plan, Plan) {
    let cluster = Cluster::uniform(server(), servers).expect("servers");
    let mut slos = slos(("two", &[LPM], 2)).expect("curves");
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
