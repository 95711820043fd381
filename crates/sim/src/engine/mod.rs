//! The engine: virtual time, in nanoseconds, and its events.
//!
//! There is no event per packet. Packets are taken in chunks. Those up to the next *control* (a window ends, a mapper
//! runs, a table changes) are sorted to the cores' receive queues, and then the cores work up to that time. A core's
//! event is an iteration of its loop: up to a batch received, up to a batch processed. Independent cores each run
//! through their queue on their own. Otherwise a [tournament](tree) selects the core that is next. Both ways give the
//! same result.
//!
//! | | |
//! |---|---|
//! | `run` | passage of time |
//! | `arrive` | from the switch to the rings: prefixes, links, bucket tables, placed flows |
//! | `balance`, `row_steering` | flows between servers |
//! | `turn` | a core without auxiliary cores |
//! | `dispatching`, `dispatch` | a core with auxiliary cores |
//! | `offloading`, `offload_queue` | the auxiliary cores, and packets on their way there and back |
//! | `brokered`, `brokering` | leases of auxiliary cores and dedicated cores, by a core broker |
//! | `moves` | buckets and flows between cores |
//! | `late` | packets that are discarded since they are too late |
//! | `server_use` | servers that fail, and servers that are emptied |
//! | `machine` | interruptions of a core, and its speed |
//! | `control` | mappers, controllers, windows |
//! | `sampling` | the burst shown in a report |
//! | `check` | invariants |

mod account;
mod arrive;
mod balance;
mod brokered;
mod brokering;
mod burst;
mod chain_state;
mod check;
mod control;
mod core;
mod dispatch;
mod dispatching;
mod fifo;
mod late;
mod machine;
mod meter;
mod moves;
mod offload_queue;
mod offloading;
mod packet_lists;
mod queue;
mod row_steering;
mod run;
mod sampling;
mod server_use;
mod tree;
mod turn;
mod usage;
mod waiting;

use crate::chain::Costs;
use crate::policies::Steered;
use crate::rack::{CoreSharing, Rack};
use crate::report::Burst;
use crate::traffic::Packet;
use brokered::Brokers;
use burst::BurstRecorder;
use chain_state::{
    BucketSteering, CacheResidency, ChainState, FlowSteering, Ingress, NO_CORE, SEEN, Steering, SteeringDomain,
};
use check::Checker;
use core::Core;
use meter::Meter;
use row_steering::Balanced;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use tailwater_api::WhenOverloaded;
use tailwater_dispatch::Freshness;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_policy::core::{MakeMapper, Unit};
use tailwater_policy::flows::{CoreSignals, FlowPlan, FlowView};
use tailwater_policy::server::{IngressMapper, Move, RowMatch, ServerCounters, ServerMapper};
use tree::{NEVER, Tree};
use usage::Usage;
use waiting::Waiting;

pub(crate) use meter::Counts;

/// Time in nanoseconds for which a controller stores a silent flow.
const MEMORY: u64 = 1_000_000_000;

/// Event that is due at a given time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// A window ends.
    Window,
    /// A steering domain's mapper may be due: tenant, domain.
    Remap(usize, usize),
    /// A steering domain's table changes.
    Moves(usize, usize, Vec<Move>),
    /// The ingress gets a server's number of dedicated cores: tenant, server, cores.
    Reported(usize, usize, u16),
    /// A row of the switch's table that packets wait for is written: tenant, row.
    Row(usize, u32),
    /// Servers sample their counters for the ingress.
    Counters(usize),
    /// The ingress gets them, but for those of lost servers.
    Rebalance(usize, Vec<Option<ServerCounters>>),
    /// Rows that move flows between servers are in force.
    RowsWritten(usize),
    /// Servers may have completed the packets of flows that leave them.
    RowMoves(usize),
    /// A row's flows are at their new server.
    RowMoved(usize, RowMatch),
    /// A server without rows gives its cores back: tenant, server.
    Deactivate(usize, usize),
    /// A server fails.
    ServerFails(usize),
    /// A controller's period ends.
    Observe(usize),
    /// A controller decides.
    DecideFlows(usize),
    /// A controller's decision takes effect.
    EnforceFlows(usize),
    /// Chains are sampled for the report's bursts.
    Watch,
}

/// Entry of the control heap. The earliest is greatest, and equal times are ordered by insertion.
#[derive(Debug, PartialEq, Eq)]
struct Due(Reverse<(u64, u64)>, Control);

impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Delays between cores, in nanoseconds.
struct Delays {
    poll: u64,
    wake: u64,
    spin: u64,
    hand_over: u64,
    receipt: u64,
    migration: u64,
    poll_interval: u64,
    rpc: u64,
    flow_transfer: u64,
}

