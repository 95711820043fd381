//! Cache classes and anti-affinity: the lower bound counts them, and plans reach it or come close to it.

use std::collections::HashMap;
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::check::check;
use tailwater_placement::cluster::{Cluster, ServerKind};
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::demand::Demand;
use tailwater_placement::plan::Plan;
use tailwater_placement::reconcile::reconcile;
use tailwater_placement::slo::{ChainProfile, Curves, ISOLATED, Slo, Target};
use tailwater_placement::tailwater::Tailwater;

fn cluster(cores: u16, ways: u16, classes: u16, servers: usize) -> Cluster {
    let kind = ServerKind {
        machine: "m".into(),
        nodes: 1,
        cores,
        ways,
        way_bytes: 1,
        classes,
    };
    Cluster::uniform(kind, servers).expect("servers")
}

/// Returns an SLO whose instances have these rates with 1, 2, 3 ... ways.
fn slo(name: String, rates: &[f64], need: f64) -> Slo {
    let points = rates.iter().zip(1..).map(|(&rate, ways)| (ways, rate));
    let chain = ChainProfile {
        name: name.clone(),
        configuration: None,
        traffic: None,
        percentile: None,
        curves: vec![Curves {
            machine: "m".into(),
            cores: 1,
            cache: CacheCurve::new(points.collect()).expect("a curve"),
            load: LoadCurve::new(vec![(1.0, Nanos(1))]).expect("a curve"),
        }],
    };
    Slo {
        name,
        chain: Arc::new(chain),
        target: Target::Reserved {
            throughput: need * ISOLATED,
        },
        latency: Nanos(1),
        cap: None,
        spread: false,
        apart: None,
    }
}

/// Places all SLOs, which must fit, and returns the lower bound and the servers used.
fn placed(cluster: &Cluster, slos: &[Slo]) -> (usize, usize) {
    let outcome = reconcile(cluster, &[], slos, &[], &Tailwater);
    assert_eq!(check(cluster, outcome.plan.placed()), []);
    assert_eq!(outcome.plan.placed().len(), slos.len());
    // Servers that were closed in between are open again.
    let mut left = outcome.plan.clone();
    slos.iter().for_each(|slo| assert!(left.remove(&slo.name).is_some()));
    assert_eq!(left, Plan::new(cluster.clone()));
    (outcome.plan.least_servers(), outcome.plan.active())
}

#[test]
fn classes_count_in_the_bound_and_in_the_plan() {
    // By cores and cache, seven servers; by classes, each of the 63 SLOs takes one of three. Two instances with a way
    // each would be an alternative to one with two, which costs no more cache, but a class.
    let cluster = cluster(9, 18, 3, 60);
    let slos: Vec<Slo> = (0..63)
        .map(|i| slo(format!("slo-{i}"), &[50.0, 100.0], 100.0))
        .collect();
    assert_eq!(placed(&cluster, &slos), (21, 21));
}

#[test]
fn a_group_counts_in_the_bound_and_its_last_slos_find_the_servers_in_use() {
    let cluster = cluster(8, 16, 16, 60);
    let mut slos: Vec<Slo> = (0..24)
        .map(|i| slo(format!("slo-{i}"), &[50.0, 100.0], 100.0))
        .collect();
    for i in 0..21 {
        slos.push(Slo {
            apart: Some("replicas".into()),
            ..slo(format!("replica-{i}"), &[50.0, 100.0], 100.0)
        });
    }
    assert_eq!(placed(&cluster, &slos), (21, 21));
}

#[test]
fn spread_counts_in_the_bound() {
    let cluster = cluster(4, 8, 16, 60);
    let mut slos: Vec<Slo> = (0..40)
        .map(|i| slo(format!("slo-{i}"), &[50.0, 100.0], 100.0))
        .collect();
    slos.push(Slo {
        spread: true,
        ..slo("everywhere".into(), &[50.0, 100.0], 2050.0)
    });
    assert_eq!(placed(&cluster, &slos), (21, 21));
}

#[test]
fn separated_slos_of_one_group_add_up_in_the_bound() {
    let cluster = cluster(8, 16, 16, 60);
    let replica = |i: usize| Slo {
        spread: true,
        apart: Some("replicas".into()),
        ..slo(format!("replica-{i}"), &[50.0, 100.0], 250.0)
    };
    let slos: Vec<Slo> = (0..7).map(replica).collect();
    assert_eq!(placed(&cluster, &slos), (21, 21));
}

/// Random numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % limit
    }
}

/// Server of the exhaustive search: free cores, ways and classes, the groups on it, and the current SLO's presence.
type Room = (u16, u16, u16, u64, bool);

/// Finds the fewest servers by trying all instances on all servers.
struct Exhaustive<'a> {
    slos: &'a [(Slo, Demand)],
    seen: HashMap<(usize, Vec<Room>), bool>,
}

