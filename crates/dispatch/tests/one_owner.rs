//! Any sequence of arrivals, decisions and processing, with auxiliary cores of any speed: a flow's packets are
//! processed in order, by one core at a time, and none is lost.

use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tailwater_dispatch::{AuxiliaryCores, Availability, Backlog, Dispatcher, OWN};
use tailwater_net::Nanos;
use tailwater_policy::core::{AuxiliaryCore, CoreMapper, Destination, Flowlet, Load, Loads, Plan, Split, View};

const FLOWS: usize = 12;
const AUXILIARIES: usize = 3;
const BUFFERS: usize = 96;

/// Parts of a chain that is split. Each has its own flow state.
const PARTS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packet {
    flow: usize,
    serial: u64,
    number: u16,
    /// First segment on the auxiliary core, or 0 for all of the chain.
    from: usize,
}

/// Decision of the mapper.
#[derive(Clone, Debug, Default)]
struct Script {
    place: usize,
    /// Destination of queued flows, and a bit map of their indices.
    moved: (usize, u32),
    split: Option<Split>,
    relieve: u64,
    release: u64,
    boost: bool,
}

/// Input of the mapper at its last decision.
#[derive(Clone, Debug, Default)]
struct Seen {
    queued: Vec<u32>,
    packets: u32,
    parked: Load,
    auxiliaries: Vec<AuxiliaryCore>,
}

#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<(Script, Seen)>>);

fn destination(index: usize) -> Destination {
    match index {
        OWN => Destination::OWN_CORE,
        list => Destination::auxiliary(list - 1),
    }
}

impl CoreMapper for Scripted {
    fn due(&self, _: Nanos, _: u32) -> bool {
        true
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        let (script, seen) = &mut *self.0.lock().unwrap();
        *seen = Seen {
            queued: view.queued.iter().map(|flow| flow.packets).collect(),
            packets: view.packets,
            parked: view.parked,
            auxiliaries: view.auxiliaries.to_vec(),
        };
        let (to, flows) = script.moved;
        for (at, place) in plan.destinations.iter_mut().enumerate().take(32) {
            if flows >> at & 1 != 0 {
                *place = destination(to);
            }
        }
        let split = script.split.filter(|split| split.flow < view.queued.len());
        if let Some(split) = split {
            plan.destinations[split.flow] = Destination::OWN_CORE;
            plan.splits.push(split);
        }
        (plan.relieve, plan.release, plan.boost) = (script.relieve, script.release, script.boost);
    }

    fn place(&mut self, _: Flowlet, _: &Loads<'_>) -> Destination {
        destination(self.0.lock().unwrap().0.place)
    }
}

/// Auxiliary cores, some of which another dispatcher has, or have a queue of their own.
#[derive(Default)]
struct Cores {
    mine: u64,
    taken: u64,
    withdrawn: u64,
}

impl Cores {
    fn availability(&self, auxiliary: usize) -> Availability {
        match (
            self.withdrawn >> auxiliary & 1,
            (self.taken | self.mine) >> auxiliary & 1,
        ) {
            (1, _) => Availability::Withdrawn,
            (_, 1) => Availability::Taken,
            _ => Availability::Free,
        }
    }
}

impl AuxiliaryCores for Cores {
    fn activate(&mut self, auxiliary: usize) -> bool {
        assert_eq!(self.mine >> auxiliary & 1, 0, "activated twice");
        let is_free = (self.taken | self.withdrawn) >> auxiliary & 1 == 0;
        self.mine |= u64::from(is_free) << auxiliary;
        is_free
    }

    fn release(&mut self, auxiliary: usize) {
        assert_eq!(self.mine >> auxiliary & 1, 1, "released without being active");
        self.mine &= !(1 << auxiliary);
    }
}

struct Rig {
    script: Scripted,
    dispatcher: Dispatcher<usize, Packet>,
    cores: Cores,
    numbers: [Option<u16>; FLOWS],
    /// By destination: packets not yet processed.
    lists: [VecDeque<Packet>; AUXILIARIES + 3],
    /// Packets that auxiliary cores have processed and not reported.
    unreported: [VecDeque<Packet>; AUXILIARIES],
    /// Last packet of each flow that passed each part of the chain.
    last: [[u64; PARTS]; FLOWS],
    now: u64,
    arrived: usize,
    processed: usize,
    refused: usize,
}

