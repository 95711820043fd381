//! Exhaustion of resources: every function follows its policy, the effects are counted, and it recovers when there is
//! room again.

use std::net::Ipv4Addr;
use std::path::Path;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_functions::upf::{Owner, Session, SessionError, Tunnel, UpfTable};
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::toeplitz::{BUCKETS, RssHasher, bucket_of};
use tailwater_net::{FlowKey, Nanos, protocol};

const SECOND: Nanos = Nanos::from_secs(1);
/// Slots for flows of one RSS bucket in the smallest table.
const PLACES: u64 = 64;

/// Chain of one function.
struct Rig {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    rss: RssHasher,
}

impl Rig {
    fn new(function: &str, flows: &str) -> Rig {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
             slo: {{latency: 1ms}}\n  flows: {{{flows}}}\n  functions: [{{name: it, {function}}}]\n"
        );
        let spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap();
        let rss = spec.rss();
        let pool = BufferPool::new(64, 2048).unwrap();
        Rig {
            chain: ChainBuilder::new(&spec, &rss, 1).unwrap().instance(|_| true),
            batch: Batch::new(&pool, 64),
            pool,
            rss,
        }
    }

    fn send(&mut self, frame: &[u8], now: Nanos) -> bool {
        let hash = parse(frame).map_or(0, |headers| self.rss.hash_headers(&headers));
        assert!(self.batch.push(&mut self.pool, frame, now, hash));
        self.chain.process(&mut self.batch, now);
        let sent = self.batch.len() == 1;
        self.batch.release(&mut self.pool);
        assert_eq!(self.pool.available(), self.pool.capacity(), "a buffer is lost");
        sent
    }

    /// Returns `count` clients whose connections are in one RSS bucket, and so share its slots.
    fn rivals(&self, count: usize) -> Vec<u32> {
        let is_rival = |client: &u32| {
            let headers = parse(&opening(*client)).unwrap();
            bucket_of(self.rss.hash_headers(&headers)) == 7
        };
        (0..1 << 20).filter(is_rival).take(count).collect()
    }

    fn expire(&mut self, now: Nanos) {
        (0..BUCKETS).for_each(|_| self.chain.expire(now));
    }

    fn count(&self, reason: &str) -> u64 {
        let reasons = self.chain.reasons().into_iter();
        let mut counts = reasons.zip(self.chain.reason_counts());
        let found = counts.find(|(known, _)| known.name == reason);
        found.unwrap_or_else(|| panic!("no reason {reason}")).1
    }
}

fn segment(client: u32, sequence: u32, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
    let source = Ipv4Addr::from_bits(0x0a00_0000 + client);
    let server = Ipv4Addr::new(198, 51, 100, 1);
    let key = FlowKey::v4(source, server, protocol::TCP, 40_000, 80);
    let fields = TcpFields {
        sequence,
        flags,
        window: 8000,
        ..TcpFields::default()
    };
    let frame = FrameBuilder::new(&key).tcp(fields).payload(payload);
    frame.to_vec().unwrap()
}

/// First packet of a client's connection.
fn opening(client: u32) -> Vec<u8> {
    segment(client, 99, TcpFlags::SYN, b"")
}

/// All functions with flow state, and the number of slots that a connection takes.
const FUNCTIONS: [(&str, u64); 13] = [
    ("acl: {rules: [{action: allow}]}", 1),
    ("nat: {external: [203.0.113.0/28]}", 2),
    (
        "loadBalancer: {services: [{address: 0.0.0.0/0, port: any, protocol: tcp, backends: [{address: 172.16.0.1}]}]}",
        1,
    ),
    ("accounting: {}", 1),
    ("flowStats: {}", 1),
    ("count: {counters: [{name: all}]}", 1),
    ("urlFilter: {patterns: [bad.example]}", 1),
    (
        "encrypt: {key: 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f}",
        1,
    ),
    ("policer: {limits: [{per: flow, rate: 1Gbps, burst: 100000}]}", 1),
    (
        "tunnel: {cache: flow, rules: [{match: {source: 10.0.0.0/8}, push: {vlan: 100}}]}",
        1,
    ),
    ("firewall: {rules: [allow]}", 1),
    (
        "ids: {rules: ['alert tcp any any -> any any (content:\"bad\"; sid:1;)']}",
        1,
    ),
    (
        "upf: {addresses: [192.0.2.1], cache: flow, default: pass, profiles: {all: {}}, \
         sessions: [1 ue 198.51.100.1 teid 1 peer 192.0.2.10 peerTeid 1 profile all]}",
        1,
    ),
];

