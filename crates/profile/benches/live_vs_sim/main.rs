//! Comparison of live runs with simulations of the same packets, with costs measured on this machine.
//!
//! `cargo bench -p tailwater-profile --bench live_vs_sim [-- FILTER...] [--runs N] [--save DIRECTORY] [--from
//! DIRECTORY]` prints a JSON line for each combination of chain, traffic, objective and policy, and the table of
//! `docs/lab/live-vs-sim.md`. A filter is part of `chain/traffic/slo/policy`.
//!
//! 1. Each chain is trained for each objective, on [`TRAINING`] traffic.
//! 2. Each [`Cell`]'s packets are generated with another seed. They run live on one dedicated and one auxiliary core,
//!    the policies in turn, `runs` times.
//! 3. The same packets are simulated on a server with two cores, with the profile of step 1. The machine's speed in the
//!    live run is given for each step, as a mean, or not at all.
//!
//! `--save` stores profiles and live results in a directory, and simulates nothing. `--from` simulates the stored
//! results, so that the simulator can be changed without measuring again. Captures need TAILWATER_TEST_DATA.

mod live;
mod simulated;
mod table;
mod traffic;

use live::{Lab, Live};
use simulated::{Speed, simulate_cell};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use tailwater_functions::acl::{AclConfig, Action};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_profile::{Depth, TrainOptions, train_capacity, train_costs};
use tailwater_traffic::generate::preset;

/// A combination that is compared on the same packets.
struct Cell {
    chain: &'static str,
    traffic: &'static str,
    /// Nominal packets per second, in millions. Presets yield somewhat fewer in so short a time.
    mpps: f64,
    /// Objective, microseconds.
    slo: u64,
}

const fn cell(chain: &'static str, traffic: &'static str, mpps: f64, slo: u64) -> Cell {
    Cell {
        chain,
        traffic,
        mpps,
        slo,
    }
}

/// All cells. Mean loads are 60 to 90 % of the core, and bursts exceed it.
const CELLS: &[Cell] = &[
    cell("acl-urlfilter-encrypt", "backbone", 1.07, 100),
    cell("acl-urlfilter-encrypt", "as", 1.0, 100),
    cell("acl-urlfilter-encrypt", "bursty", 1.0, 100),
    cell("acl-urlfilter-encrypt", "ndpi_webattack_rce", 2.0, 100),
    cell("acl-nat", "backbone", 2.8, 100),
    cell("acl-nat", "bursty", 2.4, 100),
    cell("acl-lb-accounting", "backbone", 2.8, 100),
    cell("acl-lb-accounting", "as", 2.8, 100),
];
/// Policies that make sense with one dedicated core.
const POLICIES: &[&str] = &["static", "netblaze", "tailwater"];

/// Training traffic: the default of `tailwater profile`.
const TRAINING: &str = "backbone";
/// Seeds of the measured traffic, and of the training traffic.
const SEED: u64 = 1;
const TRAINING_SEED: u64 = 1001;
/// Descriptors of the NIC's ring; large enough for late packets to be late rather than lost.
const RING: usize = 4096;
/// Packet buffers of the dedicated core where flows are offloaded.
const BUFFERS: u32 = 2048;
/// Time for which an auxiliary core polls for work before it sleeps.
const SPIN: Nanos = Nanos::from_micros(50);
/// Length of a window.
const WINDOW: Nanos = Nanos::from_millis(4);
/// Duration of the traffic.
const LENGTH: Nanos = Nanos::from_millis(1200);
/// Number of windows that the traffic fills.
const WINDOWS: usize = (LENGTH.0 / WINDOW.0) as usize;

struct Options {
    filters: Vec<String>,
    runs: usize,
    save: Option<PathBuf>,
    from: Option<PathBuf>,
}

fn options() -> Options {
    let mut options = Options {
        filters: Vec::new(),
        runs: 3,
        save: None,
        from: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--bench" => {}
            "--runs" => options.runs = value().parse().expect("--runs N"),
            "--save" => options.save = Some(value().into()),
            "--from" => options.from = Some(value().into()),
            _ => options.filters.push(argument),
        }
    }
    options
}

/// Returns an example chain with an objective.
fn spec(chain: &str, traffic: &str, slo: u64) -> ChainSpec {
    let examples = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"));
    let mut spec = ChainSpec::read(&examples.join(format!("{chain}.yaml"))).expect("an example");
    spec.slo.latency = Nanos::from_micros(slo);
    // No flow is evicted, since the simulator does not model evictions.
    spec.flows.capacity = 1 << 19;
    if preset(traffic).is_err() {
        // Captures come from networks that the rules do not cover.
        for function in &mut spec.functions {
            if let Some(acl) = function.config.get_mut::<AclConfig>() {
                acl.default = Action::Allow;
            }
        }
    }
    spec
}

