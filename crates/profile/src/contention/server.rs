//! Co-runs on this machine: a target on one core, competitors on others, probes on whichever is free.

use super::campaign::{AloneRun, CoRun, CoRuns, Disturbance};
use super::competitor::{CompetitorRun, Running, SyntheticLoad, Workload};
use super::error::ContentionError;
use super::source::{MetricSource, Scene};
use crate::cache::sharing;
use crate::interference::Conditions;
use crate::sweep::{Sweep, SweepOptions, at, median};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tailwater_functions::spec::ChainSpec;
use tailwater_predict::{Point, Schema};
use tailwater_traffic::Trace;

/// Load at which the p99 is measured, as a share of the throughput alone: waiting in queues does not dominate, and a
/// target that loses a third of its throughput still keeps up.
const LATENCY_LOAD: f64 = 0.6;
/// Percentile of latency.
const PERCENTILE: f64 = 99.0;
/// Difference of the runs alone before and after the competitors beyond which something else changed meanwhile.
const MOST_DRIFT: f64 = 0.05;
/// Difference of the runs beside the same competitors beyond which one of them was disturbed.
const MOST_SPREAD: f64 = 0.1;
/// Runs until one has no interference: it comes and goes within a second, and a whole co-run takes several.
const RUNS: u32 = 4;

/// A target, and the cores of its competitors.
pub struct Server<'a> {
    target: Sweep<'a>,
    workload: Workload,
    others: Vec<usize>,
    source: Box<dyn MetricSource + 'a>,
    seed: u64,
}

impl<'a> Server<'a> {
    /// Prepares a target on [its core](SweepOptions::core). Competitors run on the cores `beside`, or on all others
    /// that share its cache.
    ///
    /// # Errors
    /// There is no such core, or the chain cannot run.
    pub fn new(
        spec: &ChainSpec,
        traffic: &Trace,
        options: &SweepOptions,
        beside: Option<&[usize]>,
        source: Box<dyn MetricSource + 'a>,
        stop: &'a AtomicBool,
    ) -> Result<Server<'a>, ContentionError> {
        let core = options.core;
        let mut others = sharing(core);
        if let Some(beside) = beside {
            others.retain(|other| beside.contains(other));
        }
        if others.is_empty() {
            return Err(ContentionError::Alone { core });
        }
        Ok(Server {
            target: Sweep::new(spec, traffic, options, false, stop)?,
            workload: Workload::saturated(spec, traffic, options.seed)?,
            others,
            source,
            seed: options.seed,
        })
    }

    /// Returns the cores of competitors.
    pub fn others(&self) -> &[usize] {
        &self.others
    }

    /// Runs the target alone, then beside each of these on a core of its own, then alone again.
    ///
    /// # Errors
    /// A run fails or is stopped, or there are too few cores.
    pub fn co_run(&mut self, competitors: &[&Workload]) -> Result<CoRun, ContentionError> {
        if competitors.len() > self.others.len() {
            return Err(ContentionError::Competitors {
                cores: self.others.len(),
                found: competitors.len(),
            });
        }
        let mut notes = Notes::default();
        let core = self.target.lab.core;
        let before = self.rate(false, &mut notes)?;
        if self.source.prepare(core)? {
            notes.add(Disturbance::Probes);
        }
        let mut running = Vec::new();
        for (workload, other) in competitors.iter().zip(&self.others) {
            running.push(Running::start(workload, *other, self.target.lab.stop)?);
        }
        let cores = self.others[..competitors.len()].to_vec();
        let scene = Scene {
            subjects: &cores,
            free: core,
        };
        let mut rates = vec![self.rate(true, &mut notes)?];
        let first = self.source.observe(scene)?;
        rates.push(self.rate(true, &mut notes)?);
        let p99_us = self.p99(LATENCY_LOAD * before, true, &mut notes)?;
        let second = self.source.observe(scene)?;
        rates.push(self.rate(true, &mut notes)?);
        let mut runs = Vec::new();
        for mut competitor in running {
            runs.push(competitor.end()?);
        }
        let after = self.rate(false, &mut notes)?;
        if first.is_disturbed || second.is_disturbed {
            notes.add(Disturbance::Probes);
        }
        if runs.iter().any(|run| run.is_disturbed) {
            notes.add(Disturbance::Competitor);
        }
        rates.sort_by(f64::total_cmp);
        if rates[2] - rates[0] > MOST_SPREAD * rates[1] {
            notes.add(Disturbance::Spread);
        }
        if (after - before).abs() > MOST_DRIFT * before {
            notes.add(Disturbance::Drift);
        }
        let mean = |(a, b): (&Option<f64>, &Option<f64>)| Some(f64::midpoint((*a)?, (*b)?));
        Ok(CoRun {
            alone: f64::midpoint(before, after),
            beside: rates[1],
            p99_us,
            competition: first.values.iter().zip(&second.values).map(mean).collect(),
            competitors: runs,
            disturbance: notes.0,
        })
    }

    /// Returns the throughput, packets per second, of the first run without interference, or of the last of a few.
    fn rate(&self, is_beside: bool, notes: &mut Notes) -> Result<f64, ContentionError> {
        let mut tries = 1;
        loop {
            let (rate, conditions) = self.target.throughput()?;
            let interference = self.interference(&conditions, is_beside);
            if interference.is_none() || tries >= RUNS {
                notes.add_some(interference);
                return Ok(rate);
            }
            tries += 1;
        }
    }

    /// Returns the p99 at a rate, microseconds: the median of windows. `None` if nothing was delivered, or nearly all
    /// windows had CPU interference.
    fn p99(&self, rate: f64, is_beside: bool, notes: &mut Notes) -> Result<Option<f64>, ContentionError> {
        let (report, conditions) = self.target.paced(rate)?;
        if conditions.has_few_windows {
            // Latency alone is affected: throughput is measured in other runs.
            return Ok(None);
        }
        notes.add_some(self.interference(&conditions, is_beside));
        let windows = self.target.settled(&report);
        Ok(median(windows.iter().map(|window| at(&window.latency_us, PERCENTILE))))
    }

    /// Returns the interference with a run. Beside competitors the core's speed is no sign of it: they lower its clock,
    /// or use its other hyper-thread.
    fn interference(&self, conditions: &Conditions, is_beside: bool) -> Option<Disturbance> {
        let interference = match is_beside {
            true => conditions.interference(None),
            false => self.target.interference(conditions),
        };
        interference.map(Disturbance::Run)
    }
}

