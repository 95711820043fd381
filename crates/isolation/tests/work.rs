//! Differential test of one library in two hosts: as functions run by the crate `tailwater-functions`, and as programs
//! of their own. Both must treat all packets equally.

use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tailwater_chain::flow_table::ReplicaConfig;
use tailwater_functions::library::{LibraryFunction, load};
use tailwater_isolation::layout::{FlowSlot, MAX_BATCH, MAX_TRACED, RESPONSE_AREA_BYTES, ResponseArea};
use tailwater_isolation::program::Waiting as BuiltIn;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::{Headers, parse};
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_sdk::abi::MAX_EXPLANATION;
use tailwater_sdk::host::Printable;
use tailwater_sdk::program::{
    AttachedMemory, TurnFunction, TurnPacket, TurnVerdict, UnattachedFunction, UnattachedInstance,
};
use tailwater_sdk::protocol::memory::Memory;

const BUFFER_BYTES: usize = 512;
const CAPACITY: usize = 512;
/// Number of flow slots that packets use.
const FLOWS: usize = 12;

/// Compiles one of the functions for tests of libraries, once for all tests that use it.
fn library(function: &str) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let file = compiled.entry(function.to_owned()).or_insert_with(|| compile(function));
    file.clone()
}

fn compile(function: &str) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("work-{function}.so"));
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wno-unused-function", "-fPIC", "-shared"])
        .arg(format!("-D{function}"))
        .arg("-I")
        .arg(crates.join("sdk/include"))
        .arg("-o")
        .args([&file, &crates.join("functions/tests/library/functions.c")])
        .status();
    assert!(compiled.unwrap().success());
    file
}

fn memory(bytes: usize) -> File {
    let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(bytes as u64).unwrap();
    file
}

/// A packet, its frame, and its flow's key on arrival at the chain.
struct Sent {
    packet: TurnPacket,
    frame: Vec<u8>,
    key: FlowKey,
}

/// One of the two hosts.
struct Side<W> {
    work: W,
    packets: Memory,
    /// Explanations of the last batch's traced packets.
    explained: Vec<String>,
}

impl<W: TurnFunction> Side<W> {
    fn new<R: UnattachedFunction<Attached = W>>(ready: R) -> Side<W> {
        let description = ready.describe();
        let packets = memory(MAX_BATCH * BUFFER_BYTES);
        let map = || Memory::map(&packets, MAX_BATCH * BUFFER_BYTES, true).unwrap();
        let config = ReplicaConfig {
            capacity: CAPACITY,
            state_bytes: description.state_bytes as usize,
            directed: false,
        };
        let slate = Memory::map(&memory(RESPONSE_AREA_BYTES), RESPONSE_AREA_BYTES, true).unwrap();
        let flows = Memory::whole(&memory(config.file_bytes()), Duration::MAX).unwrap();
        let given = AttachedMemory {
            packets: map(),
            buffer_bytes: BUFFER_BYTES,
            flows: Some((CAPACITY, flows)),
            snapshots: None,
            responses: Arc::new(ResponseArea(slate)),
        };
        Side {
            work: ready.attach(given).unwrap(),
            packets: map(),
            explained: Vec::new(),
        }
    }

