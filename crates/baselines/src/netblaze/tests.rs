use super::lower_bound::hull;
use super::*;
use tailwater_policy::capacity::SplitPoint;
use tailwater_policy::core::{AuxiliaryCore, QueuedFlow};

const SLO: Nanos = Nanos::from_micros(200);
const EPOCH: Nanos = Nanos::from_micros(80);

/// 100 packets of up to 4 flows, 60 of up to 20.
fn frontier() -> EpochFrontier {
    let mut frontier = EpochFrontier::new();
    for (flows, packets) in [(4, 100), (20, 60)] {
        frontier.insert(Load { flows, packets });
    }
    frontier
}

fn mapper(options: NetBlazeOptions) -> NetBlazeMapper {
    let mut splits = SplitProfile::new();
    for (last_functions, first, last) in [(1, 120, 400), (2, 250, 160)] {
        splits.insert(SplitPoint {
            last_functions,
            first,
            last,
        });
    }
    NetBlazeMapper::new(options, &frontier(), splits).unwrap()
}

fn flows(packets: &[u32]) -> Vec<QueuedFlow> {
    let flow = |packets: &u32| QueuedFlow {
        packets: *packets,
        bound: false,
    };
    packets.iter().map(flow).collect()
}

fn working(flows: u32, packets: u32) -> AuxiliaryCore {
    AuxiliaryCore {
        active: true,
        load: Load { flows, packets },
        ..AuxiliaryCore::default()
    }
}

fn decide(mapper: &mut NetBlazeMapper, now: Nanos, queued: &[QueuedFlow], auxiliaries: &[AuxiliaryCore]) -> Plan {
    let mut plan = Plan::default();
    plan.clear(queued.len());
    let view = View {
        now,
        oldest: now,
        parked: Load::default(),
        queued,
        packets: queued.iter().map(|flow| flow.packets).sum(),
        auxiliaries,
    };
    mapper.decide(&view, &mut plan);
    plan
}

fn indices(plan: &Plan) -> Vec<usize> {
    plan.destinations.iter().map(|place| place.index()).collect()
}

#[test]
fn an_epoch_is_half_of_what_the_network_leaves() {
    let mut mapper = mapper(NetBlazeOptions::new(SLO));
    assert_eq!(mapper.epoch(), EPOCH);
    assert!(mapper.due(Nanos::ZERO, 0));
    let start = Nanos::from_micros(7);
    decide(&mut mapper, start, &[], &[]);
    assert!(!mapper.due(start + EPOCH - Nanos(1), 1000));
    assert!(mapper.due(start + EPOCH, 0));
}

#[test]
fn no_epoch_and_no_capacity_are_refused() {
    let new = |slo, frontier: &EpochFrontier| {
        let mapper = NetBlazeMapper::new(NetBlazeOptions::new(slo), frontier, SplitProfile::new());
        mapper.unwrap_err().to_string()
    };
    assert_eq!(
        new(Nanos::from_micros(40), &frontier()),
        "expected a latency objective above the network allowance of 40us, found 40us"
    );
    assert_eq!(
        new(SLO, &EpochFrontier::new()),
        "expected a capacity frontier that admits a packet, found one that admits none"
    );
}

#[test]
fn groups_go_to_active_auxiliary_cores_before_others() {
    let mut mapper = mapper(NetBlazeOptions {
        boost_after: None,
        ..NetBlazeOptions::new(SLO)
    });
    let taken = AuxiliaryCore {
        taken: true,
        ..AuxiliaryCore::default()
    };
    let auxiliaries = [
        taken,
        AuxiliaryCore::default(),
        working(1, 70),
        AuxiliaryCore::default(),
    ];
    for (packets, expected) in [
        // Inside the frontier.
        (&[40, 30, 30][..], &[0, 0, 0][..]),
        // 30 more packets are the limit of the active auxiliary core.
        (&[40, 30, 30, 30], &[0, 0, 0, 3]),
        (&[40, 30, 30, 31], &[0, 0, 0, 2]),
        // Later flows still fill the room that the first did not fit.
        (&[60, 80, 40, 20], &[0, 2, 0, 3]),
        // In order of arrival, 40 and 30 would stay, and 70 and 60 need a core each: largest first.
        (&[40, 30, 70, 60, 30], &[2, 0, 0, 2, 3]),
    ] {
        let plan = decide(&mut mapper, Nanos::ZERO, &flows(packets), &auxiliaries);
        assert_eq!(indices(&plan), expected, "{packets:?}");
        assert_eq!(plan.notice, None);
    }
}

