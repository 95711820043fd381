use super::*;
use crate::batch::Batch;
use crate::function::{DurableState, FlowEnds, FlowStates, NetworkFunction, PortableState};
use crate::rig::{ChainRig, INPUT, udp};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

type Ended = Arc<Mutex<BTreeMap<u16, u64>>>;

/// Counts the packets of flows, in portable state unless `local`.
struct Tally {
    ended: Ended,
    portable: Option<PortableState>,
}

impl NetworkFunction for Tally {
    fn kind(&self) -> &'static str {
        match self.portable {
            Some(_) => "Portable",
            None => "Local",
        }
    }
    fn state_bytes(&self) -> usize {
        12
    }
    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        batch.iter_mut().for_each(|packet| *flows.state::<u64>(packet) += 1);
    }
    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        Some(self)
    }
    fn durable(&mut self) -> Option<&mut dyn DurableState> {
        self.portable.as_mut().map(|portable| portable as &mut dyn DurableState)
    }
}

impl FlowEnds for Tally {
    fn flow_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let packets = u64::from_ne_bytes(state[..8].try_into().unwrap());
        let before = self.ended.lock().unwrap().insert(key.source_port(), packets);
        assert_eq!(before, None, "a flow ends once");
    }
}

const MOST: usize = 1 << 20;

fn tally(ended: &Ended, portable: bool) -> Box<dyn NetworkFunction> {
    Box::new(Tally {
        ended: Arc::clone(ended),
        portable: portable.then_some(PortableState { format_version: 3 }),
    })
}

/// Chain of a portable function, and one whose state is lost.
fn rig(kept: &Ended, lost: &Ended) -> ChainRig {
    ChainRig::new(vec![tally(lost, false), tally(kept, true)], INPUT)
}

fn run(rig: &mut ChainRig, ports: &[u16], seconds: u64) {
    for ports in ports.chunks(32) {
        let frames: Vec<_> = ports.iter().map(|port| udp(*port)).collect();
        rig.run(&frames, Nanos::from_secs(seconds));
    }
}

#[test]
fn portable_state_continues_elsewhere_and_flows_end_once() {
    let [kept, lost, kept_there, lost_there] = [(); 4].map(|()| Ended::default());
    let (mut old, mut new) = (rig(&kept, &lost), rig(&kept_there, &lost_there));
    let states: Vec<TransferState> = old
        .chain
        .transfer_functions()
        .iter()
        .map(|function| function.state)
        .collect();
    let portable = TransferState::Portable { version: 3, bytes: 12 };
    assert_eq!(states, [TransferState::Local, portable]);
    run(&mut old, &[1, 2, 1], 1);
    run(&mut old, &[3], 40);
    let (bytes, flows) = old.chain.export_flows(Nanos::from_secs(50), Nanos::ZERO, MOST).unwrap();
    assert_eq!((flows, old.chain.flows()), (3, 3), "they stay until they are forgotten");
    let imported = new
        .chain
        .import_flows(&bytes, Nanos::from_secs(50), Nanos::ZERO)
        .unwrap();
    assert_eq!(imported, ImportedFlows { flows: 3, refused: 0 });
    old.chain.forget_flows();
    assert_eq!(old.chain.flows(), 0);
    old.chain.drain();
    assert!(kept.lock().unwrap().is_empty() && lost.lock().unwrap().is_empty());
    // Also the time since each flow's last packet.
    let again = new.chain.export_flows(Nanos::from_secs(50), Nanos::ZERO, MOST).unwrap();
    assert_eq!(again, (bytes, 3));
    new.chain.hold_flows(false);
    run(&mut new, &[3], 71);
    // They are looked at a timeout after they passed over.
    for _ in 0..1024 {
        new.chain.expire(Nanos::from_secs(125));
    }
    assert_eq!(*kept_there.lock().unwrap(), BTreeMap::from([(1, 2), (2, 1)]));
    new.chain.drain();
    assert_eq!(kept_there.lock().unwrap()[&3], 2);
    assert_eq!(*lost_there.lock().unwrap(), BTreeMap::from([(3, 1)]), "begins anew");
}

/// Flows of several workers pass to workers of another number, each bucket to the one that owns it.
#[test]
fn flows_of_several_workers_pass_by_bucket() {
    let now = Nanos::from_secs(2);
    let ended: [Ended; 8] = Default::default();
    let [one, two, three, four, five, ..] = &ended;
    let ports: Vec<u16> = (1..=100).collect();
    let (mut first, mut second) = (rig(one, two), rig(one, two));
    run(&mut first, &ports[..60], 1);
    run(&mut second, &ports[60..], 1);
    let mut bytes = Vec::new();
    for old in [&mut first, &mut second] {
        bytes.extend(old.chain.export_flows(now, Nanos::ZERO, MOST).unwrap().0);
        old.chain.forget_flows();
    }
    let mut counted = 0;
    for worker in 0..3 {
        let mut new = rig(three, four);
        let owns = |bucket: u16| bucket % 3 == worker;
        let imported = new.chain.import_flows_of(owns, &bytes, now, Nanos::ZERO).unwrap();
        assert!(imported.flows > 0 && imported.refused == 0, "{imported:?}");
        assert_eq!(imported.flows, new.chain.flows() as u64);
        counted += imported.flows;
        new.chain.drain();
    }
    assert_eq!((counted, three.lock().unwrap().len()), (100, 100), "each once");
    let cut = &bytes[..bytes.len() - 1];
    let error = rig(five, five).chain.import_flows_of(|_| false, cut, now, Nanos::ZERO);
    assert_eq!(
        error,
        Err(TransferError::Short(cut.len())),
        "also where others own the flows"
    );
}

