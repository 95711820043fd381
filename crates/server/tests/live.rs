//! Random applies, edits, deletes and drains on this machine, under load, against a simple model: the configuration is
//! exact, each packet is in one book, each flow stays in order, and nothing is left in the end.
//!
//! `cargo test` does some dozens of operations. `make soak` does LIVE_OPERATIONS, with LIVE_SEED as the first seed.

mod common;
#[path = "common/load.rs"]
mod load;

use common::{manifest, server};
use load::{CheckedPort, Load, Sent};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::core_host::{CoreHost, HostConfig};
use tailwater_dataplane::cores;
use tailwater_dataplane::port::round_robin;
use tailwater_dataplane::shared_port::{SharedPort, SharedPortConfig, Unmatched};
use tailwater_dataplane::trace_nic::{TraceNic, TraceNicConfig};
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;
use tailwater_policy::broker::{BrokerConfig, LeastSlackBroker};
use tailwater_server::generation::{Store, StoredGeneration};
use tailwater_server::live::{EndedChain, LiveMachine, ServerPort};
use tailwater_server::{ApplyRequest, ChainState, ControlError, Machine, Manager, PacketCounts};

/// Ports of the server, sorted.
const PORTS: [&str; 2] = ["east", "north"];
/// Chains of each port.
const CHAINS: usize = 4;
/// Versions of a chain: those from `GOOD` on are refused.
const VERSIONS: usize = 7;
const GOOD: usize = 5;

const LOAD: Load = Load {
    networks: CHAINS as u32 + 1,
    spacing: Nanos(if cfg!(debug_assertions) { 50_000 } else { 5_000 }),
    period: 40_000,
};

/// Text of a version of a chain.
fn text(chain: usize, version: usize) -> String {
    let functions = match version {
        1 => "[acl: {rules: [{action: deny, protocol: udp, sourcePorts: 1003}], default: allow}, forward: {}]",
        2 => "[acl: {rules: [{action: deny, protocol: udp, sourcePorts: 1005}], default: allow}, forward: {}]",
        3 => "[nat: {external: [203.0.113.0/28]}]",
        5 => "[acl: {rulesFile: /nowhere/rules.yaml}]",
        _ => "[forward: {}]",
    };
    // All cores of the server.
    let (latency, cores) = match version {
        4 => ("20ms", cores::available().len().min(2)),
        _ => ("10ms", 1),
    };
    let network = match version {
        // That of another chain of the same port.
        6 => (chain / PORTS.len() + 1) % CHAINS,
        _ => chain / PORTS.len(),
    };
    let port = PORTS[chain % PORTS.len()];
    format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: c{chain}}}\nspec:\n  port: {port}\n  \
         match: {{destinations: [10.{network}.0.0/16]}}\n  slo: {{latency: {latency}}}\n  cores: {cores}\n  \
         functions: {functions}\n"
    )
}

/// Store in memory that can be full.
#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<(StoredGeneration, bool)>>);

impl Store for Memory {
    fn store_after(&mut self, generation: &StoredGeneration, carry_out: &mut dyn FnMut() -> bool) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        if inner.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if carry_out() {
            inner.0 = generation.clone();
        }
        Ok(())
    }
}

/// Packets of all runs of chains that have ended, by port.
type Books = Arc<Mutex<BTreeMap<usize, PacketCounts>>>;

/// Random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }
}

/// Versions of the chains that the model has, and whether they are drained.
type Expected = BTreeMap<usize, (usize, bool)>;

