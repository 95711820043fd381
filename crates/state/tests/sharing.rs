//! Instances of a chain that run at the same time and share one store. Any of them may get a packet of any flow, as
//! when flows move between servers, and even at the same time, as while a switch changes its rules.

mod rig;
#[cfg(feature = "redis")]
mod server;

use proptest::prelude::*;
use rig::{Instance, Map, spec};
use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_state::link::{Failure, Store};
use tailwater_state::request::Request;

const SECOND: Nanos = Nanos::from_secs(1);
const INSTANCES: usize = 3;
const FLOWS: u8 = 80;

fn frame(key: &FlowKey) -> Vec<u8> {
    FrameBuilder::new(key).to_vec().unwrap()
}

fn key_of(frame: &[u8]) -> FlowKey {
    parse(frame).unwrap().key
}

/// Connections of hosts to two remote ends, each of which sees 512 ports, one per RSS bucket.
fn connection(n: u8) -> FlowKey {
    let [host, remote] = [Ipv4Addr::new(10, 0, 0, n % 16), Ipv4Addr::new(198, 51, 100, n % 2)];
    FlowKey::v4(host, remote, protocol::UDP, 4000 + 257 * u16::from(n), 53)
}

const NAT: &str = "nat: {external: [203.0.113.1], ports: 1024-1535}";

