//! Quadrant's figures 4 to 6: smooth traffic that grows for a minute.

use super::published::Row;
use super::runs::{Job, Lengths, run_all};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use tailwater_baselines::{Metron, MetronConfig, Quadrant, QuadrantConfig, QuadrantMetron};
use tailwater_net::Nanos;
use tailwater_policy::capacity::ServiceCosts;
use tailwater_sim::policies::Steered;
use tailwater_sim::{ChainModel, Rack, RackPolicy, Recording, Server};

/// Chains of section 6: name, number of functions, and a core's rate in packets per second (Table 4, Quadrant).
const CHAINS: [(&str, f64, f64); 3] = [
    ("chain-1", 2.0, 306e3),
    ("chain-2", 3.0, 116e3),
    ("chain-3", 2.0, 322e3),
];
/// A context switch of 2,143 cycles at 2.4 GHz, in nanoseconds (section 6.5).
const SWITCH: f64 = 893.0;
/// Cost of a chain in a single thread, as a share of its cost in Quadrant: 0.902 to 0.942 (6.2).
const SINGLE_THREAD: f64 = 0.922;
/// Packets per batch.
const BATCH: f64 = 32.0;

/// 18 Gbit/s of 1,024-byte packets, after a minute in which ten flows per second begin. 100 million packets in total.
const RATE: f64 = 18e9 / 8.0 / 1024.0;
const RAMP: f64 = 60.0;
const FLOWS: u32 = 600;
const PACKETS: u64 = 100_000_000;
/// Speed-up of the faster flows, for half of their time.
const FASTER: f64 = 1.3;

/// Objectives of figures 4 and 5, and that of figure 6, in microseconds.
const OBJECTIVES: [u64; 6] = [50, 70, 100, 150, 200, 300];
const QUICK: [u64; 2] = [70, 200];
const FIGURE_6: u64 = 70;
/// Percentages of flows that are faster in figure 6.
const SHARES: [u32; 5] = [0, 10, 30, 50, 100];
const QUICK_SHARES: [u32; 2] = [0, 50];

/// Eight workers of two times sixteen cores, with a port of 10 Gbit/s in use.
fn rack() -> Rack {
    let mut rack = Rack::of_one(32);
    let server = Server {
        cores: 32,
        numa_nodes: 2,
        link_bps: 10_000_000_000,
        ..Server::default()
    };
    rack.servers = vec![server; 8];
    rack
}

/// Packets of flows of equal rates that begin one after the other. A share of them (in percent), spread evenly, is
/// faster in the first half of its time.
struct Growing {
    /// Time of each flow's next packet.
    next: BinaryHeap<Reverse<(u64, u32)>>,
    faster: u32,
    left: u64,
    /// Time of the last packet if no flow is faster.
    end: f64,
}

impl Growing {
    fn new(faster: u32, packets: u64) -> Growing {
        let begin = |flow: u32| {
            // A flow's phase within its period is random, so flows are not synchronized.
            let apart = f64::from(FLOWS) / RATE * 1e9;
            let place = f64::from(flow.wrapping_mul(0x9e37_79b1)) / 4_294_967_296.0;
            let start = f64::from(flow) * RAMP * 1e9 / f64::from(FLOWS);
            Reverse(((start + place * apart) as u64, flow))
        };
        let all = PACKETS as f64 / RATE + RAMP / 2.0;
        Growing {
            next: (0..FLOWS).map(begin).collect(),
            faster,
            left: packets,
            end: all * 1e9,
        }
    }
}

impl Iterator for Growing {
    type Item = (Nanos, u32, u16);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let mut first = self.next.peek_mut()?;
        let Reverse((time, flow)) = *first;
        let start = f64::from(flow) * RAMP * 1e9 / f64::from(FLOWS);
        let early = (time as f64) < (start + self.end) / 2.0;
        let rate = match early && flow * 37 % 100 < self.faster {
            true => FASTER * RATE,
            false => RATE,
        };
        let apart = (f64::from(FLOWS) / rate * 1e9) as u64;
        *first = Reverse((time + apart, flow));
        Some((Nanos(time), flow, 1024))
    }
}

