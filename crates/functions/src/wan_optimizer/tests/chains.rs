//! Tests with whole packets through chains: both ends as functions, their messages, and packets they leave unchanged.

use super::Chance;
use crate::build::{ChainBuilder, IsolationContext, build_isolated};
use crate::spec::ChainSpec;
use crate::wan_optimizer::WanOptimizerConfig;
use crate::wan_optimizer::header::{ENTRY, HEADER};
use std::path::Path;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Outcome};
use tailwater_chain::rig::{INPUT, unlinked_file};
use tailwater_chain::shared_counters::SharedCounters;
use tailwater_net::builder::{FrameBuilder, fragment};
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::ipv4::Ipv4View;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::vlan::VlanTag;
use tailwater_net::{FlowKey, Nanos, protocol};

const V4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];
/// Bytes of Ethernet, IPv4 and UDP headers before the payload.
const FRONT: usize = 14 + 20 + 8;

fn spec([local, remote]: [&str; 2], more: &str) -> ChainSpec {
    let text = format!(
        "
apiVersion: tailwater.dev/v1alpha1
kind: Chain
metadata: {{name: test}}
spec:
  functions:
    - wanOptimizer: {{local: '{local}', remote: '{remote}', cache: 256KiB, streams: 2, minimum: 0{more}}}
  slo: {{latency: 200us}}
"
    );
    ChainSpec::parse(&text, "test", Path::new(".")).unwrap()
}

struct End {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    offered: u64,
    sent: u64,
}

impl End {
    fn new(ends: [&str; 2], more: &str) -> End {
        End::of(&mut End::builder(ends, more))
    }

    fn builder(ends: [&str; 2], more: &str) -> ChainBuilder {
        ChainBuilder::new(&spec(ends, more), &RssHasher::default(), 1).unwrap()
    }

    fn of(builder: &mut ChainBuilder) -> End {
        End::of_chain(builder.instance(|_| true))
    }

    fn of_chain(chain: Chain) -> End {
        let pool = BufferPool::new(32, 2048).unwrap();
        End {
            chain,
            batch: Batch::new(&pool, 32),
            pool,
            offered: 0,
            sent: 0,
        }
    }

    /// Returns the frame sent, and whether it goes back to its sender. Checks the packet's parsed headers.
    fn run(&mut self, frame: &[u8]) -> Option<(Vec<u8>, bool)> {
        let hash = parse(frame).map_or(0, |headers| RssHasher::default().hash_headers(&headers));
        let pushed = self.batch.push(&mut self.pool, frame, Nanos::ZERO, hash);
        assert!(pushed);
        self.chain.process(&mut self.batch, Nanos::ZERO);
        let left = (!self.batch.is_empty()).then(|| {
            let (packet, frame) = (self.batch.packet(0), self.batch.frame(0));
            let headers = parse(frame).unwrap();
            assert_eq!(packet.headers, headers);
            assert_ne!(verify_network(frame, &headers), Checksum::Wrong);
            (frame.to_vec(), packet.turns_back())
        });
        self.offered += 1;
        self.sent += u64::from(left.is_some());
        self.batch.release(&mut self.pool);
        assert_eq!(self.pool.available(), self.pool.capacity());
        let reasons = self.chain.reasons().into_iter().zip(self.chain.reason_counts());
        let gone = reasons.filter(|(reason, _)| reason.outcome != Outcome::Passed);
        assert_eq!(self.offered, self.sent + gone.map(|(_, count)| count).sum::<u64>());
        left
    }

    /// Returns the frame forwarded.
    fn pass(&mut self, frame: &[u8]) -> Vec<u8> {
        let (left, back) = self.run(frame).unwrap();
        assert!(!back);
        left
    }

    fn count(&self, reason: &str) -> u64 {
        let name = format!("wanOptimizer/{reason}");
        let counts = self.chain.reasons().into_iter().zip(self.chain.reason_counts());
        let mut counts = counts.filter(|(reason, _)| reason.name == name);
        counts.next().unwrap_or_else(|| panic!("no {name}")).1
    }
}