impl Rig {
    fn new(grows: bool) -> Rig {
        let script = Scripted::default();
        let backlog = match grows {
            true => Backlog::new(AUXILIARIES, BUFFERS),
            false => Backlog::with_capacity(AUXILIARIES, BUFFERS),
        };
        Rig {
            dispatcher: Dispatcher::new(Box::new(script.clone()), backlog),
            script,
            cores: Cores::default(),
            numbers: [None; FLOWS],
            lists: Default::default(),
            unreported: Default::default(),
            last: [[0; PARTS]; FLOWS],
            now: 0,
            arrived: 0,
            processed: 0,
            refused: 0,
        }
    }

    /// Packets at an auxiliary core, processed or not, until it reports them done.
    fn on(&self, auxiliary: usize) -> impl Iterator<Item = &Packet> {
        self.unreported[auxiliary].iter().chain(&self.lists[auxiliary + 1])
    }

    fn used(&self) -> usize {
        let listed: usize = self.lists.iter().map(VecDeque::len).sum();
        let unreported: usize = self.unreported.iter().map(VecDeque::len).sum();
        listed + unreported + self.dispatcher.backlog.parked().packets as usize
    }

    fn receive(&mut self, flows: &[(usize, bool)]) {
        let before = self.in_flight();
        let backlog = &mut self.dispatcher.backlog;
        backlog.update_available(|auxiliary| self.cores.availability(auxiliary));
        backlog.release_withdrawn(&mut self.cores);
        let backlog = &mut self.dispatcher.backlog;
        backlog.make_room(flows.len());
        for &(flow, is_bound) in flows {
            if self.used() == BUFFERS {
                return;
            }
            self.now += 1;
            self.arrived += 1;
            let number = self.numbers[flow].unwrap_or_else(|| self.open(flow, is_bound));
            let packet = Packet {
                flow,
                serial: self.now,
                number,
                from: 0,
            };
            let backlog = &mut self.dispatcher.backlog;
            match backlog.receive(number) {
                list if list == backlog.parking() => backlog.park(number, packet),
                list if list == backlog.refusing() => {
                    self.arrived -= 1;
                    self.refused += 1;
                    // Not for want of buffers: its flow has a third of them, others have some.
                    let (its, all) = (backlog.flow(number).packets() as usize, self.used());
                    assert!(
                        its >= BUFFERS / 3 && all > BUFFERS * 3 / 4,
                        "{packet:?}: {its} of {all}"
                    );
                }
                list => {
                    if let Some(overtaken) = backlog.take_overtaken() {
                        let its = |packet: &Packet| packet.number == overtaken;
                        let moved: Vec<_> = self.lists[OWN].iter().copied().filter(its).collect();
                        self.lists[OWN].retain(|packet| !its(packet));
                        self.lists[list].extend(moved);
                    }
                    self.lists[list].push_back(packet);
                }
            }
        }
        // Only flows that were split with them before send more to withdrawn auxiliary cores.
        for (auxiliary, packets) in before.into_iter().enumerate() {
            let is_withdrawn = self.cores.withdrawn >> auxiliary & 1 != 0;
            assert!(
                !is_withdrawn || self.in_flight()[auxiliary] == packets,
                "a withdrawn core got packets"
            );
        }
    }

    /// Packets of whole flows on each auxiliary core.
    fn in_flight(&self) -> [usize; AUXILIARIES] {
        std::array::from_fn(|auxiliary| self.on(auxiliary).filter(|packet| packet.from == 0).count())
    }

    fn open(&mut self, flow: usize, is_bound: bool) -> u16 {
        let number = self.dispatcher.backlog.open(is_bound, |_| flow).expect("a number");
        self.numbers[flow] = Some(number);
        if !is_bound {
            let flowlet = Flowlet {
                arrival: Nanos(self.now),
                new: false,
                packets: 1,
                parked: false,
            };
            let now = Nanos(self.now);
            self.dispatcher.place(number, flowlet, now, &mut self.cores);
        }
        number
    }

