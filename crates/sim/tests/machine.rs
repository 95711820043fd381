//! Effects of the machine on cores: interruptions, and changing speed.

mod common;

use common::{MS, checked, costs, static_rss};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_policy::capacity::Pause;
use tailwater_sim::{ChainModel, ChainRun, Rack, Recording, RunOptions, SimError, SpeedProfile, Workload, simulate};

/// A packet every ten microseconds, for 200 ms.
fn packets() -> Arc<Recording> {
    let packets = (0..20_000).map(|i| (Nanos(i * 10_000), i as u32 % 7, 100));
    Arc::new(Recording::of_packets("test", packets, 1))
}

fn model() -> ChainModel {
    ChainModel::new("test", costs(1000.0, 0.0))
}

#[test]
fn pauses_delay_the_packets_that_they_meet() {
    let pause = |per_second, nanos| Pause { per_second, nanos };
    let paused = ChainModel {
        pauses: vec![pause(3000.0, 4_000), pause(1000.0, 8_000)],
        ..model()
    };
    let report = checked(&Rack::of_one(1), paused, static_rss(1), &packets());
    // An interruption delays a packet if it begins during its processing or ends after its arrival. The 4 us ones delay
    // 3 of 100 packets (4 + 1 of 10 us, 3000 of 100,000 per second), the others 1 of 100.
    let late = |nanos: u64| {
        let points = report.latency_distribution.iter();
        let below = points
            .filter(|point| point.latency_us * 1e3 <= nanos as f64)
            .map(|point| point.packets)
            .max();
        1.0 - below.unwrap_or(0) as f64 / 20_000.0
    };
    assert!(report.latency.percentile(50.0) < Nanos(1100));
    assert!((0.018..0.032).contains(&late(1100)), "{}", late(1100));
    assert!((0.002..0.010).contains(&late(5200)), "{}", late(5200));
    assert_eq!(report.packets.delivered, 20_000);
}

#[test]
fn batches_take_as_long_as_the_pace_says() {
    let mut rack = Rack::of_one(1);
    rack.pace = Some(SpeedProfile {
        step: Nanos(100 * MS),
        times: vec![1.0, 2.5],
    });
    let chain = ChainRun {
        model: model(),
        slo: common::SLO,
        policy: static_rss(1),
        workload: Workload::from(packets()),
    };
    let options = RunOptions {
        window: Nanos(100 * MS),
        check: true,
        ..RunOptions::default()
    };
    let report = simulate(&rack, vec![chain], &options).unwrap();
    let windows = &report.chains[0].windows;
    let longest: Vec<f64> = windows.iter().map(|window| window.max_us).collect();
    assert_eq!(longest[..2], [1.0, 2.5]);
}

#[test]
fn impossible_machines_are_refused() {
    let run = |rack: &Rack, model: ChainModel| {
        let chain = ChainRun {
            model,
            slo: common::SLO,
            policy: static_rss(1),
            workload: Workload::from(packets()),
        };
        let error = simulate(rack, vec![chain], &RunOptions::default()).unwrap_err();
        assert!(!matches!(error, SimError::Traffic(_)));
        error.to_string()
    };
    let pace = |step, times: &[f64]| Rack {
        pace: Some(SpeedProfile {
            step: Nanos(step),
            times: times.to_vec(),
        }),
        ..Rack::of_one(1)
    };
    let expected = "pace: expected steps that last, found none";
    assert_eq!(run(&pace(0, &[1.0]), model()), expected);
    assert_eq!(run(&pace(1000, &[]), model()), expected);
    let expected = "pace.times: expected 0.01 to 100, found -1";
    assert_eq!(run(&pace(1000, &[1.0, -1.0]), model()), expected);
    assert!(run(&pace(1000, &[f64::NAN]), model()).contains("found NaN"));
    let half = ChainModel {
        pauses: vec![Pause {
            per_second: 1e5,
            nanos: 5_000,
        }],
        ..model()
    };
    let error = run(&Rack::of_one(1), half);
    assert!(error.contains("pauses: expected"), "{error}");
}
