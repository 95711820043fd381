use super::segment::Layout;
use super::*;
use crate::batch::Packet;
use crate::function::{FlowEnds, FunctionProperties, NetworkFunction, NewFlow};
use crate::rig::{ChainRig, INPUT, udp};
use proptest::prelude::*;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tailwater_api::PacketAction;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, protocol};

/// Counts a flow's packets, and records its callbacks.
#[derive(Default)]
struct Probe {
    version: Arc<AtomicU32>,
    log: Arc<Mutex<Vec<String>>>,
    refuse_port: Option<u16>,
    opens_companions: bool,
}

impl NetworkFunction for Probe {
    fn kind(&self) -> &'static str {
        "Probe"
    }
    fn drop_reasons(&self) -> &'static [&'static str] {
        &["refused"]
    }
    fn state_bytes(&self) -> usize {
        size_of::<u64>()
    }
    fn version(&self) -> u32 {
        1 + self.version.load(Ordering::Relaxed)
    }
    fn new_flow(&mut self, packet: &Packet, _: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        let port = packet.headers.key.source_port();
        let before = *flow.state::<u64>();
        self.log.lock().unwrap().push(format!("new {port} after {before}"));
        match self.refuse_port {
            Some(refused) if refused == port => Verdict::Drop(0),
            _ => Verdict::Forward,
        }
    }
    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            opens_companions: self.opens_companions,
            ..FunctionProperties::default()
        }
    }
    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        Some(self)
    }
    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        batch.iter_mut().for_each(|packet| *flows.state::<u64>(packet) += 1);
    }
}

impl FlowEnds for Probe {
    fn flow_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let packets = u64::from_ne_bytes(state.try_into().unwrap());
        self.log
            .lock()
            .unwrap()
            .push(format!("end {} after {packets}", key.source_port()));
    }
}

#[test]
fn flows_are_shown_once_a_version_and_at_their_end() {
    let probe = Probe::default();
    let (version, log) = (Arc::clone(&probe.version), Arc::clone(&probe.log));
    let mut rig = ChainRig::new(vec![Box::new(probe)], INPUT);
    rig.run(&[udp(1), udp(2), udp(1)], Nanos::from_secs(1));
    rig.run(&[udp(1)], Nanos::from_secs(2));
    version.store(5, Ordering::Relaxed);
    rig.run(&[udp(1), udp(1)], Nanos::from_secs(3));
    (0..512).for_each(|_| rig.chain.expire(Nanos::from_secs(62)));
    (0..512).for_each(|_| rig.chain.expire(Nanos::from_secs(100)));
    let log = log.lock().unwrap();
    let expected = [
        "new 1 after 0",
        "new 2 after 0",
        "new 1 after 3",
        "end 2 after 1",
        "end 1 after 5",
    ];
    assert_eq!(*log, expected);
    assert_eq!(rig.chain.flows(), 0);
}

#[test]
fn a_refused_flow_is_asked_about_again_and_not_seen_by_later_functions() {
    let first = Probe {
        refuse_port: Some(2),
        ..Probe::default()
    };
    let second = Probe::default();
    let (first_log, second_log) = (Arc::clone(&first.log), Arc::clone(&second.log));
    let mut rig = ChainRig::new(vec![Box::new(first), Box::new(second)], INPUT);
    let sent = rig.run(&[udp(2), udp(1), udp(2)], Nanos::from_secs(1));
    assert_eq!(sent, [udp(1)]);
    assert_eq!(
        *first_log.lock().unwrap(),
        ["new 2 after 0", "new 1 after 0", "new 2 after 0"]
    );
    assert_eq!(*second_log.lock().unwrap(), ["new 1 after 0"]);
    assert_eq!(rig.count("probe/refused"), 2);
}

#[test]
fn unfit_packets_are_dropped_or_passed_as_the_spec_says() {
    let arp = {
        let mut frame = vec![0u8; 60];
        frame[12..14].copy_from_slice(&[0x88, 0xcc]);
        frame
    };
    let mut cut = udp(1);
    cut.truncate(30);
    for (fate, expected) in [
        (PacketAction::Drop, vec![udp(3)]),
        (PacketAction::Pass, vec![udp(3), arp.clone(), cut.clone()]),
    ] {
        let input = InputPolicy {
            malformed: fate,
            non_ip: fate,
        };
        let mut rig = ChainRig::new(vec![Box::<Probe>::default()], input);
        let sent = rig.run(&[arp.clone(), cut.clone(), udp(3)], Nanos::from_secs(1));
        assert_eq!(sent, expected);
        assert_eq!(rig.count("non-ip"), 1);
        assert_eq!(rig.count("malformed/truncated-ipv4-header"), 1);
    }
}