/// State of a server.
struct ServerState {
    /// Number of changes to the set of cores that can be activated.
    claims: u64,
    /// Picoseconds per byte on its link. 0 stands for no limit.
    byte_picos: u64,
    /// Time at which the link is free, and the capacity of its buffer, in picoseconds.
    link_free: u64,
    link_buffer: u64,
    /// Time of its failure, once it is over.
    failed_at: Option<u64>,
}

/// A chain, ready to run.
pub(crate) struct ChainSetup {
    pub costs: Costs,
    pub slo: Nanos,
    pub make: Option<MakeMapper>,
    pub steered: Steered,
    pub start_cores: u16,
    /// Cores of each server that can get a queue.
    pub cores: Vec<Vec<u16>>,
    pub seed: u64,
    pub check: bool,
}

/// State of a simulation. See the [module](self).
pub(crate) struct Engine<'r> {
    rack: &'r Rack,
    timing: Delays,
    cores: Vec<Core>,
    servers: Vec<ServerState>,
    chains: Vec<ChainState>,
    brokers: Brokers,
    tree: Tree,
    /// `true` if the tree holds every core's time.
    scheduled: bool,
    /// `true` to never run cores independently, so that both ways can be compared.
    together: bool,
    controls: BinaryHeap<Due>,
    /// Lower bound on the time of the next control.
    control_at: u64,
    numbered: u64,
    /// Number of cores with a core mapper, and of buckets and flows in migration.
    dispatchers: u32,
    moving: u32,
    /// Buffered packets that can continue.
    resumed: usize,
    retiring: Vec<(u16, u64)>,
    usage: Usage,
    /// By tenant, the data that its burst is chosen from, if requested.
    watches: Vec<Option<BurstRecorder>>,
    window: u64,
    /// End of the warm-up, a multiple of the window.
    warm_up: u64,
    last_arrival: u64,
    /// `true` if no more packets arrive.
    draining: bool,
    /// Batch memory, reused.
    batch: Vec<Waiting>,
    lost: Vec<Packet>,
    /// Lower bound on the arrival of all packets in the system, and the chunks since it was computed.
    known_oldest: u64,
    chunks: u32,
}

impl<'r> Engine<'r> {
    /// Creates the engine for a rack with these chains. The rack has been [checked](Rack::check). Windows are reported
    /// from the end of the warm-up on.
    pub fn new(rack: &'r Rack, (window, warm_up): (Nanos, Nanos), setups: Vec<ChainSetup>, together: bool) -> Self {
        let slo = setups.first().map_or(Nanos::ZERO, |setup| setup.slo);
        let mut cores = Vec::new();
        let mut servers = Vec::new();
        for (number, server) in rack.servers.iter().enumerate() {
            for core in 0..server.cores {
                let node = core * server.numa_nodes / server.cores;
                let (ring, buffers) = (server.ring as usize, server.buffers as usize);
                let mut new = Core::new(number as u16, node, ring, buffers, slo);
                if let Some(measured) = rack.interruptions.get(cores.len()) {
                    new.pausing = machine::Pausing::of(measured);
                }
                cores.push(new);
            }
            let byte_picos = match server.link_bps {
                0 => 0,
                bps => (8_000_000_000_000 / bps).max(1),
            };
            servers.push(ServerState {
                claims: 0,
                byte_picos,
                link_free: 0,
                link_buffer: rack.switch.buffer_bytes.saturating_mul(byte_picos),
                failed_at: None,
            });
        }
        let t = &rack.timing;
        let mut engine = Engine {
            timing: Delays {
                poll: t.poll.0,
                wake: t.wake.0,
                spin: t.spin.0,
                hand_over: t.hand_over.0,
                receipt: t.receipt.0,
                migration: t.migration.0,
                poll_interval: t.poll_interval.0,
                rpc: t.rpc.0,
                flow_transfer: t.flow_transfer.0,
            },
            tree: Tree::new(cores.len()),
            usage: Usage::new(cores.len()),
            watches: Vec::new(),
            rack,
            cores,
            servers,
            chains: Vec::new(),
            brokers: brokers(rack, &setups),
            scheduled: false,
            together,
            controls: BinaryHeap::new(),
            control_at: NEVER,
            numbered: 0,
            dispatchers: 0,
            moving: 0,
            resumed: 0,
            retiring: Vec::new(),
            window: window.0.max(1),
            warm_up: warm_up.0,
            last_arrival: 0,
            draining: false,
            batch: Vec::new(),
            lost: Vec::new(),
            known_oldest: 0,
            chunks: 0,
        };
        for setup in setups {
            engine.add(setup);
        }
        engine.at(engine.window, Control::Window);
        for (number, server) in rack.servers.iter().enumerate() {
            if let Some(time) = server.fails_at {
                engine.at(time.0, Control::ServerFails(number));
            }
        }
        engine
    }

