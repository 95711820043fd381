//! Invariants of every plan and placement of Tailwater's core mapper.

mod whales;

use proptest::prelude::*;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{ServiceCosts, SplitPoint, SplitProfile};
use tailwater_policy::core::{
    AuxiliaryCore, CoreMapper, Destination, Flowlet, Load, Loads, Notice, Plan, QueuedFlow, View,
};
use tailwater_policy::tailwater::{TailwaterError, TailwaterMapper, TailwaterOptions};

const SLO: Nanos = Nanos::from_micros(200);

/// Creates a mapper whose costs are 400 ns per packet and 800 ns per opened flow.
fn mapper(splits: SplitProfile) -> TailwaterMapper {
    let costs = ServiceCosts {
        batch: 0.0,
        packet: 400.0,
        byte: 0.0,
        new_flow: 800.0,
    };
    let options = TailwaterOptions {
        costs: Some(costs),
        ..TailwaterOptions::new(SLO)
    };
    TailwaterMapper::new(options, splits).unwrap()
}

fn flow(packets: u32) -> QueuedFlow {
    QueuedFlow { packets, bound: false }
}

fn working(packets: u32) -> AuxiliaryCore {
    AuxiliaryCore {
        active: true,
        load: Load { flows: 1, packets },
        ..AuxiliaryCore::default()
    }
}

/// Dedicated core that processes `packets` packets for this one.
fn dedicated(packets: u32) -> AuxiliaryCore {
    AuxiliaryCore {
        active: packets > 0,
        dedicated: true,
        load: Load {
            flows: packets.min(1),
            packets,
        },
        ..AuxiliaryCore::default()
    }
}

const TAKEN: AuxiliaryCore = AuxiliaryCore {
    active: false,
    taken: true,
    dedicated: false,
    load: Load { flows: 0, packets: 0 },
    last_done: Nanos::ZERO,
};

fn decide(mapper: &mut TailwaterMapper, now: Nanos, queued: &[QueuedFlow], auxiliaries: &[AuxiliaryCore]) -> Plan {
    let mut plan = Plan::default();
    plan.clear(queued.len());
    let view = View {
        now,
        oldest: now.saturating_sub(Nanos::from_micros(10)),
        parked: Load::default(),
        queued,
        packets: queued.iter().map(|flow| flow.packets).sum(),
        auxiliaries,
    };
    mapper.decide(&view, &mut plan);
    plan
}

fn place(mapper: &mut TailwaterMapper, here: u32, auxiliaries: &[AuxiliaryCore]) -> Option<usize> {
    let now = Nanos::from_millis(1);
    let flowlet = Flowlet {
        arrival: now,
        new: false,
        packets: 1,
        parked: false,
    };
    let here = Load {
        flows: here,
        packets: here,
    };
    let loads = Loads { now, here, auxiliaries };
    mapper.place(flowlet, &loads).as_auxiliary()
}

// The budget is 160 µs: 240 packets before an auxiliary core is activated, 80 while auxiliary cores are active.

#[test]
fn an_objective_within_the_allowance_is_refused() {
    let options = TailwaterOptions::new(Nanos::from_micros(40));
    let error = TailwaterMapper::new(options, SplitProfile::new()).unwrap_err();
    assert!(matches!(error, TailwaterError::NoBudget { .. }));
}

#[test]
fn flowlets_stay_until_they_would_be_late_and_then_activate_one_auxiliary_core() {
    let mut mapper = mapper(SplitProfile::new());
    let idle = [TAKEN, AuxiliaryCore::default(), AuxiliaryCore::default()];
    assert_eq!(place(&mut mapper, 230, &idle), None);
    assert_eq!(place(&mut mapper, 245, &idle), Some(1));
    // An active auxiliary core is paid for, and so used sooner. The own core still comes first.
    let auxiliaries = [TAKEN, working(1), AuxiliaryCore::default()];
    assert_eq!(place(&mut mapper, 245, &auxiliaries), Some(1));
    assert_eq!(place(&mut mapper, 160, &auxiliaries), Some(1));
    assert_eq!(place(&mut mapper, 70, &auxiliaries), None);
    // If the other core would take longer, the flowlet stays.
    assert_eq!(place(&mut mapper, 100, &[TAKEN, working(150), TAKEN]), None);
    // Full auxiliary cores are skipped.
    let auxiliaries = [working(300), working(150), working(0)];
    assert_eq!(place(&mut mapper, 245, &auxiliaries), Some(1));
}

