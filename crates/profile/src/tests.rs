use crate::traffic::{Minnows, at_rate, frames, steady};
use crate::{Depth, TrainError, TrainOptions, fingerprint, machine, train_capacity};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::cores::default_core;
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

/// A batch of 32 packets takes 4 ms, two windows: the rate was that of windows with a batch, 16,000 packets/s.
#[test]
fn a_batch_longer_than_a_window_counts_with_the_windows_without_packets() {
    use crate::measurement_core::rate_of_few;
    let windows = [(32, 0.0), (0, 0.0), (32, 0.0), (0, 0.0)];
    assert_eq!(rate_of_few(windows.into_iter()), Some(8_000.0));
    let lacked = [(32, 0.0), (0, 0.0), (0, 2_000.0)];
    assert_eq!(rate_of_few(lacked.into_iter()), Some(8_000.0));
    assert_eq!(rate_of_few([(2_000, 0.0), (0, 0.0)].into_iter()), None);
    assert_eq!(rate_of_few([(0, 0.0)].into_iter()), None);
}

#[test]
fn gaps_are_taken_out_of_a_rate() {
    use crate::measurement_core::core_rate;
    assert_eq!(core_rate(2000, 0.0), Some(1e6));
    assert_eq!(core_rate(1000, 1000.0), Some(1e6));
    assert_eq!(core_rate(900, 1100.0), None);
}
