//! Several chains on one port and one set of cores: each gets its packets, keeps its books, and is not affected by what
//! the others do.

mod common;

use common::alone;
use common::mappers::{random_flows, random_leases, random_splits};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailwater_chain::batch::Batch;
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::core_host::{CoreHost, HostConfig};
use tailwater_dataplane::port::round_robin;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::run::ReconfigureCell;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::shared_port::{ChainPort, SharedPort, SharedPortConfig, Unmatched, Withdrawal};
use tailwater_dataplane::trace_nic::{TraceNic, TraceNicConfig};
use tailwater_dataplane::{RunConfig, RunControl, RunError, RunPlan, cores, run_hosted};
use tailwater_functions::own::OwnFunction;
use tailwater_functions::spec::{ChainSpec, FunctionSpec};
use tailwater_handover::park::Mode;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_policy::broker::{BrokerConfig, LeastSlackBroker};
use tailwater_policy::turns::TurnShare;
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, Trace, TrafficError};

/// Longest wait for something that happens soon.
const PATIENCE: Duration = Duration::from_secs(30);

/// Packets of equal spacing to `10.N.0.0/16`, where N is the remainder of their number, and of 50 flows each.
struct ToNetworks {
    networks: u8,
    spacing: Nanos,
    left: u32,
    number: u32,
    frame: Vec<u8>,
}