/// Other dedicated cores take a share of the budget (32 µs, 80 packets) at a time, however late a packet would be here.
/// They are awake, and cost nothing more, so they come before an auxiliary core that is to be activated.
#[test]
fn other_dedicated_cores_take_a_little_at_a_time() {
    let mut mapper = mapper(SplitProfile::new());
    let cores = [dedicated(79), AuxiliaryCore::default(), dedicated(0), dedicated(10)];
    assert_eq!(place(&mut mapper, 230, &cores), None);
    assert_eq!(place(&mut mapper, 245, &cores), Some(2), "the one that is done first");
    assert_eq!(place(&mut mapper, 230, &cores), None, "no core was activated");
    assert_eq!(place(&mut mapper, 5000, &[dedicated(80), TAKEN]), None);
    // The latest flows of a long queue, but no flow that would take a dedicated core more than its share.
    let queued = [flow(1000), flow(50), flow(50), flow(79)];
    let plan = decide(&mut mapper, Nanos::from_millis(2), &queued, &[dedicated(0)]);
    assert_eq!(plan.destinations[0], Destination::OWN_CORE);
    assert_eq!(
        plan.destinations
            .iter()
            .filter(|to| to.as_auxiliary().is_some())
            .count(),
        1
    );
    assert_eq!((plan.relieve, plan.release), (0, 0));
    // A core does so while its own packets take no longer.
    assert!(mapper.can_help(80) && !mapper.can_help(81));
    // Cheap packets are processed sooner than they are handed over.
    let costs = ServiceCosts {
        packet: 370.0,
        ..ServiceCosts::default()
    };
    let options = TailwaterOptions {
        costs: Some(costs),
        ..TailwaterOptions::new(SLO)
    };
    assert!(!TailwaterMapper::new(options, SplitProfile::new()).unwrap().can_help(0));
}

#[test]
fn without_any_room_flowlets_go_where_they_are_done_first_and_the_operator_is_told() {
    let mut mapper = mapper(SplitProfile::new());
    let several = |packets| AuxiliaryCore {
        load: Load { flows: 2, packets },
        ..working(0)
    };
    let auxiliaries = [several(700), several(600), TAKEN];
    assert_eq!(place(&mut mapper, 800, &auxiliaries), Some(1));
    assert_eq!(place(&mut mapper, 500, &auxiliaries), None);
    let plan = decide(&mut mapper, Nanos::from_millis(1), &[], &auxiliaries);
    assert_eq!(plan.notice, Some(Notice::OutOfCores { packets: 2 }));
    let plan = decide(&mut mapper, Nanos::from_millis(1), &[], &auxiliaries);
    assert_eq!(plan.notice, None);
}

#[test]
fn a_queue_that_is_short_is_not_looked_at() {
    let mapper = mapper(SplitProfile::new());
    assert!(!mapper.due(Nanos::from_millis(1), 200));
    assert!(mapper.due(Nanos::from_millis(1), 250));
}

#[test]
fn a_long_queue_is_relieved_by_few_flows_and_from_its_end() {
    let mut mapper = mapper(SplitProfile::new());
    let now = Nanos::from_millis(1);
    let mut queued = vec![flow(1); 200];
    queued[20] = flow(60);
    queued[150] = flow(60);
    let plan = decide(&mut mapper, now, &queued, &[AuxiliaryCore::default()]);
    let moved: Vec<usize> = (0..200)
        .filter(|i| plan.destinations[*i] != Destination::OWN_CORE)
        .collect();
    assert!(moved.contains(&150), "{moved:?}");
    assert!(moved.len() <= 130, "{moved:?}");
    // The minimum interval between decisions.
    assert!(!mapper.due(now + Nanos(4_999), 1000));
    assert!(mapper.due(now + Nanos::from_micros(20), 1000));
}

