use super::*;

#[test]
fn time_is_neither_lost_nor_made() {
    let mut carry = 0;
    let spent: u64 = (0..10_000).map(|_| spend(&mut carry, 333)).sum();
    assert_eq!(spent, 3_330);
}

#[test]
fn jitter_leaves_the_mean() {
    let jitter = Jitter::log_normal(0.5).unwrap();
    let draws = 1 << 16;
    let sum: u64 = (0..draws).map(|i| jitter.apply(100_000, random(7, i))).sum();
    let mean = sum / draws;
    assert!((98_500..101_500).contains(&mean), "{mean}");
    assert_eq!(Jitter::log_normal(0.0).unwrap().apply(12_345, 9), 12_345);
    assert!(Jitter::log_normal(f64::NAN).is_none());
}

#[test]
fn wrong_costs_name_their_field() {
    let costs = ServiceCosts {
        packet: -1.0,
        ..ServiceCosts::default()
    };
    let error = ChainModel::new("x", costs).compile().unwrap_err();
    assert_eq!(
        error.to_string(),
        "costs.packet: expected nanoseconds from 0 to 1e9, found -1"
    );
    let nothing = ChainModel::new("x", ServiceCosts::default());
    assert_eq!(nothing.compile().unwrap_err(), ChainError::Nothing);
    let part = ChainModel {
        receive_packet: 20.0,
        ..ChainModel::new(
            "x",
            ServiceCosts {
                packet: 10.0,
                ..ServiceCosts::default()
            },
        )
    };
    assert!(matches!(part.compile(), Err(ChainError::Part { .. })));
}

#[test]
fn a_profile_says_what_lies_between_cores() {
    let wake = |asleep, p50, p90, p99| Wake { asleep, p50, p90, p99 };
    let profile = CapacityProfile {
        costs: Some(ServiceCosts {
            packet: 100.0,
            ..ServiceCosts::default()
        }),
        details: Some(DetailedCosts {
            cold_after: 64,
            cold_batch: 50.0,
            cold_packet: 7.0,
            receive_packet: 500.0,
            new_batch: 11.0,
            ring_packet: 3.0,
            wakes: vec![wake(1_000, 10, 20, 30), wake(9_000, 100, 200, 300)],
            ..DetailedCosts::default()
        }),
        ..CapacityProfile::default()
    };
    let model = ChainModel::from_profile(&profile).unwrap();
    // Receiving is a part of the packet's cost.
    assert_eq!(model.receive_packet, 100.0);
    let costs = model.compile().unwrap();
    let work = |cold| Work {
        packets: 4,
        cold,
        ..Work::default()
    };
    assert_eq!(costs.whole(work(0), false), 400_000);
    assert_eq!(costs.whole(work(0), true), 412_000);
    assert_eq!(costs.whole(work(2), false), 464_000);
    let new = Work { new: 2, ..work(0) };
    assert_eq!(costs.whole(new, false), 411_000);
    // Half of all wake-ups take no longer than the median, and none longer than the maximum observed.
    let drawn = |asleep, share: f64| costs.wake(asleep, (share * 2_f64.powi(64)) as u64);
    assert_eq!(drawn(500, 0.3), Some(10));
    // Between them the time is drawn evenly, in whole nanoseconds.
    assert_eq!(drawn(8_999, 0.7), Some(14));
    assert_eq!(drawn(9_000, 0.5), Some(100));
    assert_eq!(drawn(u64::MAX, 0.999), Some(300));
    let old = CapacityProfile {
        details: None,
        ..profile
    };
    let costs = ChainModel::from_profile(&old).unwrap().compile().unwrap();
    assert_eq!(costs.wake(500, 0), None);
}

#[test]
fn parts_of_a_split_add_up() {
    let mut model = ChainModel::new(
        "x",
        ServiceCosts {
            batch: 320.0,
            packet: 100.0,
            ..ServiceCosts::default()
        },
    );
    model.splits.push(SplitCost {
        last_functions: 1,
        first: 0.25,
        last: 0.75,
    });
    let costs = model.compile().unwrap();
    let work = Work {
        packets: 8,
        ..Work::default()
    };
    assert_eq!(costs.left_out(work, 1, None), 600_000);
    assert_eq!(costs.left_out(work, 1, Some(0)), 200_000);
    assert_eq!(costs.whole(work, false), 1_120_000);
}

/// A core between two others runs what the last part has more than the next one, and pays for the cut behind it.
#[test]
fn a_part_in_the_middle_takes_its_functions_time() {
    let cut = |last_functions, first, last| SplitCost {
        last_functions,
        first,
        last,
    };
    let model = ChainModel {
        splits: vec![cut(1, 0.75, 0.5), cut(2, 0.25, 0.875)],
        ..ChainModel::new(
            "x",
            ServiceCosts {
                packet: 100.0,
                ..ServiceCosts::default()
            },
        )
    };
    let costs = model.compile().unwrap();
    let work = Work {
        packets: 8,
        ..Work::default()
    };
    let part = |last_functions, behind| costs.process(work) - costs.left_out(work, last_functions, behind);
    assert_eq!((part(2, None), part(2, Some(0))), (200_000, 700_000));
    assert_eq!((part(2, Some(1)), part(1, Some(0))), (500_000, 400_000));
}

/// With bucket leases, the dispatcher reads a packet's bucket, and the core that processes it pays for the look-up. Of
/// a split, that is the first one.
#[test]
fn with_bucket_leases_the_processing_core_looks_packets_up() {
    let model = ChainModel {
        receive_batch: 60.0,
        receive_packet: 35.0,
        dispatch_packet: 85.0,
        lease_packet: 15.0,
        splits: vec![SplitCost {
            last_functions: 1,
            first: 0.4,
            last: 0.6,
        }],
        ..ChainModel::new(
            "x",
            ServiceCosts {
                batch: 320.0,
                packet: 135.0,
                ..ServiceCosts::default()
            },
        )
    };
    let flows = model.compile().unwrap();
    let buckets = Costs {
        unit: Unit::Bucket,
        ..flows.clone()
    };
    let work = Work {
        packets: 8,
        ..Work::default()
    };
    assert_eq!((flows.receive(8), buckets.receive(8)), (1_020_000, 180_000));
    assert_eq!((flows.receive(0), buckets.receive(0)), (0, 0));
    assert_eq!((flows.process(work), buckets.process(work)), (1_060_000, 1_340_000));
    assert_eq!(flows.whole(work, true), buckets.whole(work, true));
    let part = |costs: &Costs, last: bool| costs.process(work) - costs.left_out(work, 1, last.then_some(0));
    assert_eq!((part(&flows, false), part(&buckets, false)), (580_000, 860_000));
    assert_eq!((part(&flows, true), part(&buckets, true)), (740_000, 740_000));
}
