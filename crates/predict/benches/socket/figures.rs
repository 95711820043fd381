//! Errors end to end, and by set of metrics, method, composition and number of measured points.

use crate::campaigns::Size;
use crate::functions::schema;
use crate::print;
use crate::subjects::{
    Subject, Tested, clamped, end_to_end, mean, observed, others, parallel, percent, quantile, train,
};
use std::collections::BTreeMap;
use std::time::Instant;
use tailwater_predict::few_shot::Prior;
use tailwater_predict::{
    Campaign, Composition, ContentionModel, Contentiousness, Goal, Kind, Metric, Observation, PredictOptions, Schema,
    Sensitivity, TrainOptions, Vector, compose, predict,
};

/// Mean loss in the tests from which on a function is called sensitive.
pub const SENSITIVE: f64 = 0.05;

/// Method of the headline.
pub fn best_kind(size: &Size) -> Kind {
    if size.is_quick { Kind::Ridge } else { Kind::Blend }
}

/// End-to-end tests of all functions.
fn all_tests(
    subjects: &[Subject],
    models: &[ContentionModel],
    size: &Size,
    how: Composition,
) -> Vec<Vec<Option<Tested>>> {
    let tests = |target| end_to_end(target, subjects, models, size, how);
    (0..subjects.len()).map(tests).collect()
}

fn answered(tests: &[Option<Tested>]) -> f64 {
    100.0 * tests.iter().flatten().count() as f64 / tests.len() as f64
}

pub fn errors(subjects: &[Subject], size: &Size) {
    for (name, kind, how, published) in [
        (
            "equilibrium",
            best_kind(size),
            Composition::Equilibrium,
            "5.4 (SLOMO), 3.7-4.1 (Yala)",
        ),
        ("slomo", Kind::Boosted, Composition::CoRun, "5.4"),
        ("access-rate", Kind::AccessRate, Composition::CoRun, "12.7"),
        ("working-set", Kind::WorkingSet, Composition::CoRun, "15.2"),
    ] {
        let begin = Instant::now();
        let models = train(subjects, kind);
        let seconds = begin.elapsed().as_secs_f64() / subjects.len() as f64;
        let within = all_tests(subjects, &models, size, how);
        let everything: Vec<_> = (0..subjects.len())
            .map(|at| clamped(at, subjects, &models, size, how))
            .collect();
        // Methods as published know no range.
        let tests = if name == "equilibrium" {
            within
        } else {
            everything.clone()
        };
        for ((subject, model), tests) in subjects.iter().zip(&models).zip(&tests) {
            let errors: Vec<f64> = tests.iter().flatten().map(|of| 100.0 * of.error()).collect();
            let signed = tests
                .iter()
                .flatten()
                .map(|of| 100.0 * (of.predicted / of.measured - 1.0));
            let more = [
                ("median", quantile(errors.clone(), 0.5)),
                ("p90", quantile(errors, 0.9)),
                ("signed", mean(signed)),
                ("drop", 100.0 * subject.drop()),
                ("points", subject.campaign.observations().len() as f64),
                ("cross_validated", 100.0 * model.throughput().error()),
                ("tests", tests.len() as f64),
                ("answered", answered(tests)),
            ];
            print(
                &format!("errors/{name}/{}", subject.function.name),
                percent(tests),
                "percent",
                None,
                &more,
            );
        }
        let together: Vec<Option<Tested>> = tests.concat();
        let sensitive = subjects.iter().zip(&tests).filter(|(of, _)| of.drop() >= SENSITIVE);
        let sensitive: Vec<Option<Tested>> = sensitive.flat_map(|(_, tests)| tests.clone()).collect();
        for competitors in 2..=size.most_competitors() as u32 {
            let these: Vec<Option<Tested>> = together
                .iter()
                .filter(|of| of.is_some_and(|of| of.competitors == competitors))
                .copied()
                .collect();
            if !these.is_empty() {
                let name = format!("errors/{name}/beside-{competitors}");
                print(
                    &name,
                    percent(&these),
                    "percent",
                    None,
                    &[("tests", these.len() as f64)],
                );
            }
        }
        let more = [
            ("tests", together.len() as f64),
            ("answered", answered(&together)),
            ("all_clamped", percent(&everything.concat())),
            ("sensitive_functions", percent(&sensitive)),
            ("drop", 100.0 * mean(subjects.iter().map(Subject::drop))),
            ("training_seconds_two_threads", seconds),
        ];
        print(
            &format!("errors/{name}/all"),
            percent(&together),
            "percent",
            Some(published),
            &more,
        );
        if name == "equilibrium" {
            unanswered(subjects, &models, size);
            speed(&models, size);
            intervals(subjects, &models, size);
        }
    }
    let none = subjects.iter().flat_map(|subject| {
        let solo = subject.campaign.solo().expect("measured alone").throughput;
        subject
            .tests
            .observations()
            .iter()
            .map(move |of| (solo / of.throughput - 1.0).abs())
    });
    print("errors/no-contention/all", 100.0 * mean(none), "percent", None, &[]);
}

