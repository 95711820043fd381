//! Partly completed migrations, while servers, SLOs and rooms change.

use std::collections::BTreeMap;
use tailwater_baselines::schedulers::ResqGreedy;
use tailwater_placement::admit::Answer;
use tailwater_placement::check::check;
use tailwater_placement::cluster::{Cluster, Server};
use tailwater_placement::migrate::migration;
use tailwater_placement::plan::{Placed, Plan};
use tailwater_placement::progress::{Action, DoneError, NamedStep, Pending, Resumed, Stopped, abandon, resume};
use tailwater_placement::published::{MIXES, server, slos};
use tailwater_placement::reconcile::{Course, Earlier, Reconciled, reconcile};
use tailwater_placement::schedule::{Request, Scheduler, place_all};
use tailwater_placement::slo::{Slo, Target};
use tailwater_placement::tailwater::Tailwater;

/// Returns SLOs of a mix, some of them with anti-affinity rules.
fn some(count: usize) -> Vec<Slo> {
    let mut slos = slos(MIXES[1]).expect("curves");
    slos.truncate(count);
    for (i, slo) in slos.iter_mut().enumerate() {
        slo.spread = i % 4 == 0;
        slo.apart = (i % 7 == 0).then(|| "group".to_owned());
    }
    slos
}

fn placed(scheduler: &dyn Scheduler, cluster: &Cluster, slos: &[Slo]) -> Plan {
    let mut plan = Plan::new(cluster.clone());
    let requests: Vec<Request> = slos
        .iter()
        .map(|slo| Request::new(slo.clone(), cluster).expect("a server holds it"))
        .collect();
    place_all(scheduler, &mut plan, &requests).expect("room");
    plan
}

/// Returns a plan, and a migration to another one.
fn way(servers: usize, count: usize) -> (Vec<Slo>, Plan, Plan, Pending) {
    let cluster = Cluster::uniform(server(), servers).expect("servers");
    let mut slos = some(count);
    let from = placed(&ResqGreedy, &cluster, &slos);
    slos.reverse();
    let to = placed(&Tailwater, &cluster, &slos);
    let way = migration(&from, &to).expect("a way");
    let pending = Pending::new(&way, &cluster, &Pending::default());
    assert!(pending.steps.len() > 10, "{}", pending.steps.len());
    (slos, from, to, pending)
}

fn without(cluster: &Cluster, lost: usize) -> Cluster {
    let mut servers: Vec<Server> = cluster.servers().to_vec();
    servers.remove(lost);
    Cluster::new(cluster.kinds().to_vec(), servers).expect("servers")
}

/// Takes steps one by one, and checks that each matches a running instance and that all SLOs are met after it.
fn taken(plan: &Plan, steps: &[NamedStep]) -> BTreeMap<String, Placed> {
    let placed = plan.placed();
    let mut now: BTreeMap<String, Placed> = placed.map(|placed| (placed.slo.name.clone(), placed.clone())).collect();
    let servers = plan.cluster().servers();
    for step in steps {
        let found = servers.iter().position(|s| s.name == step.server);
        let server = found.expect("a server of the cluster");
        let instances = &mut now.get_mut(&step.slo).expect("an SLO").instances;
        let is = |i: &tailwater_placement::plan::Instance| (i.server, i.node, i.ways) == (server, step.node, step.ways);
        let place = instances.iter().position(is);
        match step.step {
            Action::Start => instances.push(tailwater_placement::plan::Instance {
                server,
                node: step.node,
                ways: step.ways,
            }),
            Action::Resize => instances[place.expect("what runs")].ways = step.to.expect("ways"),
            Action::Drain => {
                instances.remove(place.expect("what runs"));
            }
        }
        assert_eq!(check(plan.cluster(), now.values()), [], "{step:?}");
    }
    now
}

