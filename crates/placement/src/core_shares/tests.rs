//! Admission of chains that share cores: tables, and invariants for any chains.

use super::*;
use crate::curve::{CacheCurve, LoadCurve};
use crate::slo::{Curves, ISOLATED};
use proptest::prelude::*;

fn cores(cores: &[u32]) -> SharedCores {
    SharedCores {
        cores: cores.to_vec(),
        cache_bytes: 1000,
        headroom: 0.1,
    }
}

/// Admission of chains with one core.
trait OneCore {
    fn one(
        &self,
        others: &[Occupant],
        name: &str,
        claim: Option<&Arc<Claim>>,
        before: Option<u32>,
    ) -> Result<u32, Box<Refused>>;
}

impl OneCore for SharedCores {
    fn one(
        &self,
        others: &[Occupant],
        name: &str,
        claim: Option<&Arc<Claim>>,
        before: Option<u32>,
    ) -> Result<u32, Box<Refused>> {
        let wanted = Wanted {
            name,
            cores: 1,
            claim,
            before: before.as_slice(),
        };
        self.admit(others, wanted).map(|cores| cores[0])
    }
}

/// Chain that processes `rate` packets per second on a whole core, with any cache.
fn claim(throughput: f64, rate: f64, latency: Nanos) -> Arc<Claim> {
    let load = vec![
        (0.5, Nanos::from_micros(10)),
        (0.9, Nanos::from_micros(50)),
        (1.0, Nanos::from_micros(1000)),
    ];
    Arc::new(Claim {
        throughput,
        latency,
        curves: Arc::new(Curves {
            machine: "m".into(),
            cores: 1,
            cache: CacheCurve::new(vec![(10, rate / ISOLATED)]).expect("a curve"),
            load: LoadCurve::new(load).expect("a curve"),
        }),
    })
}

/// Claim to a share of a core, of a chain that costs 1 us a packet.
fn share(share: f64) -> Arc<Claim> {
    claim(share * 1e6, 1e6, Nanos::from_millis(1))
}

fn on(core: u32, name: &str, claim: Option<Arc<Claim>>) -> Occupant {
    Occupant {
        name: name.to_owned(),
        cores: vec![core],
        claim,
    }
}

#[test]
fn without_a_promise_the_first_core_with_the_fewest_chains_is_chosen() {
    let server = cores(&[3, 1, 2]);
    let choose = |used: &[u32]| {
        let others: Vec<Occupant> = used.iter().map(|&core| on(core, "other", None)).collect();
        server.one(&others, "a", None, None).expect("a core")
    };
    assert_eq!(choose(&[]), 3);
    assert_eq!(choose(&[3]), 1);
    assert_eq!(choose(&[3, 1, 3]), 2);
    assert_eq!(choose(&[3, 1, 2, 3]), 1);
    assert_eq!(choose(&[7, 7]), 3);
    // Of two with as many, the one with less promised time.
    let others = [
        on(3, "a", Some(share(0.5))),
        on(1, "b", Some(share(0.2))),
        on(2, "c", Some(share(0.3))),
    ];
    assert_eq!(server.one(&others, "d", None, None), Ok(1));
    // It stays where it is; a core that is gone is none.
    assert_eq!(server.one(&others, "d", None, Some(3)), Ok(3));
    assert_eq!(server.one(&others, "d", None, Some(9)), Ok(1));
}

#[test]
fn a_promise_gets_the_core_with_the_least_promised_time() {
    let server = cores(&[1, 2, 3]);
    let others = [
        on(1, "a", Some(share(0.5))),
        on(2, "b", Some(share(0.3))),
        on(3, "c", Some(share(0.1))),
        on(3, "d", None),
        on(3, "e", None),
    ];
    let admit = |part, before| server.one(&others, "new", Some(&share(part)), before).ok();
    assert_eq!(admit(0.2, None), Some(3));
    assert_eq!(admit(0.8, None), Some(3));
    // It stays as long as it fits.
    assert_eq!(admit(0.4, Some(1)), Some(1));
    assert_eq!(admit(0.41, Some(1)), Some(3));
    assert_eq!(admit(0.81, None), None);
}