#[test]
fn what_only_one_of_all_ways_places_is_placed() {
    let frontier = EpochFrontier::constant(100);
    let options = NetBlazeOptions::new(SLO);
    let mut mapper = NetBlazeMapper::new(options, &frontier, SplitProfile::new()).unwrap();
    let idle = AuxiliaryCore {
        active: true,
        ..AuxiliaryCore::default()
    };
    // Both orders need a fourth core.
    let queued = flows(&[38, 53, 31, 34, 39, 21, 16, 51]);
    let plan = decide(&mut mapper, Nanos::from_secs(1), &queued, &[idle; 2]);
    let mut groups = [0; 3];
    for (flow, place) in queued.iter().zip(&plan.destinations) {
        groups[place.index()] += flow.packets;
    }
    assert!(groups.iter().all(|packets| *packets <= 100), "{groups:?}");
    assert_eq!((plan.notice, plan.release), (None, 0));
}

#[test]
fn many_flows_are_cut_where_packets_alone_would_fit() {
    let queued = flows(&[3; 30]);
    let auxiliaries = [AuxiliaryCore::default(); 4];
    let groups = |capacity| {
        let mut mapper = mapper(NetBlazeOptions {
            capacity,
            ..NetBlazeOptions::new(SLO)
        });
        let plan = decide(&mut mapper, Nanos::ZERO, &queued, &auxiliaries);
        indices(&plan).into_iter().max().unwrap() + 1
    };
    // 90 packets: 60 in 20 flows and 30 in 10.
    assert_eq!(groups(Capacity::Frontier), 2);
    assert_eq!(groups(Capacity::StaticSafe), 2);
    assert_eq!(groups(Capacity::StaticUnsafe), 1);
}

#[test]
fn bound_flows_stay_and_count() {
    let mut mapper = mapper(NetBlazeOptions::new(SLO));
    let mut queued = flows(&[50, 50, 90]);
    queued[2].bound = true;
    let plan = decide(&mut mapper, Nanos::ZERO, &queued, &[AuxiliaryCore::default(); 2]);
    assert_eq!(indices(&plan), [1, 1, 0]);
    // No other core can process 130 of them.
    queued[1] = QueuedFlow {
        packets: 130,
        bound: true,
    };
    let plan = decide(&mut mapper, Nanos::ZERO, &queued, &[AuxiliaryCore::default(); 2]);
    assert_eq!(indices(&plan), [1, 0, 0]);
    assert_eq!(plan.notice, Some(Notice::OutOfCores { packets: 120 }));
}

#[test]
fn without_cores_what_is_left_stays_and_is_told() {
    let mut mapper = mapper(NetBlazeOptions::new(SLO));
    let plan = decide(&mut mapper, Nanos::ZERO, &flows(&[90, 80, 70]), &[working(1, 30)]);
    assert_eq!(indices(&plan), [0, 0, 1]);
    assert_eq!(plan.notice, Some(Notice::OutOfCores { packets: 70 }));
}

