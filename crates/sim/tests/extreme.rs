//! Traffic and costs at the limits: no packets, one flow, extreme overload. Every policy gives a clear result, in
//! bounded memory.

mod common;

use common::{MS, SLO, US, bursty, checked, conserved, costs, policy, profile, run};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_sim::{ChainModel, ChainReport, Rack, RackPolicy, Recording, RunOptions, SimError};

fn model() -> ChainModel {
    ChainModel::from_profile(&profile()).unwrap()
}

/// Returns the report of each policy, with all checks.
fn all(packets: &Arc<Recording>, model: &ChainModel) -> Vec<(&'static str, ChainReport)> {
    let rack = Rack::of_one(8);
    let checked = |name| checked(&rack, model.clone(), policy(name), packets);
    RackPolicy::names().map(|name| (name, checked(name))).collect()
}

/// Returns packets at these times, from `flows` flows in turn.
fn packets(times: impl Iterator<Item = u64>, flows: u32) -> Arc<Recording> {
    let packets = times.zip((0..flows).cycle());
    let packets = packets.map(|(at, flow)| (Nanos(at), flow, 500));
    Arc::new(Recording::of_packets("by hand", packets, 50))
}

#[test]
fn no_packets_give_an_empty_report() {
    for (name, report) in all(&packets(std::iter::empty(), 1), &model()) {
        assert_eq!(report.packets.offered, 0, "{name}");
        assert_eq!(report.slo_met, None, "{name}");
        let latency = report.latency_us;
        let figures = [latency.p50, latency.p99, latency.max, latency.mean];
        assert_eq!(figures, [0.0; 4], "{name}");
        let cores = report.cores;
        let figures = [report.loss_rate, cores.total, cores.busy];
        assert!(figures.iter().all(|figure| figure.is_finite()), "{name}: {figures:?}");
    }
}

#[test]
fn a_single_packet_arrives() {
    for (name, report) in all(&packets(std::iter::once(7), 1), &model()) {
        let packets = &report.packets;
        assert_eq!((packets.offered, packets.delivered, packets.flows), (1, 1, 1), "{name}");
        assert_eq!(report.slo_met, None, "{name}: one packet says nothing about 99 %");
    }
}

/// A core processes 200,000 packets of a flow per second. The traffic has twice as many.
#[test]
fn one_flow_has_one_core_and_a_split_at_most() {
    let flow = packets((0..40_000).map(|i| i * 2_500), 1);
    for (name, report) in all(&flow, &model()) {
        let share = 1.0 - report.loss_rate;
        // Two cores that share its work by 98 and 87 % of the time process slightly more than one.
        assert!((0.4..0.75).contains(&share), "{name}: {share}");
        assert_eq!(report.packets.flows, 1, "{name}");
        assert_eq!(report.slo_met, Some(false), "{name}");
    }
}

/// Five times the capacity of all cores of the rack: they are full, the rest is lost, and no backlog builds up.
#[test]
fn overload_is_lost_and_does_not_pile_up() {
    let overload = bursty(3, 60 * MS, 500, 8);
    for (name, report) in all(&overload, &model()) {
        assert_eq!(report.slo_met, Some(false), "{name}");
        assert!((0.7..1.0).contains(&report.loss_rate), "{name}: {}", report.loss_rate);
        // A core that has a queue and is still an auxiliary core counts once, within one iteration.
        let cores = report.cores.total;
        assert!(cores < 8.0 * 1.01, "{name}: {cores}");
        // The packets of a ring, of the buffers, and those buffered in migrations, at 5 us each.
        let most = report.latency_us.max;
        assert!(most < 5.0 * 8192.0, "{name}: {most} us");
    }
}

/// The same with tiny rings and a slow link in front.
#[test]
fn overload_of_links_and_tables_is_lost_there() {
    let overload = bursty(4, 20 * MS, 500, 8);
    let mut rack = Rack::of_one(8);
    rack.servers[0].link_bps = 1_000_000;
    rack.servers[0].ring = 1;
    rack.switch.max_buffered = 0;
    rack.switch.table = 0;
    for name in RackPolicy::names() {
        let report = checked(&rack, model(), policy(name), &overload);
        assert!(report.loss_rate > 0.99, "{name}: {}", report.loss_rate);
    }
}

/// A packet takes a second, and the objective is two milliseconds.
#[test]
fn packets_that_take_longer_than_any_objective_end_all_the_same() {
    let slow = ChainModel::from_profile(&tailwater_policy::capacity::CapacityProfile {
        costs: Some(costs(1e9, 1e9)),
        ..profile()
    })
    .unwrap();
    let few = packets((0..400).map(|i| i * 10 * US), 40);
    for (name, report) in all(&few, &slow) {
        assert_eq!(report.slo_met, Some(false), "{name}");
        assert!(report.packets.lost > 0, "{name}");
    }
}

/// Silence for minutes costs only windows and periods of controllers.
#[test]
fn a_long_silence_takes_no_long_time() {
    let apart = packets([0, 300_000 * MS].into_iter(), 2);
    for name in ["quadrant", "tailwater"] {
        let options = RunOptions {
            window: Nanos::from_secs(1),
            ..RunOptions::default()
        };
        let report = run(&Rack::of_one(2), model(), policy(name), &apart, &options);
        conserved(&report.chains[0], &apart);
        assert_eq!(report.chains[0].packets.delivered, 2, "{name}");
    }
}

#[test]
fn what_lasts_too_long_is_refused() {
    let refused = |at: u64, window| {
        let chain = tailwater_sim::ChainRun {
            model: model(),
            slo: SLO,
            policy: policy("static"),
            workload: packets([0, at].into_iter(), 2).into(),
        };
        let options = RunOptions {
            window,
            ..RunOptions::default()
        };
        let error = tailwater_sim::simulate(&Rack::of_one(2), vec![chain], &options).unwrap_err();
        assert!(matches!(error, SimError::TooLong { .. }), "{error}");
        error.to_string()
    };
    let error = refused(365 * 86_400_000 * MS, Nanos::from_millis(10));
    assert!(error.contains("by hand: expected packets for at most 3600s"), "{error}");
    let error = refused(101_000 * MS, Nanos::from_micros(100));
    assert!(error.contains("packets for at most 100s"), "{error}");
}
