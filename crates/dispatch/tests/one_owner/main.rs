//! Any sequence of arrivals, decisions and processing, with auxiliary cores of any speed: a flow's packets are
//! processed in order, by one core at a time, and none is lost.

mod rig;

use proptest::collection::vec;
use proptest::prelude::*;
use rig::*;
use tailwater_dispatch::OWN;
use tailwater_net::Nanos;
use tailwater_policy::core::{Load, Review, Split};

#[derive(Clone, Debug)]
enum Step {
    Receive(Vec<(usize, bool, u32)>),
    Decide(Script),
    Process(usize),
    Help(usize, usize),
    Collect(usize, usize),
    /// Another dispatcher takes those of these auxiliary cores that are free, and releases all others.
    Take(u64),
    /// These queued flows are bound from now on, others are not, unless a flow is split.
    Rebind(u32),
    /// These auxiliary cores have a queue of their own from now on, others have none.
    Withdraw(u64),
    /// These are dedicated cores with few packets of their own.
    Dedicate(u64),
}

fn script() -> impl Strategy<Value = Script> {
    let split = (0..4_usize, 1..PARTS, 0..AUXILIARIES).prop_map(|(flow, last_functions, auxiliary)| Split {
        flow,
        last_functions,
        auxiliary,
    });
    let maps = (0..1_u64 << AUXILIARIES, 0..1_u64 << AUXILIARIES, any::<bool>());
    let moved = (0..=AUXILIARIES, any::<u32>());
    let divide = (1..PARTS, 0..AUXILIARIES).prop_map(|(last_functions, auxiliary)| Review::Divide {
        last_functions,
        auxiliary,
    });
    let review = prop_oneof![4 => Just(Review::Keep), 4 => divide, 1 => Just(Review::Join)];
    let splits = (proptest::option::of(split), review);
    (0..=AUXILIARIES, moved, splits, maps).prop_map(|(place, moved, (split, review), maps)| Script {
        place,
        moved,
        split,
        review,
        relieve: maps.0,
        release: maps.1,
        boost: maps.2,
    })
}

fn step() -> impl Strategy<Value = Step> {
    // A few flows have most packets.
    let flow = (0..FLOWS, 0..FLOWS).prop_map(|(a, b)| a * b / FLOWS);
    let hash = prop_oneof![4 => Just(0), 1 => 0..HASHES];
    prop_oneof![
        3 => vec((flow, proptest::bool::weighted(0.1), hash), 1..16).prop_map(Step::Receive),
        2 => script().prop_map(Step::Decide),
        2 => (1..12_usize).prop_map(Step::Process),
        3 => (0..AUXILIARIES, 1..12_usize).prop_map(|(auxiliary, most)| Step::Help(auxiliary, most)),
        3 => (0..AUXILIARIES, 1..12_usize).prop_map(|(auxiliary, most)| Step::Collect(auxiliary, most)),
        1 => (0..1_u64 << AUXILIARIES).prop_map(Step::Take),
        1 => (0..1_u32 << FLOWS).prop_map(Step::Rebind),
        1 => (0..1_u64 << AUXILIARIES).prop_map(Step::Withdraw),
        1 => (0..1_u64 << AUXILIARIES).prop_map(Step::Dedicate),
    ]
}

proptest! {
    #[test]
    fn a_flow_has_one_owner_and_keeps_its_order(grows: bool, steps in vec(step(), 1..250)) {
        let mut rig = Rig::new(grows);
        for step in steps {
            match step {
                Step::Receive(flows) => rig.receive_hashed(&flows),
                Step::Decide(script) => rig.decide(script),
                Step::Process(most) => rig.process(most),
                Step::Help(auxiliary, most) => rig.help(auxiliary, most),
                Step::Collect(auxiliary, most) => rig.collect(auxiliary, most),
                Step::Take(auxiliaries) => rig.cores.taken = auxiliaries & !rig.cores.mine,
                Step::Rebind(flows) => rig.rebind(flows),
                Step::Withdraw(auxiliaries) => rig.cores.withdrawn = auxiliaries,
                Step::Dedicate(auxiliaries) => rig.cores.helpful = auxiliaries,
            }
        }
        // All packets leave, and the auxiliary cores are released.
        while rig.used() > 0 {
            rig.process(BUFFERS);
            for auxiliary in 0..AUXILIARIES {
                rig.help(auxiliary, BUFFERS);
                rig.collect(auxiliary, BUFFERS);
            }
        }
        rig.decide(Script { release: u64::MAX, ..Script::default() });
        prop_assert_eq!(rig.processed, rig.arrived);
        prop_assert_eq!(rig.cores.mine, 0);
        prop_assert!(rig.dispatcher.is_quiet());
        prop_assert_eq!(rig.dispatcher.backlog.flows().count(), 0);
        prop_assert!(rig.numbers.iter().all(Option::is_none));
    }
}

