//! Identifiable packets, and the expected output of the chain for each.

use crate::common::*;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_traffic::{CaptureReader, Packet, PacketSource, PcapWriter, ReadOptions};

/// Number of concurrently active flows.
const AT_ONCE: u64 = 200;

/// Xorshift generator: the same numbers for the same seed, everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        let mut random = Random(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // Mixes the state, so that adjacent seeds differ in all bits.
        for _ in 0..8 {
            random.next();
        }
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Purpose of a flow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// To its own remote end: its binding is known in advance, so that responses can be sent.
    Own,
    /// To a remote end shared by many flows.
    Shared,
    /// To a port that the access list refuses.
    Refused,
    /// An order to the hostile function.
    Order,
}

struct Flow {
    kind: Kind,
    key: FlowKey,
    payload: usize,
    /// Expected translated key if none of its packets is lost.
    bound: Option<FlowKey>,
    /// Actual translated key.
    leaves: Option<FlowKey>,
    /// Packets sent, per direction.
    sent: [u64; 2],
    /// Packets received from the chain, per direction.
    received: [u64; 2],
    /// Number of the last one received, per direction.
    last: [Option<u32>; 2],
}

/// A packet's flow, and its direction.
#[derive(Clone, Copy)]
struct Sent(u32);

impl Sent {
    fn new(flow: usize, back: bool) -> Sent {
        Sent((flow as u32) << 1 | u32::from(back))
    }

    fn flow(self) -> usize {
        (self.0 >> 1) as usize
    }

    fn back(self) -> usize {
        (self.0 & 1) as usize
    }
}

/// All packets of a run, with their results.
pub(crate) struct Traffic {
    seed: u64,
    flows: Vec<Flow>,
    packets: Vec<Sent>,
    received: Vec<bool>,
    /// Translated keys in use.
    taken: HashSet<FlowKey>,
}

impl Traffic {
    /// Generates this number of packets and flows, with orders to the hostile function at these ports.
    pub(crate) fn new(seed: u64, flows: usize, packets: usize, orders: &[u16]) -> Traffic {
        let flows = (0..flows).map(|i| {
            let kind = match i % 16 {
                0 if i % 256 == 0 => Kind::Order,
                1 | 2 => Kind::Refused,
                3..=6 => Kind::Shared,
                _ => Kind::Own,
            };
            let host = Ipv4Addr::new(10, 1, 0, 1 + (i % 200) as u8);
            let own = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + i as u32;
            let (remote, port, protocol) = match kind {
                Kind::Order => (own.into(), orders[i / 256 % orders.len()], protocol::UDP),
                Kind::Refused => (own.into(), 25, protocol::TCP),
                Kind::Shared => (SERVER, 53, protocol::UDP),
                Kind::Own if i % 2 == 0 => (own.into(), 443, protocol::UDP),
                Kind::Own => (own.into(), 443, protocol::TCP),
            };
            Flow {
                kind,
                key: FlowKey::v4(host, remote, protocol, 2000 + (i / 200) as u16, port),
                payload: 16 + i * 37 % 200,
                bound: None,
                leaves: None,
                sent: [0; 2],
                received: [0; 2],
                last: [None; 2],
            }
        });
        Traffic {
            seed,
            flows: flows.collect(),
            packets: Vec::with_capacity(packets),
            received: vec![false; packets],
            taken: HashSet::new(),
        }
    }

    /// Returns the frame of packet `n` with this key.
    fn frame(&self, n: usize, key: &FlowKey) -> Vec<u8> {
        let mut payload = (n as u64).to_be_bytes().to_vec();
        let mut random = Random::new(self.seed ^ (n as u64) << 20);
        let length = self.flows[self.packets[n].flow()].payload;
        while payload.len() < length {
            payload.extend(random.next().to_be_bytes());
        }
        payload.truncate(length);
        FrameBuilder::new(key).payload(&payload).to_vec().unwrap()
    }

    /// Writes a packet of each flow with a predictable binding, for a chain in one process.
    pub(crate) fn write_first_of_each(&mut self, path: &Path) {
        let mut writer = PcapWriter::create(path).unwrap();
        for flow in 0..self.flows.len() {
            self.packets.push(Sent::new(flow, false));
            if self.flows[flow].kind == Kind::Own {
                let data = self.frame(flow, &self.flows[flow].key);
                let packet = Packet {
                    timestamp: Nanos(flow as u64 * 20_000),
                    data: &data,
                    wire_length: data.len() as u32,
                };
                writer.write(&packet).unwrap();
            }
        }
        self.packets.clear();
        writer.finish().unwrap();
    }

