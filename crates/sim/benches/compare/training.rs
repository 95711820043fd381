//! Profiles trained on the simulated machine, by the procedure of `tailwater profile` (which is NetBlaze's): it sees
//! what a core takes for packets, never a chain's true costs. Costs between cores are the machine's.

use super::cells::record;
use super::machine::{self, BYTES, Chain};
use std::sync::Arc;
use tailwater_baselines::catalog::epoch;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{
    CapacityProfile, EpochFrontier, RateFrontier, ServiceCosts, SplitPoint, SplitProfile,
};
use tailwater_policy::core::{Load, MakeMapper};
use tailwater_policy::training::TrainingRecorder;
use tailwater_sim::policies::Steered;
use tailwater_sim::{ChainModel, ChainReport, ChainRun, Rack, RackPolicy, Recording, RunOptions, Workload, simulate};

/// Seed of the traffic that profiles are trained with: a seed of no other part.
const SEED: u64 = 7001;
/// Traffic that profiles are trained with. `as` is never trained with, as in the paper.
const TRAFFIC: &str = "backbone";
/// Flow counts of new flows, and of rates, as in `tailwater profile`.
const FLOWS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 310];
const RATE_FLOWS: [u32; 3] = [64, 1024, 8192];
const HALVINGS: usize = 6;
const TRACE_LOAD: f64 = 0.8;
const OVERLOAD: f64 = 1.3;
const EPOCHS: u64 = 150;
const LONG: f64 = 1514.0;
const SHORT: f64 = 60.0;
const SMALL_BATCH: u16 = 4;
const LENGTH: Nanos = Nanos::from_millis(200);

