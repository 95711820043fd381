//! Methods, intervals, ranges, and the choice of metrics.

mod common;

use common::{Chance, ROUTER, Toy, campaign, observation, schema};
use tailwater_predict::metric::{ACCESS_RATE, Resource, WORKING_SET};
use tailwater_predict::{
    Campaign, ContentionModel, Dataset, FitError, Goal, Kind, Metric, MetricError, PredictError, Schema, Selection,
    Sensitivity, Source, TrainOptions, Vector, correlations, importances, leave_groups_out,
};

fn options(kind: Kind) -> TrainOptions {
    TrainOptions {
        kind,
        folds: 4,
        ..TrainOptions::default()
    }
}

fn train(campaign: &Campaign, kind: Kind) -> Sensitivity {
    Sensitivity::train(campaign, Goal::Throughput, ROUTER.solo, &options(kind)).unwrap()
}

fn error(model: &Sensitivity, toy: &Toy, seed: u64) -> f64 {
    let schema = schema(Source::Modelled);
    let mut chance = Chance(seed);
    let mut errors = Vec::new();
    for _ in 0..200 {
        let unseen = observation(toy, &schema, &mut chance, 0.0, 0);
        if let Ok(estimate) = model.predict(&unseen.competition, 0.8) {
            errors.push((estimate.value / unseen.throughput - 1.0).abs());
        }
    }
    assert!(errors.len() > 150);
    errors.iter().sum::<f64>() / errors.len() as f64
}

/// The order of the paper's evaluation: boosting below both single-metric models.
#[test]
fn boosting_is_more_accurate_than_models_of_one_metric() {
    let campaign = campaign(&ROUTER, "router", 160, 0.01, 1);
    let errors: Vec<(Kind, f64)> = Kind::ALL
        .map(|kind| (kind, error(&train(&campaign, kind), &ROUTER, 99)))
        .to_vec();
    let of = |kind: Kind| errors.iter().find(|(of, _)| *of == kind).unwrap().1;
    assert!(of(Kind::Boosted) < 0.025, "{errors:?}");
    for baseline in [Kind::AccessRate, Kind::WorkingSet] {
        assert!(2.0 * of(Kind::Boosted) < of(baseline), "{errors:?}");
    }
    assert!(of(Kind::Boosted) < of(Kind::Ridge), "{errors:?}");
}

/// Coverage over many targets, campaigns and unseen co-runs.
#[test]
fn intervals_cover_as_many_unseen_co_runs_as_they_promise() {
    let schema = schema(Source::Modelled);
    let (mut inside, mut all) = ([0.0; 2], 0.0);
    for seed in 0..10 {
        let campaign = campaign(&ROUTER, "router", 100, 0.08, seed);
        let model = train(&campaign, if seed % 2 == 0 { Kind::Ridge } else { Kind::WorkingSet });
        let mut chance = Chance(1000 + seed);
        for _ in 0..200 {
            let unseen = observation(&ROUTER, &schema, &mut chance, 0.08, 0);
            let Ok(wide) = model.predict(&unseen.competition, 0.9) else {
                continue;
            };
            let narrow = model.predict(&unseen.competition, 0.5).unwrap();
            assert!(narrow.low >= wide.low && narrow.high <= wide.high && narrow.low <= narrow.value);
            for (count, estimate) in inside.iter_mut().zip([wide, narrow]) {
                *count += f64::from(u8::from((estimate.low..=estimate.high).contains(&unseen.throughput)));
            }
            all += 1.0;
        }
    }
    let coverage = inside.map(|count| count / all);
    assert!((0.87..=0.95).contains(&coverage[0]), "{coverage:?}");
    assert!((0.44..=0.58).contains(&coverage[1]), "{coverage:?}");
}

#[test]
fn intervals_of_boosted_models_cover_too() {
    let schema = schema(Source::Modelled);
    let model = train(&campaign(&ROUTER, "router", 200, 0.05, 5), Kind::Boosted);
    let mut chance = Chance(77);
    let (mut inside, mut all) = (0.0, 0.0);
    for _ in 0..500 {
        let unseen = observation(&ROUTER, &schema, &mut chance, 0.05, 0);
        if let Ok(estimate) = model.predict(&unseen.competition, 0.9) {
            inside += f64::from(u8::from((estimate.low..=estimate.high).contains(&unseen.throughput)));
            all += 1.0;
        }
    }
    assert!((0.84..=0.97).contains(&(inside / all)), "{}", inside / all);
}