#[test]
fn a_whale_gets_an_auxiliary_core_for_itself() {
    let mut mapper = mapper(SplitProfile::new());
    let now = Nanos::from_millis(1);
    let queued = [flow(2), flow(500), flow(3)];
    let plan = decide(&mut mapper, now, &queued, &[working(1), AuxiliaryCore::default()]);
    let places = [Destination::OWN_CORE, Destination::auxiliary(1), Destination::OWN_CORE];
    assert_eq!(plan.destinations, places);
    assert_eq!(plan.notice, Some(Notice::WhaleBeyondSplit { packets: 500 }));
    // Nothing goes to the whale's core, and the notice is repeated.
    let auxiliaries = [working(1), working(500)];
    let plan = decide(&mut mapper, now, &[], &auxiliaries);
    assert_eq!(plan.notice, Some(Notice::WhaleBeyondSplit { packets: 500 }));
    assert_eq!(place(&mut mapper, 245, &auxiliaries), Some(0));

    // If no auxiliary core is free, all other flows leave this core.
    let queued = [flow(2), flow(500), flow(3)];
    let plan = decide(&mut mapper, now, &queued, &[working(1)]);
    assert_eq!(
        plan.destinations,
        [
            Destination::auxiliary(0),
            Destination::OWN_CORE,
            Destination::auxiliary(0)
        ]
    );
}

#[test]
fn idle_auxiliary_cores_are_released_after_the_timeout_and_no_sooner() {
    let mut mapper = mapper(SplitProfile::new());
    let last_done = |micros| AuxiliaryCore {
        active: true,
        last_done: Nanos::from_micros(micros),
        ..AuxiliaryCore::default()
    };
    let auxiliaries = [last_done(920), last_done(921), working(1), TAKEN];
    let plan = decide(&mut mapper, Nanos::from_millis(1), &[], &auxiliaries);
    assert_eq!(plan.release, 1);
}

#[test]
fn a_dispatcher_that_is_late_only_hands_over_until_all_is_calm() {
    let mut mapper = mapper(SplitProfile::new());
    let mut now = Nanos::from_millis(1);
    let auxiliaries = [working(10), AuxiliaryCore::default()];
    let mut now_with = |mapper: &mut TailwaterMapper, dispatching: u64| {
        now += Nanos::from_micros(50);
        mapper.dispatched(Nanos(dispatching));
        now
    };
    let late = |mapper: &mut TailwaterMapper, now: Nanos, lag: u64, auxiliaries: &[AuxiliaryCore]| {
        let flowlet = Flowlet {
            arrival: now.saturating_sub(Nanos(lag)),
            new: false,
            packets: 1,
            parked: false,
        };
        let here = Load::default();
        mapper.place(flowlet, &Loads { now, here, auxiliaries })
    };
    // Packets are late, but not for want of time to dispatch.
    for _ in 0..10 {
        let now = now_with(&mut mapper, 10_000);
        late(&mut mapper, now, 90_000, &auxiliaries);
        assert!(!decide(&mut mapper, now, &[flow(1)], &auxiliaries).boost);
    }
    // Dispatching takes most of the time, which is known after half a budget.
    let begun = (1..=4).position(|_| {
        let now = now_with(&mut mapper, 45_000);
        late(&mut mapper, now, 90_000, &auxiliaries);
        decide(&mut mapper, now, &[flow(1)], &auxiliaries).boost
    });
    assert!(begun.is_some(), "no boost");
    let mut now = now_with(&mut mapper, 45_000);
    assert_eq!(late(&mut mapper, now, 0, &auxiliaries), Destination::auxiliary(0));
    let busy = [working(200), AuxiliaryCore::default()];
    assert!(decide(&mut mapper, now, &[], &busy).boost);
    // Boost mode ends after little work for the release timeout.
    assert!(decide(&mut mapper, now, &[], &auxiliaries).boost);
    mapper.dispatched(Nanos(75_000));
    now += Nanos::from_micros(79);
    assert!(decide(&mut mapper, now, &[], &auxiliaries).boost);
    now += Nanos::from_micros(1);
    assert!(!decide(&mut mapper, now, &[], &auxiliaries).boost);
    assert_eq!(late(&mut mapper, now, 0, &auxiliaries), Destination::OWN_CORE);
}

#[test]
fn an_auxiliary_core_that_is_busy_for_too_long_is_relieved_while_another_core_is_not() {
    let several = |packets| AuxiliaryCore {
        load: Load { flows: 2, packets },
        last_done: Nanos::from_millis(1),
        ..working(0)
    };
    // 240 packets take 60 % of the budget: the limit, and enough to activate a core.
    let (over, busy, idle) = (several(241), several(240), AuxiliaryCore::default());
    let cases: [(u32, &[AuxiliaryCore], u64); 6] = [
        (10, &[over, busy, working(400)], 1),
        (240, &[over, several(700)], 0b11),
        (260, &[over, several(250)], 0),
        (260, &[over, several(240)], 1),
        (260, &[over, idle], 1),
        (260, &[over, TAKEN], 0),
    ];
    for (queued, auxiliaries, relieve) in cases {
        let mut mapper = mapper(SplitProfile::new());
        let queued = vec![flow(1); queued as usize];
        let plan = decide(&mut mapper, Nanos::from_millis(1), &queued, auxiliaries);
        assert_eq!(plan.relieve, relieve, "{auxiliaries:?}");
    }
}