#[test]
fn a_whale_is_split_where_both_sides_have_room() {
    let mut mapper = mapper(NetBlazeOptions::new(SLO));
    let auxiliaries = [working(2, 50), AuxiliaryCore::default()];
    // Of the two splits the one with a capacity of 160. It charges this core 120 * 100 / 250 = 48, and 75 to an
    // auxiliary core. The first one has no room for that.
    let plan = decide(&mut mapper, Nanos::ZERO, &flows(&[52, 120, 50]), &auxiliaries);
    let expected = Split {
        flow: 1,
        last_functions: 2,
        auxiliary: 1,
    };
    assert_eq!(plan.splits, [expected]);
    assert_eq!((indices(&plan), plan.notice), (vec![0, 0, 1], None));

    // Beyond all splits: the whale stays, the others move.
    let plan = decide(&mut mapper, Nanos::ZERO, &flows(&[52, 161, 50]), &auxiliaries);
    assert!(plan.splits.is_empty());
    assert_eq!(indices(&plan), [2, 0, 1]);
    assert_eq!(plan.notice, Some(Notice::WhaleBeyondSplit { packets: 161 }));

    // A split that suffices, but no auxiliary core with room.
    let plan = decide(&mut mapper, Nanos::ZERO, &flows(&[120]), &auxiliaries[..1]);
    assert!(plan.splits.is_empty());
    assert_eq!(plan.notice, Some(Notice::OutOfCores { packets: 20 }));

    // Bound: the flow cannot be split now.
    let bound = QueuedFlow {
        packets: 120,
        bound: true,
    };
    let plan = decide(&mut mapper, Nanos::ZERO, &[bound], &auxiliaries);
    assert!(plan.splits.is_empty());
    assert_eq!(plan.notice, Some(Notice::OutOfCores { packets: 20 }));
}

#[test]
fn idle_auxiliary_cores_are_released_unless_needed() {
    let mut mapper = mapper(NetBlazeOptions::new(SLO));
    let last_done = Nanos::from_micros(100);
    let idle = AuxiliaryCore {
        active: true,
        last_done,
        ..AuxiliaryCore::default()
    };
    let auxiliaries = [AuxiliaryCore::default(), idle, working(1, 1), idle];
    let lapsed = last_done + Nanos(EPOCH.0 * 5);
    for (now, packets, release) in [
        (Nanos(lapsed.0 - 1), &[10][..], 0),
        (lapsed, &[10], 0b1010),
        (lapsed, &[], 0b1010),
        (lapsed, &[90, 80], 0b1000),
        // The first of them takes a part of the whale.
        (lapsed, &[90, 120], 0b1000),
    ] {
        let plan = decide(&mut mapper, now, &flows(packets), &auxiliaries);
        assert_eq!(plan.release, release, "{packets:?} at {now}");
    }
}

#[test]
fn an_auxiliary_core_beyond_capacity_is_relieved_while_another_core_has_room() {
    let (full, over, many) = (working(2, 100), working(2, 101), working(5, 61));
    // A single flow is beyond capacity on any core.
    let whale = working(1, 500);
    let (idle, some) = (AuxiliaryCore::default(), working(1, 30));
    let taken = AuxiliaryCore { taken: true, ..idle };
    let cases: [(&[u32], &[AuxiliaryCore], u64); 10] = [
        (&[10], &[full, over, many, whale, some], 0b00110),
        (&[10], &[full, whale, some], 0),
        // Room is here, or on an idle auxiliary core, or nowhere.
        (&[99], &[over], 1),
        (&[100], &[over, full], 0),
        (&[100], &[over, full, idle], 1),
        (&[100], &[over, taken], 0),
        // The excess here needs room as well.
        (&[90, 80], &[over, some], 0),
        (&[90, 79], &[over, some], 1),
        // The room suffices for two of the three.
        (&[98], &[over, working(3, 102), over], 0b101),
        (&[], &[], 0),
    ];
    for (packets, auxiliaries, relieve) in cases {
        let mut mapper = mapper(NetBlazeOptions::new(SLO));
        let plan = decide(&mut mapper, Nanos::ZERO, &flows(packets), auxiliaries);
        assert_eq!(plan.relieve, relieve, "{packets:?}, {auxiliaries:?}");
    }
    for (recursion, parked, relieve) in [(true, 159, 1), (true, 160, 0), (false, 0, 0)] {
        let mut mapper = mapper(NetBlazeOptions {
            recursion,
            ..NetBlazeOptions::new(SLO)
        });
        let mut plan = Plan::default();
        plan.clear(1);
        let view = View {
            now: Nanos::ZERO,
            oldest: Nanos::ZERO,
            parked: Load {
                flows: 2,
                packets: parked,
            },
            queued: &flows(&[10]),
            packets: 10,
            auxiliaries: &[over, some],
        };
        mapper.decide(&view, &mut plan);
        assert_eq!(plan.relieve, relieve, "{parked} held");
    }
}