/// Packets of a flow on a relieved auxiliary core are parked until it has reported all earlier ones.
#[test]
fn a_relieved_flow_moves_with_its_parked_packets() {
    let mut rig = Rig::new(true);
    rig.script.0.lock().unwrap().0.place = 1;
    rig.receive(&[(3, false), (3, false)]);
    rig.decide(Script {
        place: 2,
        relieve: 1,
        ..Script::default()
    });
    rig.receive(&[(3, false), (4, false), (3, false)]);
    assert_eq!(rig.dispatcher.backlog.parked(), Load { flows: 1, packets: 2 });
    rig.help(0, 1);
    rig.collect(0, 1);
    assert_eq!(rig.dispatcher.backlog.parked().packets, 2, "one is still in flight");
    rig.help(0, 1);
    rig.collect(0, 1);
    assert_eq!(rig.dispatcher.backlog.parked(), Load::default());
    let serials: Vec<_> = rig.lists[2].iter().map(|packet| packet.serial).collect();
    assert_eq!(serials, [4, 3, 5]);
}

/// A withdrawn auxiliary core gets nothing new, whatever the mapper wants, and is released once it is done.
#[test]
fn a_withdrawn_auxiliary_core_is_done_and_released() {
    let mut rig = Rig::new(true);
    rig.script.0.lock().unwrap().0.place = 1;
    rig.receive(&[(3, false), (3, false)]);
    rig.cores.withdrawn = 1;
    rig.receive(&[(3, false), (4, false)]);
    assert_eq!((rig.lists[1].len(), rig.lists[OWN].len()), (2, 1));
    assert_eq!(rig.dispatcher.backlog.parked().packets, 1);
    rig.decide(Script {
        place: 1,
        moved: (1, u32::MAX),
        ..Script::default()
    });
    assert_eq!(
        (rig.lists[1].len(), rig.lists[OWN].len()),
        (2, 1),
        "the mapper has no say"
    );
    rig.help(0, 2);
    rig.collect(0, 2);
    assert_eq!((rig.cores.mine, rig.lists[OWN].len()), (1, 2));
    rig.receive(&[]);
    assert_eq!(rig.cores.mine, 0);
}

/// Without a usable auxiliary core, a batch is received only when the local queue is empty, and with one while there is
/// room.
#[test]
fn packets_are_received_only_for_cores_with_room() {
    let mut rig = Rig::new(true);
    let share = BUFFERS / 3;
    let flows: Vec<_> = (0..share).map(|packet| (packet % 4, false)).collect();
    rig.cores.taken = 0b110;
    rig.receive(&flows);
    assert!(rig.dispatcher.backlog.receives(), "the free auxiliary core has room");
    rig.cores.taken = 0b111;
    rig.receive(&[]);
    assert!(rig.dispatcher.backlog.is_single() && !rig.dispatcher.backlog.receives());
    rig.process(BUFFERS);
    assert!(rig.dispatcher.backlog.receives());
    rig.cores.taken = 0b110;
    rig.script.0.lock().unwrap().0.place = 1;
    rig.receive(&flows);
    assert!(rig.dispatcher.backlog.receives(), "the local queue has room");
    rig.script.0.lock().unwrap().0.place = OWN;
    let others: Vec<_> = (0..share).map(|packet| (4 + packet % 4, false)).collect();
    rig.receive(&others);
    assert!(!rig.dispatcher.backlog.receives());
}