#[test]
fn promises_fill_a_core_up_to_its_headroom() {
    let server = cores(&[1]);
    let others = [on(1, "a", Some(share(0.59)))];
    assert_eq!(server.one(&others, "b", Some(&share(0.31)), None), Ok(1));
    let refused = server.one(&others, "b", Some(&share(0.62)), None).expect_err("no room");
    assert_eq!((refused.reason, refused.core), (Reason::Room(vec![Resource::Cores]), 1));
    assert!((refused.share - 0.62).abs() < 1e-9 && (refused.free - 0.31).abs() < 1e-9);
    assert_eq!(refused.violation, None);
    let [Nearest::Throughput(fits)] = refused.nearest[..] else {
        panic!("{:?}", refused.nearest);
    };
    assert!((0.309e6..=0.31e6).contains(&fits), "{fits}");
}

#[test]
fn latency_is_that_of_the_cores_load_and_one_batch_of_each_other_chain() {
    let chains = [
        on(1, "a", Some(share(0.5))),
        on(1, "b", Some(claim(0.2 * 2e6, 2e6, Nanos(1)))),
        on(1, "c", None),
        on(2, "d", Some(share(0.2))),
    ];
    let all = predicted(1000, &chains);
    let of = |at: usize| all[at].expect("a promise");
    assert!(all[2].is_none());
    assert!((of(0).share - 0.5).abs() < 1e-9 && (of(0).core_load - 0.7).abs() < 1e-9);
    assert!((of(0).cost - 1000.0).abs() < 1e-6 && (of(1).cost - 500.0).abs() < 1e-6);
    // 30 us at a load of 0.7; 32 packets of the other one are 16 us or 32 us.
    assert!(of(0).latency.0.abs_diff(46_000) <= 2, "{}", of(0).latency);
    assert!(of(1).latency.0.abs_diff(62_000) <= 2, "{}", of(1).latency);
    assert_eq!(of(3).latency, Nanos::from_micros(10));
}

#[test]
fn a_chain_is_refused_that_would_be_late_or_make_another_late() {
    let server = cores(&[1]);
    let tight = claim(0.3e6, 1e6, Nanos::from_micros(60));
    let others = [on(1, "a", Some(Arc::clone(&tight)))];
    // 10 us at a load of 0.5, and 32 us of the other chain.
    assert_eq!(server.one(&others, "b", Some(&share(0.2)), None), Ok(1));
    let refused = server.one(&others, "b", Some(&share(0.55)), None).expect_err("late");
    assert_eq!(refused.reason, Reason::Room(vec![Resource::Quiet]));
    let Some(Violation::Latency { slo, target, .. }) = &refused.violation else {
        panic!("{refused:?}");
    };
    assert_eq!((&**slo, *target), ("a", Nanos::from_micros(60)));
    // Less throughput fits, and no other objective of the new chain.
    assert!(matches!(refused.nearest[..], [Nearest::Throughput(_)]), "{refused:?}");
    // The other way round, its own objective binds.
    let others = [on(1, "a", Some(share(0.55)))];
    let refused = server.one(&others, "b", Some(&tight), None).expect_err("late");
    assert!(matches!(&refused.violation, Some(Violation::Latency { slo, .. }) if slo == "b"));
    let Some(Nearest::Latency(later)) = refused.nearest.last().copied() else {
        panic!("{refused:?}");
    };
    let relaxed = Claim {
        latency: later,
        ..(*tight).clone()
    };
    assert_eq!(server.one(&others, "b", Some(&Arc::new(relaxed)), None), Ok(1));
}

