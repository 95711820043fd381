//! Targets whose flows change after their campaign, and targets with a cache partition of their own.

use crate::campaigns::{self, Size};
use crate::figures::{SENSITIVE, best_kind, sensitive};
use crate::functions::{Chance, Function, measure, own, schema, together};
use crate::subjects::{Subject, Tested, mean, others, parallel, percent, train};
use tailwater_predict::metric::OCCUPANCY;
use tailwater_predict::{
    Change, Composition, Contentiousness, Goal, Observation, Sensitivity, TrainOptions, compose, extrapolate,
};
use tailwater_socket::{SocketConfig, Workload};

/// Measures a changed target in the first mixes of its tests. The first value is the target alone: packets per second
/// and occupancy.
fn changed_tests(
    target: usize,
    changed: &Function,
    subjects: &[Subject],
    size: &Size,
    count: usize,
) -> ([f64; 2], Vec<Observation>) {
    let schema = schema();
    let mut chance = Chance::of(size.seed ^ changed.scenario.flows << 8, &changed.name);
    let alone = &measure(&size.config, &[&changed.workload], &mut chance)[0];
    let occupancy = own(&schema, alone).get(OCCUPANCY).unwrap_or(0.0);
    let tests = subjects[target].tests.observations().iter().take(count).map(|of| {
        let mut workloads: Vec<&Workload> = vec![&changed.workload];
        let others = others(target, of.group, subjects.len(), size);
        workloads.extend(others.iter().map(|at| &subjects[*at].function.workload));
        let measured = measure(&size.config, &workloads, &mut chance);
        Observation {
            competition: together(&schema, &measured[1..].iter().collect::<Vec<_>>()),
            throughput: measured[0].packets_per_second,
            own: None,
            ..of.clone()
        }
    });
    let tests = tests.collect();
    ([alone.packets_per_second, occupancy], tests)
}

pub fn extrapolation(subjects: &[Subject], size: &Size) {
    let models = train(subjects, best_kind(size));
    let targets = sensitive(subjects, if size.is_quick { 1 } else { 4 });
    let factors: &[f64] = if size.is_quick {
        &[0.8]
    } else {
        &[0.6, 0.8, 1.2, 1.5, 2.0]
    };
    let count = if size.is_quick { 2 } else { 15 };
    let rows = parallel(&targets, |&target| {
        let row = |factor: &f64| {
            let old = &subjects[target];
            let changed = Function::new(&old.function.name, (old.function.scenario.flows as f64 * factor) as u64);
            let ([solo_new, occupancy_new], tests) = changed_tests(target, &changed, subjects, size, count);
            let model = &models[target];
            let occupancy = model.schema().position(OCCUPANCY).expect("a metric of the schema");
            let change = Change {
                occupancy_old: model.contentiousness().value(occupancy, 0).expect("measured alone"),
                occupancy_new,
                solo_old: model.solo().throughput,
                solo_new,
                limit: 10.0,
            };
            let sensitivity = model.throughput();
            let mut errors = [Vec::new(), Vec::new(), Vec::new()];
            for of in &tests {
                let others = others(target, of.group, subjects.len(), size);
                let parts: Vec<&Contentiousness> = others.iter().map(|at| models[*at].contentiousness()).collect();
                let vector = compose(
                    sensitivity.schema(),
                    model.contentiousness(),
                    &parts,
                    Composition::Equilibrium,
                )
                .ok();
                let inputs = vector.and_then(|vector| sensitivity.inputs(&vector).ok());
                let Some((inputs, estimate)) = inputs.and_then(|inputs| {
                    let estimate = sensitivity.predict_at(&inputs, 0.9).ok()?;
                    Some((inputs, estimate))
                }) else {
                    continue;
                };
                let error = |value: f64| (value / of.throughput - 1.0).abs();
                errors[0].push(error(estimate.value));
                errors[1].push(error(estimate.value * solo_new / model.solo().throughput));
                if let Ok(shifted) = extrapolate(sensitivity, &inputs, &change, 0.9) {
                    errors[2].push(error(shifted.value));
                }
            }
            errors.map(|errors| 100.0 * mean(errors.into_iter()))
        };
        factors.iter().map(row).collect::<Vec<[f64; 3]>>()
    });
    for (at, factor) in factors.iter().enumerate() {
        let mean_of = |method: usize| mean(rows.iter().map(|row| row[at][method]));
        let more = [
            ("old_model", mean_of(0)),
            ("old_slowdown_of_new_solo", mean_of(1)),
            ("functions", targets.len() as f64),
        ];
        let published = (0.79..1.21)
            .contains(factor)
            .then_some("3 points more than a known function; old model twice");
        let name = format!("extrapolation/flows-times-{factor}");
        print_value(&name, mean_of(2), published, &more);
    }
}

