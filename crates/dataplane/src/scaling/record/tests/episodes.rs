//! Explanations of records.

use super::*;

#[test]
fn episodes_tell_what_was_too_much_and_what_was_done() {
    let flow = |packets| QueuedFlow { packets, bound: false };
    let at = Nanos::from_micros;
    let busy = |packets| AuxiliaryCore {
        active: true,
        load: Load { flows: 1, packets },
        ..AuxiliaryCore::default()
    };
    let mut situations = vec![
        Situation::quiet(at(1000), vec![flow(10), flow(20)]),
        // A whale. From the second decision on an auxiliary core works.
        Situation::quiet(at(1080), vec![flow(60), flow(500), flow(40)]),
        Situation::quiet(at(1160), vec![flow(90)]),
        Situation::quiet(at(1240), vec![flow(5)]),
        // Minnows that wait longer than the objective, in an episode that does not end.
        Situation::quiet(at(5000), vec![flow(4); 50]),
        Situation::quiet(at(5080), vec![flow(4); 60]),
    ];
    situations[2].helpers[0] = busy(500);
    situations[3].helpers[0] = AuxiliaryCore {
        active: true,
        ..AuxiliaryCore::default()
    };
    situations[5].oldest = at(4800);
    let (bytes, plans) = recorded(&situations, netblaze(100), "");
    assert!(plans[1].notice.is_some());
    let mut reader = Reader::new(&*bytes).unwrap();
    let mut explainer = Explainer::new(reader.header(), EpochFrontier::constant(100), 10);
    while let Some(decision) = next_decision(&mut reader).unwrap() {
        explainer.add(decision);
    }
    let Explanation { summary, episodes, .. } = explainer.finish();
    assert_eq!((summary.decisions, summary.dispatchers, summary.missing), (6, 1, 0));
    assert_eq!(summary.span_us, 4080.0);
    assert_eq!((summary.episodes, summary.episodes_late, summary.whales), (2, 1, 1));
    assert_eq!((summary.activated, summary.whales_beyond_split), (1, 1));
    assert_eq!(summary.longest_wait_us, 280.0);
    let moved = plans.iter().flat_map(|plan| &plan.destinations);
    let moved = moved.filter(|place| **place != Destination::OWN_CORE).count();
    assert_eq!(summary.flows_moved, moved as u64);

    let [minnows, whale] = &*episodes else {
        panic!("{episodes:?}");
    };
    assert_eq!((minnows.kind, minnows.late, minnows.over), (Kind::Minnows, true, false));
    assert_eq!((minnows.start_us, minnows.length_us), (4950.0, 130.0));
    assert_eq!((minnows.peak_packets, minnows.peak_flows), (240, 60));
    assert_eq!(minnows.first_move_us, Some(50.0));
    assert_eq!((whale.kind, whale.late, whale.over), (Kind::Whale, false, true));
    assert_eq!((whale.start_us, whale.length_us, whale.decisions), (1030.0, 210.0, 2));
    assert_eq!((whale.peak_packets, whale.largest_flow_packets), (600, 500));
    assert_eq!((whale.activated, whale.most_auxiliary), (1, 1));
    assert_eq!((whale.whales_beyond_split, whale.out_of_cores), (1, 0));
}

#[test]
fn splits_are_counted() {
    let flow = |packets| QueuedFlow { packets, bound: false };
    let at = Nanos::from_micros;
    let situations = [
        Situation::quiet(at(1000), vec![flow(10), flow(500)]),
        Situation::quiet(at(1080), vec![flow(300)]),
        Situation::quiet(at(1160), vec![flow(10)]),
    ];
    let mut splits = SplitProfile::new();
    assert!(splits.insert(SplitPoint {
        last_functions: 2,
        first: 600,
        last: 700,
    }));
    let make: MakeMapper = Arc::new(move || {
        let options = NetBlazeOptions::new(Nanos::from_micros(200));
        let frontier = EpochFrontier::constant(100);
        Box::new(NetBlazeMapper::new(options, &frontier, splits.clone()).unwrap())
    });
    let (bytes, plans) = recorded(&situations, make, "");
    assert_eq!(plans.iter().flat_map(|plan| &plan.splits).count(), 2);
    let mut reader = Reader::new(&*bytes).unwrap();
    let mut explainer = Explainer::new(reader.header(), EpochFrontier::constant(100), 10);
    while let Some(decision) = next_decision(&mut reader).unwrap() {
        explainer.add(decision);
    }
    let explanation = explainer.finish();
    let of_episodes = explanation.episodes.iter().map(|episode| episode.splits);
    assert_eq!((explanation.summary.splits, of_episodes.sum()), (2, 2u64));
}