struct World {
    manager: Manager<LiveMachine, Memory>,
    memory: Memory,
    ports: Vec<Arc<SharedPort>>,
    sent: Vec<Arc<Sent>>,
    books: Books,
    expected: Expected,
    random: Random,
    now: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let available = cores::available();
        let cores: Vec<usize> = available.iter().rev().copied().take(2).collect();
        let clock = Clock::start();
        let host = HostConfig {
            cores: cores.clone(),
            nap: Some(Nanos::from_micros(50)),
            auxiliary: Vec::new(),
            park: Mode::Sleep,
            broker: Box::new(LeastSlackBroker::new(BrokerConfig::default())),
        };
        let host = CoreHost::start(host, clock.clone()).unwrap();
        let queues = cores.len() as u16;
        let rss = RssHasher::default();
        let (mut ports, mut sent) = (Vec::new(), Vec::new());
        for name in PORTS {
            let config = TraceNicConfig {
                duration: Some(Nanos::from_secs(3600)),
                renumber: tailwater_dataplane::trace_nic::Renumber::None,
                ..TraceNicConfig::default()
            };
            let nic = TraceNic::new(
                LOAD.trace(),
                rss.clone(),
                queues,
                &round_robin(queues),
                config,
                clock.clone(),
            );
            let (port, of_port) = CheckedPort::new(Box::new(nic.unwrap()), LOAD);
            sent.push(of_port);
            let config = SharedPortConfig {
                name: name.to_owned(),
                pollers: queues,
                senders: 64,
                buffers: 32 << 10,
                ring: 1024,
                unmatched: Unmatched::Drop,
                rss_key: *rss.key(),
            };
            ports.push(ServerPort {
                port: Box::new(port),
                config,
            });
        }
        let books = Books::default();
        let of_machine = Arc::clone(&books);
        let machine = LiveMachine::new(host, ports, move |ended| enter(&of_machine, &ended)).unwrap();
        let ports = machine.ports();
        let memory = Memory::default();
        let manager = Manager::new(server(""), machine, memory.clone(), Nanos(1), drop);
        World {
            manager,
            memory,
            ports,
            sent,
            books,
            expected: Expected::new(),
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now: 1,
        }
    }

    fn chain(&mut self) -> usize {
        self.random.below(CHAINS * PORTS.len())
    }

    /// Carries out a random operation. Returns its description.
    fn operate(&mut self) -> String {
        self.now += 1;
        let now = Nanos(self.now);
        let is_full = self.random.below(12) == 0;
        self.memory.0.lock().unwrap().1 = is_full;
        let operation = match self.random.below(10) {
            0..6 => self.apply(now, is_full),
            6..8 => {
                let chain = self.chain();
                let result = self.manager.delete(&[format!("c{chain}")], false, now);
                let is_there = self.expected.contains_key(&chain);
                self.assert_result(&result, is_there, is_full);
                if result.is_ok() {
                    self.expected.remove(&chain);
                }
                format!("delete {chain}: {result:?}")
            }
            8 => {
                let chain = self.chain();
                let result = self.manager.drain(&format!("c{chain}"), now);
                let drained = self.expected.get(&chain).map(|(_, drained)| *drained);
                self.assert_result(&result, drained.is_some(), is_full && drained == Some(false));
                if let (Ok(()), Some((_, drained))) = (&result, self.expected.get_mut(&chain)) {
                    *drained = true;
                }
                format!("drain {chain}: {result:?}")
            }
            _ => "observe".to_owned(),
        };
        self.memory.0.lock().unwrap().1 = false;
        self.manager.observe(now);
        operation
    }

    fn apply(&mut self, now: Nanos, is_full: bool) -> String {
        let count = 1 + self.random.below(3);
        let chosen: BTreeMap<usize, usize> = (0..count)
            .map(|_| {
                let chain = self.chain();
                // Wrong ones are rare.
                let version = match self.random.below(8) {
                    0 => GOOD + self.random.below(VERSIONS - GOOD),
                    _ => self.random.below(GOOD),
                };
                (chain, version)
            })
            .collect();
        let request = ApplyRequest {
            manifests: chosen
                .iter()
                .map(|(chain, version)| manifest(&text(*chain, *version)))
                .collect(),
            ..ApplyRequest::default()
        };
        let mut next = self.expected.clone();
        next.extend(chosen.iter().map(|(chain, version)| (*chain, (*version, false))));
        let result = self.manager.apply(&request, now);
        let matches: Vec<(usize, usize)> = next
            .iter()
            .filter(|(_, (_, drained))| !drained)
            .map(|(chain, (version, _))| match version {
                6 => (chain % PORTS.len(), (chain / PORTS.len() + 1) % CHAINS),
                _ => (chain % PORTS.len(), chain / PORTS.len()),
            })
            .collect();
        let is_clear = matches.iter().collect::<BTreeSet<_>>().len() == matches.len();
        let is_good = is_clear && chosen.values().all(|version| *version != 5);
        self.assert_result(&result, is_good, is_full && next != self.expected);
        if result.is_ok() {
            self.expected = next;
        }
        format!("apply {chosen:?}: {result:?}")
    }

    /// A request succeeds exactly if it is right and the disk has room.
    fn assert_result<T: std::fmt::Debug>(&self, result: &Result<T, ControlError>, is_good: bool, is_full: bool) {
        assert_eq!(
            result.is_ok(),
            is_good && !is_full,
            "{result:?} with {:?}",
            self.expected
        );
    }

    /// Configuration, store and data plane agree with the model.
    fn check(&mut self) {
        let texts: BTreeMap<String, (String, bool)> = self
            .expected
            .iter()
            .map(|(&chain, &(version, drained))| (format!("c{chain}"), (text(chain, version), drained)))
            .collect();
        let configured = self.manager.configuration();
        let found: BTreeMap<String, (String, bool)> = configured
            .chains
            .iter()
            .map(|(name, chain)| (name.clone(), (chain.manifest.yaml.clone(), chain.drained)))
            .collect();
        assert_eq!(found, texts);
        assert_eq!(self.memory.0.lock().unwrap().0.number, configured.generation);
        let observed = self.manager.machine().observe();
        let running = observed.iter().filter(|chain| chain.state == ChainState::Running);
        let running: BTreeSet<String> = running.map(|chain| chain.name.clone()).collect();
        let should_run = texts.iter().filter(|(_, (_, drained))| !drained);
        let should_run: BTreeSet<String> = should_run.map(|(name, _)| name.clone()).collect();
        assert_eq!(running, should_run);
    }

    /// A chain that runs tells its load, by source and destination of its own packets.
    fn check_load(&mut self) {
        let end = Instant::now() + Duration::from_secs(20);
        let (name, load) = loop {
            let observed = self.manager.machine().observe();
            let mut loads = observed.into_iter().filter_map(|chain| Some((chain.name, chain.load?)));
            // All last four bits of the sources.
            match loads.find(|(_, load)| load.classes.len() >= 16) {
                Some(found) => break found,
                None => assert!(Instant::now() < end, "no load is known"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let chain: usize = name[1..].parse().unwrap();
        let network = match self.expected[&chain].0 {
            6 => (chain / PORTS.len() + 1) % CHAINS,
            _ => chain / PORTS.len(),
        };
        let destination = Ipv4Addr::new(10, network as u8, 0, 1);
        for class in &*load.classes {
            assert_eq!(class.class.destination(), destination, "{name}");
        }
        // Of twenty flows with equal rates, two each have the first four values, and one each the others.
        let packets = |bits: u8| {
            let class = load.classes.iter().find(|class| class.class.hash() == bits);
            class.map_or(0, |class| class.packets)
        };
        let [first, others]: [u32; 2] = [(0..4).map(packets).sum(), (4..16).map(packets).sum()];
        let share = f64::from(first) / f64::from(first + others);
        assert!((share - 0.4).abs() < 0.15, "{name}: {share} of {:?}", load.classes);
        let counters = load.counters;
        assert!(counters.busy > Nanos::ZERO && counters.processed > 0, "{counters:?}");
        assert!(counters.processed <= counters.offered, "{counters:?}");
        assert!(counters.busy < load.measured, "{load:?}");
    }

    /// Ends all chains and the cores, and checks the books.
    fn end(self) {
        let World {
            mut manager,
            ports,
            sent,
            books,
            ..
        } = self;
        manager.shut_down(Nanos(u64::MAX));
        drop(manager);
        let books = books.lock().unwrap();
        for (number, (port, sent)) in ports.iter().zip(&sent).enumerate() {
            let counts = port.counts();
            let chains = books.get(&number).copied().unwrap_or_default();
            println!("{}: {counts:?}, chains {chains:?}", port.name());
            assert_eq!(counts.delivered, chains.offered, "{counts:?} {chains:?}");
            let lost = counts.unmatched + counts.lost + counts.damaged;
            assert_eq!(counts.received, counts.delivered + lost, "{counts:?}");
            assert_eq!(sent.packets.load(Ordering::Relaxed), chains.delivered);
            assert_eq!(sent.disordered.load(Ordering::Relaxed), 0, "packets out of order");
            assert!(chains.delivered > 0);
        }
    }
}

/// Adds the report of a chain that has ended to its port's books.
fn enter(books: &Books, ended: &EndedChain) {
    assert_eq!(ended.failure, None, "{}", ended.name);
    let packets = &ended.report.packets;
    assert_eq!(
        packets.offered,
        packets.delivered + packets.dropped_by_nf + packets.lost,
        "{packets:?}"
    );
    if packets.lost > 0 {
        println!("{} lost {:?}", ended.name, packets.reasons);
    }
    let chain: usize = ended.name[1..].parse().unwrap();
    let mut books = books.lock().unwrap();
    let book = books.entry(chain % PORTS.len()).or_default();
    book.offered += packets.offered;
    book.delivered += packets.delivered;
    book.dropped += packets.dropped_by_nf;
    book.lost += packets.lost;
}

/// Threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[test]
fn random_operations_under_load_agree_with_a_model() {
    let (operations, seed) = (number("LIVE_OPERATIONS", 40), number("LIVE_SEED", 1));
    let before = threads();
    let mut world = World::new(seed);
    let mut memory = 0;
    let began = Instant::now();
    for operation in 0..operations {
        let what = world.operate();
        if operations > 100 && operation % 50 == 0 {
            println!("{operation} {:?} {} KiB {what}", began.elapsed(), resident());
        }
        world.check();
        std::thread::sleep(Duration::from_millis(world.random.below(8) as u64));
        // By then all kinds of chains have run.
        if operation == operations / 4 {
            memory = resident();
        }
    }
    let grown = resident().saturating_sub(memory);
    println!(
        "{operations} operations in {:?}, {grown} KiB more than after a quarter",
        began.elapsed()
    );
    assert!(grown < 64 << 10, "{grown} KiB");
    world.check_load();
    world.end();
    let end = Instant::now() + Duration::from_secs(10);
    while threads() > before && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(threads() <= before, "{} threads are left", threads() - before);
}