    /// Lets a core run these parts of the chain on a packet.
    fn pass(&mut self, packet: &Packet, parts: std::ops::Range<usize>) {
        for part in parts {
            let last = &mut self.last[packet.flow][part];
            assert!(*last < packet.serial, "{packet:?} after {last} in part {part}");
            *last = packet.serial;
        }
    }

    /// Lets the dispatcher process packets of the local queue. The first segments drop every fifth of a split flow.
    fn process(&mut self, most: usize) {
        for _ in 0..most {
            let list = self.dispatcher.backlog.next_list(false);
            let Some(mut packet) = self.lists[list].pop_front() else {
                assert_eq!(self.dispatcher.backlog.waiting(), 0, "there is another list");
                return;
            };
            let split = self.dispatcher.backlog.split_of(packet.number);
            for auxiliary in 0..AUXILIARIES {
                let its = self.on(auxiliary).filter(|other| other.flow == packet.flow);
                let is_its_part = |other: &Packet| split.is_some_and(|(_, to)| to == auxiliary) && other.from > 0;
                assert!(its.into_iter().all(is_its_part), "{packet:?} is processed on two cores");
            }
            let Some((from, _)) = split else {
                self.pass(&packet, 0..PARTS);
                self.processed += 1;
                self.done_here(packet);
                continue;
            };
            self.pass(&packet, 0..1);
            if packet.serial.is_multiple_of(5) {
                self.processed += 1;
                self.done_here(packet);
                continue;
            }
            packet.from = from;
            let list = self.dispatcher.backlog.pass_on(packet.number);
            self.lists[list].push_back(packet);
        }
    }

    fn done_here(&mut self, packet: Packet) {
        if let Some(&flow) = self.dispatcher.backlog.done_here(packet.number) {
            self.gone(packet.flow, flow);
        }
    }

    fn gone(&mut self, expected: usize, flow: usize) {
        assert_eq!(flow, expected);
        let all = self.lists.iter().chain(&self.unreported).flatten();
        assert_eq!(
            all.filter(|packet| packet.flow == flow).count(),
            0,
            "flow {flow} has packets"
        );
        self.numbers[flow] = None;
    }

    /// Lets an auxiliary core process packets.
    fn help(&mut self, auxiliary: usize, most: usize) {
        for _ in 0..most {
            let Some(packet) = self.lists[auxiliary + 1].pop_front() else {
                return;
            };
            for other in (0..AUXILIARIES).filter(|other| *other != auxiliary) {
                let is_there = self.on(other).any(|other| other.flow == packet.flow);
                assert!(!is_there, "{packet:?} is processed on two auxiliary cores");
            }
            let first_part = usize::from(packet.from > 0);
            self.pass(&packet, first_part..PARTS);
            self.processed += 1;
            self.unreported[auxiliary].push_back(packet);
        }
    }

    /// Collects reports of an auxiliary core, and places parked flows.
    fn collect(&mut self, auxiliary: usize, most: usize) {
        for _ in 0..most {
            let Some(packet) = self.unreported[auxiliary].pop_front() else {
                break;
            };
            let now = Nanos(self.now);
            if let Some(&flow) = self.dispatcher.backlog.done_by(packet.number, auxiliary, now) {
                self.gone(packet.flow, flow);
            }
        }
        let Rig {
            dispatcher,
            cores,
            lists,
            now,
            ..
        } = self;
        let put = |list: usize, packet| lists[list].push_back(packet);
        dispatcher.place_parked(Nanos(*now), |packet| Nanos(packet.serial), cores, put);
    }

    fn decide(&mut self, script: Script) {
        self.script.0.lock().unwrap().0 = script;
        let behind = self.dispatcher.backlog.behind();
        let oldest = self.lists[OWN].front().map(|packet| Nanos(packet.serial));
        let now = Nanos(self.now);
        let decision = self.dispatcher.decide(now, oldest, Some, &mut self.cores);
        let seen = self.script.0.lock().unwrap().1.clone();
        self.check(seen);
        if decision.flows_moved == 0 {
            return;
        }
        for own in [OWN, behind] {
            for packet in std::mem::take(&mut self.lists[own]) {
                let list = self.dispatcher.backlog.list_of(packet.number);
                self.lists[list].push_back(packet);
            }
        }
    }