/// A full table that refuses: existing flows stay, refused ones are lost and counted, and freed slots are reused.
#[test]
fn a_full_flow_table_refuses_and_recovers() {
    for (function, places) in FUNCTIONS {
        let flows = "capacity: 512, whenFull: refuse, idleTimeout: 60s";
        let mut rig = Rig::new(function, flows);
        let clients = rig.rivals(3 * PLACES as usize);
        let open = |client: &u32| (*client, rig.send(&opening(*client), SECOND));
        let (in_it, refused): (Vec<_>, Vec<_>) = clients.iter().map(open).partition(|(_, passed)| *passed);
        // Hardly a slot is left.
        let count = in_it.len() as u64;
        let fits = PLACES / places * 9 / 10..=PLACES / places;
        assert!(fits.contains(&count), "{function}: {count}");
        let lost = refused.len() as u64;
        assert_eq!(rig.chain.lost(), lost, "{function}");
        let at = ["flow-table-full", "it/flow-table-full"];
        let own = if places > 1 { &at[..] } else { &at[..1] };
        let told: u64 = own.iter().map(|reason| rig.count(reason)).sum();
        assert_eq!(told, lost, "{function}");
        // Existing flows stay: their segments pass again.
        for (client, _) in in_it {
            assert!(rig.send(&opening(client), SECOND), "{function}: {client}");
        }
        // Expired flows make room, for refused clients as well.
        let later = Nanos::from_secs(200);
        rig.expire(later);
        assert_eq!(rig.chain.flows(), 0, "{function}");
        assert!(rig.send(&opening(refused[0].0), later), "{function}");
    }
}

/// A full table that evicts: every new flow is opened, and evictions are counted.
#[test]
fn a_full_flow_table_evicts() {
    for (function, places) in FUNCTIONS {
        let flows = "capacity: 512, whenFull: evict, idleTimeout: 60s";
        let mut rig = Rig::new(function, flows);
        let clients = rig.rivals(3 * PLACES as usize);
        for (i, client) in (0..).zip(&clients) {
            // Time advances, so that the order of arrival is known.
            let now = SECOND + Nanos::from_millis(i);
            assert!(rig.send(&opening(*client), now), "{function}: {client}");
        }
        let flows = rig.chain.flows() as u64;
        let counters = rig.chain.flow_counters().unwrap();
        assert!(flows <= PLACES, "{function}");
        let opened = places * clients.len() as u64;
        assert_eq!(counters.evicted + flows, opened, "{function}: {counters:?}");
        assert_eq!(rig.chain.lost(), 0, "{function}");
    }
}

/// NAT ports: connections with a port keep it, others are lost, and get one when it is free.
#[test]
fn ports_run_out_and_come_back() {
    let mut rig = Rig::new(
        "nat: {external: [203.0.113.1], ports: 1024-1535}",
        "capacity: 16384, idleTimeout: 60s",
    );
    let passed: Vec<bool> = (0..3000).map(|client| rig.send(&opening(client), SECOND)).collect();
    let count = passed.iter().filter(|passed| **passed).count() as u64;
    // One port for each bucket, to one server.
    assert!((400..=512).contains(&count), "{count}");
    assert_eq!(rig.count("it/ports-exhausted"), 3000 - count);
    assert_eq!(rig.chain.lost(), 3000 - count);
    let first = passed.iter().position(|passed| *passed).unwrap() as u32;
    assert!(rig.send(&opening(first), SECOND));
    let later = Nanos::from_secs(200);
    rig.expire(later);
    let refused = passed.iter().position(|passed| !passed).unwrap() as u32;
    assert!(rig.send(&opening(refused), later));
}

