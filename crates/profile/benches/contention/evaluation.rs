//! Errors of predictions on measured co-runs.

use crate::{FIRST_CHAIN, reference};
use std::collections::{BTreeMap, BTreeSet};
use tailwater_predict::{Campaign, Goal, Kind, Observation, Sensitivity, TrainOptions, Vector};

const KINDS: [Kind; 6] = [
    Kind::Ridge,
    Kind::Kernel,
    Kind::Boosted,
    Kind::BoostedRidge,
    Kind::Blend,
    Kind::Forest,
];
/// Confidence of the intervals whose coverage is counted.
const CONFIDENCE: f64 = 0.8;

/// Predictions of co-runs.
#[derive(Default)]
struct Errors {
    /// Relative error by method, over measurements.
    by_method: BTreeMap<String, Vec<f64>>,
    /// Measurements in the interval, and those with one, by method.
    covered: BTreeMap<String, (u32, u32)>,
    /// Measurements beside competitors outside of the range of the training.
    outside: BTreeMap<String, u32>,
}

/// Prints all figures.
pub fn print(campaigns: &[Campaign], accesses: &[(u32, f64)]) {
    let (mut all, mut latency, mut chains) = (Errors::default(), Errors::default(), Errors::default());
    let mut noises = [Vec::new(), Vec::new()];
    let mut co_runs = BTreeSet::new();
    for target in campaigns {
        let name = &target.key().function;
        let Some(solo) = solo(target, Goal::Throughput) else {
            eprintln!("{name}: every run alone was disturbed");
            continue;
        };
        let losses: Vec<f64> = beside(target).map(|of| 1.0 - of.throughput / solo).collect();
        co_runs.extend(beside(target).map(|of| (name, of.group)));
        let noise = noise(target, Goal::Throughput);
        line(&format!("{name}/slowdown"), &losses, &[]);
        line(&format!("{name}/noise"), &noise, &[]);
        noises[0].extend(noise);
        noises[1].extend(self::noise(target, Goal::P99));
        let mut errors = Errors::default();
        leave_competitors_out(target, campaigns, Goal::Throughput, &mut [&mut errors, &mut all]);
        errors.print(name);
        leave_competitors_out(target, campaigns, Goal::P99, &mut [&mut latency]);
        from_loads(target, campaigns, &mut chains);
    }
    let distinct = [("co_runs", co_runs.len() as f64)];
    line("all/noise", &noises[0], &distinct);
    all.print("all");
    line("latency/noise", &noises[1], &[]);
    latency.print("latency");
    chains.print("chains");
    probes(campaigns, accesses);
}

/// Undisturbed measurements beside competitors.
fn beside(campaign: &Campaign) -> impl Iterator<Item = &Observation> {
    campaign.usable().filter(|of| of.competitors > 0)
}

/// Performance alone.
fn solo(campaign: &Campaign, goal: Goal) -> Option<f64> {
    goal.of(reference(campaign)?)
}

/// Differences of two measurements of a co-run, as shares.
fn noise(campaign: &Campaign, goal: Goal) -> Vec<f64> {
    let mut first: BTreeMap<u32, f64> = BTreeMap::new();
    let mut differences = Vec::new();
    for of in beside(campaign) {
        let Some(value) = goal.of(of) else {
            continue;
        };
        match first.get(&of.group) {
            Some(first) => differences.push((value / first - 1.0).abs()),
            None => drop(first.insert(of.group, value)),
        }
    }
    differences
}

/// Returns a competitor's mean vector in co-runs with other targets.
fn vector_elsewhere(group: u32, target: &Campaign, campaigns: &[Campaign]) -> Option<Vector> {
    let elsewhere = campaigns.iter().filter(|of| of.key() != target.key());
    let vectors: Vec<&Vector> = elsewhere
        .flat_map(beside)
        .filter(|of| of.group == group)
        .map(|of| &of.competition)
        .collect();
    let width = target.schema().metrics().len();
    let mean = |at: usize| {
        let values: Vec<f64> = vectors.iter().filter_map(|of| of.values()[at]).collect();
        (!values.is_empty()).then(|| mean(&values))
    };
    let vector = Vector::new(target.schema().clone(), (0..width).map(mean).collect());
    vector.ok().filter(|_| !vectors.is_empty())
}