/// A flow with too many packets waits behind others, loses its own once buffers are scarce, and keeps its order.
#[test]
fn a_whale_delays_nobody_and_loses_its_own_packets() {
    let mut rig = Rig::new(true);
    rig.cores.taken = 0b111;
    rig.receive(&[(1, false)].repeat(20));
    rig.receive(&[(2, false), (1, false), (3, false)]);
    let backlog = &rig.dispatcher.backlog;
    assert_eq!((backlog.here().packets, backlog.waiting()), (2, 23));
    let queued = |rig: &Rig, list: usize| rig.lists[list].iter().map(|packet| packet.flow).collect::<Vec<_>>();
    assert_eq!(queued(&rig, OWN), [2, 3]);
    assert!(
        rig.lists[AUXILIARIES + 2]
            .iter()
            .is_sorted_by_key(|packet| packet.serial)
    );
    rig.receive(&[(1, false)].repeat(60));
    assert_eq!(
        rig.refused, 10,
        "83 packets, 73 of which fit: buffers are scarce beyond 72 of 96"
    );
    rig.receive(&[(4, false)].repeat(8));
    assert_eq!(rig.refused, 10, "others have room");
    // One batch (here: packet) in 32 is the whale's while others wait.
    let before = rig.lists[AUXILIARIES + 2].len();
    rig.process(10);
    assert_eq!(before - rig.lists[AUXILIARIES + 2].len(), 0);
    rig.receive(&(0..25).map(|packet| (5 + packet % 5, false)).collect::<Vec<_>>());
    rig.process(25);
    assert_eq!(before - rig.lists[AUXILIARIES + 2].len(), 1);
    rig.process(BUFFERS);
    assert_eq!(rig.processed, rig.arrived);
    rig.receive(&[(1, false)]);
    assert_eq!(queued(&rig, OWN), [1], "nothing of it waits any more");
}

/// Where a bucket is the unit, only the packets of the flow that has most of them are behind and lost.
#[test]
fn flows_in_a_whales_bucket_are_neither_behind_nor_lost() {
    let mut rig = Rig::new(true);
    rig.cores.taken = 0b111;
    let whale = |packets| vec![(1, false, 0); packets];
    rig.receive_hashed(&[(1, false, 1), (1, false, 1)]);
    rig.receive_hashed(&whale(20));
    rig.receive_hashed(&[(1, false, 2)]);
    let queued = |rig: &Rig, list: usize| rig.lists[list].iter().map(|packet| packet.hash).collect::<Vec<_>>();
    let behind = rig.dispatcher.backlog.behind();
    assert_eq!((queued(&rig, OWN), queued(&rig, behind)), (vec![1, 1, 2], vec![0; 20]));
    let backlog = &rig.dispatcher.backlog;
    assert_eq!(backlog.here(), Load { flows: 1, packets: 3 });
    assert_eq!(backlog.waiting(), 23);
    rig.receive_hashed(&whale(60));
    assert_eq!(rig.refused, 10, "72 of 96 buffers are in use");
    rig.receive_hashed(&[(1, false, 1); 10]);
    assert_eq!(rig.refused, 10, "another flow of the bucket has room");
    rig.process(13);
    assert!(queued(&rig, OWN).is_empty() && queued(&rig, behind).len() == 70);
    assert_eq!(rig.dispatcher.backlog.here(), Load::default());
    rig.receive_hashed(&[(1, false, 2), (2, false, 0)]);
    assert_eq!(rig.dispatcher.backlog.here(), Load { flows: 2, packets: 2 });
    rig.process(BUFFERS);
    assert_eq!(rig.processed, rig.arrived);
    // A bucket without such a flow is behind as a whole.
    let many: Vec<_> = (0..20).map(|packet| (1, false, packet % HASHES)).collect();
    rig.receive_hashed(&many);
    assert_eq!((queued(&rig, OWN).len(), queued(&rig, behind).len()), (0, 20));
    rig.process(BUFFERS);
    assert_eq!(rig.processed, rig.arrived);
}