    /// Returns the verdict on each packet of a batch, with the frame if it is forwarded. With `CHANGED` the headers are
    /// parsed again; otherwise they are as on arrival at the chain.
    fn run<const CHANGED: bool>(&mut self, packets: &[Sent]) -> BTreeMap<u16, (Option<TurnVerdict>, Vec<u8>)> {
        let mut all = BTreeMap::new();
        for Sent { packet, frame, key } in packets {
            let at = usize::from(packet.at) * BUFFER_BYTES + usize::from(packet.frame_range[0]);
            self.packets.write(at, frame);
            let known = |headers: &mut Headers| {
                *headers = Headers {
                    key: *key,
                    ..parse(frame).unwrap_or_default()
                };
            };
            if !self.work.put::<CHANGED>(packet, known) {
                all.insert(packet.at, (None, Vec::new()));
            }
        }
        // Some batches have traced packets.
        let traced = if packets.len() % 4 == 1 { 0 } else { MAX_TRACED };
        let traced = packets.iter().take(traced).map(|sent| sent.packet.at);
        traced.clone().for_each(|at| self.work.before_explanation(at));
        self.work.run(Nanos(1), |at, made| {
            let frame = match made {
                TurnVerdict::Forward {
                    place: [start, length], ..
                } => {
                    let mut frame = vec![0; length.into()];
                    let at = usize::from(at) * BUFFER_BYTES + usize::from(start);
                    self.packets.read(at, &mut frame);
                    frame
                }
                TurnVerdict::Drop(_) => Vec::new(),
            };
            let twice = all.insert(at, (Some(made), frame));
            assert_eq!(twice, None, "told twice of a packet");
        });
        let explain = |at| {
            let mut text = [0; MAX_EXPLANATION];
            let is_explained = self.work.explain(at, &mut text);
            is_explained.then(|| Printable(&text).to_string())
        };
        self.explained = traced.filter_map(explain).collect();
        // Packets without a verdict are forwarded unchanged.
        for Sent { packet, .. } in packets {
            all.entry(packet.at).or_insert_with(|| {
                let [start, length] = packet.frame_range;
                let mut frame = vec![0; length.into()];
                let at = usize::from(packet.at) * BUFFER_BYTES + usize::from(start);
                self.packets.read(at, &mut frame);
                let (place, rekeyed) = (packet.frame_range, packet.rekeyed);
                let turned = packet.turned;
                (Some(TurnVerdict::Forward { place, rekeyed, turned }), frame)
            });
        }
        all
    }

    fn notes(&self) -> Vec<u64> {
        self.work.counters().collect()
    }
}

/// Pseudorandom numbers (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Runs many batches through both hosts. Returns the number of packets per kind of verdict.
fn compare(function: &str, config: &str, sent_elsewhere: bool) -> BTreeMap<String, u64> {
    let file = library(function);
    let in_nf = LibraryFunction::open(&file, config).unwrap();
    let in_nf = BuiltIn::new(Box::new(in_nf.instance()));
    let own = UnattachedInstance::new(load(&file).unwrap(), config).unwrap();
    let (one, other) = (in_nf.describe(), own.describe());
    assert_eq!(one.drop_reasons, other.drop_reasons);
    assert_eq!((one.name, one.counters), (other.name, other.counters));
    assert_eq!(one.wants_flow_ends, other.wants_flow_ends);
    let (mut in_nf, mut own) = (Side::new(in_nf), Side::new(own));
    let mut chance = Chance(0x5eed_0000_0001);
    let mut births = [0u64; FLOWS];
    let mut elsewhere = [0u8; FLOWS];
    let (mut born, mut arrival) = (0, 0);
    let mut ends = BTreeMap::new();
    for _ in 0..500 {
        let count = chance.below(40);
        let mut packets = Vec::new();
        // Between batches flows end and others reuse their slots, or a function in front redirects a flow, which its
        // first packet then reports.
        let mut rekeyed = [false; FLOWS];
        // `true` for the first function of a chain.
        let first = !sent_elsewhere && chance.below(2) == 0;
        for flow in 0..FLOWS {
            if births[flow] == 0 || chance.below(30) == 0 {
                born += 1;
                (births[flow], elsewhere[flow]) = (born, 0);
            } else if sent_elsewhere && chance.below(10) == 0 {
                elsewhere[flow] = elsewhere[flow].wrapping_add(1);
                rekeyed[flow] = true;
            }
        }
        for i in 0..count {
            let flow = chance.below(FLOWS as u64) as usize;
            let key = |to: u8| {
                let [from, to] = [[10, 0, 0, 1].into(), [198, 51, 100, to].into()];
                FlowKey::v4(from, to, protocol::UDP, 1000 + flow as u16, 53)
            };
            let now = key(elsewhere[flow]);
            let letter = b".VPGSMFLOWDx"[chance.below(12) as usize];
            let builder = FrameBuilder::new(&now);
            let mut frame = builder.payload(&[letter, b'!', b'?']).to_vec().unwrap();
            // A redirected flow is reported by a valid packet.
            if !rekeyed[flow] && !first && chance.below(40) == 0 {
                frame.truncate(chance.below(frame.len() as u64) as usize + 1);
            }
            arrival += 1000;
            let packet = TurnPacket {
                entry: 0,
                // Each packet has its own slot; some slots stay empty.
                at: (i * 3 + chance.below(3)) as u16,
                frame_range: [chance.below(200) as u16 + 10, frame.len() as u16],
                arrival: Nanos(arrival),
                rss_hash: chance.below(1 << 32) as u32,
                flow: Some(FlowSlot {
                    flow: flow as u32 * 7,
                    generation: births[flow],
                }),
                rekeyed: std::mem::take(&mut rekeyed[flow]),
                turned: false,
            };
            packets.push(Sent {
                packet,
                frame,
                key: key(0),
            });
        }
        // A flow without a packet in this batch was not reported as redirected, so undo it.
        for (flow, untold) in rekeyed.into_iter().enumerate() {
            elsewhere[flow] = elsewhere[flow].wrapping_sub(untold.into());
        }
        let (one, other) = match first {
            true => (in_nf.run::<false>(&packets), own.run::<false>(&packets)),
            false => (in_nf.run::<true>(&packets), own.run::<true>(&packets)),
        };
        assert_eq!(one, other, "{function}");
        assert_eq!(in_nf.explained, own.explained, "{function}");
        *ends.entry("explained".to_owned()).or_insert(0) += own.explained.len() as u64;
        for (made, _) in one.values() {
            let kind = match made {
                None => "unfit".to_owned(),
                Some(TurnVerdict::Forward { rekeyed, .. }) => format!("forward {rekeyed}"),
                Some(TurnVerdict::Drop(reason)) => format!("drop {reason}"),
            };
            *ends.entry(kind).or_insert(0) += 1;
        }
        if chance.below(4) == 0 {
            let flow = chance.below(FLOWS as u64) as usize;
            // The end of a previous flow in the slot must have no effect.
            let birth = births[flow] - chance.below(2).min(births[flow]);
            in_nf.work.end_flow(flow as u32 * 7, birth);
            own.work.end_flow(flow as u32 * 7, birth);
            if birth == births[flow] {
                births[flow] = 0;
            }
        }
        assert_eq!(in_nf.notes(), own.notes(), "{function}");
    }
    for (i, note) in own.notes().iter().enumerate() {
        ends.insert(format!("note {i}"), *note);
    }
    ends
}