/// Time of a prediction, with its attribution, beside the number of competitors.
fn speed(models: &[ContentionModel], size: &Size) {
    for count in [1, 3, size.most_competitors() as usize] {
        let others: Vec<&ContentionModel> = (0..count).map(|at| &models[at % models.len()]).collect();
        let batch = |_| {
            let begin = Instant::now();
            for _ in 0..20 {
                let _ = std::hint::black_box(predict(&models[0], &others, &PredictOptions::default()));
            }
            begin.elapsed().as_secs_f64() * 1e6 / 20.0
        };
        // Of a batch that nothing interrupted.
        let micros = (0..50).map(batch).fold(f64::INFINITY, f64::min);
        print(&format!("errors/prediction-beside-{count}"), micros, "us", None, &[]);
    }
}

/// Prints reasons why tests have no prediction, to standard error.
fn unanswered(subjects: &[Subject], models: &[ContentionModel], size: &Size) {
    let mut reasons: BTreeMap<String, u32> = BTreeMap::new();
    for (target, subject) in subjects.iter().enumerate() {
        for of in subject.tests.observations() {
            let others = others(target, of.group, subjects.len(), size);
            let others: Vec<&ContentionModel> = others.iter().map(|at| &models[*at]).collect();
            if let Err(error) = predict(&models[target], &others, &PredictOptions::default()) {
                let reason = error.to_string().split(" is ").next().unwrap_or("").to_owned();
                *reasons.entry(reason).or_default() += 1;
            }
        }
    }
    for (reason, count) in reasons {
        eprintln!("{count} tests unanswered: {reason}");
    }
}

/// Share of the tests inside of intervals of several confidences, and the p99's error.
fn intervals(subjects: &[Subject], models: &[ContentionModel], size: &Size) {
    for confidence in [0.5, 0.8, 0.9] {
        let mut counts = [0.0; 4];
        let mut widths = Vec::new();
        for (target, subject) in subjects.iter().enumerate() {
            for of in subject.tests.observations() {
                let others = others(target, of.group, subjects.len(), size);
                let parts: Vec<&Contentiousness> = others.iter().map(|at| models[*at].contentiousness()).collect();
                let model = models[target].throughput();
                let own = models[target].contentiousness();
                let composed = compose(model.schema(), own, &parts, Composition::Equilibrium).ok();
                for (at, vector) in [(0, composed), (2, Some(of.competition.clone()))] {
                    let estimate = vector.and_then(|vector| model.predict(&vector, confidence).ok());
                    if let Some(estimate) = estimate {
                        counts[at] += 1.0;
                        counts[at + 1] += f64::from((estimate.low..=estimate.high).contains(&of.throughput));
                        widths.push(100.0 * (estimate.high / estimate.value - 1.0));
                    }
                }
            }
        }
        let more = [
            ("vector_as_measured", 100.0 * counts[3] / counts[2]),
            ("median_half_width", quantile(widths, 0.5)),
        ];
        let name = format!("errors/coverage-{:.0}", 100.0 * confidence);
        print(&name, 100.0 * counts[1] / counts[0], "percent", None, &more);
    }
    let errors = subjects.iter().zip(models).flat_map(|(subject, model)| {
        let error = |of: &Observation| {
            let predicted = model.p99()?.predict(&of.competition, 0.9).ok()?.value;
            Some((predicted / of.p99_us? - 1.0).abs())
        };
        subject
            .tests
            .observations()
            .iter()
            .filter_map(error)
            .collect::<Vec<f64>>()
    });
    print(
        "errors/p99-vector-as-measured",
        100.0 * mean(errors),
        "percent",
        None,
        &[],
    );
}

/// Campaign with some of the metrics.
fn project(campaign: &Campaign, names: &[&str]) -> Campaign {
    let metrics = campaign.schema().metrics().iter();
    let chosen: Vec<Metric> = metrics
        .filter(|of| names.contains(&of.name.as_str()))
        .cloned()
        .collect();
    let schema = std::sync::Arc::new(Schema::new(campaign.schema().source(), chosen).expect("some metrics"));
    let project = |vector: &Vector| {
        let values = schema.metrics().iter().map(|of| vector.get(&of.name)).collect();
        Vector::new(schema.clone(), values).expect("a value for each metric")
    };
    let mut projected = Campaign::new(campaign.key().clone(), schema.clone());
    for of in campaign.observations() {
        let observation = Observation {
            competition: project(&of.competition),
            own: of.own.as_ref().map(&project),
            ..of.clone()
        };
        projected.push(observation).expect("an observation of the campaign");
    }
    projected
}