/// Returns the state after the steps, on a cluster.
fn after(from: &Plan, pending: &Pending, done: usize, cluster: &Cluster, slos: &[Slo]) -> (Reconciled, Pending) {
    let (mut earlier, mut pending) = (Earlier::all(from), pending.clone());
    if done > 0 {
        pending.done(done as u64, &mut earlier).expect("steps");
    }
    let outcome = reconcile(cluster, &earlier, slos, &[], &Tailwater);
    (outcome, pending)
}

#[test]
fn from_every_step_it_goes_on_to_its_end() {
    let (slos, from, to, pending) = way(24, 60);
    for done in 0..=pending.steps.len() {
        let (outcome, left) = after(&from, &pending, done, from.cluster(), &slos);
        let mut answers = outcome.answers.iter();
        assert!(answers.all(|a| a.course == Course::Kept && a.moved == 0));
        let resumed = resume(&outcome.plan, &left);
        assert_eq!(resumed.stopped, BTreeMap::new());
        assert_eq!(resumed.pending.done, done);
        assert_eq!(resumed.pending.first, done as u64 + 1);
        assert_eq!(resumed.pending.steps, pending.steps[done..]);
        let now = taken(&outcome.plan, &resumed.pending.steps);
        for target in to.placed() {
            let mut instances = now[&target.slo.name].instances.clone();
            instances.sort_unstable();
            assert_eq!(instances, target.instances);
        }
    }
}

#[test]
fn after_every_step_any_server_may_vanish() {
    let (slos, from, _, pending) = way(12, 24);
    let cluster = from.cluster();
    let (mut stopped, mut left) = (0, 0);
    for done in 0..=pending.steps.len() {
        for lost in 0..cluster.servers().len() {
            let gone = &cluster.servers()[lost].name;
            let fewer = without(cluster, lost);
            let (outcome, before) = after(&from, &pending, done, &fewer, &slos);
            assert_eq!(check(&fewer, outcome.plan.placed()), []);
            // Each SLO is placed as reported, or denied and not placed.
            for answered in &outcome.answers {
                let placed = outcome.plan.get(&answered.name).map(|p| &p.instances);
                match &answered.answer {
                    Answer::Admitted(instances) => assert_eq!(placed, Some(instances)),
                    Answer::Denied(_) => assert_eq!(placed, None),
                }
            }
            let Resumed { pending, stopped: s } = resume(&outcome.plan, &before);
            let now = taken(&outcome.plan, &pending.steps);
            for step in &pending.steps {
                assert_ne!(step.server, *gone);
                assert!(!s.contains_key(&step.slo) || step.step == Action::Drain);
            }
            // Every SLO with steps either completes its migration, or is reported as stopped.
            for step in before.steps.iter().filter(|step| !s.contains_key(&step.slo)) {
                let is_gone = step.step == Action::Drain && !pending.steps.contains(step);
                assert!(is_gone || pending.steps.contains(step), "{step:?}");
            }
            // Numbers refer to the same steps as before, or were never used.
            if pending.steps != before.steps {
                let last = before.numbered().last().map(|(number, _)| number);
                assert!(Some(pending.first) > last);
            }
            // The stored form reads back equal, and continues in the same way.
            let again = resume(&outcome.plan, &pending);
            assert_eq!((&again.pending, again.stopped), (&pending, BTreeMap::new()));
            stopped += s.len();
            left += pending.steps.len();
            drop(now);
        }
    }
    assert!(stopped > 0 && left > 0, "{stopped} {left}");
}

#[test]
fn what_is_new_may_take_the_room_and_then_the_rest_is_told() {
    let (mut slos, from, _, pending) = way(24, 60);
    // As many additional SLOs as there is room for.
    for (i, mut slo) in some(200).into_iter().enumerate() {
        slo.name = format!("new-{i}");
        (slo.spread, slo.apart) = (false, None);
        slos.push(slo);
    }
    let (outcome, left) = after(&from, &pending, 3, from.cluster(), &slos);
    let resumed = resume(&outcome.plan, &left);
    taken(&outcome.plan, &resumed.pending.steps);
    let mut why = resumed.stopped.values();
    assert!(why.any(|why| matches!(why, Stopped::Room(_))));
}

