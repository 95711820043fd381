//! Server mappers of NetBlaze, Tailwater and the baselines, through their public interface: invariants of every plan,
//! comparison with brute force where possible, and absence of allocations.

#[path = "../../policy/tests/server/mod.rs"]
mod server;

use proptest::prelude::*;
use server::{Server, allocations};
use tailwater_baselines::netblaze::{NetBlazeServerConfig, NetBlazeServerMapper};
use tailwater_baselines::{
    ByBucket, Dyssect, DyssectConfig, Metron, MetronConfig, Quadrant, QuadrantConfig, QuadrantMetron, RssPlusPlus,
    RssPlusPlusConfig,
};
use tailwater_net::Nanos;
use tailwater_policy::capacity::RateFrontier;
use tailwater_policy::server::{CoreNumber, Move, ServerMapper};

/// Frontier of 100 packets/s up to 50 flows and 60 at 51 flows. Beyond, it falls inversely with the flows.
fn two_steps() -> RateFrontier {
    let mut frontier = RateFrontier::new();
    frontier.insert(50, 100.0);
    frontier.insert(51, 60.0);
    frontier
}

fn mapper(config: NetBlazeServerConfig) -> NetBlazeServerMapper {
    NetBlazeServerMapper::new(config, two_steps())
}

/// Configuration with step 1 only: no core has room for another's buckets in reclaiming.
fn no_reclaim() -> NetBlazeServerConfig {
    NetBlazeServerConfig {
        fill: 1.0,
        reclaim_fill: 1e-9,
        ..NetBlazeServerConfig::default()
    }
}

#[test]
fn the_smallest_bucket_that_suffices_leaves_an_overloaded_core() {
    let mut server = Server::new(
        3,
        &[
            (0, 1.0, 40.0),
            (0, 1.0, 30.0),
            (0, 1.0, 20.0),
            (0, 1.0, 25.0),
            (1, 1.0, 50.0),
        ],
    );
    let moves = server.period(&mut mapper(no_reclaim()));
    // 115 of 100 packets/s: 20 must leave, and core 1 is the first with room.
    assert_eq!(moves, [Move { bucket: 2, to: 1 }]);
}

#[test]
fn many_flows_overload_a_core_whose_rate_is_low() {
    let buckets = [(0, 30.0, 35.0), (0, 30.0, 35.0), (1, 1.0, 90.0)];
    let mut server = Server::new(3, &buckets);
    // 70 packets/s of 60 flows: the profile allows 51.
    assert_eq!(server.period(&mut mapper(no_reclaim())), [Move { bucket: 0, to: 2 }]);
    // Static-unsafe ignores it.
    let mut unsafe_mapper = NetBlazeServerMapper::new(no_reclaim(), two_steps().static_unsafe());
    assert_eq!(Server::new(3, &buckets).period(&mut unsafe_mapper), []);
    // Static-safe considers 90 packets/s an overload, too, but no core is better for a single bucket.
    let mut safe_mapper = NetBlazeServerMapper::new(no_reclaim(), two_steps().static_safe());
    let mut server = Server::new(3, &[(0, 1.0, 35.0), (0, 1.0, 35.0), (1, 1.0, 90.0)]);
    assert_eq!(server.period(&mut safe_mapper), [Move { bucket: 0, to: 2 }]);
}

#[test]
fn a_bucket_beyond_any_core_gets_one_of_its_own_and_stays_there() {
    let mut server = Server::new(4, &[(0, 1.0, 250.0), (0, 1.0, 30.0), (0, 1.0, 30.0), (1, 1.0, 20.0)]);
    let mut mapper = mapper(NetBlazeServerConfig::default());
    assert_eq!(server.period(&mut mapper), [Move { bucket: 0, to: 2 }]);
    for _ in 0..10 {
        server.period(&mut mapper);
        assert_eq!(server.buckets[0].core, 2);
    }
    assert_eq!(server.dedicated(), 2, "the others share a core");
}

#[test]
fn without_a_core_left_what_fits_elsewhere_moves() {
    // Moving the 70 would be the fewest buckets, but only the 10s find room.
    let mut server = Server::new(
        2,
        &[
            (0, 1.0, 80.0),
            (0, 1.0, 70.0),
            (0, 1.0, 10.0),
            (0, 1.0, 10.0),
            (1, 1.0, 80.0),
        ],
    );
    let moves = server.period(&mut mapper(no_reclaim()));
    assert_eq!(moves, [Move { bucket: 2, to: 1 }, Move { bucket: 3, to: 1 }]);
}