/// Drops packets that are not IP and have this last byte.
struct NonIpFilter(u8);

impl NetworkFunction for NonIpFilter {
    fn kind(&self) -> &'static str {
        "NonIpFilter"
    }
    fn drop_reasons(&self) -> &'static [&'static str] {
        &["unwanted"]
    }
    fn inspect_non_ip(&mut self, _: &Packet, frame: &[u8]) -> Verdict {
        match frame.last() == Some(&self.0) {
            true => Verdict::Drop(0),
            false => Verdict::Forward,
        }
    }
    fn process(&mut self, _: &mut Batch, _: &mut FlowStates<'_>) {}
}

/// A function can inspect and drop packets that are not IP, though they pass around `process`.
#[test]
fn packets_that_are_not_ip_are_shown_to_functions_if_they_pass() {
    let frame = |last| {
        let mut frame = vec![last; 60];
        frame[12..14].copy_from_slice(&[0x88, 0x47]);
        frame
    };
    let frames = [frame(1), udp(3), frame(2), frame(7)];
    for (non_ip, expected, counts) in [
        (PacketAction::Drop, vec![udp(3)], [0, 3]),
        (PacketAction::Pass, vec![udp(3), frame(1), frame(2)], [1, 3]),
    ] {
        let input = InputPolicy { non_ip, ..INPUT };
        let mut rig = ChainRig::new(vec![Box::<Probe>::default(), Box::new(NonIpFilter(7))], input);
        assert_eq!(rig.run(&frames, Nanos::from_secs(1)), expected);
        assert_eq!([rig.count("nonipfilter/unwanted"), rig.count("non-ip")], counts);
    }
}

/// Does nothing; the number is its state in bytes.
struct Bytes(usize);

impl NetworkFunction for Bytes {
    fn kind(&self) -> &'static str {
        "Bytes"
    }
    fn state_bytes(&self) -> usize {
        self.0
    }
    fn process(&mut self, _: &mut Batch, _: &mut FlowStates<'_>) {}
}

fn functions_with(bytes: &[usize]) -> Vec<(String, Box<dyn NetworkFunction>)> {
    let function = |bytes: &usize| Box::new(Bytes(*bytes)) as Box<dyn NetworkFunction>;
    bytes.iter().map(|bytes| ("f".to_owned(), function(bytes))).collect()
}

/// Does nothing; the number is its state in bytes, for both directions of a connection.
struct Connections(usize);

impl NetworkFunction for Connections {
    fn kind(&self) -> &'static str {
        "Connections"
    }
    fn state_bytes(&self) -> usize {
        self.0
    }
    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            tracks_connections: true,
            ..FunctionProperties::default()
        }
    }
    fn process(&mut self, _: &mut Batch, _: &mut FlowStates<'_>) {}
}

#[test]
fn state_of_all_functions_is_apart_and_aligned() {
    let layout = Layout::new(&functions_with(&[4, 0, 16, 3, 8]), Cuts::NONE);
    let slots: Vec<_> = layout.slots.into_iter().flatten().collect();
    assert_eq!(
        slots.iter().map(|slot| slot.version).collect::<Vec<_>>(),
        [4, 8, 12, 16]
    );
    let states: Vec<_> = slots.iter().map(|slot| slot.state.clone()).collect();
    assert_eq!(states, [24..28, 32..48, 48..51, 56..64]);
    assert_eq!((layout.segments.len(), layout.bytes), (1, 64));
}

