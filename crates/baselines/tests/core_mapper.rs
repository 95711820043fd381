//! NetBlaze's core mapper against brute force, and invariants of every plan.

use proptest::prelude::*;
use tailwater_baselines::netblaze::{Capacity, NetBlazeMapper, NetBlazeOptions};
use tailwater_net::Nanos;
use tailwater_policy::capacity::{EpochFrontier, SplitPoint, SplitProfile};
use tailwater_policy::core::{
    AuxiliaryCore, CoreMapper, Destination, Flowlet, Load, Loads, Notice, Plan, QueuedFlow, View,
};

fn options(boost_after: Option<u32>) -> NetBlazeOptions {
    NetBlazeOptions {
        boost_after,
        ..NetBlazeOptions::new(Nanos::from_micros(200))
    }
}

/// Input of a mapper, as owned data.
#[derive(Clone, Debug)]
struct Situation {
    now: Nanos,
    queued: Vec<QueuedFlow>,
    auxiliaries: Vec<AuxiliaryCore>,
}

impl Situation {
    fn view(&self) -> View<'_> {
        View {
            now: self.now,
            oldest: self.now,
            parked: Load::default(),
            queued: &self.queued,
            packets: self.queued.iter().map(|flow| flow.packets).sum(),
            auxiliaries: &self.auxiliaries,
        }
    }

    fn decide(&self, mapper: &mut NetBlazeMapper) -> Plan {
        let mut plan = Plan::default();
        plan.clear(self.queued.len());
        mapper.decide(&self.view(), &mut plan);
        plan
    }

    /// Returns the loads of this core and of each auxiliary core under `places`.
    fn after(&self, places: &[Destination]) -> Vec<Load> {
        let mut loads = vec![Load::default()];
        loads.extend(self.auxiliaries.iter().map(|auxiliary| auxiliary.load));
        for (flow, place) in self.queued.iter().zip(places) {
            loads[place.index()].flows += 1;
            loads[place.index()].packets += flow.packets;
        }
        loads
    }

    /// Returns `true` if `places` leaves this core, and every core that gets flows, inside the frontier.
    fn fits(&self, frontier: &EpochFrontier, places: &[Destination]) -> bool {
        let loads = self.after(places);
        let given = |place: usize| places.iter().any(|given| given.index() == place);
        (0..loads.len()).all(|place| frontier.admits(loads[place]) || (place > 0 && !given(place)))
    }

    fn activations(&self, places: &[Destination]) -> usize {
        let idle =
            |i: usize, auxiliary: &AuxiliaryCore| !auxiliary.active && places.contains(&Destination::auxiliary(i));
        (self.auxiliaries.iter().enumerate())
            .filter(|(i, auxiliary)| idle(*i, auxiliary))
            .count()
    }

    /// Returns the fewest auxiliary cores that any fitting plan activates, by trying all plans.
    fn brute_force(&self, frontier: &EpochFrontier) -> Option<usize> {
        let mut usable = vec![Destination::OWN_CORE];
        let free = self
            .auxiliaries
            .iter()
            .enumerate()
            .filter(|(_, auxiliary)| !auxiliary.taken);
        usable.extend(free.map(|(i, _)| Destination::auxiliary(i)));
        let mut best = None;
        let mut digits = vec![0; self.queued.len()];
        loop {
            let places: Vec<Destination> = digits.iter().map(|digit| usable[*digit]).collect();
            if self.fits(frontier, &places) {
                let activations = self.activations(&places);
                best = Some(best.map_or(activations, |best: usize| best.min(activations)));
            }
            let free = |i: &usize| !self.queued[*i].bound && digits[*i] + 1 < usable.len();
            let Some(next) = (0..digits.len()).find(free) else {
                return best;
            };
            digits[..next].fill(0);
            digits[next] += 1;
        }
    }
}