#[test]
fn abandoned_it_ends_with_drains_of_what_has_its_successor() {
    let (slos, from, _, pending) = way(24, 60);
    let mut drained = 0;
    for done in 0..=pending.steps.len() {
        let (outcome, left) = after(&from, &pending, done, from.cluster(), &slos);
        let ended = abandon(&outcome.plan, &left);
        taken(&outcome.plan, &ended.pending.steps);
        assert!(ended.pending.steps.iter().all(|s| s.step == Action::Drain));
        drained += ended.pending.steps.len();
    }
    assert!(drained > 0);
}

#[test]
fn slos_that_left_or_changed_do_not_stop_others() {
    let (mut slos, from, _, pending) = way(24, 60);
    let first = pending.steps[0].slo.clone();
    slos.retain(|slo| slo.name != first);
    let second = pending.steps.iter().find(|step| step.slo != first);
    let second = second.expect("another").slo.clone();
    for slo in slos.iter_mut().filter(|slo| slo.name == second) {
        if let Target::Reserved { throughput } = &mut slo.target {
            *throughput *= 2.0;
        }
    }
    let (outcome, left) = after(&from, &pending, 0, from.cluster(), &slos);
    let resumed = resume(&outcome.plan, &left);
    taken(&outcome.plan, &resumed.pending.steps);
    assert_eq!(resumed.stopped.get(&first), Some(&Stopped::Unplaced));
    assert!(!resumed.pending.steps.is_empty());
}

#[test]
fn only_steps_that_are_left_can_be_done_and_the_last_may_be_told_again() {
    let (_, from, _, pending) = way(24, 60);
    let all = pending.steps.len();
    let (mut earlier, mut left) = (Earlier::all(&from), pending.clone());
    left.done(3, &mut earlier).expect("steps");
    assert_eq!((left.done, left.steps.len()), (3, all - 3));
    let before = earlier.clone();
    left.done(3, &mut earlier).expect("the same again");
    assert_eq!(earlier, before);
    let (first, last) = (4, all as u64);
    for number in [1, 2] {
        let stale = DoneError::Stale { first, last, number };
        assert_eq!(left.done(number, &mut earlier), Err(stale));
    }
    for number in [0, last + 1, u64::MAX] {
        let unknown = DoneError::Unknown { first, last, number };
        assert_eq!(left.done(number, &mut earlier), Err(unknown));
    }
    assert_eq!(earlier, before);
    let mut none: Vec<Earlier> = Vec::new();
    let unlike = DoneError::Unlike { number: 4 };
    assert_eq!(left.clone().done(4, &mut none), Err(unlike));
    left.done(last, &mut earlier).expect("the rest");
    assert_eq!((left.done, left.first), (all, last + 1));
    left.done(last, &mut earlier).expect("the same again");
    assert_eq!(left.done(last - 1, &mut earlier), Err(DoneError::Over));
}

#[test]
fn no_number_stands_for_two_steps() {
    let (slos, from, to, pending) = way(24, 60);
    let way = migration(&from, &to).expect("a way");
    let (outcome, left) = after(&from, &pending, 3, from.cluster(), &slos);
    let last = pending.steps.len() as u64;
    // Partly dropped, replaced by another, or ended: numbers continue.
    let ended = abandon(&outcome.plan, &left).pending;
    assert!(ended.steps.len() < left.steps.len());
    assert_eq!((ended.first, ended.told), (last + 1, 3));
    let another = Pending::new(&way, from.cluster(), &left);
    assert_eq!((another.first, another.told, another.done), (last + 1, 0, 0));
    let dropped = left.dropped();
    assert_eq!((dropped.first, dropped.steps.len()), (last + 1, 0));
    let numbers: Vec<u64> = another.numbered().map(|(number, _)| number).collect();
    let expected: Vec<u64> = (last + 1..=2 * last).collect();
    assert_eq!(numbers, expected);
}
