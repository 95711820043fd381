//! Plan of a campaign: which co-run is measured next, and when there are enough.

use crate::campaign::{Campaign, MAX_OBSERVATIONS};
use crate::dataset::Goal;
use crate::design::{COMPETITORS, Setting, Space};
use crate::metric::Scope;
use crate::sensitivity::{Sensitivity, TrainOptions};
use std::collections::BTreeMap;

/// Options of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanOptions {
    /// Points without competitors, which come first.
    pub alone: u32,
    /// Co-runs before the model is checked for the first time.
    pub first: u32,
    /// Co-runs between two checks.
    pub every: u32,
    /// Maximum number of co-runs.
    pub most: u32,
    /// Cross-validated error of the model at which the campaign ends.
    pub error: f64,
    /// The campaign ends when the best error of the last `patience` checks is less than this share below the best one
    /// before them.
    pub gain: f64,
    /// Number of such checks.
    pub patience: u32,
    /// Measurements of a point that is disturbed each time, until it is given up.
    pub attempts: u32,
    /// Training of the model whose error decides.
    pub train: TrainOptions,
}

impl Default for PlanOptions {
    /// 40 to 400 co-runs, until the model errs by 1.5 % or does not improve by 5 % of its error in three checks.
    fn default() -> Self {
        PlanOptions {
            alone: 3,
            first: 40,
            every: 20,
            most: 400,
            error: 0.015,
            gain: 0.05,
            patience: 3,
            attempts: 3,
            train: TrainOptions::default(),
        }
    }
}

/// Point of a campaign.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Its number, which is the group of its [observations](crate::Observation::group).
    pub number: u32,
    /// Number of competitors; 0: the target alone.
    pub competitors: u32,
    /// Values of the parameters. Those of competitors have no meaning without competitors.
    pub setting: Setting,
}

/// Reason why a campaign ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model's error is small enough.
    Error,
    /// Further co-runs do not improve the model.
    NoGain,
    /// The maximum number of co-runs was measured.
    Most,
}

/// Next step of a campaign.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// This point is measured.
    Measure(Point),
    /// The campaign is complete.
    Done(End),
}

/// Reason why a plan does not continue a campaign.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// An option is out of its range.
    #[error("{name}: expected {expected}, found {found}")]
    Option {
        /// Name of the option.
        name: &'static str,
        /// Allowed values.
        expected: &'static str,
        /// Value found.
        found: f64,
    },
    /// An observation is of another plan: other parameters, ranges or seed.
    #[error(
        "observation {at}: expected {name} {expected}, as in the plan's point {number}, found {found}: the campaign is \
         of another plan"
    )]
    OtherPlan {
        /// Number of the observation, from 1.
        at: usize,
        /// Number of the point.
        number: u32,
        /// Value that differs.
        name: String,
        /// Value of the plan.
        expected: f64,
        /// Value of the observation.
        found: f64,
    },
}

/// Plan of a campaign. It decides by the observations so far and nothing else: one that is interrupted, at any point,
/// continues with the points that it would have measured anyway, and ends at the same one.
#[derive(Clone, Debug)]
pub struct CampaignPlan {
    space: Space,
    options: PlanOptions,
    /// Errors of models by the number of co-runs that they were trained on.
    errors: BTreeMap<u32, f64>,
}

impl CampaignPlan {
    /// Creates a plan for one campaign.
    ///
    /// # Errors
    /// If an option is out of its range.
    pub fn new(space: Space, options: PlanOptions) -> Result<CampaignPlan, PlanError> {
        let whole = [
            ("alone", options.alone),
            ("first", options.first),
            ("every", options.every),
            ("most", options.most),
            ("patience", options.patience),
            ("attempts", options.attempts),
        ];
        let check = |is_valid: bool, name, expected, found| match is_valid {
            true => Ok(()),
            false => Err(PlanError::Option { name, expected, found }),
        };
        for (name, value) in whole {
            check((1..=100_000).contains(&value), name, "1 to 100000", f64::from(value))?;
        }
        let total = u64::from(options.alone + options.most) * u64::from(options.attempts);
        check(
            total <= MAX_OBSERVATIONS as u64,
            "most",
            "at most 20000 observations, of all attempts",
            f64::from(options.most),
        )?;
        for (name, share) in [("error", options.error), ("gain", options.gain)] {
            check((0.0..1.0).contains(&share), name, "a share from 0 to below 1", share)?;
        }
        Ok(CampaignPlan {
            space,
            options,
            errors: BTreeMap::new(),
        })
    }

