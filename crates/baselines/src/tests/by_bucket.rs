//! Tests of controllers of flows that decide about RSS buckets.

use super::Server;
use crate::{
    ByBucket, Dyssect, DyssectConfig, LIFETIME, Metron, MetronConfig, Quadrant, QuadrantConfig, QuadrantMetron,
};
use proptest::prelude::*;
use tailwater_net::Nanos;
use tailwater_policy::flows::{CoreSignals, FlowLoad, FlowMapper, FlowPlan, FlowView};
use tailwater_policy::server::{CoreNumber, Move, ServerMapper};

/// New flows go below 140 µs, migration starts above 180 µs.
const SLO: Nanos = Nanos::from_micros(200);
const MAX_RATE: f64 = 100.0;

fn quadrant() -> ByBucket<Quadrant> {
    let config = QuadrantConfig::as_compared(SLO, MAX_RATE);
    ByBucket::new(Quadrant::new(QuadrantConfig {
        smoothing: Nanos::ZERO,
        ..config
    }))
}

/// Creates a server with buckets of (core, packets/s) and each core's worst delay in µs.
fn server(buckets: &[(CoreNumber, f64)], delays: &[u64]) -> Server {
    let mut server = Server::new(delays.len(), buckets);
    for (core, &delay) in server.cores.iter_mut().zip(delays) {
        core.worst_delay = Nanos::from_micros(delay);
    }
    server
}

/// Returns the decision of a controller of flows about the buckets with packets.
fn decision(controller: &mut impl FlowMapper, server: &Server) -> (Vec<(u16, CoreNumber)>, FlowPlan) {
    let mut flows = Vec::new();
    let signals = server.cores.iter().map(|core| CoreSignals {
        active: core.dedicated,
        busy: core.busy,
        lost: core.lost,
        batch_p99: core.batch_p99,
        worst_delay: core.worst_delay,
        rate: 0.0,
    });
    let mut cores: Vec<_> = signals.collect();
    for (shard, bucket) in server.buckets.iter().enumerate().filter(|(_, b)| b.rate > 0.0) {
        cores[usize::from(bucket.core)].rate += bucket.rate;
        flows.push(FlowLoad {
            core: bucket.core,
            shard: shard as u16,
            rate: bucket.rate,
        });
    }
    let mut plan = FlowPlan::default();
    let view = FlowView {
        now: Nanos::from_secs(1),
        flows: &flows,
        shards: &server.owners(),
        cores: &cores,
    };
    controller.decide(&view, &mut plan);
    let migrations = plan.migrations.iter();
    let moved = migrations.map(|migration| (flows[migration.flow as usize].shard, migration.to));
    (moved.collect(), plan)
}

#[test]
fn quadrant_moves_the_rate_of_equation_four_off_a_core_beyond_beta() {
    // Core 0 has 90 of 100 packets/s and 200 µs: 90 * 60/200 * 0.25 = 6.75 must leave. Bucket 1 is too large, buckets
    // 2 and 3 fit, and half of the core's four is the limit.
    let buckets = [(1, 50.0), (0, 80.0), (0, 4.0), (0, 2.0), (0, 4.0)];
    let moves = server(&buckets, &[200, 20, 20]).period(&mut quadrant());
    assert_eq!(moves, [Move { bucket: 2, to: 1 }, Move { bucket: 3, to: 1 }]);
    // Between α and β nothing leaves but the bucket whose turn it is to be placed anew.
    let mut between = server(&buckets, &[170, 20, 20]);
    let mut mapper = quadrant();
    assert_eq!(between.period(&mut mapper), [], "where it is, on core 1");
    assert_eq!(between.period(&mut mapper), [Move { bucket: 1, to: 2 }], "a new core");
    assert_eq!(between.period(&mut mapper), [Move { bucket: 2, to: 2 }], "the fullest");
    // Without room and without a free core it stays.
    let mut full = server(&buckets, &[170, 20]);
    let mut mapper = quadrant();
    assert_eq!([full.period(&mut mapper), full.period(&mut mapper)], [[], []]);
}

#[test]
fn quadrant_starts_a_core_for_new_flows_and_drains_one_that_gets_none() {
    let buckets = [(0, 1.0); 40];
    let mut server = server(&buckets, &[170, 170, 170]);
    let mut mapper = quadrant();
    assert_eq!(server.period(&mut mapper).len(), 2, "a twentieth in 50 ms");
    assert_eq!(server.dedicated(), 2);
    // Load falls: both are below α. The fuller gets the flows, and the other one is empty within a second.
    for core in &mut server.cores {
        core.worst_delay = Nanos::from_micros(10);
    }
    let mut periods = 0;
    while server.dedicated() > 1 {
        assert!(server.period(&mut mapper).len() <= 2);
        periods += 1;
        assert!(Nanos(periods * mapper.period().0) <= LIFETIME);
    }
    assert_eq!(server.owners(), [0; 40]);
    for _ in 0..40 {
        assert_eq!(server.period(&mut mapper), [], "all are where they belong");
    }
}

