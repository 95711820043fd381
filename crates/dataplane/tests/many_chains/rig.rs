//! A server with one port, and chains on it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
use tailwater_dataplane::trace_nic::{Renumber, TraceNic, TraceNicConfig};
use tailwater_dataplane::{RunConfig, RunControl, RunError, RunPlan, cores, run_hosted};
use tailwater_functions::own::OwnFunction;
use tailwater_functions::spec::{ChainSpec, FunctionSpec};
use tailwater_handover::park::Mode;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::protocol::ethertype;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_policy::broker::{BrokerConfig, LeastSlackBroker};
use tailwater_policy::turns::TurnShare;
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, Trace, TrafficError};

/// Longest wait for something that happens soon.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Packets to `10.N.0.0/16`, where N is the remainder of their number, and of 50 flows each.
pub struct ToNetworks {
    networks: u8,
    /// Mean time between two packets.
    spacing: Nanos,
    /// Number of packets that come at once.
    burst: u32,
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
            timestamp: Nanos(u64::from(number - number % self.burst) * self.spacing.0),
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

/// Traffic of equal spacing.
pub fn trace(networks: u8, spacing: Nanos, packets: u32) -> Trace {
    trace_of_bursts(networks, (spacing, 1), packets)
}

/// Traffic with this mean time between packets, of which some come at once.
pub fn trace_of_bursts(networks: u8, (spacing, burst): (Nanos, u32), packets: u32) -> Trace {
    let mut source = ToNetworks {
        networks,
        spacing,
        burst,
        left: packets,
        number: 0,
        frame: Vec::new(),
    };
    Trace::load(&mut source, &LoadOptions::default()).unwrap()
}

/// Packets of IPv4, of IPv6 and without IP in turn, 10 us apart.
struct Kinds {
    number: usize,
    frames: [Vec<u8>; 3],
}

impl PacketSource for Kinds {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        let number = self.number;
        self.number += 1;
        let data = &self.frames[number % 3];
        let packet = Packet {
            timestamp: Nanos(number as u64 * 10_000),
            data,
            wire_length: data.len() as u32,
        };
        Ok((number < 300).then_some(packet))
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "kinds"
    }
}

/// Traffic of which a third each is IPv4 to `10.0.0.1`, IPv6, and not IP.
pub fn trace_of_kinds() -> Trace {
    let frame = |key| {
        FrameBuilder::new(&key)
            .payload(b"text")
            .to_vec()
            .expect("a short frame")
    };
    let v4 = FlowKey::v4(
        Ipv4Addr::new(192, 0, 2, 1),
        Ipv4Addr::new(10, 0, 0, 1),
        protocol::UDP,
        1,
        53,
    );
    let v6 = FlowKey::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, protocol::UDP, 1, 53);
    let mut other = frame(v4);
    other[12..14].copy_from_slice(&ethertype::ARP.to_be_bytes());
    let frames = [frame(v4), frame(v6), other];
    Trace::load(&mut Kinds { number: 0, frames }, &LoadOptions::default()).unwrap()
}

/// Chain for the packets to one network.
pub fn chain(network: &str, functions: &str, objective: &str) -> ChainSpec {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         match: {{destinations: [{network}]}}\n  slo: {{latency: {objective}}}\n  functions: [{functions}]\n"
    );
    ChainSpec::parse(&text, "test", Path::new(".")).unwrap_or_else(|error| panic!("{error}"))
}

/// Server with one port.
pub struct Server {
    pub host: Arc<CoreHost>,
    pub port: Arc<SharedPort>,
    pub cores: Vec<usize>,
}

/// Chain that runs.
pub struct Running {
    pub thread: JoinHandle<Result<RunReport, RunError>>,
    pub stop: Arc<AtomicBool>,
    pub withdrawal: Withdrawal,
    pub reconfigure: Arc<ReconfigureCell>,
}

impl Running {
    pub fn drain(self) -> Result<RunReport, RunError> {
        self.withdrawal.withdraw();
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("a chain's thread")
    }
}

impl Server {
    /// `repeated`: the trace is repeated until the server stops.
    pub fn start(trace: Trace, workers: usize, repeated: bool, unmatched: Unmatched) -> Server {
        Server::with_auxiliary(trace, workers, Vec::new(), (repeated, unmatched))
    }

    /// Same, with cores that all chains share.
    pub fn with_auxiliary(
        trace: Trace,
        workers: usize,
        auxiliary: Vec<usize>,
        (repeated, unmatched): (bool, Unmatched),
    ) -> Server {
        Server::build(trace, workers, auxiliary, (repeated, unmatched), None)
    }