    /// Reads the expected bindings from that chain's output.
    pub(crate) fn learn(&mut self, capture: &Path) {
        each_frame(capture, |frame| {
            let (headers, n) = numbered(frame);
            self.flows[n].bound = Some(headers);
        });
        let own = self.flows.iter().filter(|flow| flow.kind == Kind::Own);
        assert!(own.clone().count() > 0 && own.clone().all(|flow| flow.bound.is_some()));
    }

    /// Writes all packets, `apart` from each other.
    pub(crate) fn write(&mut self, path: &Path, apart: Nanos) {
        let mut random = Random::new(self.seed);
        let mut writer = PcapWriter::create(path).unwrap();
        let packets = self.packets.capacity();
        let (count, at_once) = (self.flows.len() as u64, AT_ONCE.min(self.flows.len() as u64));
        for n in 0..packets {
            let first = (count - at_once + 1) * n as u64 / packets as u64;
            let at = (first + random.below(at_once)) as usize;
            // An order is given once; repeated ones would leave no process to receive it.
            let given = self.flows[at].kind == Kind::Order && self.flows[at].sent[0] > 0;
            let at = (at + usize::from(given)).min(self.flows.len() - 1);
            let flow = &mut self.flows[at];
            // Responses are sent only after the first packets.
            let back = flow.kind == Kind::Own && flow.sent[0] > 2 && random.below(3) == 0;
            flow.sent[usize::from(back)] += 1;
            self.packets.push(Sent::new(at, back));
            self.write_one(n, n as u64 * apart.0, &mut writer);
        }
        writer.finish().unwrap();
    }

    fn write_one(&self, n: usize, at: u64, writer: &mut PcapWriter<File>) {
        let sent = self.packets[n];
        let flow = &self.flows[sent.flow()];
        let key = match flow.bound {
            Some(bound) if sent.back() == 1 => bound.reversed(),
            _ => flow.key,
        };
        let data = self.frame(n, &key);
        let packet = Packet {
            timestamp: Nanos(at),
            data: &data,
            wire_length: data.len() as u32,
        };
        writer.write(&packet).unwrap();
    }

    /// Writes `more` packets after the `count` that were sent, `apart` from each other for the next run. Drops the
    /// packets behind them.
    pub(crate) fn stopped_behind(&mut self, count: usize, more: usize, path: &Path, apart: Nanos) {
        let mut writer = PcapWriter::create(path).unwrap();
        let next = count..self.packets.len().min(count + more);
        for (at, n) in next.clone().enumerate() {
            self.write_one(n, at as u64 * apart.0, &mut writer);
        }
        writer.finish().unwrap();
        self.packets.truncate(next.end);
        self.flows.iter_mut().for_each(|flow| flow.sent = [0; 2]);
        for sent in &self.packets {
            self.flows[sent.flow()].sent[sent.back()] += 1;
        }
    }

    /// Checks every packet sent by the chain: it is one of the offered ones, unchanged except for the translation, sent
    /// once, in its flow's order. Returns their number.
    pub(crate) fn check(&mut self, capture: &Path) -> u64 {
        let mut count = 0;
        each_frame(capture, |frame| {
            self.check_frame(frame);
            count += 1;
        });
        count
    }

    fn check_frame(&mut self, frame: &[u8]) {
        let (key, n) = numbered(frame);
        assert!(n < self.packets.len(), "packet {n} was never sent");
        assert!(!std::mem::replace(&mut self.received[n], true), "packet {n} came twice");
        let sent = self.packets[n];
        let flow = &mut self.flows[sent.flow()];
        let passes = matches!(flow.kind, Kind::Own | Kind::Shared);
        assert!(passes, "packet {n} of {:?} was to be dropped", flow.key);
        let expected = match sent.back() {
            0 => *flow.leaves.get_or_insert_with(|| {
                assert!(self.taken.insert(key), "packet {n}: {key:?} belongs to two connections");
                key
            }),
            _ => {
                // The destination of a response is the binding of a loss-free run.
                assert!(flow.leaves.is_none_or(|key| Some(key) == flow.bound), "packet {n}");
                flow.key.reversed()
            }
        };
        assert_eq!(key, expected, "packet {n} of {:?}", flow.key);
        let last = flow.last[sent.back()].replace(n as u32);
        assert!(last < Some(n as u32), "packet {n} came behind {last:?}");
        flow.received[sent.back()] += 1;
        let headers = parse(frame).unwrap();
        let checksums = [verify_network(frame, &headers), verify_transport(frame, &headers)];
        assert!(!checksums.contains(&Checksum::Wrong), "packet {n}: {checksums:?}");
        // A right checksum has two representations.
        let at = usize::from(headers.transport_offset)
            + match key.protocol() {
                protocol::UDP => 6,
                _ => 16,
            };
        let [mut made, mut came] = [self.frame(n, &expected), frame.to_vec()];
        for frame in [&mut made, &mut came] {
            frame[at..at + 2].fill(0);
        }
        assert!(made == came, "packet {n} was changed: {made:02x?} to {came:02x?}");
    }

