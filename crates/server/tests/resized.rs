//! Chains whose number of cores changes while packets pass: flows stay, counts continue, and what cannot pass is
//! refused before anything stops.

mod common;
#[path = "common/load.rs"]
mod load;

use common::{manifest, server};
use load::{CheckedPort, Load, Sent};
use std::io;
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
use tailwater_server::generation::{Store, StoredChain, StoredGeneration};
use tailwater_server::live::{EndedChain, LiveMachine, ServerPort};
use tailwater_server::{ApplyRequest, Machine, Manager, Origin, PacketCounts};

/// Slow enough that nothing is lost while other programs have a core for a tenth of a second.
const LOAD: Load = Load {
    networks: 1,
    spacing: Nanos(100_000),
    period: 10_000,
};
const PATIENCE: Duration = Duration::from_secs(30);
/// Each connection has two flows.
const FLOWS: u64 = 40;

struct Forgets;

impl Store for Forgets {
    fn store_after(&mut self, _: &StoredGeneration, carry_out: &mut dyn FnMut() -> bool) -> io::Result<()> {
        carry_out();
        Ok(())
    }
}

/// Server with a port that plays the traffic once.
struct World {
    manager: Manager<LiveMachine, Forgets>,
    port: Arc<SharedPort>,
    sent: Arc<Sent>,
    ended: Arc<Mutex<Vec<EndedChain>>>,
}

impl World {
    /// `None` on a machine with one core.
    fn new() -> Option<World> {
        World::playing(LOAD)
    }

    fn playing(load: Load) -> Option<World> {
        let cores: Vec<usize> = cores::available().iter().rev().copied().take(2).collect();
        if cores.len() < 2 {
            println!("skipped: it needs two cores");
            return None;
        }
        let clock = Clock::start();
        let host = HostConfig {
            cores,
            nap: Some(Nanos::from_micros(50)),
            auxiliary: Vec::new(),
            park: Mode::Sleep,
            broker: Box::new(LeastSlackBroker::new(BrokerConfig::default())),
        };
        let host = CoreHost::start(host, clock.clone()).unwrap();
        let rss = RssHasher::default();
        let config = TraceNicConfig {
            renumber: tailwater_dataplane::trace_nic::Renumber::None,
            ring: 1 << 14,
            ..TraceNicConfig::default()
        };
        let nic = TraceNic::new(load.trace(), rss.clone(), 2, &round_robin(2), config, clock).unwrap();
        let (port, sent) = CheckedPort::new(Box::new(nic), load);
        let config = SharedPortConfig {
            name: "north".to_owned(),
            pollers: 2,
            senders: 16,
            buffers: 32 << 10,
            ring: 1024,
            unmatched: Unmatched::Drop,
            rss_key: *rss.key(),
        };
        let port = ServerPort {
            port: Box::new(port),
            config,
        };
        let ended = Arc::<Mutex<Vec<EndedChain>>>::default();
        let of_machine = Arc::clone(&ended);
        let on_end = move |chain| of_machine.lock().unwrap().push(chain);
        let machine = LiveMachine::new(host, vec![port], on_end).unwrap();
        let port = machine.ports().remove(0);
        Some(World {
            manager: Manager::new(server(""), machine, Forgets, Nanos(1), drop),
            port,
            sent,
            ended,
        })
    }

