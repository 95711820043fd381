//! Invariants for any SLOs on any cluster.

use proptest::prelude::*;
use std::sync::Arc;
use tailwater_baselines::schedulers::ResqGreedy;
use tailwater_net::Nanos;
use tailwater_placement::admit::{Answer, Nearest, Reason, admit, try_admit};
use tailwater_placement::check::{Violation, check};
use tailwater_placement::choices::choices;
use tailwater_placement::cluster::{Cluster, Server, ServerKind};
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::demand::{Demand, Slot};
use tailwater_placement::plan::Plan;
use tailwater_placement::reconcile::{Course, Earlier, reconcile};
use tailwater_placement::schedule::Scheduler;
use tailwater_placement::slo::{ChainProfile, Curves, Slo, Target};
use tailwater_placement::tailwater::Tailwater;

/// Returns a cluster with two kinds of servers, the second with two NUMA nodes and few classes.
fn cluster(small: usize, large: usize) -> Cluster {
    let kind = |machine: &str, nodes, cores, ways, classes| ServerKind {
        machine: machine.into(),
        nodes,
        cores,
        ways,
        way_bytes: 10,
        classes,
    };
    let server = |kind: usize| {
        move |i: usize| Server {
            name: format!("kind-{kind}-{i}"),
            kind,
        }
    };
    let servers = (0..small).map(server(0)).chain((0..large).map(server(1)));
    let kinds = vec![kind("a", 1, 4, 6, 8), kind("b", 2, 6, 8, 4)];
    Cluster::new(kinds, servers.collect()).expect("a cluster")
}

fn chain(steps: &[u16], cores: u16, on_both: bool) -> Arc<ChainProfile> {
    let curves = |machine: &str, times: f64| {
        let mut rate = 0.0;
        let points = steps.iter().enumerate().map(|(i, step)| {
            rate += f64::from(*step) * times;
            (10 * (1 + i as u64), rate + 20.0)
        });
        let load = vec![(0.2, Nanos(1000)), (0.8, Nanos(2000)), (1.0, Nanos(9000))];
        Curves {
            machine: machine.into(),
            cores,
            cache: CacheCurve::new(points.collect()).expect("a curve"),
            load: LoadCurve::new(load).expect("a curve"),
        }
    };
    let mut all = vec![curves("a", 1.0)];
    all.extend(on_both.then(|| curves("b", 1.3)));
    Arc::new(ChainProfile {
        name: "chain".into(),
        configuration: None,
        traffic: None,
        percentile: None,
        curves: all,
    })
}

prop_compose! {
    fn any_slo()(
        steps in prop::collection::vec(0u16..60, 1..9),
        cores in 1u16..4,
        on_both in any::<bool>(),
        need in 1u16..250,
        latency in 900u64..10_000,
        spread in any::<bool>(),
        apart in prop::option::of(0u8..2),
        on_demand in prop::bool::weighted(0.15),
    ) -> Slo {
        Slo {
            name: String::new(),
            chain: chain(&steps, cores, on_both),
            target: match on_demand {
                true => Target::OnDemand { most: 3 },
                false => Target::Reserved { throughput: f64::from(need) },
            },
            latency: Nanos(latency),
            cap: None,
            spread,
            apart: apart.map(|group| format!("group-{group}")),
        }
    }
}

fn named(slos: Vec<Slo>) -> Vec<Slo> {
    let named = slos.into_iter().enumerate();
    let name = |(i, slo): (usize, Slo)| Slo {
        name: format!("slo-{i}"),
        chain: Arc::new(ChainProfile {
            name: format!("chain-{i}"),
            ..(*slo.chain).clone()
        }),
        ..slo
    };
    named.map(name).collect()
}

/// Returns the chains of SLOs, each with a unique name.
fn chains(slos: &[Slo]) -> Vec<Arc<ChainProfile>> {
    slos.iter().map(|slo| slo.chain.clone()).collect()
}