impl PacketSource for ToNetworks {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let number = self.number;
        self.number += 1;
        let network = (number % u32::from(self.networks)) as u8;
        let flow = number / u32::from(self.networks) % 50;
        let destination = Ipv4Addr::new(10, network, 0, 1);
        let source = Ipv4Addr::new(192, 0, 2, flow as u8);
        let key = FlowKey::v4(source, destination, protocol::UDP, 1000 + flow as u16, 53);
        self.frame = FrameBuilder::new(&key)
            .payload(&number.to_be_bytes())
            .to_vec()
            .expect("a short frame");
        Ok(Some(Packet {
            timestamp: Nanos(u64::from(number) * self.spacing.0),
            data: &self.frame,
            wire_length: self.frame.len() as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "networks"
    }
}

fn trace(networks: u8, spacing: Nanos, packets: u32) -> Trace {
    let mut source = ToNetworks {
        networks,
        spacing,
        left: packets,
        number: 0,
        frame: Vec::new(),
    };
    Trace::load(&mut source, &LoadOptions::default()).unwrap()
}

/// Server with one port.
struct Server {
    host: Arc<CoreHost>,
    port: Arc<SharedPort>,
    cores: Vec<usize>,
}

/// Chain that runs.
struct Running {
    thread: JoinHandle<Result<RunReport, RunError>>,
    stop: Arc<AtomicBool>,
    withdrawal: Withdrawal,
    reconfigure: Arc<ReconfigureCell>,
}

impl Running {
    fn drain(self) -> Result<RunReport, RunError> {
        self.withdrawal.withdraw();
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("a chain's thread")
    }
}

impl Server {
    /// `repeated`: the trace is repeated until the server stops.
    fn start(trace: Trace, workers: usize, repeated: bool, unmatched: Unmatched) -> Server {
        Server::with_auxiliary(trace, workers, Vec::new(), (repeated, unmatched))
    }

    /// Same, with cores that all chains share.
    fn with_auxiliary(
        trace: Trace,
        workers: usize,
        auxiliary: Vec<usize>,
        (repeated, unmatched): (bool, Unmatched),
    ) -> Server {
        let available = cores::available();
        let cores: Vec<usize> = available.iter().rev().copied().take(workers).collect();
        let clock = Clock::start();
        let host = HostConfig {
            cores: cores.clone(),
            nap: None,
            auxiliary,
            park: Mode::Sleep,
            broker: Box::new(LeastSlackBroker::new(BrokerConfig::default())),
        };
        let host = CoreHost::start(host, clock.clone()).unwrap();
        let queues = cores.len() as u16;
        let config = TraceNicConfig {
            ring: 1 << 16,
            duration: repeated.then_some(Nanos::from_secs(3600)),
            ..TraceNicConfig::default()
        };
        let rss = RssHasher::default();
        let key = *rss.key();
        let nic = TraceNic::new(trace, rss, queues, &round_robin(queues), config, clock).unwrap();
        let config = SharedPortConfig {
            name: "east".to_owned(),
            pollers: queues,
            senders: 64,
            buffers: 48 << 10,
            ring: 1024,
            unmatched,
            rss_key: key,
        };
        let port = host.open_port(Box::new(nic), config).unwrap();
        Server { host, port, cores }
    }

    /// Starts a chain that gets the packets to one network, on the first `workers` cores.
    fn run(&self, network: &str, functions: &str, workers: usize) -> Running {
        self.run_with(network, functions, workers, (None, None))
    }

    /// Same, with a last function, and with auxiliary cores.
    fn run_with(
        &self,
        network: &str,
        functions: &str,
        workers: usize,
        (last, scaling): (Option<FunctionSpec>, Option<ScalingConfig>),
    ) -> Running {
        self.succeed(network, functions, workers, (last, scaling), None)
    }

    /// Same, in the place of another chain.
    fn succeed(
        &self,
        network: &str,
        functions: &str,
        workers: usize,
        (last, scaling): (Option<FunctionSpec>, Option<ScalingConfig>),
        replaced: Option<&Running>,
    ) -> Running {
        // Leases of auxiliary cores last for twice the objective.
        let objective = if scaling.is_some() { "1ms" } else { "250ms" };
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
             match: {{destinations: [{network}]}}\n  slo: {{latency: {objective}}}\n  functions: [{functions}]\n"
        );
        let mut spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap_or_else(|error| panic!("{error}"));
        spec.functions.extend(last);
        let cores = self.cores[..workers].to_vec();
        let config = RunConfig {
            scaling,
            ..RunConfig::new(cores)
        };
        let plan = RunPlan::new(spec, config).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (host, stopped) = (Arc::clone(&self.host), Arc::clone(&stop));
        let mut port = ChainPort::new(&self.port, &plan.spec().match_);
        if let Some(replaced) = replaced {
            let reconfigure = replaced.reconfigure.get().expect("a chain that runs");
            port = port.replacing(replaced.withdrawal.clone(), reconfigure.kept_by(plan.spec()));
        }
        let reconfigure = Arc::<ReconfigureCell>::default();
        let cell = Arc::clone(&reconfigure);
        let withdrawal = port.withdrawal();
        let thread = std::thread::spawn(move || {
            let share = TurnShare {
                objective: plan.spec().slo.budget(),
                weight: 1,
            };
            let control = RunControl::new(&stopped).with_reconfigure(&cell);
            run_hosted(&plan, (&mut port, &host), share, control)
        });
        let began = Instant::now();
        while !withdrawal.is_live() {
            assert!(began.elapsed() < PATIENCE, "the chain has not started");
            std::thread::sleep(Duration::from_millis(1));
        }
        Running {
            thread,
            stop,
            withdrawal,
            reconfigure,
        }
    }

    /// Waits until the port has received so many packets.
    fn await_received(&self, packets: u64) {
        let began = Instant::now();
        while self.port.counts().received < packets {
            assert!(began.elapsed() < PATIENCE, "{:?}", self.port.counts());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.host.stop();
    }
}

/// Function that panics after some packets.
struct Dies(u32);

impl NetworkFunction for Dies {
    fn kind(&self) -> &'static str {
        "Dies"
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        self.0 = self.0.checked_sub(batch.len() as u32).expect("on purpose");
    }
}

fn dies_after(packets: u32) -> FunctionSpec {
    let make = move || -> Box<dyn NetworkFunction> { Box::new(Dies(packets)) };
    FunctionSpec {
        name: "dies".to_owned(),
        config: OwnFunction::new("Dies", make).into(),
        files: Vec::new(),
        branch: None,
        on_failure: Default::default(),
    }
}

/// Function that counts packets that come after a later one of their flow, or again.
struct InOrder(Arc<AtomicU64>);

impl NetworkFunction for InOrder {
    fn kind(&self) -> &'static str {
        "InOrder"
    }