#[test]
fn parked_packets_are_placed_by_the_cost_of_all_of_them() {
    let mut mapper = mapper(SplitProfile::new());
    let mut place = |packets, auxiliaries: &[AuxiliaryCore]| {
        let now = Nanos::from_millis(1);
        let flowlet = Flowlet {
            arrival: now,
            new: false,
            packets,
            parked: true,
        };
        let here = Load::default();
        mapper.place(flowlet, &Loads { now, here, auxiliaries })
    };
    assert_eq!(place(240, &[AuxiliaryCore::default()]), Destination::OWN_CORE);
    assert_eq!(place(241, &[working(0)]), Destination::OWN_CORE, "no sooner there");
    // Other flows wait here. Parked packets are no reason for boost mode.
    let late = |mapper: &mut TailwaterMapper, now: Nanos| {
        let flowlet = Flowlet {
            arrival: now.saturating_sub(Nanos(90_000)),
            new: false,
            packets: 3,
            parked: true,
        };
        let here = Load {
            flows: 200,
            packets: 200,
        };
        let auxiliaries = [working(0), AuxiliaryCore::default()];
        let loads = Loads {
            now,
            here,
            auxiliaries: &auxiliaries,
        };
        assert_eq!(mapper.place(flowlet, &loads), Destination::auxiliary(0));
        decide(mapper, now, &[flow(1)], &auxiliaries).boost
    };
    for look in 1..=10 {
        assert!(!late(&mut mapper, Nanos::from_micros(1000 + 50 * look)));
    }
}

