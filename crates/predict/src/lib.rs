//! Contention between chains that share a server, predicted: decisions only, without clock, thread or measurement.
//!
//! The method is SLOMO's (SIGCOMM 2020). A *campaign* co-runs a target with synthetic competitors. It records the
//! competitors' *vector* V of metrics, the target's performance (its *sensitivity*), and the target's own vector (its
//! *contentiousness*). From then on:
//!
//! - [`CampaignPlan`] says which co-run is measured next, and when there are enough: settings that fill a
//!   [`design::Space`].
//! - [`Campaign`] holds observations of one target, on one machine, from one [`Source`] of metrics.
//! - [`ContentionModel`] is trained on a campaign, and is a file. It holds a [`Sensitivity`] model of the throughput,
//!   one of the p99, and the function's [`Contentiousness`].
//! - [`predict`] composes the vectors of several competitors ([`compose`]), and returns throughput and p99 with
//!   intervals, the resource that binds, and what relieves it.
//! - [`remedies`] predicts again after each change that may help.
//! - [`DriftMonitor`] compares predictions with what runs, and requests a new profile.
//! - [`extrapolate`] answers for a target whose flows or rules changed a little.
//! - [`few_shot`] starts from the campaigns of other functions, so that few co-runs suffice.
//! - [`resources`] adds what is not memory: accelerators, and the target's execution pattern (Yala).
//!
//! A model answers only inside of the range of its campaign. Beyond it, [`PredictError::OutsideRange`] names the
//! metric.
//! Intervals are calibrated by observations outside of each fit.
//!
//! # Methods
//! [`Kind`] lists them. Gradient boosting, ridge and forest are this crate's own, in about 500 lines: models are files
//! from outside, so each tree must be checked when it is read. A training must be the same on every machine, without
//! threads. `docs/lab/prediction.md` compares with other crates.
//!
//! # Example
//! ```no_run
//! use std::path::Path;
//! use tailwater_predict::{ContentionModel, PredictOptions, predict};
//!
//! let target = ContentionModel::read(Path::new("nat.model.yaml"))?;
//! let other = ContentionModel::read(Path::new("ids.model.yaml"))?;
//! let prediction = predict(&target, &[&other, &other], &PredictOptions::default())?;
//! println!("{:.0} packets/s, at least {:.0}", prediction.throughput.value, prediction.throughput.low);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod attribution;
mod campaign;
mod compose;
mod dataset;
pub mod design;
mod drift;
mod extrapolate;
pub mod few_shot;
mod file;
pub mod metric;
mod model;
mod plan;
mod predictor;
mod random;
mod remedy;
pub mod resources;
mod response;
mod select;
mod sensitivity;
mod validate;

pub use attribution::Attribution;
pub use campaign::{Campaign, CampaignError, Key, MAX_COMPETITORS, MAX_OBSERVATIONS, Observation, Solo};
pub use compose::{Composition, Contentiousness, compose};
pub use dataset::{Dataset, Goal};
pub use drift::{CoRun, Drift, DriftError, DriftMonitor, DriftOptions};
pub use extrapolate::{Change, PUBLISHED_ADDED_ERROR, PUBLISHED_LIMIT, extrapolate};
pub use file::VERSION;
pub use metric::{Metric, MetricError, Schema, Source, Vector};
pub use model::{FitError, Kind, MIN_ROWS, Regressor};
pub use plan::{CampaignPlan, End, Next, PlanError, PlanOptions, Point};
pub use predictor::{ContentionModel, Performance, PredictOptions, Prediction, performance, predict};
pub use remedy::{Relief, Remedy, remedies};
pub use select::{Selection, correlations, importances};
pub use sensitivity::{Estimate, Evaluation, HeldOut, PredictError, Sensitivity, TrainOptions};
pub use validate::{LeftOut, leave_groups_out};