    fn state_bytes(&self) -> usize {
        size_of::<u64>()
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        for i in 0..batch.len() {
            let number = batch.frame(i)[42..46]
                .try_into()
                .map(u32::from_be_bytes)
                .expect("four bytes");
            let next = flows.state::<u64>(batch.packet(i));
            if u64::from(number) < *next {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
            *next = u64::from(number) + 1;
        }
    }
}

fn assert_books(report: &RunReport) {
    let packets = &report.packets;
    assert_eq!(
        packets.offered,
        packets.delivered + packets.dropped_by_nf + packets.lost,
        "{packets:?}"
    );
}

/// Asserts that packets were lost at most while other programs had the core.
fn assert_few_lost(report: &RunReport) {
    assert!(
        report.packets.lost * 20 < report.packets.offered,
        "{:?}",
        report.packets
    );
}

#[test]
fn each_chain_gets_its_packets_and_keeps_its_books() {
    let _alone = alone();
    const PACKETS: u32 = 20_000;
    for workers in [1, 2] {
        let server = Server::start(trace(4, Nanos(60_000), PACKETS), workers, false, Unmatched::Drop);
        let first = server.run("10.0.0.0/16", "{forward: }", 1);
        let second = server.run("10.1.0.0/16", "{nat: {external: [203.0.113.0/28]}}", workers);
        let third = server.run("10.2.0.0/16", "{accounting: }, {forward: }", 1);
        server.await_received(u64::from(PACKETS));
        let [first, second, third] = [first, second, third].map(|chain| chain.drain().unwrap());
        let counts = server.port.counts();
        assert_eq!(counts.received, u64::from(PACKETS), "{counts:?}");
        assert_eq!(counts.lost, 0, "{counts:?}");
        for report in [&first, &second, &third] {
            assert_books(report);
            assert_few_lost(report);
        }
        let offered = [&first, &second, &third].map(|report| report.packets.offered);
        assert!(
            offered.iter().all(|offered| *offered > u64::from(PACKETS) / 8),
            "{offered:?}"
        );
        // Those before the rules had all chains, and those to the fourth network.
        assert_eq!(offered.iter().sum::<u64>() + counts.unmatched, counts.received);
        assert!(counts.unmatched >= u64::from(PACKETS) / 4);
        assert_eq!(second.flows.as_ref().map(|flows| flows.opened), Some(50));
    }
}

#[test]
fn a_chain_in_overload_takes_no_packet_from_another() {
    let _alone = alone();
    // Far more than the first chain's function can do on a core.
    let server = Server::start(trace(2, Nanos(20_000), 50_000), 1, true, Unmatched::Drop);
    let slow = server.run("10.0.0.0/16", "{synthetic: {cycles: 200000}}", 1);
    let other = server.run("10.1.0.0/16", "{forward: }", 1);
    server.await_received(100_000);
    let other = other.drain().unwrap();
    let slow = slow.drain().unwrap();
    assert_books(&slow);
    assert_books(&other);
    assert!(slow.packets.lost > 10_000, "{:?}", slow.packets);
    assert_few_lost(&other);
    assert!(other.packets.delivered > 30_000, "{:?}", other.packets);
}

/// Chains whose mappers move their flows at random, in three ways, share auxiliary cores: each packet passes once, in
/// the order of its flow, and the cores are lent to all of them.
#[test]
fn auxiliary_cores_are_lent_to_several_chains() {
    let _alone = alone();
    const PACKETS: u32 = 200_000;
    let available = cores::available();
    let auxiliary = available[..(available.len() - 1).min(2)].to_vec();
    if auxiliary.is_empty() {
        println!("skipped: this needs two cores");
        return;
    }
    let helpers = auxiliary.len();
    // More than the dedicated core can do by itself.
    let trace = trace(4, Nanos(5_000), PACKETS);
    let server = Server::with_auxiliary(trace, 1, auxiliary, (false, Unmatched::Drop));
    let wrong = Arc::<AtomicU64>::default();
    let run = |network, scaling| {
        let wrong = Arc::clone(&wrong);
        let make = move || -> Box<dyn NetworkFunction> { Box::new(InOrder(Arc::clone(&wrong))) };
        let last = FunctionSpec {
            name: "in-order".to_owned(),
            config: OwnFunction::new("InOrder", make).into(),
            files: Vec::new(),
            branch: None,
            on_failure: Default::default(),
        };
        let functions = "{accounting: }, {synthetic: {cycles: 6000}}";
        server.run_with(network, functions, 1, (Some(last), Some(scaling)))
    };
    let in_pool = |scaling: ScalingConfig| ScalingConfig {
        auxiliary: available[..helpers].to_vec(),
        buffers: 512,
        ..scaling
    };
    let chains = [
        run("10.0.0.0/16", in_pool(random_flows(1, helpers, Mode::Sleep))),
        run("10.1.0.0/16", in_pool(random_leases(2, helpers, Mode::Sleep, 0))),
        run("10.2.0.0/16", in_pool(random_splits(3, helpers, Mode::Sleep, 3))),
    ];
    server.await_received(u64::from(PACKETS));
    let reports = chains.map(|chain| chain.drain().unwrap());
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "packets out of order");
    for report in &reports {
        assert_books(report);
        assert_eq!(report.packets.dropped_by_nf, 0);
        let scaling = report.scaling.as_ref().unwrap();
        assert!(scaling.activated > 0, "{scaling:?}");
        assert!(scaling.packets_offloaded > 0, "{scaling:?}");
        assert_eq!(report.flows.as_ref().map(|flows| flows.opened), Some(50));
    }
    server.host.stop();
    let offered: u64 = reports.iter().map(|report| report.packets.offered).sum();
    let counts = server.port.counts();
    assert_eq!(counts.received, offered + counts.unmatched + counts.lost, "{counts:?}");
}

