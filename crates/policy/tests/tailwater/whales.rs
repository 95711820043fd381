//! Whales: when their chain is split, divided further, and joined.

use super::{TAKEN, decide, flow, mapper, working};
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, ServiceCosts, SplitPoint, SplitProfile};
use tailwater_policy::core::{
    AuxiliaryCore, CoreMapper, Destination, Flowlet, Load, Loads, Notice, Review, SplitFlow, SplitPart,
};
use tailwater_policy::tailwater::divides;

/// An epoch is 80 µs, so a core takes 200 packets of the whole chain.
#[test]
fn a_whale_is_split_where_that_is_faster() {
    for (capacity, packets, split, suffices) in [
        (600, 500, true, true),
        (600, 700, true, false),
        // An eighth shorter in each part is the least.
        (225, 500, false, false),
        (230, 500, true, false),
    ] {
        let mut splits = SplitProfile::new();
        splits.insert(SplitPoint {
            last_functions: 2,
            first: capacity,
            last: capacity,
        });
        let mut mapper = mapper(splits);
        let now = Nanos::from_millis(1);
        let idle = [TAKEN, AuxiliaryCore::default()];
        let plan = decide(&mut mapper, now, &[flow(packets)], &idle);
        assert_eq!(plan.splits.len(), usize::from(split), "{capacity}");
        assert_eq!(plan.destinations[0] == Destination::OWN_CORE, split);
        if split {
            assert_eq!((plan.splits[0].auxiliary, plan.splits[0].last_functions), (1, 2));
        }
        assert_eq!(plan.notice == Some(Notice::WhaleBeyondSplit { packets }), !suffices);
    }
}

/// Chain of three equal functions of 400 ns together, where a cut costs 40 ns.
fn three_functions() -> SplitProfile {
    let mut splits = SplitProfile::new();
    for (last_functions, first, last) in [(1, 80_000 / 287, 80_000 / 153), (2, 80_000 / 153, 80_000 / 287)] {
        splits.insert(SplitPoint {
            last_functions,
            first,
            last,
        });
    }
    splits
}

/// Cores were left to whales whose chain has split points that bring nothing.
#[test]
fn splits_that_gain_nothing_are_none() {
    let profile = |splits: SplitProfile| CapacityProfile {
        epoch: Nanos::from_micros(80),
        costs: Some(ServiceCosts {
            packet: 400.0,
            ..ServiceCosts::default()
        }),
        splits,
        ..CapacityProfile::default()
    };
    assert!(divides(&profile(three_functions())));
    assert!(!divides(&profile(SplitProfile::new())));
    // Parts of 98 and 95 % of the chain.
    let mut useless = SplitProfile::new();
    useless.insert(SplitPoint {
        last_functions: 1,
        first: 80_000 / 392,
        last: 80_000 / 380,
    });
    assert!(!divides(&profile(useless)));
}

/// Split flow: its parts, its packets here, and those that have passed.
fn split<'a>(
    (now, passed): (Nanos, u64),
    (queued, parts): (u32, &'a [SplitPart]),
    auxiliaries: &'a [AuxiliaryCore],
) -> SplitFlow<'a> {
    SplitFlow {
        now,
        number: 7,
        queued,
        parts,
        since: Nanos::from_millis(1),
        passed,
        auxiliaries,
    }
}

fn part(last_functions: usize, auxiliary: usize, packets: u32) -> SplitPart {
    SplitPart {
        last_functions,
        auxiliary,
        packets,
    }
}

#[test]
fn a_part_that_is_late_is_divided() {
    let idle = AuxiliaryCore::default();
    let late = Nanos::from_micros(1100);
    let review = |now, queued, parts: &[SplitPart], auxiliaries: &[AuxiliaryCore]| {
        mapper(three_functions()).review(&split((now, 1000), (queued, parts), auxiliaries))
    };
    let divide = |last_functions, auxiliary| Review::Divide {
        last_functions,
        auxiliary,
    };
    let two = [part(2, 0, 400)];
    let auxiliaries = [working(400), TAKEN, idle];
    assert_eq!(review(late, 0, &two, &auxiliaries), divide(1, 2));
    // The dispatching core, too: 400 packets wait for its first two functions.
    assert_eq!(review(late, 400, &[part(1, 0, 0)], &auxiliaries), divide(2, 2));
    // Packets that had gathered before the split may still be late.
    assert_eq!(review(Nanos::from_micros(1079), 0, &two, &auxiliaries), Review::Keep);
    assert_eq!(review(late, 0, &[part(2, 0, 300)], &auxiliaries), Review::Keep);
    // No core is idle, or no cut is left, or the mapper did not make the split.
    assert_eq!(review(late, 0, &two, &[working(400), TAKEN, working(1)]), Review::Keep);
    let three = [part(2, 0, 400), part(1, 2, 400)];
    assert_eq!(
        review(late, 0, &three, &[working(400), idle, working(400)]),
        Review::Keep
    );
    assert_eq!(review(late, 0, &[part(3, 0, 400)], &auxiliaries), Review::Keep);
}

