//! Reconciliation of SLOs whose servers, curves or terms have changed.

use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::admit::{Answer, Nearest, Reason};
use tailwater_placement::check::check;
use tailwater_placement::cluster::{Cluster, Server, ServerKind};
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::plan::{Instance, Plan};
use tailwater_placement::reconcile::{Course, Earlier, Reconciled, reconcile};
use tailwater_placement::schedule::{Request, Scheduler};
use tailwater_placement::slo::{ChainProfile, Curves, Slo, Target};
use tailwater_placement::tailwater::Tailwater;

/// Returns servers of four cores and six ways, of the machines `m` and `n` by the first letter of their names.
fn cluster(names: &[&str]) -> Cluster {
    let kind = |machine: &str| ServerKind {
        machine: machine.into(),
        nodes: 1,
        cores: 4,
        ways: 6,
        way_bytes: 10,
        classes: 8,
    };
    let server = |name: &&str| Server {
        name: (*name).into(),
        kind: usize::from(name.starts_with('n')),
    };
    let servers = names.iter().map(server).collect();
    Cluster::new(vec![kind("m"), kind("n")], servers).expect("a cluster")
}

/// Returns a chain with a fixed rate on each machine, independent of the cache, and this latency.
fn chain(name: &str, machines: &[(&str, f64, u64)]) -> Arc<ChainProfile> {
    let curves = machines.iter().map(|&(machine, rate, latency)| Curves {
        machine: machine.into(),
        cores: 1,
        cache: CacheCurve::new(vec![(10, rate)]).expect("a curve"),
        load: LoadCurve::new(vec![(1.0, Nanos(latency))]).expect("a curve"),
    });
    Arc::new(ChainProfile {
        name: name.into(),
        configuration: None,
        traffic: None,
        percentile: None,
        curves: curves.collect(),
    })
}

fn slo(name: &str, chain: &Arc<ChainProfile>, throughput: f64) -> Slo {
    Slo {
        name: name.into(),
        chain: chain.clone(),
        target: Target::Reserved { throughput },
        latency: Nanos(9000),
        cap: None,
        spread: false,
        apart: None,
    }
}

/// Returns the stored state of an SLO with an instance of one way on each of these servers.
fn earlier(slo: &Slo, servers: &[&str]) -> Earlier {
    let empty = tailwater_placement::plan::Placed {
        slo: slo.clone(),
        instances: Vec::new(),
        cheapest: Default::default(),
    };
    let instances = servers.iter().map(|name| ((*name).into(), 0, 1));
    Earlier {
        instances: instances.collect(),
        ..Earlier::new(&empty, &cluster(&["m"]))
    }
}

fn servers(outcome: &Reconciled, name: &str) -> Vec<String> {
    let placed = outcome.plan.get(name).expect("a place");
    let kept = Earlier::new(placed, outcome.plan.cluster());
    kept.instances.into_iter().map(|i| i.0).collect()
}

#[test]
fn what_is_told_as_admitted_after_a_repair_is_in_the_plan_and_kept() {
    let before = chain("c", &[("m", 50.0, 100), ("n", 50.0, 100)]);
    let old = earlier(&slo("s", &before, 90.0), &["m1", "n1"]);
    // With the new curves nothing on `m` is in time.
    let now = chain("c", &[("m", 50.0, 20_000), ("n", 50.0, 100)]);
    let wanted = [slo("s", &now, 90.0)];
    let cluster = cluster(&["m1", "n1"]);
    let outcome = reconcile(&cluster, &[old], &wanted, &[], &Tailwater);
    assert_eq!(outcome.answers[0].course, Course::Repaired);
    assert!(matches!(&outcome.answers[0].answer, Answer::Admitted(i) if i.len() == 2));
    assert_eq!(servers(&outcome, "s"), ["n1", "n1"]);
    assert_eq!(check(&cluster, outcome.plan.placed()), []);
    assert_eq!(outcome.answers[0].moved, 1);
}

#[test]
fn denied_changes_of_spread_group_and_chain_leave_all_old_terms_in_force() {
    let fast = chain("fast", &[("m", 50.0, 100)]);
    let slow = chain("slow", &[("m", 1.0, 100)]);
    let cluster = cluster(&["m1"]);
    let old = slo("s", &fast, 90.0);
    let other = Slo {
        apart: Some("g".into()),
        ..slo("other", &fast, 40.0)
    };
    let state = [earlier(&other, &["m1"]), earlier(&old, &["m1", "m1"])];
    let changes = [
        Slo {
            spread: true,
            ..old.clone()
        },
        Slo {
            apart: Some("g".into()),
            ..old.clone()
        },
        slo("s", &slow, 90.0),
    ];
    for change in changes {
        let chains = [fast.clone(), slow.clone()];
        let wanted = [other.clone(), change.clone()];
        let outcome = reconcile(&cluster, &state, &wanted, &chains, &Tailwater);
        assert_eq!(outcome.answers[1].course, Course::Changed, "{change:?}");
        assert!(matches!(outcome.answers[1].answer, Answer::Denied(_)));
        assert_eq!(outcome.plan.get("s").map(|p| &p.slo), Some(&old));
        assert_eq!(Earlier::all(&outcome.plan), state);
        assert_eq!(check(&cluster, outcome.plan.placed()), []);
    }
    // The curves of the old chain are no longer known, so its guarantees cannot be given.
    let wanted = [other.clone(), slo("s", &slow, 90.0)];
    let outcome = reconcile(&cluster, &state, &wanted, &[slow], &Tailwater);
    assert!(matches!(outcome.answers[1].answer, Answer::Denied(_)));
    assert!(outcome.plan.get("s").is_none());
}