/// Firewall handshakes: a flood fills the limit, existing connections continue, and new ones pass after a time.
#[test]
fn handshakes_run_out_and_come_back() {
    let mut rig = Rig::new(
        "firewall: {rules: [allow], halfOpen: {total: 100}, timeouts: {handshake: 5s}}",
        "capacity: 16384",
    );
    let established = opening(1 << 20);
    assert!(rig.send(&established, SECOND));
    let answer = {
        let key = parse(&established).unwrap().key.reversed();
        let fields = TcpFields {
            sequence: 499,
            acknowledgment: 100,
            flags: TcpFlags::SYN | TcpFlags::ACK,
            window: 8000,
            ..TcpFields::default()
        };
        FrameBuilder::new(&key).tcp(fields).to_vec().unwrap()
    };
    assert!(rig.send(&answer, SECOND));
    let acknowledged = |payload: &[u8]| {
        let key = parse(&established).unwrap().key;
        let fields = TcpFields {
            sequence: 100,
            acknowledgment: 500,
            flags: TcpFlags::ACK,
            window: 8000,
            ..TcpFields::default()
        };
        FrameBuilder::new(&key).tcp(fields).payload(payload).to_vec().unwrap()
    };
    assert!(rig.send(&acknowledged(b""), SECOND));
    let passed = (0..1000).filter(|client| rig.send(&opening(*client), SECOND)).count();
    assert_eq!(passed, 100);
    assert_eq!(rig.count("it/half-open-limit"), 900);
    assert_eq!(rig.chain.lost(), 900);
    assert!(rig.send(&acknowledged(b"data"), SECOND), "one that is there");
    let later = Nanos::from_secs(30);
    rig.expire(later);
    assert!(rig.send(&opening(2000), later));
}

/// Buffers for requests in segments: streams without a buffer pass or are dropped, as configured, and are counted.
/// Buffers of silent streams are reused.
#[test]
fn buffers_of_streams_run_out_and_come_back() {
    for (fate, passes) in [("pass", true), ("drop", false)] {
        let mut rig = Rig::new(
            &format!("urlFilter: {{patterns: [bad.example], streams: 8, onOverflow: {fate}}}"),
            "capacity: 16384",
        );
        // Each client begins a request and does not end it.
        let begin = b"GET / HTTP/1.1\r\nHost: bad.exa";
        let mut refused = Vec::new();
        for client in 0..100 {
            assert!(rig.send(&opening(client), SECOND));
            if !rig.send(&segment(client, 100, TcpFlags::ACK, begin), SECOND) {
                refused.push(client);
            }
        }
        // A worker takes buffers several at a time, but never more than exist.
        let (dropped, passed) = (rig.count("it/overflow"), rig.count("it/overflow-passed"));
        assert!(dropped + passed >= 92, "{fate}: {dropped} {passed}");
        assert_eq!((passed > 0, dropped > 0), (passes, !passes), "{fate}");
        assert_eq!(refused.len() as u64, dropped, "{fate}");
        // After a long silence of the others, there is room: the request is detected across its segments, and blocked.
        let later = Nanos::from_secs(60);
        let client = 500;
        assert!(rig.send(&opening(client), later));
        assert!(rig.send(&segment(client, 100, TcpFlags::ACK, begin), later));
        let rest = segment(client, 100 + begin.len() as u32, TcpFlags::ACK, b"mple\r\n\r\n");
        assert!(!rig.send(&rest, later), "{fate}");
        assert_eq!(rig.count("it/url-blocked"), 1, "{fate}");
    }
}