#[test]
fn an_objective_below_the_curve_fits_nowhere() {
    let refused = cores(&[1, 2])
        .one(&[], "a", Some(&claim(1.0, 1e6, Nanos::from_micros(9))), None)
        .expect_err("below");
    let least = Nanos::from_micros(10);
    assert_eq!(refused.reason, Reason::Unfit(Unfit::Latency { least }));
    assert_eq!(refused.nearest, [Nearest::Latency(least)]);
}

#[test]
fn neighbours_take_cache() {
    let curves = Curves {
        cache: CacheCurve::new(vec![(100, 0.5e6 / ISOLATED), (1000, 1e6 / ISOLATED)]).expect("a curve"),
        ..(*share(0.5).curves).clone()
    };
    let claim = Arc::new(Claim {
        throughput: 0.5e6,
        latency: Nanos::from_millis(1),
        curves: Arc::new(curves),
    });
    let alone = predicted(1000, &[on(1, "a", Some(Arc::clone(&claim)))]);
    assert!((alone[0].expect("a promise").share - 0.5).abs() < 1e-9);
    // On another core of the same cache: each has half of it.
    let both = [on(1, "a", Some(Arc::clone(&claim))), on(2, "b", Some(claim))];
    let rate = 0.5e6 + 400.0 / 900.0 * 0.5e6;
    for predicted in predicted(1000, &both) {
        assert!((predicted.expect("a promise").share - 0.5e6 / rate).abs() < 1e-9);
    }
}

#[test]
fn weights_give_each_promise_its_share() {
    assert_eq!(weight(None, 0.0), 1);
    let headroom = 0.1;
    let others: u64 = (0..64).map(|_| u64::from(weight(None, headroom))).sum();
    for shares in [vec![0.9], vec![0.5, 0.4], vec![0.001; 64], vec![0.014; 64]] {
        let weights: Vec<u64> = shares
            .iter()
            .map(|&share| weight(Some(share), headroom).into())
            .collect();
        let sum = weights.iter().sum::<u64>() + others;
        for (weight, share) in weights.iter().zip(&shares) {
            assert!(*weight as f64 / sum as f64 >= *share, "{share} of {shares:?}");
        }
    }
}

prop_compose! {
    fn any_claim()(
        part in 0.01f64..1.2,
        rate in 1e5f64..1e7,
        flat in any::<bool>(),
        latency in 5_000u64..2_000_000,
    ) -> Arc<Claim> {
        let mut claim = (*claim(part * rate, rate, Nanos(latency))).clone();
        if !flat {
            let curves = Arc::make_mut(&mut claim.curves);
            curves.cache = CacheCurve::new(vec![(200, rate / 2.0), (900, rate / ISOLATED)]).expect("a curve");
        }
        Arc::new(claim)
    }
}

fn wanted<'c>(claim: Option<&'c Arc<Claim>>, cores: usize, before: &'c [u32]) -> Wanted<'c> {
    Wanted {
        name: "wide",
        cores,
        claim,
        before,
    }
}