#[test]
fn an_interval_beyond_the_observations_is_refused() {
    let model = train(&campaign(&ROUTER, "router", 30, 0.01, 1), Kind::Ridge);
    let vector = campaign(&ROUTER, "router", 30, 0.01, 1).observations()[3]
        .competition
        .clone();
    assert!(model.predict(&vector, 0.9).is_ok());
    for confidence in [0.999, 1.0, 0.0, -1.0, f64::NAN] {
        let found = model.predict(&vector, confidence);
        assert!(
            matches!(found, Err(PredictError::Confidence { .. })),
            "{confidence}: {found:?}"
        );
    }
}

#[test]
fn outside_of_its_range_a_model_names_the_metric() {
    let campaign = campaign(&ROUTER, "router", 60, 0.01, 1);
    for kind in [Kind::Boosted, Kind::Ridge, Kind::AccessRate] {
        let model = train(&campaign, kind);
        let mut vector = campaign.observations()[5].competition.clone();
        vector.set(ACCESS_RATE, 5e8);
        match model.predict(&vector, 0.8) {
            Err(PredictError::OutsideRange { what, value, .. }) => {
                assert_eq!((what.as_str(), value), ("cacheAccessRate (accesses/s)", 5e8));
            }
            found => panic!("{found:?}"),
        }
    }
    // A model that does not use a metric does not care about it.
    let model = train(&campaign, Kind::WorkingSet);
    let mut vector = campaign.observations()[5].competition.clone();
    vector.set(ACCESS_RATE, 5e8);
    assert!(model.predict(&vector, 0.8).is_ok());
    assert_eq!(model.schema().metrics()[0].name, WORKING_SET);
}

#[test]
fn more_of_a_metric_that_slows_never_speeds_up() {
    let model = train(&campaign(&ROUTER, "router", 100, 0.1, 3), Kind::Boosted);
    let ranges = model.ranges().to_vec();
    let mut chance = Chance(5);
    for _ in 0..200 {
        let mut inputs: Vec<f64> = ranges
            .iter()
            .map(|(low, high)| low + chance.next() * (high - low))
            .collect();
        let before = model.predict_at(&inputs, 0.5).unwrap().value;
        let at = (chance.next() * inputs.len() as f64) as usize;
        if model.schema().metrics()[at].name == "l3HitRate" {
            continue;
        }
        inputs[at] += chance.next() * (ranges[at].1 - inputs[at]);
        assert!(model.predict_at(&inputs, 0.5).unwrap().value <= before * (1.0 + 1e-12));
    }
}

#[test]
fn sources_are_not_mixed() {
    let model = train(&campaign(&ROUTER, "router", 40, 0.01, 1), Kind::Ridge);
    let probes = schema(Source::Probes);
    let vector = Vector::new(probes.clone(), vec![Some(1.0); 5]).unwrap();
    let mixed = MetricError::Mixed {
        expected: Source::Modelled,
        found: Source::Probes,
    };
    assert_eq!(model.predict(&vector, 0.5), Err(PredictError::Metric(mixed)));
    let mut other = campaign(&ROUTER, "router", 1, 0.0, 1);
    let foreign = observation(&ROUTER, &probes, &mut Chance(1), 0.0, 0);
    assert!(other.push(foreign).is_err());
}

#[test]
fn metrics_of_other_units_are_refused() {
    let model = train(&campaign(&ROUTER, "router", 40, 0.01, 1), Kind::WorkingSet);
    let schema = Schema::new(Source::Modelled, vec![Metric::new(WORKING_SET, "KiB", Resource::Cache)]).unwrap();
    let vector = Vector::new(schema.into(), vec![Some(1.0)]).unwrap();
    let found = model.predict(&vector, 0.5);
    assert!(
        matches!(found, Err(PredictError::Metric(MetricError::Different { .. }))),
        "{found:?}"
    );
}

#[test]
fn constant_and_vanished_metrics_are_left_out_with_a_note() {
    let schema = schema(Source::Modelled);
    let mut campaign = Campaign::new(common::key("router"), schema.clone());
    let mut chance = Chance(9);
    for group in 0..60 {
        let mut of = observation(&ROUTER, &schema, &mut chance, 0.01, group);
        let mut values = of.competition.values().to_vec();
        values[4] = Some(0.5);
        // The counter was taken away midway.
        values[3] = values[3].filter(|_| group < 30);
        // A single gap costs its row only.
        values[0] = values[0].filter(|_| group != 7);
        of.competition = Vector::new(schema.clone(), values).unwrap();
        of.flagged = group == 8;
        campaign.push(of).unwrap();
    }
    let data = Dataset::new(&campaign, Goal::Throughput);
    let names: Vec<&str> = data.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["cacheAccessRate", "cacheOccupancy", "workingSet"]);
    assert_eq!(data.len(), 58);
    assert_eq!(
        data.notes,
        [
            "1 disturbed observations are not used",
            "memoryRead: left out, missing in 30 of 59 observations",
            "l3HitRate: left out, the same in all observations",
            "1 observations are not used, because a metric is missing in each",
        ]
    );
    let model = ContentionModel::train(&campaign, &options(Kind::Ridge)).unwrap();
    let notes = model.throughput().notes();
    assert!(notes.contains(&"the target was not measured alone: its best co-run stands for that".to_owned()));
}

