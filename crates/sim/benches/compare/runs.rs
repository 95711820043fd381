//! Runs of a policy in a cell.

use super::cells::{COLD, Cell};
use super::contenders::{Row, Values};
use super::profiles::Published;
use super::training;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tailwater_baselines::catalog::epoch;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier, RateFrontier};
use tailwater_sim::report::WindowReport;
use tailwater_sim::{BoundedChain, ChainModel, ChainRun, Recording, RunOptions, Workload, oracle, simulate};

/// Windows of a run.
const WINDOW: Nanos = Nanos::from_millis(50);

/// Result of a run: a line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub cell: String,
    pub row: String,
    pub seed: u64,
    /// Shares of the packets that were late or lost, and that were lost, after the start.
    pub late: f64,
    pub lost: f64,
    /// Active cores, averaged over epochs of 100 us.
    pub cores: f64,
    /// The same for the start.
    pub cold_late: f64,
    pub cold_lost: f64,
    pub cold_cores: f64,
}

/// Profiles by chain and objective.
#[derive(Default)]
pub struct Profiles {
    trained: BTreeMap<(String, u64), Arc<CapacityProfile>>,
    published: Option<Published>,
}

impl Profiles {
    pub fn trained(&mut self, cell: &Cell) -> Arc<CapacityProfile> {
        let key = (cell.chain.to_owned(), cell.slo_us);
        let made = self.trained.entry(key);
        Arc::clone(made.or_insert_with(|| Arc::new(training::train(cell.chain(), cell.slo()))))
    }

    /// Returns what NetBlaze's authors measured on other hardware, or `None` for chains that are not theirs, or without
    /// the archive.
    pub fn published(&mut self, cell: &Cell) -> Option<CapacityProfile> {
        let folder = cell.chain().published?;
        if self.published.is_none() {
            self.published = Published::load();
        }
        let files = self.published.as_ref()?;
        let read = |name: String| (files.file(&name), name);
        let (short, name) = read(format!("{folder}/short_{}.pro", cell.slo_us));
        let frontier = EpochFrontier::from_published(short, &name);
        let (long, name) = read(format!("{folder}/long_{}_p50.pro", cell.slo_us));
        let rates = RateFrontier::from_published(long, &name);
        Some(CapacityProfile {
            slo: cell.slo(),
            epoch: epoch(cell.slo()).unwrap_or_else(|error| panic!("{error}")),
            frontier: frontier.unwrap_or_else(|error| panic!("{error}")),
            rates: rates.unwrap_or_else(|error| panic!("{error}")),
            ..CapacityProfile::default()
        })
    }
}

/// Runs a row of the table, or returns `None` if it does not exist in this cell.
pub fn run_row(
    row: &Row,
    cell: &Cell,
    seed: u64,
    packets: &Arc<Recording>,
    profiles: &mut Profiles,
) -> Option<Outcome> {
    let mut values = match row.frozen {
        true => Values::frozen(row.policy),
        false => Values::published(row.policy),
    };
    if let Some((name, value)) = row.but {
        values.set(name, value);
    }
    let profile = match row.published_profile {
        true => Arc::new(profiles.published(cell)?),
        false => profiles.trained(cell),
    };
    let mut outcome = run(&values, cell, packets, &profile);
    (outcome.row, outcome.seed) = (row.name.to_owned(), seed);
    Some(outcome)
}

/// Runs a policy.
pub fn run(values: &Values, cell: &Cell, packets: &Arc<Recording>, profile: &CapacityProfile) -> Outcome {
    let chain = ChainRun {
        model: cell.chain().model(values.batch()),
        slo: cell.slo(),
        policy: values.policy(cell, profile),
        workload: Workload::from(Arc::clone(packets)),
    };
    let options = RunOptions {
        window: WINDOW,
        ..RunOptions::default()
    };
    let report = simulate(&cell.rack(), vec![chain], &options);
    let report = report.unwrap_or_else(|error| panic!("{}: {error}", cell.name));
    let windows = &report.chains[0].windows;
    let start = windows.partition_point(|window| window.start_s < COLD.as_secs_f64() - 1e-6);
    // Without the windows after the last arrival, in which queues drain.
    let end = windows
        .iter()
        .rposition(|window| window.offered > 0)
        .map_or(0, |last| last + 1);
    let (cold, settled) = (
        Summary::of(&windows[..start]),
        Summary::of(&windows[start..end.max(start)]),
    );
    Outcome {
        cell: cell.name.to_owned(),
        row: values.policy.to_owned(),
        seed: 0,
        late: settled.late,
        lost: settled.lost,
        cores: settled.cores,
        cold_late: cold.late,
        cold_lost: cold.lost,
        cold_cores: cold.cores,
    }
}

#[derive(Clone, Copy, Debug)]
struct Summary {
    late: f64,
    lost: f64,
    cores: f64,
}

impl Summary {
    fn of(windows: &[WindowReport]) -> Summary {
        let sum = |part: fn(&WindowReport) -> u64| windows.iter().map(part).sum::<u64>() as f64;
        let offered = sum(|window| window.offered).max(1.0);
        Summary {
            late: sum(|window| window.late) / offered,
            lost: sum(|window| window.lost) / offered,
            cores: windows.iter().map(|window| window.cores).sum::<f64>() / windows.len().max(1) as f64,
        }
    }
}

/// Returns the cores that any policy needs, for the same packets.
pub fn bound(cell: &Cell, seed: u64, packets: &Arc<Recording>) -> Outcome {
    let model = ChainModel {
        // Its mean is 1. With it, each batch would count as the shortest possible one.
        jitter: None,
        ..cell.chain().model(32)
    };
    let chain = BoundedChain {
        model,
        slo: cell.slo(),
        workload: Workload::from(Arc::clone(packets)),
    };
    let options = RunOptions {
        warm_up: COLD,
        ..RunOptions::default()
    };
    let report = oracle(vec![chain], &options).unwrap_or_else(|error| panic!("{}: {error}", cell.name));
    let chain = &report.chains[0];
    Outcome {
        cell: cell.name.to_owned(),
        row: "oracle".to_owned(),
        seed,
        late: chain.late_unavoidable as f64 / chain.packets.max(1) as f64,
        lost: 0.0,
        cores: report.cores.average,
        cold_late: 0.0,
        cold_lost: 0.0,
        cold_cores: 0.0,
    }
}
