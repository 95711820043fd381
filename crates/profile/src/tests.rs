use crate::measurement_core::{SATURATED_WINDOW, span_rates};
use crate::traffic::{Minnows, at_rate, frames, steady};
use crate::{Depth, TrainError, TrainOptions, fingerprint, machine, train_capacity};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::cores::default_core;
use tailwater_dataplane::report::{LatencyReport, WindowReport};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_traffic::{LoadOptions, Trace};

fn spec(latency: &str) -> ChainSpec {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: small}}\nspec:\n  \
         functions: [{{forward: }}, {{accounting: {{export: {{file: /nonexistent/x.csv, format: csv}}}}}}]\n  \
         slo: {{latency: {latency}}}\n  flows: {{capacity: 8192}}\n"
    );
    ChainSpec::parse(&text, "small.yaml", Path::new("")).unwrap()
}

fn quick() -> TrainOptions {
    TrainOptions {
        core: default_core(),
        depth: Depth::Quick,
        seed: 1,
    }
}

/// A complete quick profile of a chain that would write a file to an impossible path. Checks no measured values, since
/// the machine may be slow.
#[test]
fn a_quick_profile_is_whole() {
    let spec = spec("20ms");
    let traffic = steady(100, frames(200.0), 5000, 1e6).unwrap();
    let mut steps = Vec::new();
    let stop = AtomicBool::new(false);
    let profile = train_capacity(&spec, &traffic, &quick(), &stop, |step| steps.push(step)).unwrap();
    assert_eq!(profile.chain, "small");
    assert_eq!(profile.configuration, fingerprint(&spec));
    assert_eq!(profile.machine, machine());
    assert_eq!(profile.slo, Nanos::from_millis(20));
    assert_eq!(profile.epoch, Nanos::from_millis(10));
    assert!(!profile.frontier.is_empty());
    assert!(profile.rates.is_empty());
    // A benefit of its only cut depends on the machine.
    assert!(profile.splits.points().len() <= 1);
    let costs = profile.costs.unwrap();
    for cost in [costs.batch, costs.packet, costs.byte, costs.new_flow] {
        assert!(cost.is_finite() && cost >= 0.0, "{costs:?}");
    }
    let text = profile.to_string();
    assert_eq!(CapacityProfile::parse(text.as_bytes(), "small.yaml").unwrap(), profile);

    assert_eq!(steps.len(), steps[0].of);
    assert!(steps.iter().enumerate().all(|(i, step)| step.done == i));
}

/// Even on a slow machine, the profile has a rate.
#[test]
fn a_quick_profile_has_a_rate_on_demand() {
    let traffic = steady(100, frames(200.0), 5000, 1e6).unwrap();
    let options = TrainOptions {
        depth: Depth::QuickWithRate,
        ..quick()
    };
    let (mut steps, stop) = (Vec::new(), AtomicBool::new(false));
    let profile = train_capacity(&spec("20ms"), &traffic, &options, &stop, |step| {
        steps.push(step);
    });
    let rates = profile.unwrap().rates;
    assert_eq!(rates.corners().len(), 1);
    assert!(rates.rate(1024.0) > 0.0 && rates.rate(1e6) > 0.0);
    assert_eq!(steps.len(), steps[0].of);
}

#[test]
fn what_cannot_be_trained_says_why() {
    let traffic = steady(1, frames(60.0), 100, 1e6).unwrap();
    let stop = AtomicBool::new(true);
    let outcome = train_capacity(&spec("1ms"), &traffic, &quick(), &stop, |_| {});
    assert!(matches!(outcome, Err(TrainError::Stopped)), "{outcome:?}");
    let stop = AtomicBool::new(false);
    let mut none = spec("1ms");
    none.slo.latency = Nanos(1);
    let outcome = train_capacity(&none, &traffic, &quick(), &stop, |_| {});
    assert!(matches!(outcome, Err(TrainError::Epoch(_))), "{outcome:?}");
}

/// No machine processes a packet in 10 ns.
#[test]
fn a_chain_too_slow_for_auxiliary_cores_is_named_with_its_cost_and_function() {
    let traffic = steady(1, frames(60.0), 100, 1e6).unwrap();
    let mut slow = spec("1ms");
    slow.slo.latency = Nanos(20);
    let outcome = train_capacity(&slow, &traffic, &quick(), &AtomicBool::new(false), |_| {});
    let Err(error @ TrainError::NoCapacity { epoch, cost, .. }) = &outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(*epoch, Nanos(10));
    assert!(*cost > *epoch);
    let text = error.to_string();
    let expected = format!("a packet takes {cost} in the chain, of which the function ");
    assert!(text.starts_with(&expected), "{text}");
    let end = format!("expected one above {}, or less work a packet", Nanos(2 * cost.0));
    assert!(text.contains("is 10ns: ") && text.ends_with(&end), "{text}");
}