    fn apply(&mut self, cores: usize, functions: &str) -> Result<(), String> {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: edge}}\nspec:\n  port: north\n  match: \
             {{destinations: [10.0.0.0/16]}}\n  slo: {{latency: 250ms}}\n  cores: {cores}\n  functions: {functions}\n"
        );
        let request = ApplyRequest {
            manifests: vec![manifest(&text)],
            ..ApplyRequest::default()
        };
        let applied = self.manager.apply(&request, Nanos(2));
        applied.map(drop).map_err(|error| error.to_string())
    }

    fn counts(&mut self) -> PacketCounts {
        let observed = self.manager.machine().observe();
        observed.first().map(|chain| chain.packets).unwrap_or_default()
    }

    fn cores(&mut self) -> usize {
        self.manager.machine().observe()[0].cores.dedicated.len()
    }

    fn await_received(&self, packets: u64) {
        let until = Instant::now() + PATIENCE;
        while self.port.counts().received < packets {
            assert!(Instant::now() < until, "{:?}", self.port.counts());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn flows_and_counts_continue_on_other_numbers_of_cores() {
    let Some(mut world) = World::new() else { return };
    let records = std::env::temp_dir().join(format!("tailwater-resized-{}.csv", std::process::id()));
    let functions = format!(
        "[nat: {{external: [203.0.113.0/28], internal: [192.0.2.0/24]}}, accounting: {{export: {{file: {}}}}}]",
        records.display()
    );
    let mut seen = PacketCounts::default();
    for (step, cores) in [1, 2, 1, 2].into_iter().enumerate() {
        world.await_received(step as u64 * 1_500);
        world.apply(cores, &functions).unwrap();
        assert_eq!(world.cores(), cores);
        let counts = world.counts();
        assert!(counts.offered >= seen.offered && counts.delivered >= seen.delivered);
        seen = counts;
    }
    world.await_received(LOAD.period.into());
    // All that came since the first chain, of whichever chain.
    let port = world.port.counts();
    assert_eq!(port.lost + port.damaged, 0, "{port:?}");
    let offered = port.received - port.unmatched;
    let until = Instant::now() + PATIENCE;
    loop {
        let counts = world.counts();
        assert!(
            counts.offered >= seen.offered && counts.offered <= offered,
            "{counts:?}"
        );
        if counts.offered == offered && counts.offered == counts.delivered {
            break;
        }
        assert!(Instant::now() < until, "{counts:?} of {offered}");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(world.manager);
    let ended = world.ended.lock().unwrap();
    assert_eq!(ended.iter().map(|chain| chain.cores.len()).sum::<usize>(), 6);
    let sum = |count: fn(&EndedChain) -> u64| ended.iter().map(count).sum::<u64>();
    assert_eq!(sum(|chain| chain.report.packets.offered), offered);
    assert_eq!(sum(|chain| chain.report.packets.delivered), offered);
    let opened = sum(|chain| chain.report.flows.as_ref().map_or(0, |flows| flows.opened));
    assert_eq!(opened, FLOWS, "no connection begins anew");
    assert_eq!(world.sent.packets.load(Ordering::Relaxed), offered);
    assert_eq!(world.sent.disordered.load(Ordering::Relaxed), 0);
    // One record of each flow, over all chains that had it.
    let text = std::fs::read_to_string(&records).unwrap();
    std::fs::remove_file(&records).unwrap();
    let (header, lines) = text.split_once('\n').unwrap();
    let column = header.split(',').position(|name| name == "packets").unwrap();
    let packets = lines
        .lines()
        .map(|line| line.split(',').nth(column).unwrap().parse::<u64>().unwrap());
    let packets: Vec<u64> = packets.filter(|packets| *packets > 0).collect();
    assert_eq!(
        (packets.len() as u64, packets.iter().sum()),
        (FLOWS / 2, offered),
        "{text}"
    );
}

#[test]
fn state_that_cannot_pass_is_refused_before_anything_stops() {
    let Some(mut world) = World::new() else { return };
    let branches = "[classifier: {branches: {dns: {functions: [{nat: {external: [203.0.113.0/28]}}]}, rest: \
                    {functions: [{forward: {}}]}}, rules: [{to: dns, protocol: udp}], default: rest}]";
    world.apply(1, branches).unwrap();
    let refused = world.apply(2, branches).unwrap_err();
    let expected = "spec.cores: expected 1, as now, found 2: in a chain with branches, the flow state of function nat \
                    does not pass to other cores; drain the chain first";
    assert!(refused.contains(expected), "{refused}");
    assert_eq!(world.cores(), 1);
    let before = world.port.counts().received;
    world.await_received(before + 100);
    world.manager.drain("edge", Nanos(3)).unwrap();
    world.apply(2, branches).unwrap();
    assert_eq!(world.cores(), 2);
    // Without state, nothing can be lost.
    let stateless = "[classifier: {branches: {dns: {functions: [{name: direct, forward: {}}]}, \
                     rest: {functions: [{forward: {}}]}}, rules: [{to: dns, protocol: udp}], default: rest}]";
    world.apply(2, stateless).unwrap();
    world.apply(1, stateless).unwrap();
    assert_eq!(world.cores(), 1);
}

/// The first one to start got all packets until the second one had started.
#[test]
fn chains_of_a_stored_generation_get_packets_together() {
    // Longer than the steps take on a busy machine.
    let load = Load {
        spacing: Nanos(2_000_000),
        ..LOAD
    };
    let Some(mut world) = World::playing(load) else { return };
    let chain = |name: &str, destinations: &str| StoredChain {
        name: name.to_owned(),
        manifest: manifest(&format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: {name}}}\nspec:\n  port: north\n  \
             match: {{destinations: [{destinations}]}}\n  slo: {{latency: 250ms}}\n  functions: [{{forward: {{}}}}]\n"
        )),
        forced: false,
        drained: false,
        origin: Origin::Applied,
        cores: Vec::new(),
    };
    let stored = StoredGeneration {
        number: 7,
        chains: vec![chain("a-wide", "0.0.0.0/0"), chain("b-narrow", "10.0.0.0/16")],
    };
    // Packets arrive before the chains have started.
    world.await_received(10);
    world.manager.resume(stored, Nanos(2));
    let before = world.port.counts().received;
    world.await_received(before + 20);
    // In one apply, the narrow chain gets another match, and one with its packets is added.
    let other = |name: &str, destinations: &str| chain(name, destinations).manifest;
    let request = ApplyRequest {
        manifests: vec![other("b-narrow", "10.9.0.0/16"), other("c-narrow", "10.0.0.0/16")],
        ..ApplyRequest::default()
    };
    world.manager.apply(&request, Nanos(3)).unwrap();
    let before = world.port.counts().received;
    world.await_received(before + 20);
    let World {
        manager, port, ended, ..
    } = world;
    drop(manager);
    let (port, ended) = (port.counts(), ended.lock().unwrap());
    let offered = |name: &str| -> u64 {
        let runs = ended.iter().filter(|chain| chain.name == name);
        runs.map(|chain| chain.report.packets.offered).sum()
    };
    assert_eq!(offered("a-wide"), 0, "{port:?}");
    assert!(offered("b-narrow") >= 10 && offered("c-narrow") >= 10, "{port:?}");
    assert!(port.unmatched >= 10, "{port:?}");
    let sum = offered("b-narrow") + offered("c-narrow");
    assert_eq!(
        port.received,
        sum + port.unmatched + port.lost + port.damaged,
        "{port:?}"
    );
}
