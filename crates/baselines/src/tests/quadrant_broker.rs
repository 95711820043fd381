//! Quadrant's signals as a core broker.

use crate::{QuadrantBroker, QuadrantConfig, shed_rate};
use tailwater_net::Nanos;
use tailwater_policy::broker::{
    BrokerCore, ChainCores, ChainLoad, ChainSignals, CoreBroker, CorePlan, CoreUse, Lease, LendPlan, LendView,
    ResizeView,
};

const SLO: Nanos = Nanos::from_micros(200);
const MAX_RATE: f64 = 1e6;

fn broker() -> QuadrantBroker {
    QuadrantBroker::new(QuadrantConfig::new(SLO, MAX_RATE), 1)
}

/// Chain with these signals: batch time in µs, rate of that core, total rate, idle cores.
fn chain(batch_p99: u64, rate: f64, total_rate: f64, idle_cores: u16) -> ChainCores {
    ChainCores {
        load: ChainLoad {
            objective: SLO,
            ..ChainLoad::default()
        },
        signals: ChainSignals {
            batch_p99: Nanos::from_micros(batch_p99),
            rate,
            max_rate: MAX_RATE,
            total_rate,
            idle_cores,
            ..ChainSignals::default()
        },
        ..ChainCores::default()
    }
}

fn resize(broker: &mut QuadrantBroker, uses: &[CoreUse], chains: &[ChainCores]) -> CorePlan {
    let cores: Vec<BrokerCore> = uses.iter().map(|&usage| BrokerCore { node: 0, usage }).collect();
    let view = ResizeView {
        now: Nanos::ZERO,
        cores: &cores,
        chains,
    };
    let mut plan = CorePlan::default();
    broker.resize(&view, &mut plan);
    plan
}

#[test]
fn beta_decides_whether_and_equation_4_how_many_cores_are_added() {
    let uses = [CoreUse::Dedicated(0), CoreUse::Free, CoreUse::Free];
    // Twice the batch time against 0.9 of the objective.
    for (batch, added) in [(90, 0), (91, 1)] {
        let plan = resize(&mut broker(), &uses, &[chain(batch, 9e5, 9e5, 0)]);
        assert_eq!(plan.add.len(), added, "{batch}");
        assert_eq!(plan.ready, [1]);
    }
    // Six times the highest rate: equation 4 sheds more than a core's limit.
    let shed = shed_rate(6e6, MAX_RATE, Nanos::from_millis(2), Nanos::from_micros(140));
    assert!(shed > 9e5 && shed < 1.8e6, "{shed}");
    let plan = resize(&mut broker(), &uses, &[chain(1_000, 6e6, 6e6, 0)]);
    assert_eq!(plan.add.len(), 2);
    assert_eq!((plan.add[0].core, plan.add[1].core), (1, 2));
}

#[test]
fn instances_with_room_take_the_flows() {
    let uses = [CoreUse::Dedicated(0), CoreUse::Dedicated(0), CoreUse::Free];
    // The other one has 0.1 million of 0.9.
    assert_eq!(resize(&mut broker(), &uses, &[chain(100, 9e5, 1e6, 0)]).add, []);
    assert_eq!(resize(&mut broker(), &uses, &[chain(100, 9e5, 1.8e6, 0)]).add.len(), 1);
}

#[test]
fn idle_cores_are_reclaimed_except_the_last() {
    let uses = [CoreUse::Dedicated(0), CoreUse::Dedicated(0), CoreUse::Dedicated(0)];
    let plan = resize(&mut broker(), &uses, &[chain(10, 1e5, 1e5, 2)]);
    assert_eq!(plan.remove.iter().map(|change| change.core).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(resize(&mut broker(), &uses[..1], &[chain(0, 0.0, 0.0, 1)]).remove, []);
    // A chain without any gets one.
    assert_eq!(
        resize(&mut broker(), &[CoreUse::Free], &[chain(0, 0.0, 0.0, 0)])
            .add
            .len(),
        1
    );
}

#[test]
fn nothing_is_lent() {
    let lease = Lease {
        core: 0,
        chain: 0,
        dispatcher: 1,
        until: Nanos(10),
    };
    let usage = CoreUse::Lent(lease);
    let view = LendView {
        now: Nanos::ZERO,
        cores: &[BrokerCore { node: 0, usage }],
        chains: &[ChainLoad::default()],
        queues: &[],
    };
    let mut plan = LendPlan::default();
    broker().lend(&view, &mut plan);
    assert_eq!((&plan.end[..], &plan.lend[..]), (&[lease][..], &[][..]));
}
