//! Sequence of a campaign: which point is measured, what becomes of disturbed ones, and how it continues.

use super::competitor::CompetitorRun;
use super::error::ContentionError;
use crate::interference::Interference;
use std::fmt;
use std::sync::Arc;
use tailwater_predict::{Campaign, CampaignPlan, End, Next, Observation, Point, Schema, Vector};

/// Measurements of a point until it is undisturbed. Afterwards it is flagged.
const ATTEMPTS: u32 = 3;

/// Something other than the competitors that changed a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// Interference with a run of the target.
    Run(Interference),
    /// A competitor lacked its core.
    Competitor,
    /// Probes were interrupted.
    Probes,
    /// Runs beside the same competitors differ.
    Spread,
    /// The target alone was faster before or after.
    Drift,
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Disturbance::Run(interference) => interference.fmt(f),
            Disturbance::Competitor => f.write_str("a competitor was preempted"),
            Disturbance::Probes => f.write_str("probes were interrupted"),
            Disturbance::Spread => f.write_str("runs beside the same competitors differ"),
            Disturbance::Drift => f.write_str("the chain alone was not as fast before as after"),
        }
    }
}

/// Measurement of a target alone.
#[derive(Clone, Debug, PartialEq)]
pub struct AloneRun {
    /// Packets per second.
    pub throughput: f64,
    /// 99th percentile of latency below saturation, microseconds.
    pub p99_us: Option<f64>,
    /// The target's own vector.
    pub own: Vec<Option<f64>>,
    /// First disturbance.
    pub disturbance: Option<Disturbance>,
}

/// Measurement of a target beside competitors.
#[derive(Clone, Debug, PartialEq)]
pub struct CoRun {
    /// Packets per second alone, just before and after.
    pub alone: f64,
    /// Packets per second beside the competitors.
    pub beside: f64,
    /// 99th percentile of latency beside them, at the same load as alone, microseconds.
    pub p99_us: Option<f64>,
    /// The competitors' vector.
    pub competition: Vec<Option<f64>>,
    /// Result of each competitor.
    pub competitors: Vec<CompetitorRun>,
    /// First disturbance.
    pub disturbance: Option<Disturbance>,
}

/// Measurements that a campaign consists of.
pub trait CoRuns {
    /// Returns the metrics of all vectors.
    fn schema(&self) -> &Arc<Schema>;

    /// Returns the largest number of competitors.
    fn most_competitors(&self) -> u32;

    /// Measures the target alone.
    ///
    /// # Errors
    /// A run fails, or is stopped.
    fn alone(&mut self) -> Result<AloneRun, ContentionError>;

    /// Measures the target beside a point's competitors.
    ///
    /// # Errors
    /// A run fails, or is stopped.
    fn beside(&mut self, point: &Point) -> Result<CoRun, ContentionError>;
}

/// State of a campaign after a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CampaignProgress {
    /// Points that this session has done.
    pub done: u32,
    /// Points that this session measures at most.
    pub of: u32,
    /// Disturbance with which the last point was flagged.
    pub flagged: Option<Disturbance>,
}

/// End of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The plan needs no more points.
    Complete(End),
    /// The caller stopped it. The campaign can be continued.
    Stopped,
}

/// Measures the points that a campaign lacks by its plan. `save` is called after each of them; what it was given is
/// complete and can be continued. A point that stays disturbed in three measurements is flagged.
///
/// The target's throughput varies with the machine's state, which changes in minutes on a shared one. Each co-run is
/// measured between two runs alone. Its throughput in the campaign is that share of the throughput alone in the whole
/// campaign.
///
/// # Errors
/// A measurement fails, `save` does, or the campaign is of another plan.
pub fn measure_campaign<E: From<ContentionError>>(
    co_runs: &mut dyn CoRuns,
    plan: &mut CampaignPlan,
    campaign: &mut Campaign,
    mut save: impl FnMut(&Campaign, CampaignProgress) -> Result<(), E>,
) -> Result<SessionEnd, E> {
    let mut start = None;
    loop {
        let point = match plan.next(campaign).map_err(ContentionError::from)? {
            Next::Measure(point) => point,
            Next::Done(end) => return Ok(SessionEnd::Complete(end)),
        };
        let most = co_runs.most_competitors();
        if point.competitors > most {
            let (cores, found) = (most as usize, point.competitors as usize);
            return Err(ContentionError::Competitors { cores, found }.into());
        }
        let (observation, flagged) = match observe(co_runs, &point, campaign) {
            Err(error) if error.is_stopped() => return Ok(SessionEnd::Stopped),
            other => other?,
        };
        campaign.push(observation).map_err(ContentionError::from)?;
        // Disturbed points are measured again, and are not done before.
        let start = *start.get_or_insert(point.number);
        let progress = CampaignProgress {
            done: point.number + u32::from(flagged.is_none()) - start,
            of: plan.most_points() - start,
            flagged,
        };
        save(campaign, progress)?;
    }
}

/// Measures a point until it is undisturbed.
fn observe(
    co_runs: &mut dyn CoRuns,
    point: &Point,
    campaign: &Campaign,
) -> Result<(Observation, Option<Disturbance>), ContentionError> {
    let mut attempt = 1;
    loop {
        let (observation, disturbance) = match point.competitors {
            0 => alone(co_runs, point)?,
            _ => beside(co_runs, point, campaign)?,
        };
        if disturbance.is_none() || attempt >= ATTEMPTS {
            return Ok((observation, disturbance));
        }
        attempt += 1;
    }
}

fn alone(co_runs: &mut dyn CoRuns, point: &Point) -> Result<(Observation, Option<Disturbance>), ContentionError> {
    let run = co_runs.alone()?;
    let schema = co_runs.schema();
    let nothing = vec![Some(0.0); schema.metrics().len()];
    let observation = Observation {
        group: point.number,
        competitors: 0,
        competition: Vector::new(schema.clone(), nothing)?,
        throughput: run.throughput,
        p99_us: run.p99_us,
        own: Some(Vector::new(schema.clone(), run.own)?),
        flagged: run.disturbance.is_some(),
    };
    Ok((observation, run.disturbance))
}

/// A probe beside the target and its competitors would see them all. So the target's own vector is the mean of those
/// without competitors: beside one co-runner, the probe.
fn beside(
    co_runs: &mut dyn CoRuns,
    point: &Point,
    campaign: &Campaign,
) -> Result<(Observation, Option<Disturbance>), ContentionError> {
    let run = co_runs.beside(point)?;
    let solo = campaign.solo().filter(|solo| solo.measured);
    let solo = solo.map_or(run.alone, |solo| solo.throughput);
    let schema = co_runs.schema();
    let observation = Observation {
        group: point.number,
        competitors: point.competitors,
        competition: Vector::new(schema.clone(), run.competition)?,
        throughput: solo * run.beside / run.alone,
        p99_us: run.p99_us,
        own: own(campaign)?,
        flagged: run.disturbance.is_some(),
    };
    Ok((observation, run.disturbance))
}

/// Returns the mean of the target's own vectors without competitors, if there are any.
fn own(campaign: &Campaign) -> Result<Option<Vector>, ContentionError> {
    let alone = campaign.usable().filter(|of| of.competitors == 0);
    let own: Vec<&Vector> = alone.filter_map(|of| of.own.as_ref()).collect();
    if own.is_empty() {
        return Ok(None);
    }
    let mean = |at: usize| {
        let values: Vec<f64> = own.iter().filter_map(|of| of.values()[at]).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let schema = campaign.schema();
    let values = (0..schema.metrics().len()).map(mean).collect();
    Ok(Some(Vector::new(schema.clone(), values)?))
}
