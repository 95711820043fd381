//! Rows of a campaign as columns of numbers, with notes on what was left out.

use crate::campaign::{Campaign, Observation};
use crate::metric::Metric;
use crate::random::Random;

/// Share of the rows in which a metric may be missing. Beyond, the metric is left out, otherwise the rows.
const MISSING: f64 = 0.1;

/// Performance that a model predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Packets per second.
    Throughput,
    /// The 99th percentile of latency, microseconds.
    P99,
}

impl Goal {
    /// Returns the value of an observation, if it was measured.
    pub fn of(self, observation: &Observation) -> Option<f64> {
        match self {
            Goal::Throughput => Some(observation.throughput),
            Goal::P99 => observation.p99_us,
        }
    }

    /// Returns the direction in which competition changes it.
    pub fn direction(self) -> f64 {
        match self {
            Goal::Throughput => -1.0,
            Goal::P99 => 1.0,
        }
    }
}

/// Columns of inputs, and the value that follows from them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dataset {
    /// Description of each column.
    pub inputs: Vec<Metric>,
    /// Values by column, then by row.
    pub columns: Vec<Vec<f64>>,
    /// Value by row.
    pub targets: Vec<f64>,
    /// Group by row; rows of a group stay together in folds.
    pub groups: Vec<u32>,
    /// Columns and rows that were left out, and why.
    pub notes: Vec<String>,
}

impl Dataset {
    /// Collects the rows of a campaign that were not disturbed.
    ///
    /// A metric that is missing in more than a tenth of the rows, or has one value in all rows, is left out. A row that
    /// lacks another metric is left out. Each leaves a note.
    pub fn new(campaign: &Campaign, goal: Goal) -> Dataset {
        let mut notes = Vec::new();
        let usable: Vec<&Observation> = campaign.usable().filter(|of| goal.of(of).is_some()).collect();
        let flagged = campaign.observations().len() - campaign.usable().count();
        if flagged > 0 {
            notes.push(format!("{flagged} disturbed observations are not used"));
        }
        let values = |at: usize| usable.iter().map(move |of| of.competition.values()[at]);
        let mut kept = Vec::new();
        for (at, metric) in campaign.schema().metrics().iter().enumerate() {
            let missing = values(at).filter(Option::is_none).count();
            if missing as f64 > MISSING * usable.len() as f64 {
                let total = usable.len();
                notes.push(format!(
                    "{}: left out, missing in {missing} of {total} observations",
                    metric.name
                ));
            } else if is_constant(values(at).flatten()) {
                notes.push(format!("{}: left out, the same in all observations", metric.name));
            } else {
                kept.push(at);
            }
        }
        let is_whole = |of: &&&Observation| kept.iter().all(|at| of.competition.values()[*at].is_some());
        let rows: Vec<&Observation> = usable.iter().filter(is_whole).copied().collect();
        if rows.len() < usable.len() {
            let partial = usable.len() - rows.len();
            notes.push(format!(
                "{partial} observations are not used, because a metric is missing in each"
            ));
        }
        // Without the partial rows, a column may be constant.
        let column = |at: usize| rows.iter().filter_map(move |of| of.competition.values()[at]);
        kept.retain(|at| !is_constant(column(*at)));
        Dataset {
            inputs: kept.iter().map(|at| campaign.schema().metrics()[*at].clone()).collect(),
            columns: kept.iter().map(|at| column(*at).collect()).collect(),
            targets: rows.iter().filter_map(|of| goal.of(of)).collect(),
            groups: rows.iter().map(|of| of.group).collect(),
            notes,
        }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Returns `true` if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Returns the inputs of a row.
    pub fn row(&self, at: usize) -> Vec<f64> {
        self.columns.iter().map(|column| column[at]).collect()
    }

    /// Returns the smallest and largest value of each column.
    pub fn ranges(&self) -> Vec<(f64, f64)> {
        let range = |column: &Vec<f64>| {
            let values = column.iter().copied();
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        self.columns.iter().map(range).collect()
    }

    /// Returns some of the rows.
    pub fn rows(&self, rows: &[usize]) -> Dataset {
        let pick = |values: &Vec<f64>| rows.iter().map(|at| values[*at]).collect();
        Dataset {
            inputs: self.inputs.clone(),
            columns: self.columns.iter().map(pick).collect(),
            targets: pick(&self.targets),
            groups: rows.iter().map(|at| self.groups[*at]).collect(),
            notes: Vec::new(),
        }
    }

    /// Returns some of the columns.
    pub fn select(&self, columns: &[usize]) -> Dataset {
        Dataset {
            inputs: columns.iter().map(|at| self.inputs[*at].clone()).collect(),
            columns: columns.iter().map(|at| self.columns[*at].clone()).collect(),
            ..self.clone()
        }
    }

    /// Divides the rows into at most `count` folds, whole groups at a time. Fewer groups make fewer folds.
    pub fn folds(&self, count: usize, seed: u64) -> Vec<Vec<usize>> {
        let mut groups = self.groups.clone();
        groups.sort_unstable();
        groups.dedup();
        Random::new(seed).shuffle(&mut groups);
        let mut folds: Vec<Vec<usize>> = vec![Vec::new(); count.min(groups.len())];
        for group in groups {
            let rows = (0..self.len()).filter(|at| self.groups[*at] == group);
            let least = (0..folds.len()).min_by_key(|at| folds[*at].len()).unwrap_or(0);
            if let Some(fold) = folds.get_mut(least) {
                fold.extend(rows);
            }
        }
        folds
    }

    /// Returns the rows outside of a fold.
    pub fn outside(&self, fold: &[usize]) -> Vec<usize> {
        let mut is_inside = vec![false; self.len()];
        fold.iter().for_each(|at| is_inside[*at] = true);
        (0..self.len()).filter(|at| !is_inside[*at]).collect()
    }
}

/// Returns `true` of values that are all the same, and of none.
fn is_constant(mut values: impl Iterator<Item = f64>) -> bool {
    let first = values.next();
    values.all(|value| Some(value) == first)
}
