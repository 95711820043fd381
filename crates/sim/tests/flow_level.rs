//! Flow-level model against the packet-level one, on small racks. `cargo bench -p tailwater-sim --bench flow-level`
//! does so on many, and prints the errors.

use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier, RateFrontier, ServiceCosts};
use tailwater_policy::server::IngressConfig;
use tailwater_sim::flow_level::{FlowLevelChain, simulate_flows};
use tailwater_sim::{
    ChainModel, ChainReport, ChainRun, FlowOptions, Objective, Rack, RackPolicy, Recording, RunOptions, Workload,
    simulate,
};
use tailwater_traffic::generate::{Preset, TrafficStatistics, preset};

const PACKET: f64 = 2000.0;
const CORES: u16 = 4;
const WARM_UP: Nanos = Nanos::from_millis(500);
const SLO: Nanos = Nanos::from_micros(300);

/// Share of late packets, share of lost ones, cores.
fn figures(chain: &ChainReport) -> [f64; 3] {
    let late: u64 = chain.late_by_cause.values().sum();
    let share = |count: u64| count as f64 / chain.packets.offered as f64;
    [share(late), share(chain.packets.lost), chain.cores.total]
}

/// Returns the figures of the packet-level and the flow-level model.
fn both(name: &str, traffic: &str, load: f64) -> [[f64; 3]; 2] {
    let profile = CapacityProfile {
        chain: "chain".to_owned(),
        epoch: Nanos(SLO.0 / 2),
        frontier: EpochFrontier::constant((SLO.0 as f64 / 2.0 / PACKET) as u32),
        rates: RateFrontier::constant(1e9 / PACKET),
        costs: Some(ServiceCosts {
            batch: 320.0,
            packet: PACKET - 10.0,
            byte: 0.0,
            new_flow: 0.0,
        }),
        ..CapacityProfile::default()
    };
    let objective = Objective {
        slo: SLO,
        profile: &profile,
        packet: Nanos(PACKET as u64),
        ingress: IngressConfig {
            prefix_v4: 24,
            prefix_v6: 48,
            threshold: CORES,
            table: 2000,
            default_row: false,
        },
    };
    let policy = || RackPolicy::named(name, &objective).unwrap();
    let model = ChainModel::from_profile(&profile).unwrap();
    let length = Nanos::from_millis(1000);
    let mut made = preset(traffic).unwrap();
    let factor = load * f64::from(CORES) * 1e9 / PACKET / TrafficStatistics::of(&made).packets;
    made = made.scaled(factor).with(3, length);
    if let Preset::Aggregate { config, .. } = &mut made {
        config.warm_up = Nanos::from_secs(1);
    }
    let packets = Recording::load(made.arrivals().unwrap(), FlowOptions::default(), 1 << 30).unwrap();
    let own = packets.iter().filter(|(time, ..)| *time >= WARM_UP).count() as f64 / 0.5;
    let options = RunOptions {
        warm_up: WARM_UP,
        ..RunOptions::default()
    };
    let rack = Rack::of_one(CORES);
    let chain = ChainRun {
        model: model.clone(),
        slo: SLO,
        policy: policy(),
        workload: Workload::from(Arc::new(packets)),
    };
    let exact = simulate(&rack, vec![chain], &options).unwrap();
    let at_flow_level = |scale: f64| {
        let chain = FlowLevelChain {
            name: profile.chain.clone(),
            model: model.clone(),
            slo: SLO,
            policy: policy(),
            traffic: (traffic.to_owned(), TrafficStatistics::of(&made.clone().scaled(scale))),
            profile: profile.clone(),
            seed: 3,
            servers: None,
        };
        let length = Nanos::from_secs(10);
        let found = simulate_flows(&rack, vec![chain], (length, 1), &options, |_| true);
        found.unwrap().unwrap().report
    };
    // A preset's first second has another rate than long times. Both models get the same number of packets a second.
    let report = at_flow_level(1.0);
    let rate = report.chains[0].packets.offered as f64 / report.duration_s;
    let found = at_flow_level(own / rate);
    [figures(&exact.chains[0]), figures(&found.chains[0])]
}

/// The bounds are several times the usual error: a change of either model that matters exceeds them.
#[test]
fn late_and_lost_packets_and_cores_are_near_those_of_the_packet_level() {
    for (policy, traffic, load) in [
        ("static", "smooth", 0.5),
        ("static", "backbone", 0.5),
        ("static", "backbone", 1.3),
        ("tailwater", "backbone", 0.4),
        ("netblaze", "backbone", 0.4),
    ] {
        let [exact, found] = both(policy, traffic, load);
        let context = format!("{policy}, {traffic}, {load}: packets {exact:.4?}, flows {found:.4?}");
        println!("{context}");
        assert!((found[0] - exact[0]).abs() < 0.1, "late: {context}");
        assert!((found[1] - exact[1]).abs() < 0.1, "lost: {context}");
        assert!((found[2] / exact[2] - 1.0).abs() < 0.35, "cores: {context}");
    }
}