#[test]
fn flows_that_leave_an_auxiliary_core_go_to_the_first_core_with_room_for_all_their_packets() {
    let mut mapper = mapper(NetBlazeOptions::new(SLO));
    let mut place = |here: u32, packets, auxiliaries: &[AuxiliaryCore]| {
        let flowlet = Flowlet {
            arrival: Nanos::ZERO,
            new: false,
            packets,
            parked: true,
        };
        let loads = Loads {
            now: Nanos::ZERO,
            here: Load {
                flows: 1,
                packets: here,
            },
            auxiliaries,
        };
        mapper.place(flowlet, &loads).index()
    };
    let idle = AuxiliaryCore::default();
    let auxiliaries = [idle, working(1, 60), working(1, 40)];
    assert_eq!(place(70, 30, &auxiliaries), 0);
    assert_eq!(place(71, 30, &auxiliaries), 3);
    assert_eq!(place(71, 60, &auxiliaries), 3);
    assert_eq!(place(71, 61, &auxiliaries), 1);
    assert_eq!(place(71, 61, &auxiliaries[1..]), 0, "no room anywhere");
}

/// Returns the place of a new flowlet with these auxiliary cores.
fn place(mapper: &mut NetBlazeMapper, auxiliaries: &[AuxiliaryCore]) -> usize {
    let now = Nanos::ZERO;
    let flowlet = Flowlet {
        arrival: now,
        new: true,
        packets: 1,
        parked: false,
    };
    let here = Load::default();
    mapper.place(flowlet, &Loads { now, here, auxiliaries }).index()
}

#[test]
fn boost_mode_begins_with_lasting_overload_and_ends_when_drained() {
    let mut mapper = mapper(NetBlazeOptions::new(SLO));
    let much = flows(&[90, 80]);
    let idle = [AuxiliaryCore::default(); 3];
    let mut boost = |packets: &[u32], auxiliaries: &[AuxiliaryCore]| {
        let plan = decide(&mut mapper, Nanos::ZERO, &flows(packets), auxiliaries);
        (plan.boost, indices(&plan))
    };
    for _ in 0..2 {
        assert_eq!(boost(&[90, 80], &idle), (false, vec![0, 1]));
    }
    // An epoch that fits restarts the count.
    assert_eq!(boost(&[90], &idle), (false, vec![0]));
    for _ in 0..2 {
        assert_eq!(boost(&[90, 80], &idle), (false, vec![0, 1]));
    }
    assert_eq!(boost(&[90, 80], &idle), (true, vec![1, 2]));
    // The own queue fits, but not together with the auxiliary cores' load.
    let auxiliaries = [working(1, 60), working(1, 40), AuxiliaryCore::default()];
    assert_eq!(boost(&[10], &auxiliaries), (true, vec![1]));
    // The auxiliary cores cannot take all: the core processes as well, and returns to boost mode afterwards.
    assert_eq!(boost(&[90, 80, 80, 70], &auxiliaries[1..]), (false, vec![0, 2, 0, 0]));
    assert_eq!(boost(&[10], &auxiliaries), (true, vec![1]));
    // A whale requires this core.
    assert_eq!(boost(&[101], &auxiliaries), (false, vec![0]));
    // Drained.
    assert_eq!(boost(&[10], &[working(1, 60), working(1, 30)]), (false, vec![0]));
    assert_eq!(boost(&[90, 80], &idle), (false, vec![0, 1]));

    let never = NetBlazeOptions {
        boost_after: None,
        ..NetBlazeOptions::new(SLO)
    };
    let mut mapper = self::mapper(never);
    for _ in 0..10 {
        assert!(!decide(&mut mapper, Nanos::ZERO, &much, &idle).boost);
    }
}