fn client(payload: &[u8]) -> Vec<u8> {
    to([10, 2, 0, 9], payload)
}

fn to(destination: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let key = FlowKey::v4([10, 1, 0, 5].into(), destination.into(), protocol::UDP, 4000, 80);
    FrameBuilder::new(&key).payload(payload).to_vec().unwrap()
}

/// Corrects an IPv4 header's checksum.
fn repair(frame: &mut [u8]) {
    Ipv4View::new(&mut frame[14..]).unwrap().fill_checksum();
}

const BEHIND: &str = ", mtu: 1600, destinations: [10.2.0.0/16, '2001:db8:2::/48']";

#[test]
fn every_kind_of_packet_is_restored_over_both_ip_versions() {
    let mut chance = Chance(40);
    let payload = chance.bytes(700);
    let v6 = FlowKey::v6(
        "2001:db8:1::5".parse().unwrap(),
        "2001:db8:2::9".parse().unwrap(),
        protocol::TCP,
        4000,
        80,
    );
    let v4 = FlowKey::v4([10, 1, 0, 5].into(), [10, 2, 0, 9].into(), protocol::UDP, 4000, 80);
    let tag = VlanTag::customer(42);
    let frames = [
        FrameBuilder::new(&v4).payload(&payload),
        FrameBuilder::new(&v6).payload(&payload),
        FrameBuilder::new(&v4).payload(&payload[3..650]).dscp_ecn(46, 2).ttl(3),
        FrameBuilder::new(&v4).vlan(tag).payload(&payload[..600]),
        FrameBuilder::new(&v6)
            .vlan(tag)
            .vlan(tag)
            .payload(&payload)
            .dscp_ecn(10, 1),
        FrameBuilder::new(&v4).ip_options(&[1, 1, 1, 1]).payload(&payload),
        FrameBuilder::new(&v4).payload(b""),
    ];
    for ends in [V4, V6] {
        let (mut near, mut far) = (End::new(ends, BEHIND), End::new([ends[1], ends[0]], ""));
        for (i, frame) in frames.iter().enumerate() {
            let frame = frame.to_vec().unwrap();
            let sent = near.pass(&frame);
            let headers = parse(&sent).unwrap();
            assert_eq!(headers.key.source().to_string(), ends[0]);
            assert_eq!(headers.key.destination_port(), 49_664);
            if ends == V6 {
                assert_eq!(verify_transport(&sent, &headers), Checksum::Correct);
            }
            assert_eq!(far.pass(&sent), frame, "frame {i}");
        }
        assert_eq!([near.count("encoded"), far.count("decoded")], [7, 7]);
        assert_eq!(near.count("encoded-bytes-in"), far.count("decoded-bytes-out"));
        assert_eq!(near.count("encoded-bytes-out"), far.count("decoded-bytes-in"));
        assert_eq!(near.count("shortened"), 5);
    }
}

/// The tunnel packet copies traffic class and ECN bits from inside, has "don't fragment" set, and loses Ethernet
/// padding. ECN marks made on the path are copied to the inner packet.
#[test]
fn outer_headers_are_as_said() {
    let (mut near, mut far) = (
        End::new(V4, ", destinations: [10.2.0.0/16], ttl: 9"),
        End::new([V4[1], V4[0]], ""),
    );
    let key = FlowKey::v4([10, 1, 0, 5].into(), [10, 2, 0, 9].into(), protocol::UDP, 1, 2);
    let builder = FrameBuilder::new(&key).dscp_ecn(46, 1).payload(b"x");
    let frame = builder.to_vec().unwrap();
    let padded = FrameBuilder::new(&key).dscp_ecn(46, 1).payload(b"x").pad_to_minimum();
    let mut sent = near.pass(&padded.to_vec().unwrap());
    assert_eq!(sent.len(), FRONT + HEADER + 29);
    assert_eq!(sent[15], 46 << 2 | 1);
    assert_eq!([sent[20], sent[22]], [0x40, 9]);
    assert_eq!(far.pass(&sent), frame);
    // Congestion experienced.
    sent[15] |= 3;
    repair(&mut sent);
    let marked = FrameBuilder::new(&key).dscp_ecn(46, 3).payload(b"x");
    assert_eq!(far.pass(&sent), marked.to_vec().unwrap());
    // A packet of a sender that is not ECN-capable.
    let mut sent = near.pass(&client(b"y"));
    sent[15] |= 3;
    repair(&mut sent);
    assert!(far.run(&sent).is_none());
    assert_eq!(far.count("congestion"), 1);
}