    fn add(&mut self, setup: ChainSetup) {
        let number = self.chains.len();
        let epoch = ChainState::epoch(setup.slo);
        let section = |cores: Vec<u16>, mapper, delay: Nanos| SteeringDomain {
            cores,
            table: Box::new([NO_CORE; BUCKETS]),
            holder: Box::new([NO_CORE; BUCKETS]),
            transit: Box::new([0; BUCKETS]),
            moving: 0,
            decided: 0,
            mapper,
            account: account::Account::new(epoch),
            delay: delay.0,
            active: false,
            planned: false,
            start_cores: setup.start_cores,
            asked: 0,
        };
        let all = || in_turn(&setup.cores);
        let slowest = self.rack.servers.iter().map(|server| server.reta_delay).max();
        let slowest = slowest.unwrap_or(Nanos::ZERO);
        let steering = match setup.steered {
            Steered::Rack(mapper) => Steering::Buckets(BucketSteering {
                sections: vec![section(all(), mapper, slowest)],
                ingress: None,
                balanced: None,
            }),
            Steered::Servers { ingress, make } => {
                let servers = self.rack.servers.iter().zip(&setup.cores);
                let servers = servers.filter(|(_, cores)| !cores.is_empty());
                let sections = servers.map(|(server, cores)| {
                    let mapper: Box<dyn ServerMapper> = make();
                    section(cores.clone(), Some(mapper), server.reta_delay)
                });
                let sections: Vec<SteeringDomain> = sections.collect();
                let servers = sections.len();
                // With one server there is no steering.
                let steers = servers > 1;
                let cores = setup.cores.iter().map(|cores| cores.len() as u16);
                Steering::Buckets(BucketSteering {
                    balanced: (steers && ingress.rebalance).then(|| Box::new(Balanced::new(ingress, cores))),
                    sections,
                    ingress: (steers && !ingress.rebalance).then(|| Ingress {
                        mapper: IngressMapper::new(ingress, servers as u16),
                        server_of: Vec::new(),
                        reported: vec![0; servers],
                        pending: Vec::new(),
                        row_of: HashMap::new(),
                        rows: 0,
                        rule_latency: self.rack.switch.rule_latency.0,
                        max_buffered: self.rack.switch.max_buffered,
                    }),
                })
            }
            Steered::Flows(mapper) => {
                let cores = all();
                let start = usize::from(setup.start_cores).clamp(1, cores.len());
                Steering::Flows(FlowSteering {
                    mapper,
                    shards: Box::new(std::array::from_fn(|shard| (shard % start) as u16)),
                    cores,
                    flows: Vec::new(),
                    known: Vec::new(),
                    memory: (MEMORY >> SEEN) as u32,
                    snapshot: None,
                    plans: VecDeque::new(),
                    asked: 0,
                })
            }
        };
        self.timing.poll = self.timing.poll.max(setup.costs.poll);
        let unit = match (&steering, &setup.make) {
            // A core without whole buckets offloads flows.
            (Steering::Flows(_), _) | (_, None) => Unit::Flow,
            (Steering::Buckets(_), Some(make)) => make().unit(),
        };
        if setup.costs.when_overloaded == WhenOverloaded::ServeFresh {
            for core in setup.cores.iter().flatten() {
                self.cores[usize::from(*core)].freshness = Some(Freshness::new(setup.slo));
            }
        }
        let warmth = CacheResidency::new(setup.costs.cold_after, self.cores.len());
        self.chains.push(ChainState {
            costs: setup.costs.with_unit(unit),
            speed: self.rack.pace.as_ref().map(machine::Speed::new),
            seed: setup.seed,
            meter: Meter::new(setup.slo),
            check: setup.check.then(Checker::default),
            decisions: Default::default(),
            make: setup.make,
            slots: Vec::new(),
            warmth,
            steering,
            auxiliaries: (self.rack.sharing == CoreSharing::Own).then(|| setup.cores.concat()),
            transits: Vec::new(),
            free: Vec::new(),
            dedicated: 0,
            auxiliary: 0,
            cores: 0,
            worked: 0,
        });
        self.start(number, setup.start_cores);
    }