impl CoRuns for Server<'_> {
    fn schema(&self) -> &Arc<Schema> {
        self.source.schema()
    }

    fn most_competitors(&self) -> u32 {
        self.others.len() as u32
    }

    /// The target's own vector is that on another core while it runs, with nothing else of ours beside it.
    fn alone(&mut self) -> Result<AloneRun, ContentionError> {
        let mut notes = Notes::default();
        let throughput = self.rate(false, &mut notes)?;
        let p99_us = self.p99(LATENCY_LOAD * throughput, false, &mut notes)?;
        let free = self.others[0];
        if self.source.prepare(free)? {
            notes.add(Disturbance::Probes);
        }
        let core = self.target.lab.core;
        let mut running = Running::start(&self.workload, core, self.target.lab.stop)?;
        let scene = Scene {
            subjects: &[core],
            free,
        };
        let own = self.source.observe(scene)?;
        let CompetitorRun { is_disturbed, .. } = running.end()?;
        if own.is_disturbed {
            notes.add(Disturbance::Probes);
        }
        if is_disturbed {
            notes.add(Disturbance::Competitor);
        }
        Ok(AloneRun {
            throughput,
            p99_us,
            own: own.values,
            disturbance: notes.0,
        })
    }

    fn beside(&mut self, point: &Point) -> Result<CoRun, ContentionError> {
        let load = SyntheticLoad::of(&point.setting).map_err(ContentionError::Parameter)?;
        let workload = load.workload(self.seed)?;
        self.co_run(&vec![&workload; point.competitors as usize])
    }
}

/// First disturbance of a session.
#[derive(Default)]
struct Notes(Option<Disturbance>);

impl Notes {
    fn add(&mut self, disturbance: Disturbance) {
        self.0.get_or_insert(disturbance);
    }

    fn add_some(&mut self, disturbance: Option<Disturbance>) {
        self.0 = self.0.or(disturbance);
    }
}
