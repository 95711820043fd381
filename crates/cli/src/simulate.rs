//! `tailwater simulate`: the policies side by side, on a rack in virtual time.

mod csv;
mod traffic;

use crate::args::{SimulateArgs, SimulateOutput};
use crate::error::CliError;
use crate::progress::Simulating;
use crate::run::{json, stop_on_signals};
use crate::{complain, print, table};
use serde::Serialize;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_policy::catalog::epoch;
use tailwater_policy::server::IngressConfig;
use tailwater_sim::policies::PolicyError;
use tailwater_sim::spec::RackSpec;
use tailwater_sim::{
    ChainModel, ChainRun, Objective, Rack, RackPolicy, RunOptions, SimError, SimReport,
    simulate_with,
};
use traffic::Packets;

/// Between two looks at how policies stand.
const PAUSE: Duration = Duration::from_millis(100);

/// What `--output json` prints. Field names are stable.
#[derive(Debug, Serialize)]
pub struct Document {
    /// The rack's name.
    pub rack: String,
    /// Its servers.
    pub servers: usize,
    /// All their cores.
    pub cores: usize,
    /// Whether policies are missing, since it was interrupted.
    pub interrupted: bool,
    /// What each policy came to, in the order in which they were named.
    pub runs: Vec<Run>,
}

/// What a policy came to.
#[derive(Debug, Serialize)]
pub struct Run {
    /// Its name.
    pub policy: &'static str,
    /// The simulation.
    #[serde(flatten)]
    pub report: SimReport,
}

/// A chain, made ready for all policies.
struct Chain {
    model: ChainModel,
    slo: Nanos,
    profile: CapacityProfile,
    /// What a packet of average length takes.
    packet: Nanos,
    ingress: IngressConfig,
    packets: Packets,
}

impl Chain {
    fn policy(&self, name: &str) -> Result<RackPolicy, PolicyError> {
        let objective = Objective {
            slo: self.slo,
            profile: &self.profile,
            packet: self.packet,
            ingress: self.ingress,
        };
        RackPolicy::named(name, &objective)
    }
}

/// Simulates all policies and prints what they come to.
pub fn simulate(args: &SimulateArgs) -> Result<ExitCode, CliError> {
    let mut spec = RackSpec::read(&args.rack)?;
    spec.seed = args.seed.unwrap_or(spec.seed);
    spec.duration = args.duration.or(spec.duration);
    if let Some(slo) = args.slo {
        epoch(slo).map_err(|error| CliError::Input(format!("--slo: {error}")))?;
        spec.chains.iter_mut().for_each(|chain| chain.slo = slo);
    }
    let policies = match (&args.policy[..], &spec.policies[..]) {
        ([], []) => RackPolicy::names().collect(),
        ([], named) | (named, _) => named.to_vec(),
    };
    let stop = stop_on_signals()?;
    let chains = prepare(&spec, args, &stop)?;
    // What cannot be made is told before anything is simulated.
    for chain in &chains {
        for policy in &policies {
            let made = chain.policy(policy);
            made.map_err(|error| {
                CliError::Input(format!("chain \"{}\": {error}", chain.model.name))
            })?;
        }
    }
    let options = RunOptions {
        seed: spec.seed,
        window: spec.window,
        ..RunOptions::default()
    };
    let runs = compare(&spec.rack, &chains, &policies, &options, &stop)?;
    let interrupted = runs.len() < policies.len();
    if interrupted {
        let (done, of) = (runs.len(), policies.len());
        complain(
            "notice",
            &format!("interrupted: {done} of {of} policies are done"),
        );
    }
    let document = Document {
        rack: spec.name.clone(),
        servers: spec.rack.servers.len(),
        cores: spec.rack.cores(),
        interrupted,
        runs,
    };
    print(&match args.output {
        SimulateOutput::Table => table::comparison(&document),
        SimulateOutput::Json => json(&document)?,
        SimulateOutput::Csv => csv::comparison(&document)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The chains with their packets.
fn prepare(
    spec: &RackSpec,
    args: &SimulateArgs,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<Chain>, CliError> {
    let mut chains = Vec::new();
    for (number, chain) in spec.chains.iter().enumerate() {
        let packets = Packets::load(spec, number, args.traffic.as_deref(), stop)?;
        let notices = packets.notices.iter();
        notices.for_each(|notice| complain("notice", notice));
        let model = chain.model();
        let bytes = packets.mean_bytes;
        chains.push(Chain {
            profile: chain.profile(chain.slo, bytes),
            packet: Nanos(model.packet_nanos(bytes).round() as u64),
            model: model.clone(),
            slo: chain.slo,
            ingress: chain.ingress,
            packets,
        });
    }
    Ok(chains)
}

/// Runs policies on all cores. Those that were not done when `stop` was set are left out.
fn compare(
    rack: &Rack,
    chains: &[Chain],
    policies: &[&'static str],
    options: &RunOptions,
    stop: &AtomicBool,
) -> Result<Vec<Run>, CliError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, times) = (AtomicUsize::new(0), AtomicU64::new(0));
    let work = |results: Sender<(usize, Result<Option<SimReport>, CliError>)>| {
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && let Some(policy) = policies.get(number)
            && !stop.load(Ordering::Relaxed)
        {
            let result = run(rack, chains, policy, options, stop, &times);
            if results.send((number, result)).is_err() {
                break;
            }
        }
    };
    let whole = chains.iter().map(|chain| chain.packets.duration.0).max();
    let whole = whole.unwrap_or(0).max(1) as f64 * policies.len() as f64;
    let mut progress = Simulating::new();
    let mut runs: Vec<Option<Run>> = policies.iter().map(|_| None).collect();
    let mut failure = None;
    std::thread::scope(|scope| {
        let (sender, results) = channel();
        for _ in 0..cores.min(policies.len()) {
            let sender = sender.clone();
            scope.spawn(|| work(sender));
        }
        drop(sender);
        let mut done = 0;
        loop {
            match results.recv_timeout(PAUSE) {
                Ok((number, Ok(report))) => {
                    done += 1;
                    let policy = policies[number];
                    runs[number] = report.map(|report| Run { policy, report });
                }
                Ok((_, Err(error))) => {
                    // The others would be thrown away.
                    stop.store(true, Ordering::Relaxed);
                    failure.get_or_insert(error);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let share = times.load(Ordering::Relaxed) as f64 / whole;
            progress.show(done, policies.len(), share);
        }
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(runs.into_iter().flatten().collect()),
    }
}

/// Runs a policy; `None` if `stop` was set meanwhile. `times` is told how far it is.
fn run(
    rack: &Rack,
    chains: &[Chain],
    policy: &str,
    options: &RunOptions,
    stop: &AtomicBool,
    times: &AtomicU64,
) -> Result<Option<SimReport>, CliError> {
    let mut runs = Vec::new();
    for chain in chains {
        let policy = chain.policy(policy);
        runs.push(ChainRun {
            model: chain.model.clone(),
            slo: chain.slo,
            policy: policy.map_err(|error| CliError::Input(error.to_string()))?,
            workload: chain.packets.workload()?,
        });
    }
    let mut told = 0;
    let report = simulate_with(rack, runs, options, |time| {
        times.fetch_add(time.0 - told, Ordering::Relaxed);
        told = time.0;
        !stop.load(Ordering::Relaxed)
    });
    let report = report.map_err(|error| match error {
        SimError::Traffic(error) => CliError::Traffic(error),
        error => CliError::Input(error.to_string()),
    })?;
    Ok((!stop.load(Ordering::Relaxed)).then_some(report))
}