/// It works for one dispatcher as long as it has packets of it, and no longer.
#[test]
fn a_dedicated_core_that_helps_is_released_once_it_is_done() {
    let mut rig = Rig::new(true);
    rig.cores.helpful = 0b1;
    rig.script.0.lock().unwrap().0.place = 1;
    rig.receive(&[(1, false), (1, false), (2, false)]);
    assert_eq!((rig.cores.mine, rig.in_flight()[0]), (0b1, 3));
    rig.help(0, 2);
    rig.collect(0, 2);
    rig.receive(&[(3, false)]);
    assert_eq!((rig.cores.mine, rig.in_flight()[0]), (0b1, 2));
    // It has packets of its own now.
    rig.cores.withdrawn = 0b1;
    rig.receive(&[(3, false), (4, false)]);
    assert_eq!(rig.in_flight()[0], 2, "one is parked, one is queued");
    rig.help(0, 2);
    rig.collect(0, 2);
    rig.receive(&[]);
    assert_eq!(rig.cores.mine, 0);
    rig.process(BUFFERS);
    assert_eq!(rig.processed, rig.arrived);
}

/// A split would last as long as packets of the flow are in the system, and with it the help.
#[test]
fn no_flow_is_split_with_a_dedicated_core_that_helps() {
    let mut rig = Rig::new(true);
    rig.cores.helpful = 0b1;
    rig.receive(&[(1, false), (1, false)]);
    let split = |auxiliary| Script {
        split: Some(Split {
            flow: 0,
            last_functions: 1,
            auxiliary,
        }),
        ..Script::default()
    };
    rig.decide(split(0));
    assert!(rig.cores.mine == 0 && !rig.dispatcher.backlog.has_splits());
    rig.decide(split(1));
    assert!(rig.cores.mine == 0b10 && rig.dispatcher.backlog.has_splits());
    divide(&mut rig, 2, 0);
    assert_eq!(rig.cores.mine, 0b10);
    divide(&mut rig, 2, 2);
    assert_eq!(rig.cores.mine, 0b110);
}

/// Regression: a taken dedicated core was not known as one, so a flow was split with it if a mapper planned that and
/// the other dispatcher released it during the decision.
#[test]
fn no_flow_goes_to_a_taken_dedicated_core_that_is_released_during_the_decision() {
    let mut rig = Rig::new(true);
    (rig.cores.helpful, rig.cores.taken, rig.cores.released) = (0b1, 0b1, 0b1);
    rig.receive(&[(1, false), (1, false), (2, false)]);
    let with_it = Script {
        moved: (1, 0b10),
        ..split(1, 0)
    };
    rig.decide(with_it.clone());
    assert!(rig.cores.mine == 0 && !rig.dispatcher.backlog.has_splits());
    rig.decide(split(1, 1));
    divide(&mut rig, 2, 0);
    assert_eq!(rig.cores.mine, 0b10);
    // After an update it is known as a dedicated core, and takes whole flows only.
    rig.cores.taken = 0;
    rig.receive(&[(2, false)]);
    rig.decide(with_it);
    let packets = rig.script.0.lock().unwrap().1.queued.clone();
    let first = rig.dispatcher.backlog.split_of(rig.numbers[1].unwrap());
    assert_eq!((rig.cores.mine, packets, first), (0b11, vec![2, 2], Some((3, 1))));
}

/// Without a usable auxiliary core, a long queue in the port is looked through for whales if most packets are of one
/// flow.
#[test]
fn whales_are_looked_for_where_there_may_be_one() {
    let mut rig = Rig::new(true);
    rig.cores.taken = 0b111;
    rig.receive(&[]);
    let at = Nanos::from_millis;
    let backlog = &mut rig.dispatcher.backlog;
    (0..100).for_each(|packet| backlog.sample(packet % 3));
    assert!(!backlog.looks_for_whales(at(1), true), "there are three flows");
    (0..100).for_each(|packet| backlog.sample(if packet % 10 < 6 { 7 } else { packet }));
    assert!(!backlog.looks_for_whales(at(1), false), "the queue is short");
    assert!(backlog.looks_for_whales(at(1), true));
    let all: Vec<_> = (0..BUFFERS / 3).map(|packet| (packet % 4, false)).collect();
    rig.receive(&all);
    let backlog = &mut rig.dispatcher.backlog;
    backlog.end_look(at(1));
    assert!(!backlog.receives(), "there is none");
    rig.process(BUFFERS);
    let backlog = &mut rig.dispatcher.backlog;
    assert!(!backlog.looks_for_whales(at(10), true) && backlog.looks_for_whales(at(11), true));
    rig.receive(&[(1, false)].repeat(20));
    let backlog = &mut rig.dispatcher.backlog;
    backlog.end_look(at(11));
    assert!(backlog.receives(), "a whale leaves room for others");
}