fn print_value(name: &str, value: f64, published: Option<&str>, more: &[(&str, f64)]) {
    crate::print(name, value, "percent", published, more);
}

/// A quarter of the cache for core 0, and the rest for all others.
fn partitioned(size: &Size) -> SocketConfig {
    let mut config = size.config.clone();
    let own = config.llc.ways / 4;
    config.masks = vec![SocketConfig::ways(0, own)];
    let rest = SocketConfig::ways(own, config.llc.ways - own);
    config.masks.extend(vec![rest; config.cores - 1]);
    config
}

pub fn partitions(subjects: &[Subject], size: &Size) {
    let mut apart = size.clone();
    apart.config = partitioned(size);
    apart.plan.most = apart.plan.most.min(120);
    let shared = train(subjects, best_kind(size));
    let count = if size.is_quick { 2 } else { 25 };
    // The most sensitive ones, and the least sensitive one.
    let mut targets = sensitive(subjects, if size.is_quick { 1 } else { 5 });
    targets.extend(sensitive(subjects, subjects.len()).last().filter(|_| !size.is_quick));
    let rows = parallel(&targets, |&target| {
        let subject = &subjects[target];
        let campaign = campaigns::campaign(&subject.function, &apart, ".apart");
        let solo = campaign.solo().expect("measured alone").throughput;
        let options = TrainOptions {
            kind: best_kind(size),
            ..TrainOptions::default()
        };
        let model = Sensitivity::train(&campaign, Goal::Throughput, solo, &options).expect("enough co-runs");
        let (_, tests) = changed_tests(target, &subject.function, subjects, &apart, count);
        let tested = |of: &Observation, vector: Option<tailwater_predict::Vector>| {
            Some(Tested::new(of, model.predict(&vector?, 0.9).ok()?, of.throughput))
        };
        let composed = tests.iter().map(|of| {
            let others = others(target, of.group, subjects.len(), size);
            let parts: Vec<&Contentiousness> = others.iter().map(|at| shared[*at].contentiousness()).collect();
            tested(
                of,
                compose(
                    model.schema(),
                    shared[target].contentiousness(),
                    &parts,
                    Composition::Equilibrium,
                )
                .ok(),
            )
        });
        let composed: Vec<Option<Tested>> = composed.collect();
        let measured: Vec<Option<Tested>> = tests
            .iter()
            .map(|of| tested(of, Some(of.competition.clone())))
            .collect();
        let drop = 100.0 * mean(tests.iter().map(|of| 1.0 - of.throughput / solo));
        (composed, measured, drop)
    });
    for (target, (composed, measured, drop)) in targets.iter().zip(&rows) {
        let name = format!("partitions/{}", subjects[*target].function.name);
        let more = [
            ("vector_as_measured", percent(measured)),
            ("drop", *drop),
            (
                "answered",
                100.0 * composed.iter().flatten().count() as f64 / composed.len() as f64,
            ),
        ];
        print_value(&name, percent(composed), None, &more);
    }
    for (name, is_sensitive, published) in [
        ("sensitive", true, "4.5, drop 13.8"),
        ("others", false, "below 1, drop below 1"),
    ] {
        let these = targets
            .iter()
            .zip(&rows)
            .filter(|(at, _)| (subjects[**at].drop() >= SENSITIVE) == is_sensitive);
        let these: Vec<_> = these.map(|(_, row)| row).collect();
        if !these.is_empty() {
            let composed: Vec<Option<Tested>> = these.iter().flat_map(|row| row.0.clone()).collect();
            let drop = mean(these.iter().map(|row| row.2));
            print_value(
                &format!("partitions/{name}"),
                percent(&composed),
                Some(published),
                &[("drop", drop)],
            );
        }
    }
}