    /// Returns the numbers of packets, refused ones, responses, and orders.
    pub(crate) fn sent(&self) -> [u64; 4] {
        let of = |kind| self.flows.iter().filter(move |flow| flow.kind == kind);
        [
            self.packets.len() as u64,
            of(Kind::Refused).map(|flow| flow.sent[0]).sum(),
            self.flows.iter().map(|flow| flow.sent[1]).sum(),
            of(Kind::Order).map(|flow| flow.sent[0]).sum(),
        ]
    }

    /// Returns the number of translated flows.
    pub(crate) fn left(&self) -> usize {
        let left = self.flows.iter().filter(|flow| flow.leaves.is_some());
        left.count()
    }

    /// Returns the number of flows with predicted bindings that were translated, and of those with the predicted
    /// binding.
    pub(crate) fn as_foreseen(&self) -> [usize; 2] {
        let own = self.flows.iter().filter(|flow| flow.kind == Kind::Own);
        let left = own.filter(|flow| flow.leaves.is_some());
        let foreseen = left.clone().filter(|flow| flow.leaves == flow.bound);
        [left.count(), foreseen.count()]
    }

    /// Compares with the counters of an accounting function at the chain's end, over successive runs. Up to `lost`
    /// packets may have been counted and then lost by it.
    pub(crate) fn check_counts(&self, runs: &[PathBuf], lost: u64) {
        let mut counted = HashMap::new();
        for records in runs {
            // A later run's record of a flow covers all its packets.
            counted.extend(read_counts(records));
        }
        self.compare_counts(counted, lost);
    }

    fn compare_counts(&self, mut counted: HashMap<FlowKey, (u64, u64)>, lost: u64) {
        let mut beyond = 0;
        for (at, flow) in self.flows.iter().enumerate() {
            for back in [0, 1] {
                let key = match back {
                    0 => Some(flow.key),
                    _ => flow.bound.map(|bound| bound.reversed()),
                };
                let counts = key.and_then(|key| counted.remove(&key));
                let (packets, bytes) = counts.unwrap_or((0, 0));
                let between = flow.received[back]..=flow.sent[back];
                let name = format!("flow {at} {key:?}");
                assert!(between.contains(&packets), "{name}: {packets} not in {between:?}");
                let headers = match flow.key.protocol() {
                    protocol::UDP => 42,
                    _ => 54,
                };
                let length = (headers + flow.payload) as u64;
                assert_eq!(bytes, packets * length, "{name}: {packets} packets");
                beyond += packets - flow.received[back];
            }
        }
        assert!(counted.is_empty(), "flows that were never sent: {counted:?}");
        assert!(
            beyond <= lost,
            "{beyond} packets were counted and not sent, {lost} lost"
        );
    }
}

/// Returns packets and bytes of each flow in a run's records.
fn read_counts(records: &Path) -> HashMap<FlowKey, (u64, u64)> {
    let text = std::fs::read_to_string(records).unwrap();
    let mut counted = HashMap::new();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |at: usize| fields[at].parse::<u64>().unwrap();
        let [source, destination] = [0, 1].map(|at| fields[at].parse::<Ipv4Addr>().unwrap());
        let key = FlowKey::v4(source, destination, number(2) as u8, number(3) as u16, number(4) as u16);
        let before = counted.insert(key, (number(6), number(7)));
        assert_eq!(before, None, "{key:?} has two records");
    }
    counted
}

/// Returns a frame's flow, and the number in its payload.
fn numbered(frame: &[u8]) -> (FlowKey, usize) {
    let headers = parse(frame).unwrap();
    let number = headers.payload(frame).first_chunk::<8>();
    let number = number.unwrap_or_else(|| panic!("no frame of ours: {frame:02x?}"));
    (headers.key, u64::from_be_bytes(*number) as usize)
}

fn each_frame(capture: &Path, mut each: impl FnMut(&[u8])) {
    let mut reader = CaptureReader::open(capture, &ReadOptions::default()).unwrap();
    while let Some(packet) = reader.next_packet().unwrap() {
        each(packet.data);
    }
}
