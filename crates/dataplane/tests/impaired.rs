//! Links that lose, repeat, delay, reorder and damage packets: no panic, every packet is accounted for, and packets are
//! sent in the order in which they arrived.

mod common;

use common::mappers::{random_buckets, random_flows};
use common::traffic::{Traffic, order};
use common::{BALANCER, Setup, run_only};
use proptest::prelude::*;
use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Outcome;
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::parse::{Network, parse};
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos};
use tailwater_traffic::generate::{Aggregate, Preset, preset};
use tailwater_traffic::impair::{Impaired, Impairments};
use tailwater_traffic::{LoadOptions, PacketSource, Trace};

/// Handshakes, requests, TLS: traffic for every function.
static TRAFFIC: LazyLock<Trace> = LazyLock::new(|| {
    let Ok(Preset::Aggregate { mut config, .. }) = preset("backbone") else {
        panic!("a preset");
    };
    (config.duration, config.warm_up) = (Nanos::from_millis(3), Nanos::from_millis(200));
    let mut source = Aggregate::new(config, "backbone").unwrap();
    Trace::load(&mut source, &LoadOptions::default()).unwrap()
});

const ACL: &str = "{acl: {default: allow, rules: [{action: deny, protocol: udp, destinationPorts: 53}]}}";
const FILTER: &str = "{urlFilter: {patterns: ['blocked.example'], streams: 64}}";
const ENCRYPT: &str = "{encrypt: {mtu: 9000, midstream: encrypt, otherProtocols: pass, \
                       key: 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f}}";
const ROUTER: &str = "{ipForward: {default: hop, nextHops: [{name: hop, mac: '02:00:00:00:01:00'}], \
                      sourceMac: '02:00:00:00:00:01'}}";

fn chains() -> Vec<String> {
    let balancer = format!("{{{BALANCER}}}");
    let nat = "{nat: {external: [203.0.113.0/28], internal: [0.0.0.0/1]}}";
    let tunnel = "{tunnel: {rules: [{push: {vlan: 100}}]}}";
    [
        "{forward: {}}".to_owned(),
        format!("{ACL}, {nat}, {{accounting: {{}}}}"),
        format!("{FILTER}, {ENCRYPT}"),
        format!("{balancer}, {ACL}, {tunnel}"),
        format!("{{accounting: {{}}}}, {ROUTER}, {FILTER}, {nat}, {ENCRYPT}"),
    ]
    .into()
}

fn impairments() -> impl Strategy<Value = Impairments> {
    let probability = || prop_oneof![Just(0.0), 0.0..0.3];
    let five = [(); 5].map(|()| probability());
    (any::<u64>(), five, 0u64..3_000_000).prop_map(|(seed, [lose, repeat, overtake, stall, damage], delay)| {
        Impairments {
            seed,
            lose,
            repeat,
            overtake,
            stall,
            damage,
            delay_max: Nanos(delay),
        }
    })
}

