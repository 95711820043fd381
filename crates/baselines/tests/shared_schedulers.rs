//! Schedulers without isolation, and ResQ's greedy one, at both sides of each limit.

use std::sync::Arc;
use tailwater_baselines::schedulers::{
    ERROR, ResqGreedy, Tenant, agnostic, elastic, predictor, violated_evenly, violated_sharing,
};
use tailwater_net::Nanos;
use tailwater_placement::cluster::{Cluster, ServerKind};
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::plan::Plan;
use tailwater_placement::schedule::{Request, Scheduler};
use tailwater_placement::slo::{ChainProfile, Curves, Slo, Target};

/// Returns a server of two cores, with two ways of 10 bytes for each.
fn server() -> ServerKind {
    ServerKind {
        machine: "m".into(),
        nodes: 1,
        cores: 2,
        ways: 4,
        way_bytes: 10,
        classes: 4,
    }
}

fn curves(points: &[(u64, f64)]) -> Curves {
    Curves {
        machine: "m".into(),
        cores: 1,
        cache: CacheCurve::new(points.to_vec()).expect("a curve"),
        load: LoadCurve::new(vec![(1.0, Nanos(1000))]).expect("a curve"),
    }
}

fn tenant(curves: &Curves, target: f64) -> Tenant<'_> {
    Tenant {
        curves,
        references: 1.0,
        target,
    }
}

#[test]
fn instances_are_as_many_as_a_chain_needs_alone() {
    let curves = curves(&[(10, 100.0)]);
    for (target, expected) in [
        (1.0, vec![vec![0]]),
        (100.0, vec![vec![0]]),
        (100.1, vec![vec![0, 0]]),
        (200.0, vec![vec![0, 0]]),
        (200.1, vec![vec![0, 0], vec![0]]),
    ] {
        assert_eq!(agnostic(&[tenant(&curves, target)], &server()), expected, "{target}");
        assert_eq!(
            predictor(&[tenant(&curves, target)], &server(), 1000),
            expected,
            "{target}"
        );
    }
    // The second one fills up the first one's server.
    let two = [tenant(&curves, 50.0), tenant(&curves, 150.0)];
    assert_eq!(agnostic(&two, &server()), [vec![0, 1], vec![1]]);
}

#[test]
fn tenants_are_violated_beyond_the_error() {
    let curves = curves(&[(20, 100.0)]);
    // 97 packets per second with an even part of the cache.
    let violated = |target: f64| violated_evenly(&[tenant(&curves, target)], &server(), &vec![vec![0]]);
    assert_eq!(violated(97.0), 0.0);
    assert_eq!(violated(97.0 / (1.0 - ERROR) - 0.01), 0.0);
    assert_eq!(violated(97.0 / (1.0 - ERROR) + 0.01), 1.0);
    // Part of the tenants, each with all of its instances.
    let two = [tenant(&curves, 97.0), tenant(&curves, 194.0)];
    assert_eq!(violated_evenly(&two, &server(), &vec![vec![0, 1]]), 0.5);
    assert_eq!(violated_evenly(&two, &server(), &vec![vec![0, 1], vec![1]]), 0.0);
    assert_eq!(violated_evenly(&[], &server(), &Vec::new()), 0.0);
}

#[test]
fn instances_are_added_until_all_have_their_rate_beside_others() {
    let curves = curves(&[(10, 50.0), (40, 100.0)]);
    let pair = [tenant(&curves, 100.0), tenant(&curves, 100.0)];
    // Both share 40 bytes: each is at 20 of them, so two instances are not enough.
    assert_eq!(violated_sharing(&pair, 40, &agnostic(&pair, &server())), 1.0);
    let servers = elastic(&pair, &server(), 40).expect("enough");
    assert_eq!(violated_sharing(&pair, 40, &servers), 0.0);
    let instances = |number| servers.iter().flatten().filter(|&&tenant| tenant == number).count();
    assert_eq!((instances(0), instances(1)), (2, 2));
    // One that is enough alone stays alone.
    assert_eq!(elastic(&pair[..1], &server(), 40), Some(vec![vec![0]]));
}

#[test]
fn a_prediction_protects_those_that_are_there_already() {
    // The first one needs all of its rate, the second one hardly any.
    let curves = curves(&[(10, 50.0), (40, 100.0)]);
    let small = Curves {
        cache: CacheCurve::new(vec![(10, 100.0)]).expect("a curve"),
        ..curves.clone()
    };
    let needs_all = [tenant(&curves, 100.0), tenant(&small, 1.0)];
    assert_eq!(predictor(&needs_all, &server(), 40), [vec![0], vec![1]]);
    let needs_half = [tenant(&curves, 50.0), tenant(&small, 1.0)];
    assert_eq!(predictor(&needs_half, &server(), 40), [vec![0, 1]]);
    // The other way round, the new one is protected.
    let late = [tenant(&small, 1.0), tenant(&curves, 100.0)];
    assert_eq!(predictor(&late, &server(), 40), [vec![0], vec![1]]);
    // No more instances than cores.
    let three = [tenant(&small, 1.0), tenant(&small, 1.0), tenant(&small, 1.0)];
    assert_eq!(predictor(&three, &server(), 4000), [vec![0, 1], vec![2]]);
}

/// Returns the ways of ResQ's instances on servers like [`server`], of a chain with these points and cores.
fn resq(points: &[(u64, f64)], cores: u16, throughput: f64) -> Option<Vec<u16>> {
    let chain = ChainProfile {
        name: "c".into(),
        configuration: None,
        traffic: None,
        percentile: None,
        curves: vec![Curves {
            cores,
            ..curves(points)
        }],
    };
    let slo = Slo {
        name: "s".into(),
        chain: Arc::new(chain),
        target: Target::Reserved { throughput },
        latency: Nanos(1000),
        cap: None,
        spread: false,
        apart: None,
    };
    let plan = Plan::new(Cluster::uniform(server(), 3).expect("a cluster"));
    let request = Request::new(slo, plan.cluster()).expect("a server holds it");
    let instances = ResqGreedy.place(&plan, &request)?;
    Some(instances.iter().map(|instance| instance.ways).collect())
}

#[test]
fn resq_counts_instances_with_a_fair_share_of_the_cache() {
    // 48.5 packets per second with one way, 97 with two.
    let points = [(10, 50.0), (20, 100.0)];
    assert_eq!(resq(&points, 1, 97.0), Some(vec![2]));
    assert_eq!(resq(&points, 1, 98.0), Some(vec![2, 1]));
    assert_eq!(resq(&points, 1, 194.0), Some(vec![2, 2]));
    assert_eq!(resq(&points, 1, 6.0 * 97.0), Some(vec![2; 6]));
    assert_eq!(resq(&points, 1, 6.0 * 97.0 + 1.0), None);
    // With both cores of a server, the fair share is all of its cache.
    let large = [(10, 50.0), (40, 200.0)];
    assert_eq!(resq(&large, 2, 194.0), Some(vec![4]));
    // More than the fair share may be needed for any rate.
    assert_eq!(resq(&[(30, 100.0)], 1, 90.0), Some(vec![3]));
}
