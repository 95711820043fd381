//! Composition, predictions with attributions, extrapolation, priors, resources other than memory.

mod common;

use common::{ROUTER, Toy, campaign, key, schema};
use std::collections::BTreeMap;
use std::sync::Arc;
use tailwater_predict::few_shot::{Prior, PriorError, error_curve};
use tailwater_predict::metric::{ACCESS_RATE, Resource};
use tailwater_predict::resources::{Accelerator, Memory, Pattern, Queues, combine};
use tailwater_predict::{
    Campaign, Change, Composition, ContentionModel, Contentiousness, Goal, Kind, Metric, Observation, PredictError,
    PredictOptions, Remedy, Schema, Sensitivity, Source, TrainOptions, Vector, compose, extrapolate, performance,
    predict, remedies,
};

fn options(kind: Kind) -> TrainOptions {
    TrainOptions {
        kind,
        folds: 4,
        ..TrainOptions::default()
    }
}

fn two_metrics() -> Arc<Schema> {
    let metrics = vec![
        Metric::new(ACCESS_RATE, "accesses/s", Resource::Cache),
        Metric::ratio("l3HitRate", "ratio", Resource::Cache),
        Metric::of_target("flows", "flows"),
    ];
    Arc::new(Schema::new(Source::Probes, metrics).unwrap())
}

fn contentious(values: &[(u32, f64, f64)]) -> Contentiousness {
    let values = values
        .iter()
        .map(|(count, rate, hits)| (*count, vec![Some(*rate), Some(*hits), None]));
    Contentiousness::with(two_metrics(), BTreeMap::from_iter(values)).unwrap()
}

/// Sections 4.2 and 5.3 of the paper: beside A, both B and C have two co-runners.
#[test]
fn competitors_are_composed_by_sum_or_mean_at_their_number_of_co_runners() {
    let b = contentious(&[(0, 100.0, 0.9), (1, 80.0, 0.8), (2, 60.0, 0.7)]);
    let c = contentious(&[(0, 10.0, 0.5), (1, 8.0, 0.4), (3, 4.0, 0.2)]);
    let composed = |how| compose(&two_metrics(), &b, &[&b, &c], how).unwrap().values().to_vec();
    // C was measured beside 1 and 3, so 2 lies between.
    assert_eq!(
        composed(Composition::CoRun),
        [Some(66.0), Some((0.7 + (0.4 + 0.2) / 2.0) / 2.0), None]
    );
    assert_eq!(composed(Composition::Solo), [Some(110.0), Some(0.7), None]);
    let alone = compose(&two_metrics(), &b, &[&b], Composition::CoRun).unwrap();
    assert_eq!(alone.get(ACCESS_RATE), Some(80.0));
    let none = compose(&two_metrics(), &b, &[], Composition::CoRun).unwrap();
    assert_eq!(none.values(), [None, None, None]);
    match compose(&two_metrics(), &b, &[&b, &c, &c], Composition::CoRun) {
        Err(PredictError::OutsideRange { what, value, high, .. }) => {
            assert_eq!((what.as_str(), value, high), ("the number of co-runners", 3.0, 2.0));
        }
        found => panic!("{found:?}"),
    }
}

#[test]
fn contentiousness_is_the_mean_of_co_runs() {
    let mut campaign = Campaign::new(key("nat"), two_metrics());
    for (group, (competitors, rate)) in [(0, 100.0), (1, 70.0), (1, 90.0), (2, 50.0)].into_iter().enumerate() {
        let vector = |rate| Vector::new(two_metrics(), vec![Some(rate), None, Some(1.0)]).unwrap();
        campaign
            .push(Observation {
                group: group as u32,
                competitors,
                competition: vector(1.0),
                throughput: 1.0,
                p99_us: None,
                own: Some(vector(rate)),
                flagged: competitors == 2,
            })
            .unwrap();
    }
    let of = Contentiousness::new(&campaign);
    assert_eq!(of.value(0, 0), Ok(100.0));
    assert_eq!(of.value(0, 1), Ok(80.0));
    assert!(matches!(of.value(0, 2), Err(PredictError::OutsideRange { .. })));
    assert!(matches!(of.value(1, 1), Err(PredictError::Metric(_))));
}

fn model(toy: &Toy, function: &str, kind: Kind) -> ContentionModel {
    ContentionModel::train(&campaign(toy, function, 200, 0.01, 1), &options(kind)).unwrap()
}