#[test]
fn what_is_not_the_tunnels_passes() {
    let (mut near, mut far) = (End::new(V4, BEHIND), End::new([V4[1], V4[0]], ""));
    let mut chance = Chance(41);
    let elsewhere = to([10, 3, 0, 9], b"elsewhere");
    assert_eq!(near.pass(&elsewhere), elsewhere);
    assert_eq!(far.pass(&client(b"nothing is behind")), client(b"nothing is behind"));
    // Too long for the tunnel's MTU: 44 bytes are added to its 1,557.
    let long = client(&chance.bytes(1529));
    assert_eq!(near.pass(&long), long);
    assert_eq!(near.count("too-big"), 1);
    let fits = client(&chance.bytes(1528));
    let sent = near.pass(&fits);
    assert_eq!(sent.len(), 14 + 1600);
    assert_eq!(far.pass(&sent), fits);
    // Content too long to send is not in the remote cache, so it is not referred to.
    let again = near.pass(&client(
        parse(&long).unwrap().payload(&long)[..1500].try_into().unwrap(),
    ));
    assert_eq!(again.len(), 14 + 44 + 1528);
    far.pass(&again);
    // Packets between the two ends with other ports, or not UDP.
    let between = |protocol, ports: [u16; 2]| {
        let [a, b] = V4.map(|end| end.parse().unwrap());
        let key = FlowKey::v4(a, b, protocol, ports[0], ports[1]);
        FrameBuilder::new(&key).payload(b"between them").to_vec().unwrap()
    };
    for (protocol, ports) in [
        (protocol::UDP, [49_663, 49_664]),
        (protocol::UDP, [49_666, 49_664]),
        (protocol::UDP, [49_665, 49_665]),
        (protocol::UDP, [53, 4000]),
        (protocol::TCP, [49_664, 49_664]),
    ] {
        let frame = between(protocol, ports);
        assert_eq!(far.pass(&frame), frame, "{ports:?}");
    }
    assert!(far.run(&between(protocol::UDP, [49_664, 49_664])).is_none());
    assert_eq!(far.count("version"), 1);
}

/// A packet that refers to lost content goes back as a request. A repeated packet then gets through without further
/// loss.
#[test]
fn requests_are_packets_that_go_back() {
    for ends in [V4, V6] {
        let (mut near, mut far) = (End::new(ends, BEHIND), End::new([ends[1], ends[0]], ""));
        let mut chance = Chance(42);
        let segment = client(&chance.bytes(1000));
        let first = near.pass(&segment);
        let second = near.pass(&segment);
        assert!(second.len() < 200);
        let (request, back) = far.run(&second).unwrap();
        assert!(back);
        assert_eq!(far.count("missing"), 1);
        let headers = parse(&request).unwrap();
        assert_eq!(verify_transport(&request, &headers), Checksum::Correct);
        assert_eq!(headers.key, parse(&second).unwrap().key.reversed());
        assert_eq!([&request[..6], &request[6..12]], [&second[6..12], &second[..6]]);
        assert_eq!(headers.payload(&request).len(), HEADER + 2 * ENTRY);
        assert!(near.run(&request).is_none());
        assert_eq!(near.count("request"), 1);
        let third = near.pass(&segment);
        assert_eq!(far.pass(&third), segment);
        let fourth = near.pass(&segment);
        assert!(fourth.len() < 200);
        assert_eq!(far.pass(&fourth), segment);
        // The first packet was only late.
        assert_eq!(far.pass(&first), segment);
        assert_eq!(far.pass(&second), segment);
    }
}