/// Asserts that each of these kinds occurred.
fn assert_came(ends: &BTreeMap<String, u64>, kinds: &[&str]) {
    for kind in kinds {
        assert!(ends.get(*kind).is_some_and(|n| *n > 10), "{kind}: {ends:?}");
    }
}

#[test]
fn counts_state_and_ends_of_flows() {
    let ends = compare("COUNT", "{\"limits\":[{\"packets\":9}]}", false);
    assert_came(
        &ends,
        &["forward false", "unfit", "drop 1", "note 0", "note 1", "explained"],
    );
}

#[test]
fn frames_that_change() {
    compare("REWRITE", "{}", false);
    let ends = compare("REWRITE", "{}", true);
    assert_came(&ends, &["forward false", "forward true", "unfit", "drop 0", "drop 254"]);
    let ends = compare("REWRITE_HEADERS", "{}", true);
    assert_came(&ends, &["forward false", "forward true", "unfit", "drop 0"]);
}

#[test]
fn flows_that_are_sent_elsewhere_in_front() {
    let ends = compare("NEWS", "{}", true);
    assert_came(&ends, &["forward false", "forward true", "note 0", "note 1"]);
}

#[test]
fn packets_allocate_nothing() {
    let file = library("REWRITE");
    let own = UnattachedInstance::new(load(&file).unwrap(), "{}").unwrap();
    let Side { mut work, packets, .. } = Side::new(own);
    let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol::UDP, 1, 2);
    let frames: Vec<Vec<u8>> = b".VPGSMFLOWDx"
        .iter()
        .map(|letter| FrameBuilder::new(&key).payload(&[*letter, b'!']).to_vec().unwrap())
        .collect();
    let mut told = 0;
    let allocated = allocation_counter::measure(|| {
        for birth in 1..100 {
            for (at, frame) in frames.iter().enumerate() {
                packets.write(at * BUFFER_BYTES + 64, frame);
                let packet = TurnPacket {
                    entry: 0,
                    at: at as u16,
                    frame_range: [64, frame.len() as u16],
                    arrival: Nanos(birth),
                    rss_hash: 0,
                    flow: Some(FlowSlot {
                        flow: at as u32,
                        generation: birth,
                    }),
                    rekeyed: birth % 3 == 0,
                    turned: false,
                };
                assert!(work.put::<true>(&packet, |headers| headers.key = key));
            }
            work.run(Nanos(birth), |_, _| told += 1);
            work.end_flow(3, birth);
        }
    });
    assert_eq!(allocated.count_total, 0);
    assert!((1..=99 * frames.len()).contains(&told), "{told}");
}
