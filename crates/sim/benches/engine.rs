//! Benchmark of the simulator: packets per second of wall time, on one core.
//!
//! `cargo bench -p tailwater-sim --bench engine [-- FILTER...] [--runs N] [--packets N]` prints one JSON line per
//! figure. Traffic is recorded first, so the figures measure the engine only. `sim/generate` measures the generation of
//! the preset's arrivals, `sim/stream` both together, and `sim/oracle` the bound on cores for the same packets. All
//! rows run in turn, `runs` times, and the value is the median. Names consist of policy, traffic, servers x cores, and
//! the number of cores that initially have a queue, per server or in the rack. Without that number, all cores have one.

use std::sync::Arc;
use std::time::Instant;
use tailwater_net::{FlowKey, Nanos};
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier, RateFrontier, ServiceCosts};
use tailwater_policy::server::IngressConfig;
use tailwater_sim::{
    BoundedChain, ChainModel, ChainRun, FlowOptions, Objective, OracleReport, Rack, RackPolicy, Recording, RunOptions,
    Workload, oracle, simulate,
};
use tailwater_traffic::bursts::{Arrival, Arrivals};
use tailwater_traffic::generate::preset;
use tailwater_traffic::{Notice, TrafficError};

const SLO: Nanos = Nanos::from_micros(200);

/// A chain of about 2 Mpps per core.
fn profile() -> CapacityProfile {
    CapacityProfile {
        chain: "bench".to_owned(),
        slo: SLO,
        epoch: Nanos::from_micros(80),
        frontier: EpochFrontier::constant(128),
        rates: RateFrontier::constant(1.7e6),
        costs: Some(ServiceCosts {
            batch: 320.0,
            packet: 440.0,
            byte: 0.05,
            new_flow: 200.0,
        }),
        ..CapacityProfile::default()
    }
}

fn rack(servers: usize, cores: u16) -> Rack {
    let mut rack = Rack::of_one(cores);
    rack.servers[0].numa_nodes = 2;
    if servers > 1 {
        rack.servers[0].link_bps = 100_000_000_000;
    }
    rack.switch.max_buffered = 1 << 20;
    rack.servers = vec![rack.servers[0].clone(); servers];
    rack
}

struct Row {
    name: String,
    traffic: &'static str,
    rack: Rack,
    policy: &'static str,
    start_cores: Option<u16>,
    load: f64,
    check: bool,
    mpps: Vec<f64>,
    about: String,
}

fn policy(row: &Row) -> RackPolicy {
    let profile = profile();
    let objective = Objective {
        slo: SLO,
        profile: &profile,
        packet: Nanos(500),
        ingress: IngressConfig {
            prefix_v4: 24,
            prefix_v6: 48,
            // Each server is used as soon as it is available.
            threshold: 1,
            table: 2000,
            flow_hash: true,
            rebalance: false,
            scale_in: false,
        },
    };
    let mut policy = RackPolicy::named(row.policy, &objective).unwrap_or_else(|error| panic!("{error}"));
    policy.start_cores = row.start_cores.or(policy.start_cores);
    policy
}

/// Rate, in packets per second, that determines the number of a preset's flows. A faster clock produces higher rates,
/// since a preset's warm-up would take long.
const RATE: f64 = 4e6;

/// Returns `packets` packets of a preset, at `rate` packets per second.
fn source(name: &str, rate: f64, packets: u64) -> Box<dyn Arrivals> {
    let preset = preset(name).unwrap_or_else(|error| panic!("{error}"));
    let factor = RATE / preset.mean_rate_pps();
    let seconds = packets as f64 / RATE;
    let preset = preset.scaled(factor).with(1, Nanos::from_secs_f64(seconds));
    let source = preset.arrivals().unwrap_or_else(|error| panic!("{error}"));
    Box::new(Faster(source, rate / RATE))
}

/// Arrivals with a faster clock.
struct Faster(Box<dyn Arrivals>, f64);

impl Arrivals for Faster {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError> {
        let arrival = self.0.next_arrival()?;
        Ok(arrival.map(|arrival| Arrival {
            time: Nanos((arrival.time.0 as f64 / self.1) as u64),
            ..arrival
        }))
    }

    fn flow_key(&self) -> FlowKey {
        self.0.flow_key()
    }

