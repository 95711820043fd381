//! What a rack is made of: a switch, servers, their cores, and how long things take between them.

use tailwater_net::Nanos;
use tailwater_net::toeplitz::BUCKETS;

/// The most cores of a rack.
pub const MOST_CORES: usize = 4096;

/// The most servers of a rack.
pub const MOST_SERVERS: usize = 256;

/// A rack: one switch, and servers behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rack {
    /// The servers, by number.
    pub servers: Vec<Server>,
    /// The top-of-rack switch.
    pub switch: Switch,
    /// What it takes between cores.
    pub timing: Timing,
    /// How fast its machines are over time; always as fast as costs say, if nothing is said.
    pub pace: Option<Pace>,
}

/// How fast machines are over time: shared ones are not always as fast as when they were measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    /// How long each step lasts.
    pub step: Nanos,
    /// How long batches take in each step, as a part of what they cost: 1.5 takes half as long again. After the
    /// last step it is as in the last.
    pub times: Vec<f64>,
}

/// Batches that take less, or more, than this part of what they cost are those of another machine.
pub const PACES: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// A server: cores, and a NIC with a queue for each of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Its cores.
    pub cores: u16,
    /// NUMA nodes that the cores are dealt out to, in runs. Helpers on other nodes are taken last.
    pub numa_nodes: u16,
    /// The rate of the link from the switch, in bits a second, frames with preamble and gap; 0: no limit.
    pub link_bps: u64,
    /// Descriptors of each receive ring: what does not fit is lost.
    pub ring: u32,
    /// How long a new bucket table takes to be in force.
    pub reta_delay: Nanos,
    /// Packet buffers of each dedicated core: what may wait in its own queue, be with helpers, or be
    /// kept back while a bucket moves. At most 65,535.
    pub buffers: u32,
}

/// The switch in front of the servers.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// Rows of its table that may steer destination prefixes.
    pub table: usize,
    /// How long it takes to write a row. Packets that wait for theirs are kept in the controller.
    pub rule_latency: Nanos,
    /// Packets that the controller keeps for a row; others are lost.
    pub held: usize,
    /// Bytes that may wait for each server's link; others are lost.
    pub buffer_bytes: u64,
}

/// What it takes between cores. All of it is about machines, not about chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From a packet's arrival until a core that waits for it has noticed.
    pub poll: Nanos,
    /// Until a helper that sleeps has woken up.
    pub wake: Nanos,
    /// How long a helper without work looks for some before it falls asleep.
    pub spin: Nanos,
    /// Until packets that were handed over are with the helper.
    pub hand_over: Nanos,
    /// Until the end of a handed packet is known to who handed it over.
    pub receipt: Nanos,
    /// Until an RSS bucket or a flow that its old core has let go is with the new one.
    pub migration: Nanos,
    /// How often a core that has nothing to do but to watch its helpers looks up.
    pub look: Nanos,
    /// A call from one machine to another.
    pub rpc: Nanos,
}

impl Default for Server {
    /// 32 cores on two nodes, 100 Gbit/s, and the live data plane's ring, delay and buffers.
    fn default() -> Self {
        Server {
            cores: 32,
            numa_nodes: 2,
            link_bps: 100_000_000_000,
            ring: 1024,
            reta_delay: Nanos::from_millis(2),
            buffers: 2048,
        }
    }
}

impl Default for Switch {
    /// A table of 2,000 rows, a millisecond to write one, 1 MB for each link.
    fn default() -> Self {
        Switch {
            table: 2000,
            rule_latency: Nanos::from_millis(1),
            held: 4096,
            buffer_bytes: 1 << 20,
        }
    }
}

impl Default for Timing {
    /// As on the machine that the live data plane was measured on, about: packets are noticed at
    /// once, 20 µs to wake up, a third of a microsecond between cores, a millisecond for a call.
    fn default() -> Self {
        Timing {
            poll: Nanos::ZERO,
            wake: Nanos::from_micros(20),
            spin: Nanos::ZERO,
            hand_over: Nanos(300),
            receipt: Nanos(300),
            migration: Nanos::from_micros(1),
            look: Nanos::from_micros(2),
            rpc: Nanos::from_millis(1),
        }
    }
}

/// Why there can be no such rack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: expected {expected}, found {found}")]
pub struct RackError {
    /// The field, as a path: `servers[2].cores`.
    pub field: String,
    /// What was expected.
    pub expected: String,
    /// What was found.
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
    /// A rack of one such server whose link has no limit.
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
        }
    }

    /// All cores of all servers.
    pub fn cores(&self) -> usize {
        self.servers.iter().map(|server| usize::from(server.cores)).sum()
    }

    /// Whether there can be such a rack.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), RackError> {
        let count = self.servers.len();
        if count == 0 || count > MOST_SERVERS {
            let expected = format!("1 to {MOST_SERVERS} servers");
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
            // A bucket is the least that a core can own.
            within("cores", server.cores.into(), 1, BUCKETS as u64)?;
            within("numa_nodes", server.numa_nodes.into(), 1, server.cores.into())?;
            within("ring", server.ring.into(), 1, 1 << 20)?;
            within("buffers", server.buffers.into(), 64, u16::MAX.into())?;
            if server.link_bps > 0 {
                within("link_bps", server.link_bps, 1_000_000, 10_000_000_000_000)?;
            }
        }
        if self.cores() > MOST_CORES {
            let expected = format!("at most {MOST_CORES} cores in all");
            return Err(RackError::new("servers", expected, self.cores()));
        }
        if self.timing.look == Nanos::ZERO {
            return Err(RackError::new("timing.look", "a time above zero", "0ns"));
        }
        if let Some(pace) = &self.pace {
            if pace.step == Nanos::ZERO || pace.times.is_empty() {
                return Err(RackError::new("pace", "steps that last", "none"));
            }
            if let Some(wrong) = pace.times.iter().find(|times| !PACES.contains(times)) {
                let expected = format!("{} to {}", PACES.start(), PACES.end());
                return Err(RackError::new("pace.times", expected, wrong));
            }
        }
        let times = [
            ("switch.rule_latency", self.switch.rule_latency),
            ("timing.wake", self.timing.wake),
            ("timing.spin", self.timing.spin),
            ("timing.poll", self.timing.poll),
            ("timing.hand_over", self.timing.hand_over),
            ("timing.receipt", self.timing.receipt),
            ("timing.migration", self.timing.migration),
            ("timing.look", self.timing.look),
            ("timing.rpc", self.timing.rpc),
        ];
        for (name, time) in times {
            if time > Nanos::from_secs(10) {
                return Err(RackError::new(name, "at most 10s", time));
            }
        }
        Ok(())
    }
}