/// Predicts each of a target's competitors by models of the others.
fn leave_competitors_out(target: &Campaign, campaigns: &[Campaign], goal: Goal, errors: &mut [&mut Errors]) {
    let groups: BTreeSet<u32> = beside(target).map(|of| of.group).collect();
    for group in groups {
        let Some(vector) = vector_elsewhere(group, target, campaigns) else {
            continue;
        };
        let tests: Vec<f64> = beside(target)
            .filter(|of| of.group == group)
            .filter_map(|of| goal.of(of))
            .collect();
        let training = part(target, |of| of.group != group);
        predict(&training, goal, &vector, &tests, errors);
    }
}

/// Predicts a target beside chains, by models of synthetic loads and the chains' own vectors.
fn from_loads(target: &Campaign, campaigns: &[Campaign], errors: &mut Errors) {
    let training = part(target, |of| of.group < FIRST_CHAIN);
    for (group, competitor) in (FIRST_CHAIN..).zip(campaigns) {
        let own: Vec<&Vector> = competitor.usable().filter_map(|of| of.own.as_ref()).collect();
        let width = target.schema().metrics().len();
        let value = |at: usize| {
            let values: Vec<f64> = own.iter().filter_map(|of| of.values()[at]).collect();
            (!values.is_empty()).then(|| mean(&values))
        };
        let Ok(vector) = Vector::new(target.schema().clone(), (0..width).map(value).collect()) else {
            continue;
        };
        let tests = beside(target).filter(|of| of.group == group).map(|of| of.throughput);
        predict(
            &training,
            Goal::Throughput,
            &vector,
            &tests.collect::<Vec<f64>>(),
            &mut [&mut *errors],
        );
    }
}

fn part(campaign: &Campaign, is_part: impl Fn(&Observation) -> bool) -> Campaign {
    let all = campaign.observations().iter().enumerate();
    let chosen: Vec<usize> = all.filter(|(_, of)| is_part(of)).map(|(at, _)| at).collect();
    campaign.subset(&chosen)
}

/// Predicts a target beside competitors with a vector by all methods, and compares with measurements.
fn predict(training: &Campaign, goal: Goal, vector: &Vector, tests: &[f64], errors: &mut [&mut Errors]) {
    let Some(solo) = solo(training, goal) else {
        return;
    };
    let known: Vec<f64> = beside(training).filter_map(|of| goal.of(of)).collect();
    if known.is_empty() || tests.is_empty() {
        return;
    }
    let mut add = |method: &str, value: f64, interval: Option<(f64, f64)>, is_outside: bool| {
        for errors in &mut *errors {
            for test in tests {
                errors
                    .by_method
                    .entry(method.to_owned())
                    .or_default()
                    .push((value / test - 1.0).abs());
                if let Some((low, high)) = interval {
                    let covered = errors.covered.entry(method.to_owned()).or_default();
                    covered.0 += u32::from((low..=high).contains(test));
                    covered.1 += 1;
                }
            }
            *errors.outside.entry(method.to_owned()).or_default() += u32::from(is_outside) * tests.len() as u32;
        }
    };
    add("none", solo, None, false);
    add("mean", mean(&known), None, false);
    for kind in KINDS {
        let options = TrainOptions {
            kind,
            ..TrainOptions::default()
        };
        let model = match Sensitivity::train(training, goal, solo, &options) {
            Ok(model) => model,
            Err(error) => {
                eprintln!("{}: {kind}: {error}", training.key().function);
                continue;
            }
        };
        let Ok(mut inputs) = model.inputs(vector) else {
            continue;
        };
        let is_outside = model.predict_at(&inputs, 0.5).is_err();
        // Outside of its range a model does not answer. Here it answers for the nearest value, and that is counted.
        for (input, (low, high)) in inputs.iter_mut().zip(model.ranges()) {
            *input = input.clamp(*low, *high);
        }
        match model.predict_at(&inputs, CONFIDENCE) {
            Ok(of) => add(&kind.to_string(), of.value, Some((of.low, of.high)), is_outside),
            Err(error) => eprintln!("{}: {kind}: {error}", training.key().function),
        }
    }
}