proptest! {
    /// All accesses of one segment to a flow's state stay within cache lines of that segment.
    #[test]
    fn segments_share_no_cache_line(
        mut bytes in prop::collection::vec(prop_oneof![Just(0usize), 1usize..200], 1..9),
        bits in any::<u64>(),
        tracks in prop::option::of(1usize..200),
    ) {
        let mut functions = functions_with(&bytes);
        if let Some(tracked) = tracks {
            functions.insert(0, ("c".to_owned(), Box::new(Connections(tracked))));
            bytes.insert(0, tracked);
        }
        let directions = if tracks.is_some() { &[false, true][..] } else { &[false] };
        let layout = Layout::new(&functions, Cuts::before_last(bits));
        let (mut next, mut owners) = (0, std::collections::BTreeMap::new());
        for (number, segment) in layout.segments.iter().enumerate() {
            let last = number + 1 == layout.segments.len();
            prop_assert_eq!(segment.stages.start, next);
            let cut = bits >> (functions.len() - next) & 1 == 1;
            prop_assert!(number == 0 || cut, "no cut in front of {}", next);
            next = segment.stages.end;
            let stateful = bytes[segment.stages.clone()].iter().any(|bytes| *bytes > 0);
            prop_assert_eq!(segment.has_state(), stateful);
            let mut used = Vec::new();
            for &reversed in directions {
                prop_assert_eq!(segment.pending(reversed).is_none(), last);
                if stateful {
                    let settled = segment.settled_at(reversed);
                    used.extend(settled..settled + 4);
                    used.extend(segment.pending(reversed).into_iter().flat_map(|at| at..at + 4));
                }
                for slot in layout.slots[segment.stages.clone()].iter().flatten() {
                    if reversed && !slot.is_directed() {
                        continue;
                    }
                    let (version, state) = (slot.version_at(reversed), slot.state_of(reversed));
                    prop_assert_eq!((version % 4, state.start % 8), (0, 0));
                    used.extend(version..version + 4);
                    used.extend(state);
                }
            }
            let words = used.len();
            let different: std::collections::BTreeSet<_> = used.iter().copied().collect();
            prop_assert_eq!(different.len(), words, "two pieces overlap");
            for byte in used {
                prop_assert!(segment.bytes.contains(&byte) && byte < layout.bytes);
                let owner = owners.entry(byte / crate::region::CACHE_LINE).or_insert(number);
                prop_assert_eq!(*owner, number);
            }
            prop_assert!(words == 0 || segment.bytes.start % crate::region::CACHE_LINE == 0);
        }
        prop_assert_eq!(next, functions.len());
        let cuts = (1..functions.len()).filter(|last| bits >> last & 1 == 1).count();
        prop_assert_eq!(layout.segments.len(), cuts + 1);
    }
}

/// Undeclared drop reasons used to be counted where no report included them.
#[test]
fn undeclared_reasons_are_counted_as_other() {
    struct Undeclared;
    impl NetworkFunction for Undeclared {
        fn kind(&self) -> &'static str {
            "Undeclared"
        }
        fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
            batch.iter_mut().for_each(|packet| packet.verdict = Verdict::Drop(9));
        }
    }
    let mut rig = ChainRig::new(vec![Box::new(Undeclared)], INPUT);
    assert!(rig.run(&[udp(1), udp(2)], Nanos::from_secs(1)).is_empty());
    assert_eq!(rig.count("undeclared/other"), 2);
    assert_eq!(rig.chain.lost(), 0);
}

#[test]
fn packets_of_a_bucket_not_held_are_lost_and_say_so() {
    let mut rig = ChainRig::new(vec![Box::<Probe>::default()], INPUT);
    let hash = rig.rss.hash_headers(&parse(&udp(1)).unwrap());
    rig.chain
        .table
        .as_mut()
        .unwrap()
        .release(tailwater_net::toeplitz::bucket_of(hash));
    assert!(rig.run(&[udp(1)], Nanos::from_secs(1)).is_empty());
    assert_eq!((rig.count("bucket-not-held"), rig.count("flow-table-full")), (1, 0));
    assert_eq!(rig.chain.lost(), 1);
}

/// Rekeys each flow whenever it sees it.
struct Rekeying(Arc<AtomicU32>);

impl NetworkFunction for Rekeying {
    fn kind(&self) -> &'static str {
        "Rekeying"
    }
    fn state_bytes(&self) -> usize {
        1
    }
    fn version(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
    fn new_flow(&mut self, _: &Packet, _: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        flow.rekeyed();
        Verdict::Forward
    }
    fn process(&mut self, _: &mut Batch, _: &mut FlowStates<'_>) {}
}

/// Drops everything while it is closed.
struct Gate(Arc<AtomicBool>);

impl NetworkFunction for Gate {
    fn kind(&self) -> &'static str {
        "Gate"
    }
    fn drop_reasons(&self) -> &'static [&'static str] {
        &["shut"]
    }
    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        if self.0.load(Ordering::Relaxed) {
            batch.iter_mut().for_each(|packet| packet.verdict = Verdict::Drop(0));
        }
    }
}

/// Holds for every cut of the chain.
#[test]
fn a_rekeyed_flow_is_shown_again_to_the_functions_behind() {
    for bits in 0..16 {
        show_again_with_cuts(Cuts::before_last(bits << 1));
    }
}