/// Returns a chain in Quadrant, with its context switches, or in a single thread as in Metron.
fn model(name: &str, functions: f64, rate: f64, isolated: bool) -> ChainModel {
    let packet = 1e9 / rate;
    let batch = functions * SWITCH;
    let costs = ServiceCosts {
        batch: if isolated { batch } else { 0.0 },
        packet: if isolated {
            packet - batch / BATCH
        } else {
            packet * SINGLE_THREAD
        },
        ..ServiceCosts::default()
    };
    ChainModel::new(name, costs)
}

fn quadrant(slo: Nanos, rate: f64) -> RackPolicy {
    let config = QuadrantConfig::new(slo, rate);
    RackPolicy {
        name: "quadrant".to_owned(),
        steered: Steered::Flows(Box::new(Quadrant::new(config))),
        core: None,
        start_cores: Some(1),
    }
}

fn metron(inside_quadrant: bool) -> RackPolicy {
    let steered = match inside_quadrant {
        true => Steered::Flows(Box::new(QuadrantMetron::new())),
        false => Steered::Rack(Some(Box::new(Metron::new(MetronConfig::default())))),
    };
    RackPolicy {
        name: if inside_quadrant { "quadrant-metron" } else { "metron" }.to_owned(),
        steered,
        core: None,
        start_cores: Some(1),
    }
}

/// Returns a value of figure 4 from the text of section 6.3: two of Quadrant's points, Metron's, and that of Metron's
/// algorithm inside Quadrant.
fn published(chain: &str, row: &str) -> Row {
    let of = |p99: Option<f64>, cores: Option<f64>| Row {
        p99,
        cores,
        loss: Some(0.0),
        ..Row::default()
    };
    match (chain, row) {
        ("chain-1", "metron") => of(Some(85.4), Some(3.61 / 1.12)),
        ("chain-2", "metron") => of(None, Some(11.66)),
        ("chain-1", "quadrant-metron") => of(Some(173.7), None),
        _ => of(None, None),
    }
}

/// Runs the figures whose names `wanted` accepts.
pub fn figures(lengths: &Lengths, wanted: &dyn Fn(&str) -> bool) {
    let lengths = &Lengths {
        warm_up: 0.0,
        ..*lengths
    };
    let packets = if lengths.quick { PACKETS / 5 } else { PACKETS };
    let growing = |faster| {
        let name = format!("growing, {faster} % faster");
        Arc::new(Recording::of_packets(&name, Growing::new(faster, packets), 256))
    };
    let objectives: &[u64] = if lengths.quick { &QUICK } else { &OBJECTIVES };
    let mut jobs = Vec::new();
    for (chain, functions, rate) in CHAINS {
        let name = |row: &str| format!("papers/quadrant/figure-4/{chain}-{row}");
        for (row, inside) in [("metron", false), ("quadrant-metron", true)] {
            jobs.push(Job {
                names: vec![(name(row), published(chain, row))],
                model: model(chain, functions, rate, inside),
                slo: Nanos::from_micros(200),
                policy: metron(inside),
            });
        }
        for &us in objectives {
            let slo = Nanos::from_micros(us);
            let row = format!("quadrant-{us}us");
            jobs.push(Job {
                names: vec![(name(&row), published(chain, &row))],
                model: model(chain, functions, rate, true),
                slo,
                policy: quadrant(slo, rate),
            });
        }
    }
    jobs.retain(|job| job.names.iter().any(|(name, _)| wanted(name)));
    if !jobs.is_empty() {
        run_all(&rack(), &growing(0), jobs, lengths);
    }
    let shares: &[u32] = if lengths.quick { &QUICK_SHARES } else { &SHARES };
    for &share in shares {
        let slo = Nanos::from_micros(FIGURE_6);
        let jobs = CHAINS.map(|(chain, functions, rate)| Job {
            names: vec![(
                format!("papers/quadrant/figure-6/{chain}-{share}-percent"),
                Row::default(),
            )],
            model: model(chain, functions, rate, true),
            slo,
            policy: quadrant(slo, rate),
        });
        let mut jobs = Vec::from(jobs);
        jobs.retain(|job| job.names.iter().any(|(name, _)| wanted(name)));
        if !jobs.is_empty() {
            run_all(&rack(), &growing(share), jobs, lengths);
        }
    }
}
