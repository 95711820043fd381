//! Function whose process dies during a batch: the next process maps the same flow memory.

use std::cell::RefCell;
use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tailwater_net::parse::{Headers, parse};
use tailwater_net::{Nanos, protocol};
use tailwater_sdk::host::FunctionDescription;
use tailwater_sdk::program::{
    AttachedMemory, Instance, TurnFunction, TurnPacket, TurnVerdict, UnattachedFunction, UnattachedInstance,
};
use tailwater_sdk::protocol::layout::{FlowSlot, MAX_BATCH, RESPONSE_AREA_BYTES, ResponseArea};
use tailwater_sdk::protocol::memory::Memory;
use tailwater_sdk::protocol::snapshots::{ExternalFlowInfo, FlowSnapshots, file_bytes};
use tailwater_sdk::testing::frame;
use tailwater_sdk::{Batch, Config, ConfigError, FlowKey, Function, describe, state};

const BUFFER_BYTES: usize = 256;
const PLACES: usize = 8;
/// Offset of frames in their buffers.
const START: u16 = 64;

state! {
    struct Count {
        packets: u64,
    }
}

thread_local! {
    /// Observations of the function for each packet: whether its flow was new, and its state's packet count.
    static SAW: RefCell<Vec<(bool, u64)>> = const { RefCell::new(Vec::new()) };
    /// Packet counts of flows that ended.
    static ENDED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Counts packets of flows. Fails on a batch with a packet to port 666, after counting the batch.
#[derive(Debug)]
struct Fails;

impl Function for Fails {
    const NAME: &'static CStr = c"fails";
    const WANTS_FLOW_ENDS: bool = true;
    const STATE_VERSION: u32 = 1;
    type State = Count;
    type Shared = ();

    fn configure(_: &Config) -> Result<(), ConfigError> {
        Ok(())
    }

    fn start(_: Arc<()>) -> Fails {
        Fails
    }

    fn process(&mut self, batch: &mut Batch<'_, Count>) {
        let mut fails = false;
        batch.for_each(|packet, _| {
            let before = packet.read().packets;
            SAW.with_borrow_mut(|saw| saw.push((packet.is_new_flow(), before)));
            packet.update(|count| count.packets = before + 1);
            fails |= packet.key().destination_port() == 666;
        });
        assert!(!fails, "as it was told");
    }

    fn flow_ended(&mut self, _: &FlowKey, state: &Count, _: &mut [u64]) {
        ENDED.with_borrow_mut(|ended| ended.push(state.packets));
    }
}

/// Memory the server keeps for the function's processes.
struct Server {
    packets: File,
    flows: File,
    images: Option<File>,
}

fn memory(bytes: usize) -> File {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let name = NAMES.fetch_add(1, Ordering::Relaxed);
    let name = format!("tailwater-deaths-{}-{name}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(&path);
    let file = file.unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(bytes as u64).unwrap();
    file
}

fn flows(file: &File) -> Memory {
    Memory::whole(file, Duration::MAX).unwrap()
}

impl Server {
    fn new(kept: bool) -> Server {
        Server {
            packets: memory(MAX_BATCH * BUFFER_BYTES),
            // An entry and a state occupy one cache line each.
            flows: memory(PLACES * 2 * 64),
            images: kept.then(|| memory(file_bytes(PLACES, size_of::<Count>()))),
        }
    }

    fn map(&self) -> Memory {
        Memory::map(&self.packets, MAX_BATCH * BUFFER_BYTES, true).unwrap()
    }

    /// Starts another process of the function.
    fn process(&self) -> Process {
        let function = Box::leak(Box::new(describe::<Fails>()));
        // SAFETY: `describe` obeys the header's rules; its names and lists are static.
        let described = unsafe { FunctionDescription::read(&raw const *function) }.unwrap();
        let waiting = UnattachedInstance::new(Box::leak(Box::new(described)), "{}").unwrap();
        let responses = Memory::map(&memory(RESPONSE_AREA_BYTES), RESPONSE_AREA_BYTES, true).unwrap();
        let given = AttachedMemory {
            packets: self.map(),
            buffer_bytes: BUFFER_BYTES,
            flows: Some((PLACES, flows(&self.flows))),
            snapshots: self.images.as_ref().map(|file| (Nanos::ZERO, flows(file))),
            responses: Arc::new(ResponseArea(responses)),
        };
        Process {
            work: waiting.attach(given).unwrap(),
            packets: self.map(),
        }
    }
}

struct Process {
    work: Instance,
    packets: Memory,
}

/// Packet: slot and generation of its flow, and whether a preceding function rewrote the flow.
type Packet = (u32, u64, bool);

impl Process {
    /// Runs a batch, on which the function fails if `fails`. Returns the function's observations, and for each
    /// forwarded packet whether it reports its flow as rewritten (`None` if the function failed).
    fn run(&mut self, packets: &[Packet], fails: bool) -> (Vec<(bool, u64)>, Option<Vec<bool>>) {
        SAW.take();
        for (at, &(flow, generation, rekeyed)) in packets.iter().enumerate() {
            let [from, to] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
            let port = if fails { 666 } else { 53 };
            let key = FlowKey::new(from, to, protocol::UDP, 1000 + flow as u16, port);
            let frame = frame(&key, b"?");
            let start = at * BUFFER_BYTES + usize::from(START);
            self.packets.write(start, &frame);
            let packet = TurnPacket {
                entry: 0,
                at: at as u16,
                frame_range: [START, frame.len() as u16],
                arrival: Nanos(1),
                rss_hash: 0,
                flow: Some(FlowSlot { flow, generation }),
                rekeyed,
                turned: false,
            };
            let known = |headers: &mut Headers| *headers = parse(&frame).unwrap();
            assert!(self.work.put::<false>(&packet, known));
        }
        // Packets forwarded unchanged have no response word.
        let mut rekeyed: Vec<bool> = packets.iter().map(|packet| packet.2).collect();
        let each = |at: u16, made| match made {
            TurnVerdict::Forward { rekeyed: now, .. } => rekeyed[usize::from(at)] = now,
            made => panic!("{made:?}"),
        };
        let ran = catch_unwind(AssertUnwindSafe(|| self.work.run(Nanos(1), each)));
        (SAW.take(), ran.is_ok().then_some(rekeyed))
    }
}

#[test]
fn a_flow_over_whose_first_packet_a_process_ended_is_new_to_the_next() {
    let server = Server::new(false);
    // Later packets of a flow in the batch are not new, nor are flows seen before.
    let (saw, made) = server.process().run(&[(1, 7, false), (1, 7, false)], false);
    assert_eq!(saw, [(true, 0), (false, 1)]);
    assert!(made.is_some());
    let batch = [
        (2, 8, false),
        (1, 7, false),
        (3, 9, false),
        (2, 8, false),
        (3, 9, false),
    ];
    for _ in 0..3 {
        // Each process dies on the same flows.
        let (saw, made) = server.process().run(&batch, true);
        assert_eq!(made, None);
        let new: Vec<bool> = saw.iter().map(|(new, _)| *new).collect();
        assert_eq!(new, [true, false, true, false, false]);
        assert_eq!([saw[0].1, saw[2].1], [0, 0]);
    }
    let mut last = server.process();
    // The order differs from that of the failed attempts.
    let (saw, _) = last.run(&[(3, 9, false), (2, 8, false), (3, 9, false)], false);
    assert_eq!(saw, [(true, 0), (true, 0), (false, 1)]);
    let (saw, _) = last.run(&[(3, 9, false), (2, 8, false), (1, 7, false)], false);
    // State of a flow that was seen is kept as it was left.
    assert_eq!(saw, [(false, 2), (false, 1), (false, 5)]);
}

#[test]
fn a_flow_that_no_process_lived_to_see_does_not_end() {
    let server = Server::new(false);
    ENDED.take();
    let (_, made) = server.process().run(&[(1, 7, false)], false);
    assert!(made.is_some());
    assert_eq!(server.process().run(&[(2, 8, false)], true).1, None);
    let mut next = server.process();
    next.work.end_flow(2, 8);
    next.work.end_flow(1, 7);
    assert_eq!(ENDED.take(), [1]);
}

#[test]
fn a_flow_that_was_sent_elsewhere_when_a_process_ended_is_decided_anew_by_the_next() {
    let server = Server::new(false);
    let (_, made) = server.process().run(&[(1, 7, false)], false);
    assert_eq!(made, Some(vec![false]));
    assert_eq!(server.process().run(&[(1, 7, true)], true).1, None);
    let mut next = server.process();
    // The function has seen the flow, so the state is not another flow's. Its first packet notifies later functions.
    let (saw, made) = next.run(&[(1, 7, false), (1, 7, false)], false);
    assert_eq!(saw, [(true, 2), (false, 3)]);
    assert_eq!(made, Some(vec![true, false]));
    // A flow rewritten in the middle of a batch.
    let (saw, _) = next.run(&[(1, 7, false), (1, 7, true), (1, 7, false)], false);
    assert_eq!(saw, [(false, 4), (true, 5), (false, 6)]);
    let (saw, _) = next.run(&[(2, 8, false), (2, 8, true), (2, 8, false)], false);
    assert_eq!(saw, [(true, 0), (true, 1), (false, 2)]);
}

#[test]
fn what_came_from_outside_for_a_flow_is_there_for_the_next_process_too() {
    let server = Server::new(true);
    let file = server.images.as_ref().unwrap();
    let worker = FlowSnapshots::open(flows(file), size_of::<Count>()).unwrap();
    worker.put(1, &40u64.to_ne_bytes());
    let offer = ExternalFlowInfo {
        restored: true,
        ..ExternalFlowInfo::default()
    };
    worker.set_external_info(1, offer);
    let (saw, made) = server.process().run(&[(1, 7, false), (1, 7, false)], true);
    assert_eq!((saw, made), (vec![(true, 40), (false, 41)], None));
    assert!(!worker.is_of(1, 7));
    let (saw, _) = server.process().run(&[(1, 7, false), (1, 7, false)], false);
    assert_eq!(saw, [(true, 40), (false, 41)]);
    let mut piece = [0; 8];
    assert!(worker.copy(1, 7, &mut piece));
    assert_eq!(u64::from_ne_bytes(piece), 42);
}