#[test]
fn a_prediction_names_the_resource_that_binds() {
    let target = model(&ROUTER, "router", Kind::Boosted);
    let schema = schema(Source::Modelled);
    let competitor = |rate: f64, occupancy: f64, bandwidth: f64| {
        let values = vec![
            Some(rate),
            Some(occupancy),
            Some(occupancy),
            Some(bandwidth),
            Some(1.0 - bandwidth / 60.0),
        ];
        let contentiousness = Contentiousness::with(schema.clone(), BTreeMap::from([(1, values)]));
        target.clone().with_contentiousness(contentiousness.unwrap()).unwrap()
    };
    for (other, resource) in [
        (competitor(9e7, 18.0, 1.0), Resource::Cache),
        (competitor(2e6, 1.0, 28.0), Resource::MemoryBandwidth),
    ] {
        let prediction = predict(&target, &[&other], &PredictOptions::default()).unwrap();
        let binding = prediction.binds().unwrap();
        assert_eq!(binding.resource, resource, "{prediction:?}");
        assert!(binding.loss > 0.03 && binding.remedy.is_some());
        // Parts add up to the whole loss against the baseline.
        let parts: f64 = prediction.attributions.iter().map(|of| of.loss).sum();
        assert!(
            (parts - (1.0 - prediction.relative)).abs() < 0.05,
            "{parts} {}",
            prediction.relative
        );
        assert!(prediction.throughput.low < prediction.throughput.value);
        let p99 = prediction.p99_us.unwrap();
        assert!((p99.value * prediction.throughput.value / (50.0 * ROUTER.solo) - 1.0).abs() < 0.05);
    }
}

/// Three changes: the cache for the target alone, or either competitor elsewhere. Each one's gain is that of the
/// prediction after it.
#[test]
fn what_would_help_is_predicted() {
    let target = model(&ROUTER, "router", Kind::Boosted);
    let schema = schema(Source::Modelled);
    let competitor = |function: &str, rate: f64, occupancy: f64, bandwidth: f64| {
        let values = |share: f64| {
            let hits = 1.0 - bandwidth * share / 60.0;
            vec![
                Some(rate * share),
                Some(occupancy * share),
                Some(occupancy * share),
                Some(bandwidth * share),
                Some(hits),
            ]
        };
        let values = BTreeMap::from([(1, values(1.0)), (2, values(0.9))]);
        let contentiousness = Contentiousness::with(schema.clone(), values).unwrap();
        let of = model(&ROUTER, function, Kind::Ridge);
        of.with_contentiousness(contentiousness).unwrap()
    };
    let cache = competitor("ids", 8e7, 18.0, 1.0);
    let memory = competitor("copy", 2e6, 1.0, 20.0);
    let options = PredictOptions::default();
    let both = [&cache, &memory];
    let found = remedies(&target, &both, &options).unwrap();
    let of = |remedy: Remedy| found.iter().find(|relief| relief.remedy == remedy).expect("a remedy");
    let (ids, copy) = (of(Remedy::Move("ids".to_owned())), of(Remedy::Move("copy".to_owned())));
    let separate = of(Remedy::Separate(Resource::Cache));
    assert!(found.windows(2).all(|pair| pair[0].gain >= pair[1].gain));
    assert!(ids.gain > copy.gain && copy.gain > 0.0, "{found:?}");
    assert!(separate.gain > 0.05, "{found:?}");
    let now = performance(&target, &both, &options).unwrap().throughput.value;
    let after = predict(&target, &[&memory], &options).unwrap().throughput;
    assert_eq!(ids.throughput, after);
    assert!((ids.gain - (after.value / now - 1.0)).abs() < 1e-12);
    assert_eq!(ids.remedy.to_string(), "move one ids to another socket");
    // Two instances of one competitor are one remedy.
    let small = competitor("nat", 4e7, 9.0, 1.0);
    let found = remedies(&target, &[&small, &small], &options).unwrap();
    let moves = found.iter().filter(|of| matches!(of.remedy, Remedy::Move(_)));
    assert_eq!(moves.count(), 1);
    assert_eq!(remedies(&target, &[], &options), Ok(Vec::new()));
}

#[test]
fn alone_a_target_has_its_solo_performance() {
    let target = model(&ROUTER, "router", Kind::Ridge);
    let prediction = predict(&target, &[], &PredictOptions::default()).unwrap();
    assert_eq!(prediction.throughput.value, ROUTER.solo);
    assert_eq!(prediction.p99_us.unwrap().value, 50.0);
    assert!(prediction.binds().is_none());
}

