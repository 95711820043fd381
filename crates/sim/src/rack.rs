//! Model of a rack: a switch, servers, their cores, and the delays between them.

use tailwater_net::Nanos;
use tailwater_net::toeplitz::BUCKETS;

/// Maximum number of cores of a rack.
pub const MOST_CORES: usize = 4096;

/// Maximum number of servers of a rack.
pub const MOST_SERVERS: usize = 256;

/// Rack: one switch, and servers behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rack {
    /// Servers, by number.
    pub servers: Vec<Server>,
    /// Top-of-rack switch.
    pub switch: Switch,
    /// Delays between cores.
    pub timing: Timing,
    /// Speed of its machines over time, or `None` for the speed that the costs imply.
    pub pace: Option<SpeedProfile>,
    /// Interruptions of each core, by its number in the rack, in order of time, as they were measured in a live run.
    /// Cores without a list have those of the [chain](crate::ChainModel::pauses), drawn at random.
    pub interruptions: Vec<Vec<Interruption>>,
    /// Sharing of cores among chains.
    pub sharing: CoreSharing,
    /// By chain: its server, unless chains run on all servers ([`CoreSharing::FirstCome`]). Others are on each server
    /// in turn.
    pub homes: Vec<u16>,
}

/// Sharing of a server's cores among chains. With the last two, each chain runs on [one server](Rack::homes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoreSharing {
    /// Each chain has a share of every server's cores for queues. All other cores can serve any of them as auxiliary
    /// cores: first come, first served.
    #[default]
    FirstCome,
    /// Each chain of a server has an equal share of its cores, for queues and as auxiliary cores.
    Own,
    /// All cores of a server are lent and dedicated by a [core broker](tailwater_policy::broker).
    Broker,
}

/// Time in which the machine takes a core away from its task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interruption {
    /// Its start, from the start of the run.
    pub begins: Nanos,
    /// Its duration.
    pub length: Nanos,
}

/// Speed of machines over time. Shared machines are not always as fast as when they were measured.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeedProfile {
    /// Duration of each step.
    pub step: Nanos,
    /// Duration of batches in each step, as a factor on their cost: 1.5 takes half as long again. The last step's
    /// factor holds from then on.
    pub times: Vec<f64>,
}

/// Valid factors. Larger or smaller ones belong to a different machine.
pub const SPEED_FACTORS: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// Server: cores, and a NIC with a queue for each of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Number of cores.
    pub cores: u16,
    /// Number of NUMA nodes. Each has a contiguous run of the cores. Auxiliary cores on other nodes are used last.
    pub numa_nodes: u16,
    /// Rate of the link from the switch, in bits per second, for frames with preamble and gap. 0 stands for no limit.
    pub link_bps: u64,
    /// Descriptors of each receive ring. Packets that do not fit are lost.
    pub ring: u32,
    /// Delay until a new bucket table is in force.
    pub reta_delay: Nanos,
    /// Packet buffers of each dedicated core, for packets in its own queue, on auxiliary cores, or buffered while a
    /// bucket migrates. At most 65,535.
    pub buffers: u32,
    /// Time from the first packet at which it fails, with all packets and flow state that it has, or `None` for never.
    pub fails_at: Option<Nanos>,
}

/// Switch in front of the servers.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// Rows of its table that can steer destination prefixes.
    pub table: usize,
    /// Time to write a row. The controller buffers packets that wait for theirs.
    pub rule_latency: Nanos,
    /// Packets that the controller buffers per row. Others are lost.
    pub max_buffered: usize,
    /// Buffer for each server's link, in bytes. Packets beyond it are lost.
    pub buffer_bytes: u64,
    /// `true` if rows can also match a part of the flow hash, as select groups of OpenFlow do.
    pub flow_hash: bool,
}

/// Delays between cores. They depend on the machines, not on the chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From a packet's arrival until a polling core notices it.
    pub poll: Nanos,
    /// Until a sleeping auxiliary core is awake.
    pub wake: Nanos,
    /// Time for which an idle auxiliary core polls before it falls asleep.
    pub spin: Nanos,
    /// Until offloaded packets are at the auxiliary core.
    pub hand_over: Nanos,
    /// Until the dispatching core gets the receipt of a completed packet.
    pub receipt: Nanos,
    /// Until an RSS bucket or a flow is transferred from its old core to the new one.
    pub migration: Nanos,
    /// Polling interval of a core that only waits for its auxiliary cores.
    pub poll_interval: Nanos,
    /// A call from one machine to another.
    pub rpc: Nanos,
    /// Transfer of a flow's state from one server to another, in addition to the call.
    pub flow_transfer: Nanos,
}

impl Default for Server {
    /// Returns 32 cores on two nodes, 100 Gbit/s, and the live data plane's ring, delay and buffers.
    fn default() -> Self {
        Server {
            cores: 32,
            numa_nodes: 2,
            link_bps: 100_000_000_000,
            ring: 1024,
            reta_delay: Nanos::from_millis(2),
            buffers: 2048,
            fails_at: None,
        }
    }
}

impl Default for Switch {
    /// Returns a table of 2,000 rows, a millisecond to write one, and 1 MB for each link.
    fn default() -> Self {
        Switch {
            table: 2000,
            rule_latency: Nanos::from_millis(1),
            max_buffered: 4096,
            buffer_bytes: 1 << 20,
            flow_hash: true,
        }
    }
}

