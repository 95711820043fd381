//! Flows that move from one instance of a chain to the next, which has no state but the store's: as after a crash, or
//! when another server takes over.

mod rig;

use proptest::prelude::*;
use rig::{Instance, Map, spec};
use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::{RssHasher, bucket_of};
use tailwater_net::{FlowKey, Nanos, protocol};

const SECOND: Nanos = Nanos::from_secs(1);

fn host(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

fn remote(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100, n)
}

fn frame(key: &FlowKey, payload: u32) -> Vec<u8> {
    let builder = FrameBuilder::new(key);
    builder.payload(&payload.to_be_bytes()).to_vec().unwrap()
}

fn key_of(frame: &[u8]) -> FlowKey {
    parse(frame).unwrap().key
}

/// Event of connections behind a NAT.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A packet of a connection.
    Out(u8),
    /// A packet of the return direction, if the connection was ever translated.
    Back(u8),
    /// The instance crashes, and another one takes over.
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..120).prop_map(Step::Out),
        3 => (0u8..120).prop_map(Step::Back),
        1 => Just(Step::Crash),
    ]
}

/// Connections of hosts to two remote ends. At each of them all compete for 1,024 ports, two per RSS bucket.
fn connection(n: u8) -> FlowKey {
    let port = 4000 + 257 * u16::from(n);
    FlowKey::v4(host(n % 16), remote(n % 2), protocol::UDP, port, 53)
}

/// Runs the steps with one store for all instances, or with an empty one for each. Returns the first violation.
fn translate(steps: &[Step], shared: bool) -> Result<(), String> {
    const NAT: &str = "nat: {external: [203.0.113.1], ports: 1024-2047}";
    let spec = spec(NAT, "");
    let mut map = Arc::new(Map::default());
    let mut instance = Instance::new(&spec, &map, SECOND);
    let mut bound: HashMap<u8, FlowKey> = HashMap::new();
    for (i, step) in steps.iter().enumerate() {
        let now = SECOND + Nanos::from_millis(i as u64);
        match *step {
            Step::Crash => {
                if !shared {
                    map = Arc::new(Map::default());
                }
                let next = Instance::new(&spec, &map, SECOND);
                std::mem::replace(&mut instance, next).end(now);
            }
            Step::Out(n) => {
                let exhausted = instance.count("nat/ports-exhausted");
                instance.turn(&[frame(&connection(n), i as u32)], now);
                instance.settle(now);
                let sent = instance.take_sent();
                let Some(sent) = sent.first() else {
                    if bound.contains_key(&n) {
                        return Err(format!("step {i}: connection {n} is stuck"));
                    }
                    if instance.count("nat/ports-exhausted") == exhausted {
                        return Err(format!("step {i}: a packet is lost without a reason"));
                    }
                    continue;
                };
                let outside = key_of(sent);
                let known = *bound.entry(n).or_insert(outside);
                if known != outside {
                    return Err(format!("step {i}: {n} was {known:?}, now {outside:?}"));
                }
                if let Some((other, _)) = bound.iter().find(|(m, key)| **m != n && **key == outside) {
                    return Err(format!("step {i}: {n} and {other} are both {outside:?}"));
                }
            }
            Step::Back(n) => {
                let Some(outside) = bound.get(&n) else {
                    continue;
                };
                instance.turn(&[frame(&outside.reversed(), i as u32)], now);
                instance.settle(now);
                let inside: Vec<FlowKey> = instance.take_sent().iter().map(|f| key_of(f)).collect();
                if inside != [connection(n).reversed()] {
                    return Err(format!("step {i}: back to {n} went {inside:?}"));
                }
            }
        }
    }
    instance.end(SECOND);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    /// A binding survives, whichever direction reaches the next instance first. Its port is not assigned to another
    /// connection, even before the next instance has seen this one.
    #[test]
    fn nat_bindings_outlive_instances(steps in prop::collection::vec(step(), 1..150)) {
        let wrong = translate(&steps, true);
        prop_assert!(wrong.is_ok(), "{}", wrong.unwrap_err());
    }
}

