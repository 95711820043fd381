//! The check of a plan: one row for each violation, and both sides of each limit.

use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::check::{Violation, check};
use tailwater_placement::cluster::{Cluster, Server, ServerKind};
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::plan::{Instance, Placed};
use tailwater_placement::slo::{ChainProfile, Curves, Slo, Target};

/// Returns two servers of two nodes, each with 2 cores, 6 ways and 3 classes.
fn cluster() -> Cluster {
    let kind = ServerKind {
        machine: "m".into(),
        nodes: 2,
        cores: 2,
        ways: 6,
        way_bytes: 10,
        classes: 3,
    };
    Cluster::uniform(kind, 2).expect("a cluster")
}

/// Returns an SLO of 97 packets per second, which one instance with two ways just meets.
fn placed(name: &str, places: &[(usize, u16, u16)]) -> Placed {
    let curves = Curves {
        machine: "m".into(),
        cores: 1,
        cache: CacheCurve::new(vec![(10, 50.0), (20, 100.0)]).expect("a curve"),
        load: LoadCurve::new(vec![(1.0, Nanos(1000))]).expect("a curve"),
    };
    let chain = ChainProfile {
        name: "c".into(),
        configuration: None,
        traffic: None,
        percentile: None,
        curves: vec![curves],
    };
    let instance = |&(server, node, ways): &(usize, u16, u16)| Instance { server, node, ways };
    Placed {
        slo: Slo {
            name: name.into(),
            chain: Arc::new(chain),
            target: Target::Reserved { throughput: 97.0 },
            latency: Nanos(1000),
            cap: None,
            spread: false,
            apart: None,
        },
        instances: places.iter().map(instance).collect(),
        cheapest: Default::default(),
    }
}

/// Returns the violations as text, with one SLO changed.
fn of(mut placed: Placed, change: impl Fn(&mut Slo)) -> Vec<String> {
    change(&mut placed.slo);
    let violations = check(&cluster(), [&placed]);
    violations.iter().map(Violation::to_string).collect()
}

#[test]
fn each_limit_holds_at_equality_and_not_beyond() {
    let none: [&str; 0] = [];
    let target = |throughput| move |slo: &mut Slo| slo.target = Target::Reserved { throughput };
    let latency = |nanos| move |slo: &mut Slo| slo.latency = Nanos(nanos);
    let most = |most| move |slo: &mut Slo| slo.target = Target::OnDemand { most };
    let one = || placed("s", &[(0, 0, 2)]);
    assert_eq!(of(one(), |_| {}), none);
    // Throughput.
    assert_eq!(of(one(), target(97.0 * (1.0 + 1e-10))), none);
    assert_eq!(of(one(), target(97.6)), ["s: 97 packets per second of 98"]);
    assert_eq!(of(placed("s", &[(0, 0, 2), (1, 0, 1)]), target(145.5)), none);
    assert_eq!(
        of(placed("s", &[(0, 0, 2), (1, 0, 1)]), target(146.5)),
        ["s: 146 packets per second of 146"]
    );
    // Latency: nothing is in time, so nothing counts.
    assert_eq!(
        of(one(), latency(999)),
        ["s: 1us at its load, of 999ns", "s: 0 packets per second of 97"]
    );
    // Places.
    assert_eq!(of(placed("s", &[(1, 1, 2)]), |_| {}), none);
    for place in [(2, 0, 2), (0, 2, 2)] {
        let found = of(placed("s", &[(0, 0, 2), place]), |_| {});
        assert_eq!(found, ["s: instance 1 is not placed"], "{place:?}");
    }
    // Numbers of instances.
    let two = || placed("s", &[(0, 0, 2), (1, 0, 2)]);
    assert_eq!(of(two(), most(2)), none);
    assert_eq!(of(two(), most(1)), ["s: 2 instances"]);
    assert_eq!(
        of(placed("s", &[]), |_| {}),
        ["s: 0 packets per second of 97", "s: 0 instances"]
    );
    assert_eq!(of(placed("s", &[]), most(1)), ["s: 0 instances"]);
    // An on-demand SLO that has no useful instance.
    assert_eq!(of(placed("s", &[(0, 0, 0)]), most(1)), ["s: 0 packets per second of 1"]);
}

#[test]
fn each_resource_of_a_node_is_counted() {
    let overcommitted =
        |placed: &[Placed]| -> Vec<String> { check(&cluster(), placed).iter().map(Violation::to_string).collect() };
    let none: [&str; 0] = [];
    let named = |name: &str, ways, cores: u16| {
        let mut placed = placed(name, &[(0, 1, ways)]);
        Arc::make_mut(&mut placed.slo.chain).curves[0].cores = cores;
        placed
    };
    assert_eq!(overcommitted(&[named("a", 3, 1), named("b", 3, 1)]), none);
    assert_eq!(
        overcommitted(&[named("a", 3, 1), named("b", 4, 1)]),
        ["server 0, node 1: 7 ways assigned, 6 available"]
    );
    assert_eq!(
        overcommitted(&[named("a", 3, 1), named("b", 3, 2)]),
        ["server 0, node 1: 3 cores assigned, 2 available"]
    );
    let four = ["a", "b", "c", "d"].map(|name| named(name, 2, 0));
    assert_eq!(overcommitted(&four[..3]), none);
    let found = overcommitted(&four);
    assert_eq!(
        found,
        [
            "server 0, node 1: 8 ways assigned, 6 available",
            "server 0, node 1: 4 classes assigned, 3 available"
        ]
    );
}

#[test]
fn slos_that_must_be_apart_are_on_different_servers() {
    let of_group = |name: &str, group: &str, server| {
        let mut placed = placed(name, &[(server, 0, 2)]);
        placed.slo.apart = Some(group.to_owned());
        placed
    };
    let found = |placed: &[Placed]| check(&cluster(), placed);
    assert_eq!(found(&[of_group("a", "g", 0), of_group("b", "g", 1)]), []);
    assert_eq!(found(&[of_group("a", "g", 0), of_group("b", "h", 0)]), []);
    let together = |slo: &str, server| Violation::Together {
        slo: slo.to_owned(),
        server,
    };
    assert_eq!(
        found(&[of_group("a", "g", 1), of_group("b", "g", 1)]),
        [together("b", 1)]
    );
    // An SLO may have several instances on a server of its own, unless they are spread.
    let mut both = placed("a", &[(0, 0, 2), (0, 1, 2)]);
    both.slo.apart = Some("g".to_owned());
    assert_eq!(found(std::slice::from_ref(&both)), []);
    both.slo.spread = true;
    assert_eq!(found(std::slice::from_ref(&both)), [together("a", 0)]);
}

/// A chain that was not measured on a server's machine is not placed there.
#[test]
fn instances_are_on_machines_of_their_curves() {
    let kinds = cluster().kinds().to_vec();
    let other = ServerKind {
        machine: "n".into(),
        ..kinds[0].clone()
    };
    let server = Server {
        name: "s".into(),
        kind: 0,
    };
    let cluster = Cluster::new(vec![other], vec![server]).expect("a cluster");
    let found = check(&cluster, [&placed("s", &[(0, 0, 2)])]);
    assert!(matches!(found[0], Violation::Nowhere { instance: 0, .. }), "{found:?}");
}
