//! The data path between ports of the test's own.

use super::super::bridge::Bridge;
use super::super::counters::REASONS;
use super::super::forwarder::{BUFFERS, CoreState, Forwarder, Shared};
use super::super::table::target;
use super::{PORTS, Packet, compiled, to};
use crate::ingress::rows::{Ranks, Row, RuleSet, add_from_server, add_rows, add_unmatched};
use crate::ingress::rule::{Action, PortNumber};
use crate::ingress::switch::SwitchEvent;
use std::collections::VecDeque;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use tailwater_api::chain::Match;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::live::Live;
use tailwater_dataplane::capture::CaptureTap;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::port::{PortQueue, PortSender, Received};
use tailwater_net::Nanos;
use tokio::sync::mpsc;

/// Frames that wait at a port, and those that it has sent.
#[derive(Debug, Default)]
struct Link {
    arriving: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    is_down: bool,
    /// Sent frames are not kept.
    discards: bool,
}

struct TestQueue(Arc<Mutex<Link>>);

impl PortSender for TestQueue {
    fn transmit(&mut self, batch: &mut Batch) -> usize {
        let mut link = self.0.lock().unwrap();
        if link.is_down {
            let all: Vec<u16> = (0..batch.len() as u16).collect();
            batch.remove_unsent(&all);
            return all.len();
        }
        if link.discards {
            return 0;
        }
        let frames = (0..batch.len()).map(|at| batch.frame(at).to_vec());
        link.sent.extend(frames);
        0
    }

    fn capture(&mut self, _: CaptureTap) {}
}

impl PortQueue for TestQueue {
    fn receive(&mut self, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> Received {
        let mut link = self.0.lock().unwrap();
        while batch.room() > 0 {
            let Some(frame) = link.arriving.pop_front() else { break };
            assert!(batch.push(pool, &frame, now, 0), "a buffer is missing");
        }
        Received::default()
    }

    fn received_before(&self) -> Nanos {
        Nanos::MAX
    }

    fn stop(&mut self) {}

    fn discard(&mut self, _: &mut dyn FnMut(Nanos, u32)) -> u64 {
        0
    }
}

/// A switch whose cores are driven by the test.
struct Rig {
    shared: Arc<Shared>,
    links: Vec<Arc<Mutex<Link>>>,
    forwarder: Forwarder,
    events: mpsc::Receiver<SwitchEvent>,
    injected: std::sync::mpsc::SyncSender<super::super::forwarder::Injected>,
}

impl Rig {
    fn new(rules: &RuleSet) -> Rig {
        let shared = Arc::new(Shared {
            rules: Live::new(compiled(rules)),
            bridge: Bridge::new(),
            cores: vec![CoreState::default()],
            is_ending: false.into(),
            clock: Clock::start(),
            nap: None,
        });
        let links: Vec<Arc<Mutex<Link>>> = (0..PORTS).map(|_| Arc::default()).collect();
        let ports = links.iter().map(|link| {
            let queue: Box<dyn PortQueue> = Box::new(TestQueue(Arc::clone(link)));
            (queue, BufferPool::new(BUFFERS, 1600).unwrap())
        });
        let (to_steering, events) = mpsc::channel(4);
        let (injected, from_steering) = sync_channel(16);
        let forwarder = Forwarder::new((0, &shared), ports.collect(), to_steering, Some(from_steering));
        Rig {
            shared,
            links,
            forwarder,
            events,
            injected,
        }
    }

    fn arrive(&self, port: PortNumber, frame: Vec<u8>) {
        self.links[port as usize - 1].lock().unwrap().arriving.push_back(frame);
    }

    fn turn(&mut self) {
        while self.forwarder.turn(Nanos::from_secs(1)) > 0 {}
    }

    /// Returns the frames that a port has sent, by their destination address's last byte and their last byte.
    fn sent(&self, port: PortNumber) -> Vec<(u8, u8)> {
        let sent = std::mem::take(&mut self.links[port as usize - 1].lock().unwrap().sent);
        sent.iter().map(|frame| (frame[5], frame[frame.len() - 1])).collect()
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        let drops = &self.shared.cores[0].drops;
        let all = REASONS.iter().enumerate().map(|(at, name)| (*name, drops.get(at)));
        all.filter(|(_, packets)| *packets > 0).collect()
    }
}

/// Frame to an address of 10.0.0.0/8, with this last byte.
fn frame(destination: &str, number: u8) -> Vec<u8> {
    let packet = Packet {
        in_port: 1,
        vlan: None,
        protocol: 17,
        addresses: Some(("192.0.2.1".parse().unwrap(), destination.parse().unwrap())),
    };
    let mut frame = packet.frame();
    *frame.last_mut().unwrap() = number;
    frame
}

fn between(source: u8, destination: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, destination, 2, 0, 0, 0, 0, source, 8, 6];
    frame.resize(60, source);
    frame
}

/// Rules of 10.0.0.0/8: 10.1.0.0/16 is at a server, others at server 2. Packets from servers go to port 1.
fn rules(first: u8, unmatched: Action) -> RuleSet {
    let matching = Match {
        destinations: vec!["10.0.0.0/8".parse().unwrap()],
        ..Match::default()
    };
    let ranks = Ranks::new([&matching]).unwrap();
    let rows = [
        (Row::DEFAULT, to(2)),
        (Row::of_prefix("10.1.0.0/16".parse().unwrap()), to(first)),
    ];
    let mut rules = RuleSet::new();
    add_rows(&mut rules, (3, 9), &matching, &ranks, &rows);
    for server in 1..=3_u8 {
        add_from_server(&mut rules, 3, PortNumber::from(server) + 1, Action::Ports(vec![1]));
    }
    add_unmatched(&mut rules, 3, unmatched);
    rules
}