#[test]
fn not_a_number_is_refused() {
    let schema = schema(Source::Modelled);
    for value in [f64::NAN, f64::INFINITY] {
        assert!(Vector::new(schema.clone(), vec![Some(value); 5]).is_err());
        let mut campaign = campaign(&ROUTER, "router", 1, 0.0, 1);
        let mut of = observation(&ROUTER, &schema, &mut Chance(1), 0.0, 0);
        of.throughput = value;
        assert!(campaign.push(of).is_err());
    }
    assert!(Vector::new(schema, vec![Some(1.0); 4]).is_err());
}

#[test]
fn too_little_is_no_model() {
    let few = campaign(&ROUTER, "router", 5, 0.0, 1);
    for kind in Kind::ALL {
        let found = Sensitivity::train(&few, Goal::Throughput, 1.0, &options(kind));
        assert!(matches!(found, Err(FitError::TooFew { found: 6 })), "{kind}: {found:?}");
    }
    let schema = Schema::new(Source::Modelled, vec![Metric::new("x", "1", Resource::Other)]).unwrap();
    let empty = Campaign::new(common::key("none"), schema.into());
    assert!(ContentionModel::train(&empty, &options(Kind::Ridge)).is_err());
    let found = Sensitivity::train(&empty, Goal::Throughput, 1.0, &options(Kind::AccessRate));
    assert!(
        matches!(
            found,
            Err(FitError::Metric {
                metric: ACCESS_RATE,
                ..
            })
        ),
        "{found:?}"
    );
}

#[test]
fn metrics_are_chosen_by_correlation_and_permutation() {
    let schema = schema(Source::Modelled);
    let mut campaign = Campaign::new(common::key("router"), schema.clone());
    let mut chance = Chance(4);
    for group in 0..150 {
        let mut of = observation(&ROUTER, &schema, &mut chance, 0.0, group);
        // A metric that has nothing to do with the target.
        of.competition.set("l3HitRate", chance.next());
        campaign.push(of).unwrap();
    }
    let data = Dataset::new(&campaign, Goal::Throughput);
    let related = correlations(&data);
    let gains = importances(&data, Goal::Throughput, 1);
    assert!(related[3] < -0.3 && related[4].abs() < 0.25, "{related:?}");
    assert!(gains[3] > 10.0 * gains[4].abs(), "{gains:?}");
    let mut choosy = options(Kind::Ridge);
    choosy.selection = Selection {
        correlation: 0.25,
        permutation: true,
    };
    let model = Sensitivity::train(&campaign, Goal::Throughput, ROUTER.solo, &choosy).unwrap();
    assert!(model.schema().position("l3HitRate").is_none());
    assert!(
        model.notes().iter().any(|note| note.starts_with("l3HitRate: left out")),
        "{:?}",
        model.notes()
    );
}

#[test]
fn a_group_is_predicted_by_the_others() {
    let mut campaign = campaign(&ROUTER, "router", 40, 0.0, 1);
    let mut far = campaign.observations()[7].clone();
    far.competition.set(ACCESS_RATE, 1.5e8);
    far.group = 1000;
    campaign.push(far).unwrap();
    let results = leave_groups_out(&campaign, Goal::Throughput, &options(Kind::Ridge)).unwrap();
    assert_eq!(results.len(), 42);
    let outside: Vec<u32> = results.iter().filter(|of| of.outside).map(|of| of.group).collect();
    assert!(outside.contains(&1000) && outside.len() < 8, "{outside:?}");
    assert!(results.iter().all(|of| of.outside || of.error() < 0.5));
}

/// Training is reproducible: same campaign, same options, same file.
#[test]
fn training_is_deterministic() {
    let campaign = campaign(&ROUTER, "router", 40, 0.02, 1);
    for kind in [Kind::Boosted, Kind::Forest] {
        let model = || ContentionModel::train(&campaign, &options(kind)).unwrap().to_string();
        assert_eq!(model(), model());
    }
}