impl Exhaustive<'_> {
    fn fits(&mut self, slo: usize, rooms: &[Room]) -> bool {
        if slo == self.slos.len() {
            return true;
        }
        let mut key = rooms.to_vec();
        key.iter_mut().for_each(|room| room.4 = false);
        key.sort_unstable();
        if let Some(&known) = self.seen.get(&(slo, key.clone())) {
            return known;
        }
        let found = self.instances(slo, 0.0, (0, u16::MAX), &mut key.clone());
        self.seen.insert((slo, key), found);
        found
    }

    /// Returns `true` if instances after `from` (a server, and a maximum of ways) provide the remaining rate.
    fn instances(&mut self, number: usize, rate: f64, from: (usize, u16), rooms: &mut Vec<Room>) -> bool {
        let (slo, demand) = &self.slos[number];
        if demand.is_met(rate) {
            return self.fits(number + 1, &rooms.clone());
        }
        let group = slo
            .apart
            .as_ref()
            .map_or(0, |group| 1 << group.parse::<u32>().expect("a number"));
        let spread = slo.spread;
        for server in from.0..rooms.len() {
            let before = rooms[server];
            let (cores, ways, classes, groups, here) = before;
            if cores == 0 || classes == 0 || (here && spread) || (!here && groups & group != 0) {
                continue;
            }
            let most = if server == from.0 { from.1 } else { u16::MAX };
            for ways_taken in (1..=ways.min(most)).rev() {
                let more = self.slos[number].1.rate(0, ways_taken);
                rooms[server] = (cores - 1, ways - ways_taken, classes - 1, groups | group, true);
                let found = more > 0.0 && self.instances(number, rate + more, (server, ways_taken), rooms);
                rooms[server] = before;
                if found {
                    return true;
                }
            }
        }
        false
    }
}

fn optimum(cluster: &Cluster, slos: &[Slo]) -> usize {
    let demands = slos
        .iter()
        .map(|slo| (slo.clone(), Demand::new(slo, cluster).expect("it fits")));
    let demands: Vec<(Slo, Demand)> = demands.collect();
    let kind = &cluster.kinds()[0];
    let fits = |servers: &usize| {
        let mut search = Exhaustive {
            slos: &demands,
            seen: HashMap::new(),
        };
        let room = (kind.cores, kind.ways, kind.classes, 0, false);
        search.fits(0, &vec![room; *servers])
    };
    (1..).find(fits).expect("enough servers")
}

/// Returns SLOs with few classes, groups and spread instances.
fn random_slos(random: &mut Random) -> Vec<Slo> {
    let number = 3 + random.below(4);
    let slos = (0..number).map(|i| {
        let mut rate = 20.0;
        let rates = [(); 4].map(|()| {
            rate += random.below(30) as f64;
            rate
        });
        let need = 20 + random.below(90);
        Slo {
            spread: random.below(2) == 0,
            apart: (random.below(2) == 0).then(|| random.below(2).to_string()),
            ..slo(format!("slo-{i}"), &rates, need as f64)
        }
    });
    slos.collect()
}

#[test]
fn small_plans_come_within_five_percent_of_the_optimum() {
    let (mut used, mut least) = (0, 0);
    for seed in 0..60 {
        let mut random = Random(seed);
        let (cores, ways, classes) = (2 + random.below(3), 3 + random.below(3), 1 + random.below(3));
        let cluster = cluster(cores as u16, ways as u16, classes as u16, 40);
        let slos = random_slos(&mut random);
        let (bound, servers) = placed(&cluster, &slos);
        let optimum = optimum(&cluster, &slos);
        assert!(
            bound <= optimum && optimum <= servers,
            "seed {seed}: {bound}, {optimum}, {servers}"
        );
        used += servers;
        least += optimum;
    }
    assert!(used * 100 <= least * 105, "{used} servers, {least} at least");
}

/// Returns SLOs that fill the classes of `servers` servers, and the cores or cache of some: no plan has fewer servers.
fn packed(random: &mut Random, servers: u64, classes: u64) -> Vec<Slo> {
    let mut slos: Vec<Slo> = Vec::new();
    let rates = [40.0, 75.0, 100.0, 120.0, 130.0];
    let mut push = |sizes: &[usize], spread: bool, apart: Option<u64>| {
        let need: f64 = sizes.iter().map(|&ways| rates[ways - 1]).sum();
        slos.push(Slo {
            spread,
            apart: apart.map(|group| group.to_string()),
            ..slo(format!("slo-{}", slos.len()), &rates, need)
        });
    };
    // The first class of each server belongs to a group, the second of each three servers to a spread SLO.
    (0..servers).for_each(|_| push(&[1 + random.below(4) as usize], false, Some(0)));
    for _ in 0..servers / 3 {
        push(&[5, 5, 5], true, None);
    }
    for _ in 0..servers * (classes - 2) {
        push(&[1 + random.below(4) as usize], false, None);
    }
    // In any order.
    for i in (1..slos.len()).rev() {
        slos.swap(i, random.below(i as u64 + 1) as usize);
    }
    slos
}

#[test]
fn packed_plans_come_within_five_percent_of_the_optimum() {
    for seed in 0..6 {
        let mut random = Random(seed);
        let servers = 3 * (7 + random.below(4));
        let cluster = cluster(6, 16, 4, 80);
        let slos = packed(&mut random, servers, 4);
        let (bound, used) = placed(&cluster, &slos);
        let servers = servers as usize;
        assert!(bound <= servers, "seed {seed}: {bound} of {servers}");
        assert!(used * 100 <= servers * 105, "seed {seed}: {used} of {servers}");
    }
}