/// A restarted encoder has a new epoch; requests for the old one are ignored.
#[test]
fn ends_begin_anew() {
    let mut chance = Chance(43);
    let segments: Vec<_> = (0..30).map(|_| client(&chance.bytes(1000))).collect();
    let (mut near, mut far) = (End::new(V4, BEHIND), End::new([V4[1], V4[0]], ""));
    for segment in segments.iter().chain(&segments) {
        assert_eq!(far.pass(&near.pass(segment)), *segment);
    }
    near = End::new(V4, BEHIND);
    for segment in segments.iter().chain(&segments) {
        assert_eq!(far.pass(&near.pass(segment)), *segment);
    }
    far = End::new([V4[1], V4[0]], "");
    let (request, _) = far.run(&near.pass(&segments[0])).unwrap();
    assert!(near.run(&request).is_none());
    for segment in &segments {
        assert_eq!(far.pass(&near.pass(segment)), *segment);
    }
    near = End::new(V4, BEHIND);
    assert!(near.run(&request).is_none());
    assert_eq!(near.count("stale-request"), 1);
}

/// Packets too small to gain anything, as in most floods, pass unchanged.
#[test]
fn packets_with_little_payload_pass() {
    let spec = {
        let mut spec = spec(V4, BEHIND);
        let config = spec.functions[0].config.get_mut::<WanOptimizerConfig>().unwrap();
        config.options.minimum = 64;
        spec
    };
    let mut near = End::of(&mut ChainBuilder::new(&spec, &RssHasher::default(), 1).unwrap());
    let small = client(&[7; 63]);
    assert_eq!(near.pass(&small), small);
    assert_eq!([near.count("small"), near.count("encoded")], [1, 0]);
    assert_ne!(near.pass(&client(&[7; 64])), client(&[7; 64]));
    assert_eq!([near.count("small"), near.count("encoded")], [1, 1]);
}

/// Each instance has its own stream while there are free ones; a later instance reuses that of a dropped one.
#[test]
fn streams_are_leased() {
    let mut builder = End::builder(V4, BEHIND);
    let (mut first, mut second) = (End::of(&mut builder), End::of(&mut builder));
    let mut third = End::of(&mut builder);
    let mut far = End::new([V4[1], V4[0]], "");
    let frame = client(b"to whichever instance it comes");
    let port = |sent: &[u8]| parse(sent).unwrap().key.source_port();
    let sent = [first.pass(&frame), second.pass(&frame)];
    assert_eq!(sent.each_ref().map(|sent| port(sent)), [49_664, 49_665]);
    for sent in sent {
        assert_eq!(far.pass(&sent), frame);
    }
    assert_eq!(third.pass(&frame), frame);
    assert_eq!(third.count("no-stream"), 1);
    drop(first);
    let mut fourth = End::of(&mut builder);
    let sent = fourth.pass(&frame);
    assert_eq!(port(&sent), 49_664);
    assert_eq!(far.pass(&sent), frame);
}

/// Frames whose buffers have no room for the restored content are dropped and counted.
#[test]
fn content_that_has_no_room_is_lost() {
    let (mut near, mut far) = (
        End::new(V4, ", destinations: [10.2.0.0/16], mtu: 65535"),
        End::new([V4[1], V4[0]], ""),
    );
    near.pool = BufferPool::new(32, 9000).unwrap();
    near.batch = Batch::new(&near.pool, 32);
    let zeros = client(&vec![0; 5000]);
    let known = near.pass(&zeros);
    far.pool = BufferPool::new(32, 9000).unwrap();
    far.batch = Batch::new(&far.pool, 32);
    assert_eq!(far.pass(&known), zeros);
    far.pool = BufferPool::new(32, 2048).unwrap();
    far.batch = Batch::new(&far.pool, 32);
    // Known content in few bytes, which once restored exceeds the remote end's buffers.
    let sent = near.pass(&client(&vec![0; 5400]));
    assert!(sent.len() < 1000, "{}", sent.len());
    assert!(far.run(&sent).is_none());
    assert_eq!(far.count("no-room"), 1);
}