#[test]
fn a_panic_on_an_auxiliary_core_ends_only_that_chain() {
    let _alone = alone();
    let available = cores::available();
    if available.len() < 2 {
        println!("skipped: this needs two cores");
        return;
    }
    let trace = trace(2, Nanos(4_000), 3_000);
    let server = Server::with_auxiliary(trace, 1, available[..1].to_vec(), (true, Unmatched::Drop));
    let in_pool = |seed| ScalingConfig {
        auxiliary: available[..1].to_vec(),
        buffers: 512,
        ..random_flows(seed, 1, Mode::Sleep)
    };
    let functions = "{synthetic: {cycles: 12000}}";
    let other = server.run_with("10.1.0.0/16", functions, 1, (None, Some(in_pool(1))));
    let dying = server.run_with("10.0.0.0/16", functions, 1, (Some(dies_after(100)), Some(in_pool(2))));
    let received = server.port.counts().received;
    server.await_received(received + 20_000);
    let error = dying.drain().unwrap_err();
    let report = error.report().unwrap();
    assert_books(report);
    let of_dead = report.packets.offered;
    let received = server.port.counts().received;
    server.await_received(received + 10_000);
    let other = other.drain().unwrap();
    assert_books(&other);
    assert!(
        other
            .scaling
            .as_ref()
            .is_some_and(|scaling| scaling.packets_offloaded > 0)
    );
    server.host.stop();
    let counts = server.port.counts();
    let offered = of_dead + other.packets.offered;
    assert_eq!(counts.received, offered + counts.unmatched + counts.lost, "{counts:?}");
}

/// What leaves a translation: the external port of each of the 50 flows of a network, and its last packet.
#[derive(Default)]
struct Translated {
    flows: BTreeMap<u32, (u16, u32)>,
    moved: u64,
    overtaken: u64,
}

/// Records translated packets.
struct Observer(Arc<Mutex<Translated>>);

impl NetworkFunction for Observer {
    fn kind(&self) -> &'static str {
        "Observer"
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        let mut seen = self.0.lock().expect("no panic");
        for i in 0..batch.len() {
            let frame = batch.frame(i);
            let port = u16::from_be_bytes([frame[34], frame[35]]);
            let number = frame[42..46].try_into().map(u32::from_be_bytes).expect("four bytes");
            let before = seen.flows.insert(number / 2 % 50, (port, number));
            if let Some((before, last)) = before {
                seen.moved += u64::from(before != port);
                seen.overtaken += u64::from(last >= number);
            }
        }
    }
}