#[test]
fn buckets_without_packets_are_placed_at_once() {
    let buckets: Vec<_> = (0..64).map(|bucket| (bucket % 4, 0.0)).collect();
    let mut server = server(&buckets, &[0; 4]);
    server.period(&mut quadrant());
    assert_eq!(server.dedicated(), 1);
    assert_eq!(server.owners(), [0; 64]);
}

#[test]
fn metron_inside_quadrant_is_metron_with_quadrants_period() {
    let buckets: Vec<_> = (0..64).map(|bucket| (0, f64::from(bucket % 3))).collect();
    let mut one = server(&buckets, &[0; 4]);
    let mut other = one.clone();
    let mut inside = ByBucket::new(QuadrantMetron::new());
    let mut metron = Metron::new(MetronConfig {
        period: inside.period(),
        enforcement_delay: Nanos::from_millis(10),
        ..MetronConfig::default()
    });
    let mut moved = 0;
    for period in 0..40 {
        for server in [&mut one, &mut other] {
            server.cores[0].lost = u64::from(period < 10);
        }
        let moves = one.period(&mut inside);
        assert_eq!(moves, other.period(&mut metron));
        moved += moves.len();
    }
    assert!(moved > 64, "{moved}");
    assert_eq!(MetronConfig::on_one_server().enforcement_delay, Nanos::ZERO);
}

/// A packet takes 10 ms: 1 packet/s is 1 % of a core. The bound is 80 %.
fn dyssect() -> Dyssect {
    Dyssect::new(DyssectConfig {
        bound: 0.8,
        ..DyssectConfig::for_median(Nanos::from_secs(1), Nanos::from_millis(10))
    })
}

#[test]
fn dyssect_moves_shards_and_empties_cores() {
    let buckets = [(0, 40.0), (0, 20.0), (0, 25.0), (0, 10.0), (1, 30.0), (2, 0.0)];
    let mut server = server(&buckets, &[0; 3]);
    let mut mapper = ByBucket::new(dyssect());
    assert_eq!(server.period(&mut mapper), [Move { bucket: 1, to: 1 }]);
    assert_eq!(server.period(&mut mapper), [Move { bucket: 5, to: 1 }]);
    assert_eq!(server.dedicated(), 2);
    // One flow cannot be taken out of its bucket: what exceeds a core stays, alone.
    server.buckets[0].rate = 120.0;
    server.settle();
    server.period(&mut mapper);
    let owners = server.owners();
    assert!(owners[1..].iter().all(|owner| *owner != owners[0]), "{owners:?}");
    for _ in 0..5 {
        server.period(&mut mapper);
        assert_eq!(server.owners()[0], owners[0]);
    }
}

/// Returns loads of buckets, and the core of each.
fn loads() -> impl Strategy<Value = Vec<(CoreNumber, f64)>> {
    let bucket = (0_u16..4, 0_u32..30).prop_map(|(core, rate)| (core, f64::from(rate)));
    proptest::collection::vec(bucket, 1..100)
}

proptest! {
    /// Buckets of which the controller would migrate the flow move there. Others move only if their turn has come, or
    /// without packets.
    #[test]
    fn quadrant_decides_as_it_does_about_flows(
        buckets in loads(),
        delays in proptest::collection::vec(0_u64..400, 5),
    ) {
        let mut server = server(&buckets, &delays);
        let config = QuadrantConfig::as_compared(SLO, MAX_RATE);
        let mut controller = Quadrant::new(QuadrantConfig { smoothing: Nanos::ZERO, ..config });
        let (migrated, _) = decision(&mut controller, &server);
        let moves = server.period(&mut quadrant());
        for &(bucket, to) in &migrated {
            let expected = Move { bucket, to };
            prop_assert!(moves.contains(&expected));
        }
        let is_migrated = |bucket: u16| migrated.iter().any(|(migrated, _)| *migrated == bucket);
        let turn = buckets.len().div_ceil(20);
        for Move { bucket, .. } in moves {
            let bucket_index = usize::from(bucket);
            let is_placed = bucket_index < turn || buckets[bucket_index].1 == 0.0;
            prop_assert!(is_migrated(bucket) || is_placed, "bucket {}", bucket);
        }
    }

    /// Dyssect never takes a bucket's load off the bucket's core, and moves the same shards.
    #[test]
    fn dyssect_moves_only_shards(buckets in loads()) {
        let mut server = server(&buckets, &[0; 6]);
        let (migrated, plan) = decision(&mut dyssect(), &server);
        prop_assert_eq!(migrated, []);
        let mut moves = plan.moves;
        moves.sort_unstable_by_key(|moved| moved.bucket);
        prop_assert_eq!(server.period(&mut ByBucket::new(dyssect())), moves);
    }
}
