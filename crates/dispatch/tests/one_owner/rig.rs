//! Dispatcher with a scripted mapper, and auxiliary cores that process when they are told to.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tailwater_dispatch::{AuxiliaryCores, Availability, Backlog, Dispatcher, OWN};
use tailwater_net::Nanos;
use tailwater_policy::core::{
    AuxiliaryCore, CoreMapper, Destination, Flowlet, Load, Loads, Plan, Review, Split, SplitFlow, View,
};

pub const FLOWS: usize = 12;
pub const AUXILIARIES: usize = 3;
pub const BUFFERS: usize = 96;
/// Number of hashes: flows of a bucket.
pub const HASHES: u32 = 3;

/// Parts of a chain that is split: its functions. Each has its own flow state.
pub const PARTS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub flow: usize,
    /// Tells the flows of a bucket apart, if `flow` is one.
    pub hash: u32,
    pub serial: u64,
    pub number: u16,
    /// First part on its auxiliary core, or 0 for all of the chain.
    pub from: usize,
    /// First part that its auxiliary core leaves to another one, or 0 for none.
    pub until: usize,
}

/// Decision of the mapper.
#[derive(Clone, Debug, Default)]
pub struct Script {
    pub place: usize,
    /// Destination of queued flows, and a bit map of their indices.
    pub moved: (usize, u32),
    pub split: Option<Split>,
    /// Decision about all split flows.
    pub review: Review,
    pub relieve: u64,
    pub release: u64,
    pub boost: bool,
}

/// Input of the mapper at its last decision.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub queued: Vec<u32>,
    pub packets: u32,
    pub parked: Load,
    pub auxiliaries: Vec<AuxiliaryCore>,
}

#[derive(Clone, Default)]
pub struct Scripted(pub Arc<Mutex<(Script, Seen)>>);

pub fn destination(index: usize) -> Destination {
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

    fn review(&mut self, split: &SplitFlow<'_>) -> Review {
        assert!(split.parts.is_sorted_by(|a, b| a.last_functions > b.last_functions));
        self.0.lock().unwrap().0.review
    }

    fn place(&mut self, _: Flowlet, _: &Loads<'_>) -> Destination {
        destination(self.0.lock().unwrap().0.place)
    }
}

/// Auxiliary cores, some of which another dispatcher has, or have a queue of their own.
#[derive(Default)]
pub struct Cores {
    pub mine: u64,
    pub taken: u64,
    /// Taken ones that the other dispatcher releases before this one activates them.
    pub released: u64,
    pub withdrawn: u64,
    /// Dedicated cores with few packets of their own.
    pub helpful: u64,
}

impl Cores {
    pub fn availability(&self, auxiliary: usize) -> Availability {
        match (
            self.withdrawn >> auxiliary & 1,
            (self.taken | self.mine) >> auxiliary & 1,
        ) {
            (1, _) => Availability::Withdrawn,
            _ if self.helpful >> auxiliary & 1 != 0 && self.taken >> auxiliary & 1 == 0 => Availability::Helpful,
            (_, 1) => Availability::Taken,
            _ => Availability::Free,
        }
    }
}

impl AuxiliaryCores for Cores {
    fn activate(&mut self, auxiliary: usize) -> bool {
        assert_eq!(self.mine >> auxiliary & 1, 0, "activated twice");
        let is_free = (self.taken & !self.released | self.withdrawn) >> auxiliary & 1 == 0;
        self.mine |= u64::from(is_free) << auxiliary;
        is_free
    }

    fn release(&mut self, auxiliary: usize) {
        assert_eq!(self.mine >> auxiliary & 1, 1, "released without being active");
        self.mine &= !(1 << auxiliary);
    }
}

pub struct Rig {
    pub script: Scripted,
    pub dispatcher: Dispatcher<usize, Packet>,
    pub cores: Cores,
    pub numbers: [Option<u16>; FLOWS],
    /// By destination: packets not yet processed.
    pub lists: [VecDeque<Packet>; AUXILIARIES + 3],
    /// Packets that auxiliary cores have processed and not reported.
    pub unreported: [VecDeque<Packet>; AUXILIARIES],
    /// Last packet of each flow and hash that passed each part of the chain.
    pub last: [[[u64; PARTS]; HASHES as usize]; FLOWS],
    /// Core that ran each part of each flow last, and the packet.
    pub owners: [[(usize, u64); PARTS]; FLOWS],
    pub now: u64,
    pub arrived: usize,
    pub processed: usize,
    pub refused: usize,
}