impl Default for Timing {
    /// Returns approximate values of the machine that the live data plane was measured on: packets are noticed at once,
    /// wake-ups take 20 µs, transfers between cores a third of a microsecond, and calls a millisecond. A flow's state
    /// of some 500 bytes takes 50 ns at 100 Gbit/s.
    fn default() -> Self {
        Timing {
            poll: Nanos::ZERO,
            wake: Nanos::from_micros(20),
            spin: Nanos::ZERO,
            hand_over: Nanos(300),
            receipt: Nanos(300),
            migration: Nanos::from_micros(1),
            poll_interval: Nanos::from_micros(2),
            rpc: Nanos::from_millis(1),
            flow_transfer: Nanos(50),
        }
    }
}

/// Reason why a rack is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: expected {expected}, found {found}")]
pub struct RackError {
    /// Field, as a path: `servers[2].cores`.
    pub field: String,
    /// Expected value.
    pub expected: String,
    /// Value found.
    pub found: String,
}

impl RackError {
    fn new(field: impl Into<String>, expected: impl Into<String>, found: impl ToString) -> Self {
        RackError {
            field: field.into(),
            expected: expected.into(),
            found: found.to_string(),
        }
    }
}

impl Rack {
    /// Returns a rack of one default server with `cores` cores and an unlimited link.
    pub fn of_one(cores: u16) -> Rack {
        Rack {
            servers: vec![Server {
                cores,
                numa_nodes: 1,
                link_bps: 0,
                ..Server::default()
            }],
            switch: Switch::default(),
            timing: Timing::default(),
            pace: None,
            interruptions: Vec::new(),
            sharing: CoreSharing::default(),
            homes: Vec::new(),
        }
    }

    /// Returns the number of a chain's server, if it runs on one only.
    pub fn home(&self, chain: usize) -> Option<usize> {
        let in_turn = chain % self.servers.len().max(1);
        let home = self.homes.get(chain).map_or(in_turn, |home| usize::from(*home));
        (self.sharing != CoreSharing::FirstCome).then_some(home)
    }

    /// Returns the number of cores of all servers.
    pub fn cores(&self) -> usize {
        self.servers.iter().map(|server| usize::from(server.cores)).sum()
    }

    /// Checks that the rack is valid for the packet-level model.
    ///
    /// # Errors
    /// Returns the first field that is invalid.
    pub fn check(&self) -> Result<(), RackError> {
        self.check_within(MOST_SERVERS, MOST_CORES)
    }

    /// Checks that the rack is valid, and has at most this many servers and cores.
    ///
    /// # Errors
    /// Returns the first field that is invalid.
    pub fn check_within(&self, most_servers: usize, most_cores: usize) -> Result<(), RackError> {
        let count = self.servers.len();
        if count == 0 || count > most_servers {
            let expected = format!("1 to {most_servers} servers");
            return Err(RackError::new("servers", expected, count));
        }
        for (number, server) in self.servers.iter().enumerate() {
            let field = |name: &str| format!("servers[{number}].{name}");
            let within = |name: &str, value: u64, least: u64, most: u64| {
                if (least..=most).contains(&value) {
                    return Ok(());
                }
                let expected = format!("a number from {least} to {most}");
                Err(RackError::new(field(name), expected, value))
            };
            // A core owns at least one bucket.
            within("cores", server.cores.into(), 1, BUCKETS as u64)?;
            within("numa_nodes", server.numa_nodes.into(), 1, server.cores.into())?;
            within("ring", server.ring.into(), 1, 1 << 20)?;
            within("buffers", server.buffers.into(), 64, u16::MAX.into())?;
            if server.link_bps > 0 {
                within("link_bps", server.link_bps, 1_000_000, 10_000_000_000_000)?;
            }
        }
        if self.cores() > most_cores {
            let expected = format!("at most {most_cores} cores in all");
            return Err(RackError::new("servers", expected, self.cores()));
        }
        if self.timing.poll_interval == Nanos::ZERO {
            return Err(RackError::new("timing.look", "a time above zero", "0ns"));
        }
        if let Some(pace) = &self.pace {
            if pace.step == Nanos::ZERO || pace.times.is_empty() {
                return Err(RackError::new("pace", "steps that last", "none"));
            }
            if let Some(wrong) = pace.times.iter().find(|times| !SPEED_FACTORS.contains(times)) {
                let expected = format!("{} to {}", SPEED_FACTORS.start(), SPEED_FACTORS.end());
                return Err(RackError::new("pace.times", expected, wrong));
            }
        }
        if self.interruptions.len() > self.cores() {
            let expected = format!("at most {} lists, one for each core", self.cores());
            return Err(RackError::new("interruptions", expected, self.interruptions.len()));
        }
        for (number, list) in self.interruptions.iter().enumerate() {
            let overlaps = |pair: &[Interruption]| pair[0].begins.0.saturating_add(pair[0].length.0) > pair[1].begins.0;
            if let Some(pair) = list.windows(2).find(|pair| overlaps(pair)) {
                let field = format!("interruptions[{number}]");
                return Err(RackError::new(field, "each after the one before", pair[1].begins));
            }
        }
        if let Some(home) = self.homes.iter().find(|home| usize::from(**home) >= count) {
            return Err(RackError::new("homes", format!("servers up to {}", count - 1), home));
        }
        let times = [
            ("switch.rule_latency", self.switch.rule_latency),
            ("timing.wake", self.timing.wake),
            ("timing.spin", self.timing.spin),
            ("timing.poll", self.timing.poll),
            ("timing.hand_over", self.timing.hand_over),
            ("timing.receipt", self.timing.receipt),
            ("timing.migration", self.timing.migration),
            ("timing.look", self.timing.poll_interval),
            ("timing.rpc", self.timing.rpc),
            ("timing.flowTransfer", self.timing.flow_transfer),
        ];
        for (name, time) in times {
            if time > Nanos::from_secs(10) {
                return Err(RackError::new(name, "at most 10s", time));
            }
        }
        Ok(())
    }
}