    /// Returns the point of a number. The first co-runs are those of the highest and of the lowest values: a model
    /// answers within the range of its campaign only.
    pub fn point(&self, number: u32) -> Point {
        let setting = match number.checked_sub(self.options.alone) {
            Some(0) => self.space.end(true),
            Some(1) => self.space.end(false),
            _ => self.space.setting(number),
        };
        let competitors = setting.get(COMPETITORS).unwrap_or(1.0) as u32;
        Point {
            number,
            competitors: if number < self.options.alone { 0 } else { competitors },
            setting,
        }
    }

    /// Returns the number of points of the longest possible campaign: the end that progress is measured by.
    pub fn most_points(&self) -> u32 {
        self.options.alone + self.options.most
    }

    /// Returns the cross-validated errors so far, by number of co-runs.
    pub fn errors(&self) -> impl Iterator<Item = (u32, f64)> {
        self.errors.iter().map(|(co_runs, error)| (*co_runs, *error))
    }

    /// Returns the next step of a campaign, which may have been read from a file. A point whose measurement was
    /// disturbed is measured again.
    ///
    /// # Errors
    /// If an observation is not of this plan.
    pub fn next(&mut self, campaign: &Campaign) -> Result<Next, PlanError> {
        let mut settled: BTreeMap<u32, u32> = BTreeMap::new();
        for (at, observation) in campaign.observations().iter().enumerate() {
            let point = self.point(observation.group);
            let mut pairs = vec![(
                COMPETITORS,
                f64::from(point.competitors),
                Some(f64::from(observation.competitors)),
            )];
            for metric in campaign.schema().metrics() {
                if let (Scope::Target, Some(expected)) = (metric.scope, point.setting.get(&metric.name)) {
                    pairs.push((&metric.name, expected, observation.competition.get(&metric.name)));
                }
            }
            for (name, expected, found) in pairs {
                if let Some(found) = found
                    && (found - expected).abs() > 1e-9 * expected.abs()
                {
                    return Err(PlanError::OtherPlan {
                        at: at + 1,
                        number: point.number,
                        name: name.to_owned(),
                        expected,
                        found,
                    });
                }
            }
            let attempts = settled.entry(point.number).or_default();
            *attempts += if observation.flagged { 1 } else { self.options.attempts };
        }
        let is_open = |number: &u32| settled.get(number).is_none_or(|of| *of < self.options.attempts);
        let next = (0..self.most_points()).find(is_open).unwrap_or(self.most_points());
        let co_runs = next.saturating_sub(self.options.alone);
        if let Some(end) = self.end(campaign, co_runs) {
            return Ok(Next::Done(end));
        }
        Ok(Next::Measure(self.point(next)))
    }

    /// Returns the reason to end after so many co-runs, by the models of each earlier check.
    fn end(&mut self, campaign: &Campaign, co_runs: u32) -> Option<End> {
        let options = self.options;
        let mut errors: Vec<f64> = Vec::new();
        let mut check = options.first;
        while check <= co_runs {
            let known = self.errors.get(&check).copied();
            let error = known.unwrap_or_else(|| self.error_of(campaign, options.alone + check));
            self.errors.insert(check, error);
            errors.push(error);
            if error <= options.error {
                return Some(End::Error);
            }
            if let Some(before) = errors.len().checked_sub(options.patience as usize)
                && before > 0
            {
                let best = |errors: &[f64]| errors.iter().copied().fold(f64::INFINITY, f64::min);
                if best(&errors[before..]) > (1.0 - options.gain) * best(&errors[..before]) {
                    return Some(End::NoGain);
                }
            }
            check += options.every;
        }
        (co_runs >= options.most).then_some(End::Most)
    }

    /// Returns the cross-validated error of a model of the points below a number, in order of their numbers.
    fn error_of(&self, campaign: &Campaign, points: u32) -> f64 {
        let observations = campaign.observations();
        let mut used: Vec<usize> = (0..observations.len())
            .filter(|at| observations[*at].group < points)
            .collect();
        used.sort_by_key(|at| observations[*at].group);
        let part = campaign.subset(&used);
        let model = part.solo().map(|solo| {
            let options = &self.options.train;
            Sensitivity::train(&part, Goal::Throughput, solo.throughput, options)
        });
        match model {
            Some(Ok(model)) => model.error(),
            // Too many points were disturbed for a model.
            _ => f64::INFINITY,
        }
    }
}