impl Rig {
    pub fn new(grows: bool) -> Rig {
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
            last: Default::default(),
            owners: Default::default(),
            now: 0,
            arrived: 0,
            processed: 0,
            refused: 0,
        }
    }

    /// Packets at an auxiliary core, processed or not, until it reports them done.
    pub fn on(&self, auxiliary: usize) -> impl Iterator<Item = &Packet> {
        self.unreported[auxiliary].iter().chain(&self.lists[auxiliary + 1])
    }

    pub fn used(&self) -> usize {
        let listed: usize = self.lists.iter().map(VecDeque::len).sum();
        let unreported: usize = self.unreported.iter().map(VecDeque::len).sum();
        listed + unreported + self.dispatcher.backlog.parked().packets as usize
    }

    pub fn receive(&mut self, flows: &[(usize, bool)]) {
        let flows: Vec<_> = flows.iter().map(|&(flow, is_bound)| (flow, is_bound, 0)).collect();
        self.receive_hashed(&flows);
    }

    /// Same for packets with these hashes.
    pub fn receive_hashed(&mut self, flows: &[(usize, bool, u32)]) {
        let before = self.in_flight();
        let availability = |auxiliary| self.cores.availability(auxiliary);
        self.dispatcher.update_available(Nanos(self.now), availability);
        self.dispatcher.backlog.release_withdrawn(&mut self.cores);
        let backlog = &mut self.dispatcher.backlog;
        backlog.make_room(flows.len());
        for &(flow, is_bound, hash) in flows {
            if self.used() == BUFFERS {
                return;
            }
            self.now += 1;
            self.arrived += 1;
            let number = self.numbers[flow].unwrap_or_else(|| self.open(flow, is_bound));
            let packet = Packet {
                flow,
                hash,
                serial: self.now,
                number,
                from: 0,
                until: 0,
            };
            let backlog = &mut self.dispatcher.backlog;
            match backlog.receive(number, hash) {
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
                        let its = |packet: &Packet| overtaken.concerns(packet.number, packet.hash);
                        let moved: Vec<_> = self.lists[OWN].iter().copied().filter(its).collect();
                        self.lists[OWN].retain(|packet| !its(packet));
                        backlog.overtook(overtaken.number, moved.len() as u32);
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
    pub fn in_flight(&self) -> [usize; AUXILIARIES] {
        std::array::from_fn(|auxiliary| self.on(auxiliary).filter(|packet| packet.from == 0).count())
    }

    pub fn open(&mut self, flow: usize, is_bound: bool) -> u16 {
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

    /// Makes exactly these queued flows bound, unless a flow is split.
    pub fn rebind(&mut self, flows: u32) {
        let backlog = &mut self.dispatcher.backlog;
        if backlog.has_splits() {
            return;
        }
        backlog.rebind(|flow| flows >> flow & 1 != 0);
        let mut bound = self
            .lists
            .iter()
            .enumerate()
            .filter(|(list, _)| !backlog.is_elsewhere(*list));
        let has_bound = bound.any(|(_, packets)| packets.iter().any(|packet| flows >> packet.flow & 1 != 0));
        assert_eq!(backlog.has_bound(), has_bound);
    }

    /// Lets a core, given its list, run these parts of the chain on a packet. Another core that ran one of them before
    /// must have reported that.
    pub fn pass(&mut self, core: usize, packet: &Packet, parts: std::ops::Range<usize>) {
        for part in parts {
            let (owner, serial) = std::mem::replace(&mut self.owners[packet.flow][part], (core, packet.serial));
            if owner != core && owner != OWN {
                let mut unreported = self.unreported[owner - 1].iter();
                let is_unreported = unreported.any(|packet| packet.serial == serial);
                assert!(!is_unreported, "part {part} of {packet:?} has two owners");
            }
            let last = &mut self.last[packet.flow][packet.hash as usize][part];
            assert!(*last < packet.serial, "{packet:?} after {last} in part {part}");
            *last = packet.serial;
        }
    }

    /// Lets the dispatcher process packets of the local queue. The first segments drop every fifth of a split flow, and
    /// every eleventh packet is too late.
    pub fn process(&mut self, most: usize) {
        for _ in 0..most {
            let list = self.dispatcher.backlog.next_list(false);
            let Some(mut packet) = self.lists[list].pop_front() else {
                assert_eq!(self.dispatcher.backlog.waiting(), 0, "there is another list");
                return;
            };
            let split = self.dispatcher.backlog.split_of(packet.number);
            for auxiliary in 0..AUXILIARIES {
                let mut its = self.on(auxiliary).filter(|other| other.flow == packet.flow);
                let first = split.map_or(0, |(from, _)| from);
                assert!(
                    its.all(|other| split.is_some() && other.from >= first),
                    "{packet:?} is processed on two cores"
                );
            }
            if packet.serial.is_multiple_of(11) {
                self.processed += 1;
                if let Some(&flow) = self.dispatcher.backlog.discarded_here(packet.number) {
                    self.gone(packet.flow, flow);
                }
                continue;
            }
            let Some((from, _)) = split else {
                self.pass(OWN, &packet, 0..PARTS);
                self.processed += 1;
                self.done_here(packet);
                continue;
            };
            self.pass(OWN, &packet, 0..from);
            if packet.serial.is_multiple_of(5) {
                self.processed += 1;
                self.done_here(packet);
                continue;
            }
            packet.from = from;
            let (list, until) = self.dispatcher.backlog.pass_on(packet.number);
            packet.until = until;
            self.lists[list].push_back(packet);
        }
    }

    pub fn done_here(&mut self, packet: Packet) {
        if let Some(&flow) = self.dispatcher.backlog.done_here(packet.number) {
            self.gone(packet.flow, flow);
        }
    }

    pub fn gone(&mut self, expected: usize, flow: usize) {
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
    pub fn help(&mut self, auxiliary: usize, most: usize) {
        for _ in 0..most {
            let Some(mut packet) = self.lists[auxiliary + 1].pop_front() else {
                return;
            };
            for other in (0..AUXILIARIES).filter(|other| *other != auxiliary) {
                let mut its = self.on(other).filter(|other| other.flow == packet.flow);
                let is_part = |other: &Packet| packet.from > 0 && other.from > 0;
                assert!(its.all(is_part), "{packet:?} is processed on two auxiliary cores");
            }
            let end = if packet.until > 0 { packet.until } else { PARTS };
            self.pass(auxiliary + 1, &packet, packet.from..end);
            // Each part drops some packets.
            let is_dropped = packet.from > 0 && (packet.serial + packet.from as u64).is_multiple_of(13);
            if is_dropped {
                packet.until = 0;
            }
            self.processed += usize::from(packet.until == 0);
            self.unreported[auxiliary].push_back(packet);
        }
    }

    /// Collects reports of an auxiliary core, and places parked flows.
    pub fn collect(&mut self, auxiliary: usize, most: usize) {
        for _ in 0..most {
            let Some(mut packet) = self.unreported[auxiliary].pop_front() else {
                break;
            };
            let now = Nanos(self.now);
            if packet.until > 0 {
                packet.from = packet.until;
                let (list, until) = self
                    .dispatcher
                    .backlog
                    .relay(packet.number, auxiliary, packet.from, now);
                packet.until = until;
                self.lists[list].push_back(packet);
                continue;
            }
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

    pub fn decide(&mut self, script: Script) {
        self.script.0.lock().unwrap().0 = script;
        let behind = self.dispatcher.backlog.behind();
        let oldest = self.lists[OWN].front().map(|packet| Nanos(packet.serial));
        let now = Nanos(self.now);
        let decision = self
            .dispatcher
            .decide(now, oldest, |last| PARTS.checked_sub(last), &mut self.cores);
        let seen = self.script.0.lock().unwrap().1.clone();
        self.check(seen);
        if decision.flows_moved == 0 {
            return;
        }
        for own in [OWN, behind] {
            for packet in std::mem::take(&mut self.lists[own]) {
                let list = self.dispatcher.backlog.auxiliary_list_of(packet.number).unwrap_or(own);
                self.lists[list].push_back(packet);
            }
        }
    }

    /// Checks the mapper's input against the lists as they were.
    pub fn check(&self, mut seen: Seen) {
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
        let relayed = self.unreported.iter().flatten().filter(|packet| packet.until > 0);
        assert_eq!(inside, listed + relayed.count() + seen.parked.packets as usize);
    }
}