/// Stream memory of an IDS: connections without memory pass or are dropped, as configured, and are counted. Those with
/// memory are inspected. There is room again when others have ended or were silent for long.
#[test]
fn memory_for_streams_runs_out_and_comes_back() {
    const RULE: &str = "drop tcp any any -> any any (content:\"attack\"; flow:to_server; sid:1;)";
    for (fate, passes) in [("pass", true), ("drop", false)] {
        let mut rig = Rig::new(
            &format!("ids: {{rules: ['{RULE}'], mode: drop, streams: 8, onOverflow: {fate}}}"),
            "capacity: 16384, idleTimeout: 100s",
        );
        let passed: Vec<u32> = (0..100)
            .filter(|client| {
                assert!(rig.send(&opening(*client), SECOND));
                rig.send(&segment(*client, 100, TcpFlags::ACK, b"att"), SECOND)
            })
            .collect();
        assert_eq!(rig.count("it/no-room"), 92, "{fate}");
        assert_eq!(rig.count("it/overflow"), 100 - passed.len() as u64);
        assert_eq!(passed.len(), if passes { 100 } else { 8 }, "{fate}");
        // A connection with memory still has the beginning of its stream.
        let rest = |client| segment(client, 103, TcpFlags::ACK, b"ack");
        assert!(!rig.send(&rest(0), SECOND), "{fate}");
        assert_eq!(rig.count("it/dropped"), 1, "{fate}");
        // A connection that is reset frees its memory for the next.
        let reset = segment(1, 103, TcpFlags::RST, b"");
        assert!(rig.send(&reset, SECOND), "{fate}");
        let attack = |client| segment(client, 100, TcpFlags::ACK, b"attack");
        assert!(rig.send(&opening(200), SECOND), "{fate}");
        assert!(!rig.send(&attack(200), SECOND), "{fate}");
        assert_eq!(rig.count("it/dropped"), 2, "{fate}");
        // So do silent connections, and those that expire in the flow table.
        for (client, later) in [(300, 20), (400, 500)] {
            let later = Nanos::from_secs(later);
            rig.expire(later);
            assert!(rig.send(&opening(client), later), "{fate}");
            assert!(!rig.send(&attack(client), later), "{fate}");
        }
        assert_eq!(rig.count("it/dropped"), 4, "{fate}");
        assert_eq!(rig.count("it/no-room"), 92, "{fate}");
    }
}

/// Sessions of a user plane: one more than fit is refused and reported, existing users continue, and one that leaves
/// makes room.
#[test]
fn sessions_run_out_and_come_back() {
    let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\nspec:\n  slo: {latency: 1ms}\n  \
         functions: [{name: it, upf: {addresses: [192.0.2.1], capacity: 64, profiles: {all: {}}, \
         sessions: [1 ue 10.0.0.1 teid 1 peer 192.0.2.10 peerTeid 1 profile all]}}]\n";
    let spec = ChainSpec::parse(text, "test", Path::new(".")).unwrap();
    let rss = spec.rss();
    let mut builder = ChainBuilder::new(&spec, &rss, 1).unwrap();
    let table = builder.table::<UpfTable>("it").unwrap();
    let pool = BufferPool::new(64, 2048).unwrap();
    let mut rig = Rig {
        chain: builder.instance(|_| true),
        batch: Batch::new(&pool, 64),
        pool,
        rss,
    };
    let session = |number: u32| Session {
        id: number.into(),
        address: Some(Ipv4Addr::from_bits(0x0a00_0000 + number)),
        prefix: None,
        teid: number,
        tunnel: Some(Tunnel {
            peer: [192, 0, 2, 10].into(),
            teid: number,
        }),
        profile: 0,
    };
    let mut to = |user: u32| {
        let user = Ipv4Addr::from_bits(0x0a00_0000 + user);
        let server = Ipv4Addr::new(198, 51, 100, 1);
        let key = FlowKey::v4(server, user, protocol::UDP, 53, 4000);
        rig.send(&FrameBuilder::new(&key).to_vec().unwrap(), SECOND)
    };
    for number in 2..=64 {
        table.set(&session(number), Owner::Api).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(table.set(&session(65), Owner::Api), Err(SessionError::Full(64)));
        assert_eq!(table.sessions(), 64);
        assert!(!to(65));
    }
    assert!((1..=64).all(&mut to), "users who are there");
    // An existing session can change although the table is full.
    table.set(&session(64), Owner::Api).unwrap();
    assert!(table.remove(7).is_some());
    assert!(!to(7));
    table.set(&session(65), Owner::Api).unwrap();
    assert!(to(65) && to(64) && !to(7));
    assert_eq!(rig.count("it/unknown-user"), 5);
    assert_eq!(rig.chain.lost(), 0);
}
