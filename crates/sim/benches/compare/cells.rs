//! Cells of the comparison: a chain, an objective, cores, and traffic.

use super::machine::{self, BYTES, Chain};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_sim::{FlowOptions, Rack, Recording};
use tailwater_traffic::generate::{Preset, preset};

/// Time from a start at full load until what is reported as settled, and the time reported.
pub const COLD: Nanos = Nanos::from_millis(2000);
pub const SETTLED: Nanos = Nanos::from_millis(1000);
/// Time for which presets send before the first packet.
const BEFORE: Nanos = Nanos::from_secs(2);
const MEMORY: u64 = 8 << 30;
/// Flows of the cell with many flows, and of the sending period of synchronised bursts.
const MANY: u64 = 1_000_000;
const PERIOD: u64 = 20_000_000;

/// Shape of a cell's traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// As the preset sends.
    Level,
    /// With a flow in addition that takes this many cores.
    Whale(f64),
    /// A tenth of the flows until the settled time is half over, then all.
    Step,
    /// All packets of 20 ms in their first third.
    Bursts,
    /// A million flows, of which each packet has any.
    ManyFlows,
    /// As the preset sends, on several servers, of which the first fails early in the settled time.
    ServerLost,
}

/// Cell: load on a server.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub group: &'static str,
    pub name: &'static str,
    pub chain: &'static str,
    pub preset: &'static str,
    pub slo_us: u64,
    /// Cores of a server.
    pub cores: u16,
    /// Mean load, in cores that process full batches.
    pub load: f64,
    pub shape: Shape,
}

const fn cell(
    group: &'static str,
    name: &'static str,
    (chain, preset, slo_us): (&'static str, &'static str, u64),
    (cores, load, shape): (u16, f64, Shape),
) -> Cell {
    Cell {
        group,
        name,
        chain,
        preset,
        slo_us,
        cores,
        load,
        shape,
    }
}

use Shape::{Bursts, Level, ManyFlows, ServerLost, Step, Whale};

/// Traffic and load of the papers' cells: two cores' worth on a server of 16, as bursty as that makes it.
const PAPERS: (u16, f64, Shape) = (16, 2.0, Level);
const SMALL: (u16, f64, Shape) = (4, 1.5, Level);
const HARD: (&str, &str, u64) = ("840 ns", "backbone", 200);

/// All cells. Those with the same traffic follow one another.
pub const CELLS: &[Cell] = &[
    cell("papers", "chain-2 backbone 100", ("chain-2", "backbone", 100), PAPERS),
    cell("papers", "chain-2 backbone 200", ("chain-2", "backbone", 200), PAPERS),
    cell("papers", "chain-2 backbone 500", ("chain-2", "backbone", 500), PAPERS),
    cell("papers", "chain-2 as 100", ("chain-2", "as", 100), PAPERS),
    cell("papers", "chain-2 as 200", ("chain-2", "as", 200), PAPERS),
    cell("papers", "chain-2 as 500", ("chain-2", "as", 500), PAPERS),
    cell("papers", "chain-1 backbone 100", ("chain-1", "backbone", 100), PAPERS),
    cell("papers", "chain-1 backbone 200", ("chain-1", "backbone", 200), PAPERS),
    cell("papers", "chain-1 backbone 500", ("chain-1", "backbone", 500), PAPERS),
    cell("papers", "chain-1 as 100", ("chain-1", "as", 100), PAPERS),
    cell("papers", "chain-1 as 200", ("chain-1", "as", 200), PAPERS),
    cell("papers", "chain-1 as 500", ("chain-1", "as", 500), PAPERS),
    cell("small", "250 ns", ("250 ns", "backbone", 200), SMALL),
    cell("small", "840 ns", ("840 ns", "backbone", 200), SMALL),
    cell("small", "1350 ns", ("1350 ns", "backbone", 200), SMALL),
    cell("small", "1350 ns as", ("1350 ns", "as", 200), SMALL),
    cell("hard", "load 60 %", HARD, (4, 2.4, Level)),
    cell("hard", "load 80 %", HARD, (4, 3.2, Level)),
    cell("hard", "load 100 %", HARD, (4, 4.0, Level)),
    cell("hard", "load 120 %", HARD, (4, 4.8, Level)),
    cell("hard", "whale 1.05", HARD, (4, 1.0, Whale(1.05))),
    cell("hard", "whale 1.5", HARD, (4, 1.0, Whale(1.5))),
    cell("hard", "step to 10x", HARD, (8, 3.0, Step)),
    cell("hard", "bursts", HARD, (8, 1.5, Bursts)),
    cell("hard", "million flows", HARD, (8, 2.0, ManyFlows)),
    cell("hard", "a server lost", HARD, (4, 6.0, ServerLost)),
    cell(
        "large",
        "1350 ns, 64 cores",
        ("1350 ns", "backbone", 200),
        (64, 16.0, Level),
    ),
    cell(
        "large",
        "1350 ns as, 64 cores",
        ("1350 ns", "as", 200),
        (64, 16.0, Level),
    ),
];

impl Cell {
    pub fn named(name: &str) -> Cell {
        let found = CELLS.iter().find(|cell| cell.name == name);
        *found.unwrap_or_else(|| panic!("no cell {name}"))
    }