    /// Sets up a tenant before the first packet.
    fn start(&mut self, number: usize, start_cores: u16) {
        let alone = match &mut self.chains[number].steering {
            Steering::Buckets(steering) => {
                let alone = steering.ingress.is_none() && steering.balanced.is_none();
                if let Some(balanced) = &steering.balanced {
                    let interval = balanced.mapper.report_interval().0;
                    self.at(interval, Control::Counters(number));
                }
                alone
            }
            Steering::Flows(steering) => {
                let period = steering.mapper.control_loop().period.0.max(1);
                let signals = |core: usize| CoreSignals {
                    active: core < usize::from(start_cores),
                    ..CoreSignals::default()
                };
                let cores: Vec<CoreSignals> = (0..steering.cores.len()).map(signals).collect();
                let view = FlowView {
                    now: Nanos::ZERO,
                    flows: &[],
                    shards: &*steering.shards,
                    cores: &cores,
                };
                // There is nothing yet to plan for.
                steering.mapper.decide(&view, &mut FlowPlan::default());
                let first: Vec<u16> = steering.cores.to_vec();
                for core in first.into_iter().take(usize::from(start_cores).max(1)) {
                    self.dedicate(usize::from(core), number, 0, 0);
                }
                self.at(period, Control::Observe(number));
                false
            }
        };
        if alone {
            self.activate(number, 0, 0);
        }
    }

    /// Schedules a control.
    fn at(&mut self, time: u64, control: Control) {
        self.numbered += 1;
        self.control_at = self.control_at.min(time);
        self.controls.push(Due(Reverse((time, self.numbered)), control));
    }

    fn next_control(&self) -> u64 {
        self.controls.peek().map_or(NEVER, |Due(Reverse((time, _)), _)| *time)
    }

    fn do_control(&mut self) {
        if let Some(Due(Reverse((time, _)), control)) = self.controls.pop() {
            self.control(control, time);
        }
    }

    /// Ends the run at a given time. Returns each tenant, and the active cores in each epoch.
    pub fn finish(mut self, end: u64) -> (Vec<Finished>, Vec<u16>) {
        for core in &self.cores {
            if let Some((chain, _)) = core.dedicated {
                self.chains[usize::from(chain)].dedicated += end.saturating_sub(core.since);
            }
            if let Some(claim) = core.activation
                && let Some((chain, _)) = self.cores[usize::from(claim.dispatcher)].dedicated
            {
                let since = end.saturating_sub(claim.since);
                self.chains[usize::from(chain)].auxiliary += since;
            }
        }
        let start = (end / self.window) * self.window;
        let bursts = self.watches.into_iter().map(|watch| watch?.finish());
        let mut bursts = bursts.chain(std::iter::repeat(None));
        let finished = self.chains.into_iter().map(|mut chain| {
            let meter = &mut chain.meter;
            if meter.window != Counts::default() {
                let next = self.warm_up + meter.windows.len() as u64 * self.window;
                let start = start.min(next);
                meter.roll(start);
            }
            Finished {
                meter: chain.meter,
                decisions: chain.decisions,
                dedicated: chain.dedicated,
                auxiliary: chain.auxiliary,
                worked: chain.worked,
                burst: bursts.next().flatten(),
            }
        });
        let finished = finished.collect();
        (finished, self.usage.finish(self.warm_up, end))
    }
}

/// Returns the brokers of a rack whose chains share cores under them.
fn brokers(rack: &Rack, setups: &[ChainSetup]) -> Brokers {
    if rack.sharing != CoreSharing::Broker {
        return Brokers::default();
    }
    let mut first = 0;
    Brokers::new(rack.servers.iter().enumerate().map(|(number, server)| {
        let cores = first..first + usize::from(server.cores);
        first = cores.end;
        let is_at_home = |chain: &usize| !setups[*chain].cores[number].is_empty();
        (cores, (0..setups.len()).filter(is_at_home).collect())
    }))
}

/// Returns the servers' cores, one of each server in turn, so that the first few use as many links as possible.
fn in_turn(servers: &[Vec<u16>]) -> Vec<u16> {
    let most = servers.iter().map(Vec::len).max().unwrap_or(0);
    let rounds = (0..most).flat_map(|core| servers.iter().filter_map(move |own| own.get(core)));
    rounds.copied().collect()
}

/// Results of a tenant.
pub(crate) struct Finished {
    pub meter: Meter,
    pub decisions: crate::report::Decisions,
    pub dedicated: u64,
    pub auxiliary: u64,
    pub worked: u64,
    pub burst: Option<Burst>,
}

#[cfg(test)]
mod tests {
    use super::in_turn;

    #[test]
    fn cores_of_a_rack_are_dealt_out_over_its_servers() {
        let servers = [vec![0, 1, 2], vec![3], vec![4, 5]];
        assert_eq!(in_turn(&servers), [0, 3, 4, 1, 5, 2]);
    }
}
