//! The simulated machine: its constants with their sources, and the chains. Every policy runs on the same.

use tailwater_net::Nanos;
use tailwater_policy::capacity::{DetailedCosts, ServiceCosts, Wake};
use tailwater_sim::{ChainModel, Jitter, Rack, SplitCost};

/// Mean bytes of a packet (NetBlaze, section 4.1).
pub const BYTES: f64 = 988.0;

/// Constant of the machine, with its source.
pub struct Constant {
    pub name: &'static str,
    pub value: f64,
    pub unit: &'static str,
    pub source: &'static str,
}

const fn constant(name: &'static str, value: f64, unit: &'static str, source: &'static str) -> Constant {
    Constant {
        name,
        value,
        unit,
        source,
    }
}

/// All constants. `docs/lab/papers.md` has the same table: `compare constants` prints it.
pub const CONSTANTS: &[Constant] = &[
    constant(
        "receive a packet, find its flow",
        35.0,
        "ns",
        "profiles (`receivePacketNanoseconds`)",
    ),
    constant(
        "receive a batch",
        60.0,
        "ns",
        "assumed; part of a chain's cost of a batch",
    ),
    constant(
        "sort a packet, by flow",
        24.0,
        "ns",
        "`bench-scaling`, `epoch_end`: 73 ns in all, with the look-up",
    ),
    constant(
        "sort a packet, by bucket",
        24.0,
        "ns",
        "`epoch_end`, same hour: 38 ns in all",
    ),
    constant(
        "hand a packet over",
        9.0,
        "ns",
        "`epoch_end`, `ring`: in the 73 and 38 ns",
    ),
    constant("take a receipt", 5.0, "ns", "`epoch_end`, `ring`: in the 73 and 38 ns"),
    constant(
        "take a packet over, on the auxiliary core",
        35.0,
        "ns",
        "profiles (`takeOverPacketNanoseconds`)",
    ),
    constant("decide", 500.0, "ns", "`epoch_end`"),
    constant("decide, for each flow", 4.0, "ns", "`epoch_end`"),
    constant("move a queued packet", 5.0, "ns", "`epoch_end`"),
    constant(
        "wake an auxiliary core, p50",
        15.0,
        "us",
        "live runs, `docs/lab/live-vs-sim.md`",
    ),
    constant("wake an auxiliary core, p90", 30.0, "us", "live runs"),
    constant("wake an auxiliary core, p99", 70.0, "us", "live runs: 60 to 80"),
    constant(
        "until an offloaded packet is there",
        300.0,
        "ns",
        "`ring`: 183 ns until seen, and the batch's 70",
    ),
    constant("until its receipt is back", 300.0, "ns", "the same"),
    constant("bucket or flow from core to core", 1.0, "us", "`rack` default"),
    constant("new bucket table in force", 2.0, "ms", "NetBlaze: up to a few ms"),
    constant(
        "row of the switch's table",
        1.0,
        "ms",
        "`rack` default; a default row for all policies",
    ),
    constant(
        "variation of a batch's time",
        0.05,
        "log-normal sigma",
        "assumed; the oracle has none",
    ),
    constant("receive ring", 1024.0, "packets", "live data plane"),
    constant(
        "packet buffers of a dedicated core",
        2048.0,
        "packets",
        "live data plane",
    ),
];

/// Returns the value of a constant.
pub fn value(name: &str) -> f64 {
    let found = CONSTANTS.iter().find(|constant| constant.name == name);
    found.unwrap_or_else(|| panic!("no constant {name}")).value
}

/// Returns a time in nanoseconds.
fn nanos(name: &str) -> u64 {
    let found = CONSTANTS.iter().find(|constant| constant.name == name);
    let found = found.unwrap_or_else(|| panic!("no constant {name}"));
    let factor = match found.unit {
        "us" => 1e3,
        "ms" => 1e6,
        _ => 1.0,
    };
    (found.value * factor) as u64
}

/// Chain, with its true costs. Policies never see them: see `training`.
#[derive(Debug)]
pub struct Chain {
    pub name: &'static str,
    pub costs: ServiceCosts,
    /// Its folder within NetBlaze's published profiles.
    pub published: Option<&'static str>,
}