#[derive(Clone, Copy, Debug)]
enum Step {
    /// An instance gets a packet of a connection.
    Out(usize, u8),
    /// An instance gets a packet of the return direction, if a packet of the connection was ever sent.
    Back(usize, u8),
    /// An instance has a turn without packets.
    Turn(usize),
    /// All instances have all answers.
    Settle,
    /// The store answers nobody, or all at once.
    Away(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0..INSTANCES;
    prop_oneof![
        8 => (at.clone(), 0..FLOWS).prop_map(|(at, n)| Step::Out(at, n)),
        3 => (at.clone(), 0..FLOWS).prop_map(|(at, n)| Step::Back(at, n)),
        3 => at.prop_map(Step::Turn),
        2 => Just(Step::Settle),
    ]
}

/// Bindings that sent packets have shown.
#[derive(Default)]
struct Seen {
    outside: BTreeMap<u8, FlowKey>,
    inside: HashMap<FlowKey, u8>,
}

impl Seen {
    /// Takes the packets that an instance has sent. Returns the first that has another binding than before, or that of
    /// another connection.
    fn take(&mut self, sent: &[Vec<u8>]) -> Result<(), String> {
        for frame in sent {
            let key = key_of(frame);
            if let Some(n) = (0..FLOWS).find(|n| connection(*n).reversed() == key) {
                // Packets that came back have arrived where they belong.
                if !self.outside.contains_key(&n) {
                    return Err(format!("{n} got an answer without a question"));
                }
                continue;
            }
            // The connection: by its remote end and the checks below, from the payload's place in the frame.
            let n = frame[frame.len() - 1];
            let known = *self.outside.entry(n).or_insert(key);
            if known != key {
                return Err(format!("{n} was {known}, now {key}"));
            }
            let owner = *self.inside.entry(key).or_insert(n);
            if owner != n {
                return Err(format!("{n} and {owner} are both {key}"));
            }
        }
        Ok(())
    }
}

/// Runs the steps. With `always`, the store replaces every value. Returns the first violation.
fn translate(steps: &[Step], always: bool) -> Result<(u64, u64), String> {
    let (spec, map) = (spec(NAT, ", wait: 10s"), Arc::new(Map::default()));
    map.always.store(always, Ordering::Relaxed);
    let mut instances: Vec<Instance> = (0..INSTANCES).map(|_| Instance::new(&spec, &map, SECOND)).collect();
    let (mut seen, mut now) = (Seen::default(), SECOND);
    let out = |n: u8| FrameBuilder::new(&connection(n)).payload(&[n]).to_vec().unwrap();
    for step in steps {
        now += Nanos::from_micros(10);
        match *step {
            Step::Out(at, n) => instances[at].turn(&[out(n)], now),
            Step::Back(at, n) => {
                if let Some(outside) = seen.outside.get(&n) {
                    instances[at].turn(&[frame(&outside.reversed())], now);
                }
            }
            Step::Turn(at) => instances[at].turn(&[], now),
            Step::Settle => instances.iter_mut().for_each(|instance| instance.settle(now)),
            Step::Away(away) => {
                map.away.store(away, Ordering::Relaxed);
                // The instances' threads try again by themselves.
                std::thread::sleep(std::time::Duration::from_millis(if away { 0 } else { 300 }));
            }
        }
        for instance in &mut instances {
            seen.take(&instance.take_sent())?;
        }
    }
    // In the end each connection goes on, wherever it goes.
    for (at, instance) in instances.iter_mut().enumerate() {
        for n in 0..FLOWS {
            for attempt in 0.. {
                now += Nanos::from_micros(10);
                instance.settle(now);
                let exhausted = instance.count("nat/ports-exhausted");
                instance.turn(&[out(n)], now);
                instance.settle(now);
                let sent = instance.take_sent();
                seen.take(&sent)?;
                if !sent.is_empty() || instance.count("nat/ports-exhausted") > exhausted {
                    break;
                }
                if attempt == 3 {
                    return Err(format!("{n} does not go on at instance {at}"));
                }
            }
        }
    }
    let ended = instances.into_iter().map(|instance| instance.end(now));
    Ok(ended.fold((0, 0), |(refused, taken), counters| {
        (refused + counters.refused, taken + counters.taken)
    }))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
    /// Whichever instances get a connection's packets, and when: its external address and port never change, and no
    /// other connection has them.
    #[test]
    fn a_port_has_one_connection_and_a_connection_one_port(steps in prop::collection::vec(step(), 1..300)) {
        let found = translate(&steps, false);
        prop_assert!(found.is_ok(), "{}", found.unwrap_err());
    }
}

/// Control: with a store that replaces whatever is there the same steps fail.
#[test]
fn a_store_that_takes_every_change_gives_ports_twice() {
    let mut steps = vec![Step::Away(true)];
    steps.extend((0..FLOWS).map(|n| Step::Out(usize::from(n) % INSTANCES, n)));
    // All ask before anyone chooses.
    steps.push(Step::Away(false));
    steps.extend((0..INSTANCES).map(Step::Turn));
    steps.push(Step::Settle);
    let (refused, _) = translate(&steps, false).unwrap();
    assert!(refused > 0, "no two connections wanted the same port");
    assert!(translate(&steps, true).is_err());
}

fn counting(folder: &std::path::Path, n: usize) -> ChainSpec {
    let file = folder.join(format!("{n}.csv"));
    spec(
        &format!("accounting: {{export: {{file: {}}}}}", file.display()),
        ", wait: 10s",
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    /// A flow is never changed by two instances at a time: of the packets that were sent each is counted, and once.
    #[test]
    fn every_sent_packet_is_counted_once(steps in prop::collection::vec(step(), 1..200)) {
        static RUNS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tailwater-sharing-{}-{run}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let map = Arc::new(Map::default());
        let create = |n: usize| Instance::new(&counting(&folder, n), &map, SECOND);
        let mut instances: Vec<Instance> = (0..INSTANCES).map(create).collect();
        let (mut sent, mut now) = (HashMap::<FlowKey, u64>::new(), SECOND);
        let mut take = |instance: &mut Instance| {
            let packets = instance.take_sent();
            packets.iter().for_each(|frame| *sent.entry(key_of(frame)).or_default() += 1);
        };
        let flow = |n: u8| connection(n % 6);
        for step in &steps {
            now += Nanos::from_micros(10);
            match *step {
                Step::Out(at, n) | Step::Back(at, n) => instances[at].turn(&[frame(&flow(n))], now),
                Step::Turn(at) => instances[at].turn(&[], now),
                Step::Settle | Step::Away(_) => instances.iter_mut().for_each(|instance| instance.settle(now)),
            }
            instances.iter_mut().for_each(&mut take);
        }
        instances.iter_mut().for_each(|instance| instance.settle(now));
        instances.iter_mut().for_each(&mut take);
        instances.into_iter().for_each(|instance| {
            let _ = instance.end(now);
        });
        // The last one takes up all flows, and reports them.
        let mut last = create(INSTANCES);
        for n in 0..6 {
            last.turn(&[frame(&flow(n))], now);
            last.settle(now);
        }
        take(&mut last);
        last.finish(now);
        let records = std::fs::read_to_string(folder.join(format!("{INSTANCES}.csv"))).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let count = |line: &str| line.split(',').nth(6).unwrap().parse::<u64>().unwrap();
        let mut counted: Vec<u64> = records.lines().skip(1).map(count).collect();
        let mut expected: Vec<u64> = sent.into_values().collect();
        counted.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(counted, expected);
    }
}

/// Client of a store that answers a request when it is let to.
struct Gated {
    inner: Box<dyn Store>,
    asked: Sender<()>,
    may_answer: Receiver<()>,
}

impl Store for Gated {
    fn serve(&mut self, requests: &mut [Request]) -> Result<u32, Failure> {
        let _ = self.asked.send(());
        // Without an other end, at once.
        let _ = self.may_answer.recv();
        self.inner.serve(requests)
    }
}

/// A flow's own packet waits for its state, and a packet of the return direction opens it meanwhile: of the same run
/// nothing is refused. Chaos runs ended such flows, with two records each.
#[test]
fn a_flow_that_its_companion_opens_while_its_state_is_read_is_not_refused() {
    let (spec, map) = (spec(NAT, ", wait: 10s"), Arc::new(Map::default()));
    let (out, now) = (frame(&connection(3)), SECOND + SECOND);
    let mut first = Instance::new(&spec, &map, SECOND);
    first.turn(std::slice::from_ref(&out), now);
    first.settle(now);
    let translated = first.take_sent();
    let _ = first.end(now);
    let (asked, was_asked) = channel();
    let (answer, may_answer) = channel();
    let mut next = Instance::on(&spec, SECOND, |functions| {
        let inner = Map::client(&map, functions);
        Box::new(Gated {
            inner,
            asked,
            may_answer,
        })
    });
    next.turn(&[frame(&key_of(&translated[0]).reversed())], now);
    was_asked.recv().unwrap();
    next.turn(std::slice::from_ref(&out), now);
    answer.send(()).unwrap();
    was_asked.recv().unwrap();
    next.turn(&[], now);
    // The store decides about the changes that the returning packet has made.
    drop(answer);
    next.settle(now);
    assert_eq!(next.take_sent().len(), 2, "both packets have left");
    let counters = next.end(now);
    assert_eq!((counters.refused, counters.dropped, counters.hits), (0, 0, 2));
}

#[cfg(feature = "redis")]
mod with_redis {
    use super::*;
    use server::RedisServer;
    use tailwater_api::{RedisAddress, RedisSpec};
    use tailwater_chain::chain::DurableFunction;
    use tailwater_state::keys::{self, Version};
    use tailwater_state::link::Store;
    use tailwater_state::redis::{Access, RedisStore};
    use tailwater_state::request::{Entry, Operation, Request};

    fn open(server: &RedisServer, instance: &str, functions: &[DurableFunction]) -> RedisStore {
        let spec = RedisSpec {
            address: RedisAddress::Socket(server.socket()),
            user: None,
            password: None,
        };
        let access = Access::open(&spec, "chain", Some(instance), functions);
        RedisStore::new(Arc::new(access.unwrap_or_else(|error| panic!("{error}"))))
    }

    /// Flows go to another instance in the middle, and back: bindings, backends and counts are as with one instance.
    #[test]
    fn flows_move_between_live_instances() {
        let Some(server) = RedisServer::start(&[]) else {
            return;
        };
        let folder = server.folder.clone();
        let functions = |n: usize| {
            let file = folder.join(format!("{n}.csv"));
            format!(
                "loadBalancer: {{services: [{{address: 198.51.100.0, port: any, protocol: udp, \
                 backends: [{{address: 172.16.0.1}}, {{address: 172.16.0.2}}]}}]}}}}, {{{NAT}}}, \
                 {{accounting: {{export: {{file: {}}}}}",
                file.display()
            )
        };
        let create = |n: usize| {
            let name = ["a", "b", "c"][n];
            let spec = spec(&functions(n), ", wait: 10s");
            Instance::on(&spec, SECOND, |functions| Box::new(open(&server, name, functions)))
        };
        let mut instances: Vec<Instance> = (0..2).map(create).collect();
        let mut bindings: BTreeMap<u8, FlowKey> = BTreeMap::new();
        let (mut now, mut sent, mut lost) = (SECOND, 0, 0);
        for round in 0..8 {
            for n in 0..FLOWS {
                // Half of the flows move in each round; new ones begin at both instances at once.
                let at = usize::from(n / 2 + round * (n % 2)) % 2;
                now += Nanos::from_micros(5);
                let packet = FrameBuilder::new(&connection(n)).payload(&[n]).to_vec().unwrap();
                instances[at].turn(&[packet], now);
            }
            instances.iter_mut().for_each(|instance| instance.settle(now));
            for instance in &mut instances {
                for frame in instance.take_sent() {
                    let n = frame[frame.len() - 1];
                    sent += 1;
                    assert_eq!(*bindings.entry(n).or_insert(key_of(&frame)), key_of(&frame), "flow {n}");
                }
            }
        }
        let mut keys: Vec<FlowKey> = bindings.values().copied().collect();
        keys.sort_unstable_by_key(FlowKey::words);
        keys.dedup();
        assert_eq!(keys.len(), bindings.len(), "two flows have the same port");
        assert!(keys.len() > 40, "{}", keys.len());
        for instance in &mut instances {
            lost += instance.count("state-unavailable") + instance.count("nat/ports-exhausted");
        }
        assert_eq!(sent + lost, 8 * u64::from(FLOWS));
        instances.into_iter().for_each(|instance| {
            let _ = instance.end(now);
        });
        // Another instance goes on counting where they were.
        let mut last = create(2);
        for n in 0..FLOWS {
            let packet = FrameBuilder::new(&connection(n)).payload(&[n]).to_vec().unwrap();
            last.turn(&[packet], now);
        }
        last.settle(now);
        for frame in last.take_sent() {
            sent += 1;
            let known = bindings.get(&frame[frame.len() - 1]).copied();
            assert_eq!(known.unwrap_or(key_of(&frame)), key_of(&frame));
        }
        last.finish(now);
        let records = std::fs::read_to_string(server.folder.join("2.csv")).unwrap();
        let counts = records
            .lines()
            .skip(1)
            .map(|line| line.split(',').nth(6).unwrap().parse::<u64>().unwrap());
        assert_eq!(counts.sum::<u64>(), sent);
    }

    fn version() -> impl Strategy<Value = Version> {
        let stamp = prop_oneof![0u64..4, (1u64 << 32) - 2..(1 << 32) + 2, any::<u64>()];
        let companion = prop::option::of((0u8..2).prop_map(connection));
        (stamp, 0u64..4, companion).prop_map(|(stamp, writer, companion)| Version {
            stamp,
            writer,
            companion,
        })
    }

    /// Redis decides by the script as the rule says.
    #[test]
    fn the_script_is_the_rule() {
        let Some(server) = RedisServer::start(&[]) else {
            return;
        };
        let function = DurableFunction {
            name: "f".to_owned(),
            kind: "Kind",
            version: 1,
            row: 0..4,
        };
        let functions = [function];
        let spec = RedisSpec {
            address: RedisAddress::Socket(server.socket()),
            user: None,
            password: None,
        };
        let access = Arc::new(Access::open(&spec, "chain", Some("a"), &functions).unwrap());
        let mut store = RedisStore::new(Arc::clone(&access));
        let client = redis::Client::open(format!("unix://{}", server.socket().display())).unwrap();
        let mut operator = client.get_connection().unwrap();
        let mut key = access.functions()[0].prefix.clone().into_bytes();
        keys::write_flow(&connection(9), &mut key);
        let config = ProptestConfig {
            cases: 256,
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let cases = (
            prop::option::of(version()),
            version(),
            version().prop_map(|v| v.stamp),
            any::<bool>(),
            any::<bool>(),
        );
        let test = |(old, new, base, joins, is_own): (Option<Version>, Version, u64, bool, bool)| {
            let mut old = old;
            if let (Some(old), true) = (&mut old, is_own) {
                old.writer = access.writer();
            }
            let new = Version {
                writer: access.writer(),
                ..new
            };
            let mut value = Vec::new();
            redis::cmd("DEL").arg(&key).exec(&mut operator).unwrap();
            if let Some(old) = &old {
                keys::write_value(&[1; 4], old, &mut value);
                redis::cmd("SET").arg(&key).arg(&value).exec(&mut operator).unwrap();
            }
            let mut request = Request::with_room(1, 4);
            request.push(Entry {
                operation: Operation::Update,
                key: connection(9),
                companion: new.companion.unwrap_or_default(),
                paired: u16::from(new.companion.is_some()),
                pieces: 1,
                stamp: new.stamp,
                base,
                joins,
                life: 60_000,
                ..Entry::default()
            });
            request.row_mut(0).fill(2);
            let mut requests = [request];
            store.serve(&mut requests).unwrap();
            let stamp = old.map_or(Some(new.stamp), |old| old.is_replaced(&new, base, joins));
            prop_assert_eq!(requests[0].entries[0].refused, u16::from(stamp.is_none()));
            let found: Vec<u8> = redis::cmd("GET").arg(&key).query(&mut operator).unwrap();
            let mut expected = Vec::new();
            match stamp {
                Some(stamp) => keys::write_value(&[2; 4], &Version { stamp, ..new }, &mut expected),
                None => expected = value,
            }
            prop_assert_eq!(&found, &expected);
            // Only the run that wrote a value deletes it.
            let is_own = stamp.is_some() || old.is_some_and(|old| old.writer == access.writer());
            let mut request = Request::with_room(1, 4);
            request.push(Entry {
                operation: Operation::Forget,
                key: connection(9),
                pieces: 1,
                ..Entry::default()
            });
            store.serve(&mut [request]).unwrap();
            let left: u32 = redis::cmd("EXISTS").arg(&key).query(&mut operator).unwrap();
            prop_assert_eq!(left, u32::from(!is_own));
            Ok(())
        };
        let test = std::cell::RefCell::new(test);
        proptest::test_runner::TestRunner::new(config)
            .run(&cases, |case| (test.borrow_mut())(case))
            .unwrap();
    }
}