#[test]
fn idle_cores_are_emptied_into_the_first() {
    let buckets: Vec<_> = (0..64).map(|core| (core, 0.5, 1.0)).collect();
    let mut server = Server::new(64, &buckets);
    let mut mapper = mapper(NetBlazeServerConfig::default());
    server.period(&mut mapper);
    assert_eq!(server.dedicated(), 1, "64 packets/s fit one core");
    assert_eq!(server.on(0), (32.0, 64.0));
}

#[test]
fn reclaiming_leaves_a_margin() {
    let config = NetBlazeServerConfig {
        reclaim_fill: 0.85,
        ..NetBlazeServerConfig::default()
    };
    let mut server = Server::new(2, &[(0, 1.0, 60.0), (1, 1.0, 26.0)]);
    assert_eq!(server.period(&mut mapper(config)), [], "86 of 100 would be too near");
    let mut server = Server::new(2, &[(0, 1.0, 60.0), (1, 1.0, 25.0)]);
    assert_eq!(server.period(&mut mapper(config)), [Move { bucket: 1, to: 0 }]);
}

#[test]
fn what_was_moved_settles() {
    let mut mapper = mapper(NetBlazeServerConfig::default());
    let mut server = Server::new(2, &[(0, 1.0, 60.0), (0, 1.0, 50.0)]);
    assert_eq!(server.period(&mut mapper), [Move { bucket: 1, to: 1 }]);
    // The burst ends at once; the new core stays for three seconds.
    server.buckets[1].rate = 5.0;
    server.buckets[0].rate = 5.0;
    assert_eq!(server.period(&mut mapper), []);
    assert_eq!(server.period(&mut mapper), []);
    assert_eq!(server.period(&mut mapper), [Move { bucket: 1, to: 0 }]);
    // Overload overrides the settling time.
    server.buckets[0].rate = 60.0;
    server.buckets[1].rate = 50.0;
    assert_eq!(server.period(&mut mapper), [Move { bucket: 1, to: 1 }]);
}

#[test]
fn noise_does_not_make_buckets_wander() {
    let mut mapper = mapper(NetBlazeServerConfig::default());
    let base: Vec<_> = (0..128).map(|b| (b % 16, 0.2, 4.0 + f64::from(b % 5))).collect();
    let mut server = Server::new(16, &base);
    let mut noise = 1_u64;
    let mut moved = Vec::new();
    for _ in 0..60 {
        for (bucket, &(_, _, rate)) in server.buckets.iter_mut().zip(&base) {
            noise = noise
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            bucket.rate = rate * (0.9 + (noise >> 40) as f64 / f64::from(1 << 24) * 0.2);
        }
        moved.push(server.period(&mut mapper).len());
    }
    // 768 packets/s on average: at 85 % of 100 per core, ten cores.
    assert!(server.dedicated() <= 10, "{moved:?}");
    assert_eq!(moved[20..].iter().sum::<usize>(), 0, "{moved:?}");
}

#[test]
fn only_the_on_demand_variant_asks_at_once() {
    assert_eq!(mapper(NetBlazeServerConfig::default()).on_backlog_of(Nanos(100)), None);
    let config = NetBlazeServerConfig {
        on_overload: true,
        ..NetBlazeServerConfig::default()
    };
    assert_eq!(mapper(config).on_backlog_of(Nanos(100)), Some(Nanos(400)));
}

/// Returns the fewest of `buckets` that must leave so that the rest fits.
fn brute_force(buckets: &[(f64, f64)], capacity: &RateFrontier) -> u32 {
    let fits = |leave: &u32| {
        let stay = (0..buckets.len()).filter(|i| leave & (1 << i) == 0);
        let (f, r) = stay.fold((0.0, 0.0), |(f, r), i| (f + buckets[i].0, r + buckets[i].1));
        r <= capacity.rate(f)
    };
    (0..1_u32 << buckets.len())
        .filter(fits)
        .map(u32::count_ones)
        .min()
        .unwrap_or(0)
}

