//! Vectors of competitors in equilibrium, on a toy cache whose shares are known.

mod common;

use common::{Chance, key};
use std::sync::Arc;
use tailwater_predict::metric::{ACCESS_RATE, OCCUPANCY, Resource};
use tailwater_predict::{
    Campaign, Composition, ContentionModel, Contentiousness, Kind, Metric, Observation, Schema, Source, TrainOptions,
    Vector, compose,
};

const CACHE: f64 = 20.0;

fn schema() -> Arc<Schema> {
    let metrics = vec![
        Metric::new(ACCESS_RATE, "M accesses/s", Resource::Cache),
        Metric::new(OCCUPANCY, "MiB", Resource::Cache),
    ];
    Arc::new(Schema::new(Source::Modelled, metrics).unwrap())
}

/// Rates and occupancies of functions that access at these rates while the cache is theirs: a function has the share of
/// the cache that it has of all accesses, and slows down with what it lost.
fn truth(full: &[f64]) -> Vec<[f64; 2]> {
    let mut rates = full.to_vec();
    for _ in 0..200 {
        let total: f64 = rates.iter().sum();
        let slowed = |(rate, full): (&f64, &f64)| full * (0.4 + 0.6 * rate / total);
        rates = rates.iter().zip(full).map(slowed).collect();
    }
    let total: f64 = rates.iter().sum();
    rates.iter().map(|rate| [*rate, CACHE * rate / total]).collect()
}

fn vector(values: [f64; 2]) -> Vector {
    Vector::new(schema(), values.map(Some).to_vec()).unwrap()
}

/// Campaign of a function beside 1 to 4 synthetic competitors of one rate each.
fn campaign(full: f64) -> Campaign {
    let mut campaign = Campaign::new(key("toy"), schema());
    let mut chance = Chance(3);
    for group in 0..80 {
        let competitors = group % 5;
        let mut all = vec![full];
        all.extend(vec![60.0 * chance.next(); competitors as usize]);
        let found = truth(&all);
        let sum = |at: usize| found[1..].iter().map(|of| of[at]).sum();
        campaign
            .push(Observation {
                group,
                competitors,
                competition: vector([sum(0), sum(1)]),
                throughput: 1e6 * (0.5 + 0.5 * found[0][1] / CACHE),
                p99_us: None,
                own: Some(vector(found[0])),
                flagged: false,
            })
            .unwrap();
    }
    campaign
}

#[test]
fn competitors_share_the_cache_in_equilibrium_closer_to_the_truth_than_by_means() {
    let rates = [10.0, 30.0, 45.0, 20.0];
    let contentious: Vec<Contentiousness> = rates
        .iter()
        .map(|rate| Contentiousness::new(&campaign(*rate)))
        .collect();
    let others: Vec<&Contentiousness> = contentious[1..].iter().collect();
    let composed = |how| {
        let vector = compose(&schema(), &contentious[0], &others, how).unwrap();
        [vector.get(ACCESS_RATE).unwrap(), vector.get(OCCUPANCY).unwrap()]
    };
    let truth = truth(&rates);
    let expected = [0, 1].map(|at| truth[1..].iter().map(|of| of[at]).sum::<f64>());
    let error = |found: [f64; 2]| [0, 1].map(|at| (found[at] / expected[at] - 1.0).abs());
    let [rate, occupancy] = error(composed(Composition::Equilibrium));
    assert!(rate < 0.03 && occupancy < 0.03, "{rate} {occupancy}");
    let [_, of_means] = error(composed(Composition::CoRun));
    assert!(occupancy < of_means / 2.0, "{occupancy} {of_means}");
}

#[test]
fn functions_without_enough_co_runs_stay_at_their_means() {
    let few = campaign(30.0).subset(&(0..15).collect::<Vec<usize>>());
    let few = Contentiousness::new(&few);
    let composed = |how| compose(&schema(), &few, &[&few, &few], how).unwrap();
    assert_eq!(composed(Composition::Equilibrium), composed(Composition::CoRun));
}

#[test]
fn vectors_that_never_change_compose_to_themselves() {
    let mut steady = Campaign::new(key("steady"), schema());
    for of in campaign(30.0).observations() {
        let own = Some(vector([10.0, 2.0]));
        steady.push(Observation { own, ..of.clone() }).unwrap();
    }
    let of = Contentiousness::new(&steady);
    let composed = compose(&schema(), &of, &[&of, &of], Composition::Equilibrium).unwrap();
    for (found, expected) in composed.values().iter().zip([20.0, 4.0]) {
        assert!((found.unwrap() / expected - 1.0).abs() < 1e-9, "{composed:?}");
    }
}

#[test]
fn more_co_runners_than_were_measured_are_refused() {
    let of = Contentiousness::new(&campaign(30.0));
    let error = compose(&schema(), &of, &[&of; 5], Composition::Equilibrium).unwrap_err();
    assert!(error.to_string().contains("the number of co-runners is 5"), "{error}");
}

#[test]
fn a_file_keeps_the_response() {
    let options = TrainOptions {
        kind: Kind::Ridge,
        ..TrainOptions::default()
    };
    let model = ContentionModel::train(&campaign(30.0), &options).unwrap();
    let text = model.to_string();
    let read = ContentionModel::parse(&text, "model.yaml").unwrap();
    assert_eq!(read, model);
    let composed = |model: &ContentionModel| {
        let of = model.contentiousness();
        compose(&schema(), of, &[of, of], Composition::Equilibrium).unwrap()
    };
    assert_eq!(composed(&read), composed(&model));
    for (from, to, expected) in [
        ("scale: [", "scale: [1, ", "expected a list of 1 to 2 numbers, found 3"),
        (
            "weights: [",
            "weights: [1, ",
            "expected a list of 1 to 6 numbers, found 7",
        ),
    ] {
        let error = ContentionModel::parse(&text.replace(from, to), "model.yaml")
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}