#[test]
fn models_of_other_machines_are_refused() {
    let target = model(&ROUTER, "router", Kind::Ridge);
    let text = target.to_string();
    let mut other_key = key("nat");
    other_key.machine = "another".to_owned();
    let source = campaign(&ROUTER, "nat", 40, 0.0, 1);
    let mut elsewhere = Campaign::new(other_key, source.schema().clone());
    source
        .observations()
        .iter()
        .for_each(|of| elsewhere.push(of.clone()).unwrap());
    let other = ContentionModel::train(&elsewhere, &options(Kind::Ridge)).unwrap();
    let found = predict(&target, &[&other], &PredictOptions::default());
    assert!(matches!(found, Err(PredictError::OtherMachine { .. })), "{found:?}");
    assert_eq!(target.to_string(), text);
}

/// The target's flows shrink or grow, and the answer is that of the changed target, not of the old one.
#[test]
fn extrapolation_is_more_accurate_than_the_old_model() {
    let old = Sensitivity::train(
        &campaign(&ROUTER, "router", 250, 0.0, 1),
        Goal::Throughput,
        ROUTER.solo,
        &options(Kind::Boosted),
    )
    .unwrap();
    for relative in [-0.2, -0.1, 0.1, 0.2] {
        let toy = Toy {
            occupancy: ROUTER.occupancy * (1.0 + relative),
            solo: ROUTER.solo * (1.0 - 0.5 * relative),
            ..ROUTER
        };
        let change = Change {
            occupancy_old: ROUTER.occupancy,
            occupancy_new: toy.occupancy,
            solo_old: ROUTER.solo,
            solo_new: toy.solo,
            limit: 0.2,
        };
        let (mut shifted, mut unshifted, mut count) = (0.0, 0.0, 0.0);
        for unseen in campaign(&toy, "router", 100, 0.0, 50).observations() {
            let inputs = old.inputs(&unseen.competition).unwrap();
            let Ok(estimate) = extrapolate(&old, &inputs, &change, 0.9) else {
                continue;
            };
            assert!(estimate.low < estimate.value && estimate.value < estimate.high);
            shifted += (estimate.value / unseen.throughput - 1.0).abs();
            unshifted += (old.predict_at(&inputs, 0.9).unwrap().value / unseen.throughput - 1.0).abs();
            count += 1.0;
        }
        assert!(
            count > 80.0 && shifted / count < 0.05 && shifted < 0.8 * unshifted,
            "{relative}: {shifted} {unshifted}"
        );
    }
}

#[test]
fn without_a_change_extrapolation_is_the_prediction() {
    let campaign = campaign(&ROUTER, "router", 60, 0.01, 1);
    let model = Sensitivity::train(&campaign, Goal::Throughput, ROUTER.solo, &options(Kind::Ridge)).unwrap();
    let mut change = Change {
        occupancy_old: 8.0,
        occupancy_new: 8.0,
        solo_old: ROUTER.solo,
        solo_new: ROUTER.solo,
        limit: 0.2,
    };
    let inputs = model.inputs(&campaign.observations()[4].competition).unwrap();
    let [found, expected] = [
        extrapolate(&model, &inputs, &change, 0.5),
        model.predict_at(&inputs, 0.5),
    ]
    .map(Result::unwrap);
    assert!((found.value / expected.value - 1.0).abs() < 1e-12 && (found.low / expected.low - 1.0).abs() < 1e-12);
    for occupancy in [9.7, f64::NAN] {
        change.occupancy_new = occupancy;
        let found = extrapolate(&model, &inputs, &change, 0.5);
        assert!(matches!(found, Err(PredictError::OutsideRange { .. })), "{found:?}");
    }
}

fn family() -> Vec<Campaign> {
    let toys = [
        (4.0, 0.3, 0.2),
        (12.0, 0.9, 0.5),
        (8.0, 0.2, 0.8),
        (10.0, 0.7, 0.1),
        (6.0, 0.5, 0.4),
    ];
    let toys = toys.into_iter().enumerate().map(|(at, (occupancy, cache, memory))| {
        let solo = 1e6 * (1 + at) as f64;
        (
            at,
            Toy {
                occupancy,
                cache,
                memory,
                solo,
            },
        )
    });
    toys.map(|(at, toy)| campaign(&toy, &format!("function-{at}"), 60, 0.01, at as u64))
        .collect()
}