#[test]
fn reliefs_and_what_is_held_are_counted() {
    let at = Nanos::from_micros;
    let flow = QueuedFlow {
        packets: 10,
        bound: false,
    };
    let with = |time, loads: [u32; HELPERS], held| {
        let mut situation = Situation::quiet(at(time), vec![flow]);
        for (helper, packets) in situation.helpers.iter_mut().zip(loads) {
            helper.active = packets > 0;
            helper.load = Load { flows: 2, packets };
        }
        situation.held = Load {
            flows: 1,
            packets: held,
        };
        situation
    };
    let situations = [
        with(1000, [20, 0, 0], 0),
        with(1080, [120, 0, 0], 0),
        with(1160, [110, 105, 0], 7),
        with(1240, [80, 101, 0], 30),
        with(1320, [0, 0, 0], 0),
        with(1400, [0, 150, 0], 0),
    ];
    let (bytes, plans) = recorded(&situations, netblaze(100), "");
    let relieved: Vec<u64> = plans.iter().map(|plan| plan.relieve).collect();
    assert_eq!(relieved, [0, 0b1, 0b11, 0b10, 0, 0b10]);
    let mut explainer = Explainer::new(&header(""), EpochFrontier::constant(100), 10);
    for decision in decisions(&bytes).unwrap() {
        explainer.add(&decision);
    }
    let Explanation { summary, episodes, .. } = explainer.finish();
    assert_eq!((summary.relieved, summary.most_parked), (3, 30));
    let each = episodes.iter().map(|each| {
        let everywhere = each.peak_packets_everywhere;
        (each.relieved, each.most_held, everywhere)
    });
    assert_eq!(each.collect::<Vec<_>>(), [(2, 30, 232), (1, 0, 160)]);
}

#[test]
fn what_was_done_before_the_first_decision_counts() {
    let flow = QueuedFlow {
        packets: 150,
        bound: false,
    };
    let file = TestFile::new();
    let recorder = Recorder::create(&file.0, &header("")).unwrap();
    let mut mapper = recorder.recording(anything())();
    let helpers = [AuxiliaryCore {
        active: true,
        ..AuxiliaryCore::default()
    }; HELPERS];
    let flowlet = Flowlet {
        arrival: Nanos::ZERO,
        new: true,
        packets: 1,
        parked: false,
    };
    let loads = Loads {
        now: Nanos::ZERO,
        here: Load::default(),
        auxiliaries: &helpers,
    };
    // Ten flowlets, three auxiliary cores activated for them, and then too much work waits.
    (0..10).for_each(|_| assert_ne!(mapper.place(flowlet, &loads), Destination::OWN_CORE));
    let mut situation = Situation::quiet(Nanos::from_millis(1), vec![flow]);
    situation.helpers = helpers.to_vec();
    situation.ask(&mut *mapper);
    // Long after, another burst.
    situation.now = Nanos::from_millis(9);
    situation.oldest = Nanos::from_millis(9);
    (0..4).for_each(|_| assert_ne!(mapper.place(flowlet, &loads), Destination::OWN_CORE));
    situation.ask(&mut *mapper);
    drop(mapper);
    recorder.finish().unwrap();
    let mut explainer = Explainer::new(&header(""), EpochFrontier::constant(100), 10);
    let read = decisions(&file.bytes()).unwrap();
    let placed = read.iter().map(|decision| decision.flowlets);
    let four = Flowlets {
        placed: 4,
        away: 4,
        dedicated: 0,
    };
    let ten = Flowlets {
        placed: 10,
        away: 10,
        dedicated: 0,
    };
    assert_eq!(placed.collect::<Vec<_>>(), [ten, four]);
    read.iter().for_each(|decision| explainer.add(decision));
    let Explanation { summary, episodes, .. } = explainer.finish();
    assert_eq!((summary.flowlets, summary.flowlets_away), (14, 14));
    let [first, second] = &*episodes else {
        panic!("{episodes:?}");
    };
    assert_eq!((first.flowlets_away, first.activated), (10, 3));
    assert_eq!((first.length_us, first.over), (50.0, true));
    assert_eq!((second.flowlets_away, second.over), (4, false));
}

#[test]
fn only_the_worst_episodes_are_kept() {
    let flow = QueuedFlow {
        packets: 1,
        bound: false,
    };
    let situations: Vec<_> = (0..100u64)
        .map(|i| {
            let flows = if i % 2 == 0 { 101 + (i * 37 % 50) as usize } else { 1 };
            Situation::quiet(Nanos::from_micros(100 + 80 * i), vec![flow; flows])
        })
        .collect();
    let (bytes, _) = recorded(&situations, netblaze(100), "");
    let mut reader = Reader::new(&*bytes).unwrap();
    let mut explainer = Explainer::new(reader.header(), EpochFrontier::constant(100), 3);
    while let Some(decision) = next_decision(&mut reader).unwrap() {
        explainer.add(decision);
    }
    let Explanation { summary, episodes, .. } = explainer.finish();
    assert_eq!(summary.episodes, 50);
    let peaks: Vec<u32> = episodes.iter().map(|episode| episode.peak_packets).collect();
    let mut all: Vec<u32> = (0..100).step_by(2).map(|i| 101 + i * 37 % 50).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(peaks, all[..3]);
    let mut none = Explainer::new(&header(""), EpochFrontier::constant(100), 0);
    decisions(&bytes)
        .unwrap()
        .iter()
        .for_each(|decision| none.add(decision));
    assert_eq!(none.finish().episodes, []);
}