fn show_again_with_cuts(cuts: Cuts) {
    let (version, shut) = (Arc::new(AtomicU32::new(7)), Arc::new(AtomicBool::new(false)));
    let (front, behind) = (Probe::default(), Probe::default());
    let binding = Probe {
        opens_companions: true,
        ..Probe::default()
    };
    let logs = [&front, &behind, &binding].map(|probe| Arc::clone(&probe.log));
    let shown = move || logs.each_ref().map(|log| log.lock().unwrap().len());
    let functions: Vec<Box<dyn NetworkFunction>> = vec![
        Box::new(front),
        Box::new(Rekeying(Arc::clone(&version))),
        Box::new(Gate(Arc::clone(&shut))),
        Box::new(behind),
        Box::new(binding),
    ];
    let mut rig = ChainRig::with_cuts(functions, INPUT, cuts);
    let mut run = |frames: &[Vec<u8>]| rig.run(frames, Nanos::from_secs(1)).len();
    // No function sees a new flow twice.
    assert_eq!(run(&[udp(1), udp(1)]), 2);
    assert_eq!(run(&[udp(1)]), 1);
    assert_eq!(shown(), [1, 1, 1]);
    // The packet with which the key changed does not reach the later functions. They see the flow again with a later
    // packet, even if the versions are back to their previous values by then.
    version.store(8, Ordering::Relaxed);
    shut.store(true, Ordering::Relaxed);
    assert_eq!(run(&[udp(1)]), 0);
    assert_eq!(shown(), [1, 1, 1]);
    version.store(7, Ordering::Relaxed);
    shut.store(false, Ordering::Relaxed);
    assert_eq!(run(&[udp(1), udp(1)]), 2);
    assert_eq!(shown(), [1, 2, 1]);
    // They see it only once.
    assert_eq!(run(&[udp(1)]), 1);
    assert_eq!(shown(), [1, 2, 1]);
    assert_eq!(run(&[udp(2)]), 1);
    assert_eq!(shown(), [2, 3, 2]);
}

fn udp_back(port: u16) -> Vec<u8> {
    let ends = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(198, 18, 0, 1));
    let key = FlowKey::v4(ends.1, ends.0, protocol::UDP, 53, port);
    FrameBuilder::new(&key).payload(b"answer").to_vec().unwrap()
}

/// Counts a connection's packets, both directions together, and records its callbacks.
#[derive(Default)]
struct Tracker(Probe);

impl NetworkFunction for Tracker {
    fn kind(&self) -> &'static str {
        "Tracker"
    }
    fn state_bytes(&self) -> usize {
        size_of::<u64>()
    }
    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            tracks_connections: true,
            ..FunctionProperties::default()
        }
    }
    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        self.0.flow_ends()
    }
    fn new_flow(&mut self, packet: &Packet, frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        self.0.new_flow(packet, frame, flow)
    }
    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        for packet in batch.iter_mut() {
            assert_eq!(flows.key(packet), packet.headers.key);
            *flows.state::<u64>(packet) += 1;
        }
    }
}

/// Both directions are one flow for a function that tracks connections, and two for others, for every cut of the chain
/// and whichever direction comes first.
#[test]
fn directions_of_a_connection_share_what_they_are_to_share() {
    for (bits, answer_first) in [(0, false), (0, true), (2, false), (4, true), (6, false)] {
        let (before, tracker, behind) = (Probe::default(), Tracker::default(), Probe::default());
        let logs = [&before, &tracker.0, &behind].map(|probe| Arc::clone(&probe.log));
        let functions: Vec<Box<dyn NetworkFunction>> = vec![Box::new(before), Box::new(tracker), Box::new(behind)];
        let mut rig = ChainRig::with_cuts(functions, INPUT, Cuts::before_last(bits));
        let mut frames = vec![udp(9), udp_back(9), udp(9)];
        if answer_first {
            frames.swap(0, 1);
        }
        assert_eq!(rig.run(&frames, Nanos::from_secs(1)), frames);
        assert_eq!(rig.run(&[udp_back(9)], Nanos::from_secs(1)).len(), 1);
        assert_eq!(rig.chain.flows(), 1);
        (0..512).for_each(|_| rig.chain.expire(Nanos::from_secs(60)));
        (0..512).for_each(|_| rig.chain.expire(Nanos::from_secs(100)));
        let [before, tracker, behind] = logs.map(|log| log.lock().unwrap().clone());
        let first = if answer_first { 53 } else { 9 };
        let new = |port: u16| format!("new {port} after 0");
        assert_eq!(tracker[0], new(first));
        assert_eq!(tracker[1], "end 9 after 4");
        assert_eq!(tracker.len(), 2);
        for log in [before, behind] {
            assert_eq!(log[..2], [new(first), new(62 - first)]);
            assert_eq!(log[2..], ["end 9 after 2", "end 53 after 2"]);
        }
    }
}
