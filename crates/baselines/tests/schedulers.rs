//! Schedulers that give each instance its own cache, on the mixes of ResQ's evaluation.

use tailwater_baselines::schedulers::ResqGreedy;
use tailwater_placement::bound::whole;
use tailwater_placement::check::check;
use tailwater_placement::cluster::Cluster;
use tailwater_placement::plan::Plan;
use tailwater_placement::published::{MIXES, server, slos};
use tailwater_placement::schedule::{Request, Scheduler, place_all};
use tailwater_placement::tailwater::Tailwater;

/// Places all SLOs of a mix one after the other. None may be violated.
fn placed(scheduler: &dyn Scheduler, mix: usize) -> Plan {
    let cluster = Cluster::uniform(server(), 100).expect("servers");
    let mut plan = Plan::new(cluster);
    let slos = slos(MIXES[mix]).expect("curves").into_iter();
    let requests: Vec<Request> = slos
        .map(|slo| Request::new(slo, plan.cluster()).expect("a server holds it"))
        .collect();
    place_all(scheduler, &mut plan, &requests).expect("room");
    assert_eq!(check(plan.cluster(), plan.placed()), []);
    plan
}

#[test]
fn resq_needs_as_many_machines_as_published() {
    for (mix, machines) in [22, 35, 45].into_iter().enumerate() {
        assert_eq!(placed(&ResqGreedy, mix).active(), machines, "mix {mix}");
    }
}

#[test]
fn tailwater_needs_one_machine_more_than_the_bound_at_most() {
    for (mix, least) in [22, 28, 34].into_iter().enumerate() {
        let plan = placed(&Tailwater, mix);
        assert_eq!(whole(plan.cheapest().servers()), least, "mix {mix}");
        let machines = plan.active();
        assert!(machines <= least + 1, "mix {mix}: {machines}");
    }
}

#[test]
fn instances_of_a_spread_slo_are_on_different_servers_and_groups_apart() {
    for scheduler in [&ResqGreedy as &dyn Scheduler, &Tailwater] {
        let cluster = Cluster::uniform(server(), 12).expect("servers");
        let mut plan = Plan::new(cluster);
        let all = slos(MIXES[2]).expect("curves");
        for (number, slo) in all.into_iter().take(24).enumerate() {
            let mut slo = slo;
            slo.spread = number % 2 == 0;
            slo.apart = (number % 5 == 0).then(|| "replicas".to_owned());
            let request = Request::new(slo, plan.cluster()).expect("a server holds it");
            let Some(instances) = scheduler.place(&plan, &request) else {
                // Full, or not enough servers without the group.
                continue;
            };
            plan.put(&request, instances).expect("what it said");
        }
        assert!(plan.placed().len() > 12, "{}", plan.placed().len());
        assert_eq!(check(plan.cluster(), plan.placed()), []);
    }
}