/// The most sensitive functions, at most `most`.
pub fn sensitive(subjects: &[Subject], most: usize) -> Vec<usize> {
    let mut found: Vec<usize> = (0..subjects.len()).collect();
    found.sort_by(|a, b| subjects[*b].drop().total_cmp(&subjects[*a].drop()));
    found.truncate(most);
    found
}

pub fn metrics(subjects: &[Subject], size: &Size) {
    let kind = if size.is_quick { Kind::Ridge } else { Kind::Kernel };
    let contentiousness: Vec<Contentiousness> = subjects.iter().map(|of| Contentiousness::new(&of.campaign)).collect();
    let train = |target: usize, names: &[&str]| {
        let campaign = project(&subjects[target].campaign, names);
        let solo = campaign.solo().expect("measured alone").throughput;
        let options = TrainOptions {
            kind,
            selection: tailwater_predict::Selection {
                correlation: 0.0,
                permutation: false,
            },
            folds: 5,
            ..TrainOptions::default()
        };
        Sensitivity::train(&campaign, Goal::Throughput, solo, &options)
    };
    let error = |target: usize, names: &[&str]| {
        let model = train(target, names).ok()?;
        let test = |of: &Observation| {
            let others = others(target, of.group, subjects.len(), size);
            let parts: Vec<&Contentiousness> = others.iter().map(|at| &contentiousness[*at]).collect();
            let vector = compose(
                model.schema(),
                &contentiousness[target],
                &parts,
                Composition::Equilibrium,
            )
            .ok()?;
            Some(Tested::new(of, model.predict(&vector, 0.9).ok()?, of.throughput))
        };
        let tests: Vec<Option<Tested>> = subjects[target].tests.observations().iter().map(test).collect();
        Some(percent(&tests))
    };
    let schema = schema();
    let all: Vec<&str> = schema.metrics().iter().map(|of| of.name.as_str()).collect();
    let of_resource = |name: &str| {
        let is_of = |of: &&Metric| of.resource.to_string().contains(name);
        schema
            .metrics()
            .iter()
            .filter(is_of)
            .map(|of| of.name.as_str())
            .collect::<Vec<&str>>()
    };
    let targets = sensitive(subjects, if size.is_quick { 1 } else { 5 });
    let rows = parallel(&targets, |&target| {
        // Chosen by the error in cross-validation: the tests must not choose.
        let mut chosen: Vec<&str> = Vec::new();
        let mut best_of = BTreeMap::new();
        for count in 1..=3 {
            let candidates = all.iter().filter(|name| !chosen.contains(name));
            let scored = candidates.filter_map(|name| {
                let names = [&chosen[..], &[*name]].concat();
                Some((names.clone(), train(target, &names).ok()?.error()))
            });
            let Some((names, _)) = scored.min_by(|a, b| a.1.total_cmp(&b.1)) else {
                break;
            };
            chosen = names;
            best_of.insert(count, chosen.clone());
        }
        let sets = [
            ("top-1", best_of[&1].clone()),
            ("top-3", best_of[&3].clone()),
            ("cache", of_resource("cache")),
            ("memory", of_resource("memory")),
            ("all", all.clone()),
        ];
        let row = sets.map(|(name, names)| (name, error(target, &names).unwrap_or(f64::NAN)));
        (row, chosen)
    });
    let mut means: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (target, (row, chosen)) in targets.iter().zip(&rows) {
        let function = &subjects[*target].function.name;
        eprintln!("{function}: top 3 are {}", chosen.join(", "));
        for (set, error) in row {
            print(&format!("metrics/{function}/{set}"), *error, "percent", None, &[]);
            means.entry(set).or_default().push(*error);
        }
    }
    for (set, errors) in means {
        let published = match set {
            "top-1" => "13.4 (mean of 4 functions)",
            "top-3" => "6.4",
            "cache" => "7.2",
            "memory" => "6.6",
            _ => "5.6",
        };
        print(
            &format!("metrics/sensitive/{set}"),
            mean(errors.into_iter()),
            "percent",
            Some(published),
            &[],
        );
    }
}

pub fn regressors(subjects: &[Subject], size: &Size) {
    for kind in if size.is_quick {
        &Kind::ALL[6..7]
    } else {
        &Kind::ALL[..]
    } {
        let models = train(subjects, *kind);
        let tests = all_tests(subjects, &models, size, Composition::Equilibrium).concat();
        let measured: Vec<Option<Tested>> = subjects
            .iter()
            .zip(&models)
            .flat_map(|(subject, model)| observed(subject, model))
            .collect();
        let more = [
            ("vector_as_measured", percent(&measured)),
            ("answered", answered(&tests)),
        ];
        let published = (*kind == Kind::Boosted).then_some("below 10, others above");
        print(
            &format!("regressors/{kind}"),
            percent(&tests),
            "percent",
            published,
            &more,
        );
    }
}