/// The part stayed where it was for as long as the whale had packets, beside all that the core had to do for others.
#[test]
fn parts_on_a_core_that_is_needed_elsewhere_are_joined() {
    let mut mapper = mapper(three_functions());
    let late = Nanos::from_micros(1100);
    let parts = [part(2, 0, 400), part(1, 1, 4)];
    let withdrawn = AuxiliaryCore {
        taken: true,
        ..working(400)
    };
    let idle = AuxiliaryCore::default();
    for auxiliaries in [[withdrawn, working(4), idle], [working(400), withdrawn, idle]] {
        let review = mapper.review(&split((late, 1000), (0, &parts), &auxiliaries));
        assert_eq!(review, Review::Join);
    }
}

#[test]
fn a_late_whale_that_cannot_be_divided_is_reported() {
    let mut mapper = mapper(three_functions());
    let auxiliaries = [working(400), working(400)];
    let parts = [part(2, 0, 400), part(1, 1, 400)];
    let now = Nanos::from_micros(1100);
    assert_eq!(
        mapper.review(&split((now, 1000), (9, &parts), &auxiliaries)),
        Review::Keep
    );
    let plan = decide(&mut mapper, now, &[], &auxiliaries);
    assert_eq!(plan.notice, Some(Notice::WhaleBeyondSplit { packets: 809 }));
    assert_eq!(plan.relieve, 0, "it is no whole flow on an auxiliary core");
}

/// A release timeout is 80 µs. After eight with a load for fewer cores, the last part is joined.
#[test]
fn parts_are_joined_after_the_load_has_fallen() {
    // Two parts take 287 ns a packet, one 400 ns.
    for (parts, gap, joined) in [(2, 490, true), (2, 470, false), (1, 680, true), (1, 650, false)] {
        let mut mapper = mapper(three_functions());
        let auxiliaries = [working(1), working(1)];
        let all = [part(2, 0, 1), part(1, 1, 1)];
        let joins = (0..100_u64).find(|round| {
            let now = Nanos::from_micros(1000 + round * 20);
            let passed = round * 20_000 / gap;
            mapper.review(&split((now, passed), (1, &all[..parts]), &auxiliaries)) == Review::Join
        });
        assert_eq!(joins, joined.then_some(32), "{parts} parts, {gap} ns");
    }
}

/// A burst within the time begins it anew.
#[test]
fn parts_are_not_joined_between_bursts() {
    let mut mapper = mapper(three_functions());
    let (auxiliaries, parts) = ([working(1)], [part(2, 0, 1)]);
    let mut passed = 0;
    for round in 0..500_u64 {
        passed += if round % 28 == 0 { 200 } else { 1 };
        let now = Nanos::from_micros(1000 + round * 20);
        let flow = split((now, passed), (1, &parts), &auxiliaries);
        assert_eq!(mapper.review(&flow), Review::Keep);
    }
}

/// A whale that is whole on an auxiliary core comes back to be split, if it can be.
#[test]
fn a_late_whole_whale_is_relieved_to_be_split() {
    let now = Nanos::from_millis(1);
    let auxiliaries = [working(500)];
    for (splits, is_relieved) in [(SplitProfile::new(), false), (three_functions(), true)] {
        let mut mapper = mapper(splits);
        assert_eq!(
            decide(&mut mapper, now, &[], &auxiliaries).relieve,
            u64::from(is_relieved)
        );
        let flowlet = Flowlet {
            arrival: now,
            new: false,
            packets: 300,
            parked: true,
        };
        let loads = Loads {
            now,
            here: Load {
                flows: 100,
                packets: 100,
            },
            auxiliaries: &[AuxiliaryCore::default()],
        };
        assert_eq!(mapper.place(flowlet, &loads) == Destination::OWN_CORE, is_relieved);
    }
}

#[test]
fn only_cuts_that_are_used_are_made() {
    let points = |auxiliaries| mapper(three_functions()).split_points(auxiliaries);
    assert_eq!((points(0), points(1), points(2), points(9)), (0, 1 << 1, 0b110, 0b110));
}