/// Flow of a packet, if it has one.
fn flow(frame: &[u8]) -> Option<FlowKey> {
    let headers = parse(frame).ok()?;
    (headers.network != Network::NotIp).then_some(headers.key)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn chains_bear_whatever_a_link_does(
        chain in prop::sample::select(chains()),
        impairments in impairments(),
        batch_size in 1usize..=MAX_BATCH,
    ) {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
             slo: {{latency: 1ms}}\n  flows: {{capacity: 512}}\n  functions: [{chain}]\n"
        );
        let spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap();
        let rss = RssHasher::default();
        let mut builder = ChainBuilder::new(&spec, &rss, 1).unwrap();
        let mut chain = builder.instance(|_| true);
        let mut pool = BufferPool::new(MAX_BATCH as u32, 2048).unwrap();
        let mut batch = Batch::new(&pool, batch_size);
        let mut source = Impaired::new(TRAFFIC.source(), impairments).unwrap();
        // Each packet's arrival time serves as its number.
        let (mut flows, mut last): (Vec<Option<FlowKey>>, HashMap<FlowKey, u64>) = Default::default();
        let (mut sent, mut more) = (0, true);
        while more {
            let mut now = Nanos::ZERO;
            while batch.len() < batch_size {
                let Some(packet) = source.next_packet().unwrap() else {
                    more = false;
                    break;
                };
                let key = flow(packet.data);
                let hash = key.map_or(0, |key| rss.hash(&key));
                now = packet.timestamp;
                prop_assert!(batch.push(&mut pool, packet.data, Nanos(flows.len() as u64), hash));
                flows.push(key);
            }
            chain.process(&mut batch, now);
            chain.expire(now);
            for i in 0..batch.len() {
                let number = batch.packet(i).arrival.0;
                if let Some(key) = flows[number as usize] {
                    let before = last.insert(key, number);
                    prop_assert!(before < Some(number), "{key}: {number} after {before:?}");
                    prop_assert!(flow(batch.frame(i)).is_some(), "what was well-formed is so still");
                }
            }
            sent += batch.len() as u64;
            batch.release(&mut pool);
            prop_assert_eq!(pool.available(), MAX_BATCH, "every buffer came back");
        }
        let done = source.done();
        prop_assert_eq!(flows.len() as u64, done.read - done.lost + done.repeated);
        let gone: u64 = chain
            .reasons()
            .iter()
            .zip(chain.reason_counts())
            .filter(|(reason, _)| reason.outcome != Outcome::Passed)
            .map(|(_, count)| count)
            .sum();
        prop_assert_eq!(sent + gone, flows.len() as u64);
        chain.drain();
    }
}

/// Impairments for tests of whole runs, without additional loss.
const BAD: Impairments = Impairments {
    seed: 5,
    lose: 0.02,
    repeat: 0.02,
    overtake: 0.1,
    stall: 0.001,
    damage: 0.0,
    delay_max: Nanos::from_millis(2),
};

fn bad(impairments: Impairments) -> Setup {
    Setup {
        traffic: Traffic {
            packets: 20_000,
            impairments,
            ..Traffic::default()
        },
        ..Setup::default()
    }
}

/// Every packet that arrived is sent, in order of arrival within each flow, however often flows move between cores.
fn sent_as_it_arrived(setup: Setup, functions: &str) {
    let trace = setup.traffic.trace();
    let arrived: Vec<Vec<u8>> = (0..trace.len()).map(|i| trace.packet(i).to_vec()).collect();
    let expected = order(&arrived);
    let reordered = expected.values().filter(|numbers| !numbers.is_sorted());
    assert!(reordered.count() > 100, "the link did reorder");
    let outcome = run_only(functions, setup);
    assert_eq!(outcome.report().packets.delivered, trace.len() as u64);
    for (flow, numbers) in order(&outcome.frames) {
        assert_eq!(numbers, expected[&flow], "flow {flow}");
    }
}

#[test]
fn one_core_sends_what_arrived_as_it_arrived() {
    sent_as_it_arrived(bad(BAD), "accounting: {}");
}

#[test]
fn so_do_cores_that_hand_flows_to_each_other() {
    let setup = Setup {
        scaling: Some(random_flows(3, 2, Mode::Sleep)),
        ..bad(BAD)
    };
    sent_as_it_arrived(setup, "accounting: {}");
}

#[test]
fn and_cores_between_which_buckets_move() {
    let (server, _) = random_buckets(4, Nanos::from_millis(1));
    let setup = Setup {
        workers: 2,
        reta_delay: Nanos::from_micros(300),
        server: Some(server),
        ..bad(BAD)
    };
    sent_as_it_arrived(setup, "accounting: {}");
}

/// Damaged packets may have any content, so the test only checks that each is accounted for.
#[test]
fn damaged_packets_are_accounted_for() {
    let setup = Setup {
        scaling: Some(random_flows(9, 2, Mode::Sleep)),
        ..bad(Impairments { damage: 0.3, ..BAD })
    };
    let offered = setup.traffic.trace().len() as u64;
    let outcome = run_only(&format!("{{{BALANCER}}}, {ACL}, {FILTER}, {ENCRYPT}"), setup);
    let packets = &outcome.report().packets;
    assert_eq!(packets.offered, offered);
    assert_eq!(
        packets.offered,
        packets.delivered + packets.dropped_by_nf + packets.lost
    );
    assert_eq!(outcome.frames.len() as u64, packets.delivered);
    assert!(packets.dropped_by_nf > offered / 100, "{packets:?}");
}