/// Checks the invariants of every plan.
fn check(
    situation: &Situation,
    frontier: &EpochFrontier,
    splits: &SplitProfile,
    plan: &Plan,
) -> Result<(), TestCaseError> {
    let Situation {
        now,
        queued,
        auxiliaries,
    } = situation;
    prop_assert_eq!(plan.destinations.len(), queued.len());
    for (flow, place) in queued.iter().zip(&plan.destinations) {
        if let Some(auxiliary) = place.as_auxiliary() {
            prop_assert!(!flow.bound, "a bound flow moves");
            prop_assert!(auxiliary < auxiliaries.len() && !auxiliaries[auxiliary].taken);
        }
    }
    let mut loads = situation.after(&plan.destinations);
    let mut charge = |place: usize, packets: u32, capacity: u32| {
        let share = u64::from(packets) * u64::from(frontier.largest());
        loads[place].packets += share.div_ceil(u64::from(capacity)) as u32;
    };
    for (i, split) in plan.splits.iter().enumerate() {
        let packets = queued[split.flow].packets;
        prop_assert!(packets > frontier.largest() && !queued[split.flow].bound);
        prop_assert_eq!(plan.destinations[split.flow], Destination::OWN_CORE);
        prop_assert!(!auxiliaries[split.auxiliary].taken && !plan.boost);
        prop_assert!(plan.splits[..i].iter().all(|other| other.flow != split.flow));
        let point = splits.choose(packets).expect("a split suffices");
        prop_assert_eq!(point.last_functions, split.last_functions);
        charge(split.auxiliary + 1, packets, point.last);
        charge(0, packets, point.first);
    }
    for split in &plan.splits {
        loads[split.auxiliary + 1].flows += 1;
        loads[0].packets -= queued[split.flow].packets;
    }
    for (i, auxiliary) in auxiliaries.iter().enumerate() {
        let given = loads[i + 1] != auxiliary.load;
        prop_assert!(
            !given || frontier.admits(loads[i + 1]),
            "helper {i}: {:?}",
            loads[i + 1]
        );
        if plan.release & 1 << i != 0 {
            let idle = now.saturating_sub(auxiliary.last_done);
            prop_assert!(auxiliary.active && auxiliary.load.packets == 0 && !given);
            prop_assert!(idle >= Nanos::from_micros(5 * 80));
        }
    }
    prop_assert_eq!(plan.release >> auxiliaries.len(), 0);
    let room = |load: Load| i64::from(frontier.capacity(load.flows)) - i64::from(load.packets);
    let own = situation.after(&vec![Destination::OWN_CORE; queued.len()])[0];
    let open = auxiliaries.iter().filter(|auxiliary| !auxiliary.taken);
    let elsewhere: i64 = open.map(|auxiliary| room(auxiliary.load).max(0)).sum();
    let here = if plan.boost { -i64::from(own.packets) } else { room(own) };
    let mut relieved = 0;
    for (i, auxiliary) in auxiliaries.iter().enumerate() {
        if plan.relieve >> i & 1 != 0 {
            prop_assert!(auxiliary.load.flows > 1 && room(auxiliary.load) < 0);
            relieved -= room(auxiliary.load);
        }
    }
    prop_assert!(relieved == 0 || relieved <= here + elsewhere);
    for (i, auxiliary) in auxiliaries.iter().enumerate() {
        let spared = plan.relieve >> i & 1 == 0 && auxiliary.load.flows > 1 && room(auxiliary.load) < 0;
        prop_assert!(!spared || relieved - room(auxiliary.load) > here + elsewhere);
    }
    prop_assert_eq!(plan.relieve >> auxiliaries.len(), 0);
    let beyond = loads[0].packets.saturating_sub(frontier.capacity(loads[0].flows));
    match plan.notice {
        None => prop_assert_eq!(beyond, 0),
        Some(Notice::OutOfCores { packets }) => prop_assert_eq!(beyond, packets),
        Some(Notice::WhaleBeyondSplit { packets }) => {
            prop_assert!(packets > frontier.largest());
            prop_assert!(splits.choose(packets).is_none() && beyond > 0);
        }
    }
    if plan.boost {
        let stays = queued
            .iter()
            .zip(&plan.destinations)
            .filter(|(_, place)| **place == Destination::OWN_CORE);
        prop_assert!(stays.into_iter().all(|(flow, _)| flow.bound));
    }
    Ok(())
}

fn frontiers() -> impl Strategy<Value = EpochFrontier> {
    let points = prop::collection::vec((1_u32..12, 1_u32..64), 0..6);
    (points, prop_oneof![3 => Just(0_u32), 1 => 1_u32..40]).prop_map(|(points, any)| {
        let mut frontier = EpochFrontier::constant(any);
        frontier.insert(Load { flows: 2, packets: 8 });
        for (flows, packets) in points {
            frontier.insert(Load { flows, packets });
        }
        frontier
    })
}

