//! Tailwater's server mapper, tested through its public interface: number of cores, even load, and plans without
//! allocation.

mod server;

use proptest::prelude::*;
use server::{Server, allocations};
use tailwater_policy::capacity::RateFrontier;
use tailwater_policy::server::{TailwaterServerConfig, TailwaterServerMapper};

/// Returns Tailwater's mapper for cores of 100 packets/s.
fn tailwater(pooled: f64) -> TailwaterServerMapper {
    let config = TailwaterServerConfig {
        pooled,
        ..TailwaterServerConfig::default()
    };
    TailwaterServerMapper::new(config, RateFrontier::constant(100.0))
}

/// Returns a server whose first core has 512 buckets of equal rates with the sum `rate`.
fn all_on_one(cores: usize, rate: f64) -> Server {
    let buckets: Vec<_> = (0..512).map(|_| (0, 0.0, rate / 512.0)).collect();
    Server::new(cores, &buckets)
}

#[test]
fn tailwaters_cores_are_as_few_as_hold_the_load_and_go_when_it_falls() {
    let (mut server, mut mapper) = (all_on_one(64, 960.0), tailwater(1.0));
    // Ten cores are filled to 96 %.
    server.period(&mut mapper);
    assert_eq!(server.dedicated(), 10);
    assert!(server.period(&mut mapper).is_empty(), "nothing has changed");
    // Nine cores would be filled to 97 %: too full to release the tenth.
    let scale = |server: &mut Server, by: f64| {
        server.buckets.iter_mut().for_each(|bucket| bucket.rate *= by);
    };
    scale(&mut server, 870.0 / 960.0);
    assert!(server.period(&mut mapper).is_empty());
    let periods = |server: &mut Server, mapper: &mut TailwaterServerMapper, count| {
        (0..count).for_each(|_| drop(server.period(mapper).to_vec()));
        server.dedicated()
    };
    scale(&mut server, 830.0 / 870.0);
    // The load must have fit for eight periods.
    assert_eq!(periods(&mut server, &mut mapper, 7), 10);
    assert_eq!(periods(&mut server, &mut mapper, 1), 9);
    scale(&mut server, 0.0);
    assert_eq!(periods(&mut server, &mut mapper, 8), 1);
}

#[test]
fn dispatchers_own_several_cores_load_while_the_server_has_cores_to_spare() {
    let dedicated = |rate: f64| {
        let mut server = all_on_one(64, rate);
        server.period(&mut tailwater(4.0));
        server.dedicated()
    };
    // 90 packets/s load one core, 800 packets/s two pools of four cores. Beyond a quarter of the server, pools get
    // smaller.
    assert_eq!(dedicated(90.0), 1);
    assert_eq!(dedicated(770.0), 2);
    assert_eq!(dedicated(3200.0), 17);
    assert_eq!(dedicated(6400.0), 64);
}

/// Packets of a bucket that exceeds a core are late until auxiliary cores take functions of it, which there were none
/// to: all cores became dedicated.
#[test]
fn cores_are_left_to_a_bucket_that_exceeds_one() {
    let beside = |whales: usize, divides: bool, whale: f64, late: f64, periods: usize| {
        let buckets: Vec<_> = (0..512)
            .map(|bucket| (0, 1.0, if bucket < whales { whale } else { 100.0 / 511.0 }))
            .collect();
        let config = TailwaterServerConfig {
            divides,
            ..TailwaterServerConfig::default()
        };
        let mut mapper = TailwaterServerMapper::new(config, RateFrontier::constant(100.0));
        let mut server = Server::new(8, &buckets);
        server.late = late;
        (0..periods).for_each(|_| drop(server.period(&mut mapper).to_vec()));
        server.dedicated()
    };
    let after = |divides, whale, late, periods| beside(1, divides, whale, late, periods);
    assert_eq!(after(false, 150.0, 0.1, 2), 8);
    // Its load takes three cores divided, and another is for bursts.
    assert_eq!(after(true, 150.0, 0.05, 20), 4);
    assert_eq!(after(true, 105.0, 0.05, 20), 5);
    assert_eq!(after(true, 90.0, 0.1, 2), 8);
    // It did not help.
    assert_eq!(after(true, 150.0, 0.5, 2), 4);
    assert_eq!(after(true, 150.0, 0.5, 4), 8);
    // Nearly full.
    assert_eq!(after(true, 700.0, 0.1, 2), 8);
    // Two whales have a dedicated core each; three would have to share one, in which all are worse off than whole.
    assert_eq!(beside(2, true, 105.0, 0.05, 20), 3);
    assert_eq!(beside(3, true, 105.0, 0.05, 2), 8);
}

proptest! {
    /// For any previous distribution, two cores differ afterwards by at most two buckets plus the tolerated imbalance.
    #[test]
    fn tailwaters_cores_are_equally_full(
        buckets in prop::collection::vec((0_u16..16, 0.0_f64..40.0, 0.0_f64..2.0), 1..300),
        pooled in 1.0_f64..5.0,
    ) {
        let loads: Vec<_> = buckets.iter().map(|&(core, flows, rate)| (core, flows, rate)).collect();
        let (mut server, mut mapper) = (Server::new(16, &loads), tailwater(pooled));
        server.period(&mut mapper);
        let cores: Vec<f64> = (0..16).filter(|core| server.cores[*core].dedicated)
            .map(|core| server.on(core).1).collect();
        let largest = server.buckets.iter().map(|bucket| bucket.rate).fold(0.0, f64::max);
        let (most, least) = (cores.iter().copied().fold(0.0, f64::max), cores.iter().copied().fold(f64::MAX, f64::min));
        let mean = cores.iter().sum::<f64>() / cores.len() as f64;
        // Once all cores are dedicated, an even spread of buckets may differ more.
        let spread = cores.len() == 16 && most <= 1.2 * mean + 1e-9;
        prop_assert!(spread || most - least <= 2.0 * largest + 0.04 * mean + 1e-9, "{cores:?}");
    }
}

#[test]
fn no_plan_allocates() {
    assert_eq!(allocations(&mut tailwater(1.0)), 0);
}