/// The claimed number of flows equals the generated one.
#[test]
fn minnows_have_as_many_flows_as_they_claim() {
    for (flows, each) in [(1, 40), (7, 1), (7, 2), (10, 3), (30, 5)] {
        let mut source = Minnows::new(flows, each, frames(60.0), 500);
        let trace = Trace::load(&mut source, &LoadOptions::default()).unwrap();
        let block = (flows * each) as usize;
        assert_eq!(trace.len(), 500_usize.next_multiple_of(block));
        let key = |i| parse(trace.packet(i)).unwrap().key;
        for start in 0..trace.len() {
            let mut seen = BTreeSet::new();
            for (i, packet) in (start..trace.len().min(start + 80)).enumerate() {
                seen.insert(key(packet).to_string());
                let claimed = Minnows::certain_flows(flows, each, i as u32 + 1);
                assert!(claimed as usize <= seen.len(), "{flows} x {each}: {start}, {i}");
            }
        }
        let all: BTreeSet<String> = (0..trace.len()).map(|i| key(i).to_string()).collect();
        assert_eq!(all.len(), trace.len() / each as usize);
    }
}

#[test]
fn traffic_keeps_its_bursts_at_another_rate() {
    let traffic = steady(5, frames(60.0), 1001, 1e6).unwrap();
    let copy = at_rate(&traffic, 501, 2e6).unwrap();
    assert_eq!(copy.len(), 501);
    assert_eq!(copy.duration(), Nanos::from_micros(250));
    assert_eq!(copy.packet(7), traffic.packet(7));
    let one = at_rate(&traffic, 1, 2e6).unwrap();
    assert_eq!(one.len(), 1);
}

/// Returns the windows of a saturated run for `seconds` with so many packets per second, as a report lists them: only
/// those with packets.
fn saturated_windows(pps: f64, seconds: f64) -> Vec<WindowReport> {
    let mut windows: Vec<WindowReport> = Vec::new();
    let length = SATURATED_WINDOW.as_secs_f64();
    for batch in 0..(pps * seconds / 32.0) as u64 {
        let start_s = ((batch as f64 * 32.0 / pps) / length).floor() * length;
        match windows.last_mut() {
            Some(last) if last.start_s == start_s => last.offered += 32,
            _ => windows.push(WindowReport {
                start_s,
                offered: 32,
                delivered: 32,
                lost: 0,
                late: 0,
                latency_us: LatencyReport::default(),
                gaps: 0,
                gap_us: 0.0,
                longest_gap_us: 0.0,
                flagged: false,
                slo_met: None,
            }),
        }
    }
    windows
}

proptest! {
    /// A window of 2 ms has the packets of a whole batch or is not listed: chains that take 60 us a packet and more all
    /// had 16,000 packets/s, that of windows with one batch.
    #[test]
    fn slow_chains_have_the_rate_of_all_their_time(exponent in 3.0f64..5.7) {
        let pps = 10f64.powf(exponent);
        let rates = span_rates(&saturated_windows(pps, 0.25), 32).unwrap();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        // A run has so many batches, and each end of a span is known to a window or a batch.
        let off = 2.0 * (32.0 / pps).min(0.002) / 0.25;
        prop_assert!((mean / pps - 1.0).abs() <= off.max(0.03), "{} for {}: {:?}", mean, pps, rates);
    }
}

#[test]
fn spans_leave_gaps_out_and_fast_chains_have_none() {
    assert_eq!(span_rates(&saturated_windows(2e6, 0.1), 32), None);
    assert_eq!(span_rates(&[], 32), None);
    assert_eq!(span_rates(&saturated_windows(1e4, 0.001), 32), None);
    // 8,000 packets/s, and 100 ms without the core in a run of five times that.
    let mut windows = saturated_windows(8e3, 0.4);
    let late = windows.split_off(windows.len() / 2).into_iter();
    windows.extend(late.map(|window| WindowReport {
        start_s: window.start_s + 0.1,
        ..window
    }));
    let after = windows.len() / 2;
    windows[after].gap_us = 100_000.0;
    let rates = span_rates(&windows, 32).unwrap();
    assert!(rates.iter().all(|rate| (rate / 8e3 - 1.0).abs() < 0.05), "{rates:?}");
    // Spans with interference do not count if there are others.
    let mut windows = saturated_windows(2e5, 0.2);
    for window in windows.iter_mut().step_by(20) {
        (window.offered, window.flagged) = (32, true);
    }
    let rates = span_rates(&windows, 32).unwrap();
    assert!(rates.len() >= 10, "{rates:?}");
    assert!(rates.iter().all(|rate| (rate / 2e5 - 1.0).abs() < 0.05), "{rates:?}");
}

#[test]
fn gaps_are_taken_out_of_a_rate() {
    use crate::measurement_core::core_rate;
    assert_eq!(core_rate(2000, 0.0), Some(1e6));
    assert_eq!(core_rate(1000, 1000.0), Some(1e6));
    assert_eq!(core_rate(900, 1100.0), None);
}
