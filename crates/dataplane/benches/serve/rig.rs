//! Server with one port on one core, and its chains.

use crate::feed::{Feed, NETWORKS, frame};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::core_host::{CoreHost, HostConfig};
use tailwater_dataplane::cores::default_core;
use tailwater_dataplane::port::{Port, round_robin};
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::shared_port::{ChainPort, SharedPort, SharedPortConfig, Unmatched, Withdrawal};
use tailwater_dataplane::trace_nic::{TraceNic, TraceNicConfig};
use tailwater_dataplane::{Packets, RunConfig, RunControl, RunPlan, run, run_hosted};
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;
use tailwater_policy::broker::{BrokerConfig, LeastSlackBroker};
use tailwater_policy::turns::TurnShare;
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, Trace, TrafficError};

/// Files that specs name.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

/// Sources of a chain's packets.
pub struct Chains(String);

impl Chains {
    /// Those of one of `count` chains that share all networks.
    pub fn of(chain: usize, count: usize) -> Chains {
        let own = (0..NETWORKS).filter(|network| network % count == chain);
        let sources: Vec<String> = own.map(|network| format!("10.{network}.0.0/16")).collect();
        Chains(sources.join(", "))
    }

    /// Those of one network.
    pub fn network(network: usize) -> Chains {
        Chains(format!("10.{network}.0.0/16"))
    }
}

fn plan(functions: &str, sources: Option<&Chains>) -> RunPlan {
    let wanted = sources.map_or(String::new(), |Chains(sources)| {
        format!("  match: {{sources: [{sources}]}}\n")
    });
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: bench}}\nspec:\n{wanted}  \
         slo: {{latency: 500us}}\n  functions: [{functions}]\n  flows: {{capacity: 20000}}\n"
    );
    let spec = ChainSpec::parse(&text, "bench", Path::new(EXAMPLES)).unwrap_or_else(|error| panic!("{error}"));
    let core = default_core();
    RunPlan::new(spec, RunConfig::new(vec![core])).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a chain on a port of its own.
pub fn run_alone(functions: &str, mut feed: Feed, clock: &Clock) {
    let (plan, stop) = (plan(functions, None), AtomicBool::new(false));
    let packets = Packets::Port {
        port: &mut feed,
        clock: clock.clone(),
    };
    let report = run(&plan, packets, RunControl::new(&stop)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.packets.lost, 0, "{:?}", report.packets);
}

/// Server with one port.
pub struct Rig {
    host: Arc<CoreHost>,
    port: Arc<SharedPort>,
    /// End of its traffic.
    end: Instant,
}

/// Chain that runs.
pub struct Running {
    thread: JoinHandle<RunReport>,
    stop: Arc<AtomicBool>,
    withdrawal: Withdrawal,
}

impl Running {
    /// Ends the chain.
    pub fn drain(self) -> RunReport {
        self.withdrawal.withdraw();
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("a chain's thread")
    }
}

impl Rig {
    /// Server on this port.
    pub fn new(port: Box<dyn Port>, clock: &Clock) -> Rig {
        Rig::on(clock.clone(), port, Duration::ZERO)
    }

    fn on(clock: Clock, port: Box<dyn Port>, lasts: Duration) -> Rig {
        let host = HostConfig {
            cores: vec![default_core()],
            // Under valgrind, an idle core must leave time to the other threads.
            nap: lasts.is_zero().then(|| Nanos::from_micros(100)),
            auxiliary: Vec::new(),
            park: Mode::Sleep,
            broker: Box::new(LeastSlackBroker::new(BrokerConfig::default())),
        };
        let host = CoreHost::start(host, clock).unwrap_or_else(|error| panic!("{error}"));
        let config = SharedPortConfig {
            name: "bench".to_owned(),
            pollers: 1,
            senders: 128,
            buffers: 32 << 10,
            ring: 1024,
            unmatched: Unmatched::Drop,
            rss_key: *RssHasher::default().key(),
        };
        let port = host.open_port(port, config).unwrap_or_else(|error| panic!("{error}"));
        Rig {
            host,
            port,
            end: Instant::now() + lasts,
        }
    }

    /// Server with packets from some networks, each with its time between two packets, for some time.
    pub fn paced(networks: &[(u8, Nanos)], lasts: Nanos) -> Rig {
        let mut source = Paced {
            networks: networks
                .iter()
                .map(|(network, spacing)| (*network, *spacing, Nanos::ZERO))
                .collect(),
            until: Nanos::from_millis(200),
            count: 0,
            frame: Vec::new(),
        };
        let trace = Trace::load(&mut source, &LoadOptions::default()).expect("a trace in memory");
        let clock = Clock::start();
        let config = TraceNicConfig {
            duration: Some(lasts),
            ..TraceNicConfig::default()
        };
        let nic = TraceNic::new(trace, RssHasher::default(), 1, &round_robin(1), config, clock.clone());
        Rig::on(clock, Box::new(nic.expect("a queue")), Duration::from_nanos(lasts.0))
    }

    /// Waits for the end of the traffic.
    pub fn await_end(&self) {
        std::thread::sleep(self.end.saturating_duration_since(Instant::now()) + Duration::from_millis(20));
    }

    /// Starts a chain, and waits until it gets packets.
    pub fn start(&self, functions: &str, sources: Chains) -> Running {
        let plan = plan(functions, Some(&sources));
        let stop = Arc::new(AtomicBool::new(false));
        let (host, stopped) = (Arc::clone(&self.host), Arc::clone(&stop));
        let mut port = ChainPort::new(&self.port, &plan.spec().match_);
        let withdrawal = port.withdrawal();
        let thread = std::thread::spawn(move || {
            let share = TurnShare {
                objective: plan.spec().slo.budget(),
                weight: 1,
            };
            let ended = run_hosted(&plan, (&mut port, &host), share, RunControl::new(&stopped));
            ended.unwrap_or_else(|error| panic!("{error}"))
        });
        while !withdrawal.is_live() {
            assert!(!thread.is_finished(), "the chain has not started");
            std::thread::sleep(Duration::from_millis(1));
        }
        Running {
            thread,
            stop,
            withdrawal,
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.host.stop();
    }
}

/// Packets at equal intervals from each network, of 50 flows each.
struct Paced {
    networks: Vec<(u8, Nanos, Nanos)>,
    until: Nanos,
    count: u16,
    frame: Vec<u8>,
}

impl PacketSource for Paced {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        let next = self.networks.iter_mut().min_by_key(|(.., at)| *at);
        let (network, spacing, at) = next.expect("a network");
        let timestamp = *at;
        if timestamp >= self.until {
            return Ok(None);
        }
        *at += *spacing;
        self.count = (self.count + 1) % 50;
        self.frame = frame(*network, self.count);
        Ok(Some(Packet {
            timestamp,
            data: &self.frame,
            wire_length: self.frame.len() as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "paced"
    }
}

/// Resident memory of this process, in KiB.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    kib.expect("a number")
}