/// With the campaigns of others, a few co-runs reach what takes many without.
#[test]
fn a_prior_saves_co_runs() {
    let others = family();
    let others: Vec<&Campaign> = others.iter().collect();
    let prior = Prior::train(&others, &options(Kind::BoostedRidge)).unwrap();
    let new = campaign(&ROUTER, "router", 80, 0.01, 42);
    let curve = error_curve(&prior, &new, &[0, 4, 10], 5, &options(Kind::Ridge)).unwrap();
    assert_eq!(curve.iter().map(|of| of.points).collect::<Vec<_>>(), [0, 4, 10]);
    assert!(curve[0].alone.is_none() && curve[1].alone.is_none());
    assert!(curve[2].with_prior <= curve[0].with_prior, "{curve:?}");
    assert!(curve[1].with_prior < curve[2].alone.unwrap(), "{curve:?}");
    // A prior that was adapted is a model like any other.
    let adapted = prior.adapt(&new).unwrap();
    let estimate = adapted
        .predict_at(&adapted.inputs(&new.observations()[3].competition).unwrap(), 0.8)
        .unwrap();
    assert!((estimate.value / new.observations()[3].throughput - 1.0).abs() < 0.15);
}

#[test]
fn a_prior_requires_the_function_alone() {
    let others = family();
    let (first, rest) = others.split_first().unwrap();
    let co_runs: Vec<usize> = (1..first.observations().len()).collect();
    let never_alone = first.subset(&co_runs);
    let found = Prior::train(&[&never_alone, &rest[0]], &options(Kind::Ridge));
    assert!(matches!(found, Err(PriorError::NotAlone { .. })), "{found:?}");
    let found = Prior::train(&[first], &options(Kind::Ridge));
    assert!(matches!(found, Err(PriorError::TooFew { found: 1 })), "{found:?}");
}

fn engine(competitors: Vec<Queues>) -> Accelerator {
    Accelerator {
        name: "regex engine".to_owned(),
        target: Queues {
            queues: 1,
            request_seconds: 1e-6,
            offered: 0.8e6,
        },
        requests_per_packet: 1.0,
        competitors,
    }
}

/// An accelerator that serves its queues in turn.
#[test]
fn an_accelerator_gives_each_queue_its_turn() {
    let competitor = |queues, offered| Queues {
        queues,
        request_seconds: 1e-6,
        offered,
    };
    assert_eq!(engine(vec![]).requests(), 0.8e6);
    let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    near(engine(vec![competitor(1, f64::INFINITY)]).requests(), 0.5e6);
    near(engine(vec![competitor(3, f64::INFINITY)]).requests(), 0.25e6);
    // A light competitor leaves the rest.
    near(engine(vec![competitor(1, 0.3e6)]).requests(), 0.7e6);
    near(engine(vec![competitor(1, 0.1e6)]).requests(), 0.8e6);
    // Long requests take long turns.
    let long = Queues {
        request_seconds: 3e-6,
        ..competitor(1, f64::INFINITY)
    };
    near(engine(vec![long]).requests(), 0.25e6);
}

#[test]
fn a_pipeline_is_as_fast_as_its_slowest_stage_and_times_add_up_otherwise() {
    let memory = Memory { throughput: 0.6e6 };
    let busy = engine(vec![Queues {
        queues: 1,
        request_seconds: 1e-6,
        offered: f64::INFINITY,
    }]);
    let solo = 0.8e6;
    let pipeline = combine(Pattern::Pipeline, solo, &[&memory, &busy]).unwrap();
    assert!((pipeline.throughput / 0.5e6 - 1.0).abs() < 1e-9);
    assert_eq!(pipeline.binds.as_deref(), Some("regex engine"));
    let serial = combine(Pattern::RunToCompletion, solo, &[&memory, &busy]).unwrap();
    let micros = 1.0 / 0.8 + (1.0 / 0.6 - 1.0 / 0.8) + (1.0 / 0.5 - 1.0 / 0.8);
    assert!((serial.throughput * micros / 1e6 - 1.0).abs() < 1e-9);
    let free = combine(Pattern::RunToCompletion, solo, &[&engine(vec![])]).unwrap();
    assert!((free.throughput / solo - 1.0).abs() < 1e-9 && free.binds.is_none());
}