impl Cell {
    fn name(&self, policy: &str) -> String {
        let Cell {
            chain, traffic, slo, ..
        } = self;
        format!("{chain}/{traffic}/{slo}/{policy}")
    }

    fn spec(&self) -> ChainSpec {
        spec(self.chain, self.traffic, self.slo)
    }

    fn profile_name(&self) -> String {
        format!("{}-{}.profile.yaml", self.chain, self.slo)
    }
}

/// Returns the profiles of the cells, each chain and objective once.
fn profiles(cells: &[(&Cell, Vec<&str>)], lab: Option<&Lab>, options: &Options) -> Vec<CapacityProfile> {
    let mut profiles: Vec<(String, CapacityProfile)> = Vec::new();
    cells
        .iter()
        .map(|(cell, _)| {
            let name = cell.profile_name();
            if let Some((_, known)) = profiles.iter().find(|(known, _)| *known == name) {
                return known.clone();
            }
            let directory = options.from.as_ref().or(options.save.as_ref());
            let kept = directory.and_then(|directory| std::fs::read(directory.join(&name)).ok());
            let profile = match (kept, lab) {
                (Some(text), _) => CapacityProfile::parse(&text, &name).expect("a profile"),
                (None, Some(lab)) => train(cell, lab),
                (None, None) => panic!("--from DIRECTORY: there is no {name}"),
            };
            if let Some(directory) = &options.save {
                std::fs::write(directory.join(&name), profile.to_string()).expect("--save DIRECTORY");
            }
            profiles.push((name, profile.clone()));
            profile
        })
        .collect()
}

fn train(cell: &Cell, lab: &Lab) -> CapacityProfile {
    let spec = spec(cell.chain, TRAINING, cell.slo);
    let trace = traffic::training();
    let options = TrainOptions {
        core: lab.dedicated,
        depth: Depth::Quick,
        seed: 1,
    };
    let stop = AtomicBool::new(false);
    let profile = train_capacity(&spec, &trace, &options, &stop, |_| {});
    let mut profile = profile.expect("the chain can be trained");
    let (costs, details) = train_costs(&spec, &trace, &options, &stop).expect("as above");
    profile.costs = Some(costs);
    profile.details = Some(details);
    eprintln!("{profile}");
    profile
}

fn main() {
    let options = options();
    let lab = match options.from {
        Some(_) => None,
        None => match Lab::new() {
            Some(lab) => Some(lab),
            None => {
                eprintln!("live runs need two cores: skipped");
                return;
            }
        },
    };
    let wanted = |cell: &Cell, policy: &&str| {
        let (name, filters) = (cell.name(policy), &options.filters);
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
    };
    let cells: Vec<(&Cell, Vec<&str>)> = CELLS
        .iter()
        .map(|cell| {
            let policies = POLICIES.iter().copied();
            (cell, policies.filter(|policy| wanted(cell, policy)).collect())
        })
        .filter(|(_, policies): &(_, Vec<&str>)| !policies.is_empty())
        .collect();
    // Profiles are measured before the live runs that simulations are compared with.
    let profiles = profiles(&cells, lab.as_ref(), &options);
    let mut rows = Vec::new();
    for ((cell, policies), profile) in cells.iter().zip(&profiles) {
        let Some(trace) = traffic::trace(cell.traffic, SEED, cell.mpps * 1e6) else {
            eprintln!(
                "{}: skipped: the captures (TAILWATER_TEST_DATA) are not there",
                cell.name("")
            );
            continue;
        };
        let recording = options.save.is_none().then(|| traffic::recording(&trace, LENGTH));
        let live: Vec<Vec<Live>> = match (&options.from, &lab) {
            (None, Some(lab)) => lab.measure(cell, policies, profile, &trace, options.runs),
            (Some(directory), _) => {
                let kept = policies.iter().map(|policy| Live::kept(directory, &cell.name(policy)));
                kept.collect()
            }
            (None, None) => unreachable!("as above"),
        };
        for (policy, runs) in policies.iter().zip(live) {
            if let Some(directory) = &options.save {
                Live::keep(directory, &cell.name(policy), &runs);
            }
            if let Some(recording) = &recording {
                let runs = runs.into_iter().map(|run| {
                    let simulated = [Speed::EachStep, Speed::Mean, Speed::Trained]
                        .map(|speed| simulate_cell(cell, policy, profile, recording, speed, &run));
                    (run, simulated)
                });
                let row = table::Row::new(cell, policy, &runs.collect::<Vec<_>>());
                println!("{}", row.json());
                rows.push(row);
            }
        }
    }
    if !rows.is_empty() {
        eprintln!("{}", table::markdown(&rows));
    }
}