const fn chain(name: &'static str, batch: f64, packet: f64, byte: f64, new_flow: f64) -> Chain {
    Chain {
        name,
        costs: ServiceCosts {
            batch,
            packet,
            byte,
            new_flow,
        },
        published: None,
    }
}

/// Chains of the comparison. 1 and 2 are NetBlaze's, with costs that come to its published rates and steps (see
/// `papers`); the others are those of the load curve.
pub static CHAINS: [Chain; 5] = [
    Chain {
        published: Some("chain4"),
        ..chain("chain-1", 320.0, 457.3, 0.0, 235.0)
    },
    Chain {
        published: Some("chain2"),
        ..chain("chain-2", 640.0, 837.4, 0.5, 126.0)
    },
    chain("250 ns", 320.0, 240.0, 0.0, 200.0),
    chain("840 ns", 320.0, 830.0, 0.0, 200.0),
    chain("1350 ns", 320.0, 1340.0, 0.0, 200.0),
];

impl Chain {
    pub fn named(name: &str) -> &'static Chain {
        let found = CHAINS.iter().find(|chain| chain.name == name);
        found.unwrap_or_else(|| panic!("no chain {name}"))
    }

    /// Returns the time of a packet of mean length in full batches, in nanoseconds.
    pub fn packet(&self) -> f64 {
        self.costs.packet + self.costs.byte * BYTES + self.costs.batch / 32.0
    }

    /// Returns its cost model on this machine, with batches of up to `batch` packets.
    pub fn model(&self, batch: u16) -> ChainModel {
        ChainModel {
            receive_batch: value("receive a batch"),
            receive_packet: value("receive a packet, find its flow"),
            dispatch_packet: value("sort a packet, by flow"),
            lease_packet: value("sort a packet, by bucket"),
            hand_over_packet: value("hand a packet over"),
            receipt_packet: value("take a receipt"),
            auxiliary_packet: value("take a packet over, on the auxiliary core"),
            decide: value("decide"),
            decide_flow: value("decide, for each flow"),
            move_packet: value("move a queued packet"),
            wakes: vec![wake()],
            // A chain of three functions of about equal costs; both parts look at the packet.
            splits: SPLITS.to_vec(),
            jitter: Jitter::log_normal(value("variation of a batch's time")),
            batch,
            ..ChainModel::new(self.name, self.costs)
        }
    }
}

/// Cuts of all chains: shares of the packets' costs on the two cores. Assumed: three functions of equal costs, and a
/// tenth of the whole in addition for the second look at the packet.
pub const SPLITS: [SplitCost; 2] = [
    SplitCost {
        last_functions: 1,
        first: 0.67,
        last: 0.43,
    },
    SplitCost {
        last_functions: 2,
        first: 0.33,
        last: 0.77,
    },
];

fn wake() -> Wake {
    Wake {
        asleep: 0,
        p50: nanos("wake an auxiliary core, p50"),
        p90: nanos("wake an auxiliary core, p90"),
        p99: nanos("wake an auxiliary core, p99"),
    }
}

/// Returns what `tailwater profile` reports of the machine itself.
pub fn details() -> DetailedCosts {
    DetailedCosts {
        receive_packet: value("receive a packet, find its flow"),
        queue_packet: value("sort a packet, by flow"),
        hand_over_packet: value("hand a packet over") + value("take a receipt"),
        take_over_packet: value("take a packet over, on the auxiliary core"),
        wakes: vec![wake()],
        ..DetailedCosts::default()
    }
}

/// Returns a server with `cores` cores.
pub fn rack(cores: u16) -> Rack {
    let mut rack = Rack::of_one(cores);
    rack.servers[0].ring = value("receive ring") as u32;
    rack.servers[0].buffers = value("packet buffers of a dedicated core") as u32;
    rack.servers[0].reta_delay = Nanos(nanos("new bucket table in force"));
    rack.switch.rule_latency = Nanos(nanos("row of the switch's table"));
    rack.timing.wake = Nanos(nanos("wake an auxiliary core, p50"));
    rack.timing.hand_over = Nanos(nanos("until an offloaded packet is there"));
    rack.timing.receipt = Nanos(nanos("until its receipt is back"));
    rack.timing.migration = Nanos(nanos("bucket or flow from core to core"));
    rack
}