/// Generates a falling frontier, and buckets each of which fits a core. Whole numbers keep sums exact.
fn instance() -> impl Strategy<Value = (RateFrontier, Vec<(CoreNumber, f64, f64)>)> {
    let falls = proptest::collection::vec((1_u32..40, 1_u32..30), 1..5);
    (
        falls,
        proptest::collection::vec((0_u16..2, 1_u32..30, 1_u32..40), 1..20),
    )
        .prop_map(|(falls, buckets)| {
            let (mut flows, mut rate) = (0, 40 + falls.iter().map(|fall| fall.1).sum::<u32>());
            let mut frontier = RateFrontier::new();
            for (wide, high) in falls {
                flows += wide;
                frontier.insert(flows, f64::from(rate));
                rate -= high;
            }
            frontier.insert(flows + 30, f64::from(rate));
            let buckets = buckets
                .into_iter()
                .map(|(core, f, r)| (core, f64::from(f), f64::from(r)));
            (frontier, buckets.collect())
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_fewer_buckets_would_do((capacity, buckets) in instance()) {
        let mut counts = [0, 0];
        let few: Vec<_> = buckets.into_iter().filter(|bucket| {
            counts[usize::from(bucket.0)] += 1;
            counts[usize::from(bucket.0)] <= 10
        }).collect();
        let mut server = Server::new(2 + few.len(), &few);
        let mut mapper = NetBlazeServerMapper::new(no_reclaim(), capacity.clone());
        let moves = server.period(&mut mapper).to_vec();
        for core in 0..2 {
            let mine: Vec<_> = few.iter().filter(|b| b.0 == core).map(|b| (b.1, b.2)).collect();
            let moved = moves.iter().filter(|m| few[usize::from(m.bucket)].0 == core).count();
            prop_assert_eq!(moved as u32, brute_force(&mine, &capacity), "core {}", core);
        }
        for core in 0..server.cores.len() {
            let (flows, rate) = server.on(core);
            prop_assert!(rate <= capacity.rate(flows), "core {} is overloaded", core);
        }
    }

    #[test]
    fn plans_are_sound_whatever_happens(
        periods in proptest::collection::vec(
            proptest::collection::vec((0_u32..60, 0_u32..90), 24),
            1..12,
        ),
        cores in 1_usize..8,
        fill in 0.2_f64..1.0,
        safe in any::<bool>(),
    ) {
        let capacity = if safe { two_steps().static_safe() } else { two_steps() };
        let config = NetBlazeServerConfig { fill, reclaim_fill: fill * 0.9, ..Default::default() };
        let start: Vec<_> = (0..24).map(|b| (b % cores as u16, 0.0, 0.0)).collect();
        let (mut one, mut other) = (Server::new(cores, &start), Server::new(cores, &start));
        let mut first = NetBlazeServerMapper::new(config, capacity.clone());
        let mut second = NetBlazeServerMapper::new(config, capacity.clone());
        for loads in periods {
            for server in [&mut one, &mut other] {
                for (bucket, &(flows, rate)) in server.buckets.iter_mut().zip(&loads) {
                    (bucket.flows, bucket.rate) = (f64::from(flows), f64::from(rate));
                }
            }
            let limit = |flows| capacity.rate(flows);
            let before: Vec<_> = (0..cores).map(|core| one.on(core)).collect();
            let moves = one.period(&mut first).to_vec();
            prop_assert_eq!(&moves, other.period(&mut second), "deterministic");
            for (core, (flows, rate)) in before.into_iter().enumerate() {
                let (now_flows, now_rate) = one.on(core);
                let alone = one.buckets.iter().filter(|b| usize::from(b.core) == core).count() == 1;
                let grown = moves.iter().any(|m| usize::from(m.to) == core);
                // No core gets more than its share. An overloaded core receives buckets only in exchange: with too many
                // flows, it can give away more of them than it takes with more packets.
                prop_assert!(!grown || alone || now_rate <= limit(now_flows) * fill + 1e-9);
                prop_assert!(!grown || alone || rate <= limit(flows) || now_rate < rate || now_flows < flows);
            }
        }
    }
}

#[test]
fn no_plan_allocates() {
    let quadrant = QuadrantConfig::as_compared(Nanos::from_micros(200), 200.0);
    let dyssect = DyssectConfig::for_median(Nanos::from_millis(8), Nanos::from_millis(5));
    let mut mappers: [Box<dyn ServerMapper>; 6] = [
        Box::new(mapper(NetBlazeServerConfig::default())),
        Box::new(RssPlusPlus::new(RssPlusPlusConfig::default())),
        Box::new(Metron::new(MetronConfig::default())),
        Box::new(ByBucket::new(Quadrant::new(quadrant))),
        Box::new(ByBucket::new(QuadrantMetron::new())),
        Box::new(ByBucket::new(Dyssect::new(dyssect))),
    ];
    for (number, mapper) in mappers.iter_mut().enumerate() {
        assert_eq!(allocations(mapper.as_mut()), 0, "mapper {number}");
    }
}