    /// Checks the mapper's input against the lists as they were.
    fn check(&self, mut seen: Seen) {
        let load = |packets: Vec<&Packet>| {
            let mut flows: Vec<usize> = packets.iter().map(|packet| packet.flow).collect();
            flows.sort_unstable();
            flows.dedup();
            Load {
                flows: flows.len() as u32,
                packets: packets.len() as u32,
            }
        };
        for (auxiliary, known) in seen.auxiliaries.iter().enumerate() {
            assert_eq!(known.load, load(self.on(auxiliary).collect()));
        }
        let mut queued: Vec<(usize, u32)> = Vec::new();
        let waiting = || self.lists[OWN].iter().chain(&self.lists[AUXILIARIES + 2]);
        for packet in waiting() {
            match queued.iter_mut().find(|(flow, _)| *flow == packet.flow) {
                Some((_, packets)) => *packets += 1,
                None => queued.push((packet.flow, 1)),
            }
        }
        let mut queued: Vec<u32> = queued.into_iter().map(|(_, packets)| packets).collect();
        // A flow keeps its index while it has packets in the queue, also when its first ones were processed.
        queued.sort_unstable();
        seen.queued.sort_unstable();
        assert_eq!(seen.queued, queued);
        assert_eq!(seen.packets as usize, waiting().count());
        let inside = self.arrived - self.processed;
        let listed: usize = self.lists.iter().map(VecDeque::len).sum();
        assert_eq!(inside, listed + seen.parked.packets as usize);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Receive(Vec<(usize, bool)>),
    Decide(Script),
    Process(usize),
    Help(usize, usize),
    Collect(usize, usize),
    /// Another dispatcher takes those of these auxiliary cores that are free, and releases all others.
    Take(u64),
    /// These auxiliary cores have a queue of their own from now on, others have none.
    Withdraw(u64),
}

fn script() -> impl Strategy<Value = Script> {
    let split = (0..4_usize, 1..3_usize, 0..AUXILIARIES).prop_map(|(flow, last_functions, auxiliary)| Split {
        flow,
        last_functions,
        auxiliary,
    });
    let maps = (0..1_u64 << AUXILIARIES, 0..1_u64 << AUXILIARIES, any::<bool>());
    let moved = (0..=AUXILIARIES, any::<u32>());
    (0..=AUXILIARIES, moved, proptest::option::of(split), maps).prop_map(|(place, moved, split, maps)| Script {
        place,
        moved,
        split,
        relieve: maps.0,
        release: maps.1,
        boost: maps.2,
    })
}

fn step() -> impl Strategy<Value = Step> {
    // A few flows have most packets.
    let flow = (0..FLOWS, 0..FLOWS).prop_map(|(a, b)| a * b / FLOWS);
    prop_oneof![
        3 => vec((flow, proptest::bool::weighted(0.1)), 1..16).prop_map(Step::Receive),
        2 => script().prop_map(Step::Decide),
        2 => (1..12_usize).prop_map(Step::Process),
        3 => (0..AUXILIARIES, 1..12_usize).prop_map(|(auxiliary, most)| Step::Help(auxiliary, most)),
        3 => (0..AUXILIARIES, 1..12_usize).prop_map(|(auxiliary, most)| Step::Collect(auxiliary, most)),
        1 => (0..1_u64 << AUXILIARIES).prop_map(Step::Take),
        1 => (0..1_u64 << AUXILIARIES).prop_map(Step::Withdraw),
    ]
}

proptest! {
    #[test]
    fn a_flow_has_one_owner_and_keeps_its_order(grows: bool, steps in vec(step(), 1..250)) {
        let mut rig = Rig::new(grows);
        for step in steps {
            match step {
                Step::Receive(flows) => rig.receive(&flows),
                Step::Decide(script) => rig.decide(script),
                Step::Process(most) => rig.process(most),
                Step::Help(auxiliary, most) => rig.help(auxiliary, most),
                Step::Collect(auxiliary, most) => rig.collect(auxiliary, most),
                Step::Take(auxiliaries) => rig.cores.taken = auxiliaries & !rig.cores.mine,
                Step::Withdraw(auxiliaries) => rig.cores.withdrawn = auxiliaries,
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