#[test]
fn what_would_fit_fits_beside_slos_that_came_later() {
    let chain = chain("c", &[("m", 50.0, 100)]);
    let wanted = [slo("large", &chain, 500.0), slo("later", &chain, 90.0)];
    let cluster = cluster(&["m1"]);
    let outcome = reconcile(&cluster, &[], &wanted, &[], &Tailwater);
    let Answer::Denied(denial) = &outcome.answers[0].answer else {
        panic!("{:?}", outcome.answers[0]);
    };
    // Two cores are left, of 48.5 each.
    let [Nearest::Throughput(fits)] = denial.nearest[..] else {
        panic!("{denial:?}");
    };
    assert!((90.0..=97.0).contains(&fits), "{fits}");
    let mut plan = outcome.plan.clone();
    let smaller = slo("large", &chain, fits);
    assert!(tailwater_placement::admit::try_admit(&mut plan, &smaller, &Tailwater).is_ok());
}

#[test]
fn a_repair_may_use_the_slos_own_servers_but_no_others_of_its_group() {
    let chain = chain("c", &[("m", 50.0, 100)]);
    let apart = |name, throughput| Slo {
        apart: Some("g".into()),
        ..slo(name, &chain, throughput)
    };
    let state = [
        earlier(&apart("s", 90.0), &["m1", "gone"]),
        earlier(&apart("t", 40.0), &["m2"]),
    ];
    let wanted = [apart("s", 90.0), apart("t", 40.0)];
    let cluster = cluster(&["m2", "m1"]);
    let outcome = reconcile(&cluster, &state, &wanted, &[], &Tailwater);
    assert_eq!(servers(&outcome, "s"), ["m1", "m1"]);
    assert_eq!(servers(&outcome, "t"), ["m2"]);
    assert_eq!(outcome.lost, ["gone"]);
    assert_eq!(outcome.answers[0].course, Course::Repaired);
    // The one on m1 stayed, the lost one is elsewhere.
    assert_eq!(outcome.answers[0].moved, 1);
    assert_eq!(check(&cluster, outcome.plan.placed()), []);
}

#[test]
fn instances_that_could_not_keep_their_places_are_told_as_moved() {
    let chain = chain("c", &[("m", 50.0, 100)]);
    let wanted = [slo("s", &chain, 190.0), slo("t", &chain, 90.0)];
    // The state assigns six cores of a server with four.
    let state = [earlier(&wanted[0], &["m1"; 4]), earlier(&wanted[1], &["m1"; 2])];
    let cluster = cluster(&["m1", "m2"]);
    let outcome = reconcile(&cluster, &state, &wanted, &[], &Tailwater);
    assert_eq!(servers(&outcome, "s"), ["m1"; 4]);
    assert_eq!(servers(&outcome, "t"), ["m2"; 2]);
    let moved: Vec<usize> = outcome.answers.iter().map(|a| a.moved).collect();
    assert_eq!(moved, [0, 2]);
}

#[test]
fn on_demand_slos_that_lost_instances_keep_the_others() {
    let chain = chain("c", &[("m", 50.0, 100)]);
    let wanted = [Slo {
        target: Target::OnDemand { most: 3 },
        ..slo("s", &chain, 1.0)
    }];
    let state = [earlier(&wanted[0], &["m1", "gone", "m2"])];
    let cluster = cluster(&["m1", "m2"]);
    let outcome = reconcile(&cluster, &state, &wanted, &[], &Tailwater);
    assert_eq!(servers(&outcome, "s"), ["m1", "m2"]);
    assert_eq!(outcome.answers[0].moved, 0);
}

/// Scheduler with a constant answer.
struct Wrong;

impl Scheduler for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn place(&self, _: &Plan, _: &Request) -> Option<Vec<Instance>> {
        Some(vec![Instance {
            server: 0,
            node: 0,
            ways: 1,
        }])
    }
}

#[test]
fn a_scheduler_that_is_wrong_is_not_believed() {
    let chain = chain("c", &[("m", 50.0, 100)]);
    let outcome = reconcile(&cluster(&["m1"]), &[], &[slo("s", &chain, 90.0)], &[], &Wrong);
    let Answer::Denied(denial) = &outcome.answers[0].answer else {
        panic!("{:?}", outcome.answers[0]);
    };
    assert_eq!(denial.reason, Reason::ViolatedByCurves);
    assert_eq!(outcome.plan, Plan::new(cluster(&["m1"])));
}