pub fn composition(subjects: &[Subject], size: &Size) {
    let models = train(subjects, best_kind(size));
    let equilibrium = all_tests(subjects, &models, size, Composition::Equilibrium);
    let clamped = |how| -> Vec<_> {
        (0..subjects.len())
            .map(|at| clamped(at, subjects, &models, size, how))
            .collect()
    };
    let (composed, alone) = (clamped(Composition::CoRun), clamped(Composition::Solo));
    let pairs = subjects.iter().zip(&models);
    let measured: Vec<_> = pairs.map(|(subject, model)| observed(subject, model)).collect();
    for (name, tests, published) in [
        ("as-measured", measured, None),
        ("equilibrium", equilibrium, None),
        ("co-run", composed, Some("at most 5 points more")),
        ("alone", alone, Some("up to 20 points more")),
    ] {
        for (subject, tests) in subjects.iter().zip(&tests) {
            let name = format!("composition/{name}/{}", subject.function.name);
            print(&name, percent(tests), "percent", None, &[("answered", answered(tests))]);
        }
        let tests = tests.concat();
        let more = [("answered", answered(&tests))];
        print(
            &format!("composition/{name}/all"),
            percent(&tests),
            "percent",
            published,
            &more,
        );
    }
}

pub fn few_shot(subjects: &[Subject], size: &Size) {
    if subjects.len() < 3 {
        return;
    }
    let options = TrainOptions {
        kind: if size.is_quick { Kind::Ridge } else { Kind::Kernel },
        ..TrainOptions::default()
    };
    let contentiousness: Vec<Contentiousness> = subjects.iter().map(|of| Contentiousness::new(&of.campaign)).collect();
    let counts: &[usize] = if size.is_quick {
        &[2, 8]
    } else {
        &[0, 2, 5, 10, 15, 20, 40, 80]
    };
    let targets = sensitive(subjects, if size.is_quick { 1 } else { 6 });
    let curves = parallel(&targets, |&target| {
        let others_of = |of: &Observation| others(target, of.group, subjects.len(), size);
        let error = |model: &Sensitivity| {
            let test = |of: &Observation| {
                let parts: Vec<&Contentiousness> = others_of(of).iter().map(|at| &contentiousness[*at]).collect();
                let vector = compose(
                    model.schema(),
                    &contentiousness[target],
                    &parts,
                    Composition::Equilibrium,
                )
                .ok()?;
                Some(Tested::new(of, model.predict(&vector, 0.5).ok()?, of.throughput))
            };
            let tests: Vec<Option<Tested>> = subjects[target].tests.observations().iter().map(test).collect();
            (percent(&tests), answered(&tests))
        };
        let known = subjects.iter().enumerate().filter(|(at, _)| *at != target);
        let campaigns: Vec<&Campaign> = known.map(|(_, of)| &of.campaign).collect();
        let prior = Prior::train(&campaigns, &options).unwrap_or_else(|error| panic!("{error}"));
        let campaign = &subjects[target].campaign;
        let solo = campaign.solo().expect("measured alone").throughput;
        let row = |count: &usize| {
            let points: Vec<usize> = (0..size.plan.alone as usize + count).collect();
            let part = campaign.subset(&points);
            let with_prior = prior.adapt(&part).ok().map(|model| error(&model));
            let model = Sensitivity::train(&part, Goal::Throughput, solo, &options);
            (with_prior, model.ok().map(|model| error(&model)))
        };
        counts.iter().map(row).collect::<Vec<_>>()
    });
    for (at, count) in counts.iter().enumerate() {
        // Functions that the prior covers; others are refused, however much of them is measured.
        let covered: Vec<_> = curves
            .iter()
            .map(|curve| &curve[at])
            .filter(|(prior, _)| prior.is_some_and(|of| of.1 > 0.0))
            .collect();
        let prior = |part: fn(&(f64, f64)) -> f64| mean(covered.iter().filter_map(|of| of.0.as_ref()).map(part));
        let own = |part: fn(&(f64, f64)) -> f64| match covered.iter().filter_map(|of| of.1.as_ref()).count() {
            0 => f64::NAN,
            _ => mean(covered.iter().filter_map(|of| of.1.as_ref()).map(part)),
        };
        let more = [
            ("answered", prior(|of| of.1)),
            ("functions", covered.len() as f64),
            ("without_prior", own(|of| of.0)),
            ("without_prior_answered", own(|of| of.1)),
        ];
        print(
            &format!("few-shot/{count}-points"),
            prior(|of| of.0),
            "percent",
            None,
            &more,
        );
    }
}