/// Returns `true` if the alternative would be admitted in place of this SLO.
fn is_admitted(plan: &Plan, slo: &Slo, nearest: &Nearest) -> bool {
    let slo = match *nearest {
        Nearest::Throughput(throughput) => Slo {
            target: Target::Reserved { throughput },
            ..slo.clone()
        },
        Nearest::Latency(latency) => Slo { latency, ..slo.clone() },
    };
    let mut plan = plan.clone();
    plan.remove(&slo.name);
    try_admit(&mut plan, &slo, &Tailwater).is_ok() && check(plan.cluster(), plan.placed()).is_empty()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn plans_keep_what_they_promise_and_servers_have_it(
        slos in prop::collection::vec(any_slo(), 1..14),
        (small, large) in (1usize..6, 0usize..4),
    ) {
        for scheduler in [&ResqGreedy as &dyn Scheduler, &Tailwater] {
            let mut plan = Plan::new(cluster(small, large));
            for slo in named(slos.clone()) {
                let before = plan.clone();
                match admit(&mut plan, slo.clone(), scheduler) {
                    Answer::Admitted(instances) => {
                        prop_assert!(!instances.is_empty());
                        // Adding and removing leaves no trace.
                        let mut again = plan.clone();
                        again.remove(&slo.name);
                        prop_assert_eq!(&again, &before);
                        prop_assert_eq!(again.cheapest(), before.cheapest());
                    }
                    Answer::Denied(denial) => {
                        prop_assert_eq!(&plan, &before);
                        for nearest in denial.nearest {
                            let slo = match nearest {
                                Nearest::Throughput(throughput) => Slo {
                                    target: Target::Reserved { throughput },
                                    ..slo.clone()
                                },
                                Nearest::Latency(latency) => Slo { latency, ..slo.clone() },
                            };
                            let mut plan = plan.clone();
                            prop_assert!(try_admit(&mut plan, &slo, scheduler).is_ok());
                            prop_assert_eq!(check(plan.cluster(), plan.placed()), vec![]);
                        }
                    }
                }
                prop_assert_eq!(check(plan.cluster(), plan.placed()), vec![]);
                prop_assert!(plan.least_servers() <= plan.active());
            }
        }
    }

    #[test]
    fn all_at_once_is_at_least_as_good_as_one_by_one(
        slos in prop::collection::vec(any_slo(), 1..10),
        (small, large) in (1usize..6, 0usize..4),
    ) {
        let (cluster, slos) = (cluster(small, large), named(slos));
        for scheduler in [&ResqGreedy as &dyn Scheduler, &Tailwater] {
            let all = reconcile(&cluster, &[], &slos, &[], scheduler);
            prop_assert_eq!(check(&cluster, all.plan.placed()), vec![]);
            let mut state = Vec::new();
            let mut one_by_one = Plan::new(cluster.clone());
            for count in 1..=slos.len() {
                let now = reconcile(&cluster, &state, &slos[..count], &[], scheduler);
                // An SLO that was denied before may find room now, which is none of its successors' concern.
                state = Earlier::all(&now.plan);
                one_by_one = now.plan;
            }
            let names = |plan: &Plan| -> Vec<String> { plan.placed().map(|placed| placed.slo.name.clone()).collect() };
            let (at_once, before) = (names(&all.plan), names(&one_by_one));
            for (answered, slo) in all.answers.iter().zip(&slos) {
                let placed = all.plan.get(&slo.name).map(|placed| &placed.instances);
                match &answered.answer {
                    Answer::Admitted(instances) => prop_assert_eq!(Some(instances), placed),
                    Answer::Denied(_) => prop_assert_eq!(None, placed),
                }
            }
            prop_assert!(before.iter().all(|name| at_once.contains(name)), "{at_once:?} instead of {before:?}");
            if at_once == before {
                prop_assert!(all.plan.active() <= one_by_one.active());
            }
        }
    }

    #[test]
    fn whatever_changes_and_is_lost_plans_are_sound(
        slos in prop::collection::vec(any_slo(), 1..10),
        changed in prop::collection::vec(any_slo(), 16),
        what in prop::collection::vec(0u8..4, 16),
        (small, large) in (1usize..6, 0usize..4),
        (gone_small, gone_large) in (0usize..3, 0usize..3),
    ) {
        let slos = named(slos);
        let before = reconcile(&cluster(small, large), &[], &slos, &[], &Tailwater);
        let state = Earlier::all(&before.plan);
        // Of four SLOs one is removed and one changes.
        let mut wanted = Vec::new();
        for (slo, (other, what)) in slos.iter().zip(changed.iter().zip(&what)) {
            match what {
                0 => {}
                1 => wanted.push(Slo { name: slo.name.clone(), ..other.clone() }),
                _ => wanted.push(slo.clone()),
            }
        }
        let left = cluster(small.saturating_sub(gone_small).max(1), large.saturating_sub(gone_large));
        let after = reconcile(&left, &state, &wanted, &chains(&slos), &Tailwater);
        prop_assert_eq!(check(&left, after.plan.placed()), vec![]);
        prop_assert_eq!(after.answers.len(), wanted.len());
        for (answered, slo) in after.answers.iter().zip(&wanted) {
            let placed = after.plan.get(&slo.name);
            match (&answered.answer, answered.course) {
                (Answer::Admitted(instances), course) => {
                    let placed = placed.expect("what was admitted is placed");
                    prop_assert_eq!(&placed.slo, slo);
                    prop_assert_eq!(&placed.instances, instances);
                    // An unchanged SLO stays where it was.
                    if course == Course::Kept {
                        prop_assert_eq!(answered.moved, 0);
                        let old = state.iter().find(|old| old.name == slo.name);
                        let now = Earlier::all(&after.plan);
                        prop_assert_eq!(old, now.iter().find(|now| now.name == slo.name));
                    }
                }
                (Answer::Denied(denial), course) => {
                    let old = state.iter().find(|old| old.name == slo.name);
                    prop_assert_eq!(answered.moved, 0);
                    match placed {
                        // It runs on all of its old terms, where it was.
                        Some(placed) => {
                            prop_assert_eq!(course, Course::Changed);
                            prop_assert_eq!(Some(&Earlier::new(placed, &left)), old);
                        }
                        None => {
                            // Only SLOs that lost an instance lose their places.
                            let stands = |(name, ..): &(String, u16, u16)| {
                                left.servers().iter().any(|server| server.name == *name)
                            };
                            let broken = old.is_none_or(|old| !old.instances.iter().all(stands));
                            prop_assert!(broken, "{course:?}: {denial:?}");
                        }
                    }
                    for nearest in &denial.nearest {
                        prop_assert!(is_admitted(&after.plan, slo, nearest), "{nearest:?}");
                    }
                }
            }
        }
    }

    /// Compares choices with all multisets of up to three instances.
    #[test]
    fn choices_are_all_that_are_enough_and_least(slo in any_slo(), small in any::<bool>()) {
        let cluster = cluster(usize::from(small), 1);
        let Ok(demand) = Demand::new(&slo, &cluster) else { return Ok(()) };
        const MOST: usize = 3;
        let found = choices(&demand, MOST);
        prop_assert!(found.complete);
        let mut sizes: Vec<Slot> = Vec::new();
        for offer in &demand.offers {
            for ways in 1..=offer.rates.len() as u16 {
                // Only sizes that are faster than smaller ones.
                if offer.rate(ways) > offer.rate(ways - 1) {
                    sizes.push(offer.slot(ways));
                }
            }
        }
        let sum = |slots: &[Slot]| slots.iter().map(|s| demand.rate(s.kind, s.ways)).sum::<f64>();
        let mut expected = Vec::new();
        let mut open: Vec<(usize, Vec<Slot>)> = vec![(0, Vec::new())];
        while let Some((first, slots)) = open.pop() {
            if demand.is_met(sum(&slots)) {
                // The next smaller size of the same kind, or none.
                let less = |at: usize| {
                    let mut fewer = slots.clone();
                    let slot = fewer.remove(at);
                    let below = sizes.iter().filter(|s| s.kind == slot.kind && s.ways < slot.ways);
                    fewer.extend(below.max().copied());
                    !demand.is_met(sum(&fewer))
                };
                if (0..slots.len()).all(less) {
                    let mut slots = slots;
                    slots.sort_unstable();
                    expected.push(slots);
                }
                continue;
            }
            if slots.len() < MOST {
                for (i, &size) in sizes.iter().enumerate().skip(first) {
                    let mut more = slots.clone();
                    more.push(size);
                    open.push((i, more));
                }
            }
        }
        let mut found: Vec<Vec<Slot>> = found.list;
        found.iter_mut().for_each(|slots| slots.sort_unstable());
        found.sort();
        expected.sort();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let cluster = cluster(2, 0);
    let mut plan = Plan::new(cluster.clone());
    let slo = Slo {
        name: "slo".into(),
        chain: chain(&[50, 50], 1, true),
        target: Target::Reserved { throughput: 110.0 },
        latency: Nanos(9000),
        cap: None,
        spread: true,
        apart: None,
    };
    assert!(matches!(admit(&mut plan, slo.clone(), &Tailwater), Answer::Admitted(_)));
    let good = plan.get("slo").expect("admitted").clone();
    let wrong = |change: &dyn Fn(&mut tailwater_placement::plan::Placed)| {
        let mut bad = good.clone();
        change(&mut bad);
        check(&cluster, [&bad])
    };
    assert_eq!(wrong(&|_| {}), []);
    let few = wrong(&|bad| bad.instances[0].ways = 1);
    assert!(matches!(few[..], [Violation::Throughput { .. }]), "{few:?}");
    let many = wrong(&|bad| bad.instances[0].ways = 7);
    assert!(
        matches!(many[..], [Violation::Overcommitted { what: "ways", .. }]),
        "{many:?}"
    );
    let late = wrong(&|bad| bad.slo.latency = Nanos(999));
    assert!(late.iter().any(|v| matches!(v, Violation::Latency { .. })), "{late:?}");
    let nowhere = wrong(&|bad| bad.instances[0].server = 2);
    assert!(
        nowhere.iter().any(|v| matches!(v, Violation::Nowhere { .. })),
        "{nowhere:?}"
    );
    let twice = wrong(&|bad| bad.instances.push(bad.instances[0]));
    assert!(
        twice.iter().any(|v| matches!(v, Violation::Together { .. })),
        "{twice:?}"
    );
    let none = wrong(&|bad| bad.instances.clear());
    assert!(
        none.iter().any(|v| matches!(v, Violation::Instances { .. })),
        "{none:?}"
    );
}

#[test]
fn what_is_lost_is_made_up_for_and_the_rest_stays() {
    let slo = Slo {
        name: "slo".into(),
        chain: chain(&[50, 0, 0, 0, 0, 0], 1, false),
        target: Target::Reserved { throughput: 190.0 },
        latency: Nanos(9000),
        cap: None,
        spread: true,
        apart: None,
    };
    let before = reconcile(&cluster(4, 0), &[], std::slice::from_ref(&slo), &[], &Tailwater);
    let state = Earlier::all(&before.plan);
    let names: Vec<&str> = state[0].instances.iter().map(|(name, ..)| &**name).collect();
    assert_eq!(names, ["kind-0-0", "kind-0-1", "kind-0-2"]);
    // The first server is gone, and another one has taken the second one's index.
    let kinds = cluster(1, 0).kinds().to_vec();
    let servers = ["kind-0-3", "kind-0-1", "kind-0-2"].map(|name| Server {
        name: name.into(),
        kind: 0,
    });
    let left = Cluster::new(kinds, servers.to_vec()).expect("a cluster");
    let after = reconcile(&left, &state, &[slo], &[], &Tailwater);
    assert_eq!(after.lost, ["kind-0-0"]);
    // The replacement of the lost instance counts as moved.
    assert_eq!((after.answers[0].course, after.answers[0].moved), (Course::Repaired, 1));
    let mut now: Vec<String> = Earlier::all(&after.plan)[0]
        .instances
        .iter()
        .map(|i| i.0.clone())
        .collect();
    now.sort();
    assert_eq!(now, ["kind-0-1", "kind-0-2", "kind-0-3"]);
}

#[test]
fn an_slo_beyond_all_instances_is_denied_and_leaves_nothing() {
    let slo = Slo {
        name: "slo".into(),
        chain: chain(&[50], 1, false),
        target: Target::Reserved { throughput: 1e11 },
        latency: Nanos(9000),
        cap: None,
        spread: false,
        apart: None,
    };
    // In the state, one instance was enough for it.
    let earlier = Earlier {
        name: slo.name.clone(),
        chain: slo.chain.name.clone(),
        traffic: None,
        percentile: None,
        target: slo.target,
        latency: slo.latency,
        cap: None,
        spread: false,
        apart: None,
        instances: vec![("kind-0-0".into(), 0, 1)],
    };
    let after = reconcile(&cluster(2, 0), &[earlier], &[slo], &[], &Tailwater);
    assert!(matches!(&after.answers[0].answer, Answer::Denied(d) if d.reason == Reason::Instances));
    assert_eq!(after.plan, Plan::new(cluster(2, 0)));
    assert_eq!(after.plan.cheapest(), Plan::new(cluster(2, 0)).cheapest());
}

#[test]
fn denied_terms_bring_no_broken_promise_back() {
    let slo = |throughput| Slo {
        name: "slo".into(),
        chain: chain(&[50, 0, 0, 0, 0, 0], 1, false),
        target: Target::Reserved { throughput },
        latency: Nanos(9000),
        cap: None,
        spread: true,
        apart: None,
    };
    let before = reconcile(&cluster(3, 0), &[], &[slo(190.0)], &[], &Tailwater);
    let state = Earlier::all(&before.plan);
    // Beyond the capacity of two servers, after the loss of the third.
    let after = reconcile(&cluster(2, 0), &state, &[slo(200.0)], &[], &Tailwater);
    assert_eq!(after.answers[0].course, Course::Changed);
    assert!(matches!(after.answers[0].answer, Answer::Denied(_)));
    assert_eq!(after.plan, Plan::new(cluster(2, 0)));
    // With all servers present, the old terms stay in force.
    let after = reconcile(&cluster(3, 0), &state, &[slo(400.0)], &[], &Tailwater);
    assert!(matches!(after.answers[0].answer, Answer::Denied(_)));
    assert_eq!(Earlier::all(&after.plan), state);
}