/// In boost mode, the queue is processed only for bound flows, or if nothing can be received.
#[test]
fn a_core_in_boost_mode_processes_only_what_no_other_core_may() {
    let mut rig = Rig::new(true);
    rig.receive(&[(1, false)]);
    assert!(rig.dispatcher.processes(true));
    rig.decide(Script {
        boost: true,
        ..Script::default()
    });
    assert!(!rig.dispatcher.processes(true) && rig.dispatcher.processes(false));
    rig.receive(&[(2, true)]);
    assert!(rig.dispatcher.processes(true));
    rig.process(2);
    assert!(
        rig.dispatcher.backlog.is_empty() && !rig.dispatcher.is_quiet(),
        "boost mode lasts"
    );
    rig.decide(Script::default());
    assert!(rig.dispatcher.is_quiet());
}

/// Lets all cores process everything that is there now, once.
fn turn(rig: &mut Rig) {
    rig.process(BUFFERS);
    for auxiliary in 0..AUXILIARIES {
        rig.help(auxiliary, BUFFERS);
        rig.collect(auxiliary, BUFFERS);
    }
}

/// Divides the flow's parts at this number of last functions.
fn divide(rig: &mut Rig, last_functions: usize, auxiliary: usize) {
    rig.decide(Script {
        review: Review::Divide {
            last_functions,
            auxiliary,
        },
        ..Script::default()
    });
}

fn split(last_functions: usize, auxiliary: usize) -> Script {
    let split = Split {
        flow: 0,
        last_functions,
        auxiliary,
    };
    Script {
        split: Some(split),
        ..Script::default()
    }
}

/// Packets pass from core to core, each of which has its own part, while packets sent before keep to their route.
#[test]
fn a_whale_is_divided_with_packets_in_flight() {
    let mut rig = Rig::new(false);
    rig.receive(&[(1, false); 6]);
    rig.decide(split(2, 0));
    rig.process(3);
    divide(&mut rig, 1, 2);
    rig.process(3);
    let until = |rig: &Rig| rig.lists[1].iter().map(|packet| packet.until).collect::<Vec<_>>();
    assert_eq!(until(&rig), [0, 0, 0, 3, 3], "the fifth was dropped here");
    // The dispatcher's last function, too.
    divide(&mut rig, 3, 1);
    rig.receive(&[(1, false); 2]);
    rig.process(2);
    assert_eq!((rig.lists[2].len(), rig.lists[1].len()), (2, 5));
    assert_eq!(rig.cores.mine, 0b111);
    (0..4).for_each(|_| turn(&mut rig));
    assert_eq!((rig.processed, rig.cores.mine), (rig.arrived, 0b111));
    // None of its packets is in the system, so it is no longer split.
    rig.decide(Script {
        release: u64::MAX,
        ..Script::default()
    });
    assert!(!rig.dispatcher.backlog.has_splits());
    assert_eq!(rig.cores.mine, 0);
}

/// A core is on a flow's route once, and a cut is made once.
#[test]
fn what_cannot_be_divided_stays() {
    let mut rig = Rig::new(false);
    rig.receive(&[(1, false); 4]);
    rig.decide(split(2, 0));
    rig.cores.taken = 0b100;
    for (last_functions, auxiliary) in [(1, 0), (2, 1), (1, 2), (4, 1)] {
        divide(&mut rig, last_functions, auxiliary);
    }
    rig.process(4);
    assert!(rig.lists[1].iter().all(|packet| packet.until == 0));
    assert_eq!(rig.cores.mine, 0b1);
}