#[test]
fn a_chain_on_several_cores_has_its_share_in_equal_parts() {
    let server = cores(&[1, 2, 3]);
    let mut chains = vec![on(1, "a", Some(share(0.5))), on(2, "b", None), on(2, "c", None)];
    // 1.6 of a core, as 0.8 of each of two.
    let claim = share(1.6);
    assert_eq!(server.admit(&chains, wanted(Some(&claim), 2, &[])), Ok(vec![3, 2]));
    let refused = server
        .admit(&chains, wanted(Some(&claim), 3, &[]))
        .expect_err("0.53 of core 1");
    assert_eq!(
        (refused.core, &refused.reason),
        (1, &Reason::Room(vec![Resource::Cores]))
    );
    assert!((refused.share - 1.6 / 3.0).abs() < 1e-9 && (refused.free - 0.4).abs() < 1e-9);
    chains.push(Occupant {
        name: "wide".to_owned(),
        cores: vec![3, 2],
        claim: Some(claim),
    });
    chains.push(on(2, "d", Some(share(0.1))));
    let all = predicted(1000, &chains);
    let of = |at: usize| all[at].expect("a promise");
    assert!((of(3).share - 0.8).abs() < 1e-9 && (of(3).core_load - 0.9).abs() < 1e-9);
    assert!((of(4).core_load - 0.9).abs() < 1e-9);
    // The worst of its cores: 50 us at a load of 0.9, and a batch of the other chain.
    assert!(of(3).latency.0.abs_diff(82_000) <= 2, "{}", of(3).latency);
    // Cores that it has stay; of fewer, the first.
    let alone = &chains[..1];
    assert_eq!(server.admit(alone, wanted(None, 2, &[2, 3])), Ok(vec![2, 3]));
    assert_eq!(server.admit(alone, wanted(None, 1, &[2, 3])), Ok(vec![2]));
    assert_eq!(server.admit(alone, wanted(None, 3, &[3])), Ok(vec![3, 2, 1]));
    assert_eq!(server.admit(alone, wanted(Some(&share(0.2)), 2, &[1])), Ok(vec![1, 2]));
}

proptest! {
    /// Chains come one by one. No promise is broken, a refused chain fits on none of the cores that are tried, what is
    /// told as nearest fits, and the same again is decided the same.
    #[test]
    fn whatever_comes_promises_are_kept(
        claims in prop::collection::vec((prop::option::weighted(0.8, any_claim()), 1usize..4), 1..12),
        number in 1u32..5,
    ) {
        let server = cores(&(0..number).collect::<Vec<_>>());
        let mut chains: Vec<Occupant> = Vec::new();
        for (number, (claim, cores)) in claims.iter().enumerate() {
            let name = format!("chain-{number}");
            let wanted = Wanted {
                name: &name,
                cores: *cores.min(&server.cores.len()),
                claim: claim.as_ref(),
                before: &[],
            };
            let found = server.admit(&chains, wanted);
            prop_assert_eq!(&found, &server.admit(&chains, wanted));
            match found {
                Ok(cores) => {
                    let distinct: std::collections::BTreeSet<_> = cores.iter().collect();
                    prop_assert_eq!(distinct.len(), wanted.cores);
                    chains.push(Occupant {
                        name: name.clone(),
                        cores: cores.clone(),
                        claim: claim.clone(),
                    });
                    prop_assert_eq!(server.violations(&chains), vec![]);
                    // It stays if it comes again.
                    let others = &chains[..chains.len() - 1];
                    let again = Wanted {
                        before: &cores,
                        ..wanted
                    };
                    prop_assert_eq!(server.admit(others, again), Ok(cores.clone()));
                }
                Err(refused) => {
                    let claim = claim.as_ref().expect("a promise");
                    let by_time = server.by_time(&chains);
                    for cores in by_time.windows(wanted.cores) {
                        let fits = server.violations(&with(&chains, &name, claim, cores)).is_empty();
                        prop_assert!(!fits || beyond_curves(claim).is_some());
                    }
                    for nearest in refused.nearest {
                        let mut other = (**claim).clone();
                        match nearest {
                            Nearest::Throughput(throughput) => other.throughput = throughput,
                            Nearest::Latency(latency) => other.latency = latency,
                        }
                        let other = Arc::new(other);
                        let nearest = Wanted {
                            claim: Some(&other),
                            ..wanted
                        };
                        prop_assert!(server.admit(&chains, nearest).is_ok());
                    }
                }
            }
        }
    }
}

/// Claim of a chain whose rate rises with its cache: 0.5, 0.8, 1.0 Mpps with 1, 2, 3 ways of 1,000 bytes.
fn sensitive(throughput: f64) -> Arc<Claim> {
    let mut claim = Claim::clone(&claim(throughput, 1e6, Nanos::from_millis(1)));
    let curves = Arc::make_mut(&mut claim.curves);
    let points = [(1000, 0.5e6), (2000, 0.8e6), (3000, 1e6)];
    curves.cache = CacheCurve::new(points.map(|(bytes, rate)| (bytes, rate / ISOLATED)).to_vec()).expect("a curve");
    Arc::new(claim)
}