    pub fn slo(&self) -> Nanos {
        Nanos::from_micros(self.slo_us)
    }

    pub fn chain(&self) -> &'static Chain {
        Chain::named(self.chain)
    }

    /// Returns the number of servers.
    pub fn servers(&self) -> usize {
        match self.shape {
            ServerLost => 4,
            _ => 1,
        }
    }

    /// Returns its machines.
    pub fn rack(&self) -> Rack {
        let mut rack = machine::rack(self.cores);
        rack.servers = vec![rack.servers[0].clone(); self.servers()];
        if self.shape == ServerLost {
            rack.servers[0].fails_at = Some(COLD + Nanos(SETTLED.0 / 10));
        }
        rack
    }

    fn rate(&self) -> f64 {
        self.load * 1e9 / self.chain().packet()
    }

    fn key(&self, seed: u64) -> String {
        format!("{} {:.0} {:?} {seed}", self.preset, self.rate(), self.shape)
    }

    fn packets(&self, seed: u64) -> Arc<Recording> {
        let packet = self.chain().packet();
        let duration = COLD + SETTLED;
        if self.shape == ManyFlows {
            return Arc::new(many_flows(self.rate(), duration, seed));
        }
        let base = record(self.preset, self.rate(), duration, seed);
        let changed = match self.shape {
            Level | ManyFlows | ServerLost => return Arc::new(base),
            Whale(cores) => with_whale(&base, packet / cores),
            Step => {
                let at = COLD + Nanos(SETTLED.0 / 2);
                let kept = base.iter().filter(|(time, flow, _)| *time >= at || flow % 10 == 0);
                Recording::of_packets("step", kept, DESTINATIONS)
            }
            Bursts => {
                let pressed = base.iter().map(|(time, flow, bytes)| {
                    let (period, rest) = (time.0 / PERIOD, time.0 % PERIOD);
                    (Nanos(period * PERIOD + rest / 3), flow, bytes)
                });
                Recording::of_packets("bursts", pressed, DESTINATIONS)
            }
        };
        Arc::new(changed)
    }
}

/// Destination prefixes of changed traffic.
const DESTINATIONS: u32 = 50;

/// Packets of the last cell: cells with the same traffic follow one another.
#[derive(Default)]
pub struct Cache(Option<(String, Arc<Recording>)>);

impl Cache {
    pub fn packets(&mut self, cell: &Cell, seed: u64) -> Arc<Recording> {
        let key = cell.key(seed);
        match &self.0 {
            Some((known, packets)) if *known == key => Arc::clone(packets),
            _ => {
                self.0 = None;
                let packets = cell.packets(seed);
                self.0 = Some((key, Arc::clone(&packets)));
                packets
            }
        }
    }
}

/// Records a preset with a mean of `rate` packets per second, give or take 3 %.
pub fn record(name: &str, rate: f64, duration: Nanos, seed: u64) -> Recording {
    let make = |scale: f64| {
        let chosen = preset(name).unwrap_or_else(|error| panic!("{error}"));
        let mut chosen = chosen.scaled(scale).with(seed, duration);
        if let Preset::Aggregate { config, .. } = &mut chosen {
            config.warm_up = BEFORE;
        }
        let arrivals = chosen.arrivals().unwrap_or_else(|error| panic!("{error}"));
        Recording::load(arrivals, FlowOptions::default(), MEMORY).unwrap_or_else(|error| panic!("{error}"))
    };
    let own = preset(name).unwrap_or_else(|error| panic!("{error}")).mean_rate_pps();
    let mut scale = rate / own;
    let mut best: Option<(f64, Recording)> = None;
    for _ in 0..4 {
        let made = make(scale);
        let ratio = made.packets() as f64 / duration.as_secs_f64() / rate;
        if best.as_ref().is_none_or(|(off, _)| (ratio - 1.0).abs() < *off) {
            best = Some(((ratio - 1.0).abs(), made));
        }
        if (ratio - 1.0).abs() < 0.03 {
            break;
        }
        scale /= ratio;
    }
    best.unwrap_or_else(|| unreachable!("one was made")).1
}

/// Adds a flow with a packet every `gap` nanoseconds.
fn with_whale(packets: &Recording, gap: f64) -> Recording {
    let flow = packets.iter().map(|(_, flow, _)| flow).max().unwrap_or(0) + 1;
    let count = (packets.duration().0 as f64 / gap) as u64;
    let whale = (0..count).map(|i| (Nanos((i as f64 * gap) as u64), flow, 1000));
    let mut all: Vec<(Nanos, u32, u16)> = packets.iter().chain(whale).collect();
    all.sort_by_key(|(time, ..)| *time);
    Recording::of_packets("whale", all, DESTINATIONS)
}

/// Packets at random times (exponential gaps), each of any of the flows.
fn many_flows(rate: f64, duration: Nanos, seed: u64) -> Recording {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let mut now = 0.0;
    let packets = std::iter::from_fn(|| {
        now -= (1.0 - random()).ln() * 1e9 / rate;
        let flow = (random() * MANY as f64) as u32;
        (now < duration.0 as f64).then_some((Nanos(now as u64), flow, BYTES as u16))
    });
    Recording::of_packets("many flows", packets, DESTINATIONS)
}
