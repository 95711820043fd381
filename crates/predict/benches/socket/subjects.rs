//! Functions with their measurements, and the errors of predictions for them.

use crate::campaigns::{self, Size};
use crate::functions::Function;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tailwater_predict::{
    Campaign, Composition, ContentionModel, Contentiousness, Kind, Observation, PredictOptions, TrainOptions, compose,
    predict,
};

/// Function with its campaign and its co-runs with real functions.
pub struct Subject {
    pub function: Function,
    pub campaign: Campaign,
    pub tests: Campaign,
}

impl Subject {
    /// Mean share of the throughput that contention takes in the tests.
    pub fn drop(&self) -> f64 {
        let solo = self.campaign.solo().expect("measured alone").throughput;
        mean(self.tests.observations().iter().map(|of| 1.0 - of.throughput / solo))
    }
}

/// Measures all functions, or reads what was measured.
pub fn subjects(functions: &[Function], size: &Size, suffix: &str) -> Vec<Subject> {
    let campaigns = parallel(functions, |function| {
        let campaign = campaigns::campaign(function, size, suffix);
        eprintln!("{}: {} observations", function.name, campaign.observations().len());
        campaign
    });
    let tests = campaigns::mixes(functions, size, suffix);
    let all = functions.iter().zip(campaigns).zip(tests);
    all.map(|((function, campaign), tests)| Subject {
        function: function.clone(),
        campaign,
        tests,
    })
    .collect()
}

/// Trains a model of each campaign.
pub fn train(subjects: &[Subject], kind: Kind) -> Vec<ContentionModel> {
    let options = TrainOptions {
        kind,
        ..TrainOptions::default()
    };
    parallel(subjects, |of| {
        ContentionModel::train(&of.campaign, &options).unwrap_or_else(|error| panic!("{}: {error}", of.function.name))
    })
}

/// Prediction beside what was measured.
#[derive(Clone, Copy)]
pub struct Tested {
    pub competitors: u32,
    pub predicted: f64,
    pub measured: f64,
}

impl Tested {
    pub fn new(observation: &Observation, estimate: tailwater_predict::Estimate, measured: f64) -> Tested {
        Tested {
            competitors: observation.competitors,
            predicted: estimate.value,
            measured,
        }
    }

    pub fn error(&self) -> f64 {
        (self.predicted / self.measured - 1.0).abs()
    }
}

/// Competitors of the target in a mix: all members but one instance of it.
pub fn others(target: usize, mix: u32, functions: usize, size: &Size) -> Vec<usize> {
    let mut members = campaigns::members(mix as usize, functions, size);
    let own = members
        .iter()
        .position(|at| *at == target)
        .expect("a member of its mix");
    members.remove(own);
    members
}

/// Predicts all tests of a target from models of its competitors. `None`: outside of the model's range.
pub fn end_to_end(
    target: usize,
    subjects: &[Subject],
    models: &[ContentionModel],
    size: &Size,
    how: Composition,
) -> Vec<Option<Tested>> {
    let options = PredictOptions {
        composition: how,
        ..PredictOptions::default()
    };
    let each = |of: &Observation| {
        let others = others(target, of.group, subjects.len(), size);
        let others: Vec<&ContentionModel> = others.iter().map(|at| &models[*at]).collect();
        let predicted = predict(&models[target], &others, &options).ok()?;
        Some(Tested::new(of, predicted.throughput, of.throughput))
    };
    subjects[target].tests.observations().iter().map(each).collect()
}

/// Same, with inputs clamped to the model's range: methods as published, which know no range.
pub fn clamped(
    target: usize,
    subjects: &[Subject],
    models: &[ContentionModel],
    size: &Size,
    how: Composition,
) -> Vec<Option<Tested>> {
    let model = models[target].throughput();
    let each = |of: &Observation| {
        let others = others(target, of.group, subjects.len(), size);
        let parts: Vec<&Contentiousness> = others.iter().map(|at| models[*at].contentiousness()).collect();
        let vector = compose(model.schema(), models[target].contentiousness(), &parts, how).ok()?;
        let mut inputs = model.inputs(&vector).ok()?;
        for (input, (low, high)) in inputs.iter_mut().zip(model.ranges()) {
            *input = input.clamp(*low, *high);
        }
        Some(Tested::new(of, model.predict_at(&inputs, 0.9).ok()?, of.throughput))
    };
    subjects[target].tests.observations().iter().map(each).collect()
}

/// Same, from the competitors' vector as it was measured in the co-run.
pub fn observed(subject: &Subject, model: &ContentionModel) -> Vec<Option<Tested>> {
    let each = |of: &Observation| {
        let estimate = model.throughput().predict(&of.competition, 0.9).ok()?;
        Some(Tested::new(of, estimate, of.throughput))
    };
    subject.tests.observations().iter().map(each).collect()
}

/// Mean error in percent of the tests that were answered. Not a number, printed as null, if none was.
pub fn percent(tests: &[Option<Tested>]) -> f64 {
    if tests.iter().flatten().next().is_none() {
        return f64::NAN;
    }
    100.0 * mean(tests.iter().flatten().map(Tested::error))
}

pub fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / f64::max(count, 1.0)
}

pub fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (share * values.len() as f64) as usize;
    values
        .get(at.min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

/// Calls `each` with all items on two threads, in any order. Results are in the order of the items.
pub fn parallel<T: Sync, R: Send>(items: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((at, item)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    items.get(at).map(|item| (at, item))
                } {
                    let result = each(item);
                    results
                        .lock()
                        .expect("no thread panics while it adds")
                        .push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("all threads ended");
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
