//! Decisions of a tick at both sides of each threshold, for instances without curves.

use super::super::allocation::Class;
use super::*;
use tailwater_net::Nanos;

const OBJECTIVE: u64 = 1000;

fn config() -> Config {
    Config::new(Cache {
        ways: 12,
        way_bytes: 100,
        unusable: 0,
        classes: 8,
        least: 1,
    })
}

/// Instance with this latency that occupies so many ways.
fn seen(name: &str, latency: u64, ways: f64) -> Observed {
    Observed {
        name: name.into(),
        tasks: Vec::new(),
        latency: Some(Nanos(latency)),
        objective: Nanos(OBJECTIVE),
        offered: 10.0,
        occupancy: Some((ways * 100.0) as u64),
        misses: Some(0.5),
        curves: None,
        instances: 1,
        most: 1,
    }
}

fn tick(of: &mut OnDemand, ways: u16, on_demand: &[Observed]) -> Decision {
    of.tick(&Situation {
        now: Nanos(0),
        ways,
        reserved: &[],
        on_demand,
    })
}

fn kinds(decision: &Decision) -> Vec<(Kind, usize, u16)> {
    let classes = decision.allocation.classes.iter();
    classes
        .map(|class| (class.kind, class.instances.len(), class.mask.ways()))
        .collect()
}

fn class(name: &str, kind: Kind, first: u16, ways: u16, instances: &[&str]) -> Class {
    Class {
        name: name.into(),
        kind,
        mask: WayMask::new(first, ways).unwrap(),
        instances: instances.iter().map(|name| (*name).to_owned()).collect(),
        tasks: Vec::new(),
    }
}

#[test]
fn instances_that_are_late_because_of_the_cache_get_a_class_after_some_patience() {
    let isolated = |misses| {
        let mut of = OnDemand::new(config(), Allocation::default());
        let late = Observed {
            misses,
            ..seen("late", OBJECTIVE + 1, 2.0)
        };
        let situation = [late, seen("other", 1, 2.0)];
        let ticks = (0..4).map(|_| kinds(&tick(&mut of, 12, &situation)).len());
        ticks.collect::<Vec<_>>()
    };
    assert_eq!(isolated(Some(0.5)), [1, 2, 2, 2]);
    assert_eq!(isolated(None), [1, 2, 2, 2]);
    // The cache is not what it waits for.
    assert_eq!(isolated(Some(0.01)), [1, 1, 1, 1]);
}

#[test]
fn an_instance_without_figures_gets_its_fair_share_of_the_ways() {
    let mut of = OnDemand::new(config(), Allocation::default());
    let unknown = |name: &str| Observed {
        occupancy: None,
        ..seen(name, 1, 0.0)
    };
    let all = ["a", "b", "c"].map(unknown);
    let decision = tick(&mut of, 12, &all);
    let demands: Vec<f64> = decision.shares.iter().map(|share| share.demand).collect();
    assert_eq!(demands, [4.0; 3]);
    assert_eq!((decision.short, decision.spare), (0, 0));
}

#[test]
fn ways_that_no_demand_needs_are_spare_and_those_that_lack_are_short() {
    for (ways, short, spare) in [(12, 0, 7), (5, 0, 0), (4, 1, 0), (0, 5, 0)] {
        let mut of = OnDemand::new(config(), Allocation::default());
        let decision = tick(&mut of, ways, &[seen("a", 1, 2.0), seen("b", 1, 3.0)]);
        assert_eq!((decision.short, decision.spare), (short, spare), "{ways} ways");
    }
}

#[test]
fn an_instance_returns_to_the_others_when_it_has_been_on_time_for_long_with_its_ways() {
    let start = || Allocation {
        classes: vec![
            class("on-demand-0", Kind::Shared, 0, 4, &["b"]),
            class("on-demand-1", Kind::Isolated, 4, 1, &["a"]),
        ],
    };
    let mut of = OnDemand::new(config(), start());
    let situation = [seen("a", 1, 1.0), seen("b", 1, 2.0)];
    for number in 1..config().rejoin {
        assert_eq!(kinds(&tick(&mut of, 12, &situation)).len(), 2, "tick {number}");
    }
    let decision = tick(&mut of, 12, &situation);
    assert_eq!(kinds(&decision).len(), 1);
    assert_eq!(kinds(&decision)[0].1, 2);
    // Not while it needs more than the least number of ways.
    let mut of = OnDemand::new(config(), start());
    let situation = [seen("a", 1, 2.0), seen("b", 1, 2.0)];
    for _ in 0..2 * config().rejoin {
        assert_eq!(kinds(&tick(&mut of, 12, &situation)).len(), 2);
    }
}

#[test]
fn an_instance_that_returns_brings_its_ways() {
    let of = OnDemand::new(
        config(),
        Allocation {
            classes: vec![
                class("on-demand-0", Kind::Shared, 0, 4, &["b"]),
                class("on-demand-1", Kind::Isolated, 4, 3, &["a"]),
            ],
        },
    );
    let seen = [seen("a", 1, 1.0), seen("b", 1, 2.0)];
    let mut groups = vec![Group {
        kind: Kind::Shared,
        members: vec![0, 1],
        class: None,
        has: 0,
    }];
    of.go_on(&mut groups, &seen);
    assert_eq!((groups[0].class.as_deref(), groups[0].has), (Some("on-demand-0"), 7));
}

#[test]
fn an_instance_is_a_hog_beyond_one_way_more_than_its_share_if_another_starves() {
    let hog = |held: f64, starving_late: u32| {
        let mut of = OnDemand::new(config(), Allocation::default());
        let late = (0..starving_late).map(|_| OBJECTIVE + 1);
        for name in ["isolated", "large"] {
            of.wants.insert(name.into(), DemandEstimator::new());
        }
        let want = of.wants.get_mut("isolated").unwrap();
        want.set_ways(6.0);
        want.late = late.count() as u32;
        of.isolated.insert("isolated".into());
        of.last = [("isolated".to_owned(), 4.0), ("large".to_owned(), 3.0)].into();
        let seen = [seen("isolated", OBJECTIVE + 1, 4.0), seen("large", 1, held)];
        of.hog(&seen).map(|hog| hog.name.clone())
    };
    let patience = config().patience;
    assert_eq!(hog(4.0, patience), None);
    assert_eq!(hog(4.1, patience), Some("large".to_owned()));
    assert_eq!(hog(9.0, patience - 1), None);
}