    /// Server with the clock of another one, and a paused port.
    pub fn paused(trace: Trace, other: &Server) -> Server {
        let clock = Clock::continuing(&other.host.clock().origin()).expect("the same machine");
        let workers = other.cores.len();
        Server::build(trace, workers, Vec::new(), (false, Unmatched::Drop), Some(clock))
    }

    fn build(
        trace: Trace,
        workers: usize,
        auxiliary: Vec<usize>,
        (repeated, unmatched): (bool, Unmatched),
        continued: Option<Clock>,
    ) -> Server {
        let available = cores::available();
        let cores: Vec<usize> = available.iter().rev().copied().take(workers).collect();
        let is_paused = continued.is_some();
        let clock = continued.unwrap_or_else(Clock::start);
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
            // Flows go on when the trace is repeated.
            renumber: Renumber::None,
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
        let port = match is_paused {
            true => host.open_paused_port(Box::new(nic), config).unwrap(),
            false => host.open_port(Box::new(nic), config).unwrap(),
        };
        Server { host, port, cores }
    }

    /// Starts a chain that gets the packets to one network, on the first `workers` cores.
    pub fn run(&self, network: &str, functions: &str, workers: usize) -> Running {
        self.run_with(network, functions, workers, (None, None))
    }

    /// Same, with a last function, and with auxiliary cores.
    pub fn run_with(
        &self,
        network: &str,
        functions: &str,
        workers: usize,
        (last, scaling): (Option<FunctionSpec>, Option<ScalingConfig>),
    ) -> Running {
        self.succeed(network, functions, &self.cores[..workers], (last, scaling), None)
    }

    /// Same, on these of the server's cores and in the place of another chain.
    pub fn succeed(
        &self,
        network: &str,
        functions: &str,
        cores: &[usize],
        (last, scaling): (Option<FunctionSpec>, Option<ScalingConfig>),
        replaced: Option<&Running>,
    ) -> Running {
        // Leases of auxiliary cores last for twice the objective.
        let objective = if scaling.is_some() { "1ms" } else { "250ms" };
        let mut spec = chain(network, functions, objective);
        spec.functions.extend(last);
        let config = RunConfig {
            scaling,
            ..RunConfig::new(cores.to_vec())
        };
        self.start_plan(RunPlan::new(spec, config).unwrap(), replaced)
    }

    /// Starts a plan, in the place of another chain if there is one.
    pub fn start_plan(&self, plan: RunPlan, replaced: Option<&Running>) -> Running {
        let stop = Arc::new(AtomicBool::new(false));
        let (host, stopped) = (Arc::clone(&self.host), Arc::clone(&stop));
        let mut port = ChainPort::new(&self.port, &plan.spec().match_);
        if let Some(replaced) = replaced {
            // Isolated functions cannot be reconfigured, and keep nothing of other processes.
            let reconfigure = replaced.reconfigure.get();
            let kept = reconfigure.filter(|_| plan.config().isolation.is_none());
            let kept = kept.map_or(Vec::new(), |reconfigure| reconfigure.kept_by(plan.spec()));
            let workers = plan.config().cores.len() as u16;
            port = port.replacing(replaced.withdrawal.clone(), kept, workers);
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
    pub fn await_received(&self, packets: u64) {
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
pub struct Dies(u32);

impl NetworkFunction for Dies {
    fn kind(&self) -> &'static str {
        "Dies"
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        self.0 = self.0.checked_sub(batch.len() as u32).expect("on purpose");
    }
}

pub fn dies_after(packets: u32) -> FunctionSpec {
    let make = move || -> Box<dyn NetworkFunction> { Box::new(Dies(packets)) };
    own_function("dies", make)
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

/// Function that adds the packets that are out of order to `wrong`.
pub fn in_order(wrong: &Arc<AtomicU64>) -> FunctionSpec {
    let wrong = Arc::clone(wrong);
    own_function("in-order", move || -> Box<dyn NetworkFunction> {
        Box::new(InOrder(Arc::clone(&wrong)))
    })
}

pub fn assert_books(report: &RunReport) {
    let packets = &report.packets;
    assert_eq!(
        packets.offered,
        packets.delivered + packets.dropped_by_nf + packets.lost,
        "{packets:?}"
    );
}

/// Asserts that packets were lost at most while other programs had the core.
pub fn assert_few_lost(report: &RunReport) {
    assert!(
        report.packets.lost * 20 < report.packets.offered,
        "{:?}",
        report.packets
    );
}

/// Function of a test, by its name in reports.
pub fn own_function(name: &str, make: impl Fn() -> Box<dyn NetworkFunction> + Send + Sync + 'static) -> FunctionSpec {
    FunctionSpec {
        name: name.to_owned(),
        config: OwnFunction::new("Own", make).into(),
        files: Vec::new(),
        branch: None,
        on_failure: Default::default(),
    }
}