/// Functions are inserted, removed and reordered while packets pass: each packet passes one list, in order, and
/// connections keep their translation.
#[test]
fn functions_come_and_go_and_flows_stay() {
    let _alone = alone();
    // More than arrive until the test ends.
    const PACKETS: u32 = 400_000;
    const NAT: &str = "{nat: {external: [203.0.113.0/28]}}";
    let server = Server::start(trace(2, Nanos(20_000), PACKETS), 1, false, Unmatched::Drop);
    let translated = Arc::<Mutex<Translated>>::default();
    let observer = || {
        let translated = Arc::clone(&translated);
        let make = move || -> Box<dyn NetworkFunction> { Box::new(Observer(Arc::clone(&translated))) };
        Some(FunctionSpec {
            name: "observer".to_owned(),
            config: OwnFunction::new("Observer", make).into(),
            files: Vec::new(),
            branch: None,
            on_failure: Default::default(),
        })
    };
    let lists = [
        format!("{NAT}, {{accounting: }}"),
        format!("{{acl: {{default: allow, rules: [{{action: deny, protocol: tcp}}]}}}}, {NAT}, {{accounting: }}"),
        format!("{{accounting: }}, {NAT}"),
        NAT.to_owned(),
    ];
    let steady = server.run("10.1.0.0/16", "{accounting: }", 1);
    let mut current = server.run_with("10.0.0.0/16", &lists[0], 1, (observer(), None));
    let mut reports = Vec::new();
    for number in 1..=9 {
        // Every third change follows the one before at once: flows of two chains have yet to move.
        let packets = if number % 3 == 0 { 0 } else { 2_500 };
        server.await_received(server.port.counts().received + packets);
        let list = &lists[number % lists.len()];
        let next = server.succeed("10.0.0.0/16", list, 1, (observer(), None), Some(&current));
        reports.push(std::mem::replace(&mut current, next).drain().unwrap());
    }
    server.await_received(server.port.counts().received + 2_500);
    reports.push(current.drain().unwrap());
    let steady = steady.drain().unwrap();
    server.host.stop();
    let opened = |report: &RunReport| report.flows.as_ref().map_or(0, |flows| flows.opened);
    for report in &reports {
        assert_books(report);
        assert_eq!(report.packets.dropped_by_nf, 0, "{:?}", report.packets);
    }
    // The last one has all flows, and none was opened again.
    let last = reports.last().and_then(|report| report.flows).unwrap();
    assert_eq!((last.active, last.opened), (50, 0));
    assert_eq!(reports.iter().map(opened).sum::<u64>(), 50, "each flow once");
    let seen = translated.lock().unwrap();
    assert_eq!((seen.flows.len(), seen.moved, seen.overtaken), (50, 0, 0));
    let offered: u64 = reports.iter().map(|report| report.packets.offered).sum();
    let counts = server.port.counts();
    assert_eq!(
        counts.received,
        offered + steady.packets.offered + counts.unmatched + counts.lost,
        "{counts:?}"
    );
    assert_few_lost(&steady);
    let lost: u64 = reports.iter().map(|report| report.packets.lost).sum();
    assert!(lost * 20 < offered, "{lost} of {offered}");
}

#[test]
fn chains_come_and_go_while_others_run() {
    let _alone = alone();
    let server = Server::start(trace(3, Nanos(20_000), 3_000), 1, true, Unmatched::Forward);
    let steady = server.run("10.0.0.0/16", "{nat: {external: [203.0.113.0/28]}}", 1);
    let (mut offered, mut received) = (0, 0);
    for round in 0..12 {
        let passing = server.run("10.1.0.0/16", "{accounting: }", 1);
        received = server.port.counts().received + 2_000;
        server.await_received(received);
        let report = passing.drain().unwrap();
        assert_books(&report);
        assert!(report.packets.offered > 50, "round {round}: {:?}", report.packets);
        assert_few_lost(&report);
        offered += report.packets.offered;
    }
    // No buffer has stayed away: all chains ran with fewer than one chain holds.
    server.await_received(received + 5_000);
    let steady = steady.drain().unwrap();
    assert_books(&steady);
    assert_few_lost(&steady);
    let counts = server.port.counts();
    let unmatched = counts.received - offered - steady.packets.offered;
    // Packets arrive until the counts are read.
    assert!(
        counts.unmatched >= unmatched.saturating_sub(1000) && counts.lost == 0,
        "{counts:?}"
    );
}

#[test]
fn a_panic_of_one_chain_ends_only_that_chain() {
    let _alone = alone();
    let server = Server::start(trace(2, Nanos(20_000), 3_000), 1, true, Unmatched::Drop);
    let other = server.run("10.1.0.0/16", "{forward: }", 1);
    let dying = server.run_with(
        "10.0.0.0/16",
        "{nat: {external: [203.0.113.0/28]}}",
        1,
        (Some(dies_after(100)), None),
    );
    server.await_received(10_000);
    let report = dying.drain();
    assert!(matches!(report, Err(RunError::Died { .. })), "{report:?}");
    let error = report.unwrap_err();
    let report = error.report().unwrap();
    assert_books(report);
    let of_dead = report.packets.offered;
    let received = server.port.counts().received;
    server.await_received(received + 10_000);
    let other = other.drain().unwrap();
    assert_books(&other);
    // The message of the panic takes its time on the core, and the first chain its packets.
    assert!(other.packets.delivered > 6_000, "{:?}", other.packets);
    server.host.stop();
    // Packets for the chain that died are known to be lost, too.
    let counts = server.port.counts();
    let offered = of_dead + other.packets.offered;
    assert_eq!(counts.received, offered + counts.unmatched + counts.lost, "{counts:?}");
}