const CACHE: ReservableCache = ReservableCache {
    way_bytes: 1000,
    ways: 6,
    least: 1,
    classes: 4,
};

#[test]
fn a_core_reserves_the_fewest_ways_that_keep_its_promises() {
    let server = cores(&[1, 2, 3]);
    let ways =
        |throughput: f64, cache: &ReservableCache| server.ways_of(1, &[on(1, "a", Some(sensitive(throughput)))], cache);
    // A tenth of a core is not promised.
    for (throughput, expected) in [
        (0.4e6, 1),
        (0.449e6, 1),
        (0.451e6, 2),
        (0.71e6, 2),
        (0.73e6, 3),
        (0.89e6, 3),
    ] {
        assert_eq!(ways(throughput, &CACHE), Some(expected), "{throughput}");
    }
    assert_eq!(ways(0.91e6, &CACHE), None);
    assert_eq!(ways(0.89e6, &ReservableCache { ways: 2, ..CACHE }), None);
    assert_eq!(ways(0.4e6, &ReservableCache { least: 2, ..CACHE }), Some(2));
    // Chains of a core divide its ways, and the core's time. Those of other cores, and those without a promise, do not
    // count.
    let both = [
        on(1, "a", Some(sensitive(0.3e6))),
        on(1, "b", Some(sensitive(0.3e6))),
        on(2, "c", Some(sensitive(0.8e6))),
        on(1, "d", None),
    ];
    assert_eq!(server.ways_of(1, &both, &CACHE), Some(4));
    assert_eq!(server.ways_of(1, &both[3..], &CACHE), None);
    // Half of it on each core.
    let wide = [Occupant {
        name: "e".to_owned(),
        cores: vec![1, 3],
        claim: Some(sensitive(1.42e6)),
    }];
    assert_eq!(
        [1, 2, 3].map(|core| server.ways_of(core, &wide, &CACHE)),
        [Some(2), None, Some(2)]
    );
}

#[test]
fn reserved_ways_leave_a_class_for_cores_without_a_promise() {
    let server = cores(&[1, 2, 3]);
    let three = || Some(sensitive(0.8e6));
    let reserve = |chains: &[Occupant], cache: &ReservableCache, before: &[(u32, u16)]| {
        let before = before.iter().copied().collect();
        Vec::from_iter(server.reserved_ways(chains, cache, &before))
    };
    let two = [on(1, "a", three()), on(2, "b", three())];
    assert_eq!(reserve(&two, &CACHE, &[]), [(1, 3), (2, 3)]);
    assert_eq!(reserve(&two, &ReservableCache { classes: 1, ..CACHE }, &[]), [(1, 3)]);
    // One way and one class remain for the third core: the second core reserves none.
    let with_other = [on(1, "a", three()), on(2, "b", three()), on(3, "c", None)];
    assert_eq!(reserve(&with_other, &CACHE, &[]), [(1, 3)]);
    assert_eq!(reserve(&with_other, &CACHE, &[(2, 3)]), [(2, 3)]);
    // Earlier reservations stay.
    assert_eq!(reserve(&with_other, &CACHE, &[(1, 3), (2, 3)]), [(1, 3), (2, 3)]);
    assert_eq!(
        reserve(&with_other, &ReservableCache { ways: 7, ..CACHE }, &[]),
        [(1, 3), (2, 3)]
    );
    let two_classes = ReservableCache {
        ways: 7,
        classes: 2,
        ..CACHE
    };
    assert_eq!(reserve(&with_other, &two_classes, &[]), [(1, 3)]);
    assert_eq!(reserve(&with_other[2..], &CACHE, &[(3, 2)]), []);
}