/// One step of a run: waiting flows, auxiliary cores, the flowlets' lag, and a batch.
type Step = (Vec<QueuedFlow>, Vec<AuxiliaryCore>, u64, (u32, u32, u64));

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sizes = prop_oneof![8 => 1_u32..6, 2 => 1_u32..80, 1 => 200_u32..900];
    let queued = (sizes, prop::bool::weighted(0.1)).prop_map(|(packets, bound)| QueuedFlow { packets, bound });
    let auxiliary = prop_oneof![
        2 => Just(AuxiliaryCore::default()),
        1 => Just(TAKEN),
        1 => (0_u32..200).prop_map(dedicated),
        3 => (0_u32..5, 0_u32..300, 0_u64..1_000_000).prop_map(|(flows, more, since)| AuxiliaryCore {
            active: true,
            load: Load { flows, packets: if flows == 0 { 0 } else { flows + more } },
            last_done: Nanos(since),
            ..AuxiliaryCore::default()
        }),
    ];
    let step = (
        prop::collection::vec(queued, 0..120),
        prop::collection::vec(auxiliary, 4),
        prop_oneof![3 => 0_u64..20_000, 1 => 0_u64..300_000],
        (0_u32..33, 0_u32..33, 0_u64..100_000),
    );
    prop::collection::vec(step, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_holds_of_every_plan_and_place(sequence in steps(), split in prop::option::of(100_u32..900)) {
        let mut splits = SplitProfile::new();
        if let Some(packets) = split {
            splits.insert(SplitPoint { last_functions: 1, first: packets, last: packets });
        }
        let (mut first, mut second) = (mapper(splits.clone()), mapper(splits));
        let mut now = Nanos::from_millis(1);
        for (queued, auxiliaries, lag, (packets, new, took)) in sequence {
            now += Nanos::from_micros(20);
            let here = Load {
                flows: queued.len() as u32,
                packets: queued.iter().map(|flow| flow.packets).sum(),
            };
            let (packets_parked, held) = if lag % 3 == 0 { (1 + lag as u32 % 9, true) } else { (1, false) };
            let flowlet = Flowlet {
                arrival: now.saturating_sub(Nanos(lag)),
                new: lag % 2 == 0 && !held,
                packets: packets_parked,
                parked: held,
            };
            let loads = Loads { now, here, auxiliaries: &auxiliaries };
            for _ in 0..3 {
                let place = first.place(flowlet, &loads);
                prop_assert_eq!(place, second.place(flowlet, &loads), "the same, asked the same");
                if let Some(auxiliary) = place.as_auxiliary() {
                    prop_assert!(!auxiliaries[auxiliary].taken, "a taken helper is used");
                }
            }
            first.completed(packets, new, Nanos(took));
            second.completed(packets, new, Nanos(took));
            prop_assert_eq!(first.due(now, here.packets), second.due(now, here.packets));

            let plan = decide(&mut first, now, &queued, &auxiliaries);
            let again = decide(&mut second, now, &queued, &auxiliaries);
            prop_assert_eq!(&plan.destinations, &again.destinations);
            prop_assert_eq!(&plan.splits, &again.splits);
            prop_assert_eq!((plan.release, plan.relieve), (again.release, again.relieve));
            prop_assert_eq!((plan.boost, plan.notice), (again.boost, again.notice));

            prop_assert_eq!(plan.destinations.len(), queued.len());
            let mut used = 0;
            for (flow, place) in queued.iter().zip(&plan.destinations) {
                if let Some(auxiliary) = place.as_auxiliary() {
                    prop_assert!(!flow.bound, "a bound flow moves");
                    prop_assert!(!auxiliaries[auxiliary].taken, "a taken helper is used");
                    used |= 1_u64 << auxiliary;
                }
            }
            for split in &plan.splits {
                prop_assert!(!queued[split.flow].bound && !auxiliaries[split.auxiliary].taken);
                prop_assert_eq!(plan.destinations[split.flow], Destination::OWN_CORE);
                used |= 1 << split.auxiliary;
            }
            prop_assert_eq!(plan.release & used, 0, "a helper that is used is let go");
            prop_assert_eq!(plan.release >> auxiliaries.len(), 0);
            for (i, auxiliary) in auxiliaries.iter().enumerate() {
                let idle = auxiliary.active && auxiliary.load.packets == 0;
                prop_assert!(plan.release & 1 << i == 0 || idle);
                let several = auxiliary.active && auxiliary.load.flows > 1;
                // A single flow only to be split.
                let one = auxiliary.active && auxiliary.load.flows == 1 && split.is_some();
                prop_assert!(plan.relieve & 1 << i == 0 || several || one);
            }
            if plan.boost {
                let stays = |(flow, place): (usize, &Destination)| {
                    *place == Destination::OWN_CORE
                        && !queued[flow].bound
                        && plan.splits.iter().all(|split| split.flow != flow)
                };
                prop_assert!(!plan.destinations.iter().enumerate().any(stays));
            }
        }
    }
}

#[test]
fn nothing_is_allocated_in_steady_state() {
    let mut mapper = mapper(SplitProfile::new());
    let mut plan = Plan::default();
    plan.clear(1000);
    let auxiliaries = [working(10), working(200), AuxiliaryCore::default(), TAKEN];
    let queued: Vec<QueuedFlow> = (0..1000).map(|i| flow(1 + i % 3)).collect();
    let mut moved = 0;
    let info = allocation_counter::measure(|| {
        for round in 0..1000 {
            let now = Nanos::from_micros(1000 + round * 50);
            let queued = &queued[..(round as usize * 7) % 1000];
            let packets = queued.iter().map(|flow| flow.packets).sum();
            plan.clear(queued.len());
            let view = View {
                now,
                oldest: now.saturating_sub(Nanos(20_000)),
                parked: Load::default(),
                queued,
                packets,
                auxiliaries: &auxiliaries,
            };
            mapper.decide(&view, &mut plan);
            moved += plan
                .destinations
                .iter()
                .filter(|p| **p != Destination::OWN_CORE)
                .count();
            let flowlet = Flowlet {
                arrival: now,
                new: round % 5 == 0,
                packets: 1,
                parked: false,
            };
            let here = Load {
                flows: queued.len() as u32,
                packets,
            };
            let auxiliaries = &auxiliaries;
            mapper.place(flowlet, &Loads { now, here, auxiliaries });
            mapper.completed(32, 3, Nanos(15_000));
        }
    });
    assert_eq!(info.count_total, 0);
    assert!(moved > 0);
}

/// Packets in the port need no queue while this core is in time by itself: 60 % of the budget less the 20 % that
/// packets may have waited already.
#[test]
fn few_waiting_packets_need_no_queue() {
    let mapper = mapper(SplitProfile::new());
    assert!(mapper.is_in_time(160) && !mapper.is_in_time(161));
}