/// Prints, for each probe, its mean over all competitors, its largest value, and its noise: the mean difference of two
/// observations of a competitor.
fn probes(campaigns: &[Campaign], accesses: &[(u32, f64)]) {
    let Some(first) = campaigns.first() else {
        return;
    };
    for (at, metric) in first.schema().metrics().iter().enumerate() {
        let mut by_group: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for of in campaigns.iter().flat_map(beside) {
            by_group
                .entry(of.group)
                .or_default()
                .extend(of.competition.values()[at]);
        }
        let values: Vec<f64> = by_group.values().map(|values| mean(values)).collect();
        let differences: Vec<f64> = by_group
            .values()
            .flat_map(|values| values.windows(2).map(|pair| (pair[0] - pair[1]).abs()))
            .collect();
        let noise = 100.0 * mean(&differences);
        let known = accesses
            .iter()
            .filter_map(|(group, rate)| Some((mean(by_group.get(group)?), *rate)));
        let correlation = rank_correlation(&known.collect::<Vec<_>>());
        let more = [("noise_percent", noise), ("by_accesses", correlation)];
        line(&format!("probes/{}", metric.name), &values, &more);
    }
}

impl Errors {
    fn print(&self, name: &str) {
        for (method, errors) in &self.by_method {
            let mut more = Vec::new();
            if let Some((covered, of)) = self.covered.get(method) {
                more.push(("covered_percent", 100.0 * f64::from(*covered) / f64::from((*of).max(1))));
            }
            let outside = self.outside.get(method).copied().unwrap_or(0);
            more.push((
                "outside_percent",
                100.0 * f64::from(outside) / errors.len().max(1) as f64,
            ));
            line(&format!("{name}/error/{method}"), errors, &more);
        }
    }
}

/// Prints a JSON line of shares: their mean, 90th percentile and maximum.
fn line(name: &str, shares: &[f64], more: &[(&str, f64)]) {
    if shares.is_empty() {
        return;
    }
    let mut sorted = shares.to_vec();
    sorted.sort_by(f64::total_cmp);
    let percent = |share: f64| hundredths(100.0 * share);
    let mut line = serde_json::json!({
        "name": format!("contention/{name}"),
        "value": percent(mean(shares)),
        "unit": "%",
        "median": percent(sorted[sorted.len() / 2]),
        "p90": percent(sorted[(sorted.len() * 9 / 10).min(sorted.len() - 1)]),
        "max": percent(sorted[sorted.len() - 1]),
        "measurements": shares.len(),
    });
    for (name, value) in more {
        line[*name] = hundredths(*value).into();
    }
    println!("{line}");
}

/// Returns Spearman's rank correlation of pairs.
fn rank_correlation(pairs: &[(f64, f64)]) -> f64 {
    let ranks = |values: Vec<f64>| {
        let below = |value: &f64| values.iter().filter(|other| *other < value).count();
        let equal = |value: &f64| values.iter().filter(|other| *other == value).count();
        let rank = |value: &f64| below(value) as f64 + equal(value) as f64 / 2.0;
        values.iter().map(rank).collect::<Vec<f64>>()
    };
    let first = ranks(pairs.iter().map(|pair| pair.0).collect());
    let second = ranks(pairs.iter().map(|pair| pair.1).collect());
    let centred = |ranks: &[f64]| ranks.iter().map(|rank| rank - mean(ranks)).collect::<Vec<f64>>();
    let (first, second) = (centred(&first), centred(&second));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    product(&first, &second) / (product(&first, &first) * product(&second, &second)).sqrt().max(1e-12)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