    fn notices(&self) -> Vec<Notice> {
        self.0.notices()
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

fn record(name: &str, rate: f64, packets: u64) -> Arc<Recording> {
    let source = source(name, rate, packets);
    let recording = Recording::load(source, FlowOptions::default(), 4 << 30);
    Arc::new(recording.unwrap_or_else(|error| panic!("{error}")))
}

fn run(row: &mut Row, workload: Workload<'_>) {
    let chain = ChainRun {
        model: ChainModel::from_profile(&profile()).unwrap_or_else(|error| panic!("{error}")),
        slo: SLO,
        policy: policy(row),
        workload,
    };
    let options = RunOptions {
        check: row.check,
        ..RunOptions::default()
    };
    let began = Instant::now();
    let report = simulate(&row.rack, vec![chain], &options);
    let took = began.elapsed().as_secs_f64();
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    let chain = &report.chains[0];
    row.mpps.push(chain.packets.offered as f64 / took / 1e6);
    row.about = format!(
        "\"packets\": {}, \"flows\": {}, \"simulated_s\": {:.3}, \"wall_s\": {:.3}, \"p99_us\": {:.1}, \
         \"loss\": {:.4}, \"cores\": {:.2}, \"handed\": {}, \"decisions\": {}",
        chain.packets.offered,
        chain.packets.flows,
        report.duration_s,
        took,
        chain.latency_us.p99,
        chain.loss_rate,
        report.cores.average,
        chain.decisions.packets_handed,
        chain.decisions.decisions,
    );
}

/// Returns the lower bound on the cores of any policy.
fn bound(workload: Workload<'_>) -> OracleReport {
    let chain = BoundedChain {
        model: ChainModel::from_profile(&profile()).unwrap_or_else(|error| panic!("{error}")),
        slo: SLO,
        workload,
    };
    oracle(vec![chain], &RunOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn print(name: &str, values: &mut [f64], about: &str) {
    values.sort_by(f64::total_cmp);
    let (Some(min), Some(max)) = (values.first(), values.last()) else {
        return;
    };
    println!(
        "{{\"name\": \"{name}\", \"value\": {:.2}, \"unit\": \"Mpps\", \"min\": {min:.2}, \"max\": {max:.2}, \
         \"runs\": {}, {about}}}",
        values[values.len() / 2],
        values.len(),
    );
}

fn main() {
    let (mut filters, mut runs, mut packets) = (Vec::new(), 5, 8_000_000_u64);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse().ok());
        match arg.as_str() {
            "--bench" => {}
            "--runs" => runs = number().unwrap_or_else(|| panic!("--runs takes a number")),
            "--packets" => packets = number().unwrap_or_else(|| panic!("--packets takes a number")),
            _ => filters.push(arg),
        }
    }
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()));
    let row = |traffic, servers, cores, policy, start: Option<u16>, load, check: bool| Row {
        name: format!(
            "sim/{policy}/{traffic}/{servers}x{cores}{}{}",
            start.map_or(String::new(), |start| format!("/{start}")),
            if check { "/checked" } else { "" }
        ),
        traffic,
        rack: rack(servers, cores),
        policy,
        start_cores: start,
        load,
        check,
        mpps: Vec::new(),
        about: String::new(),
    };
    // Loads in millions of packets per second. A core processes about two.
    let mut rows = vec![
        row("backbone", 1, 8, "static", None, 10.0, false),
        row("smooth", 1, 8, "static", None, 10.0, false),
        row("backbone", 1, 64, "static", None, 16.0, false),
        row("backbone", 1, 64, "netblaze", Some(12), 16.0, false),
        row("backbone", 1, 64, "tailwater", Some(12), 16.0, false),
        row("backbone", 4, 64, "static", None, 16.0, false),
        row("backbone", 4, 64, "netblaze", Some(6), 16.0, false),
        row("backbone", 4, 64, "tailwater", Some(6), 16.0, false),
        // Few cores with queues: most packets are offloaded.
        row("backbone", 4, 64, "netblaze", Some(3), 16.0, false),
        row("backbone", 4, 64, "tailwater", Some(3), 16.0, false),
        row("backbone", 4, 64, "rss++", Some(128), 16.0, false),
        row("backbone", 4, 64, "quadrant", Some(12), 16.0, false),
        row("backbone", 1, 8, "static", None, 10.0, true),
        row("backbone", 4, 64, "tailwater", Some(6), 16.0, true),
    ];
    rows.retain(|row| wanted(&row.name));
    let mut recordings: Vec<(&str, u64, Arc<Recording>)> = Vec::new();
    for row in &rows {
        let key = (row.traffic, row.load as u64);
        if !recordings.iter().any(|r| (r.0, r.1) == key) {
            eprintln!("recording {} at {} Mpps", row.traffic, row.load);
            recordings.push((key.0, key.1, record(row.traffic, row.load * 1e6, packets)));
        }
    }
    for round in 0..=runs {
        for row in &mut rows {
            let key = (row.traffic, row.load as u64);
            let found = recordings.iter().find(|r| (r.0, r.1) == key);
            let Some((_, _, recording)) = found else {
                continue;
            };
            run(row, Workload::from(Arc::clone(recording)));
            if round == 0 {
                // The first run is a warm-up.
                row.mpps.clear();
            }
        }
    }
    for row in &mut rows {
        print(&row.name, &mut row.mpps, &row.about);
    }
    for (traffic, load) in [("backbone", 16.0), ("smooth", 10.0)] {
        let name = format!("sim/oracle/{traffic}");
        if !wanted(&name) {
            continue;
        }
        let recording = record(traffic, load * 1e6, packets);
        let mut values = Vec::new();
        let mut about = String::new();
        for _ in 0..=runs {
            let began = Instant::now();
            let report = bound(Workload::from(Arc::clone(&recording)));
            let took = began.elapsed().as_secs_f64();
            values.push(recording.packets() as f64 / took / 1e6);
            about = format!(
                "\"packets\": {}, \"flows\": {}, \"cores\": {:.2}, \"most\": {}",
                report.chains[0].packets, report.chains[0].flows, report.cores.average, report.cores.most,
            );
        }
        // The first run is a warm-up.
        print(&name, &mut values[1..], &about);
    }
    if wanted("sim/generate/backbone") {
        let mut values = Vec::new();
        for _ in 0..runs.min(3) {
            let mut source = source("backbone", 10e6, packets);
            let (began, mut count) = (Instant::now(), 0_u64);
            while let Ok(Some(_)) = source.next_arrival() {
                count += 1;
            }
            // The warm-up's packets are generated, too, but not counted.
            values.push(count as f64 / began.elapsed().as_secs_f64() / 1e6);
        }
        print("sim/generate/backbone", &mut values, "\"packets\": \"with warm-up\"");
    }
    if wanted("sim/stream/static/backbone") {
        let mut stream = row("backbone", 1, 8, "static", None, 10.0, false);
        stream.name = "sim/stream/static/backbone/1x8".to_owned();
        for _ in 0..runs.min(3) {
            let source = source("backbone", 10e6, packets);
            run(&mut stream, Workload::stream(source, FlowOptions::default()));
        }
        print(&stream.name, &mut stream.mpps, &stream.about);
    }
}