/// Trains the profile of a chain for an objective.
pub fn train(chain: &Chain, slo: Nanos) -> CapacityProfile {
    let epoch = epoch(slo).unwrap_or_else(|error| panic!("{error}"));
    let model = chain.model(32);
    let saturated = rate(&model, 64, BYTES);
    let mut frontier = EpochFrontier::new();
    let in_epoch = (saturated * epoch.as_secs_f64()) as u32;
    for flows in FLOWS.into_iter().filter(|flows| *flows < in_epoch).chain([in_epoch]) {
        let packets = minnows(flows, in_epoch, saturated * OVERLOAD);
        let each = (in_epoch / flows).max(1);
        for mut seen in observe(&model, epoch, packets, (1 << 20, in_epoch.clamp(512, 8192))) {
            // The generator bounds the number of flows more tightly than the core's observation.
            seen.flows = seen.flows.max(certain_flows(flows, each, seen.packets));
            frontier.insert(seen);
        }
    }
    let traffic = record(TRAFFIC, saturated * TRACE_LOAD, Nanos::from_secs(3), SEED);
    for seen in observe(&model, epoch, traffic, (4096, 2048)) {
        frontier.insert(seen);
    }
    let mut rates = RateFrontier::new();
    for flows in RATE_FLOWS {
        let most = rate(&model, flows, BYTES);
        let keeps = |rate: f64| {
            let packets = steady(flows, BYTES, rate, LENGTH);
            let recorder = TrainingRecorder::new(0);
            let late = late(&run(&model, slo, Some(training(&recorder, epoch)), packets));
            late <= 0.01
        };
        let (mut low, mut high) = (0.2 * most, most);
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            if keeps(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        rates.insert(flows, low.round());
    }
    CapacityProfile {
        chain: chain.name.to_owned(),
        machine: "simulated".to_owned(),
        slo,
        epoch,
        frontier,
        rates,
        splits: splits(chain, epoch),
        costs: Some(costs(chain)),
        details: Some(machine::details()),
        ..CapacityProfile::default()
    }
}

/// Core mapper that offloads nothing and records.
fn training(recorder: &TrainingRecorder, epoch: Nanos) -> MakeMapper {
    let recorder = recorder.clone();
    Arc::new(move || Box::new(recorder.mapper(epoch)))
}

/// Returns flows and packets of the epochs in which a core was overloaded.
fn observe(model: &ChainModel, epoch: Nanos, packets: Recording, (ring, buffers): (u32, u32)) -> Vec<Load> {
    let recorder = TrainingRecorder::new(1 << 20);
    let mapper = training(&recorder, epoch);
    // A second core, which nothing is offloaded to: without any, packets pass no queue.
    let mut rack = machine::rack(2);
    (rack.servers[0].ring, rack.servers[0].buffers) = (ring, buffers);
    run_on(&rack, model, Nanos(2 * epoch.0), Some(mapper), packets);
    recorder.take().iter().map(|seen| seen.load).collect()
}

/// Returns the minimum number of flows among any `packets` successive packets of [`minnows`].
fn certain_flows(flows: u32, each: u32, packets: u32) -> u32 {
    match each {
        // Each flow has a single packet.
        1 => packets,
        // This many contain a whole round. Fewer have at least half of theirs in one round, or span two generations.
        _ if packets >= (2 * flows).saturating_sub(1) => flows,
        _ => packets.div_ceil(2).min(flows),
    }
}

/// Runs a chain on one core.
fn run(model: &ChainModel, slo: Nanos, core: Option<MakeMapper>, packets: Recording) -> ChainReport {
    run_on(&machine::rack(1), model, slo, core, packets)
}

fn run_on(rack: &Rack, model: &ChainModel, slo: Nanos, core: Option<MakeMapper>, packets: Recording) -> ChainReport {
    let chain = ChainRun {
        model: model.clone(),
        slo,
        policy: RackPolicy {
            name: "training".to_owned(),
            steered: Steered::Rack(None),
            core,
            start_cores: Some(1),
        },
        workload: Workload::from(Arc::new(packets)),
    };
    let report = simulate(rack, vec![chain], &RunOptions::default());
    report.unwrap_or_else(|error| panic!("{error}")).chains.remove(0)
}

fn late(report: &ChainReport) -> f64 {
    let late: u64 = report.late_by_cause.values().sum();
    late as f64 / report.packets.offered.max(1) as f64
}

/// Packets at equal distances, of the flows in turn.
fn steady(flows: u32, bytes: f64, rate: f64, length: Nanos) -> Recording {
    let count = (rate * length.as_secs_f64()) as u64;
    let packets = (0..count).map(|n| {
        let flow = (n % u64::from(flows)) as u32;
        (Nanos((n as f64 * 1e9 / rate) as u64), flow, bytes as u16)
    });
    Recording::of_packets("steady", packets, 50)
}

/// Flows that begin all the time, `flows` of them in as many packets as an epoch has.
fn minnows(flows: u32, in_epoch: u32, rate: f64) -> Recording {
    let each = u64::from((in_epoch / flows).max(1));
    let (flows, count) = (u64::from(flows), EPOCHS * u64::from(in_epoch));
    let packets = (0..count).map(|n| {
        let generation = n / (flows * each);
        let flow = (generation * flows + n % flows) as u32;
        (Nanos((n as f64 * 1e9 / rate) as u64), flow, BYTES as u16)
    });
    Recording::of_packets("minnows", packets, 50)
}

/// Saturated packets per second of a core that processes straight from the port.
fn rate(model: &ChainModel, flows: u32, bytes: f64) -> f64 {
    // More than any of these chains takes.
    let offered = 1.5e9 / (model.costs.packet + model.costs.byte * bytes + model.costs.batch / 32.0);
    saturated(model, steady(flows, bytes, offered, LENGTH))
}

fn saturated(model: &ChainModel, packets: Recording) -> f64 {
    let report = run(model, Nanos::from_millis(1), None, packets);
    let full: Vec<u64> = report.windows.iter().map(|window| window.delivered).collect();
    // Without the first window, and the last ones, in which what waits is done.
    let full = &full[1..15.min(full.len() - 1)];
    full.iter().sum::<u64>() as f64 / (full.len() as f64 * 0.01)
}

/// Service costs from saturated runs that differ in one parameter each.
fn costs(chain: &Chain) -> ServiceCosts {
    let model = chain.model(32);
    let nanos = |model: &ChainModel, bytes: f64| 1e9 / rate(model, 64, bytes);
    let (short, long) = (nanos(&model, SHORT), nanos(&model, LONG));
    let small = nanos(&chain.model(SMALL_BATCH), SHORT);
    let packet = chain.packet();
    let count = (1.5e9 / packet * LENGTH.as_secs_f64()) as u64;
    let opening = (0..count).map(|n| (Nanos((n as f64 * packet / 1.5) as u64), n as u32, SHORT as u16));
    let new = 1e9 / saturated(&model, Recording::of_packets("new flows", opening, 50));
    let batch = ((small - short) / (1.0 / f64::from(SMALL_BATCH) - 1.0 / 32.0)).max(0.0);
    let byte = ((long - short) / (LONG - SHORT)).max(0.0);
    ServiceCosts {
        batch,
        packet: (short - byte * SHORT - batch / 32.0).max(1.0),
        byte,
        new_flow: (new - short).max(0.0),
    }
}

/// Packets of one flow in an epoch on either side of each cut, from runs of that part alone.
fn splits(chain: &Chain, epoch: Nanos) -> SplitProfile {
    let part = |share: f64, more: f64| {
        let mut model = chain.model(32);
        let received = model.receive_packet;
        model.costs.packet = received + (model.costs.packet - received) * share + more;
        model.costs.byte *= share;
        (rate(&model, 1, BYTES) * epoch.as_secs_f64()) as u32
    };
    let passed_on = machine::value("sort a packet, by flow") + machine::value("hand a packet over");
    let taken_over = machine::value("take a packet over, on the auxiliary core");
    let whole = part(1.0, taken_over);
    let mut profile = SplitProfile::new();
    for cut in machine::SPLITS {
        let point = SplitPoint {
            last_functions: cut.last_functions,
            first: part(cut.first, passed_on),
            last: part(cut.last, taken_over),
        };
        if point.capacity() > whole {
            profile.insert(point);
        }
    }
    profile
}