/// Control: without a shared store the same steps fail.
#[test]
fn without_a_store_bindings_are_lost() {
    let all = |step: fn(u8) -> Step| (0..60).map(step);
    let mut back: Vec<Step> = all(Step::Out).collect();
    back.push(Step::Crash);
    back.extend(all(Step::Back));
    assert_eq!(translate(&back, true), Ok(()));
    assert!(translate(&back, false).unwrap_err().contains("went []"));
    // Later connections reach the next instance first, and find ports that seem to be free.
    let mut reversed: Vec<Step> = (0..100).map(Step::Out).collect();
    reversed.push(Step::Crash);
    reversed.extend((0..200).rev().map(Step::Out));
    assert_eq!(translate(&reversed, true), Ok(()));
    assert!(translate(&reversed, false).is_err());
}

fn udp(n: u8) -> FlowKey {
    FlowKey::v4(host(n), remote(1), protocol::UDP, 5000, 7)
}

#[test]
fn accounting_goes_on_counting() {
    let folder = std::env::temp_dir().join(format!("tailwater-instances-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let map = Arc::new(Map::default());
    let file = |n: u64| folder.join(format!("{n}.csv"));
    for n in 0..3 {
        let functions = format!("accounting: {{export: {{file: {}}}}}", file(n).display());
        // Each run begins ten seconds after the previous one.
        let origin = SECOND + Nanos::from_secs(10 * n);
        let mut instance = Instance::new(&spec(&functions, ""), &map, origin);
        for i in 0..5 {
            let now = Nanos::from_millis(100 * i);
            let frames: Vec<_> = (0..20).map(|flow| frame(&udp(flow), 0)).collect();
            instance.turn(&frames, now);
            instance.settle(now);
            assert_eq!(instance.take_sent(), frames);
        }
        if n < 2 {
            instance.end(SECOND);
        } else {
            let counters = instance.finish(SECOND);
            assert_eq!((counters.reads, counters.hits), (20, 20));
        }
    }
    assert!(
        !std::fs::read_to_string(file(0)).unwrap().contains("10.0.0."),
        "it crashed"
    );
    let records = std::fs::read_to_string(file(2)).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let length = frame(&udp(0), 0).len();
    let mut flows = 0;
    for record in records.lines().skip(1) {
        let fields: Vec<&str> = record.split(',').collect();
        // 15 packets: the first of them 20 seconds before the last run began, the last in its first half second.
        let bytes = (15 * length).to_string();
        assert_eq!(fields[6..8], ["15", &bytes], "{record}");
        assert_eq!(fields[9..], ["-20000000", "400000"], "{record}");
        flows += 1;
    }
    assert_eq!(flows, 20);
}

#[test]
fn balanced_flows_stay_with_their_backends() {
    let chain = |backends: &[u8]| {
        let list: Vec<String> = backends.iter().map(|n| format!("{{address: 172.16.0.{n}}}")).collect();
        let functions = format!(
            "loadBalancer: {{services: [{{address: 198.51.100.1, port: any, protocol: udp, backends: [{}]}}]}}",
            list.join(", ")
        );
        spec(&functions, "")
    };
    let backends = |map: &Arc<Map>, of: &[u8]| -> Vec<FlowKey> {
        let mut instance = Instance::new(&chain(of), map, SECOND);
        let frames: Vec<_> = (0..30).map(|flow| frame(&udp(flow), 0)).collect();
        instance.turn(&frames, SECOND);
        instance.settle(SECOND);
        let sent: BTreeMap<_, _> = instance
            .take_sent()
            .iter()
            .map(|f| (key_of(f).source(), key_of(f)))
            .collect();
        instance.end(SECOND);
        assert_eq!(sent.len(), 30);
        sent.into_values().collect()
    };
    let map = Arc::new(Map::default());
    let first = backends(&map, &[1, 2, 3]);
    // Other backends in front, and in another order: indexes in the state would refer to others.
    assert_eq!(backends(&map, &[9, 8, 3, 2, 1, 7]), first);
    assert_ne!(backends(&Arc::default(), &[9, 8, 3, 2, 1, 7]), first);
    // Flows of a removed backend move to another one, and all others stay.
    let fewer = backends(&map, &[2, 3]);
    let gone = Ipv4Addr::new(172, 16, 0, 1);
    for (before, after) in first.iter().zip(&fewer) {
        assert_ne!(after.destination(), gone);
        assert!(before == after || before.destination() == gone);
    }
}

#[test]
fn what_ends_is_forgotten_and_what_the_store_forgot_is_written_again() {
    let map = Arc::new(Map::default());
    let spec = spec("nat: {external: [203.0.113.1]}}, {accounting: {}", "");
    let mut instance = Instance::new(&spec, &map, SECOND);
    let frames: Vec<_> = (0..25).map(|n| frame(&udp(n), 0)).collect();
    instance.turn(&frames, SECOND);
    instance.settle(SECOND);
    // Two functions' state of each flow, and the return direction's translation.
    assert_eq!(map.len(), 75);
    assert_eq!(*map.values.lock().unwrap(), instance.durable());
    map.forget();
    // One flow reveals the loss to the instance, which then writes all of them.
    instance.turn(&frames[..1], SECOND);
    instance.settle(SECOND);
    (0..2000).for_each(|_| instance.turn(&[], SECOND));
    instance.settle(SECOND);
    assert_eq!(*map.values.lock().unwrap(), instance.durable());
    assert_eq!(map.len(), 75);
    let later = Nanos::from_secs(1000);
    (0..1000).for_each(|_| instance.turn(&[], later));
    instance.settle(later);
    assert_eq!(instance.chain.flows(), 0);
    assert_eq!(map.len(), 0);
    let counters = instance.end(later);
    assert_eq!(counters.forgotten, 50);
}

/// Regression: their deletion waited for room while the store was away, and would have followed their new beginning.
#[test]
fn flows_that_are_back_before_their_end_was_told_are_not_forgotten() {
    let map = Arc::new(Map::default());
    let spec = spec("accounting: {}", ", whenUnavailable: pass, wait: 1ms");
    let mut instance = Instance::new(&spec, &map, SECOND);
    let keys: Vec<_> = (0..20).map(udp).collect();
    let frames: Vec<_> = keys.iter().map(|key| frame(key, 0)).collect();
    instance.turn(&frames, SECOND);
    instance.settle(SECOND);
    assert_eq!(map.len(), 20);
    // The store is unavailable until less than half of the link's room is left.
    map.away.store(true, Ordering::Relaxed);
    let later = Nanos::from_secs(200);
    let others = (0..tailwater_state::keeper::entries(spec.state.as_ref().unwrap()) / 2 + 100)
        .map(|n| FlowKey::v4(host(n as u8), remote((n >> 8) as u8), 17, 7, 9));
    for other in others {
        instance.turn(&[frame(&other, 0)], SECOND);
    }
    (0..1000).for_each(|_| instance.turn(&[], later));
    instance.turn(&frames, later);
    map.away.store(false, Ordering::Relaxed);
    instance.settle(later);
    (0..2000).for_each(|_| instance.turn(&[], later));
    instance.settle(later);
    let values = map.values.lock().unwrap();
    for key in &keys {
        assert!(values.keys().any(|(_, kept)| kept == key), "{key}");
    }
}

/// Regression: their bucket would have moved to another worker before the store was updated.
#[test]
fn flows_that_were_never_written_for_want_of_room_end_under_their_buckets() {
    let map = Arc::new(Map::default());
    map.away.store(true, Ordering::Relaxed);
    let functions = "accounting: {}";
    let spec = spec(functions, ", whenUnavailable: pass, wait: 1ms, packets: 256");
    let mut instance = Instance::new(&spec, &map, SECOND);
    let rss = RssHasher::default();
    let bucket = |key: &FlowKey| bucket_of(rss.hash_headers(&parse(&frame(key, 0)).unwrap()));
    let keys: Vec<_> = (1..=10).map(udp).filter(|key| bucket(key) != 0).collect();
    let buckets: Vec<_> = keys.iter().map(bucket).collect();
    assert!(keys.len() > 5);
    // Flows of other buckets fill the link: each has an update in every request.
    let others: Vec<_> = (0..600)
        .map(|n| FlowKey::v4(host(n as u8), remote((n >> 8) as u8), 17, 7, 9))
        .filter(|key| bucket(key) != 0 && !buckets.contains(&bucket(key)))
        .take(300)
        .map(|key| frame(&key, 0))
        .collect();
    for _ in 0..20 {
        let turns = others.chunks(30);
        turns.for_each(|frames| instance.turn(frames, SECOND));
    }
    let frames: Vec<_> = keys.iter().map(|key| frame(key, 0)).collect();
    instance.turn(&frames, SECOND);
    let later = Nanos::from_secs(200);
    (0..1000).for_each(|_| instance.turn(&[], later));
    assert_eq!(instance.chain.flows(), 0);
    for bucket in &buckets {
        assert!(instance.chain.has_ended(*bucket), "{bucket}");
    }
    map.away.store(false, Ordering::Relaxed);
    instance.settle(later);
    (0..100).for_each(|_| instance.turn(&[], later));
    for bucket in &buckets {
        assert!(!instance.chain.has_ended(*bucket), "{bucket}");
    }
    let counters = instance.end(later);
    assert!(counters.missed >= keys.len() as u64, "{counters:?}");
}

/// Event of an instance whose store comes and goes.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Packets(u8, u8),
    Away(bool),
    Forget,
    Pause(u64),
    /// Turns without packets.
    Idle(u8),
}

/// Returns `true` if no packet has overtaken another one of its flow.
fn are_in_order(sent: &[Vec<u8>]) -> bool {
    let mut last: HashMap<FlowKey, u32> = HashMap::new();
    sent.iter().all(|frame| {
        let headers = parse(frame).unwrap();
        let at = usize::from(headers.payload_offset);
        let number = u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        last.insert(headers.key, number) < Some(number)
    })
}

fn trouble() -> impl Strategy<Value = Trouble> {
    prop_oneof![
        8 => (0u8..40, 1u8..32).prop_map(|(flow, count)| Trouble::Packets(flow, count)),
        2 => any::<bool>().prop_map(Trouble::Away),
        1 => Just(Trouble::Forget),
        2 => (0u64..4_000).prop_map(Trouble::Pause),
        3 => (1u8..50).prop_map(Trouble::Idle),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    /// Every packet is sent or counted, flows keep their order, and no buffer leaks. Once the store is back, it has the
    /// same state as the instance.
    #[test]
    fn a_store_that_comes_and_goes(
        then in prop_oneof![Just("hold"), Just("pass"), Just("drop")],
        troubles in prop::collection::vec(trouble(), 1..80),
    ) {
        let map = Arc::new(Map::default());
        let text = format!(", whenUnavailable: {then}, packets: 256, wait: 1ms");
        let spec = spec("accounting: {}", &text);
        let mut instance = Instance::new(&spec, &map, SECOND);
        let free = instance.free();
        let (mut now, mut offered) = (SECOND, 0u32);
        for trouble in troubles {
            match trouble {
                Trouble::Packets(flow, count) => {
                    let frames: Vec<_> = (0..count)
                        .map(|n| {
                            offered += 1;
                            frame(&udp((flow + n % 5) % 40), offered)
                        })
                        .collect();
                    instance.turn(&frames, now);
                }
                Trouble::Away(away) => map.away.store(away, Ordering::Relaxed),
                Trouble::Forget => map.forget(),
                Trouble::Pause(micros) => now += Nanos::from_micros(micros),
                Trouble::Idle(turns) => (0..turns).for_each(|_| {
                    instance.turn(&[], now);
                    std::thread::yield_now();
                }),
            }
        }
        map.away.store(false, Ordering::Relaxed);
        instance.settle(now);
        // The last deletion is acknowledged with the next answer.
        for _ in 0..2 {
            offered += 1;
            instance.turn(&[frame(&udp(50), offered)], now);
            instance.settle(now);
            (0..2000).for_each(|_| instance.turn(&[], now));
            instance.settle(now);
        }
        let sent = instance.take_sent();
        prop_assert!(are_in_order(&sent));
        prop_assert_eq!(sent.len() as u64 + instance.count("state-unavailable"), u64::from(offered));
        if then == "pass" {
            prop_assert_eq!(sent.len(), offered as usize);
        }
        prop_assert_eq!(instance.free(), free);
        let here = instance.durable();
        prop_assert_eq!(&*map.values.lock().unwrap(), &here);
        let counters = instance.end(now);
        prop_assert!(counters.dropped <= u64::from(offered) - sent.len() as u64);
        prop_assert_eq!(counters.dropped + sent.len() as u64, u64::from(offered));
    }
}

/// Event of an instance that lends buckets to an auxiliary core.
#[derive(Clone, Copy, Debug)]
enum Lending {
    /// A packet, and others of the four flows behind.
    Packets(u8, u8),
    /// The bucket of a flow is lent, or taken back, if it is free.
    Move(u8),
    Store(Trouble),
    /// All flows end that have no packets for longer than their timeout; those on the auxiliary core if it has a packet
    /// of their bucket.
    Late,
}

fn lending() -> impl Strategy<Value = Lending> {
    prop_oneof![
        8 => (0u8..40, 1u8..16).prop_map(|(flow, count)| Lending::Packets(flow, count)),
        8 => (0u8..40).prop_map(Lending::Move),
        6 => trouble().prop_map(Lending::Store),
        1 => Just(Lending::Late),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    /// Buckets are lent and taken back whenever the client that has them is free of them. Every packet is sent or
    /// counted, flows keep their order, and the store has the same state as the flow table in the end.
    #[test]
    fn buckets_that_are_lent_while_a_store_comes_and_goes(
        then in prop_oneof![Just("hold"), Just("pass"), Just("drop")],
        events in prop::collection::vec(lending(), 1..120),
    ) {
        let map = Arc::new(Map::default());
        let text = format!(", whenUnavailable: {then}, packets: 256, wait: 1ms");
        let spec = spec("accounting: {}", &text);
        let home = Instance::new(&spec, &map, SECOND);
        // SAFETY: buckets are lent below before packets come, and taken back once the keeper is free of them.
        let auxiliary = unsafe { home.auxiliary(&spec, &map, SECOND) };
        let free = home.free() + auxiliary.free();
        let mut cores = [home, auxiliary];
        let mut lent = [false; 512];
        let bucket = |flow: u8| bucket_of(RssHasher::default().hash_headers(&parse(&frame(&udp(flow), 0)).unwrap()));
        let (mut now, mut offered) = (SECOND, 0u32);
        for event in events {
            match event {
                Lending::Packets(flow, count) | Lending::Store(Trouble::Packets(flow, count)) => {
                    let mut frames = [Vec::new(), Vec::new()];
                    for n in 0..count {
                        offered += 1;
                        let flow = (flow + n % 5) % 40;
                        frames[usize::from(lent[usize::from(bucket(flow))])].push(frame(&udp(flow), offered));
                    }
                    for (core, frames) in cores.iter_mut().zip(&frames) {
                        core.turn(frames, now);
                    }
                }
                Lending::Move(flow) => {
                    let [home, auxiliary] = &mut cores;
                    let bucket = bucket(flow);
                    let is_lent = &mut lent[usize::from(bucket)];
                    let from = if *is_lent { &mut *auxiliary } else { &mut *home };
                    if from.keeper.as_ref().unwrap().is_free_of(&from.chain, bucket) {
                        match *is_lent {
                            true => home.chain.take_back(bucket),
                            false => home.chain.lend(bucket),
                        }
                        *is_lent = !*is_lent;
                    }
                }
                Lending::Store(Trouble::Away(away)) => map.away.store(away, Ordering::Relaxed),
                Lending::Store(Trouble::Forget) => map.forget(),
                Lending::Store(Trouble::Pause(micros)) => now += Nanos::from_micros(micros),
                Lending::Store(Trouble::Idle(turns)) => (0..turns).for_each(|_| {
                    cores.iter_mut().for_each(|core| core.turn(&[], now));
                    std::thread::yield_now();
                }),
                Lending::Late => {
                    now += Nanos::from_secs(400);
                    for bucket in (0..512).filter(|bucket| lent[usize::from(*bucket)]) {
                        cores[1].chain.expire_lent(bucket, now);
                    }
                    (0..20).for_each(|_| cores.iter_mut().for_each(|core| core.turn(&[], now)));
                }
            }
        }
        map.away.store(false, Ordering::Relaxed);
        cores.iter_mut().for_each(|core| core.settle(now));
        let [mut home, auxiliary] = cores;
        for bucket in (0..512).filter(|bucket| lent[usize::from(*bucket)]) {
            prop_assert!(auxiliary.keeper.as_ref().unwrap().is_free_of(&auxiliary.chain, bucket));
            home.chain.take_back(bucket);
        }
        // The last deletion is acknowledged with the next answer.
        for _ in 0..2 {
            offered += 1;
            home.turn(&[frame(&udp(50), offered)], now);
            home.settle(now);
            (0..2000).for_each(|_| home.turn(&[], now));
            home.settle(now);
        }
        let mut sent = home.take_sent();
        let lost = home.count("state-unavailable") + auxiliary.count("state-unavailable");
        prop_assert_eq!(home.free() + auxiliary.free(), free);
        let mut auxiliary = auxiliary;
        for sent in [&sent, &auxiliary.sent] {
            prop_assert!(are_in_order(sent));
        }
        sent.extend(auxiliary.take_sent());
        prop_assert_eq!(sent.len() as u64 + lost, u64::from(offered));
        let here = home.durable();
        prop_assert_eq!(&*map.values.lock().unwrap(), &here);
        let (home, auxiliary) = (home.end(now), auxiliary.end(now));
        prop_assert_eq!(home.dropped + auxiliary.dropped + sent.len() as u64, u64::from(offered));
    }
}

/// The worker's side allocates nothing, even for new flows and changes.
#[test]
fn turns_allocate_nothing() {
    let map = Arc::new(Map::default());
    let functions = "nat: {external: [203.0.113.1]}}, {accounting: {}";
    let mut instance = Instance::new(&spec(functions, ", wait: 10s"), &map, SECOND);
    let frames = |turn: usize| -> Vec<Vec<u8>> {
        let key = |n| FlowKey::v4(host(n), remote(n % 7), protocol::UDP, (turn / 2) as u16, 53);
        (0..16).map(|n| frame(&key(n), 0)).collect()
    };
    // Warm-up of both sides.
    for turn in 0..40 {
        instance.turn(&frames(turn), SECOND);
        instance.settle(SECOND);
    }
    let all: Vec<Vec<Vec<u8>>> = (40..140).map(frames).collect();
    let mut allocated = 0;
    instance.discard = true;
    for frames in &all {
        allocated += allocation_counter::measure(|| {
            instance.turn(frames, SECOND);
            for _ in 0..100 {
                instance.turn(&[], SECOND);
                std::thread::yield_now();
            }
        })
        .count_total;
    }
    instance.settle(SECOND);
    assert!(instance.keeper.as_ref().unwrap().is_quiet());
    assert_eq!(allocated, 0);
    let counters = instance.end(SECOND);
    assert!(counters.reads > 800 && counters.updates > 3000, "{counters:?}");
}