/// Parts are joined, the last first, once the packets in front of the parked ones are done.
#[test]
fn parts_are_joined_when_no_packet_is_on_its_way() {
    let mut rig = Rig::new(false);
    rig.receive(&[(1, false); 4]);
    rig.decide(split(2, 0));
    divide(&mut rig, 1, 2);
    rig.process(2);
    let join = || Script {
        review: Review::Join,
        ..Script::default()
    };
    rig.decide(join());
    rig.receive(&[(1, false), (2, false), (1, false)]);
    assert_eq!(rig.dispatcher.backlog.parked().packets, 2);
    rig.process(BUFFERS);
    rig.help(0, BUFFERS);
    rig.collect(0, BUFFERS);
    rig.help(2, BUFFERS);
    assert_eq!(rig.dispatcher.backlog.parked().packets, 2, "packets are on their way");
    rig.collect(2, BUFFERS);
    assert_eq!(rig.dispatcher.backlog.parked().packets, 0);
    let flows = |rig: &Rig| rig.lists[OWN].iter().map(|packet| packet.flow).collect::<Vec<_>>();
    assert_eq!(flows(&rig), [1, 1]);
    rig.process(2);
    let until: Vec<_> = rig.lists[1].iter().map(|packet| packet.until).collect();
    assert_eq!(until, [0], "the last two parts are one");
    rig.decide(Script {
        release: u64::MAX,
        ..Script::default()
    });
    assert_eq!(rig.cores.mine, 0b1, "the last core is released");
    // The last join makes it whole. The mapper places it.
    rig.decide(Script { place: 2, ..join() });
    rig.receive(&[(1, false)]);
    (0..3).for_each(|_| turn(&mut rig));
    assert!(!rig.dispatcher.backlog.has_splits());
    assert_eq!(rig.processed, rig.arrived);
    assert_eq!(rig.cores.mine, 0b11);
}

/// Regression: a flow of a whale's bucket that is split was counted twice when it had no queued packet.
#[test]
fn flows_are_counted_once_in_a_whales_bucket_that_is_split() {
    let mut rig = Rig::new(false);
    rig.receive_hashed(&[(1, false, 0); 14]);
    rig.decide(split(2, 0));
    rig.process(14);
    assert_eq!(rig.dispatcher.backlog.here(), Load::default());
    rig.receive_hashed(&[(1, false, 1)]);
    assert_eq!(rig.dispatcher.backlog.here(), Load { flows: 1, packets: 1 });
    rig.process(1);
    assert_eq!(rig.dispatcher.backlog.here(), Load::default());
}

/// A bucket with requests to a store under way stays here. It may move once there are none.
#[test]
fn a_bound_flow_moves_once_it_is_bound_no_more() {
    let mut rig = Rig::new(false);
    rig.receive(&[(1, false), (1, false), (2, false), (3, true)]);
    let all_move = || Script {
        moved: (1, u32::MAX),
        ..Script::default()
    };
    rig.rebind(1 << 1);
    assert!(rig.dispatcher.backlog.has_bound());
    rig.decide(all_move());
    assert_eq!(rig.dispatcher.backlog.here(), Load { flows: 1, packets: 2 });
    rig.process(1);
    rig.rebind(0);
    assert!(!rig.dispatcher.backlog.has_bound());
    rig.decide(all_move());
    assert_eq!(rig.dispatcher.backlog.here(), Load::default());
}

/// At the end of a run, parked packets join those of their flow that are queued.
#[test]
fn packets_parked_for_a_join_are_taken_out_at_the_end() {
    let mut rig = Rig::new(false);
    rig.receive(&[(1, false); 4]);
    rig.decide(split(2, 0));
    rig.process(1);
    rig.decide(Script {
        review: Review::Join,
        ..Script::default()
    });
    rig.receive(&[(1, false); 3]);
    let mut parked = Vec::new();
    rig.dispatcher.backlog.unpark_all(|packet| parked.push(packet));
    assert_eq!((parked.len(), rig.dispatcher.backlog.waiting()), (3, 6));
    for packet in rig.lists[OWN].drain(..).chain(parked) {
        rig.dispatcher.backlog.done_here(packet.number);
    }
    assert_eq!(rig.dispatcher.backlog.here(), Load::default());
    assert!(!rig.dispatcher.backlog.has_bound());
}