#[test]
fn packets_get_their_servers_address_and_leave_by_its_port_in_order() {
    let mut rig = Rig::new(&rules(1, Action::Drop));
    for number in 0..200_u8 {
        let destination = if number % 3 == 0 { "10.1.2.3" } else { "10.2.0.1" };
        rig.arrive(1, frame(destination, number));
    }
    rig.arrive(1, frame("172.16.0.1", 0));
    rig.arrive(3, frame("192.0.2.1", 7));
    rig.turn();
    let expected =
        |server: u8, is: fn(u8) -> bool| (0..200).filter(|n| is(*n)).map(|n| (server, n)).collect::<Vec<_>>();
    assert_eq!(rig.sent(2), expected(1, |number| number % 3 == 0));
    assert_eq!(rig.sent(3), expected(2, |number| number % 3 != 0));
    // From a server: unchanged.
    assert_eq!(rig.sent(1), [(0xfe, 7)]);
    assert_eq!(rig.drops(), [("rule", 1)]);
    // A server's own packet does not come back to it, and a dead link loses what is sent there.
    rig.links[1].lock().unwrap().is_down = true;
    rig.arrive(1, frame("10.1.0.1", 0));
    let mut only = RuleSet::new();
    add_unmatched(&mut only, 3, Action::Ports(vec![3]));
    rig.turn();
    rig.shared.rules.replace(compiled(&only));
    rig.arrive(3, frame("10.1.0.1", 0));
    rig.arrive(4, frame("10.1.0.1", 9));
    rig.turn();
    assert_eq!(rig.sent(3), [(0xfe, 9)]);
    assert_eq!(rig.drops(), [("rule", 1), ("same-port", 1), ("not-sent", 1)]);
}

#[test]
fn nothing_is_allocated_for_packets() {
    let mut rig = Rig::new(&rules(1, Action::Normal));
    rig.links.iter().for_each(|link| link.lock().unwrap().discards = true);
    for number in 0..=255 {
        rig.arrive(1, frame("10.1.2.3", number));
        rig.arrive(1, frame(&format!("10.{number}.0.1"), number));
        rig.arrive(5, between(number, number.wrapping_mul(7)));
    }
    assert_eq!(allocation_counter::measure(|| rig.turn()).count_total, 0);
    // Some are for a host on their own port.
    assert!(
        rig.drops().iter().all(|(reason, _)| *reason == "same-port"),
        "{:?}",
        rig.drops()
    );
}

#[test]
fn a_batch_goes_by_one_version_of_the_rules() {
    let mut rig = Rig::new(&rules(1, Action::Drop));
    (0..10).for_each(|number| rig.arrive(1, frame("10.1.2.3", number)));
    rig.turn();
    assert_eq!(rig.sent(2).len(), 10);
    let version = rig.shared.rules.replace(compiled(&rules(3, Action::Drop)));
    let seen = |rig: &Rig| rig.shared.cores[0].version.load(std::sync::atomic::Ordering::Acquire);
    assert_ne!(seen(&rig), version);
    (10..20).for_each(|number| rig.arrive(1, frame("10.1.2.3", number)));
    rig.turn();
    // Those for the old server were out before the core used the new rules.
    assert_eq!(seen(&rig), version);
    assert_eq!(rig.sent(2), []);
    assert_eq!(rig.sent(4), (10..20).map(|number| (3, number)).collect::<Vec<_>>());
}

#[test]
fn packets_are_forwarded_normally_by_learnt_addresses() {
    let mut rig = Rig::new(&rules(1, Action::Normal));
    rig.arrive(5, between(50, 60));
    rig.turn();
    // Nobody knows host 60: a copy for each other port.
    let copies: Vec<usize> = (1..=PORTS as PortNumber).map(|port| rig.sent(port).len()).collect();
    assert_eq!(copies, [1, 1, 1, 1, 0, 1]);
    // The answer goes to one port, and so does everything after it, also in one batch with packets for all.
    rig.arrive(6, between(60, 50));
    rig.turn();
    assert_eq!(rig.sent(5), [(50, 60)]);
    rig.arrive(5, between(50, 60));
    rig.arrive(5, between(50, 0xee));
    rig.arrive(5, frame("10.1.0.1", 4));
    rig.turn();
    assert_eq!(rig.sent(6), [(0xee, 50), (60, 50)]);
    assert_eq!(rig.sent(2), [(0xee, 50), (1, 4)]);
    assert_eq!(rig.sent(1), [(0xee, 50)]);
    assert_eq!(rig.drops(), []);
}

#[test]
fn packets_for_the_ingress_are_bounded_and_come_back_by_their_action() {
    let mut rig = Rig::new(&rules(1, Action::Controller));
    (0..6).for_each(|number| rig.arrive(6, frame("172.16.0.1", number)));
    rig.turn();
    for number in 0..4 {
        let event = rig.events.try_recv().unwrap();
        let SwitchEvent::PacketIn(packet) = event else {
            panic!("{event:?}")
        };
        assert_eq!((packet.in_port, packet.frame), (Some(6), frame("172.16.0.1", number)));
    }
    rig.events.try_recv().unwrap_err();
    assert_eq!(rig.drops(), [("ingress-busy", 2)]);
    let target = target(&to(3), PORTS).unwrap();
    (0..3).for_each(|number| rig.injected.send((target, frame("172.16.0.1", number))).unwrap());
    rig.turn();
    assert_eq!(rig.sent(4), [(3, 0), (3, 1), (3, 2)]);
}