#[test]
fn fragments_of_the_tunnels_packets_and_wrong_lengths_are_dropped() {
    let (mut near, mut far) = (End::new(V4, BEHIND), End::new([V4[1], V4[0]], ""));
    let sent = near.pass(&client(b"what is cut"));
    let first = fragment(&sent, 32, 7).unwrap().remove(0);
    assert!(far.run(&first).is_none());
    assert_eq!(far.count("fragment"), 1);
    let mut longer = sent.clone();
    longer[39] -= 1;
    assert!(far.run(&longer).is_none());
    assert_eq!(far.count("malformed"), 1);
    let mut other = sent.clone();
    other[42] = 0x20;
    assert!(far.run(&other).is_none());
    assert_eq!(far.count("version"), 1);
    assert_eq!(far.pass(&sent), client(b"what is cut"));
}

/// Processes that share memory are one end: a request that reaches one of them is heeded by the encoder of another.
#[test]
fn processes_are_one_end_together() {
    let spec = spec(V4, BEHIND);
    let requirements = spec.functions[0].config.requirements(0);
    let file = unlinked_file(requirements.shared_bytes);
    let process = |part| {
        let context = IsolationContext {
            rss: RssHasher::default(),
            part: [part, 2],
            shared_counters: SharedCounters::in_file(&file).unwrap(),
            capacity: 0,
        };
        let (function, _) = build_isolated(&spec.functions[0], context).unwrap();
        End::of_chain(Chain::new(vec![("wanOptimizer".to_owned(), function)], None, INPUT))
    };
    // The standby process of the first one changes nothing before its turn.
    let (mut near, mut other, standby) = (process(0), process(1), process(0));
    let mut far = End::new([V4[1], V4[0]], "");
    let text = client(&[7; 400]);
    assert_eq!(far.pass(&near.pass(&text)), text);
    // A packet that refers to one that got lost comes back as a request, which the other process gets.
    let lost = client(&(0..=255).collect::<Vec<u8>>());
    near.pass(&lost);
    let (request, back) = far.run(&near.pass(&lost)).unwrap();
    assert!(back);
    assert!(other.run(&request).is_none());
    assert_eq!((other.count("request"), far.count("missing")), (1, 1));
    assert_eq!(far.pass(&near.pass(&lost)), lost);
    assert_eq!(far.count("missing"), 1);
    // A successor continues with an epoch of its own.
    drop(near);
    let mut near = standby;
    assert_eq!(far.pass(&near.pass(&lost)), lost);
    assert_eq!(far.pass(&near.pass(&lost)), lost);
    assert_eq!(far.count("damaged"), 0);
}

#[test]
fn a_tunnels_end_mixes_flows() {
    let spec = spec(V4, BEHIND);
    let mut with_nat = spec.clone();
    with_nat.functions.extend(
        ChainSpec::parse(
            "{apiVersion: tailwater.dev/v1alpha1, kind: Chain, metadata: {name: test}, \
             spec: {functions: [{nat: {external: [203.0.113.1]}}], slo: {latency: 200us}}}",
            "test",
            Path::new("."),
        )
        .unwrap()
        .functions,
    );
    let error = ChainBuilder::new(&with_nat, &RssHasher::default(), 1).err().unwrap();
    let expected = "function nat keeps state per flow and cannot follow wanOptimizer";
    assert!(error.to_string().starts_with(expected), "{error}");
}