/// Flows that another process may have do not end here, until they are released.
#[test]
fn held_flows_do_not_end() {
    let [kept, lost] = [(); 2].map(|()| Ended::default());
    let mut old = rig(&kept, &lost);
    run(&mut old, &[1, 2], 1);
    old.chain.export_flows(Nanos::from_secs(2), Nanos::ZERO, MOST).unwrap();
    let expire = |old: &mut ChainRig| (0..1024).for_each(|_| old.chain.expire(Nanos::from_secs(200)));
    expire(&mut old);
    assert!(kept.lock().unwrap().is_empty());
    old.chain.hold_flows(false);
    expire(&mut old);
    assert_eq!(kept.lock().unwrap().len(), 2);
}

/// Bytes of another chain, damaged ones, and too many are refused.
#[test]
fn wrong_bytes_are_refused_with_the_field() {
    let ended = Ended::default();
    let mut old = rig(&ended, &ended);
    run(&mut old, &[1, 2], 1);
    let now = Nanos::from_secs(2);
    let short = old.chain.export_flows(now, Nanos::ZERO, 30).unwrap_err();
    assert_eq!(short, TransferError::TooLong(30));
    let (bytes, _) = old.chain.export_flows(now, Nanos::ZERO, MOST).unwrap();
    let import = |bytes: &[u8]| {
        let [kept, lost] = [(); 2].map(|()| Ended::default());
        let mut rig = rig(&kept, &lost);
        rig.chain
            .import_flows(bytes, now, Nanos::ZERO)
            .map_err(|error| error.to_string())
    };
    for length in 1..bytes.len() {
        import(&bytes[..length]).unwrap_err();
    }
    let changed = |at: usize, value: u8| {
        let mut changed = bytes.clone();
        changed[at] = value;
        import(&changed).unwrap_err()
    };
    assert!(changed(7, b'2').contains("magic number"));
    assert!(changed(8, 1).contains("bytes of a row: expected 13, found 1 at byte 12"));
    assert!(changed(12, 1).contains("connections: expected 0, found 1"));
    assert!(changed(16, 1).contains("magic number"), "the flows of another worker");
    assert!(changed(23, 255).contains("end early"));
    assert!(changed(25, 2).contains("bucket: expected below 512"));
    assert!(changed(26, 3).contains("flows of a group: expected 1 or 2, found 3"));
    let twice = [&bytes[..], &bytes[24..]].concat();
    let twice = [&twice[..16], &[4], &twice[17..]].concat();
    assert!(import(&twice).unwrap_err().contains("key: expected flows that differ"));
    let other = Ended::default();
    let mut other = ChainRig::new(vec![tally(&other, true), tally(&other, true)], INPUT);
    let error = other.chain.import_flows(&bytes, now, Nanos::ZERO).unwrap_err();
    assert!(
        error.to_string().contains("bytes of a row: expected 26, found 13"),
        "{error}"
    );
}

proptest! {
    /// No bytes cause a panic, and flows that were imported end once.
    #[test]
    fn any_bytes_are_imported_or_refused(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        let [kept, lost] = [(); 2].map(|()| Ended::default());
        let mut old = rig(&kept, &lost);
        run(&mut old, &[1, 2, 3, 4], 1);
        let (mut bytes, _) = old.chain.export_flows(Nanos::from_secs(2), Nanos::ZERO, MOST).unwrap();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let mut new = ChainRig::new(vec![Box::new(Quiet)], INPUT);
        let imported = new.chain.import_flows(&bytes, Nanos::from_secs(2), Nanos::ZERO);
        prop_assert!(new.chain.flows() <= 4, "{imported:?}");
        run(&mut new, &[1, 2, 3], 3);
        new.chain.drain();
    }
}

/// Portable function that only has state.
struct Quiet;

impl NetworkFunction for Quiet {
    fn kind(&self) -> &'static str {
        "Quiet"
    }
    fn state_bytes(&self) -> usize {
        12
    }
    fn process(&mut self, _: &mut Batch, _: &mut FlowStates<'_>) {}
    fn durable(&mut self) -> Option<&mut dyn DurableState> {
        Some(self)
    }
}

impl DurableState for Quiet {
    fn format_version(&self) -> u32 {
        3
    }
}