#[test]
fn new_flowlets_go_to_the_least_loaded_auxiliary_core_in_boost_mode() {
    let now_and_then = NetBlazeOptions {
        boost_after: Some(1),
        ..NetBlazeOptions::new(SLO)
    };
    let mut mapper = mapper(now_and_then);
    let taken = AuxiliaryCore {
        taken: true,
        ..AuxiliaryCore::default()
    };
    let idle = AuxiliaryCore::default();
    let (full, many, some) = (working(2, 100), working(2, 60), working(4, 60));
    assert_eq!(place(&mut mapper, &[working(1, 1)]), 0, "not in boost mode");
    assert!(decide(&mut mapper, Nanos::ZERO, &flows(&[90, 80]), &[idle; 2]).boost);
    for (auxiliaries, expected) in [
        (&[full, working(1, 70), many][..], 3),
        // At 5 flows, 60 packets are the maximum.
        (&[full, some, working(1, 70)], 3),
        (&[taken, full, idle], 3),
        (&[taken, idle, working(1, 90)], 3),
        (&[taken, full], 0),
        (&[], 0),
    ] {
        assert_eq!(place(&mut mapper, auxiliaries), expected, "{auxiliaries:?}");
    }
}

#[test]
fn bound_flows_stay_in_boost_mode() {
    let mut mapper = mapper(NetBlazeOptions {
        boost_after: Some(1),
        ..NetBlazeOptions::new(SLO)
    });
    let mut queued = flows(&[90, 80, 20]);
    queued[1].bound = true;
    let plan = decide(&mut mapper, Nanos::ZERO, &queued, &[AuxiliaryCore::default(); 2]);
    assert_eq!((plan.boost, indices(&plan)), (true, vec![1, 0, 2]));
}

#[test]
fn without_a_core_mapper_nothing_is_ever_due() {
    let mapper = mapper(NetBlazeOptions {
        enabled: false,
        ..NetBlazeOptions::new(SLO)
    });
    assert!(!mapper.due(Nanos::from_secs(1), 1_000_000));
}

#[test]
fn no_group_inside_a_frontier_crosses_its_hull() {
    for points in [
        &[(4, 100), (20, 60)][..],
        &[(10, 352), (31, 320), (43, 288), (103, 128), (312, 96)],
        &[(5, 5)],
        &[(500, 30)],
        &[(2, 90), (3, 30), (40, 29), (41, 28)],
    ] {
        for any in [0, 20] {
            let mut frontier = EpochFrontier::constant(any);
            for (flows, packets) in points {
                let (flows, packets) = (*flows, *packets);
                frontier.insert(Load { flows, packets });
            }
            let lines = hull(&frontier);
            let mut touched = vec![false; lines.len()];
            for flows in 0..=frontier.largest() {
                let packets = frontier.capacity(flows);
                if packets < flows {
                    continue;
                }
                for (line, touched) in lines.iter().zip(&mut touched) {
                    let weight = line.weight(Load { flows, packets });
                    assert!(weight <= line.capacity, "{points:?}: {flows} {packets}");
                    *touched |= weight == line.capacity;
                }
            }
            assert!(touched.iter().all(|touched| *touched), "{points:?}: {lines:?}");
        }
    }
    // Values at the end of their range.
    let boundless = EpochFrontier::constant(u32::MAX);
    let load = Load {
        flows: u32::MAX,
        packets: u32::MAX,
    };
    assert!(hull(&boundless).iter().all(|line| line.weight(load) <= line.capacity));
}