fn splits() -> impl Strategy<Value = SplitProfile> {
    prop::collection::vec((1_usize..4, 1_u32..150, 1_u32..150), 0..4).prop_map(|points| {
        let mut splits = SplitProfile::new();
        for (last_functions, first, last) in points {
            splits.insert(SplitPoint {
                last_functions,
                first,
                last,
            });
        }
        splits
    })
}

fn auxiliaries(most: usize) -> impl Strategy<Value = Vec<AuxiliaryCore>> {
    let auxiliary = prop_oneof![
        2 => Just(AuxiliaryCore::default()),
        1 => Just(AuxiliaryCore { taken: true, ..AuxiliaryCore::default() }),
        3 => (0_u32..5, 0_u32..40, 0_u64..2_000_000).prop_map(|(flows, more, since)| AuxiliaryCore {
            active: true,
            load: Load { flows, packets: if flows == 0 { 0 } else { flows + more } },
            last_done: Nanos(since),
            ..AuxiliaryCore::default()
        }),
    ];
    prop::collection::vec(auxiliary, 0..=most)
}

fn situations(
    flows: std::ops::RangeInclusive<usize>,
    packets: u32,
    max_auxiliaries: usize,
) -> impl Strategy<Value = Situation> {
    let sizes = prop_oneof![1..=packets, 1..=packets.div_ceil(8)];
    let flow = (sizes, prop::bool::weighted(0.1));
    let flow = flow.prop_map(|(packets, bound)| QueuedFlow { packets, bound });
    (prop::collection::vec(flow, flows), auxiliaries(max_auxiliaries)).prop_map(|(queued, auxiliaries)| Situation {
        now: Nanos(2_000_000),
        queued,
        auxiliaries,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn few_flows_fit_where_any_plan_fits_and_activate_the_fewest_cores(
        situation in situations(0..=7, 40, 3),
        frontier in frontiers(),
    ) {
        // Whales apart: no plan fits with them.
        let mut situation = situation;
        for flow in &mut situation.queued {
            flow.packets = flow.packets.min(frontier.largest());
        }
        let mut mapper = NetBlazeMapper::new(options(None), &frontier, SplitProfile::new()).unwrap();
        let plan = situation.decide(&mut mapper);
        check(&situation, &frontier, &SplitProfile::new(), &plan)?;
        match situation.brute_force(&frontier) {
            Some(fewest) => {
                prop_assert!(situation.fits(&frontier, &plan.destinations), "{plan:?}");
                prop_assert_eq!(situation.activations(&plan.destinations), fewest, "{:?}", plan);
                prop_assert_eq!(plan.notice, None);
            }
            None => prop_assert!(plan.notice.is_some()),
        }
    }

    #[test]
    fn sizes_that_first_fit_wastes_are_packed_as_well_as_any(
        sizes in prop::collection::vec(prop::sample::select(vec![34_u32, 35, 51, 52, 65, 17]), 8),
        auxiliaries in 1_usize..=3,
    ) {
        let frontier = EpochFrontier::constant(101);
        let flow = |packets| QueuedFlow { packets, bound: false };
        let situation = Situation {
            now: Nanos::ZERO,
            queued: sizes.into_iter().map(flow).collect(),
            auxiliaries: vec![AuxiliaryCore::default(); auxiliaries],
        };
        let mut mapper = NetBlazeMapper::new(options(None), &frontier, SplitProfile::new()).unwrap();
        let plan = situation.decide(&mut mapper);
        check(&situation, &frontier, &SplitProfile::new(), &plan)?;
        if let Some(fewest) = situation.brute_force(&frontier) {
            prop_assert_eq!(situation.activations(&plan.destinations), fewest, "{:?}", plan);
        }
        prop_assert_eq!(situation.brute_force(&frontier).is_some(), plan.notice.is_none());
    }

    #[test]
    fn static_groups_stay_below_the_bound_of_first_fit_decreasing(
        sizes in prop_oneof![
            prop::collection::vec(prop_oneof![1_u32..=101, 20_u32..=51], 9..=13),
            // In order of arrival the small flows would fill cores that the large ones need.
            prop::collection::vec(prop::sample::select(vec![16_u32, 34, 51]), 9..=13)
                .prop_map(|mut sizes| { sizes.sort_unstable(); sizes }),
        ],
    ) {
        let frontier = EpochFrontier::constant(101);
        let flow = |packets: &u32| QueuedFlow { packets: *packets, bound: false };
        let situation = Situation {
            now: Nanos::ZERO,
            queued: sizes.iter().map(flow).collect(),
            auxiliaries: vec![AuxiliaryCore::default(); 13],
        };
        let mut mapper = NetBlazeMapper::new(options(None), &frontier, SplitProfile::new()).unwrap();
        let plan = situation.decide(&mut mapper);
        check(&situation, &frontier, &SplitProfile::new(), &plan)?;
        prop_assert_eq!(plan.notice, None);
        // For each set of flows, the fewest groups, and the smallest load of the last of them.
        let mut best = vec![(0, 101); 1 << sizes.len()];
        for set in 1..best.len() {
            let members = (0..sizes.len()).filter(|i| set & 1 << i != 0);
            best[set] = members.map(|i| {
                let (groups, last) = best[set & !(1 << i)];
                if last + sizes[i] <= 101 { (groups, last + sizes[i]) } else { (groups + 1, sizes[i]) }
            }).min().unwrap();
        }
        let (fewest, groups) = (best[best.len() - 1].0, situation.activations(&plan.destinations) + 1);
        prop_assert!(fewest <= groups && groups * 9 <= fewest * 11 + 6, "{groups}, not {fewest}");
    }

    #[test]
    fn what_holds_of_every_plan_holds_with_many_flows_and_whales(
        frontier in frontiers(),
        splits in splits(),
        boost_after in prop::option::of(1_u32..3),
        sequence in prop::collection::vec(situations(0..=60, 80, 6), 1..6),
    ) {
        let mut mapper = NetBlazeMapper::new(options(boost_after), &frontier, splits.clone()).unwrap();
        let mut again = NetBlazeMapper::new(options(boost_after), &frontier, splits.clone()).unwrap();
        for situation in sequence {
            let plan = situation.decide(&mut mapper);
            check(&situation, &frontier, &splits, &plan)?;
            // The same inputs give the same plans.
            let second = situation.decide(&mut again);
            prop_assert_eq!(&plan.destinations, &second.destinations);
            prop_assert_eq!(&plan.splits, &second.splits);
            prop_assert_eq!((plan.release, plan.relieve), (second.release, second.relieve));
            prop_assert_eq!((plan.boost, plan.notice), (second.boost, second.notice));

            let total = Load {
                flows: situation.queued.len() as u32,
                packets: situation.view().packets,
            };
            if frontier.admits(total) && !plan.boost {
                prop_assert!(boost_after.is_some() || plan.destinations.iter().all(|place| *place == Destination::OWN_CORE));
            }
            // New flowlets go to auxiliary cores in boost mode only, and only where they fit.
            let flowlet = Flowlet { arrival: situation.now, new: true, packets: 1, parked: false };
            let loads = Loads { now: situation.now, here: total, auxiliaries: &situation.auxiliaries };
            if let Some(auxiliary) = mapper.place(flowlet, &loads).as_auxiliary() {
                let AuxiliaryCore { taken, load, .. } = situation.auxiliaries[auxiliary];
                let grown = Load { flows: load.flows + 1, packets: load.packets + 1 };
                prop_assert!(plan.boost && !taken && frontier.admits(grown));
            }
        }
    }
}

/// Returns a pseudo-random number below `bound`.
fn random(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*state >> 33) % bound
}

#[test]
fn no_decision_allocates_in_steady_state() {
    let mut frontier = EpochFrontier::new();
    for (flows, packets) in [(10, 352), (31, 320), (43, 288), (103, 128), (312, 96)] {
        frontier.insert(Load { flows, packets });
    }
    let mut splits = SplitProfile::new();
    let point = SplitPoint {
        last_functions: 1,
        first: 500,
        last: 600,
    };
    splits.insert(point);
    for capacity in [Capacity::Frontier, Capacity::StaticSafe, Capacity::StaticUnsafe] {
        let options = NetBlazeOptions {
            capacity,
            ..options(Some(3))
        };
        let mut mapper = NetBlazeMapper::new(options, &frontier, splits.clone()).unwrap();
        let mut plan = Plan::default();
        let mut state = 1;
        let mut queued = Vec::with_capacity(1024);
        let mut auxiliaries = [AuxiliaryCore::default(); 8];
        let mut notices = 0;
        let mut round = |flows: usize, most: u64, state: &mut u64| {
            queued.clear();
            for _ in 0..flows {
                let packets = 1 + random(state, most) as u32;
                queued.push(QueuedFlow {
                    packets,
                    bound: random(state, 16) == 0,
                });
            }
            for auxiliary in &mut auxiliaries {
                let load = Load {
                    flows: 1,
                    packets: 1 + random(state, 100) as u32,
                };
                auxiliary.active = random(state, 3) == 0;
                auxiliary.load = if auxiliary.active { load } else { Load::default() };
            }
            let view = View {
                now: Nanos::ZERO,
                oldest: Nanos::ZERO,
                parked: Load::default(),
                queued: &queued,
                packets: queued.iter().map(|flow| flow.packets).sum(),
                auxiliaries: &auxiliaries,
            };
            let info = allocation_counter::measure(|| {
                plan.clear(view.queued.len());
                mapper.decide(&view, &mut plan);
                let flowlet = Flowlet {
                    arrival: view.now,
                    new: false,
                    packets: 1,
                    parked: false,
                };
                let loads = Loads {
                    now: view.now,
                    here: Load::default(),
                    auxiliaries: &auxiliaries,
                };
                mapper.place(flowlet, &loads);
            });
            notices += usize::from(plan.notice.is_some());
            info.count_total
        };
        // The longest queue comes first, then queues of each kind, until whales were split, too.
        let mut grown = round(1024, 3, &mut state);
        for i in 0..2500 {
            let (flows, most) = ([1, 8, 32, 310, 1024][i % 5], [400, 90, 12, 3, 2][i % 5]);
            let allocated = round(flows, most, &mut state);
            if i < 500 {
                grown += allocated;
            } else {
                assert_eq!(allocated, 0, "{capacity:?}, round {i}");
            }
        }
        assert!(grown > 0, "the measurement counts");
        assert!(notices > 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Auxiliary cores run a mapper, too. Flows that grew on one move on to idle cores. In the end every flow is on one
    /// core, and every core that can offload is inside the frontier.
    #[test]
    fn an_auxiliary_core_plans_with_the_cores_that_are_left(
        sizes in prop::collection::vec(1_u32..12, 1..24),
        growth in prop::collection::vec(1_u32..4, 24),
        frontier in frontiers(),
        cores in 1_usize..6,
    ) {
        let mapper = || NetBlazeMapper::new(options(None), &frontier, SplitProfile::new()).unwrap();
        let flow = |packets: &u32| QueuedFlow { packets: (*packets).min(frontier.largest()), bound: false };
        let mut auxiliaries = vec![AuxiliaryCore::default(); cores];
        let first = Situation {
            now: Nanos(2_000_000),
            queued: sizes.iter().map(flow).collect(),
            auxiliaries: auxiliaries.clone(),
        };
        let plan = first.decide(&mut mapper());
        check(&first, &frontier, &SplitProfile::new(), &plan)?;
        let mut owner: Vec<usize> = plan.destinations.iter().map(|place| place.index()).collect();
        let packets = |i: usize| (first.queued[i].packets * growth[i]).min(frontier.largest());
        for core in 1..=cores {
            // A core with work belongs to another dispatcher.
            for (i, auxiliary) in auxiliaries.iter_mut().enumerate() {
                auxiliary.taken = i + 1 == core || owner.contains(&(i + 1));
            }
            let mine: Vec<usize> = (0..owner.len()).filter(|i| owner[*i] == core).collect();
            let own = Situation {
                now: Nanos(2_000_000),
                queued: mine.iter().map(|i| QueuedFlow { packets: packets(*i), bound: false }).collect(),
                auxiliaries: auxiliaries.clone(),
            };
            let plan = own.decide(&mut mapper());
            check(&own, &frontier, &SplitProfile::new(), &plan)?;
            for (i, place) in mine.iter().zip(&plan.destinations) {
                if let Some(auxiliary) = place.as_auxiliary() {
                    owner[*i] = auxiliary + 1;
                }
            }
            if plan.notice.is_none() {
                let stays = (0..owner.len()).filter(|i| owner[*i] == core);
                let load = stays.fold(Load::default(), |load, i| Load {
                    flows: load.flows + 1,
                    packets: load.packets + packets(i),
                });
                prop_assert!(load.flows == 0 || frontier.admits(load));
            }
        }
    }
}
