//! Plans by HiGHS, compared with the bound and with exhaustive search.
#![cfg(feature = "milp")]

use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use tailwater_baselines::schedulers::ResqGreedy;
use tailwater_net::Nanos;
use tailwater_placement::check::check;
use tailwater_placement::cluster::{Cluster, ServerKind};
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::demand::Demand;
use tailwater_placement::milp::{Effort, SolveError, optimise};
use tailwater_placement::plan::Plan;
use tailwater_placement::published::{MIXES, server, slos};
use tailwater_placement::schedule::{Request, Scheduler, place_all};
use tailwater_placement::slo::{ChainProfile, Curves, Slo, Target};
use tailwater_placement::tailwater::Tailwater;

#[test]
fn the_mixes_of_the_paper_need_no_more_than_the_bound() {
    for (mix, least) in MIXES.into_iter().zip([22, 28, 35]) {
        let cluster = Cluster::uniform(server(), 60).expect("servers");
        let slos = slos(mix).expect("curves").into_iter();
        let requests: Vec<Request> = slos
            .map(|slo| Request::new(slo, &cluster).expect("a server holds it"))
            .collect();
        let optimised = optimise(&cluster, &requests, Effort::default()).expect("a plan");
        assert_eq!(check(&cluster, optimised.plan.placed()), []);
        assert_eq!(optimised.plan.placed().len(), requests.len());
        let servers = (optimised.least(), optimised.plan.active());
        assert_eq!(servers, (least, least), "{}", mix.name);
    }
}

#[test]
fn without_time_slos_are_placed_all_the_same_and_the_plan_says_so() {
    let cluster = Cluster::uniform(server(), 60).expect("servers");
    let slos = slos(MIXES[1]).expect("curves").into_iter();
    let requests: Vec<Request> = slos
        .map(|slo| Request::new(slo, &cluster).expect("a server holds it"))
        .collect();
    let effort = Effort {
        time: std::time::Duration::ZERO,
        part: 50,
        ..Effort::default()
    };
    let optimised = optimise(&cluster, &requests, effort).expect("a plan");
    assert!(optimised.out_of_time);
    assert_eq!(optimised.parts, 4);
    assert_eq!(check(&cluster, optimised.plan.placed()), []);
    assert_eq!(optimised.plan.placed().len(), requests.len());
    // The bound requires no solver.
    assert_eq!(optimised.least(), 28);
}

#[test]
fn a_cluster_that_is_too_small_has_no_plan() {
    let cluster = Cluster::uniform(server(), 20).expect("servers");
    let slos = slos(MIXES[0]).expect("curves").into_iter();
    let requests: Vec<Request> = slos
        .map(|slo| Request::new(slo, &cluster).expect("a server holds it"))
        .collect();
    let optimised = optimise(&cluster, &requests, Effort::default());
    assert_eq!(optimised.err(), Some(SolveError::NoPlan));
}

/// Finds the fewest servers by trying all instances on all nodes, as in Listing 1.
struct Trial<'a> {
    demands: &'a [(Demand, u16)],
    /// Tried states: remaining SLOs, and rooms, with `true` if they fit.
    seen: HashMap<(usize, Vec<(u16, u16)>), bool>,
}

impl Trial<'_> {
    fn fits(&mut self, slo: usize, rooms: &[(u16, u16)]) -> bool {
        let Some(&(_, cores)) = self.demands.get(slo) else {
            return true;
        };
        let mut key = rooms.to_vec();
        key.sort_unstable();
        if let Some(&known) = self.seen.get(&(slo, key.clone())) {
            return known;
        }
        let found = self.instances(slo, cores, 0.0, (0, u16::MAX), &mut key.clone());
        self.seen.insert((slo, key), found);
        found
    }

    /// Returns `true` if instances after `from` (a room, and a maximum of ways) provide the remaining rate.
    fn instances(
        &mut self,
        slo: usize,
        cores: u16,
        rate: f64,
        from: (usize, u16),
        rooms: &mut Vec<(u16, u16)>,
    ) -> bool {
        if self.demands[slo].0.is_met(rate) {
            return self.fits(slo + 1, &rooms.clone());
        }
        for room in from.0..rooms.len() {
            let most = if room == from.0 { from.1 } else { u16::MAX };
            for ways in (1..=rooms[room].1.min(most)).rev() {
                if rooms[room].0 < cores {
                    break;
                }
                rooms[room].0 -= cores;
                rooms[room].1 -= ways;
                let more = self.demands[slo].0.rate(0, ways);
                let found = more > 0.0 && self.instances(slo, cores, rate + more, (room, ways), rooms);
                rooms[room].0 += cores;
                rooms[room].1 += ways;
                if found {
                    return true;
                }
            }
        }
        false
    }
}

/// Returns a chain whose rate rises with each way by these steps.
fn chain(cores: u16, steps: &[u16]) -> ChainProfile {
    let mut rate = 20.0;
    let points = steps.iter().enumerate().map(|(i, step)| {
        rate += f64::from(*step);
        (1 + i as u64, rate)
    });
    ChainProfile {
        name: "chain".into(),
        configuration: None,
        traffic: None,
        percentile: None,
        curves: vec![Curves {
            machine: "m".into(),
            cores,
            cache: CacheCurve::new(points.collect()).expect("a curve"),
            load: LoadCurve::new(vec![(1.0, Nanos(1))]).expect("a curve"),
        }],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_plan_has_fewer_servers(
        (nodes, cores, ways) in (1u16..3, 2u16..4, 2u16..5),
        slos in prop::collection::vec(
            (1u16..3, prop::collection::vec(0u16..30, 4), 10u16..110), 1..5),
    ) {
        let kind = ServerKind {
            machine: "m".into(),
            nodes,
            cores,
            ways,
            way_bytes: 1,
            classes: 16,
        };
        let cluster = Cluster::uniform(kind, 40).expect("servers");
        let requests: Vec<Request> = slos.iter().enumerate().map(|(i, (cores, steps, need))| {
            let slo = Slo {
                name: format!("slo-{i}"),
                chain: Arc::new(chain(*cores, steps)),
                target: Target::Reserved { throughput: f64::from(*need) },
                latency: Nanos(1),
                cap: None,
                spread: false,
                apart: None,
            };
            Request::new(slo, &cluster).expect("a server holds it")
        }).collect();
        let demands: Vec<(Demand, u16)> = requests.iter().zip(&slos)
            .map(|(request, slo)| (request.demand.clone(), slo.0)).collect();
        let optimised = optimise(&cluster, &requests, Effort::default()).expect("a plan");
        prop_assert_eq!(check(&cluster, optimised.plan.placed()), vec![]);
        let fewer = optimised.plan.active() - 1;
        let rooms = vec![(cores, ways); fewer * usize::from(nodes)];
        let mut trial = Trial { demands: &demands, seen: HashMap::new() };
        prop_assert!(!trial.fits(0, &rooms), "{} servers are enough", fewer);
        prop_assert!(optimised.least() <= optimised.plan.active());
        for scheduler in [&ResqGreedy as &dyn Scheduler, &Tailwater] {
            let mut plan = Plan::new(cluster.clone());
            prop_assert!(place_all(scheduler, &mut plan, &requests).is_ok());
            prop_assert!(plan.active() >= optimised.plan.active());
        }
    }
}
